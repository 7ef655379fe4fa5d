//! Nothing is let out before it is durable, and nothing goes on after a failed commit.

mod engine_support;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use duewheel::clock::{ManualTime, StepPolicy, Stopwatch};
use duewheel::engine::{EngineError, EngineSettings, Status};
use duewheel::queue::change::Change;
use duewheel::queue::command::{Command, Reply, Target};
use duewheel::queue::settings::TopicSettings;
use duewheel::queue::time::Timestamp;

use engine_support::{Broker, Journal, START_MS, assert_pending, fetch, open, produce, topic, try_open, window};

#[tokio::test]
async fn a_start_is_durable_before_anything_is_served() {
    let broker = Broker::start();
    let at = Timestamp::from_millis(START_MS);
    assert_eq!(broker.journal.changes(), [Change::Opened { epoch: 1, at }]);

    let journal = Journal::default();
    journal.hold();
    let opening = {
        let journal = journal.clone();
        std::thread::spawn(move || {
            open(&journal, ManualTime::new(at).clock(StepPolicy::Report), EngineSettings::default())
        })
    };
    journal.wait_for_commit();
    assert!(!opening.is_finished(), "there is no handle yet");
    journal.release();
    assert_eq!(*opening.join().expect("it starts").status().borrow(), Status::Serving);
}

#[tokio::test]
async fn no_reply_comes_before_its_commit() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    broker.journal.hold();
    let mut reply = pin!(broker.engine.apply(produce("t", 1_000)));
    assert_pending(reply.as_mut()).await;
    broker.journal.wait_for_commit();
    assert_pending(reply.as_mut()).await;
    broker.journal.release();
    assert!(matches!(reply.await, Ok(Ok(Reply::Produced(_)))));
}

#[tokio::test]
async fn no_delivery_comes_before_the_commit_of_its_message() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    let mut consumer = broker.consume(&[("t", 10)]).await;
    let mut fetched = pin!(broker.engine.fetch(fetch("t", 10, 1_000)));
    assert_pending(fetched.as_mut()).await;
    broker.settle().await;

    broker.journal.hold();
    let produced = broker.engine.submit(vec![produce("t", 0); 100]).await.expect("the engine serves");
    broker.journal.wait_for_commit();
    let mut delivered = pin!(consumer.next());
    assert_pending(delivered.as_mut()).await;
    assert_pending(fetched.as_mut()).await;
    broker.journal.release();
    assert_eq!(delivered.await.expect("the stream is open").len(), 10);
    assert_eq!(fetched.await.expect("the engine serves").expect("the topic exists").len(), 10);
    assert_eq!(produced.await.expect("the engine serves").len(), 100);
}

#[tokio::test]
async fn what_changes_nothing_waits_for_the_commits_before_it_and_needs_none_itself() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    broker.produce("t", 1_000).await;
    let mut consumer = broker.consume(&[("t", 10)]).await;

    broker.journal.hold();
    let produced = broker.engine.submit(vec![produce("t", 5_000)]).await.expect("the engine serves");
    broker.journal.wait_for_commit();
    broker.jump_ms(1_000);
    let mut delivered = pin!(consumer.next());
    let mut stats = pin!(broker.engine.stats(None));
    assert_pending(stats.as_mut()).await;
    assert_pending(delivered.as_mut()).await;
    broker.journal.release();
    assert_eq!(delivered.await.expect("the stream is open").len(), 1);
    stats.await.expect("the engine serves").expect("no topic was named");
    produced.await.expect("the engine serves");

    let commits = broker.journal.commits();
    let stats = broker.engine.stats(None).await.expect("the engine serves").expect("no topic was named");
    broker.settle().await;
    assert_eq!(broker.journal.commits(), commits, "looking costs no commit");
    assert_eq!(stats.broker.commits, commits as u64);
}

#[tokio::test]
async fn all_that_comes_during_a_commit_shares_the_next() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    let before = broker.journal.commits();
    broker.journal.hold();
    let mut pending = Vec::new();
    for _ in 0..200 {
        pending.push(broker.engine.submit(vec![produce("t", 1_000)]).await.expect("the engine serves"));
        broker.journal.wait_for_commit();
    }
    broker.journal.release();
    for pending in pending {
        assert!(pending.await.expect("the engine serves")[0].is_ok());
    }
    // The one that was held; the rounds that were under way; the one that the owner could not hand over; the rest.
    let commits = broker.journal.commits() - before;
    assert!((2..=4).contains(&commits), "{commits} commits for 200 requests");
}

