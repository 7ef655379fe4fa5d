//! Dead letters and deleted topics on the real store: what is in pages only is found, changed, and given back.

mod engine_support;
#[path = "support/page_store.rs"]
mod page_store;

use std::path::Path;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;

use duewheel::clock::{ManualTime, Stopwatch};
use duewheel::engine::EngineHandle;
use duewheel::queue::command::{
    Command, DeadLetter, DeletedTopic, Due, FindRejection, Nack, NackReason, Produce, PurgeReply, RedriveReply, Reply,
    Target,
};
use duewheel::queue::dead::{DeadFilter, DeadQuery, DeadSnapshot};
use duewheel::queue::limits::Limits;
use duewheel::queue::message::MessageId;
use duewheel::queue::settings::TopicSettings;
use duewheel::queue::time::Timestamp;
use duewheel::queue::values::{Key, NackText};
use duewheel::queue::view::LiveView;
use duewheel::store;

use engine_support::{START_MS, fetch, produce, small_store, start_on, topic};

fn open(directory: &Path, time: &ManualTime) -> EngineHandle {
    start_on(directory, small_store(), Limits::default(), time).expect("it opens")
}

async fn apply(engine: &EngineHandle, command: Command) -> Reply {
    engine.apply(command).await.expect("the engine serves").expect("it is accepted")
}

async fn create(engine: &EngineHandle, name: &str) {
    apply(engine, Command::CreateTopic { name: topic(name), settings: TopicSettings::default() }).await;
}

/// A produce with a key and a body of some size.
fn keyed(name: &str, n: usize, due_ms: u64, body: usize) -> Command {
    let Command::Produce(message) = produce(name, 0) else { unreachable!("it is a produce") };
    Command::Produce(Produce {
        key: Some(Key::parse(&format!("order-{n}")).expect("short")),
        body: Bytes::from(vec![b'x'; body]),
        due: Some(Due::After(due_ms)),
        ..message
    })
}

/// Makes dead letters of which most are soon in pages only; one in ten has a body in chunks.
async fn make_dead(engine: &EngineHandle, time: &ManualTime, count: usize) -> Vec<MessageId> {
    let mut ids = Vec::new();
    for n in 0..count {
        let body = if n % 10 == 0 { 9_000 } else { 200 };
        let Reply::Produced(produced) = apply(engine, keyed("t", n, 0, body)).await else { panic!("it is taken") };
        let leased = engine.fetch(fetch("t", 1, 0)).await.expect("it serves").expect("the topic exists");
        let text = NackText::parse(if n % 3 == 0 { "timeout" } else { "refused" }).expect("short");
        apply(engine, Command::Nack(Nack { receipt: leased[0].receipt, reason: NackReason::Dead, text })).await;
        ids.push(produced.id);
        time.advance_ms(10);
    }
    ids
}

/// All dead letters that a query selects, look by look.
async fn letters(engine: &EngineHandle, filter: &DeadFilter, snapshot: Option<&DeadSnapshot>) -> Vec<LiveView> {
    let mut query = DeadQuery { filter: filter.clone(), snapshot: snapshot.cloned(), limit: 50, after: None };
    let mut letters = Vec::new();
    loop {
        match engine.dead_letters(topic("t"), query.clone()).await.expect("it serves") {
            Err(FindRejection::PagesMoving) => thread::sleep(Duration::from_millis(5)),
            found => {
                let page = found.expect("the topic exists");
                letters.extend(page.letters);
                query.after = page.next;
                if page.next.is_none() {
                    return letters;
                }
            }
        }
    }
}

fn ids(letters: &[LiveView]) -> Vec<MessageId> {
    letters.iter().map(|view| view.message.id).collect()
}

