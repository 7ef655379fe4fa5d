//! Slots of many runs: what is far off for long, and changes, moves and ends meanwhile.

use crate::queue::message::TopicId;
use crate::queue::time::Timestamp;
use crate::store::{Reader, StoreOptions};

use super::TINY;
use super::run::Run;

/// Folds only when told to.
const ROOMY: StoreOptions = StoreOptions { segment_bytes: 64 << 10, generation_bytes: 1 << 20, ..TINY };

pub(super) fn far_run(seed: u64, body: u64) -> Run {
    let mut run = Run::new(seed, ROOMY, body);
    run.samples.far = true;
    run
}

/// A few commits and a fold.
pub(super) fn step_and_fold(run: &mut Run, commits: u64) -> bool {
    for _ in 0..commits {
        assert!(run.step(), "seed {}", run.seed);
    }
    // A fold that a power cut interrupted may have to be completed first.
    while !run.freeze() {
        assert!(run.step(), "seed {}", run.seed);
    }
    run.fold()
}

/// The most runs with pages of a slot, and the most pages of a run.
fn widest(run: &Run) -> (usize, usize) {
    let slots = || run.folder.directory.slots().map(|(_, slot)| slot);
    let runs = slots().map(|slot| slot.runs.values().filter(|run| !run.pages.is_empty()).count()).max();
    let pages = slots().flat_map(|slot| slot.runs.values()).map(|run| run.pages.len()).max();
    (runs.unwrap_or(0), pages.unwrap_or(0))
}

#[test]
fn a_reader_finds_everything_in_slots_of_many_runs() {
    let (mut most_runs, mut most_pages, mut interrupted, mut compactions) = (0, 0, 0, 0);
    for seed in 0..4 {
        let mut run = far_run(seed, if seed == 3 { 6_000 } else { 200 });
        for fold in 0..90 {
            // Now and then a whole page at once.
            let commits = if fold % 20 == 7 { 60 } else { 4 };
            if run.samples.below(8) == 0 {
                let calls = run.samples.below(10);
                run.media.kv.fail_after(Some(calls));
            }
            if !step_and_fold(&mut run, commits) {
                interrupted += 1;
                run.restart();
            }
            run.media.kv.fail_after(None);
            let (runs, pages) = widest(&run);
            (most_runs, most_pages) = (most_runs.max(runs), most_pages.max(pages));
        }
        run.restart();
        assert!(step_and_fold(&mut run, 1), "seed {seed}");
        run.check_garbage();
        compactions += run.seen.compactions;
    }
    println!("{most_runs} runs, {most_pages} pages, {interrupted} interrupted folds, {compactions} compactions");
    assert!(most_runs > 40 && most_pages > 4 && interrupted > 10 && compactions > 20);
}

#[test]
fn counting_reads_one_page_per_run_and_cut_and_none_of_them_twice() {
    let mut run = far_run(11, 200);
    for _ in 0..50 {
        assert!(step_and_fold(&mut run, 6));
    }
    let topic = TopicId(1);
    let slots: Vec<_> = run.folder.directory.slots().filter(|(key, _)| key.topic == topic).collect();
    let runs: usize = slots.iter().map(|(_, slot)| slot.runs.iter().count()).sum();
    // Each cuts a slot in two.
    let mut cuts: Vec<u64> = slots.iter().map(|(key, _)| key.start + key.level.width_ms() / 2).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let cuts: Vec<Timestamp> = cuts.into_iter().map(Timestamp::from_millis).collect();
    let mut reader = run.folder.reader();
    let read = |reader: &mut Reader, run: &Run, cuts: &[Timestamp]| {
        let before = run.media.kv.reads();
        reader.due(topic, cuts).expect("reads");
        usize::try_from(run.media.kv.reads() - before).expect("few")
    };
    let first = read(&mut reader, &run, &cuts);
    assert!(first > 10 && first <= runs * 2 * cuts.len(), "{first} values of {runs} runs");
    assert_eq!(read(&mut reader, &run, &cuts), 0, "the same again");
    assert_eq!(read(&mut reader, &run, &cuts[1..]), 0, "time goes on");
    run.leaves_worn = true;
    assert!(run.step() && run.freeze());
    let job = run.job.take().expect("it was frozen");
    let done = run.folder.run(job).expect("it folds");
    reader.apply(&done.delta);
    let after = read(&mut reader, &run, &cuts[1..]);
    assert!(after < first / 2, "{after} values for one more run of some slots, {first} for all");
}

#[test]
fn very_many_runs_of_few_pages_become_one() {
    let mut run = far_run(5, 50);
    let mut most_runs = 0;
    for _ in 0..80 {
        assert!(step_and_fold(&mut run, 14));
        let (runs, _) = widest(&run);
        assert!(runs <= 64, "{runs} runs");
        most_runs = most_runs.max(runs);
    }
    assert!(most_runs == 64, "{most_runs} runs");
}

#[test]
fn a_power_cut_between_any_two_steps_of_a_compaction_loses_nothing() {
    let mut steps = 0;
    for seed in 0..6 {
        for calls in 0.. {
            let mut run = far_run(seed, if seed.is_multiple_of(2) { 6_000 } else { 200 });
            run.leaves_worn = true;
            for _ in 0..12 {
                assert!(step_and_fold(&mut run, 6), "seed {seed}");
            }
            run.media.kv.fail_after(Some(calls));
            let finished = run.compact();
            let paged = run.paged.clone();
            run.restart();
            assert_eq!(run.paged, paged, "seed {seed}: a compaction changes nothing");
            // What was interrupted is done again over whatever was left behind.
            run.leaves_worn = false;
            assert!(step_and_fold(&mut run, 1), "seed {seed}");
            run.check_garbage();
            if finished {
                steps += calls;
                break;
            }
        }
    }
    assert!(steps >= 24, "{steps} steps");
}

#[test]
fn compaction_gives_back_what_the_dead_take() {
    let mut run = far_run(9, 300);
    run.leaves_worn = true;
    for _ in 0..30 {
        assert!(step_and_fold(&mut run, 10));
    }
    let bytes = |run: &Run| run.media.kv.keys().len();
    let (keys, pages) = (bytes(&run), run.folder.pages());
    assert!(run.compact());
    assert!(run.folder.pages() < pages && bytes(&run) < keys, "{} of {pages} pages", run.folder.pages());
    let worn =
        run.folder.directory.slots().flat_map(|(_, slot)| slot.runs.values()).find(|run| run.dead * 2 > run.count);
    assert_eq!(worn, None, "no run is mostly dead");
}
