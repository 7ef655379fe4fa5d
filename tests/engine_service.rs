//! Who gets messages when: windows, turns, long polls, wake-ups, and what happens to leases whose holder has left.

mod engine_support;

use std::collections::BTreeMap;
use std::pin::pin;

use duewheel::clock::{Clock, StepPolicy};
use duewheel::engine::{EngineError, EngineSettings, GRACE_MS, LatenessSummary};
use duewheel::queue::command::{
    Command, Delivery, FindRejection, Nack, NackReason, Nacked, Rejection, Reply, SettleRejection,
};
use duewheel::queue::message::DeliveryOutcome;
use duewheel::queue::settings::{RateCap, TopicSettings};
use duewheel::queue::time::Timestamp;
use duewheel::queue::values::NackText;

use engine_support::{
    Broker, Journal, START_MS, arrived, assert_pending, consumer_name, fetch, open, produce, topic, window,
};

fn history_outcome(delivery: &Delivery) -> Option<DeliveryOutcome> {
    delivery.message.history.as_ref().and_then(|history| history.iter().last()).map(|entry| entry.outcome)
}

#[tokio::test]
async fn an_idle_engine_delivers_exactly_at_the_due_instant() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    let mut consumer = broker.consume(&[("t", 10)]).await;
    let produced = broker.produce("t", 300).await;
    broker.pass_ms(299).await;
    assert!(arrived(&mut consumer).await.is_empty());
    broker.pass_ms(1).await;
    let delivered = arrived(&mut consumer).await;
    assert_eq!(delivered.len(), 1);
    assert_eq!(delivered[0].delivered_at, produced.due_at);
    assert_eq!(produced.due_at, Timestamp::from_millis(START_MS + 300));
}

#[tokio::test]
async fn an_idle_engine_wakes_up_by_itself() {
    let journal = Journal::default();
    let engine = open(&journal, Clock::system(StepPolicy::Report), EngineSettings::default());
    engine
        .apply(Command::CreateTopic { name: topic("t"), settings: TopicSettings::default() })
        .await
        .expect("the engine serves")
        .expect("the topic is new");
    let windows = vec![window("t", 10)];
    let mut consumer = engine.consume(consumer_name("c"), windows).await.expect("it serves").expect("it exists");
    for delay_ms in [1, 20, 70, 130] {
        let results = engine.apply(produce("t", delay_ms)).await.expect("the engine serves");
        let Ok(Reply::Produced(produced)) = results else { panic!("{results:?}") };
        let delivered = consumer.next().await.expect("the stream is open");
        assert_eq!(delivered[0].message.id, produced.id);
        assert!(delivered[0].delivered_at >= produced.due_at, "never early");
    }
    let stats = engine.stats(None).await.expect("it serves").expect("no topic was named");
    // The machine may be busy; a wake-up that had to wait for the longest sleep would be far later.
    let LatenessSummary { count, p50_ms, .. } = stats.topics[0].lateness;
    assert!(count == 4 && p50_ms < 50, "half the deliveries are {p50_ms} ms late");
}

#[tokio::test]
async fn a_window_is_never_exceeded_and_is_freed_by_each_end_of_a_lease() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    let mut consumer = broker.consume(&[("t", 3)]).await;
    broker.produce_many("t", 0, 20).await;
    broker.settle().await;
    let first = arrived(&mut consumer).await;
    assert_eq!(first.len(), 3);
    assert_eq!(broker.places("t").await, (0, 17, 3));

    broker.ack(&first[0]).await;
    broker.settle().await;
    let second = arrived(&mut consumer).await;
    assert_eq!(second.len(), 1, "an ack frees a place");

    let nack = Nack { receipt: first[1].receipt, reason: NackReason::NotYet(None), text: NackText::none() };
    let reply = broker.engine.apply(Command::Nack(nack)).await.expect("the engine serves");
    assert!(matches!(reply, Ok(Reply::Nacked(Nacked::Waits(_)))), "{reply:?}");
    broker.settle().await;
    assert_eq!(arrived(&mut consumer).await.len(), 1, "a nack frees a place");

    broker.pass_ms(30_000).await;
    assert_eq!(arrived(&mut consumer).await.len(), 3, "expiry frees places");
    assert_eq!(broker.places("t").await.2, 3);
}

