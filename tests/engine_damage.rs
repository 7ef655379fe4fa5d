//! A damaged page in real files: everything else is served, what was lost is counted, and a restart keeps the count.

mod engine_support;
#[path = "support/page_store.rs"]
mod page_store;

use std::collections::BTreeSet;
use std::path::Path;

use bytes::Bytes;
use tempfile::TempDir;

use duewheel::clock::ManualTime;
use duewheel::engine::EngineHandle;
use duewheel::queue::command::{Command, Due, FindRejection, Produce, Reply};
use duewheel::queue::limits::Limits;
use duewheel::queue::message::MessageId;
use duewheel::queue::settings::TopicSettings;
use duewheel::queue::time::Timestamp;
use duewheel::queue::values::Key;
use duewheel::store::OpenError;

use engine_support::serving::{counts, deliver_all, look_up, until_quarantined};
use engine_support::{START_MS, produce, small_store, start_on, topic};
use page_store::damage_page;

const HOUR_MS: u64 = 3_600_000;
const MESSAGES: u64 = 400;

fn open(directory: &Path, time: &ManualTime) -> Result<EngineHandle, OpenError> {
    start_on(directory, small_store(), Limits::default(), time)
}

/// A stopped store of far messages in pages; their ids.
async fn far_store(directory: &Path, time: &ManualTime) -> BTreeSet<MessageId> {
    let engine = open(directory, time).expect("a new store opens");
    let create = Command::CreateTopic { name: topic("t"), settings: TopicSettings::default() };
    engine.apply(create).await.expect("the engine serves").expect("the topic is new");
    let mut ids = BTreeSet::new();
    for n in 0..MESSAGES {
        let Command::Produce(message) = produce("t", 0) else { unreachable!("it is a produce") };
        let command = Command::Produce(Produce {
            key: (n % 3 == 0).then(|| Key::parse(&format!("order-{n}")).expect("short")),
            body: Bytes::from(format!("body {n:04} {}", "x".repeat(300))),
            due: Some(Due::After(5 * HOUR_MS + n * 1_000)),
            ..message
        });
        let Ok(Ok(Reply::Produced(produced))) = engine.apply(command).await else { panic!("it is taken") };
        ids.insert(produced.id);
    }
    engine.shutdown().await;
    assert_eq!(ids.len() as u64, MESSAGES);
    ids
}

#[tokio::test]
async fn a_damaged_page_that_a_look_up_meets_costs_its_messages_only_and_a_restart_keeps_the_count() {
    let directory = TempDir::new().expect("there is room");
    let time = ManualTime::new(Timestamp::from_millis(START_MS));
    let ids = far_store(directory.path(), &time).await;
    damage_page(directory.path(), 3);
    let engine = open(directory.path(), &time).expect("a damaged page does not keep it from opening");
    let (mut lost, mut told) = (BTreeSet::new(), 0);
    for &id in &ids {
        match look_up(&engine, id).await {
            Ok(Some(_)) => {}
            Ok(None) => drop(lost.insert(id)),
            Err(FindRejection::Damaged(problem)) => {
                assert!(problem.contains("page ") && problem.contains(" of run "), "{problem}");
                told += 1;
                lost.insert(id);
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(told > 0 && lost.len() < 100, "{} lost, {told} told", lost.len());
    until_quarantined(&engine, lost.len() as u64).await;
    let rest: BTreeSet<MessageId> = ids.difference(&lost).copied().collect();

    engine.shutdown().await;
    drop(engine);
    let engine = open(directory.path(), &time).expect("it opens again");
    assert_eq!(counts(&engine).await.quarantined, lost.len() as u64);
    time.advance_ms(6 * HOUR_MS);
    engine.wake();
    assert_eq!(deliver_all(&engine, &time).await, rest);
    until_quarantined(&engine, lost.len() as u64).await;
    assert_eq!(counts(&engine).await.waiting, 0);
    engine.shutdown().await;
}

#[tokio::test]
async fn a_damaged_page_does_not_block_its_topic_and_what_is_due_after_it_comes_in_time() {
    for page in [0, 2] {
        let directory = TempDir::new().expect("there is room");
        let time = ManualTime::new(Timestamp::from_millis(START_MS));
        let ids = far_store(directory.path(), &time).await;
        damage_page(directory.path(), page);
        damage_page(directory.path(), page + 4);
        let engine = open(directory.path(), &time).expect("it opens");
        time.advance_ms(6 * HOUR_MS);
        engine.wake();
        let delivered = deliver_all(&engine, &time).await;
        let lost = MESSAGES - delivered.len() as u64;
        assert!(lost > 0 && delivered.is_subset(&ids), "{lost} lost");
        until_quarantined(&engine, lost).await;
        engine.shutdown().await;
    }
}

/// The page store's own checksums meet flips of its file first; then it refuses, or it reads around them.
#[tokio::test]
async fn a_flipped_byte_of_a_body_in_the_file_is_refused_or_costs_its_page_only() {
    let (mut refused, mut served, mut repeated) = (0, 0, 0);
    let time = ManualTime::new(Timestamp::from_millis(START_MS));
    for n in [3, 150, 290] {
        let directory = TempDir::new().expect("there is room");
        far_store(directory.path(), &time).await;
        let file = directory.path().join("pages/db");
        let mut bytes = std::fs::read(&file).expect("it can be read");
        let body = format!("body {n:04} ").into_bytes();
        let places: Vec<usize> = (0..bytes.len() - body.len()).filter(|&at| bytes[at..].starts_with(&body)).collect();
        for at in places {
            bytes[at + 2] ^= 0x40;
        }
        std::fs::write(&file, bytes).expect("it can be written");
        let engine = match open(directory.path(), &time) {
            Ok(engine) => engine,
            Err(error) => {
                println!("message {n}: {error}");
                assert!(error.to_string().contains("duewheel check"), "{error}");
                refused += 1;
                continue;
            }
        };
        time.advance_ms(6 * HOUR_MS);
        engine.wake();
        let delivered = deliver_all(&engine, &time).await.len() as u64;
        until_quarantined(&engine, MESSAGES - delivered).await;
        if delivered == MESSAGES {
            repeated += 1;
        } else {
            served += 1;
        }
        engine.shutdown().await;
    }
    println!("{refused} refused, {served} served the rest, {repeated} lost nothing");
    assert_eq!(refused + served + repeated, 3);
}
