//! A store with messages of every kind in pages and in the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use duewheel::clock::ManualTime;
use duewheel::engine::EngineHandle;
use duewheel::queue::command::{Command, Delivery, Due, Nack, NackReason, Produce, Reply, Target};
use duewheel::queue::limits::Limits;
use duewheel::queue::message::MessageId;
use duewheel::queue::settings::TopicSettings;
use duewheel::queue::time::Timestamp;
use duewheel::queue::values::{DedupId, Key, NackText};
use tempfile::TempDir;

use crate::engine_support::{START_MS, fetch, produce, small_store, start_on, topic};
use crate::files::copy;

pub(crate) const HOUR_MS: u64 = 3_600_000;
/// Messages that wait, a minute apart; those of the second half are far in the future.
const WAITING: u64 = 400;
pub(crate) const DEAD: u64 = 12;
/// Ended before the damage: acked or cancelled.
const ENDED: u64 = 60;

/// A store in use and what it holds.
pub(crate) struct Sample {
    pub(crate) directory: TempDir,
    /// Waiting messages: when they are due, and their body.
    pub(crate) waiting: BTreeMap<MessageId, (Timestamp, Bytes)>,
    pub(crate) dead: BTreeSet<MessageId>,
    /// What may be missing if the end of the journal is: it was confirmed last.
    pub(crate) last: MessageId,
}

fn body(n: u64) -> Bytes {
    // Some do not fit into a page.
    let fill = if n.is_multiple_of(40) { 9_000 } else { 200 };
    Bytes::from(format!("body {n:05} {}", "x".repeat(fill)))
}

pub(crate) async fn produce_one(engine: &EngineHandle, n: u64, delay_ms: u64) -> MessageId {
    let Command::Produce(message) = produce("t", delay_ms) else { unreachable!("it is a produce") };
    let command = Command::Produce(Produce {
        key: n.is_multiple_of(3).then(|| Key::parse(&format!("order-{n}")).expect("short")),
        dedup_id: n.is_multiple_of(5).then(|| DedupId::parse(&format!("id-{n}")).expect("short")),
        body: body(n),
        due: Some(Due::After(delay_ms)),
        ..message
    });
    match engine.apply(command).await.expect("it serves") {
        Ok(Reply::Produced(produced)) => produced.id,
        other => panic!("{other:?}"),
    }
}

/// A store with messages of every kind in pages and in the journal, as a stop or a kill leaves it.
pub(crate) async fn sample(is_stopped: bool) -> Sample {
    let (used, directory) = (TempDir::new().expect("there is room"), TempDir::new().expect("there is room"));
    let time = ManualTime::new(Timestamp::from_millis(START_MS));
    let engine = start_on(used.path(), small_store(), Limits::default(), &time).expect("a new store opens");
    let create = Command::CreateTopic { name: topic("t"), settings: TopicSettings::default() };
    engine.apply(create).await.expect("it serves").expect("the topic is new");
    let mut dead = BTreeSet::new();
    for n in 0..DEAD {
        dead.insert(produce_one(&engine, 10_000 + n, 0).await);
    }
    for delivery in take(&engine, DEAD).await {
        let text = NackText::parse("no").expect("short");
        let nack = Nack { receipt: delivery.receipt, reason: NackReason::Dead, text };
        engine.apply(Command::Nack(nack)).await.expect("it serves").expect("its lease is fresh");
    }
    for n in 0..ENDED {
        produce_one(&engine, 20_000 + n, 0).await;
    }
    for delivery in take(&engine, ENDED).await {
        engine.apply(Command::Ack(delivery.receipt)).await.expect("it serves").expect("its lease is fresh");
    }
    let (mut waiting, mut cancelled) = (BTreeMap::new(), Vec::new());
    for n in 0..WAITING {
        let delay_ms = delay_ms(n);
        let id = produce_one(&engine, n, delay_ms).await;
        waiting.insert(id, (Timestamp::from_millis(START_MS + delay_ms), body(n)));
        if n % 4 == 3 && n < WAITING * 2 / 3 {
            cancelled.push(produce_one(&engine, 30_000 + n, delay_ms).await);
        }
        // By now most of them are in pages, and the pages learn of it before the end.
        if n == WAITING * 2 / 3 {
            for id in cancelled.drain(..) {
                let cancel = Command::Cancel { topic: topic("t"), target: Target::Id(id), when_lease_ends: false };
                engine.apply(cancel).await.expect("it serves").expect("it waits");
            }
        }
    }
    let last = produce_one(&engine, WAITING, HOUR_MS).await;
    waiting.insert(last, (Timestamp::from_millis(START_MS + HOUR_MS), body(WAITING)));
    until_it_rests(&engine).await;
    if !is_stopped {
        copy(used.path(), directory.path());
    }
    engine.shutdown().await;
    if is_stopped {
        copy(used.path(), directory.path());
    }
    Sample { directory, waiting, dead, last }
}

/// Half of them within hours, half in some days: slots of different lengths.
fn delay_ms(n: u64) -> u64 {
    if n.is_multiple_of(2) { HOUR_MS + n * 20_000 } else { 72 * HOUR_MS + n * 60_000 }
}

/// No fold runs, and the page store, which writes in the background every 300 ms, has written.
pub(crate) async fn until_it_rests(engine: &EngineHandle) {
    let mut folds = u64::MAX;
    loop {
        thread::sleep(Duration::from_millis(700));
        let now = engine.stats(None).await.expect("it serves").expect("no topic was named").broker.folds;
        if now == folds {
            return;
        }
        folds = now;
    }
}

/// Leases so many messages that are due.
async fn take(engine: &EngineHandle, count: u64) -> Vec<Delivery> {
    let mut taken = Vec::new();
    while (taken.len() as u64) < count {
        taken.extend(engine.fetch(fetch("t", 100, 0)).await.expect("it serves").expect("the topic exists"));
    }
    taken
}
