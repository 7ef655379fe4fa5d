//! What users of other delayed-message systems complain about, each as a test that would have caught it. Those that have
//! their test elsewhere are listed in `docs/guarantees.md`.

mod engine_support;

use std::collections::BTreeSet;

use duewheel::clock::ManualTime;
use duewheel::engine::EngineSettings;
use duewheel::queue::command::{CancelReply, Command, Delivery, Nack, NackReason, Reply, Target};
use duewheel::queue::message::MessageId;
use duewheel::queue::settings::{RateCap, TopicSettings};
use duewheel::queue::time::Timestamp;
use duewheel::queue::values::NackText;

use engine_support::{Broker, Journal, START_MS, arrived, topic};

async fn ack_all(broker: &Broker, deliveries: &[Delivery]) {
    let acks = deliveries.iter().map(|delivery| Command::Ack(delivery.receipt)).collect();
    for reply in broker.engine.apply_all(acks).await.expect("the engine serves") {
        assert_eq!(reply, Ok(Reply::Acked { repeated: false }));
    }
}

fn random() -> (u64, fastrand::Rng) {
    let seed = fastrand::u64(..);
    (seed, fastrand::Rng::with_seed(seed))
}

/// Delayed messages were dropped, came in any order, or were all shifted by the time that the broker was away.
#[tokio::test]
async fn what_fell_due_while_the_broker_was_away_comes_in_due_order_and_unshifted() {
    const MESSAGES: usize = 20_000;
    let (time, journal) = (ManualTime::new(Timestamp::from_millis(START_MS)), Journal::default());
    let mut broker = Broker::restart(time.clone(), journal.clone(), EngineSettings::default());
    let (seed, mut random) = random();
    broker.create_topic("t", TopicSettings::default()).await;
    let mut due: Vec<(u64, MessageId)> = Vec::new();
    for _ in 0..MESSAGES {
        let delay = random.u64(1..3_600_000);
        let produced = broker.produce("t", delay).await;
        due.push((START_MS + delay, produced.id));
    }
    drop(broker);
    time.advance_ms(24 * 3_600_000);
    broker = Broker::restart(time, journal, EngineSettings::default());
    let mut consumer = broker.consume(&[("t", 1_000)]).await;
    let mut came = Vec::new();
    while came.len() < MESSAGES {
        let deliveries = consumer.next().await.expect("the stream is open");
        came.extend(deliveries.iter().map(|d| (d.message.progress.due_at.as_millis(), d.message.id)));
        ack_all(&broker, &deliveries).await;
    }
    due.sort_unstable_by_key(|&(at, id)| (at, id.arrival));
    assert!(came == due, "seed {seed}: another order, or other due times");
}

/// A flood on one topic delayed all others, and a limit on it was a suggestion.
#[tokio::test]
async fn a_flood_on_a_capped_topic_keeps_its_cap_and_delays_no_other_topic() {
    const ROUNDS: usize = 6;
    let broker = Broker::start();
    let rate = Some(RateCap { deliveries: 2_000, period_ms: 1_000 });
    broker.create_topic("flood", TopicSettings { rate, ..TopicSettings::default() }).await;
    broker.create_topic("steady", TopicSettings::default()).await;
    for _ in 0..10 {
        broker.produce_many("flood", 1_000, 1_000).await;
    }
    // 500 a second for three seconds, from the moment of the flood on.
    for n in 0..1_500 {
        broker.produce("steady", 1_000 + n * 2).await;
    }
    let mut consumer = broker.consume(&[("flood", 10_000), ("steady", 1_000)]).await;
    broker.pass_ms(999).await;
    assert!(arrived(&mut consumer).await.is_empty(), "nothing is due");
    let (mut flood, mut steady) = (0, 0);
    for ms in 1_000..4_000 {
        broker.pass_ms(1).await;
        // 10,000 that are due in the same millisecond take a few rounds, whose work takes no time here.
        for _ in 0..ROUNDS {
            broker.settle().await;
        }
        for delivery in arrived(&mut consumer).await {
            if delivery.topic == topic("flood") {
                flood += 1;
                continue;
            }
            steady += 1;
            let late = START_MS + ms - delivery.message.progress.due_at.as_millis();
            assert_eq!(late, 0, "{ms}: a message of the other topic is late");
            broker.ack(&delivery).await;
        }
    }
    assert_eq!(steady, 1_500);
    assert!((5_700..=6_001).contains(&flood), "{flood} in three seconds at 2,000 a second");
}

