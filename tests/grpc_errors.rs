//! Bad input over a real connection: each is refused with a stable reason and by the name of the field, nothing
//! is stored, and the connection lives on.

mod grpc_harness;

use bytes::{Buf, BufMut, Bytes};
use duewheel::pb::admin_service_client::AdminServiceClient;
use duewheel::pb::consume_request::Frame;
use duewheel::pb::queue_service_client::QueueServiceClient;
use duewheel::pb::reschedule_request::Due;
use duewheel::pb::{self, produce_result, settlement_result};
use prost_types::{Duration, Timestamp};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use grpc_harness::{Consuming, Running, fields, item_status, message, produce, reason, within};

const DAY_S: i64 = 24 * 60 * 60;

/// A request of any method.
enum Call {
    Produce(pb::ProduceRequest),
    Fetch(pb::FetchRequest),
    Ack(pb::AckRequest),
    Nack(pb::NackRequest),
    Extend(pb::ExtendRequest),
    Cancel(pb::CancelRequest),
    Reschedule(pb::RescheduleRequest),
    GetMessage(pb::GetMessageRequest),
    CreateTopic(pb::CreateTopicRequest),
    UpdateTopic(pb::UpdateTopicRequest),
    GetTopic(pb::GetTopicRequest),
    PauseTopic(pb::PauseTopicRequest),
    ListTopics(pb::ListTopicsRequest),
    GetStats(pb::GetStatsRequest),
    ListDeadLetters(pb::ListDeadLettersRequest),
    Redrive(pb::RedriveDeadLettersRequest),
    Purge(pb::PurgeDeadLettersRequest),
    Export(pb::ExportDeadLettersRequest),
    DeleteTopic(pb::DeleteTopicRequest),
}

impl Call {
    /// Makes the call; an error of the last item counts as the error of the call.
    async fn make(self, channel: &Channel) -> Result<(), Status> {
        let mut queue = QueueServiceClient::new(channel.clone());
        let mut admin = AdminServiceClient::new(channel.clone());
        match self {
            Self::Produce(request) => match queue.produce(request).await?.into_inner().results.pop() {
                Some(pb::ProduceResult { result: Some(produce_result::Result::Error(item)) }) => {
                    Err(item_status(&item))
                }
                _ => Ok(()),
            },
            Self::Ack(request) => settled(queue.ack(request).await?.into_inner().results),
            Self::Nack(request) => settled(queue.nack(request).await?.into_inner().results),
            Self::Extend(request) => settled(queue.extend(request).await?.into_inner().results),
            Self::Fetch(request) => queue.fetch(request).await.map(drop),
            Self::Cancel(request) => queue.cancel(request).await.map(drop),
            Self::Reschedule(request) => queue.reschedule(request).await.map(drop),
            Self::GetMessage(request) => queue.get_message(request).await.map(drop),
            Self::CreateTopic(request) => admin.create_topic(request).await.map(drop),
            Self::UpdateTopic(request) => admin.update_topic(request).await.map(drop),
            Self::GetTopic(request) => admin.get_topic(request).await.map(drop),
            Self::PauseTopic(request) => admin.pause_topic(request).await.map(drop),
            Self::ListTopics(request) => admin.list_topics(request).await.map(drop),
            Self::GetStats(request) => admin.get_stats(request).await.map(drop),
            Self::ListDeadLetters(request) => admin.list_dead_letters(request).await.map(drop),
            Self::Redrive(request) => admin.redrive_dead_letters(request).await.map(drop),
            Self::Purge(request) => admin.purge_dead_letters(request).await.map(drop),
            Self::Export(request) => admin.export_dead_letters(request).await.map(drop),
            Self::DeleteTopic(request) => admin.delete_topic(request).await.map(drop),
        }
    }
}

fn settled(mut results: Vec<pb::SettlementResult>) -> Result<(), Status> {
    match results.pop() {
        Some(pb::SettlementResult { result: Some(settlement_result::Result::Error(item)) }) => Err(item_status(&item)),
        _ => Ok(()),
    }
}

/// What is sent, and how it must be refused: code, reason, field (empty: none).
type Case = (Call, Code, &'static str, &'static str);

fn span(seconds: i64, nanos: i32) -> Duration {
    Duration { seconds, nanos }
}

/// A produce of a good message and of a changed one, which must be refused alone.
fn changed(change: impl FnOnce(&mut pb::NewMessage)) -> Call {
    let mut bad = pb::NewMessage::default();
    change(&mut bad);
    Call::Produce(pb::ProduceRequest { topic: "orders".to_owned(), messages: vec![bad] })
}

