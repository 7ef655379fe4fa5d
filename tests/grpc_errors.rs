//! Bad input over a real connection: each is refused with a stable reason and by the name of the field, nothing
//! is stored, and the connection lives on.

mod grpc_harness;

#[path = "grpc_errors/admin.rs"]
mod admin;
#[path = "grpc_errors/call.rs"]
mod call;
#[path = "grpc_errors/messages.rs"]
mod messages;
#[path = "grpc_errors/raw.rs"]
mod raw;

use bytes::Bytes;
use duewheel::pb::admin_service_client::AdminServiceClient;
use duewheel::pb::consume_request::Frame;
use duewheel::pb::queue_service_client::QueueServiceClient;
use duewheel::pb::{self, produce_result, settlement_result};
use tonic::Code;
use tonic::transport::Channel;

use admin::{dead_letter_cases, listing_cases, settings_cases, topic_cases};
use call::{Call, Case, refused, span};
use grpc_harness::{Consuming, Running, fields, item_status, message, produce, reason, within};
use messages::{fetch_cases, find_cases, produce_cases, settle_cases, settle_cases_with};

/// The receipt of a lease that a nack has ended.
async fn stale_receipt(queue: &mut QueueServiceClient<Channel>, fetch: pb::FetchRequest) -> Bytes {
    produce(queue, "other", vec![message("stale", "b")]).await;
    let receipt = queue.fetch(fetch).await.expect("the message").into_inner().deliveries.remove(0).receipt;
    let reason = pb::NackReason::NotYet.into();
    let nack = pb::NackItem { receipt: receipt.clone(), reason, ..Default::default() };
    queue.nack(pb::NackRequest { nacks: vec![nack] }).await.expect("the lease is held");
    receipt
}

