//! Damage is told, with its place; a torn end is not damage.

use crate::queue::change::Change;
use crate::store::log::SegmentLog;
use crate::store::segment::{HeaderState, SegmentHeader, finish_record, scan};
use crate::store::{OpenError, StoreOptions};

use super::model::Model;
use super::samples::{START, Samples};
use super::{Media, TINY};

const ROOMY: StoreOptions = StoreOptions { segment_bytes: 64 << 10, generation_bytes: 1 << 20, ..TINY };

/// Commits random changes; gives the model after each commit, the first one before any.
fn commits(media: &Media, options: StoreOptions, count: usize, samples: &mut Samples) -> Vec<Model> {
    let (mut opened, model) = media.open(options).expect("opens");
    let mut models = vec![model];
    for _ in 0..count {
        let mut after = models.last().expect("one at least").clone();
        let change = samples.change(&after, START, 100);
        after.apply(&change);
        opened.committer.commit(&[change]).expect("commits");
        models.push(after);
    }
    models
}

/// Sets bytes of a durable segment.
fn set(media: &Media, file: u32, offset: usize, bytes: &[u8]) {
    let contents = media.log.read(file).expect("exists");
    for (n, &byte) in bytes.iter().enumerate() {
        media.log.damage(file, offset + n, contents[offset + n] ^ byte);
    }
}

fn used(media: &Media) -> Vec<(u32, SegmentHeader)> {
    let mut used = Vec::new();
    for (file, _) in media.log.list() {
        if let Ok(HeaderState::Used(header)) = SegmentHeader::decode(&media.log.read(file).expect("exists")) {
            used.push((file, header));
        }
    }
    used.sort_by_key(|(_, header)| header.sequence);
    used
}

#[test]
fn a_tail_torn_at_any_byte_drops_only_the_last_commit() {
    let media = Media::default();
    let models = commits(&media, ROOMY, 8, &mut Samples::new(1));
    let (file, header) = used(&media)[0];
    let records = scan(&media.log.read(file).expect("exists"), &header).records;
    let last = records.last().expect("eight commits");
    let whole = media.log.read(file).expect("exists");
    for at in last.offset..last.offset + 16 + last.payload {
        for filler in [0_u8, 0xa5] {
            let torn = media.copy();
            let rest = vec![filler; last.end() - at];
            set(&torn, file, at, &rest);
            if torn.log.read(file).expect("exists") == whole {
                continue;
            }
            let (mut opened, restored) = torn.open(ROOMY).expect("a torn end is not damage");
            // Zeros at the end of a record can be what was there; then nothing was torn.
            assert_eq!(models[7].difference(&restored, START), None, "torn at byte {at}");
            opened.committer.commit(&[Change::ArrivalsReserved(1 << 40)]).expect("goes on");
            let (_, restored) = torn.open(ROOMY).expect("opens again");
            assert_eq!(restored.arrivals, 1 << 40);
        }
    }
}

#[test]
fn any_flipped_bit_before_the_last_commit_is_refused_with_file_and_offset() {
    let media = Media::default();
    commits(&media, ROOMY, 8, &mut Samples::new(2));
    let (file, header) = used(&media)[0];
    let records = scan(&media.log.read(file).expect("exists"), &header).records;
    for record in &records[..records.len() - 1] {
        for at in (record.offset..record.offset + 16 + record.payload).step_by(5) {
            let damaged = media.copy();
            damaged.log.damage(file, at, 0x10);
            let error = damaged.open(ROOMY).err().unwrap_or_else(|| panic!("byte {at} is damaged"));
            match error {
                OpenError::JournalDamaged { offset, ref file, .. } => {
                    assert_eq!(offset, record.offset);
                    assert_eq!(file, "segment 1");
                }
                other => panic!("byte {at}: {other}"),
            }
        }
    }
}

