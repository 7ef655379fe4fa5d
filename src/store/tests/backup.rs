//! Backups: what they hold, whatever the store does meanwhile; what is refused; and what is restored.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::queue::change::{Change, Restored};
use crate::queue::message::TopicId;
use crate::store::home::Home;
use crate::store::{
    ARRIVALS_SKIPPED, BackupContents, BackupError, BackupFileError, OpenError, RestoreError, Snapshot, check, keys,
    open, read_backup, restore,
};

use super::TINY;
use super::model::Model;
use super::pages;
use super::run::Run;
use super::slots::{far_run, step_and_fold};

/// A store with a past in which every topic is known.
fn grown(seed: u64, folds: u64) -> Run {
    let mut run = far_run(seed, if seed % 3 == 2 { 6_000 } else { 200 });
    for topic in 1..=3 {
        let topic = Change::TopicPut(run.samples.topic(TopicId(topic)));
        assert!(run.commit(&[topic]));
    }
    for _ in 0..folds {
        assert!(step_and_fold(&mut run, 6), "seed {seed}");
    }
    run
}

/// Takes a snapshot; gives it with what it must hold.
fn snapshot(run: &mut Run) -> (Snapshot, Model) {
    while !run.freeze() {
        assert!(run.step());
    }
    let model = run.durable.clone();
    // What comes after the moment is not in it.
    for _ in 0..3 {
        assert!(run.step());
    }
    let job = run.job.take().expect("it was frozen");
    let (done, snapshot) = run.folder.run_and_snapshot(job).expect("folds");
    run.turn_pages(&done);
    run.committer.folded(done).expect("is noted");
    (snapshot, model)
}

fn written(snapshot: &Snapshot) -> Result<Vec<u8>, BackupError> {
    let mut bytes = Vec::new();
    snapshot.write(&mut |piece| {
        bytes.extend(piece);
        true
    })?;
    Ok(bytes)
}

fn small_backup() -> Vec<u8> {
    let (taken, _) = snapshot(&mut grown(1, 2));
    written(&taken).expect("it is written")
}

fn file(directory: &TempDir, bytes: &[u8]) -> PathBuf {
    let path = directory.path().join("backup");
    fs::write(&path, bytes).expect("can be written");
    path
}

fn restore_to(file: &Path, data: &Path, run: &Run) -> Result<BackupContents, RestoreError> {
    restore(file, data, TINY, run.now, &mut |_, _| {}).map(|restored| restored.contents)
}

fn intents(run: &Run) -> usize {
    run.media.kv.keys().iter().filter(|key| key[0] == keys::INTENT).count()
}

#[test]
fn a_backup_is_the_state_of_its_moment_whatever_happens_while_it_is_read() {
    let (mut withheld, mut carried_marks) = (0, 0);
    for seed in 0..6 {
        let mut run = grown(seed, 25);
        let (taken, mut expected) = snapshot(&mut run);
        for _ in 0..12 {
            assert!(step_and_fold(&mut run, 6), "seed {seed}");
        }
        withheld += intents(&run);
        let bytes = written(&taken).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        drop(taken);
        assert!(step_and_fold(&mut run, 1), "seed {seed}");
        run.check_garbage();

        let directory = TempDir::new().expect("a directory");
        let (file, data) = (file(&directory, &bytes), directory.path().join("data"));
        let contents = restore_to(&file, &data, &run).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(contents, read_backup(&file, &mut |_, _| {}).expect("it can be read"), "seed {seed}");
        assert_eq!(contents.header.live, expected.messages.len() as u64, "seed {seed}");
        let report = check(&data, &mut |_, _| {}).expect("it is a store");
        assert_eq!(report.findings, [], "seed {seed}");

        let mut all = Vec::new();
        let opened = open(&data, TINY, &mut |restored| all.push(restored)).expect("it opens");
        assert!(opened.epoch > expected.epoch && !opened.clean, "seed {seed}");
        assert_ne!(opened.identity.store, [7; 16], "seed {seed}: it is another store");
        assert_ne!(opened.identity.secret, [9; 16], "seed {seed}: it has another secret");
        let is_marked = |item: &&Restored| matches!(item, Restored::Message(m) if m.progress.cancel_on_lease_end);
        let marked = expected.messages.values().filter(|message| message.progress.cancel_on_lease_end).count();
        assert_eq!(all.iter().filter(is_marked).count(), marked, "seed {seed}: they are cancelled by the next start");
        carried_marks += marked;
        let restored = pages::restore(&opened, all).expect("it can be read");
        expected.arrivals += ARRIVALS_SKIPPED;
        assert_eq!(expected.difference(&restored, run.now), None, "seed {seed}");
    }
    assert!(withheld > 0, "nothing had to wait for a backup");
    assert!(carried_marks > 0, "no message was to be cancelled when its lease ends");
}

