//! Damaged pages: the rest is read, and a fold sets them aside with an exact count.

use std::collections::{BTreeMap, BTreeSet};

use crate::queue::change::Change;
use crate::queue::far::{Load, Missing};
use crate::queue::message::{Place, TopicId};
use crate::queue::quarantine::DamagedPart;
use crate::queue::time::Timestamp;
use crate::store::page::{Order, read_page, sort_time};
use crate::store::quarantine::PageName;
use crate::store::tombstones::TombstoneCache;
use crate::store::{Identity, KvError, ReadError, Reader, keys, open_with};

use super::Media;
use super::pages::{Paged, read_topic};
use super::run::Run;
use super::slots::{far_run, step_and_fold};

/// A store with a few folds behind it, in slots of several runs.
pub(super) fn grown(seed: u64) -> Run {
    let mut run = far_run(seed, if seed.is_multiple_of(3) { 6_000 } else { 300 });
    for _ in 0..12 {
        assert!(step_and_fold(&mut run, 12), "seed {seed}");
    }
    run
}

/// The pages in which something lives, with the arrival numbers of that.
fn live_pages(run: &Run) -> Vec<(PageName, BTreeSet<u64>)> {
    let kv = &run.media.kv;
    let mut tombstones = TombstoneCache::default();
    let mut pages = Vec::new();
    for (&slot, listed) in run.folder.directory.slots() {
        for (&number, of_run) in listed.runs.iter() {
            for (page, entry) in of_run.pages.iter().enumerate().filter(|(_, entry)| !entry.is_in_quarantine()) {
                let records = read_page(kv, &slot, number, page, entry).expect("whole");
                let ends = (entry.first(&slot), entry.last(&slot));
                let dead = tombstones.dead_between(kv, (&slot, listed), number, ends).expect("whole");
                let lives = |order: &Order| dead.binary_search(order).is_err();
                let live: BTreeSet<u64> =
                    records.iter().map(|record| record.order).filter(lives).map(|(_, arrival)| arrival).collect();
                if !live.is_empty() {
                    pages.push((PageName { slot, run: number, page }, live));
                }
            }
        }
    }
    pages
}

fn key_of(page: &PageName) -> Vec<u8> {
    page.slot.key(keys::PAGE, page.run, u32::try_from(page.page).expect("small"))
}

/// Damages some pages; gives them with what lives in them.
pub(super) fn damage(run: &mut Run, count: usize) -> Vec<(PageName, BTreeSet<u64>)> {
    let mut pages = live_pages(run);
    let mut damaged = Vec::new();
    for _ in 0..count {
        let at = usize::try_from(run.samples.below(pages.len() as u64)).expect("small");
        let (page, live) = pages.swap_remove(at);
        // Half of them flipped, half of them lost.
        if run.samples.below(2) == 0 {
            run.media.kv.damage(&key_of(&page), 9, 0x10);
        } else {
            run.media.kv.lose(&key_of(&page));
        }
        damaged.push((page, live));
    }
    damaged
}

fn read_everything(reader: &mut Reader) -> BTreeSet<u64> {
    let all = (1..=3).flat_map(|topic| read_topic(reader, TopicId(topic), 9).expect("damage is left out"));
    all.map(|message| message.id.arrival).collect()
}

#[test]
fn what_is_damaged_is_left_out_told_once_and_the_rest_is_read() {
    for seed in 0..12 {
        let mut run = grown(seed);
        let damaged = damage(&mut run, 3);
        let lost: BTreeSet<u64> = damaged.iter().flat_map(|(_, live)| live).copied().collect();
        let rest: BTreeSet<u64> = run.paged.keys().copied().filter(|arrival| !lost.contains(arrival)).collect();
        let mut reader = run.folder.reader();
        assert_eq!(read_everything(&mut reader), rest, "seed {seed}");
        let told: BTreeSet<Option<PageName>> = reader.take_damaged().iter().map(PageName::of_whole).collect();
        assert_eq!(told, damaged.iter().map(|(page, _)| Some(*page)).collect(), "seed {seed}");
        assert_eq!(read_everything(&mut reader), rest, "seed {seed}");

        let mut reader = run.folder.reader();
        for message in run.paged.values() {
            let candidates = vec![(message.id.arrival, message.place())];
            let found = reader.find(&Missing { topic: message.id.topic, candidates, key: None });
            if lost.contains(&message.id.arrival) {
                assert!(matches!(found, Err(ReadError::Damaged { .. })), "seed {seed}: {found:?}");
            } else {
                assert_eq!(found, Ok(Some(message.clone())), "seed {seed}");
            }
        }
    }
}