#[tokio::test]
async fn results_come_in_the_order_of_the_commands_and_requests_in_the_order_of_their_admission() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    let first = broker.engine.submit(vec![produce("t", 1), produce("none", 1), produce("t", 1)]).await;
    let second = broker.engine.submit(vec![produce("t", 1)]).await.expect("the engine serves");
    let second = second.await.expect("the engine serves");
    let first = first.expect("the engine serves").await.expect("the engine serves");
    let arrival = |result: &Result<Reply, _>| match result {
        Ok(Reply::Produced(produced)) => Some(produced.id.arrival),
        _ => None,
    };
    let arrivals: Vec<_> = first.iter().chain(&second).map(arrival).collect();
    let start = arrivals[0].expect("the topic exists");
    assert_eq!(arrivals, [Some(start), None, Some(start + 1), Some(start + 2)]);
}

#[tokio::test]
async fn after_a_failed_commit_everybody_hears_that_the_outcome_is_unknown() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    let mut consumer = broker.consume(&[("t", 10)]).await;
    let commits = broker.journal.commits();
    broker.journal.hold();
    let in_commit = broker.engine.submit(vec![produce("t", 0)]).await.expect("the engine serves");
    broker.journal.wait_for_commit();
    let behind_it = broker.engine.submit(vec![produce("t", 0)]).await.expect("the engine serves");
    let mut fetched = pin!(broker.engine.fetch(fetch("t", 10, 60_000)));
    assert_pending(fetched.as_mut()).await;
    let mut topics = pin!(broker.engine.topics(None, 10));
    assert_pending(topics.as_mut()).await;
    broker.journal.fail();

    assert_eq!(in_commit.await, Err(EngineError::OutcomeUnknown));
    assert_eq!(behind_it.await, Err(EngineError::OutcomeUnknown));
    assert_eq!(fetched.await.expect_err("it was not answered"), EngineError::OutcomeUnknown);
    assert_eq!(topics.await.expect_err("it was not answered"), EngineError::OutcomeUnknown);
    assert!(consumer.next().await.is_none(), "nothing was delivered");
    let status = broker.wait_for(|status| matches!(status, Status::Failed(_))).await;
    assert_eq!(status, Status::Failed("the disk is broken".to_owned()));
    assert_eq!(broker.engine.apply(produce("t", 0)).await, Err(EngineError::OutcomeUnknown));
    broker.engine.shutdown().await;
    assert_eq!(broker.journal.commits(), commits, "nothing was committed any more");
    assert!(!broker.journal.changes().iter().any(|change| matches!(change, Change::Closed(_))));
}

#[tokio::test]
async fn admission_is_bounded_and_waits() {
    let broker = Broker::start_with(EngineSettings { admission_bytes: 4 * 1024, ..EngineSettings::default() });
    broker.create_topic("t", TopicSettings::default()).await;
    broker.journal.hold();
    let small = broker.engine.submit(vec![produce("t", 1_000)]).await.expect("the engine serves");
    broker.journal.wait_for_commit();
    let mut too_large_for_now = pin!(broker.engine.submit(vec![produce("t", 1_000); 100]));
    assert_pending(too_large_for_now.as_mut()).await;
    let mut behind = pin!(broker.engine.apply(produce("t", 1_000)));
    assert_pending(behind.as_mut()).await;
    broker.journal.release();
    assert_eq!(small.await.expect("the engine serves").len(), 1);
    let large = too_large_for_now.await.expect("it is alone now");
    assert_eq!(large.await.expect("the engine serves").len(), 100);
    assert!(behind.await.expect("the engine serves").is_ok());
}

#[tokio::test]
async fn a_finished_fold_is_noted_and_a_running_one_does_not_hold_up_commits() {
    let broker = Broker::start();
    broker.journal.hold_fold();
    broker.journal.want_fold();
    broker.create_topic("t", TopicSettings::default()).await;
    broker.produce("t", 1_000).await;
    assert_eq!(broker.journal.folds_noted(), 0);
    broker.journal.release_fold();
    // The fold thread tells when it is done; produce until that has been heard.
    while broker.engine.stats(None).await.expect("it serves").expect("no topic was named").broker.folds == 0 {
        broker.produce("t", 1_000).await;
    }
    assert_eq!(broker.journal.folds_noted(), 1);
}