#[test]
fn a_lost_header_or_segment_is_refused() {
    let media = Media::default();
    commits(&media, TINY, 120, &mut Samples::new(3));
    let segments = used(&media);
    assert!(segments.len() >= 4, "{} segments", segments.len());
    for &(file, _) in &segments {
        let damaged = media.copy();
        set(&damaged, file, 0, &[0; 512]);
        assert!(matches!(damaged.open(TINY), Err(OpenError::JournalDamaged { offset: 0, .. })));
        for bit in (0..76 * 8).step_by(7) {
            let damaged = media.copy();
            damaged.log.damage(file, bit / 8, 1 << (bit % 8));
            assert!(damaged.open(TINY).is_err(), "bit {bit}");
        }
    }
    for &(file, _) in &segments[..segments.len() - 1] {
        let mut damaged = media.copy();
        damaged.log.remove(file).expect("removes");
        assert!(matches!(damaged.open(TINY), Err(OpenError::JournalGap { .. })));
    }
}

#[test]
fn a_segment_of_another_store_is_refused() {
    let media = Media::default();
    commits(&media, TINY, 3, &mut Samples::new(4));
    let identity = crate::store::Identity { store: [8; 16], secret: [9; 16] };
    let (log, kv) = (Box::new(media.log.clone()), Box::new(media.kv.clone()));
    let error = crate::store::open_with(log, kv, identity, TINY, &mut |_| {}).err().expect("is refused");
    assert!(matches!(error, OpenError::ForeignSegment { .. }), "{error}");
}

/// A store after `folds` folds; the media after each fold.
fn folded(folds: u64, seed: u64) -> (Media, Vec<Media>, Model) {
    let media = Media::default();
    let mut samples = Samples::new(seed);
    let (mut opened, mut model) = media.open(TINY).expect("opens");
    let mut snapshots = vec![media.copy()];
    let mut now = START;
    while snapshots.len() as u64 <= folds {
        now = now.plus(100);
        let change = samples.change(&model, now, 300);
        model.apply(&change);
        opened.committer.commit(&[change]).expect("commits");
        if let Some(job) = opened.committer.fold_due(now) {
            let done = opened.folder.run(job).expect("folds");
            opened.committer.folded(done).expect("completes");
            snapshots.push(media.copy());
        }
    }
    for _ in 0..5 {
        let change = samples.change(&model, now, 300);
        model.apply(&change);
        opened.committer.commit(&[change]).expect("commits");
    }
    (media, snapshots, model)
}

#[test]
fn segments_are_used_again_and_old_records_in_them_are_never_taken_for_new_ones() {
    let (media, _, model) = folded(12, 5);
    let (files, sequences) = (media.log.list().len() as u64, used(&media).last().expect("used").1.sequence);
    assert!(sequences > files + 5, "{sequences} uses of {files} files");
    // Every end of the journal falls on old records: cut the newest segment after each of its records.
    let (file, header) = *used(&media).last().expect("used");
    let contents = media.log.read(file).expect("exists");
    let records = scan(&contents, &header).records;
    for record in &records {
        let cut = media.copy();
        cut.log.damage(file, record.offset + 4, 0xff);
        // Damage of the last record reads as a torn end, of an earlier one as damage.
        let result = cut.open(TINY);
        assert_eq!(result.is_ok(), record == records.last().expect("one"));
    }
    let (_, restored) = media.open(TINY).expect("opens");
    assert_eq!(model.difference(&restored, START.plus(1_000_000)), None);
}

#[test]
fn a_record_of_another_use_of_the_segment_is_not_taken_even_with_the_right_commit_number() {
    let header = |sequence| SegmentHeader {
        store: [7; 16],
        epoch: 1,
        sequence,
        first_commit: 5,
        fold: 0,
        folded_through: 0,
        live: 0,
        bytes: 0,
    };
    let record = |sequence, commit| {
        let mut record = vec![0; 16];
        record.extend_from_slice(b"payload");
        finish_record(&mut record, &header(sequence), commit);
        record
    };
    let segment = |records: [Vec<u8>; 2]| [header(3).encode().to_vec(), records.concat(), vec![0; 64]].concat();
    let good = scan(&segment([record(3, 5), record(3, 6)]), &header(3));
    assert_eq!((good.records.len(), good.torn, good.later), (2, false, None));
    let old = scan(&segment([record(3, 5), record(2, 6)]), &header(3));
    assert_eq!((old.records.len(), old.later), (1, None));
    let damaged = scan(&segment([record(2, 5), record(3, 6)]), &header(3));
    assert_eq!((damaged.records.len(), damaged.later), (0, Some(512 + 24)));
}