#[tokio::test]
async fn a_stream_that_is_not_read_gets_no_more_than_its_window_even_when_leases_expire() {
    let broker = Broker::start();
    let settings = TopicSettings { lease_ms: 1_000, ..TopicSettings::default() };
    broker.create_topic("t", settings).await;
    let mut consumer = broker.consume(&[("t", 3)]).await;
    broker.produce_many("t", 0, 100).await;
    broker.pass_ms(10_000).await;
    assert_eq!(broker.places("t").await.2, 0, "the leases of the unread deliveries have expired");
    assert_eq!(consumer.next().await.expect("the stream is open").len(), 3);
    broker.settle().await;
    assert_eq!(arrived(&mut consumer).await.len(), 3, "it has caught up and is served again");
}

#[tokio::test]
async fn a_burst_on_one_topic_leaves_the_other_its_turn() {
    let broker = Broker::start();
    broker.create_topic("burst", TopicSettings::default()).await;
    broker.create_topic("quiet", TopicSettings::default()).await;
    for _ in 0..10 {
        broker.produce_many("burst", 0, 1_000).await;
    }
    broker.produce_many("quiet", 0, 10).await;
    let mut greedy = broker.consume(&[("burst", 10_000), ("quiet", 10)]).await;
    let first = greedy.next().await.expect("the stream is open");
    let mut per_topic = BTreeMap::new();
    for delivery in &first {
        *per_topic.entry(delivery.topic.as_str()).or_insert(0) += 1;
    }
    assert_eq!(per_topic["quiet"], 10, "it is served in the first round: {per_topic:?}");
    assert!(per_topic["burst"] < 10_000, "a round is bounded: {per_topic:?}");
    let mut total = first.len();
    while total < 10_010 {
        total += greedy.next().await.expect("the stream is open").len();
    }
}

#[tokio::test]
async fn consumers_of_a_topic_share_it() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    let mut consumers = Vec::new();
    for _ in 0..4 {
        consumers.push(broker.consume(&[("t", 1_000)]).await);
    }
    broker.produce_many("t", 0, 1_000).await;
    broker.settle().await;
    for consumer in &mut consumers {
        let count = arrived(consumer).await.len();
        assert!((200..=300).contains(&count), "{count} of 1,000 among 4");
    }
}

#[tokio::test]
async fn a_fetch_is_answered_by_the_first_messages_or_at_its_deadline() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    let none = broker.engine.fetch(fetch("t", 5, 0)).await.expect("it serves").expect("the topic exists");
    assert!(none.is_empty(), "without a wait it is answered at once");

    let mut waiting = pin!(broker.engine.fetch(fetch("t", 5, 700)));
    assert_pending(waiting.as_mut()).await;
    broker.settle().await;
    broker.pass_ms(699).await;
    assert_pending(waiting.as_mut()).await;
    let stats = broker.engine.stats(None).await.expect("it serves").expect("no topic was named");
    assert_eq!((stats.topics[0].waiting_fetches, stats.topics[0].consumers), (1, 0));
    broker.pass_ms(1).await;
    assert!(waiting.await.expect("it serves").expect("the topic exists").is_empty());

    let mut waiting = pin!(broker.engine.fetch(fetch("t", 5, 700)));
    assert_pending(waiting.as_mut()).await;
    broker.produce_many("t", 0, 7).await;
    assert_eq!(waiting.await.expect("it serves").expect("the topic exists").len(), 5);
    let rest = broker.engine.fetch(fetch("t", 1_000, 700)).await.expect("it serves").expect("the topic exists");
    assert_eq!(rest.len(), 2);
}

#[tokio::test]
async fn a_fetch_gets_as_many_as_it_asks_for() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    broker.produce_many("t", 0, 1_000).await;
    let all = broker.engine.fetch(fetch("t", 1_000, 0)).await.expect("it serves").expect("the topic exists");
    assert_eq!(all.len(), 1_000);
}

