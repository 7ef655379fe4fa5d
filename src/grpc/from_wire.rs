//! Requests of the queue service, parsed into domain types.
//!
//! Only form is judged here. Limits are the queue's and the engine's to check, and their refusals come back with
//! the same field names; windows are the exception, because only here the place in the list is known.

use bytes::Bytes;

use super::batch::{Batch, check_count};
use super::errors::Fault;
use super::time::{instant, span_ms, span_within};
use crate::engine::{Fetch, Window};
use crate::pb;
use crate::queue::command::{Command, Due, KeyPolicy, Nack, NackReason, Produce, Target};
use crate::queue::limits::{MAX_BATCH, MAX_LEASE_MS, MAX_STREAM_TOPICS, MAX_WINDOW, MIN_LEASE_MS};
use crate::queue::receipt::{Receipt, ReceiptKey};
use crate::queue::schedule::RetrySchedule;
use crate::queue::values::{ConsumerName, DedupId, Headers, Key, NackText, TopicName};

/// The topic named in the field at `path`.
pub(super) fn topic(path: &str, name: &str) -> Result<TopicName, Fault> {
    TopicName::parse(name).map_err(|invalid| Fault::invalid(path, invalid.problem))
}

/// The messages of a produce.
pub(super) fn produce(name: &str, messages: Vec<pb::NewMessage>) -> Result<Batch, Fault> {
    let topic = topic("topic", name)?;
    check_count("messages", messages.len())?;
    let mut batch = Batch::with_capacity(messages.len());
    batch.extend("messages", messages, |message| new_message(&topic, message).map(Command::Produce));
    Ok(batch)
}

fn new_message(topic: &TopicName, message: pb::NewMessage) -> Result<Produce, Fault> {
    let key_policy = match pb::KeyPolicy::try_from(message.key_policy) {
        Ok(pb::KeyPolicy::Unspecified | pb::KeyPolicy::Reject) => KeyPolicy::Reject,
        Ok(pb::KeyPolicy::Replace) => KeyPolicy::Replace,
        Ok(pb::KeyPolicy::Keep) => KeyPolicy::Keep,
        Err(_) => return Err(unknown("key_policy", message.key_policy)),
    };
    Ok(Produce {
        topic: topic.clone(),
        key: optional(&message.key, Key::parse)?,
        headers: Headers::parse(message.headers)?,
        // On the wire a body is a part of the buffer of its frame, 8 KiB at least, and would keep all of it.
        body: Bytes::copy_from_slice(&message.body),
        due: message.first_wait.map(first_wait).transpose()?,
        schedule: message.schedule.as_ref().map(message_schedule).transpose()?,
        max_attempts: Some(message.max_attempts).filter(|&max| max > 0),
        key_policy,
        dedup_id: optional(&message.dedup_id, DedupId::parse)?,
    })
}

