//! The typed client against a broker process: pipelining, settling, and what a drain and a kill mean to a consumer.

mod support;

use std::sync::Arc;
use std::time::Duration;

use duewheel::client::{
    Acked, CancelAnswer, Client, Consumer, Delivery, Due, Ended, Error, MessageRef, Nack, Nacked, NewMessage, Options,
    Outcome, RescheduleAnswer, Window,
};
use duewheel::pb;
use rustix::process::Signal;
use support::{Broker, HANGS};

const TOPIC: &str = "orders";

async fn connect(broker: &Broker) -> Client {
    let client = Client::connect(Options::new(broker.endpoint())).await.expect("the broker accepts");
    client.create_topic(TOPIC, pb::TopicSettings::default()).await.expect("a new topic");
    client
}

async fn consume(client: &Client, window: u32) -> Consumer {
    client.consume("tester", [Window::new(TOPIC, window)]).await.expect("a stream")
}

async fn next(consumer: &mut Consumer) -> Delivery {
    tokio::time::timeout(HANGS, consumer.next()).await.expect("this does not hang").expect("a delivery")
}

fn now(key: &str) -> NewMessage {
    NewMessage::new("body").key(key).due(Due::In(Duration::ZERO))
}

/// Runs what blocks, such as commands and restarts, without holding up the client's tasks.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("it does not panic")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipelined_producer_gets_one_answer_per_message_in_order() {
    let broker = Broker::start();
    let client = connect(&broker).await;
    let producer = client.producer(TOPIC).await.expect("a stream");
    let mut pending = Vec::new();
    for frame in 0..100 {
        let mut messages: Vec<NewMessage> =
            (0..20).map(|n| NewMessage::new("x").key(format!("{frame}-{n}")).due(Due::In(HANGS))).collect();
        // One that is refused does not disturb its neighbours.
        messages.insert(7, NewMessage::new("x").key("a\nb"));
        pending.push(producer.send(messages).await.expect("an open stream"));
    }
    let mut ids = Vec::new();
    for frame in pending {
        let results = frame.await.expect("an answered frame");
        assert_eq!(results.len(), 21);
        for (index, result) in results.into_iter().enumerate() {
            match result {
                Ok(stored) => ids.push(stored.id),
                Err(error) => {
                    assert_eq!(index, 7);
                    assert_eq!(error.outcome(), Outcome::NotDone);
                    assert!(error.field().is_some_and(|field| field.contains("key")), "{error:?}");
                }
            }
        }
    }
    assert_eq!(ids.len(), 2_000);
    ids.dedup();
    assert_eq!(ids.len(), 2_000);
    let info = client.message(TOPIC, MessageRef::key("99-19"), true).await.expect("it is stored");
    assert_eq!(Some(&info.id), ids.last());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_are_settled_over_the_stream_by_many_tasks_at_once() {
    let broker = Broker::start();
    let client = connect(&broker).await;
    let messages = (0..500).map(|n| now(&format!("k{n}"))).collect();
    assert!(client.produce_all(TOPIC, messages).await.expect("a call").into_iter().all(|result| result.is_ok()));
    let mut consumer = consume(&client, 64).await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..500 {
        let delivery = next(&mut consumer).await;
        assert!(delivery.delivered_at >= delivery.due_at, "never early");
        tasks.spawn(async move {
            match n % 3 {
                0 => assert_eq!(delivery.ack().await.expect("acked"), Acked { repeated: false }),
                1 => assert_eq!(delivery.nack(Nack::dead().text("no")).await.expect("nacked"), Nacked::Dead),
                _ => {
                    let deadline = delivery.extend(Some(Duration::from_hours(1))).await.expect("extended");
                    assert!(deadline > delivery.lease_deadline);
                    let again = delivery.nack(Nack::not_yet().delay(Duration::from_hours(1))).await;
                    assert!(matches!(again, Ok(Nacked::Waiting(at)) if at > delivery.due_at));
                }
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("no assertion failed");
    }
    consumer.close().await;
    let stats = client.stats(Some(TOPIC)).await.expect("stats").topics.remove(0);
    assert_eq!((stats.acked, stats.dead, stats.scheduled, stats.leased), (167, 167, 166, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_closes_gives_back_what_it_did_not_hand_out() {
    let broker = Broker::start();
    let client = connect(&broker).await;
    for key in ["a", "b", "c"] {
        client.produce(TOPIC, now(key)).await.expect("produced");
    }
    let mut consumer = consume(&client, 10).await;
    let held = next(&mut consumer).await;
    let closing = tokio::spawn(consumer.close());
    assert_eq!(held.ack().await.expect("the stream lives as long as the delivery"), Acked { repeated: false });
    drop(held);
    closing.await.expect("it closes");
    tokio::time::timeout(HANGS, async {
        while client.stats(Some(TOPIC)).await.expect("stats").topics[0].leased > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the other leases are given back");
    let info = client.message(TOPIC, MessageRef::key("b"), true).await.expect("it is there");
    assert_eq!(info.attempts, 0, "no attempt is spent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_survives_a_drain_and_is_acked_over_the_next_stream() {
    let mut broker = Broker::start();
    let client = connect(&broker).await;
    client.produce(TOPIC, now("held")).await.expect("produced");
    let mut consumer = consume(&client, 10).await;
    let held = next(&mut consumer).await;
    let broker = blocking(move || {
        broker.signal(Signal::TERM);
        assert!(broker.wait().success(), "{}", broker.log());
        Broker::start_in(Arc::clone(&broker.data_dir), broker.grpc, &[])
    })
    .await;
    assert_eq!(held.ack().await.expect("the lease is still valid"), Acked { repeated: false });
    client.produce(TOPIC, now("after")).await.expect("produced");
    assert_eq!(next(&mut consumer).await.key.as_deref(), Some("after"));
    assert_eq!(client.stats(Some(TOPIC)).await.expect("stats").topics[0].deliveries, 1, "since this start");
    drop(broker);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_makes_leases_void_and_the_message_comes_again_flagged() {
    let broker = Broker::start();
    let client = connect(&broker).await;
    client.produce(TOPIC, now("held")).await.expect("produced");
    client.produce(TOPIC, now("queued")).await.expect("produced");
    let mut consumer = consume(&client, 10).await;
    let held = next(&mut consumer).await;
    assert!(!held.redelivered);
    let broker = blocking(move || broker.kill_and_restart()).await;
    let error = held.ack().await.expect_err("the lease is void");
    assert_eq!((error.reason(), error.outcome()), (Some("LEASE_LOST"), Outcome::NotDone));
    for key in ["held", "queued"] {
        let again = next(&mut consumer).await;
        assert_eq!(again.key.as_deref(), Some(key));
        assert!(again.redelivered);
        assert_eq!((again.attempt, again.delivery), (1, 1), "the attempt is not spent");
        again.ack().await.expect("the new lease is valid");
    }
    drop(broker);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_and_definite_answers_are_told_apart() {
    let broker = Broker::start();
    let client = connect(&broker).await;
    let refused = |error: &Error| (error.reason().map(str::to_owned), error.outcome(), error.is_temporary());
    let not_done = |reason: &str| (Some(reason.to_owned()), Outcome::NotDone, false);

    let error = client.consume("tester", [Window::new("nothing", 1)]).await.map(drop).expect_err("no such topic");
    assert_eq!(refused(&error), not_done("TOPIC_NOT_FOUND"));
    let first = client.produce(TOPIC, now("k")).await.expect("produced");
    let error = client.produce(TOPIC, now("k")).await.expect_err("the key is taken");
    assert_eq!(refused(&error), not_done("KEY_IN_USE"));
    let far = NewMessage::new("x").due(Due::In(Duration::from_hours(24 * 900)));
    let error = client.produce(TOPIC, far).await.expect_err("too far");
    assert_eq!(error.outcome(), Outcome::NotDone);
    assert!(error.field().is_some_and(|field| field.contains("delay")), "{error:?}");

    let key = || MessageRef::key("k");
    let later = client.reschedule(TOPIC, key(), Due::In(HANGS)).await.expect("an answer");
    assert!(matches!(later, RescheduleAnswer::Rescheduled { id, .. } if id == first.id));
    let cancelled = client.cancel(TOPIC, key(), false).await.expect("an answer");
    assert_eq!(cancelled, CancelAnswer::Cancelled { id: first.id.clone() });
    let late = client.reschedule(TOPIC, MessageRef::id(&first.id), Due::In(HANGS)).await.expect("an answer");
    let ended = Ended::Gone(pb::Outcome::Cancelled);
    assert_eq!(late, RescheduleAnswer::AlreadyDone { id: first.id, ended });
    assert_eq!(client.cancel(TOPIC, MessageRef::key("x"), true).await.expect("an answer"), CancelAnswer::NotFound);

    let mut broker = broker;
    blocking(move || broker.kill()).await;
    let error = client.produce(TOPIC, now("k2")).await.expect_err("nobody is there");
    assert!(error.is_temporary(), "{error:?}");
}
