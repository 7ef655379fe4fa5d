//! Bad produces, settlements, fetches, and references to messages.

use bytes::Bytes;
use duewheel::pb;
use duewheel::pb::reschedule_request::Due;
use prost_types::{Duration, Timestamp};
use tonic::Code;

use super::call::{Call, Case, DAY_S, invalid, over, refused, span};

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

pub(crate) fn produce_cases() -> Vec<Case> {
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
        over(to(&"x".repeat(129), 1), "topic", "at most 128"),
        over(to("orders", 0), "messages", "must be 1 to 1000"),
        over(to("orders", 1_001), "messages", "must be 1 to 1000"),
        refused(to("missing", 1), Code::NotFound, "TOPIC_NOT_FOUND"),
        over(changed(|message| message.key = "k".repeat(257)), "messages[0].key", "at most 256"),
        invalid(changed(|message| message.key.push('\u{7}')), "messages[0].key"),
        over(changed(|message| message.dedup_id = "d".repeat(129)), "messages[0].dedup_id", "at most 128"),
        invalid(changed(|message| message.dedup_id.push('\n')), "messages[0].dedup_id"),
        over(changed(|message| message.body = vec![0; 256 * 1024 + 1].into()), "messages[0].body", "at most 262144"),
        over(headers(&many), "messages[0].headers", "at most 32"),
        over(headers(&[(String::new(), "v".to_owned())]), "messages[0].headers", "a name: is required"),
        over(headers(&[("n".repeat(129), String::new())]), "messages[0].headers", "at most 128"),
        invalid(headers(&[("a\tb".to_owned(), String::new())]), "messages[0].headers"),
        over(headers(&[("n".to_owned(), "v".repeat(8 * 1024))]), "messages[0].headers", "at most 8192"),
        invalid(delayed(-1, 0), "messages[0].delay"),
        invalid(delayed(0, -1), "messages[0].delay"),
        invalid(delayed(1, -1), "messages[0].delay"),
        invalid(delayed(0, 1_000_000_000), "messages[0].delay"),
        over(delayed(i64::MAX, i32::MAX), "messages[0].delay", "at most 10,000 years"),
        invalid(delayed(i64::MIN, i32::MIN), "messages[0].delay"),
        over(delayed(400 * DAY_S, 1), "messages[0].delay", "at most 400d"),
        invalid(due_at(0, -1), "messages[0].due_at"),
        over(due_at(i64::MAX, 0), "messages[0].due_at", "the years 1 to 9999"),
        over(due_at(253_402_300_799, 0), "messages[0].due_at", "at most 400d"),
        invalid(tiers(vec![]), "messages[0].schedule.tiers"),
        over(tiers(vec![span(1, 0); 65]), "messages[0].schedule", "at most 64"),
        over(tiers(vec![Duration::default()]), "messages[0].schedule", "at least 1ms"),
        over(tiers(vec![span(3_654 * DAY_S, 0)]), "messages[0].schedule", "at most 3653d"),
        over(tiers(vec![span(401 * DAY_S, 0)]), "messages[0].schedule", "at most 400d"),
        invalid(tiers(vec![span(1, 0), span(-1, 0)]), "messages[0].schedule.tiers[1]"),
        over(changed(|message| message.max_attempts = 10_001), "messages[0].max_attempts", "must be 1 to 10000"),
        invalid(changed(|message| message.key_policy = 77), "messages[0].key_policy"),
    ]
}