fn delayed(seconds: i64, nanos: i32) -> Call {
    let delay = Duration { seconds, nanos };
    changed(|message| message.first_wait = Some(pb::new_message::FirstWait::Delay(delay)))
}

fn due_at(seconds: i64, nanos: i32) -> Call {
    let at = Timestamp { seconds, nanos };
    changed(|message| message.first_wait = Some(pb::new_message::FirstWait::DueAt(at)))
}

fn tiers(tiers: Vec<Duration>) -> Call {
    changed(|message| message.schedule = Some(pb::RetrySchedule { tiers }))
}

fn invalid(call: Call, field: &'static str) -> Case {
    (call, Code::InvalidArgument, "INVALID_FIELD", field)
}

fn produce_cases() -> Vec<Case> {
    let to = |topic: &str, count: usize| {
        let messages = vec![pb::NewMessage::default(); count];
        Call::Produce(pb::ProduceRequest { topic: topic.to_owned(), messages })
    };
    let headers = |pairs: &[(String, String)]| {
        let pairs = pairs.iter().cloned().collect();
        changed(|message| message.headers = pairs)
    };
    let many: Vec<_> = (0..33).map(|n| (n.to_string(), String::new())).collect();
    vec![
        invalid(to("", 1), "topic"),
        invalid(to("no spaces", 1), "topic"),
        invalid(to(&"x".repeat(129), 1), "topic"),
        invalid(to("orders", 0), "messages"),
        invalid(to("orders", 1_001), "messages"),
        (to("missing", 1), Code::NotFound, "TOPIC_NOT_FOUND", ""),
        invalid(changed(|message| message.key = "k".repeat(257)), "messages[0].key"),
        invalid(changed(|message| message.key.push('\u{7}')), "messages[0].key"),
        invalid(changed(|message| message.dedup_id = "d".repeat(129)), "messages[0].dedup_id"),
        invalid(changed(|message| message.body = vec![0; 256 * 1024 + 1].into()), "messages[0].body"),
        invalid(headers(&many), "messages[0].headers"),
        invalid(headers(&[(String::new(), "v".to_owned())]), "messages[0].headers"),
        invalid(headers(&[("n".to_owned(), "v".repeat(8 * 1024))]), "messages[0].headers"),
        invalid(delayed(-1, 0), "messages[0].delay"),
        invalid(delayed(0, -1), "messages[0].delay"),
        invalid(delayed(1, -1), "messages[0].delay"),
        invalid(delayed(0, 1_000_000_000), "messages[0].delay"),
        invalid(delayed(i64::MAX, i32::MAX), "messages[0].delay"),
        invalid(delayed(i64::MIN, i32::MIN), "messages[0].delay"),
        invalid(delayed(400 * DAY_S, 1), "messages[0].delay"),
        invalid(due_at(0, -1), "messages[0].due_at"),
        invalid(due_at(i64::MAX, 0), "messages[0].due_at"),
        invalid(due_at(253_402_300_799, 0), "messages[0].due_at"),
        invalid(tiers(vec![]), "messages[0].schedule.tiers"),
        invalid(tiers(vec![span(1, 0); 65]), "messages[0].schedule"),
        invalid(tiers(vec![Duration::default()]), "messages[0].schedule"),
        invalid(tiers(vec![span(401 * DAY_S, 0)]), "messages[0].schedule"),
        invalid(tiers(vec![span(1, 0), span(-1, 0)]), "messages[0].schedule.tiers[1]"),
        invalid(changed(|message| message.max_attempts = 10_001), "messages[0].max_attempts"),
        invalid(changed(|message| message.key_policy = 77), "messages[0].key_policy"),
    ]
}

fn settle_cases() -> Vec<Case> {
    let forged = || Bytes::from_static(&[7; 36]);
    let nack = |item: pb::NackItem| Call::Nack(pb::NackRequest { nacks: vec![item] });
    let extend = |item: pb::ExtendItem| Call::Extend(pb::ExtendRequest { extends: vec![item] });
    let receipt = |call, field| (call, Code::InvalidArgument, "RECEIPT_INVALID", field);
    vec![
        invalid(Call::Ack(pb::AckRequest { receipts: vec![] }), "receipts"),
        invalid(Call::Ack(pb::AckRequest { receipts: vec![Bytes::new(); 1_001] }), "receipts"),
        receipt(Call::Ack(pb::AckRequest { receipts: vec![Bytes::new(), forged()] }), "receipts[1]"),
        invalid(Call::Nack(pb::NackRequest { nacks: vec![] }), "nacks"),
        receipt(nack(pb::NackItem { receipt: forged(), ..Default::default() }), "nacks[0].receipt"),
        invalid(Call::Extend(pb::ExtendRequest { extends: vec![] }), "extends"),
        receipt(extend(pb::ExtendItem { receipt: vec![1; 1_000].into(), lease: None }), "extends[0].receipt"),
    ]
}