#[tokio::test]
async fn the_closing_commit_comes_after_the_running_fold() {
    let broker = Broker::start();
    broker.journal.hold_fold();
    broker.journal.want_fold();
    broker.create_topic("t", TopicSettings::default()).await;
    broker.produce("t", 1_000).await;
    let mut shutdown = pin!(broker.engine.shutdown());
    assert_pending(shutdown.as_mut()).await;
    // Long enough for a closing commit that would not wait; a slower machine only sees less.
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_pending(shutdown.as_mut()).await;
    broker.journal.release_fold();
    shutdown.await;
    assert_eq!(broker.journal.folds_noted(), 1);
    assert!(broker.journal.commits_at_fold() < broker.journal.commits());
    assert!(matches!(broker.journal.changes().last(), Some(Change::Closed(_))));
}

#[tokio::test]
async fn a_failed_fold_fails_the_engine() {
    let broker = Broker::start();
    broker.journal.fail_fold();
    broker.journal.want_fold();
    broker.create_topic("t", TopicSettings::default()).await;
    let status = broker.wait_for(|status| matches!(status, Status::Failed(_))).await;
    assert_eq!(status, Status::Failed("the fold is broken".to_owned()));
}

#[tokio::test]
async fn a_thread_that_panics_fails_the_engine() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    let mut consumer = broker.consume(&[("t", 1)]).await;
    broker.journal.panic_in_fold();
    broker.journal.want_fold();
    // It makes the commit thread look for a fold; whether it is answered before the panic does not matter.
    drop(broker.engine.apply(produce("t", 60_000)).await);
    let status = broker.wait_for(|status| matches!(status, Status::Failed(_))).await;
    assert_eq!(status, Status::Failed("duewheel-fold has panicked".to_owned()));
    assert!(consumer.next().await.is_none());
    assert_eq!(broker.engine.apply(produce("t", 0)).await, Err(EngineError::OutcomeUnknown));
    broker.engine.shutdown().await;
}

#[tokio::test]
async fn receipts_stay_valid_over_a_clean_restart_even_a_long_one() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    broker.produce_many("t", 0, 3).await;
    let mut consumer = broker.consume(&[("t", 2)]).await;
    let delivered = consumer.next().await.expect("the stream is open");
    let fetched = broker.engine.fetch(fetch("t", 1, 0)).await.expect("it serves").expect("the topic exists");
    assert_eq!((delivered.len(), fetched.len()), (2, 1));

    broker.engine.shutdown().await;
    assert_eq!(*broker.engine.status().borrow(), Status::Stopped);
    assert!(consumer.next().await.is_none());
    drop(consumer);
    assert_eq!(broker.engine.apply(Command::Ack(delivered[0].receipt)).await, Err(EngineError::Draining));
    broker.engine.shutdown().await;

    let Broker { time, journal, .. } = broker;
    time.advance_ms(3_600_000);
    let broker = Broker::restart(time, journal, EngineSettings::default());
    assert_eq!(broker.places("t").await, (0, 0, 3));
    broker.pass_ms(9_999).await;
    broker.ack(&delivered[0]).await;
    broker.ack(&fetched[0]).await;
    broker.pass_ms(1).await;
    assert_eq!(broker.places("t").await.2, 0, "the third lease has expired at the end of the grace");
}

#[tokio::test]
async fn shutdown_ends_waiters_and_refuses_what_comes_later() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    let mut consumer = broker.consume(&[("t", 2)]).await;
    let mut fetched = pin!(broker.engine.fetch(fetch("t", 1, 60_000)));
    assert_pending(fetched.as_mut()).await;
    broker.settle().await;
    broker.journal.hold();
    let admitted = broker.engine.submit(vec![produce("t", 0)]).await.expect("the engine serves");
    broker.journal.wait_for_commit();
    let mut shutdown = pin!(broker.engine.shutdown());
    assert_pending(shutdown.as_mut()).await;
    assert_eq!(*broker.engine.status().borrow(), Status::Draining);
    assert_eq!(broker.engine.apply(produce("t", 0)).await, Err(EngineError::Draining));
    let refused = broker.engine.fetch(fetch("t", 1, 60_000)).await;
    assert_eq!(refused.expect_err("no new work"), EngineError::Draining);
    let refused = broker.engine.consume(engine_support::consumer_name("c"), vec![window("t", 1)]).await;
    assert_eq!(refused.err(), Some(EngineError::Draining));
    broker.journal.release();
    shutdown.await;
    assert!(admitted.await.expect("what was admitted is finished")[0].is_ok());
    let fetched = fetched.await.expect("it was answered").expect("the topic exists");
    assert!(fetched.len() <= 1, "either it was served before the shutdown or it ended empty");
    while consumer.next().await.is_some() {}
    let last = broker.journal.changes().pop().expect("there are changes");
    assert!(matches!(last, Change::Closed(_)), "{last:?}");
}

