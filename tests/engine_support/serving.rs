//! What a test of damage asks an engine on the real store.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use duewheel::clock::{ManualTime, Stopwatch};
use duewheel::engine::{EngineHandle, Seen};
use duewheel::queue::command::{Command, FindRejection, Target};
use duewheel::queue::message::{Message, MessageId};

use super::{fetch, topic};

/// The counts of the first topic.
pub(crate) struct Counts {
    pub(crate) waiting: u64,
    pub(crate) dead: u64,
    pub(crate) quarantined: u64,
    pub(crate) gone: u64,
    pub(crate) produced: u64,
}

pub(crate) async fn counts(engine: &EngineHandle) -> Counts {
    let stats = engine.stats(None).await.expect("it serves").expect("no topic was named");
    let counts = &stats.topics[0].counts;
    let (waiting, totals) = (counts.scheduled + counts.ready + counts.leased, counts.totals);
    let gone = totals.acked + totals.cancelled;
    Counts { waiting, dead: counts.dead, quarantined: totals.quarantined, gone, produced: totals.produced }
}

/// Waits until the fold has set aside what was lost.
pub(crate) async fn until_quarantined(engine: &EngineHandle, lost: u64) {
    let waited = Stopwatch::start();
    loop {
        let now = counts(engine).await;
        assert_eq!(now.produced, now.waiting + now.dead + now.gone + now.quarantined, "at every moment");
        if now.quarantined == lost {
            return;
        }
        assert!(waited.elapsed() < Duration::from_secs(30), "{} of {lost} in quarantine", now.quarantined);
        thread::sleep(Duration::from_millis(20));
    }
}

/// Takes and acks what is due, until no more than `left` wait. Gives the messages as they came, and whether that was all:
/// nothing came for `patience`. Time goes on while it waits, since the engine tries again after some milliseconds what a
/// fold has overtaken.
pub(crate) async fn deliver_until(
    engine: &EngineHandle,
    time: &ManualTime,
    left: u64,
    patience: Duration,
) -> (Vec<Message>, bool) {
    let (mut delivered, mut waited) = (Vec::new(), Stopwatch::start());
    while counts(engine).await.waiting > left {
        let leased = engine.fetch(fetch("t", 100, 0)).await.expect("it serves").expect("the topic exists");
        if leased.is_empty() {
            if waited.elapsed() > patience {
                return (delivered, false);
            }
            thread::sleep(Duration::from_millis(5));
            time.advance_ms(1);
            engine.wake();
            continue;
        }
        waited = Stopwatch::start();
        let acks = leased.iter().map(|delivery| Command::Ack(delivery.receipt)).collect();
        for result in engine.apply_all(acks).await.expect("it serves") {
            result.expect("its lease is fresh");
        }
        delivered.extend(leased.into_iter().map(|delivery| delivery.message));
    }
    (delivered, true)
}

/// Takes and acks what is due, until nothing waits any more.
pub(crate) async fn deliver_all(engine: &EngineHandle, time: &ManualTime) -> BTreeSet<MessageId> {
    let (delivered, is_all) = deliver_until(engine, time, 0, Duration::from_secs(30)).await;
    assert!(is_all, "only {} came", delivered.len());
    delivered.into_iter().map(|message| message.id).collect()
}

/// Looks a message up, again if a fold has just moved it.
pub(crate) async fn look_up(engine: &EngineHandle, id: MessageId) -> Result<Option<Seen>, FindRejection> {
    loop {
        match engine.message(topic("t"), Target::Id(id)).await.expect("it serves") {
            Err(FindRejection::PagesMoving) => thread::sleep(Duration::from_millis(1)),
            seen => return seen,
        }
    }
}
