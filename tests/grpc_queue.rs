//! The life of a message over a real connection: produced, consumed, settled, found, cancelled, redriven.

mod grpc_harness;

use duewheel::pb;
use duewheel::pb::settlement_result::Result as Settled;
use prost_types::Duration;
use tonic::Code;

use grpc_harness::{Running, is_acked, item_status, message, produce, reason};

fn seconds(seconds: i64) -> Duration {
    Duration { seconds, nanos: 0 }
}

fn by_key(key: &str) -> pb::MessageRef {
    pb::MessageRef { r#ref: Some(pb::message_ref::Ref::Key(key.to_owned())) }
}

fn fetch(max_messages: u32) -> pb::FetchRequest {
    pb::FetchRequest {
        topic: "orders".to_owned(),
        max_messages,
        wait: Some(seconds(10)),
        lease: None,
        consumer: "pay-1".to_owned(),
    }
}

async fn info(broker: &Running, key: &str) -> pb::MessageInfo {
    let request = pb::GetMessageRequest { topic: "orders".to_owned(), message: Some(by_key(key)), omit_body: false };
    let response = broker.queue().await.get_message(request).await.expect("it is known");
    response.into_inner().message.expect("a message")
}

#[tokio::test]
async fn a_delivery_carries_what_was_produced_and_its_ack_ends_the_message() {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let mut queue = broker.queue().await;
    let headers = [("trace".to_owned(), "t-1".to_owned())].into();
    let produced = pb::NewMessage { headers, max_attempts: 3, ..message("order-1", "pay 5") };
    let id = produce(&mut queue, "orders", vec![produced]).await.remove(0);

    let delivery = queue.fetch(fetch(1)).await.expect("ready").into_inner().deliveries.remove(0);
    assert_eq!((&*delivery.topic, &*delivery.id, &*delivery.key), ("orders", &*id, "order-1"));
    assert_eq!((&delivery.body[..], &*delivery.headers["trace"]), (&b"pay 5"[..], "t-1"));
    assert_eq!((delivery.attempt, delivery.max_attempts, delivery.delivery), (1, 3, 1));
    assert!(!delivery.redelivered);
    assert_eq!(delivery.delivered_at, delivery.due_at, "time stands still");
    assert_eq!(info(&broker, "order-1").await.consumer, "pay-1");

    let receipts = vec![delivery.receipt];
    for repeated in [false, true] {
        let response = queue.ack(pb::AckRequest { receipts: receipts.clone() }).await.expect("well-formed");
        let want = Some(Settled::Acked(pb::Acked { repeated }));
        assert_eq!(response.into_inner().results[0].result, want);
    }
    let gone = info(&broker, "order-1").await;
    assert_eq!((gone.state(), gone.outcome(), &*gone.id), (pb::MessageState::Done, pb::Outcome::Acked, &*id));
    assert!(gone.why.starts_with("It is done: a consumer acknowledged it"), "{}", gone.why);
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn nacks_walk_the_tiers_until_the_message_is_dead_and_a_redrive_brings_it_back() {
    let broker = Running::start().await;
    let schedule = Some(pb::RetrySchedule { tiers: vec![seconds(1), seconds(5)] });
    let settings = pb::TopicSettings { schedule, max_attempts: 2, ..Default::default() };
    broker.create_topic("orders", settings).await;
    let mut queue = broker.queue().await;
    let id = produce(&mut queue, "orders", vec![message("order-1", "b")]).await.remove(0);
    let nack = |receipt: &bytes::Bytes, reason: pb::NackReason, delay| {
        let text = "the channel says: processing".to_owned();
        let nacks = vec![pb::NackItem { receipt: receipt.clone(), reason: reason.into(), delay, text }];
        pb::NackRequest { nacks }
    };

    let first = queue.fetch(fetch(1)).await.expect("ready").into_inner().deliveries.remove(0);
    // Half a millisecond rounds up to one, never down.
    let delay = Some(Duration { seconds: 2, nanos: 500_000 });
    let answer = queue.nack(nack(&first.receipt, pb::NackReason::NotYet, delay)).await.expect("well-formed");
    let Some(Settled::Nacked(nacked)) = answer.into_inner().results.remove(0).result else { panic!("not nacked") };
    let waited = nacked.due_at.expect("it waits");
    let delivered = first.delivered_at.expect("delivered");
    assert_eq!(
        (waited.seconds - delivered.seconds, waited.nanos - delivered.nanos),
        (2, 1_000_000),
        "the delay of the nack replaces the tier"
    );
    let stale = queue.nack(nack(&first.receipt, pb::NackReason::NotYet, None)).await.expect("well-formed");
    let Some(Settled::Error(item)) = &stale.into_inner().results[0].result else { panic!("a stale receipt won") };
    assert_eq!(reason(&item_status(item)), ("LEASE_LOST".to_owned(), "not_done".to_owned()));
    let waiting = info(&broker, "order-1").await;
    assert_eq!((waiting.state(), waiting.attempts), (pb::MessageState::Scheduled, 1));
    assert_eq!(waiting.history[0].text, "the channel says: processing");
    assert!(waiting.why.contains("there was no definite answer yet; 1 attempt is spent"), "{}", waiting.why);

    broker.time.advance_ms(2_001);
    let second = queue.fetch(fetch(1)).await.expect("due").into_inner().deliveries.remove(0);
    assert_eq!((second.attempt, second.delivery, second.redelivered), (2, 2, true));
    let answer = queue.nack(nack(&second.receipt, pb::NackReason::NotYet, None)).await.expect("well-formed");
    let Some(Settled::Nacked(nacked)) = answer.into_inner().results.remove(0).result else { panic!("not nacked") };
    assert!(nacked.dead && nacked.due_at.is_none());

    let mut admin = broker.admin().await;
    let list = pb::ListDeadLettersRequest { topic: "orders".to_owned(), ..Default::default() };
    let dead = admin.list_dead_letters(list).await.expect("a page").into_inner();
    assert_eq!((dead.messages.len(), &*dead.next_page_token), (1, ""));
    assert_eq!(dead.messages[0].dead_reason(), pb::DeadReason::MaxAttempts);
    assert!(dead.messages[0].why.contains("all 2 attempts are spent"), "{}", dead.messages[0].why);
    let other = "0".repeat(36);
    let ids = vec![id.clone(), id, other];
    let request = pb::RedriveDeadLettersRequest { topic: "orders".to_owned(), ids, ..Default::default() };
    let mut answers = admin.redrive_dead_letters(request).await.expect("well-formed").into_inner();
    let redriven = answers.message().await.expect("an answer").expect("results");
    assert_eq!((redriven.matched, redriven.redriven, redriven.remaining), (3, 1, 0));
    let want = [pb::RedriveStatus::Redriven, pb::RedriveStatus::NotDead, pb::RedriveStatus::NotFound];
    assert_eq!(redriven.results().collect::<Vec<_>>(), want);
    let again = queue.fetch(fetch(1)).await.expect("ready").into_inner().deliveries.remove(0);
    assert_eq!((again.attempt, again.delivery), (1, 3));
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn dead_letters_are_listed_page_by_page_in_the_order_of_their_death() {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let mut queue = broker.queue().await;
    let messages = (0..5).map(|n| message(&format!("order-{n}"), "b")).collect();
    produce(&mut queue, "orders", messages).await;
    let deliveries = queue.fetch(fetch(5)).await.expect("ready").into_inner().deliveries;
    let dead = |delivery: &pb::Delivery| pb::NackItem {
        receipt: delivery.receipt.clone(),
        reason: pb::NackReason::Dead.into(),
        ..Default::default()
    };
    let nacks = deliveries.iter().map(dead).collect();
    queue.nack(pb::NackRequest { nacks }).await.expect("well-formed");

    let mut admin = broker.admin().await;
    let (mut keys, mut page_token) = (Vec::new(), String::new());
    loop {
        let topic = "orders".to_owned();
        let request = pb::ListDeadLettersRequest { topic, page_size: 2, page_token, filter: None };
        let page = admin.list_dead_letters(request).await.expect("a page").into_inner();
        keys.extend(page.messages.into_iter().map(|message| message.key));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(keys, ["order-0", "order-1", "order-2", "order-3", "order-4"]);
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn cancel_and_reschedule_give_definite_answers() {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let mut queue = broker.queue().await;
    let later = |key: &str| pb::NewMessage {
        first_wait: Some(pb::new_message::FirstWait::Delay(seconds(3_600))),
        ..message(key, "b")
    };
    let ids = produce(&mut queue, "orders", vec![later("a"), later("b")]).await;
    let cancel = |key: &str, when_lease_ends| pb::CancelRequest {
        topic: "orders".to_owned(),
        message: Some(by_key(key)),
        when_lease_ends,
    };
    for _ in 0..2 {
        let answer = queue.cancel(cancel("a", false)).await.expect("well-formed").into_inner();
        assert_eq!((answer.status(), &answer.id), (pb::CancelStatus::Cancelled, &ids[0]));
    }
    let unknown = queue.cancel(cancel("nobody", false)).await.expect("well-formed").into_inner();
    assert_eq!(unknown.status(), pb::CancelStatus::NotFound);

    let now = pb::RescheduleRequest {
        topic: "orders".to_owned(),
        message: Some(by_key("b")),
        due: Some(pb::reschedule_request::Due::Delay(Duration::default())),
    };
    let answer = queue.reschedule(now.clone()).await.expect("well-formed").into_inner();
    assert_eq!((answer.status(), &answer.id), (pb::RescheduleStatus::Rescheduled, &ids[1]));
    assert!(answer.due_at.is_some());
    let delivery = queue.fetch(fetch(1)).await.expect("query now").into_inner().deliveries.remove(0);
    let answer = queue.reschedule(now.clone()).await.expect("well-formed").into_inner();
    assert_eq!(answer.status(), pb::RescheduleStatus::InFlight);
    let answer = queue.cancel(cancel("b", true)).await.expect("well-formed").into_inner();
    assert_eq!(answer.status(), pb::CancelStatus::InFlight);
    assert!(info(&broker, "b").await.cancel_when_lease_ends);
    let acked = queue.ack(pb::AckRequest { receipts: vec![delivery.receipt] }).await.expect("well-formed");
    assert!(is_acked(&acked.into_inner().results[0]));
    let answer = queue.cancel(cancel("b", false)).await.expect("well-formed").into_inner();
    assert_eq!((answer.status(), answer.outcome()), (pb::CancelStatus::AlreadyDone, pb::Outcome::Acked));
    let answer = queue.reschedule(now).await.expect("well-formed").into_inner();
    assert_eq!((answer.status(), answer.outcome()), (pb::RescheduleStatus::AlreadyDone, pb::Outcome::Acked));
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn refusals_of_a_produce_name_the_message_that_is_in_the_way() {
    let broker = Running::start().await;
    let settings = pb::TopicSettings { dedup_capacity: 1, ..Default::default() };
    broker.create_topic("orders", settings).await;
    let mut queue = broker.queue().await;
    let first = pb::NewMessage { dedup_id: "d-1".to_owned(), ..message("order-1", "b") };
    let id = produce(&mut queue, "orders", vec![first.clone()]).await.remove(0);
    queue.fetch(fetch(1)).await.expect("it is leased now");

    let replace = pb::KeyPolicy::Replace.into();
    let cases = [
        (message("order-1", "c"), Code::AlreadyExists, "KEY_IN_USE", Some("holder")),
        (
            pb::NewMessage { key_policy: replace, ..message("order-1", "c") },
            Code::FailedPrecondition,
            "KEY_IN_FLIGHT",
            Some("holder"),
        ),
        (
            pb::NewMessage { body: "other".into(), ..first.clone() },
            Code::FailedPrecondition,
            "DEDUP_ID_REUSED",
            Some("first"),
        ),
        (
            pb::NewMessage { dedup_id: "d-2".to_owned(), ..message("", "c") },
            Code::ResourceExhausted,
            "DEDUP_WINDOW_FULL",
            None,
        ),
    ];
    for (refused, code, want, names) in cases {
        let request = pb::ProduceRequest { topic: "orders".to_owned(), messages: vec![refused] };
        let result = queue.produce(request).await.expect("well-formed").into_inner().results.remove(0).result;
        let Some(pb::produce_result::Result::Error(item)) = result else { panic!("{want}: {result:?}") };
        let status = item_status(&item);
        assert_eq!((status.code(), &*reason(&status).0), (code, want));
        let details = tonic_types::StatusExt::get_error_details(&status);
        let metadata = &details.error_info().expect("error info").metadata;
        assert_eq!(names.map(|name| &metadata[name]), names.map(|_| &id), "{want}");
        assert_eq!(details.retry_info().is_some(), code == Code::ResourceExhausted, "{want}");
    }
    let keep = pb::NewMessage { key_policy: pb::KeyPolicy::Keep.into(), ..message("order-1", "c") };
    assert_eq!(produce(&mut queue, "orders", vec![first, keep]).await, [id.clone(), id], "repeats are answered");
    assert_eq!(broker.stats("orders").await.produced, 1);
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn topics_are_created_updated_paused_and_listed() {
    let broker = Running::start().await;
    for name in ["b", "a", "c"] {
        broker.create_topic(name, pb::TopicSettings { max_returns: 9, ..Default::default() }).await;
    }
    let mut admin = broker.admin().await;
    let mask = |paths: &[&str]| Some(prost_types::FieldMask { paths: paths.iter().map(|&p| p.to_owned()).collect() });
    let update = pb::UpdateTopicRequest {
        name: "a".to_owned(),
        settings: Some(pb::TopicSettings { max_attempts: 4, history_count: Some(0), ..Default::default() }),
        update_mask: mask(&["max_attempts", "history_count"]),
    };
    let topic = admin.update_topic(update).await.expect("well-formed").into_inner().topic.expect("a topic");
    let settings = topic.settings.expect("settings");
    assert_eq!((settings.max_attempts, settings.history_count, settings.max_returns), (4, Some(0), 9));

    for _ in 0..2 {
        let paused = admin.pause_topic(pb::PauseTopicRequest { name: "a".to_owned() }).await.expect("well-formed");
        assert!(paused.into_inner().topic.expect("a topic").paused);
    }
    let mut queue = broker.queue().await;
    produce(&mut queue, "a", vec![message("k", "b")]).await;
    let nothing = pb::FetchRequest { topic: "a".to_owned(), ..Default::default() };
    assert!(queue.fetch(nothing.clone()).await.expect("well-formed").into_inner().deliveries.is_empty());
    admin.resume_topic(pb::ResumeTopicRequest { name: "a".to_owned() }).await.expect("well-formed");
    let fetched = queue.fetch(pb::FetchRequest { wait: Some(seconds(10)), ..nothing }).await.expect("well-formed");
    assert_eq!(fetched.into_inner().deliveries.len(), 1);

    let (mut names, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = pb::ListTopicsRequest { page_size: 2, page_token };
        let page = admin.list_topics(request).await.expect("a page").into_inner();
        names.extend(page.topics.into_iter().map(|topic| topic.name));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(names, ["a", "b", "c"]);
    let stats = admin.get_stats(pb::GetStatsRequest::default()).await.expect("stats").into_inner();
    assert_eq!(
        stats.topics.iter().map(|topic| (&*topic.topic, topic.leased)).collect::<Vec<_>>(),
        [("a", 1), ("b", 0), ("c", 0)]
    );
    let own = stats.broker.expect("the broker's own");
    assert_eq!(own.version, env!("CARGO_PKG_VERSION"));
    assert!(own.epoch > 0);
    broker.stop().await.expect("a clean end");
}