#[tokio::test]
async fn dead_letters_in_pages_are_found_by_filter_and_as_of_a_snapshot() {
    let directory = TempDir::new().expect("there is room");
    let time = ManualTime::new(Timestamp::from_millis(START_MS));
    let engine = open(directory.path(), &time);
    create(&engine, "t").await;
    let all = make_dead(&engine, &time, 300).await;
    engine.shutdown().await;
    drop(engine);

    let engine = open(directory.path(), &time);
    let found = letters(&engine, &DeadFilter::default(), None).await;
    assert_eq!(ids(&found), all, "in the order of their death");
    assert!(found.iter().all(|view| view.message.history.as_ref().is_some_and(|history| history.len() == 1)));
    assert_eq!(found[10].message.content.body.len(), 9_000, "bodies in chunks too");
    let timeouts = DeadFilter { text: NackText::parse("timeout").ok(), ..DeadFilter::default() };
    let want: Vec<MessageId> = all.iter().copied().step_by(3).collect();
    assert_eq!(ids(&letters(&engine, &timeouts, None).await), want);
    let from = Timestamp::from_millis(START_MS + 2_000);
    let late = DeadFilter { died_from: Some(from), ..DeadFilter::default() };
    assert_eq!(ids(&letters(&engine, &late, None).await), all[200..]);

    let snapshot = engine.dead_snapshot(topic("t")).await.expect("it serves").expect("the topic exists");
    assert_eq!(snapshot.count, 300);
    // One dies in the very millisecond of the snapshot, and one that was dead lives and dies again.
    let again = DeadLetter { topic: topic("t"), id: all[7], died_at: None };
    assert_eq!(apply(&engine, Command::Redrive(again.clone())).await, Reply::Redrive(RedriveReply::Redriven));
    apply(&engine, keyed("t", 1_000, 0, 10)).await;
    let leased = engine.fetch(fetch("t", 2, 0)).await.expect("it serves").expect("the topic exists");
    assert_eq!(leased.len(), 2);
    for delivery in &leased {
        let nack = Nack { receipt: delivery.receipt, reason: NackReason::Dead, text: NackText::none() };
        apply(&engine, Command::Nack(nack)).await;
    }
    let expected: Vec<MessageId> = all.iter().copied().filter(|&id| id != all[7]).collect();
    assert_eq!(ids(&letters(&engine, &DeadFilter::default(), Some(&snapshot)).await), expected);
    assert_eq!(letters(&engine, &DeadFilter::default(), None).await.len(), 301);
    let stale = DeadLetter { died_at: Some(Timestamp::from_millis(START_MS + 70)), ..again };
    assert_eq!(apply(&engine, Command::Purge(stale)).await, Reply::Purge(PurgeReply::NotDead), "another dead letter");
    for (letter, n) in found.iter().zip(0..).filter(|(_, n)| n % 2 == 1 && *n != 7) {
        let died_at = letter.message.progress.dead.map(|(_, at)| at);
        let purge = DeadLetter { topic: topic("t"), id: letter.message.id, died_at };
        assert_eq!(apply(&engine, Command::Purge(purge)).await, Reply::Purge(PurgeReply::Purged), "{n}");
    }
    engine.shutdown().await;
    drop(engine);
    let engine = open(directory.path(), &time);
    assert_eq!(letters(&engine, &DeadFilter::default(), None).await.len(), 301 - 149);
    engine.shutdown().await;
}

async fn delete(engine: &EngineHandle, name: &str) -> DeletedTopic {
    match apply(engine, Command::DeleteTopic { name: topic(name), purge: true }).await {
        Reply::TopicDeleted(deleted) => deleted,
        other => panic!("{other:?}"),
    }
}