#[tokio::test]
async fn every_bad_input_is_refused_by_name_and_leaves_nothing_behind() {
    let broker = Running::start().await;
    for topic in ["orders", "other"] {
        broker.create_topic(topic, pb::TopicSettings::default()).await;
    }
    let channel = broker.connect().await;
    let mut queue = QueueServiceClient::new(channel.clone());
    let foreign_id = produce(&mut queue, "other", vec![message("k", "b")]).await.remove(0);
    let fetch = pb::FetchRequest { topic: "other".to_owned(), wait: Some(span(10, 0)), ..Default::default() };
    let receipt = queue.fetch(fetch.clone()).await.expect("the message").into_inner().deliveries.remove(0).receipt;
    let stale = stale_receipt(&mut queue, fetch).await;
    let mut admin = AdminServiceClient::new(channel.clone());
    let page = pb::ListTopicsRequest { page_size: 1, page_token: String::new() };
    let token = admin.list_topics(page).await.expect("a page").into_inner().next_page_token;

    let mut cases = produce_cases();
    cases.extend(settle_cases());
    cases.extend(settle_cases_with(&receipt));
    let stale = Call::Ack(pb::AckRequest { receipts: vec![stale] });
    cases.push(refused(stale, Code::FailedPrecondition, "LEASE_LOST"));
    cases.extend(fetch_cases());
    cases.extend(find_cases(&foreign_id));
    cases.extend(topic_cases());
    cases.extend(settings_cases());
    cases.extend(listing_cases(&token));
    cases.extend(dead_letter_cases());
    for (number, Case { call, code, reason: want, field, says }) in cases.into_iter().enumerate() {
        let case = format!("case {number}, {want} {field}");
        let input = format!("{call:?}");
        let status = within(call.make(&channel)).await.expect_err(&case);
        // With --nocapture this is the table of bad inputs and their answers.
        println!("{input}\t{:?}\t{want}\t{field}\t{}", status.code(), status.message());
        assert_eq!(status.code(), code, "{case}: {status:?}");
        assert_eq!(reason(&status), (want.to_owned(), "not_done".to_owned()), "{case}");
        let named: Vec<&str> = if field.is_empty() { vec![] } else { vec![field] };
        assert_eq!(fields(&status), named, "{case}");
        assert!(status.message().starts_with(field), "{case}: the message names the field too: {status:?}");
        assert!(status.message().contains(says), "{case}: the message names the limit: {status:?}");
    }

    assert_eq!(broker.stats("orders").await.produced, 0);
    let other = broker.stats("other").await;
    assert_eq!((other.produced, other.leased, other.acked), (2, 1, 0), "the lease is as it was");
    let topics = admin.list_topics(pb::ListTopicsRequest::default()).await.expect("the same connection works");
    assert_eq!(topics.into_inner().topics.len(), 2);
    let acked = queue.ack(pb::AckRequest { receipts: vec![receipt] }).await.expect("the receipt is good");
    assert!(grpc_harness::is_acked(&acked.into_inner().results[0]));
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn one_bad_item_does_not_fail_the_rest() {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let mut queue = broker.queue().await;
    let bad = pb::NewMessage { key_policy: 9, ..message("bad", "") };
    let messages = vec![message("a", ""), bad, message("a", ""), message("b", "")];
    let request = pb::ProduceRequest { topic: "orders".to_owned(), messages };
    let results = queue.produce(request).await.expect("a well-formed request").into_inner().results;
    let outcomes: Vec<String> = results
        .iter()
        .map(|result| match result.result.as_ref().expect("a result") {
            produce_result::Result::Produced(_) => "produced".to_owned(),
            produce_result::Result::Error(item) => reason(&item_status(item)).0,
        })
        .collect();
    assert_eq!(outcomes, ["produced", "INVALID_FIELD", "KEY_IN_USE", "produced"]);
    assert_eq!(broker.stats("orders").await.produced, 2);
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn a_bad_consume_stream_ends_with_the_field_and_the_connection_lives() {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let mut queue = broker.queue().await;
    let window = |topic: &str, window, lease| pb::TopicWindow { topic: topic.to_owned(), window, lease };
    let start = |topics| Frame::Start(pb::ConsumeStart { consumer: String::new(), topics });
    let settlements =
        |count| Frame::Settlements(pb::Settlements { acks: vec![Bytes::new(); count], ..Default::default() });
    let good = || start(vec![window("orders", 1, None)]);
    let cases: Vec<(Vec<Frame>, &str, &str)> = vec![
        (vec![settlements(1)], "INVALID_FIELD", "start"),
        (vec![start(vec![])], "INVALID_FIELD", "start.topics"),
        (vec![start(vec![window("orders", 1, None); 65])], "INVALID_FIELD", "start.topics"),
        (vec![start(vec![window("orders", 0, None)])], "INVALID_FIELD", "start.topics[0].window"),
        (vec![start(vec![window("orders", 10_001, None)])], "INVALID_FIELD", "start.topics[0].window"),
        (vec![start(vec![window("orders", u32::MAX, None)])], "INVALID_FIELD", "start.topics[0].window"),
        (vec![start(vec![window("a b", 1, None)])], "INVALID_FIELD", "start.topics[0].topic"),
        (vec![start(vec![window("orders", 1, None); 2])], "INVALID_FIELD", "start.topics[1].topic"),
        (vec![start(vec![window("orders", 1, Some(span(0, 1)))])], "INVALID_FIELD", "start.topics[0].lease"),
        (vec![start(vec![window("missing", 1, None)])], "TOPIC_NOT_FOUND", ""),
        (vec![good(), good()], "INVALID_FIELD", "start"),
        (vec![good(), settlements(1_001)], "INVALID_FIELD", "settlements"),
    ];
    for (frames, want, field) in cases {
        let mut stream = Consuming::open(&mut queue).await;
        let input = format!("Consume({frames:?})");
        for frame in frames {
            stream.send(frame).await;
        }
        let status = stream.next().await.expect_err(field);
        println!("{input}\t{:?}\t{want}\t{field}\t{}", status.code(), status.message());
        assert_eq!(reason(&status).0, want, "{field}: {status:?}");
        assert_eq!(fields(&status).join(","), field, "{status:?}");
    }
    let mut stream = Consuming::start(&mut queue, "orders", 1).await;
    stream.ack(vec![Bytes::from_static(b"forged")]).await;
    let settled = stream.settled(1).await.remove(0).results;
    let Some(settlement_result::Result::Error(item)) = &settled[0].result else { panic!("{settled:?}") };
    assert_eq!(fields(&item_status(item)), ["settlements.acks[0]"]);
    broker.stop().await.expect("a clean end");
}