/// An empty text means that the field is not set.
pub(super) fn optional<T, E: Into<Fault>>(
    text: &str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<Option<T>, Fault> {
    if text.is_empty() { Ok(None) } else { parse(text).map(Some).map_err(Into::into) }
}

/// A number that is none of an enum's.
pub(super) fn unknown(path: &str, number: i32) -> Fault {
    Fault::invalid(path, format!("{number} is not a value of this enum"))
}

fn first_wait(wait: pb::new_message::FirstWait) -> Result<Due, Fault> {
    match wait {
        pb::new_message::FirstWait::Delay(span) => span_ms("delay", span).map(Due::After),
        pb::new_message::FirstWait::DueAt(at) => instant("due_at", at).map(Due::At),
    }
}

fn message_schedule(wire: &pb::RetrySchedule) -> Result<RetrySchedule, Fault> {
    if wire.tiers.is_empty() {
        let problem = "must have at least one tier; leave `schedule` unset for the topic's";
        return Err(Fault::invalid("schedule.tiers", problem));
    }
    schedule("schedule", wire)
}

/// The schedule in `field`; it may be empty.
pub(super) fn schedule(field: &'static str, wire: &pb::RetrySchedule) -> Result<RetrySchedule, Fault> {
    let tier = |(index, span): (usize, &prost_types::Duration)| span_ms(&format!("{field}.tiers[{index}]"), *span);
    let tiers = wire.tiers.iter().enumerate().map(tier).collect::<Result<Vec<u64>, Fault>>()?;
    Ok(RetrySchedule::new(field, &tiers)?)
}

/// The receipts of an ack.
pub(super) fn acks(receipts: Vec<Bytes>, key: &ReceiptKey) -> Result<Batch, Fault> {
    check_count("receipts", receipts.len())?;
    let mut batch = Batch::with_capacity(receipts.len());
    batch.extend("receipts", receipts, |sealed| ack(&sealed, key));
    Ok(batch)
}

/// The nacks of a request.
pub(super) fn nacks(nacks: Vec<pb::NackItem>, key: &ReceiptKey) -> Result<Batch, Fault> {
    check_count("nacks", nacks.len())?;
    let mut batch = Batch::with_capacity(nacks.len());
    batch.extend("nacks", nacks, |item| nack(&item, key));
    Ok(batch)
}

/// The extensions of a request.
pub(super) fn extends(extends: Vec<pb::ExtendItem>, key: &ReceiptKey) -> Result<Batch, Fault> {
    check_count("extends", extends.len())?;
    let mut batch = Batch::with_capacity(extends.len());
    batch.extend("extends", extends, |item| extend(&item, key));
    Ok(batch)
}

/// The settlements of a consume frame, in the order acks, nacks, extends; there may be none.
pub(super) fn settlements(frame: pb::Settlements, key: &ReceiptKey) -> Result<Batch, Fault> {
    let count = frame.acks.len() + frame.nacks.len() + frame.extends.len();
    if count > MAX_BATCH {
        return Err(Fault::invalid("settlements", format!("{count} items; at most {MAX_BATCH} in all")));
    }
    let mut batch = Batch::with_capacity(count);
    batch.extend("settlements.acks", frame.acks, |sealed| ack(&sealed, key));
    batch.extend("settlements.nacks", frame.nacks, |item| nack(&item, key));
    batch.extend("settlements.extends", frame.extends, |item| extend(&item, key));
    Ok(batch)
}

fn ack(sealed: &[u8], key: &ReceiptKey) -> Result<Command, Fault> {
    // The item itself is the receipt, so the field has no name below the item.
    receipt("", sealed, key).map(Command::Ack)
}

fn receipt(path: &str, sealed: &[u8], key: &ReceiptKey) -> Result<Receipt, Fault> {
    key.open(sealed).map_err(|_| Fault::receipt(path))
}

fn nack(item: &pb::NackItem, key: &ReceiptKey) -> Result<Command, Fault> {
    let receipt = receipt("receipt", &item.receipt, key)?;
    let delay_ms = item.delay.map(|span| span_ms("delay", span)).transpose()?;
    let reason = match pb::NackReason::try_from(item.reason) {
        Ok(pb::NackReason::NotYet) => NackReason::NotYet(delay_ms),
        Ok(pb::NackReason::Failed) => NackReason::Failed(delay_ms),
        Ok(pb::NackReason::Dead) if delay_ms.is_some() => {
            return Err(Fault::invalid("delay", "is not allowed with NACK_REASON_DEAD"));
        }
        Ok(pb::NackReason::Dead) => NackReason::Dead,
        Ok(pb::NackReason::Unspecified) => return Err(Fault::invalid("reason", "is required")),
        Err(_) => return Err(unknown("reason", item.reason)),
    };
    Ok(Command::Nack(Nack { receipt, reason, text: NackText::parse(&item.text)? }))
}

fn extend(item: &pb::ExtendItem, key: &ReceiptKey) -> Result<Command, Fault> {
    let receipt = receipt("receipt", &item.receipt, key)?;
    Ok(Command::Extend { receipt, lease_ms: lease(item.lease)? })
}

fn lease(span: Option<prost_types::Duration>) -> Result<Option<u64>, Fault> {
    span.map(|span| span_ms("lease", span)).transpose()
}

/// A fetch.
pub(super) fn fetch(request: &pb::FetchRequest) -> Result<Fetch, Fault> {
    Ok(Fetch {
        topic: topic("topic", &request.topic)?,
        consumer_name: ConsumerName::parse(&request.consumer)?,
        max: usize::try_from(request.max_messages.max(1)).expect("u32 fits usize"),
        wait_ms: request.wait.map_or(Ok(0), |span| span_ms("wait", span))?,
        lease_ms: lease(request.lease)?,
    })
}

/// The start of a consume stream; paths are relative to `start`.
pub(super) fn start(start: &pb::ConsumeStart) -> Result<(ConsumerName, Vec<Window>), Fault> {
    let count = start.topics.len();
    if !(1..=MAX_STREAM_TOPICS).contains(&count) {
        return Err(Fault::invalid("topics", format!("{count} topics; must be 1 to {MAX_STREAM_TOPICS}")));
    }
    let consumer_name = ConsumerName::parse(&start.consumer)?;
    let mut windows: Vec<Window> = Vec::with_capacity(count);
    for (index, wire) in start.topics.iter().enumerate() {
        let path = format!("topics[{index}]");
        let window = window(wire).map_err(|fault| fault.under(&path))?;
        if windows.iter().any(|other| other.topic == window.topic) {
            let problem = format!("'{}' is listed twice", window.topic);
            return Err(Fault::invalid("topic", problem).under(&path));
        }
        windows.push(window);
    }
    Ok((consumer_name, windows))
}

fn window(wire: &pb::TopicWindow) -> Result<Window, Fault> {
    let topic = topic("topic", &wire.topic)?;
    if !(1..=MAX_WINDOW).contains(&wire.window) {
        return Err(Fault::invalid("window", format!("{}; must be 1 to {MAX_WINDOW}", wire.window)));
    }
    let lease = wire.lease.map(|span| span_within("lease", span, MIN_LEASE_MS, MAX_LEASE_MS)).transpose()?;
    Ok(Window { topic, window: wire.window, lease_ms: lease })
}

/// The message that a request refers to, and its topic.
pub(super) fn target(name: &str, message: Option<pb::MessageRef>) -> Result<(TopicName, Target), Fault> {
    let topic = topic("topic", name)?;
    let target = match message.and_then(|message| message.r#ref) {
        Some(pb::message_ref::Ref::Id(id)) => {
            let id = id.parse().map_err(|_| Fault::invalid("message.id", "is not a message id"))?;
            Target::Id(id)
        }
        Some(pb::message_ref::Ref::Key(key)) => {
            let key = Key::parse(&key).map_err(|invalid| Fault::from(invalid).under("message"))?;
            Target::Key(key)
        }
        None => return Err(Fault::invalid("message", "is required: an id or a key")),
    };
    Ok((topic, target))
}

/// A cancel.
pub(super) fn cancel(request: pb::CancelRequest) -> Result<Command, Fault> {
    let (topic, target) = target(&request.topic, request.message)?;
    Ok(Command::Cancel { topic, target, when_lease_ends: request.when_lease_ends })
}

/// A reschedule.
pub(super) fn reschedule(request: pb::RescheduleRequest) -> Result<Command, Fault> {
    let (topic, target) = target(&request.topic, request.message)?;
    let due = match request.due {
        Some(pb::reschedule_request::Due::Delay(span)) => Due::After(span_ms("delay", span)?),
        Some(pb::reschedule_request::Due::DueAt(at)) => Due::At(instant("due_at", at)?),
        None => return Err(Fault::invalid("due", "is required: a delay or due_at")),
    };
    Ok(Command::Reschedule { topic, target, due })
}
