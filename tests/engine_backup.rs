//! Backups of a running engine on the real store, and what a restored or copied store does with what was handed out before.

mod engine_support;
#[path = "support/page_store.rs"]
mod page_store;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use duewheel::clock::{ManualTime, Stopwatch};
use duewheel::engine::{BackupError, EngineError, EngineHandle};
use duewheel::queue::command::{Command, Delivery, Reply};
use duewheel::queue::limits::Limits;
use duewheel::queue::receipt::ForeignReceipt;
use duewheel::queue::settings::TopicSettings;
use duewheel::queue::time::Timestamp;
use duewheel::store::{self, ARRIVALS_SKIPPED, StoreOptions};

use engine_support::{START_MS, fetch, produce, start_on, topic};

const OPTIONS: StoreOptions = StoreOptions {
    segment_bytes: 256 << 10,
    spare_segments: 1,
    generation_bytes: 32 << 10,
    carry_horizon_ms: 1_000,
    carry_bytes_per_commit: 64 << 10,
    cache_bytes: 1 << 20,
    min_free_bytes: 0,
};

fn open(directory: &Path, time: &ManualTime) -> EngineHandle {
    start_on(directory, OPTIONS, Limits::default(), time).expect("it opens")
}

fn manual_time() -> ManualTime {
    ManualTime::new(Timestamp::from_millis(START_MS))
}

async fn create_topic(engine: &EngineHandle) {
    let create = Command::CreateTopic { name: topic("t"), settings: TopicSettings::default() };
    engine.apply(create).await.expect("the engine serves").expect("the topic is new");
}

async fn produce_one(engine: &EngineHandle, delay_ms: u64) -> u64 {
    match engine.apply(produce("t", delay_ms)).await.expect("the engine serves") {
        Ok(Reply::Produced(produced)) => produced.id.arrival,
        other => panic!("{other:?}"),
    }
}

async fn lease_one(engine: &EngineHandle) -> Delivery {
    let leased = engine.fetch(fetch("t", 1, 0)).await.expect("it serves").expect("the topic exists");
    leased.into_iter().next().expect("a message is ready")
}

async fn epoch(engine: &EngineHandle) -> u32 {
    engine.stats(None).await.expect("it serves").expect("no topic was named").broker.epoch
}

/// Takes a backup to its end.
async fn back_up(engine: &EngineHandle, directory: &TempDir) -> PathBuf {
    let backup = engine.backup().await.expect("it is the only one");
    let mut bytes = Vec::new();
    let written = backup.write(&mut |piece| {
        bytes.extend(piece);
        true
    });
    written.expect("nothing is damaged");
    let file = directory.path().join("backup");
    fs::write(&file, bytes).expect("there is room");
    file
}

#[tokio::test]
async fn a_restored_store_refuses_receipts_of_before_and_skips_arrival_numbers() {
    let directory = TempDir::new().expect("there is room");
    let time = manual_time();
    let engine = open(&directory.path().join("old"), &time);
    create_topic(&engine).await;
    let before = produce_one(&engine, 0).await;
    let leased = lease_one(&engine).await;
    let sealed = engine.receipt_key().seal(&leased.receipt);
    let file = back_up(&engine, &directory).await;
    let after = produce_one(&engine, 0).await;
    engine.shutdown().await;

    let new = directory.path().join("new");
    store::restore(&file, &new, OPTIONS, Timestamp::from_millis(START_MS), &mut |_, _| {}).expect("it is restored");
    let engine = open(&new, &time);
    assert_eq!(engine.receipt_key().open(&sealed), Err(ForeignReceipt), "the secret is another");
    let again = lease_one(&engine).await;
    assert_eq!(again.receipt.id.arrival, before, "what was leased at the backup comes again");
    assert!(again.redelivered, "and may have been delivered before");
    let stale = engine.apply(Command::Ack(leased.receipt)).await.expect("the engine serves");
    assert!(stale.is_err(), "not even under the same secret: {stale:?}");
    let next = produce_one(&engine, 0).await;
    assert!(next >= before + ARRIVALS_SKIPPED && next > after, "{next}");
    engine.shutdown().await;
}

#[tokio::test]
async fn one_backup_runs_at_a_time_and_the_engine_goes_on_meanwhile() {
    let directory = TempDir::new().expect("there is room");
    let time = manual_time();
    let engine = open(&directory.path().join("data"), &time);
    create_topic(&engine).await;
    for _ in 0..100 {
        produce_one(&engine, 3_600_000).await;
    }
    let backup = engine.backup().await.expect("it is the only one");
    assert_eq!(backup.header().live, 100);
    assert!(matches!(engine.backup().await.err(), Some(EngineError::BackupRunning)));
    // Folds go on, one after the other.
    for _ in 0..2_000 {
        produce_one(&engine, 3_600_000).await;
    }
    let mut bytes = 0;
    let (counts, _) = backup
        .write(&mut |piece| {
            bytes += piece.len();
            true
        })
        .expect("nothing is damaged");
    assert_eq!((counts.waiting, counts.dead), (100, 0), "what came later is not in it");
    drop(backup);
    let backup = engine.backup().await.expect("the other one has ended");
    assert_eq!(backup.header().live, 2_100);
    drop(backup);
    engine.shutdown().await;
    assert!(matches!(engine.backup().await.err(), Some(EngineError::Draining)));
}