/// What is wrong apart from the receipt, which is good.
fn settle_cases_with(receipt: &Bytes) -> Vec<Case> {
    let nack = |reason: i32, delay: Option<Duration>, text: String| {
        let item = pb::NackItem { receipt: receipt.clone(), reason, delay, text };
        Call::Nack(pb::NackRequest { nacks: vec![item] })
    };
    let extend = |lease: Option<Duration>| {
        let item = pb::ExtendItem { receipt: receipt.clone(), lease };
        Call::Extend(pb::ExtendRequest { extends: vec![item] })
    };
    let (not_yet, dead) = (pb::NackReason::NotYet.into(), pb::NackReason::Dead.into());
    vec![
        invalid(nack(0, None, String::new()), "nacks[0].reason"),
        invalid(nack(99, None, String::new()), "nacks[0].reason"),
        invalid(nack(dead, Some(span(1, 0)), String::new()), "nacks[0].delay"),
        invalid(nack(not_yet, Some(span(-1, 0)), String::new()), "nacks[0].delay"),
        invalid(nack(not_yet, Some(span(401 * DAY_S, 0)), String::new()), "nacks[0].delay"),
        invalid(nack(not_yet, None, "t".repeat(257)), "nacks[0].text"),
        invalid(extend(Some(span(0, 99_000_000))), "extends[0].lease"),
        invalid(extend(Some(span(12 * 3_600, 1))), "extends[0].lease"),
        invalid(extend(Some(span(-1, 0))), "extends[0].lease"),
    ]
}

fn fetch_cases() -> Vec<Case> {
    let fetch = |change: &dyn Fn(&mut pb::FetchRequest)| {
        let mut request = pb::FetchRequest { topic: "orders".to_owned(), ..Default::default() };
        change(&mut request);
        Call::Fetch(request)
    };
    vec![
        invalid(fetch(&|request| request.topic.clear()), "topic"),
        (fetch(&|request| "missing".clone_into(&mut request.topic)), Code::NotFound, "TOPIC_NOT_FOUND", ""),
        invalid(fetch(&|request| request.max_messages = 1_001), "max_messages"),
        invalid(fetch(&|request| request.max_messages = u32::MAX), "max_messages"),
        invalid(fetch(&|request| request.wait = Some(span(60, 1))), "wait"),
        invalid(fetch(&|request| request.wait = Some(span(-1, 0))), "wait"),
        invalid(fetch(&|request| request.lease = Some(span(0, 1))), "lease"),
        invalid(fetch(&|request| request.lease = Some(span(12 * 3_600, 1))), "lease"),
        invalid(fetch(&|request| request.consumer = "c".repeat(129)), "consumer"),
    ]
}