/// Reads everything, and gives what is damaged.
pub(super) fn parts(run: &Run) -> Vec<DamagedPart> {
    let mut reader = run.folder.reader();
    read_everything(&mut reader);
    reader.take_damaged()
}

/// Counts what is lost at the end of the generation: what lives in the damaged pages and was not touched since.
fn count_lost(run: &mut Run, damaged: &[(PageName, BTreeSet<u64>)]) -> u64 {
    let mut count = 0;
    for arrival in damaged.iter().flat_map(|(_, live)| live) {
        let Some(message) = run.durable.messages.get(arrival) else { continue };
        if run.paged.get(arrival) == Some(message) {
            run.durable.totals.entry(message.id.topic).or_default().quarantined += 1;
            run.durable.messages.remove(arrival);
            count += 1;
        }
    }
    run.frozen = run.durable.messages.clone();
    count
}

#[test]
fn a_fold_sets_damaged_pages_aside_and_counts_exactly_what_was_lost() {
    let (mut lost, mut rescued, mut known, mut emptied) = (0, 0, 0, 0);
    for seed in 0..40 {
        let mut run = grown(seed);
        let count = 1 + seed as usize % 4;
        let damaged = damage(&mut run, count);
        let changes: Vec<Change> = parts(&run).into_iter().map(Change::Quarantined).collect();
        assert!(changes.len() >= count);
        assert!(run.commit(&changes));
        assert!(run.committer.is_generation_full(), "it is done soon");
        // What memory holds of them changes meanwhile.
        for _ in 0..run.samples.below(12) {
            assert!(run.step());
        }
        let slots = run.folder.directory.slots().count();
        assert!(run.freeze());
        let gone = count_lost(&mut run, &damaged);
        let held: usize = damaged.iter().map(|(_, live)| live.len()).sum();
        let job = run.job.take().expect("frozen");
        let done = run.folder.run(job).expect("damage does not stop a fold");
        assert_eq!(done.set_aside.iter().map(|aside| aside.messages).sum::<u64>(), gone, "seed {seed}");
        for aside in &done.set_aside {
            for id in &aside.known {
                assert!(damaged.iter().any(|(_, live)| live.contains(&id.arrival)), "seed {seed}: {id}");
                known += 1;
            }
        }
        let carried: BTreeSet<u64> = done.carried.iter().map(|carried| carried.arrival).collect();
        run.paged = std::mem::take(&mut run.frozen);
        run.paged.retain(|arrival, _| !carried.contains(arrival));
        run.reader.apply(&done.delta);
        run.committer.folded(done).expect("completes");
        emptied += usize::from(run.folder.directory.slots().count() < slots);
        // A flipped page is kept as it was found.
        let kept = run.media.kv.keys().iter().filter(|key| key[0] == keys::QUARANTINE).count();
        assert!(kept <= count);
        run.restart();
        assert!(parts(&run).is_empty(), "seed {seed}: nothing damaged is listed");
        // And life goes on: more folds, compaction, restarts.
        for _ in 0..6 {
            assert!(step_and_fold(&mut run, 10), "seed {seed}");
        }
        run.restart();
        lost += gone;
        rescued += held as u64 - gone;
    }
    println!("{lost} lost, {rescued} rescued, {known} known, {emptied} slots emptied");
    assert!(lost > 100 && rescued > 5 && known > 20);
}

#[test]
fn a_power_cut_between_any_two_steps_of_setting_aside_changes_no_count() {
    let mut steps = 0;
    for seed in 0..4 {
        for calls in 0.. {
            let mut run = grown(seed);
            let damaged = damage(&mut run, 2);
            let changes: Vec<Change> = parts(&run).into_iter().map(Change::Quarantined).collect();
            assert!(run.commit(&changes));
            assert!(run.freeze());
            count_lost(&mut run, &damaged);
            run.media.kv.fail_after(Some(calls));
            let job = run.job.take().expect("frozen");
            let is_done = run.folder.run(job).is_ok();
            run.crash();
            fold_what_is_noted(&run.media, run.now);
            run.job = None;
            let (_, restored) = run.media.open(run.options).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let difference = run.durable.difference(&restored, run.now);
            assert_eq!(difference, None, "seed {seed}, {calls} calls");
            if is_done {
                steps += calls;
                break;
            }
        }
    }
    assert!(steps >= 12, "{steps} steps");
}

