//! The engine on the real store: folds beside commits, restarts, and the numbers that must never repeat.

mod engine_support;

use std::collections::BTreeSet;
use std::path::Path;

use tempfile::TempDir;

use duewheel::clock::{ManualTime, StepPolicy};
use duewheel::engine::{EngineHandle, EngineSettings, Parts, Status, start};
use duewheel::queue::Restore;
use duewheel::queue::command::{Command, Reply};
use duewheel::queue::limits::Limits;
use duewheel::queue::settings::TopicSettings;
use duewheel::queue::time::Timestamp;
use duewheel::store;

use engine_support::{START_MS, fetch, produce, small_store, topic};

/// Starts an engine on the directory. Also gives the folds that the store has seen before.
fn open(directory: &Path, time: &ManualTime) -> (EngineHandle, u64) {
    let clock = time.clock(StepPolicy::Report);
    let mut restore = Restore::new(Limits::default());
    let opened = store::open(directory, small_store(), &mut |restored| restore.record(restored)).expect("it opens");
    let folds = opened.committer.folds();
    let epoch = opened.epoch;
    let parts = Parts::on_store(opened, restore, &clock);
    assert_eq!(parts.queue.epoch(), epoch, "queue and store agree on the number of the run");
    (start(EngineSettings::default(), parts, clock).expect("it starts"), folds)
}

/// Produces messages, some due now and some far, and returns their arrival numbers.
async fn produce_some(engine: &EngineHandle, count: usize) -> Vec<u64> {
    let commands = (0..count).map(|n| produce("t", if n % 2 == 0 { 0 } else { 3_600_000 })).collect();
    let results = engine.apply_all(commands).await.expect("the engine serves");
    let arrival = |result| match result {
        Ok(Reply::Produced(produced)) => produced.id.arrival,
        other => panic!("{other:?}"),
    };
    results.into_iter().map(arrival).collect()
}

#[tokio::test]
async fn nothing_is_lost_and_no_number_repeats_over_folds_and_restarts() {
    let directory = TempDir::new().expect("there is room");
    let time = ManualTime::new(Timestamp::from_millis(START_MS));
    let mut arrivals = BTreeSet::new();
    let (mut produced, mut acked, mut last_epoch) = (0, 0, 0);
    for run in 1..=6_u32 {
        let (engine, folds) = open(directory.path(), &time);
        assert!(folds >= u64::from(run - 1), "each run must reach the pages: {folds} folds before run {run}");
        let epoch = engine.stats(None).await.expect("it serves").expect("no topic was named").broker.epoch;
        assert!(epoch > last_epoch, "run {run}: an epoch repeats");
        last_epoch = epoch;
        if run == 1 {
            let create = Command::CreateTopic { name: topic("t"), settings: TopicSettings::default() };
            engine.apply(create).await.expect("the engine serves").expect("the topic is new");
        }
        for _ in 0..8 {
            let new = produce_some(&engine, 200).await;
            produced += new.len() as u64;
            assert!(new.into_iter().all(|arrival| arrivals.insert(arrival)), "an arrival number repeats");
            let leased = engine.fetch(fetch("t", 50, 0)).await.expect("it serves").expect("the topic exists");
            let acks = leased.iter().map(|delivery| Command::Ack(delivery.receipt)).collect();
            let results = engine.apply_all(acks).await.expect("the engine serves");
            assert!(results.iter().all(Result::is_ok));
            acked += results.len() as u64;
            assert!(leased.iter().all(|delivery| delivery.receipt.epoch == epoch));
        }
        let stats = engine.stats(None).await.expect("it serves").expect("no topic was named");
        let counts = &stats.topics[0].counts;
        assert_eq!((counts.totals.produced, counts.totals.acked), (produced, acked), "run {run}");
        assert_eq!(counts.scheduled + counts.ready + counts.leased + counts.dead, produced - acked, "run {run}");
        engine.shutdown().await;
        assert_eq!(*engine.status().borrow(), Status::Stopped);
    }
}

#[tokio::test]
async fn receipts_outlive_a_clean_stop_on_disk() {
    let directory = TempDir::new().expect("there is room");
    let time = ManualTime::new(Timestamp::from_millis(START_MS));
    let (engine, _) = open(directory.path(), &time);
    let create = Command::CreateTopic { name: topic("t"), settings: TopicSettings::default() };
    engine.apply(create).await.expect("the engine serves").expect("the topic is new");
    produce_some(&engine, 2).await;
    let leased = engine.fetch(fetch("t", 1, 0)).await.expect("it serves").expect("the topic exists");
    let sealed = engine.receipt_key().seal(&leased[0].receipt);
    engine.shutdown().await;
    drop(engine);

    let (engine, _) = open(directory.path(), &time);
    let receipt = engine.receipt_key().open(&sealed).expect("the secret is the store's");
    let ack = engine.apply(Command::Ack(receipt)).await.expect("the engine serves");
    assert_eq!(ack, Ok(Reply::Acked { repeated: false }));
    engine.shutdown().await;
}