/// Waits until nothing of the topic is left in pages.
async fn until_reclaimed(engine: &EngineHandle, deleted: DeletedTopic) {
    let waited = Stopwatch::start();
    loop {
        let left = engine.reclaiming(deleted).await.expect("it serves");
        if left.is_done() {
            return;
        }
        assert!(waited.elapsed() < Duration::from_secs(30), "{left:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Keys of the page store that belong to a topic, by kind.
fn keys_of(directory: &Path, deleted: DeletedTopic) -> Vec<Vec<u8>> {
    let pages = page_store::open(directory);
    let keys = pages.iter().keys().map(|key| key.expect("it can be read").to_vec());
    keys.filter(|key| key.len() > 4 && key[0] != 12 && key[1..5] == deleted.id.0.to_be_bytes()).collect()
}

#[tokio::test]
async fn a_deleted_topic_gives_its_pages_back_and_its_name_is_free_at_once() {
    let directory = TempDir::new().expect("there is room");
    let time = ManualTime::new(Timestamp::from_millis(START_MS));
    let engine = open(directory.path(), &time);
    for name in ["t", "other"] {
        create(&engine, name).await;
    }
    make_dead(&engine, &time, 60).await;
    for n in 0..1_200 {
        let body = if n % 20 == 0 { 6_000 } else { 100 };
        apply(&engine, keyed("t", 10_000 + n, 3_600_000 + n as u64 * 977_000, body)).await;
        if n % 10 == 0 {
            apply(&engine, keyed("other", n, 7_200_000, 100)).await;
        }
    }
    let deleted = delete(&engine, "t").await;
    assert_eq!((deleted.messages, deleted.generation.is_some()), (1_260, true));
    assert!(engine.reclaiming(deleted).await.expect("it serves").pages > 10, "much of it is in pages");
    create(&engine, "t").await;
    apply(&engine, keyed("t", 10_000, 0, 10)).await;
    until_reclaimed(&engine, deleted).await;
    let message = engine.message(topic("t"), Target::Key(Key::parse("order-10001").expect("short"))).await;
    assert!(message.expect("it serves").expect("the topic exists").is_none(), "a key of the old topic is free");
    let stats = engine.stats(None).await.expect("it serves").expect("no topic was named");
    let live: Vec<(String, u64)> =
        stats.topics.iter().map(|topic| (topic.counts.topic.name.to_string(), topic.counts.totals.live())).collect();
    assert_eq!(live, [("other".to_owned(), 120), ("t".to_owned(), 1)]);
    engine.shutdown().await;
    drop(engine);

    assert_eq!(keys_of(directory.path(), deleted), Vec::<Vec<u8>>::new(), "nothing of it is left");
    let report = store::check(directory.path(), &mut |_, _| {}).expect("it can be checked");
    assert_eq!(report.findings, []);
    let engine = open(directory.path(), &time);
    let leased = engine.fetch(fetch("t", 10, 0)).await.expect("it serves").expect("the topic exists");
    assert_eq!(leased.len(), 1);
    assert!(leased[0].receipt.id.topic > deleted.id, "its number is not used again");
    engine.shutdown().await;
}

#[tokio::test]
async fn an_idle_broker_gives_back_at_once_what_pages_hold_of_ended_messages_of_a_deleted_topic() {
    let directory = TempDir::new().expect("there is room");
    let time = ManualTime::new(Timestamp::from_millis(START_MS));
    let engine = open(directory.path(), &time);
    for name in ["t", "other"] {
        create(&engine, name).await;
    }
    let mut ids = Vec::new();
    for n in 0..20 {
        let Reply::Produced(produced) = apply(&engine, keyed("t", n, 3_600_000, 100)).await else {
            panic!("it is taken")
        };
        ids.push(produced.id);
    }
    let in_pages = DeletedTopic { id: ids[0].topic, messages: 0, generation: None };
    let (waited, mut others) = (Stopwatch::start(), 0);
    while engine.reclaiming(in_pages).await.expect("it serves").pages == 0 {
        assert!(waited.elapsed() < Duration::from_secs(30), "a full journal is folded");
        apply(&engine, keyed("other", others, 7_200_000, 1_000)).await;
        others += 1;
    }
    for id in ids {
        apply(&engine, Command::Cancel { topic: topic("t"), target: Target::Id(id), when_lease_ends: false }).await;
    }
    assert!(engine.reclaiming(in_pages).await.expect("it serves").pages > 0, "pages hold what has ended");
    let deleted = delete(&engine, "t").await;
    assert_eq!(deleted.messages, 0);
    // Nothing else is written, so no fold comes by itself.
    until_reclaimed(&engine, deleted).await;
    engine.shutdown().await;
    drop(engine);
    assert_eq!(keys_of(directory.path(), deleted), Vec::<Vec<u8>>::new(), "nothing of it is left");
}

#[tokio::test]
async fn a_deletion_that_a_crash_interrupts_goes_on_at_the_next_start() {
    let directory = TempDir::new().expect("there is room");
    let time = ManualTime::new(Timestamp::from_millis(START_MS));
    let mut unfinished = 0;
    for round in 0..6_usize {
        let engine = open(directory.path(), &time);
        create(&engine, "t").await;
        for n in 0..600 {
            apply(&engine, keyed("t", n, 3_600_000 + n as u64 * 9_000_000, 200)).await;
        }
        let deleted = delete(&engine, "t").await;
        // As a crash would end it, after a while that differs.
        thread::sleep(Duration::from_millis(round as u64 * 30));
        let mut status = engine.status();
        drop(engine);
        let _stopped = status.wait_for(|status| *status != duewheel::engine::Status::Serving).await;

        let report = store::check(directory.path(), &mut |_, _| {}).expect("it can be checked");
        assert_eq!(report.findings, [], "round {round}");
        unfinished += u32::from(!keys_of(directory.path(), deleted).is_empty());
        let engine = open(directory.path(), &time);
        assert!(engine.topic(topic("t")).await.expect("it serves").is_none(), "it is gone for good");
        // The fold comes at once, because the journal says that something is in pages, or has come before.
        let waited = Stopwatch::start();
        while engine.reclaiming(DeletedTopic { generation: None, ..deleted }).await.expect("it serves").pages > 0 {
            assert!(waited.elapsed() < Duration::from_secs(30));
            thread::sleep(Duration::from_millis(10));
        }
        engine.shutdown().await;
        drop(engine);
        assert_eq!(keys_of(directory.path(), deleted), Vec::<Vec<u8>>::new(), "round {round}");
    }
    assert!(unfinished > 0, "no crash came before the end of the work");
}