#[tokio::test]
async fn a_topic_deleted_during_a_backup_is_whole_in_it_and_given_back_when_it_has_ended() {
    let directory = TempDir::new().expect("there is room");
    let time = manual_time();
    let engine = open(&directory.path().join("data"), &time);
    create_topic(&engine).await;
    for _ in 0..600 {
        produce_one(&engine, 3_600_000).await;
    }
    let backup = engine.backup().await.expect("it is the only one");
    let delete = Command::DeleteTopic { name: topic("t"), purge: true };
    let deleted = match engine.apply(delete).await.expect("the engine serves") {
        Ok(Reply::TopicDeleted(deleted)) => deleted,
        other => panic!("{other:?}"),
    };
    let (counts, _) = backup.write(&mut |_| true).expect("nothing is damaged");
    assert_eq!(counts.waiting, 600);
    assert!(engine.reclaiming(deleted).await.expect("it serves").pages > 0, "its pages wait for the end of the backup");
    drop(backup);
    let waited = Stopwatch::start();
    // No other fold is due.
    while !engine.reclaiming(deleted).await.expect("it serves").is_done() {
        assert!(waited.elapsed() < Duration::from_secs(30), "it is not given back");
        thread::sleep(Duration::from_millis(10));
    }
    engine.shutdown().await;
}

#[tokio::test]
async fn a_copy_of_a_directory_refuses_receipts_that_the_original_gave_out_after_the_copy() {
    let directory = TempDir::new().expect("there is room");
    let (original, copy) = (directory.path().join("original"), directory.path().join("copy"));
    let time = manual_time();
    let engine = open(&original, &time);
    create_topic(&engine).await;
    produce_one(&engine, 0).await;
    engine.shutdown().await;
    drop(engine);
    copy_directory(&original, &copy);

    // Both start from the same epoch, and go on by steps of their own; the same step is rare.
    for _ in 0..4 {
        let (engine, other) = (open(&original, &time), open(&copy, &time));
        let (leased, from_copy) = (lease_one(&engine).await, lease_one(&other).await);
        assert_eq!((leased.receipt.id, leased.receipt.delivery), (from_copy.receipt.id, from_copy.receipt.delivery));
        let is_other = epoch(&engine).await != epoch(&other).await;
        if is_other {
            let foreign = other.apply(Command::Ack(leased.receipt)).await.expect("the engine serves");
            assert!(foreign.is_err(), "a receipt of the original settles a lease of the copy");
            let own = other.apply(Command::Ack(from_copy.receipt)).await.expect("the engine serves");
            assert!(own.is_ok(), "{own:?}");
        } else {
            for (engine, receipt) in [(&engine, leased.receipt), (&other, from_copy.receipt)] {
                engine.apply(Command::Return(receipt)).await.expect("it serves").expect("it is leased");
            }
            time.advance_ms(2_000);
        }
        engine.shutdown().await;
        other.shutdown().await;
        if is_other {
            return;
        }
    }
    panic!("the copy has always the same epoch as the original");
}

#[tokio::test]
async fn damage_that_a_backup_finds_ends_it_and_is_set_aside_so_that_the_next_holds_the_rest() {
    let directory = TempDir::new().expect("there is room");
    let (data, time) = (directory.path().join("data"), manual_time());
    let engine = open(&data, &time);
    create_topic(&engine).await;
    for _ in 0..400 {
        produce_one(&engine, 3_600_000).await;
    }
    // The fold of a backup brings them into pages.
    drop(engine.backup().await.expect("it is the only one"));
    engine.shutdown().await;
    drop(engine);
    let pages = page_store::open(&data);
    let (key, value) = pages.scan_prefix([5]).last().expect("there is a page").expect("it can be read");
    let mut value = value.to_vec();
    value[40] ^= 1;
    pages.insert(key, value).expect("it can be written");
    drop(pages);

    let engine = open(&data, &time);
    let backup = engine.backup().await.expect("it is the only one");
    let failed = backup.write(&mut |_| true).expect_err("a page is damaged");
    assert!(matches!(failed, BackupError::Damaged { part: Some(_), .. }), "{failed}");
    drop(backup);
    let backup = engine.backup().await.expect("the other one has ended");
    let (counts, _) = backup.write(&mut |_| true).expect("the page is set aside");
    drop(backup);
    // The engine knows of a fold before it begins the next.
    drop(engine.backup().await.expect("the other one has ended"));
    let stats = engine.stats(None).await.expect("it serves").expect("no topic was named");
    let quarantined = stats.topics[0].counts.totals.quarantined;
    assert!(quarantined > 0 && counts.waiting == 400 - quarantined, "{counts:?}, {quarantined} quarantined");
    engine.shutdown().await;
}

fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir(to).expect("there is room");
    for entry in fs::read_dir(from).expect("a directory").map(|entry| entry.expect("an entry")) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_directory(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("there is room");
        }
    }
}