#[tokio::test]
async fn without_a_shutdown_a_restart_is_one_after_a_crash() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    let produced = broker.produce("t", 0).await;
    let delivered = broker.engine.fetch(fetch("t", 1, 0)).await.expect("it serves").expect("the topic exists");
    let Broker { engine, time, journal } = broker;
    let mut status = engine.status();
    drop(engine);
    status.wait_for(|status| *status == Status::Stopped).await.expect("it tells before it ends");

    let broker = Broker::restart(time, journal, EngineSettings::default());
    let late = broker.engine.apply(Command::Ack(delivered[0].receipt)).await.expect("the engine serves");
    assert!(late.is_err(), "the lease is void: {late:?}");
    let again = broker.engine.fetch(fetch("t", 1, 0)).await.expect("it serves").expect("the topic exists");
    assert!(again[0].redelivered);
    assert_eq!(again[0].message.id, produced.id);
    let seen = broker.engine.message(topic("t"), Target::Id(produced.id)).await.expect("it serves");
    assert!(seen.expect("the topic exists").is_some());
    let seen = broker.engine.stats(None).await.expect("it serves").expect("no topic was named");
    assert_eq!(seen.broker.epoch, 2);
}

#[tokio::test]
async fn when_the_journal_fills_produce_waits_and_nothing_else_does() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    broker.produce_many("t", 0, 1).await;
    let leased = broker.engine.fetch(fetch("t", 1, 0)).await.expect("it serves").expect("the topic exists");
    broker.journal.press(2.0);
    broker.produce_many("t", 1_000, 1).await;
    let mut slowed = pin!(broker.engine.submit(vec![produce("t", 1_000); 100]));
    assert_pending(slowed.as_mut()).await;
    // Nothing polls the other one meanwhile: had the ack to wait for its turn, it would wait for ever.
    broker.ack(&leased[0]).await;
    let pending = slowed.await.expect("it is slowed down, not stopped");
    assert!(pending.await.expect("the engine serves").iter().all(Result::is_ok));
}

#[tokio::test]
async fn below_the_disk_reserve_produce_alone_is_refused_until_there_is_room_again() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    broker.produce("t", 0).await;
    broker.produce("t", 60_000).await;
    let free = Arc::new(AtomicU64::new(900));
    let source = Arc::clone(&free);
    broker.engine.watch_disk(1_000, move || Ok(source.load(Ordering::Relaxed))).expect("a thread");
    let refused = Err(EngineError::DiskReserve { free: 900, reserve: 1_000 });
    assert_eq!(broker.engine.apply(produce("t", 1_000)).await, refused);
    assert_eq!(broker.engine.submit(vec![produce("t", 0); 3]).await.err(), refused.err());
    let leased = broker.engine.fetch(fetch("t", 10, 0)).await.expect("it serves").expect("the topic exists");
    assert_eq!(leased.len(), 1);
    let acked = broker.engine.apply(Command::Ack(leased[0].receipt)).await.expect("it serves");
    assert_eq!(acked, Ok(Reply::Acked { repeated: false }));
    let stats = broker.engine.stats(None).await.expect("it serves").expect("no topic was named");
    assert!(stats.broker.disk.is_some_and(|disk| disk.is_short && disk.free_bytes == 900), "{:?}", stats.broker);
    assert_eq!(stats.topics[0].counts.totals.produced, 2, "a refusal leaves nothing behind");

    free.store(5_000, Ordering::Relaxed);
    let waited = Stopwatch::start();
    while let Err(error) = broker.engine.apply(produce("t", 1_000)).await {
        assert!(matches!(error, EngineError::DiskReserve { .. }) && waited.elapsed().as_secs() < 30, "{error}");
        tokio::task::yield_now().await;
    }
    assert_eq!(*broker.engine.status().borrow(), Status::Serving);
}

#[test]
fn a_start_that_cannot_be_written_names_the_cause() {
    let (journal, time) = (Journal::default(), ManualTime::new(Timestamp::from_millis(START_MS)));
    journal.fail();
    let error = try_open(&journal, time.clock(StepPolicy::Report), EngineSettings::default()).err().expect("it fails");
    assert!(error.to_string().ends_with("to the journal: the disk is broken"), "{error}");
}