/// Deletes a topic that has messages, in memory and in pages, and makes another one in its place.
fn delete_topic(run: &mut Run, n: usize) {
    let topic = TopicId(run.samples.topics[n]);
    run.samples.topics[n] += 3;
    let next = Change::TopicPut(run.samples.topic(TopicId(run.samples.topics[n])));
    assert!(run.durable.messages.values().any(|message| message.id.topic == topic), "there is something to delete");
    assert!(run.commit(&[Change::TopicDeleted { topic, in_pages: true }, next]));
}

#[test]
fn a_backup_lacks_topics_deleted_before_it_but_not_their_numbers_and_has_those_deleted_later() {
    for seed in 30..36 {
        let mut run = grown(seed, 20);
        let highest = TopicId(90);
        let record = Change::TopicPut(run.samples.topic(highest));
        assert!(run.commit(&[record, Change::TopicDeleted { topic: highest, in_pages: false }]));
        delete_topic(&mut run, 0);
        let (taken, mut expected) = snapshot(&mut run);
        assert_eq!(taken.header().last_topic, highest, "seed {seed}");
        delete_topic(&mut run, 1);
        run.leaves_worn = true;
        for _ in 0..3 {
            assert!(step_and_fold(&mut run, 4), "seed {seed}");
        }
        // Nothing is given back that the backup has still to read.
        assert!(run.folder.compact().expect("it works").is_none(), "seed {seed}");
        assert!(run.folder.is_giving_back() && run.folder.is_held_up(), "seed {seed}");
        let bytes = written(&taken).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        drop(taken);
        run.leaves_worn = false;
        assert!(run.compact(), "seed {seed}");
        assert!(!run.folder.is_giving_back() && !run.folder.is_held_up(), "seed {seed}");
        run.check_garbage();

        let directory = TempDir::new().expect("a directory");
        let (file, data) = (file(&directory, &bytes), directory.path().join("data"));
        restore_to(&file, &data, &run).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(check(&data, &mut |_, _| {}).expect("it is a store").findings, [], "seed {seed}");
        let mut all = Vec::new();
        let opened = open(&data, TINY, &mut |restored| all.push(restored)).expect("it opens");
        assert!(all.contains(&Restored::LastTopic(highest)), "seed {seed}: its number is not issued again");
        let restored = pages::restore(&opened, all).expect("it can be read");
        expected.arrivals += ARRIVALS_SKIPPED;
        assert_eq!(expected.difference(&restored, run.now), None, "seed {seed}");
    }
}

#[test]
fn what_was_kept_for_a_backup_is_removed_by_the_next_start_after_a_crash() {
    for seed in 10..14 {
        let mut run = grown(seed, 20);
        let (taken, _) = snapshot(&mut run);
        for _ in 0..10 {
            assert!(step_and_fold(&mut run, 6), "seed {seed}");
        }
        assert!(intents(&run) > 0, "seed {seed}");
        run.crash();
        drop(taken);
        run.reopen();
        assert!(step_and_fold(&mut run, 1), "seed {seed}");
        run.check_garbage();
    }
}