#[tokio::test]
async fn what_a_dropped_fetch_was_leased_is_given_back() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    {
        let mut dropped_while_waiting = pin!(broker.engine.fetch(fetch("t", 5, 60_000)));
        assert_pending(dropped_while_waiting.as_mut()).await;
        broker.settle().await;
    }
    broker.produce_many("t", 0, 1).await;
    broker.settle().await;
    assert_eq!(broker.places("t").await, (0, 1, 0), "nobody waits any more");

    broker.journal.hold();
    let held = broker.engine.submit(vec![produce("t", 60_000)]).await.expect("the engine serves");
    broker.journal.wait_for_commit();
    {
        let mut dropped_under_way = pin!(broker.engine.fetch(fetch("t", 5, 60_000)));
        assert_pending(dropped_under_way.as_mut()).await;
        let mut places = pin!(broker.places("t"));
        assert_pending(places.as_mut()).await;
        broker.journal.release();
        assert_eq!(places.await, (1, 0, 1), "it was leased, and the answer is there, but nobody takes it");
    }
    held.await.expect("the engine serves");
    broker.settle().await;
    assert_eq!(broker.places("t").await, (2, 0, 0), "it waits for the redelivery gap");
    broker.pass_ms(1_000).await;
    let again = broker.engine.fetch(fetch("t", 5, 0)).await.expect("it serves").expect("the topic exists");
    assert_eq!(again.len(), 1);
    assert_eq!(history_outcome(&again[0]), Some(DeliveryOutcome::Returned));
    assert_eq!(again[0].attempt, 1, "no attempt is spent");
}

#[tokio::test]
async fn a_dropped_stream_gives_all_its_leases_back() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    broker.produce_many("t", 0, 6).await;
    let mut consumer = broker.consume(&[("t", 4)]).await;
    let read = consumer.next().await.expect("the stream is open");
    broker.ack(&read[0]).await;
    broker.settle().await;
    assert_eq!(broker.places("t").await, (0, 1, 4), "three read and one unread");
    drop(consumer);
    broker.settle().await;
    assert_eq!(broker.places("t").await, (4, 1, 0));
    let late = broker.engine.apply(Command::Ack(read[1].receipt)).await.expect("the engine serves");
    assert_eq!(late, Err(Rejection::Settle(SettleRejection::LeaseLost { state: "scheduled" })));
    broker.pass_ms(1_000).await;
    assert_eq!(broker.places("t").await, (0, 5, 0));
}

#[tokio::test]
async fn a_stream_dropped_while_the_broker_drains_gives_back_only_what_it_has_not_read() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    broker.produce_many("t", 0, 4).await;
    let mut consumer = broker.consume(&[("t", 2)]).await;
    let read = consumer.next().await.expect("the stream is open");
    broker.ack(&read[0]).await;
    broker.settle().await;
    broker.journal.hold();
    let admitted = broker.engine.submit(vec![produce("t", 60_000)]).await.expect("the engine serves");
    broker.journal.wait_for_commit();
    let mut shutdown = pin!(broker.engine.shutdown());
    assert_pending(shutdown.as_mut()).await;
    drop(consumer);
    broker.journal.release();
    shutdown.await;
    admitted.await.expect("it was admitted");

    let Broker { time, journal, .. } = broker;
    let broker = Broker::restart(time, journal, EngineSettings::default());
    assert_eq!(broker.places("t").await, (2, 1, 1), "the unread one waits for the redelivery gap");
    broker.ack(&read[1]).await;
}

#[tokio::test]
async fn after_a_long_pause_live_leases_get_a_grace() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    broker.produce_many("t", 0, 2).await;
    let leased = broker.engine.fetch(fetch("t", 2, 0)).await.expect("it serves").expect("the topic exists");
    broker.jump_ms(3_600_000);
    broker.settle().await;
    assert_eq!(broker.places("t").await, (0, 0, 2));
    broker.pass_ms(GRACE_MS - 1).await;
    broker.ack(&leased[0]).await;
    broker.pass_ms(1).await;
    assert_eq!(broker.places("t").await, (1, 0, 0), "then the other one expires");
}

#[tokio::test]
async fn while_a_commit_is_stuck_no_lease_expires_and_then_live_leases_get_a_grace() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings { lease_ms: 5_000, ..TopicSettings::default() }).await;
    broker.produce_many("t", 0, 1).await;
    let leased = broker.engine.fetch(fetch("t", 1, 0)).await.expect("it serves").expect("the topic exists");
    broker.journal.hold();
    let held = broker.engine.submit(vec![produce("t", 600_000)]).await.expect("the engine serves");
    broker.journal.wait_for_commit();
    for _ in 0..20 {
        broker.jump_ms(500);
        // The owner shall see each step, and not one long pause; if it is slower the test only sees less.
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let ack = broker.engine.submit(vec![Command::Ack(leased[0].receipt)]).await.expect("the engine serves");
    broker.journal.release();
    held.await.expect("the engine serves");
    assert_eq!(ack.await.expect("the engine serves"), [Ok(Reply::Acked { repeated: false })]);
}