/// Messages that wait for a retry used the window up, and new ones starved behind them.
#[tokio::test]
async fn a_window_full_of_messages_that_wait_for_a_retry_lets_all_new_ones_through() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    let mut consumer = broker.consume(&[("t", 100)]).await;
    broker.produce_many("t", 0, 100).await;
    broker.settle().await;
    let first = arrived(&mut consumer).await;
    assert_eq!(first.len(), 100);
    for delivery in &first {
        let reason = NackReason::NotYet(Some(60_000));
        let nack = Nack { receipt: delivery.receipt, reason, text: NackText::none() };
        broker.engine.apply(Command::Nack(nack)).await.expect("the engine serves").expect("its lease is held");
    }
    broker.produce_many("t", 0, 1_000).await;
    let mut fresh = 0;
    while fresh < 1_000 {
        broker.settle().await;
        let deliveries = arrived(&mut consumer).await;
        assert!(!deliveries.is_empty(), "after {fresh} new ones nothing comes, and no time has passed");
        fresh += deliveries.len();
        ack_all(&broker, &deliveries).await;
    }
    broker.pass_ms(60_000).await;
    assert_eq!(arrived(&mut consumer).await.len(), 100, "and then the others come again");
}

/// A handler that took longer than its lease ran twice although it had asked for more time.
#[tokio::test]
async fn a_job_of_ten_leases_that_extends_each_runs_once() {
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings { lease_ms: 1_000, ..TopicSettings::default() }).await;
    let mut consumer = broker.consume(&[("t", 10)]).await;
    broker.produce("t", 0).await;
    broker.settle().await;
    let delivery = arrived(&mut consumer).await.remove(0);
    for _ in 0..14 {
        broker.pass_ms(700).await;
        let extend = Command::Extend { receipt: delivery.receipt, lease_ms: None };
        let reply = broker.engine.apply(extend).await.expect("the engine serves");
        assert!(matches!(reply, Ok(Reply::Extended(_))), "{reply:?}");
        assert!(arrived(&mut consumer).await.is_empty(), "it runs a second time");
    }
    broker.ack(&delivery).await;
    broker.pass_ms(5_000).await;
    assert!(arrived(&mut consumer).await.is_empty());
}

/// A cancel that raced the timer was answered with success and the message came all the same, or neither happened.
#[tokio::test]
async fn a_thousand_cancels_that_race_the_due_time_each_end_one_way() {
    const RACES: usize = 1_000;
    let broker = Broker::start();
    broker.create_topic("t", TopicSettings::default()).await;
    let mut consumer = broker.consume(&[("t", 10_000)]).await;
    let (seed, mut random) = random();
    let mut ids = Vec::new();
    for _ in 0..RACES {
        ids.push(broker.produce("t", 50 + random.u64(0..20)).await.id);
    }
    random.shuffle(&mut ids);
    let cancel = |id| Command::Cancel { topic: topic("t"), target: Target::Id(id), when_lease_ends: false };
    let (mut cancelled, mut delivered) = (BTreeSet::new(), BTreeSet::new());
    broker.pass_ms(49).await;
    for batch in ids.chunks(50) {
        // The time moves on while the cancels are on their way.
        let cancels = broker.engine.apply_all(batch.iter().copied().map(cancel).collect());
        broker.jump_ms(1);
        for (reply, &id) in cancels.await.expect("the engine serves").into_iter().zip(batch) {
            match reply.expect("the topic exists") {
                Reply::Cancel(CancelReply::Cancelled(_)) => drop(cancelled.insert(id)),
                Reply::Cancel(CancelReply::InFlight(_)) => {}
                other => panic!("seed {seed}: {other:?}"),
            }
        }
    }
    broker.pass_ms(100).await;
    for delivery in arrived(&mut consumer).await {
        assert!(delivered.insert(delivery.message.id), "seed {seed}: twice");
        broker.ack(&delivery).await;
    }
    assert!(cancelled.is_disjoint(&delivered), "seed {seed}: cancelled and delivered");
    assert_eq!(cancelled.len() + delivered.len(), RACES, "seed {seed}: neither cancelled nor delivered");
    assert!(!cancelled.is_empty() && !delivered.is_empty(), "no race: {} cancelled", cancelled.len());
    for id in ids {
        let again = broker.engine.apply(cancel(id)).await.expect("the engine serves").expect("the topic exists");
        let is_repeat = matches!(again, Reply::Cancel(CancelReply::Cancelled(_)));
        assert_eq!(is_repeat, cancelled.contains(&id), "seed {seed}: a repeat is answered otherwise: {again:?}");
    }
    assert_eq!(broker.places("t").await, (0, 0, 0));
}