pub(crate) fn settle_cases() -> Vec<Case> {
    let forged = || Bytes::from_static(&[7; 36]);
    let nack = |item: pb::NackItem| Call::Nack(pb::NackRequest { nacks: vec![item] });
    let extend = |item: pb::ExtendItem| Call::Extend(pb::ExtendRequest { extends: vec![item] });
    let receipt = |call, field| Case { reason: "RECEIPT_INVALID", ..invalid(call, field) };
    vec![
        over(Call::Ack(pb::AckRequest { receipts: vec![] }), "receipts", "must be 1 to 1000"),
        over(Call::Ack(pb::AckRequest { receipts: vec![Bytes::new(); 1_001] }), "receipts", "must be 1 to 1000"),
        receipt(Call::Ack(pb::AckRequest { receipts: vec![Bytes::new(), forged()] }), "receipts[1]"),
        over(Call::Nack(pb::NackRequest { nacks: vec![] }), "nacks", "must be 1 to 1000"),
        receipt(nack(pb::NackItem { receipt: forged(), ..Default::default() }), "nacks[0].receipt"),
        over(Call::Extend(pb::ExtendRequest { extends: vec![] }), "extends", "must be 1 to 1000"),
        receipt(extend(pb::ExtendItem { receipt: vec![1; 1_000].into(), lease: None }), "extends[0].receipt"),
    ]
}

/// What is wrong apart from the receipt, which is good.
pub(crate) fn settle_cases_with(receipt: &Bytes) -> Vec<Case> {
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
        over(nack(not_yet, Some(span(401 * DAY_S, 0)), String::new()), "nacks[0].delay", "at most 400d"),
        over(nack(not_yet, None, "t".repeat(257)), "nacks[0].text", "at most 256"),
        over(extend(Some(span(0, 99_000_000))), "extends[0].lease", "must be 100ms to 12h"),
        over(extend(Some(span(12 * 3_600, 1))), "extends[0].lease", "must be 100ms to 12h"),
        invalid(extend(Some(span(-1, 0))), "extends[0].lease"),
    ]
}

pub(crate) fn fetch_cases() -> Vec<Case> {
    let fetch = |change: &dyn Fn(&mut pb::FetchRequest)| {
        let mut request = pb::FetchRequest { topic: "orders".to_owned(), ..Default::default() };
        change(&mut request);
        Call::Fetch(request)
    };
    vec![
        invalid(fetch(&|request| request.topic.clear()), "topic"),
        refused(fetch(&|request| "missing".clone_into(&mut request.topic)), Code::NotFound, "TOPIC_NOT_FOUND"),
        over(fetch(&|request| request.max_messages = 1_001), "max_messages", "must be 1 to 1000"),
        over(fetch(&|request| request.max_messages = u32::MAX), "max_messages", "must be 1 to 1000"),
        over(fetch(&|request| request.wait = Some(span(60, 1))), "wait", "at most 1m"),
        invalid(fetch(&|request| request.wait = Some(span(-1, 0))), "wait"),
        over(fetch(&|request| request.lease = Some(span(0, 1))), "lease", "must be 100ms to 12h"),
        over(fetch(&|request| request.lease = Some(span(12 * 3_600, 1))), "lease", "must be 100ms to 12h"),
        over(fetch(&|request| request.consumer = "c".repeat(129)), "consumer", "at most 128"),
    ]
}

pub(crate) fn find_cases(foreign_id: &str) -> Vec<Case> {
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
        refused(get("missing", by_key("k")), Code::NotFound, "TOPIC_NOT_FOUND"),
        refused(get("orders", by_key("nobody")), Code::NotFound, "MESSAGE_NOT_FOUND"),
        refused(get("orders", by_id(foreign_id)), Code::NotFound, "MESSAGE_NOT_FOUND"),
        invalid(get("orders", None), "message"),
        invalid(get("orders", Some(pb::MessageRef { r#ref: None })), "message"),
        invalid(get("orders", by_id("")), "message.id"),
        invalid(get("orders", by_id("not an id")), "message.id"),
        invalid(get("orders", by_id(&"é".repeat(18))), "message.id"),
        invalid(get("orders", by_key("")), "message.key"),
        invalid(cancel(None), "message"),
        invalid(cancel(by_id("zz")), "message.id"),
        over(get("orders", by_key(&"k".repeat(257))), "message.key", "at most 256"),
        invalid(reschedule(None), "due"),
        invalid(reschedule(Some(Due::Delay(span(-1, 0)))), "delay"),
        over(reschedule(Some(Due::Delay(span(401 * DAY_S, 0)))), "delay", "at most 400d"),
        invalid(reschedule(Some(Due::DueAt(Timestamp { seconds: 0, nanos: 1_000_000_000 }))), "due_at"),
    ]
}