#[tokio::test]
async fn a_rate_cap_paces_a_waiting_stream() {
    let broker = Broker::start();
    let rate = Some(RateCap { deliveries: 10, period_ms: 1_000 });
    broker.create_topic("t", TopicSettings { rate, ..TopicSettings::default() }).await;
    broker.produce_many("t", 0, 100).await;
    let mut consumer = broker.consume(&[("t", 100)]).await;
    broker.settle().await;
    assert!(arrived(&mut consumer).await.is_empty(), "the first token comes after one interval");
    let mut total = 0;
    for _ in 0..500 {
        broker.pass_ms(10).await;
        let now = arrived(&mut consumer).await.len();
        assert!(now <= 1, "{now} at once");
        total += now;
    }
    assert!((48..=50).contains(&total), "{total} in 5 s");
}

#[tokio::test]
async fn refusals_name_what_is_wrong_and_leave_nothing_behind() {
    let settings = EngineSettings { max_waiters: 1, max_streams: 1, ..EngineSettings::default() };
    let broker = Broker::start_with(settings);
    broker.create_topic("t", TopicSettings::default()).await;
    let bad_windows = [
        (vec![], "topics: 0 topics; must be 1 to 64"),
        (vec![window("t", 0)], "window: 0; must be 1 to 10000"),
        (vec![window("t", 10_001)], "window: 10001; must be 1 to 10000"),
        (vec![window("t", 1), window("t", 2)], "topics: a topic is named twice"),
        (vec![window("t", 1), window("none", 2)], "topic 'none' does not exist"),
    ];
    for (windows, message) in bad_windows {
        let refused = broker.engine.consume(consumer_name("c"), windows).await.expect("the engine serves");
        assert_eq!(refused.err().expect(message).to_string(), message);
    }
    let bad_fetches = [
        (fetch("t", 0, 0), "max_messages: 0; must be 1 to 1000"),
        (fetch("t", 1_001, 0), "max_messages: 1001; must be 1 to 1000"),
        (fetch("t", 1, 60_001), "wait: 1m1ms; at most 1m"),
        (fetch("none", 1, 0), "topic 'none' does not exist"),
    ];
    for (fetch, message) in bad_fetches {
        let refused = broker.engine.fetch(fetch).await.expect("the engine serves");
        assert_eq!(refused.expect_err(message).to_string(), message);
    }
    let stats = broker.engine.stats(Some(topic("none"))).await.expect("the engine serves");
    assert_eq!(stats.expect_err("no such topic"), FindRejection::TopicNotFound(topic("none")));

    let stream = broker.consume(&[("t", 1)]).await;
    let refused = broker.engine.consume(consumer_name("c"), vec![window("t", 1)]).await;
    assert_eq!(refused.err(), Some(EngineError::TooManyStreams { max: 1 }));
    drop(stream);
    let _stream = broker.consume(&[("t", 1)]).await;
    {
        let mut waiting = pin!(broker.engine.fetch(fetch("t", 1, 1_000)));
        assert_pending(waiting.as_mut()).await;
        let refused = broker.engine.fetch(fetch("t", 1, 1_000)).await;
        assert_eq!(refused.expect_err("one waits"), EngineError::TooManyWaiters { max: 1 });
    }
    let stats = broker.engine.stats(None).await.expect("it serves").expect("no topic was named");
    assert_eq!((stats.topics[0].consumers, stats.topics[0].waiting_fetches), (1, 0));
}

#[tokio::test]
async fn stats_count_deliveries_and_their_lateness() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    broker.produce_many("t", 0, 99).await;
    broker.produce_many("t", 400, 1).await;
    broker.pass_ms(1_000).await;
    let _leased = broker.engine.fetch(fetch("t", 1_000, 0)).await.expect("it serves").expect("the topic exists");
    let stats = broker.engine.stats(Some(topic("t"))).await.expect("it serves").expect("the topic exists");
    let only = &stats.topics[0];
    assert_eq!((only.deliveries, only.counts.leased, only.lateness.count), (100, 100, 100));
    assert!((990..=1_010).contains(&only.lateness.p50_ms), "{:?}", only.lateness);
    let broker_stats = stats.broker;
    assert_eq!((broker_stats.epoch, broker_stats.clock_offset_ms), (1, 0));
    assert_eq!(broker_stats.started_at, Timestamp::from_millis(START_MS));
    assert_eq!(broker_stats.now, Timestamp::from_millis(START_MS + 1_000));
}