#[test]
fn pages_that_went_back_by_one_fold_are_repeated_from_the_journal() {
    for seed in 0..20 {
        let (media, snapshots, model) = folded(4, seed);
        let rolled_back = Media { log: media.log.copy(), kv: snapshots[3].kv.copy() };
        let (mut opened, restored) = rolled_back.open(TINY).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let difference = model.difference(&restored, START.plus(1_000_000));
        assert_eq!(difference, None, "seed {seed}");
        assert_eq!(opened.repeated_fold, Some(4), "seed {seed}");
        // And the repeated fold is good too.
        let job = opened.committer.freeze(START).expect("there is something to fold");
        let done = opened.folder.run(job).expect("folds");
        opened.committer.folded(done).expect("completes");
        let (_, restored) = rolled_back.open(TINY).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(model.difference(&restored, START.plus(1_000_000)), None, "seed {seed}");
    }
}

#[test]
fn a_power_cut_right_after_a_repeated_fold_does_not_take_its_note_for_that_of_the_first() {
    let mut carried = 0;
    for seed in 0..20 {
        let (media, snapshots, model) = folded(4, seed);
        let rolled_back = Media { log: media.log.copy(), kv: snapshots[3].kv.copy() };
        let (mut opened, _) = rolled_back.open(TINY).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let job = opened.committer.freeze(START.plus(1_000)).expect("there is something to fold");
        let done = opened.folder.run(job).expect("folds");
        carried += done.carried.len();
        let (_, restored) = rolled_back.copy().open(TINY).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(model.difference(&restored, START.plus(1_000_000)), None, "seed {seed}");
    }
    assert!(carried > 20, "{carried} messages are left to the journal");
}

#[test]
fn pages_that_went_back_further_are_refused() {
    for seed in 0..5 {
        let (media, snapshots, _) = folded(4, seed);
        for (fold, snapshot) in snapshots[..3].iter().enumerate() {
            let rolled_back = Media { log: media.log.copy(), kv: snapshot.kv.copy() };
            match rolled_back.open(TINY) {
                Err(OpenError::PagesRolledBack { pages, journal }) => {
                    assert_eq!(pages, fold as u64);
                    assert!(journal > pages + 1);
                }
                Err(other) => panic!("seed {seed}, fold {fold}: {other}"),
                Ok(_) => panic!("seed {seed}: a rollback to fold {fold} was not noticed"),
            }
        }
        // The other way round: the journal lost what it knew of the last folds.
        let older = Media { log: snapshots[1].log.copy(), kv: media.kv.copy() };
        assert!(older.open(TINY).is_err(), "seed {seed}");
    }
}

#[test]
fn any_damaged_or_lost_value_of_the_pages_is_refused() {
    for seed in 0..3 {
        let (media, _, model) = folded(3, seed);
        for key in media.kv.keys() {
            let damaged = media.copy();
            damaged.kv.damage(&key, 6, 0x04);
            refused_or_unneeded(&damaged, &model, &format!("damaged {key:02x?}"));
            let lost = media.copy();
            lost.kv.lose(&key);
            refused_or_unneeded(&lost, &model, &format!("lost {key:02x?}"));
        }
    }
}

fn refused_or_unneeded(media: &Media, model: &Model, what: &str) {
    if let Ok((_, restored)) = media.open(TINY) {
        let difference = model.difference(&restored, START.plus(1_000_000));
        assert_eq!(difference, None, "{what}: neither refused nor intact");
    }
}