#[test]
fn a_backup_that_is_read_too_slowly_is_given_up_and_the_store_goes_on() {
    let mut run = grown(21, 20);
    run.folder.max_withheld = 3;
    let (taken, _) = snapshot(&mut run);
    for _ in 0..10 {
        assert!(step_and_fold(&mut run, 6));
    }
    assert_eq!(written(&taken), Err(BackupError::Overtaken));
    run.check_garbage();
    // The next one is none the worse for it.
    run.folder.max_withheld = 1_000;
    let (taken, _) = snapshot(&mut run);
    assert!(written(&taken).is_ok());
}

#[test]
fn a_reader_that_has_gone_ends_a_backup() {
    let (taken, _) = snapshot(&mut grown(22, 5));
    let mut pieces = 0;
    let ended = taken.write(&mut |_| {
        pieces += 1;
        pieces < 3
    });
    assert_eq!((ended, pieces), (Err(BackupError::Stopped), 3));
}

#[test]
fn a_backup_that_is_cut_off_or_changed_anywhere_is_refused_by_its_offset() {
    let bytes = small_backup();
    let directory = TempDir::new().expect("a directory");
    let read = |bytes: &[u8]| read_backup(&file(&directory, bytes), &mut |_, _| {});
    let whole = read(&bytes).expect("it is whole");
    assert_eq!(whole.bytes, bytes.len() as u64);
    let refused = |changed: &[u8], at: usize| match read(changed) {
        Err(RestoreError::File(BackupFileError::Damaged { offset, .. })) => {
            assert!(offset <= at as u64, "byte {at}: it is told at {offset}");
        }
        other => panic!("byte {at}: {other:?}"),
    };
    // Every byte of the first frames and of the end, and many between.
    let all = 0..bytes.len();
    for at in all.filter(|at| *at < 300 || *at > bytes.len() - 100 || at % 23 == 0) {
        refused(&bytes[..at], at);
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        refused(&changed, at);
    }
    let mut longer = bytes.clone();
    longer.push(0);
    refused(&longer, bytes.len());
    let mut newer = bytes.clone();
    newer[16] = 9;
    let sum = crc32c::crc32c(&newer[..20]).to_le_bytes();
    newer[20..24].copy_from_slice(&sum);
    let refused = read(&newer).expect_err("a newer format").to_string();
    assert!(refused.contains("format 9") && refused.contains("newer version"), "{refused}");
}

#[test]
fn a_backup_is_restored_into_an_empty_directory_only_and_an_interrupted_restore_is_no_store() {
    let run = grown(2, 2);
    let directory = TempDir::new().expect("a directory");
    let (file, data) = (file(&directory, &small_backup()), directory.path().join("data"));
    fs::create_dir(&data).expect("can be made");
    fs::write(data.join("letter"), "mine").expect("can be written");
    let refused = restore_to(&file, &data, &run).expect_err("it is not empty");
    assert!(
        matches!(&refused, RestoreError::Store(OpenError::NotEmpty { found, .. }) if found == "letter"),
        "{refused}"
    );
    fs::remove_file(data.join("letter")).expect("can be removed");

    // As a power cut in the middle leaves it.
    drop(Home::begin_restore(&data, 0).expect("it is empty"));
    let refusals = [open(&data, TINY, &mut |_| {}).err(), check(&data, &mut |_, _| {}).err()];
    for refusal in refusals {
        assert!(matches!(refusal, Some(OpenError::Unrestored { .. })), "{refusal:?}");
    }
    restore_to(&file, &data, &run).expect("it is made anew");
    drop(open(&data, TINY, &mut |_| {}).expect("it is a store"));
    let refused = restore_to(&file, &data, &run).expect_err("it is in use");
    assert!(matches!(&refused, RestoreError::Store(OpenError::NotEmpty { .. })), "{refused}");
}

#[test]
fn a_damaged_backup_leaves_no_trace_of_a_directory() {
    let directory = TempDir::new().expect("a directory");
    let bytes = small_backup();
    let (file, data) = (file(&directory, &bytes[..bytes.len() - 1]), directory.path().join("data"));
    restore_to(&file, &data, &grown(2, 1)).expect_err("it is cut off");
    assert!(!data.exists());
}