/// A start after a crash: the journal knows what is to be set aside.
fn fold_what_is_noted(media: &Media, now: Timestamp) {
    let (log, kv) = (Box::new(media.log.clone()), Box::new(media.kv.clone()));
    let identity = Identity { store: [7; 16], secret: [9; 16] };
    let mut opened = open_with(log, kv, identity, super::TINY, &mut |_| {}).expect("opens");
    opened.committer.commit(&[Change::Opened { epoch: opened.epoch, at: now }]).expect("commits");
    if let Some(job) = opened.committer.fold_due(now) {
        let done = opened.folder.run(job).expect("folds");
        opened.committer.folded(done).expect("completes");
    }
}

#[test]
fn a_damaged_chunk_costs_its_message_only() {
    let mut seen = 0;
    for seed in [0, 3, 6, 9] {
        let mut run = grown(seed);
        let chunks: Vec<Vec<u8>> = run.media.kv.keys().into_iter().filter(|key| key[0] == keys::CHUNK).collect();
        let at = usize::try_from(run.samples.below(chunks.len() as u64)).expect("small");
        let (arrival, _) = keys::parse_chunk_key(&chunks[at]).expect("a chunk");
        run.media.kv.damage(&chunks[at], 30, 1);
        let found = parts(&run);
        let message = run.paged[&arrival].clone();
        let place = (sort_time(message.place()), arrival);
        assert!(matches!(found[..], [DamagedPart { is_whole: false, first, .. }] if first == place), "{found:?}");
        assert!(run.commit(&[Change::Quarantined(found[0])]));
        assert!(run.freeze());
        run.durable.messages.remove(&arrival);
        run.durable.totals.entry(message.id.topic).or_default().quarantined += 1;
        run.frozen = run.durable.messages.clone();
        assert!(run.fold(), "seed {seed}");
        run.restart();
        assert!(!run.paged.contains_key(&arrival));
        seen += 1;
    }
    assert_eq!(seen, 4);
}

#[test]
fn a_load_of_a_damaged_page_goes_on_behind_it() {
    let mut run = grown(5);
    let waiting: BTreeMap<_, _> =
        run.paged.iter().filter(|(_, message)| matches!(message.place(), Place::Due(_))).collect();
    let topic = waiting.values().next().expect("there are some").id.topic;
    assert!(!waiting.is_empty());
    for (page, _) in live_pages(&run).into_iter().filter(|(page, _)| page.slot.topic == topic) {
        run.media.kv.lose(&key_of(&page));
    }
    let mut reader = run.folder.reader();
    let load = Load { topic, from: (Timestamp::ZERO, 0), max: 1_000, fold: reader.fold() };
    let loaded = reader.load(load).expect("it goes on");
    assert!(loaded.messages.is_empty() && loaded.frontier.is_none(), "{loaded:?}");
    let _: Paged = std::mem::take(&mut run.paged);
    assert!(!reader.take_damaged().is_empty());
}

/// After a write has failed sled reads nothing any more; that says nothing about the pages, and whoever set them aside would
/// give up good messages.
#[test]
fn a_page_store_that_has_failed_is_no_damage_of_its_pages() {
    let run = grown(7);
    let (&arrival, message) = run.paged.iter().next().expect("there are some");
    let (topic, place) = (message.id.topic, message.place());
    let load = |reader: &mut Reader| {
        let fold = reader.fold();
        reader.load(Load { topic, from: (Timestamp::ZERO, 0), max: 1_000, fold })
    };
    let find = |reader: &mut Reader| reader.find(&Missing { topic, key: None, candidates: vec![(arrival, place)] });
    let mut reader = run.folder.reader();
    run.media.kv.fail_reads(Some(KvError::Failed("no space".to_owned())));
    assert!(matches!(load(&mut reader), Err(ReadError::Failed { .. })));
    assert!(matches!(find(&mut reader), Err(ReadError::Failed { .. })));
    assert_eq!(reader.take_damaged(), []);
    run.media.kv.fail_reads(None);
    assert!(find(&mut reader).expect("it is read").is_some());

    // What only the page refuses is damage.
    run.media.kv.fail_reads(Some(KvError::Refused("corrupted".to_owned())));
    assert!(matches!(find(&mut reader), Err(ReadError::Damaged { .. })));
    assert!(!reader.take_damaged().is_empty());
}