fn find_cases(foreign_id: &str) -> Vec<Case> {
    let by_id = |id: &str| Some(pb::MessageRef { r#ref: Some(pb::message_ref::Ref::Id(id.to_owned())) });
    let by_key = |key: &str| Some(pb::MessageRef { r#ref: Some(pb::message_ref::Ref::Key(key.to_owned())) });
    let get = |topic: &str, message| {
        Call::GetMessage(pb::GetMessageRequest { topic: topic.to_owned(), message, omit_body: false })
    };
    let reschedule =
        |due| Call::Reschedule(pb::RescheduleRequest { topic: "orders".to_owned(), message: by_key("k"), due });
    let cancel =
        |message| Call::Cancel(pb::CancelRequest { topic: "orders".to_owned(), message, when_lease_ends: false });
    vec![
        invalid(get("", by_key("k")), "topic"),
        (get("missing", by_key("k")), Code::NotFound, "TOPIC_NOT_FOUND", ""),
        (get("orders", by_key("nobody")), Code::NotFound, "MESSAGE_NOT_FOUND", ""),
        (get("orders", by_id(foreign_id)), Code::NotFound, "MESSAGE_NOT_FOUND", ""),
        invalid(get("orders", None), "message"),
        invalid(get("orders", Some(pb::MessageRef { r#ref: None })), "message"),
        invalid(get("orders", by_id("")), "message.id"),
        invalid(get("orders", by_id("not an id")), "message.id"),
        invalid(get("orders", by_id(&"é".repeat(18))), "message.id"),
        invalid(get("orders", by_key("")), "message.key"),
        invalid(cancel(None), "message"),
        invalid(cancel(by_id("zz")), "message.id"),
        invalid(reschedule(None), "due"),
        invalid(reschedule(Some(Due::Delay(span(-1, 0)))), "delay"),
        invalid(reschedule(Some(Due::Delay(span(401 * DAY_S, 0)))), "delay"),
        invalid(reschedule(Some(Due::DueAt(Timestamp { seconds: 0, nanos: 1_000_000_000 }))), "due_at"),
    ]
}

fn topic_cases() -> Vec<Case> {
    let create = |change: &dyn Fn(&mut pb::TopicSettings)| {
        let mut settings = pb::TopicSettings::default();
        change(&mut settings);
        Call::CreateTopic(pb::CreateTopicRequest { name: "new".to_owned(), settings: Some(settings) })
    };
    let named = |name: &str| Call::CreateTopic(pb::CreateTopicRequest { name: name.to_owned(), settings: None });
    let update = |name: &str, paths: &[&str], settings: pb::TopicSettings| {
        let update_mask = Some(prost_types::FieldMask { paths: paths.iter().map(|&path| path.to_owned()).collect() });
        Call::UpdateTopic(pb::UpdateTopicRequest { name: name.to_owned(), settings: Some(settings), update_mask })
    };
    let none = pb::TopicSettings::default;
    let tiers = |tiers| Some(pb::RetrySchedule { tiers });
    vec![
        invalid(named(""), "name"),
        invalid(named("-x"), "name"),
        (named("orders"), Code::AlreadyExists, "TOPIC_EXISTS", ""),
        invalid(create(&|settings| settings.schedule = tiers(vec![])), "settings.schedule"),
        invalid(create(&|settings| settings.schedule = tiers(vec![span(0, -5)])), "settings.schedule.tiers[0]"),
        invalid(create(&|settings| settings.max_attempts = 10_001), "settings.max_attempts"),
        invalid(create(&|settings| settings.max_deliveries = 100_001), "settings.max_deliveries"),
        invalid(create(&|settings| settings.lease = Some(span(0, 1))), "settings.lease"),
        invalid(create(&|settings| settings.min_redelivery_gap = Some(span(3_601, 0))), "settings.min_redelivery_gap"),
        invalid(create(&|settings| settings.max_returns = 1_001), "settings.max_returns"),
        invalid(
            create(&|settings| settings.rate = Some(pb::RateCap { deliveries: 0, period: None })),
            "settings.rate.deliveries",
        ),
        invalid(
            create(&|settings| settings.rate = Some(pb::RateCap { deliveries: 1, period: Some(span(-1, 0)) })),
            "settings.rate.period",
        ),
        invalid(
            create(&|settings| settings.rate = Some(pb::RateCap { deliveries: 1_000_000, period: Some(span(0, 1)) })),
            "settings.rate",
        ),
        invalid(create(&|settings| settings.concurrency = 1_000_001), "settings.concurrency"),
        invalid(create(&|settings| settings.jitter_percent = 101), "settings.jitter_percent"),
        invalid(create(&|settings| settings.dedup_window = Some(span(0, 1))), "settings.dedup_window"),
        invalid(create(&|settings| settings.dedup_capacity = 10_000_001), "settings.dedup_capacity"),
        invalid(create(&|settings| settings.history_count = Some(1_000_001)), "settings.history_count"),
        invalid(create(&|settings| settings.history_age = Some(span(31 * DAY_S, 0))), "settings.history_age"),
        invalid(update("orders", &[], none()), "update_mask"),
        invalid(update("orders", &["max_attempts", "color"], none()), "update_mask"),
        invalid(
            update("orders", &["lease"], pb::TopicSettings { lease: Some(span(0, 1)), ..none() }),
            "settings.lease",
        ),
        (update("missing", &["lease"], none()), Code::NotFound, "TOPIC_NOT_FOUND", ""),
        (Call::GetTopic(pb::GetTopicRequest { name: "missing".to_owned() }), Code::NotFound, "TOPIC_NOT_FOUND", ""),
        invalid(Call::PauseTopic(pb::PauseTopicRequest { name: "a b".to_owned() }), "name"),
        (
            Call::GetStats(pb::GetStatsRequest { topic: "missing".to_owned(), timeline: true }),
            Code::NotFound,
            "TOPIC_NOT_FOUND",
            "",
        ),
    ]
}

fn listing_cases(topics_token: &str) -> Vec<Case> {
    let topics =
        |page_size, token: &str| Call::ListTopics(pb::ListTopicsRequest { page_size, page_token: token.to_owned() });
    let dead = |topic: &str, page_size, token: &str| {
        let page_token = token.to_owned();
        Call::ListDeadLetters(pb::ListDeadLettersRequest {
            topic: topic.to_owned(),
            page_size,
            page_token,
            filter: None,
        })
    };
    let redrive = |topic: &str, ids: Vec<String>| {
        Call::Redrive(pb::RedriveDeadLettersRequest { topic: topic.to_owned(), ids, ..Default::default() })
    };
    vec![
        invalid(topics(1_001, ""), "page_size"),
        invalid(topics(1, "zz"), "page_token"),
        invalid(topics(1, &topics_token[2..]), "page_token"),
        invalid(dead("orders", 1_001, ""), "page_size"),
        invalid(dead("orders", 1, topics_token), "page_token"),
        (dead("missing", 1, ""), Code::NotFound, "TOPIC_NOT_FOUND", ""),
        invalid(redrive("orders", vec![]), "ids"),
        invalid(redrive("orders", vec!["x".to_owned()]), "ids[0]"),
        invalid(redrive("orders", vec![String::new(); 1_001]), "ids"),
        (redrive("missing", vec!["0".repeat(36)]), Code::NotFound, "TOPIC_NOT_FOUND", ""),
    ]
}

fn dead_letter_cases() -> Vec<Case> {
    let filter = |change: &dyn Fn(&mut pb::DeadLetterFilter)| {
        let mut filter = pb::DeadLetterFilter::default();
        change(&mut filter);
        Some(filter)
    };
    let all = || filter(&|_| {});
    let redrive = |change: &dyn Fn(&mut pb::RedriveDeadLettersRequest)| {
        let mut request = pb::RedriveDeadLettersRequest { topic: "orders".to_owned(), ..Default::default() };
        change(&mut request);
        Call::Redrive(request)
    };
    let filtered = |filter| redrive(&|request| request.filter.clone_from(&filter));
    let purge = |topic: &str, filter, rate_per_second| {
        let topic = topic.to_owned();
        Call::Purge(pb::PurgeDeadLettersRequest { topic, filter, rate_per_second, ..Default::default() })
    };
    let export = |topic: &str, filter| Call::Export(pb::ExportDeadLettersRequest { topic: topic.to_owned(), filter });
    let list = |filter| {
        Call::ListDeadLetters(pb::ListDeadLettersRequest { topic: "orders".to_owned(), filter, ..Default::default() })
    };
    let delete = |name: &str| Call::DeleteTopic(pb::DeleteTopicRequest { name: name.to_owned(), purge: true });
    let id = || vec!["0".repeat(36)];
    vec![
        invalid(redrive(&|request| (request.ids, request.filter) = (id(), all())), "filter"),
        invalid(redrive(&|request| (request.ids, request.limit) = (id(), 1)), "limit"),
        invalid(redrive(&|request| (request.ids, request.rate_per_second) = (id(), 10_001)), "rate_per_second"),
        invalid(filtered(filter(&|filter| filter.reason = 99)), "filter.reason"),
        invalid(filtered(filter(&|filter| filter.key = "k".repeat(257))), "filter.key"),
        invalid(filtered(filter(&|filter| filter.error_text = "t".repeat(257))), "filter.error_text"),
        invalid(
            filtered(filter(&|filter| {
                filter.died_from = Some(Timestamp { seconds: 0, nanos: -1 });
            })),
            "filter.died_from",
        ),
        invalid(
            filtered(filter(&|filter| {
                filter.died_from = Some(Timestamp { seconds: 9, nanos: 0 });
                filter.died_before = filter.died_from;
            })),
            "filter.died_before",
        ),
        invalid(list(filter(&|filter| filter.reason = -1)), "filter.reason"),
        invalid(purge("orders", None, 0), "ids"),
        invalid(purge("orders", all(), u32::MAX), "rate_per_second"),
        (purge("missing", all(), 0), Code::NotFound, "TOPIC_NOT_FOUND", ""),
        invalid(export("a b", None), "topic"),
        invalid(export("orders", filter(&|filter| filter.key = "k".repeat(257))), "filter.key"),
        (export("missing", None), Code::NotFound, "TOPIC_NOT_FOUND", ""),
        invalid(delete(""), "name"),
        (delete("missing"), Code::NotFound, "TOPIC_NOT_FOUND", ""),
    ]
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
    let receipt = queue.fetch(fetch).await.expect("the message").into_inner().deliveries.remove(0).receipt;
    let mut admin = AdminServiceClient::new(channel.clone());
    let page = pb::ListTopicsRequest { page_size: 1, page_token: String::new() };
    let token = admin.list_topics(page).await.expect("a page").into_inner().next_page_token;

    let mut cases = produce_cases();
    cases.extend(settle_cases());
    cases.extend(settle_cases_with(&receipt));
    cases.extend(fetch_cases());
    cases.extend(find_cases(&foreign_id));
    cases.extend(topic_cases());
    cases.extend(listing_cases(&token));
    cases.extend(dead_letter_cases());
    for (number, (call, code, want, field)) in cases.into_iter().enumerate() {
        let case = format!("case {number}, {want} {field}");
        let status = within(call.make(&channel)).await.expect_err(&case);
        assert_eq!(status.code(), code, "{case}: {status:?}");
        assert_eq!(reason(&status), (want.to_owned(), "not_done".to_owned()), "{case}");
        let named: Vec<&str> = if field.is_empty() { vec![] } else { vec![field] };
        assert_eq!(fields(&status), named, "{case}");
        assert!(status.message().starts_with(field), "{case}: the message names the field too: {status:?}");
    }

    assert_eq!(broker.stats("orders").await.produced, 0);
    let other = broker.stats("other").await;
    assert_eq!((other.produced, other.leased, other.acked), (1, 1, 0), "the lease is as it was");
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
        (vec![start(vec![window("a b", 1, None)])], "INVALID_FIELD", "start.topics[0].topic"),
        (vec![start(vec![window("orders", 1, None); 2])], "INVALID_FIELD", "start.topics[1].topic"),
        (vec![start(vec![window("orders", 1, Some(span(0, 1)))])], "INVALID_FIELD", "start.topics[0].lease"),
        (vec![start(vec![window("missing", 1, None)])], "TOPIC_NOT_FOUND", ""),
        (vec![good(), good()], "INVALID_FIELD", "start"),
        (vec![good(), settlements(1_001)], "INVALID_FIELD", "settlements"),
    ];
    for (frames, want, field) in cases {
        let mut stream = Consuming::open(&mut queue).await;
        for frame in frames {
            stream.send(frame).await;
        }
        let status = stream.next().await.expect_err(field);
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

/// Sends bytes as they are.
#[derive(Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buf.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buf.copy_to_bytes(buf.remaining())))
    }
}

#[tokio::test]
async fn what_is_no_request_at_all_gets_a_clean_status_and_the_connection_lives() {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let channel = broker.connect().await;
    let cases: [(&str, &str, Vec<u8>, Code); 5] = [
        ("an unknown method", "/duewheel.v1.QueueService/Nothing", vec![], Code::Unimplemented),
        ("a cut field", "/duewheel.v1.QueueService/Produce", vec![0x0a, 0x7f, b'x'], Code::Internal),
        ("a topic that is not UTF-8", "/duewheel.v1.QueueService/Produce", vec![0x0a, 1, 0xff], Code::Internal),
        ("a wrong wire type", "/duewheel.v1.QueueService/Ack", vec![0x0f], Code::Internal),
        ("more than the limit", "/duewheel.v1.QueueService/Produce", vec![0; 17 * 1024 * 1024], Code::OutOfRange),
    ];
    for (what, path, bytes, code) in cases {
        let mut client = tonic::client::Grpc::new(channel.clone());
        client.ready().await.expect(what);
        let path = path.parse().expect("a path");
        let status = within(client.unary(Request::new(Bytes::from(bytes)), path, Raw)).await.expect_err(what);
        assert_eq!(status.code(), code, "{what}: {status:?}");
    }
    let mut queue = QueueServiceClient::new(channel);
    produce(&mut queue, "orders", vec![message("k", "still works")]).await;
    assert_eq!(broker.stats("orders").await.produced, 1);
    broker.stop().await.expect("a clean end");
}
