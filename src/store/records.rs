//! Byte layouts of the domain's records, shared by the journal and the pages. `docs/storage.md` has the tables.

use std::sync::Arc;

use bytes::Bytes;

use crate::queue::change::{DedupRecord, Finished, OpenLease, Outcome, TopicRecord, Totals};
use crate::queue::message::{
    AttemptHistory, Content, DeadReason, DeliveryOutcome, HistoryEntry, Message, MessageId, Place, Progress, TopicId,
};
use crate::queue::quarantine::DamagedPart;
use crate::queue::schedule::RetrySchedule;
use crate::queue::settings::{RateCap, TopicSettings};
use crate::queue::time::Timestamp;
use crate::queue::values::{ConsumerName, DedupId, Headers, Key, NackText, TopicName};

use super::codec::{Malformed, Reader, put_bytes, put_text, put_u32, put_u64};

pub(super) fn put_time(out: &mut Vec<u8>, at: Timestamp) {
    put_u64(out, at.as_millis());
}

pub(super) fn time(input: &mut Reader<'_>) -> Result<Timestamp, Malformed> {
    Ok(Timestamp::from_millis(input.u64()?))
}

pub(super) fn put_id(out: &mut Vec<u8>, id: MessageId) {
    put_u32(out, id.topic.0);
    put_time(out, id.birth_due);
    put_u64(out, id.arrival);
}

pub(super) fn id(input: &mut Reader<'_>) -> Result<MessageId, Malformed> {
    Ok(MessageId { topic: TopicId(input.u32()?), birth_due: time(input)?, arrival: input.u64()? })
}

pub(super) fn put_place(out: &mut Vec<u8>, place: Place) {
    let (tag, at) = match place {
        Place::Due(at) => (0, at),
        Place::Dead(at) => (1, at),
    };
    out.push(tag);
    put_time(out, at);
}

pub(super) fn place(input: &mut Reader<'_>) -> Result<Place, Malformed> {
    match input.u8()? {
        0 => Ok(Place::Due(time(input)?)),
        1 => Ok(Place::Dead(time(input)?)),
        _ => Err(Malformed("an unknown place")),
    }
}

/// Writes whether there is a value, and the value.
pub(super) fn put_option<T>(out: &mut Vec<u8>, value: Option<T>, put: impl FnOnce(&mut Vec<u8>, T)) {
    match value {
        None => out.push(0),
        Some(value) => {
            out.push(1);
            put(out, value);
        }
    }
}

pub(super) fn option<'a, T>(
    input: &mut Reader<'a>,
    read: impl FnOnce(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<Option<T>, Malformed> {
    match input.u8()? {
        0 => Ok(None),
        1 => read(input).map(Some),
        _ => Err(Malformed("an unknown option tag")),
    }
}

pub(super) fn flag(input: &mut Reader<'_>) -> Result<bool, Malformed> {
    match input.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed("an unknown flag")),
    }
}

pub(super) fn put_message(out: &mut Vec<u8>, message: &Message) {
    put_id(out, message.id);
    put_progress(out, &message.progress);
    match &message.history {
        None => put_u64(out, 0),
        Some(history) => {
            put_u64(out, history.len() as u64 + 1);
            put_u32(out, history.omitted());
            history.iter().for_each(|entry| put_entry(out, entry));
        }
    }
    put_content(out, &message.content);
}

pub(super) fn message(input: &mut Reader<'_>) -> Result<Message, Malformed> {
    let id = id(input)?;
    let progress = progress(input)?;
    let history = match input.count()? {
        0 => None,
        n => {
            let omitted = input.u32()?;
            let entries = (1..n).map(|_| entry(input)).collect::<Result<Vec<_>, _>>()?;
            Some(Arc::new(AttemptHistory::from_parts(entries, omitted)))
        }
    };
    Ok(Message { id, content: Arc::new(content(input)?), progress, history })
}

fn put_content(out: &mut Vec<u8>, content: &Content) {
    put_option(out, content.key.as_ref(), |out, key| put_text(out, key.as_str()));
    put_u64(out, content.headers.iter().len() as u64);
    for (name, value) in content.headers.iter() {
        put_text(out, name);
        put_text(out, value);
    }
    put_option(out, content.schedule.as_ref(), put_schedule);
    put_option(out, content.max_attempts, put_u32);
    out.push(content.explicit_first_wait.into());
    put_time(out, content.produced_at);
    put_bytes(out, &content.body);
}

fn content(input: &mut Reader<'_>) -> Result<Content, Malformed> {
    let key = option(input, key)?;
    let pairs = (0..input.count()?)
        .map(|_| Ok((input.text()?.to_owned(), input.text()?.to_owned())))
        .collect::<Result<Vec<_>, Malformed>>()?;
    Ok(Content {
        key,
        headers: Headers::parse(pairs).map_err(|_| Malformed("headers out of range"))?,
        schedule: option(input, schedule)?,
        max_attempts: option(input, Reader::u32)?,
        explicit_first_wait: flag(input)?,
        produced_at: time(input)?,
        // A copy: a slice would keep a whole journal segment in memory.
        body: Bytes::copy_from_slice(input.bytes()?),
    })
}

fn key(input: &mut Reader<'_>) -> Result<Key, Malformed> {
    Key::parse(input.text()?).map_err(|_| Malformed("a key out of range"))
}

fn put_schedule(out: &mut Vec<u8>, schedule: &RetrySchedule) {
    put_u64(out, schedule.tiers().len() as u64);
    schedule.tiers().iter().for_each(|&tier| put_u64(out, tier));
}

fn schedule(input: &mut Reader<'_>) -> Result<RetrySchedule, Malformed> {
    let tiers = (0..input.count()?).map(|_| input.u64()).collect::<Result<Vec<_>, _>>()?;
    RetrySchedule::new("schedule", &tiers).map_err(|_| Malformed("a schedule out of range"))
}

pub(super) fn put_progress(out: &mut Vec<u8>, progress: &Progress) {
    put_time(out, progress.due_at);
    put_u32(out, progress.attempts);
    put_u32(out, progress.failures);
    put_u32(out, progress.deliveries);
    put_u32(out, progress.deliveries_before_redrive);
    put_u32(out, progress.returns);
    put_u32(out, progress.redrives);
    out.push(progress.holds_key.into());
    out.push(progress.cancel_on_lease_end.into());
    match progress.dead {
        None => out.push(0),
        Some((reason, at)) => {
            out.push(match reason {
                DeadReason::MaxAttempts => 1,
                DeadReason::MaxDeliveries => 2,
                DeadReason::Consumer => 3,
            });
            put_time(out, at);
        }
    }
}

pub(super) fn progress(input: &mut Reader<'_>) -> Result<Progress, Malformed> {
    Ok(Progress {
        due_at: time(input)?,
        attempts: input.u32()?,
        failures: input.u32()?,
        deliveries: input.u32()?,
        deliveries_before_redrive: input.u32()?,
        returns: input.u32()?,
        redrives: input.u32()?,
        holds_key: flag(input)?,
        cancel_on_lease_end: flag(input)?,
        dead: match input.u8()? {
            0 => None,
            1 => Some((DeadReason::MaxAttempts, time(input)?)),
            2 => Some((DeadReason::MaxDeliveries, time(input)?)),
            3 => Some((DeadReason::Consumer, time(input)?)),
            _ => return Err(Malformed("an unknown cause of death")),
        },
    })
}

pub(super) fn put_entry(out: &mut Vec<u8>, entry: &HistoryEntry) {
    put_u32(out, entry.delivery);
    put_u32(out, entry.attempt);
    put_time(out, entry.delivered_at);
    put_time(out, entry.ended_at);
    put_text(out, entry.consumer.as_str());
    out.push(match entry.outcome {
        DeliveryOutcome::NotYet => 1,
        DeliveryOutcome::Failed => 2,
        DeliveryOutcome::Dead => 3,
        DeliveryOutcome::LeaseExpired => 4,
        DeliveryOutcome::Returned => 5,
    });
    put_text(out, entry.text.as_str());
    put_option(out, entry.next_due_at, put_time);
}

pub(super) fn entry(input: &mut Reader<'_>) -> Result<HistoryEntry, Malformed> {
    Ok(HistoryEntry {
        delivery: input.u32()?,
        attempt: input.u32()?,
        delivered_at: time(input)?,
        ended_at: time(input)?,
        consumer: consumer(input)?,
        outcome: match input.u8()? {
            1 => DeliveryOutcome::NotYet,
            2 => DeliveryOutcome::Failed,
            3 => DeliveryOutcome::Dead,
            4 => DeliveryOutcome::LeaseExpired,
            5 => DeliveryOutcome::Returned,
            _ => return Err(Malformed("an unknown end of a delivery")),
        },
        text: NackText::parse(input.text()?).map_err(|_| Malformed("a nack text out of range"))?,
        next_due_at: option(input, time)?,
    })
}

fn consumer(input: &mut Reader<'_>) -> Result<ConsumerName, Malformed> {
    ConsumerName::parse(input.text()?).map_err(|_| Malformed("a consumer name out of range"))
}

pub(super) fn put_topic(out: &mut Vec<u8>, topic: &TopicRecord) {
    put_u32(out, topic.id.0);
    put_text(out, topic.name.as_str());
    out.push(topic.paused.into());
    put_time(out, topic.created_at);
    let settings = &topic.settings;
    put_schedule(out, &settings.schedule);
    put_option(out, settings.max_attempts, put_u32);
    put_schedule(out, &settings.error_schedule);
    put_u32(out, settings.max_deliveries);
    put_u64(out, settings.lease_ms);
    put_u64(out, settings.min_redelivery_gap_ms);
    put_u32(out, settings.max_returns);
    put_option(out, settings.rate, |out, rate| {
        put_u32(out, rate.deliveries);
        put_u64(out, rate.period_ms);
    });
    put_option(out, settings.concurrency, put_u32);
    put_u32(out, settings.jitter_percent);
    put_u64(out, settings.dedup_window_ms);
    put_u32(out, settings.dedup_capacity);
    out.push(settings.dead_releases_key.into());
    put_u32(out, settings.history_count);
    put_u64(out, settings.history_age_ms);
}

pub(super) fn topic(input: &mut Reader<'_>) -> Result<TopicRecord, Malformed> {
    let id = TopicId(input.u32()?);
    let name = TopicName::parse(input.text()?).map_err(|_| Malformed("a topic name out of range"))?;
    let (paused, created_at) = (flag(input)?, time(input)?);
    let settings = TopicSettings {
        schedule: schedule(input)?,
        max_attempts: option(input, Reader::u32)?,
        error_schedule: schedule(input)?,
        max_deliveries: input.u32()?,
        lease_ms: input.u64()?,
        min_redelivery_gap_ms: input.u64()?,
        max_returns: input.u32()?,
        rate: option(input, |input| Ok(RateCap { deliveries: input.u32()?, period_ms: input.u64()? }))?,
        concurrency: option(input, Reader::u32)?,
        jitter_percent: input.u32()?,
        dedup_window_ms: input.u64()?,
        dedup_capacity: input.u32()?,
        dead_releases_key: flag(input)?,
        history_count: input.u32()?,
        history_age_ms: input.u64()?,
    };
    Ok(TopicRecord { id, name, settings, paused, created_at })
}

pub(super) fn put_finished(out: &mut Vec<u8>, finished: &Finished) {
    put_id(out, finished.id);
    put_option(out, finished.key.as_ref(), |out, key| put_text(out, key.as_str()));
    out.push(match finished.outcome {
        Outcome::Acked => 1,
        Outcome::Cancelled => 2,
        Outcome::Replaced => 3,
        Outcome::Purged => 4,
    });
    put_time(out, finished.at);
    put_option(out, finished.receipt, |out, (delivery, epoch)| {
        put_u32(out, delivery);
        put_u32(out, epoch);
    });
    put_place(out, finished.previous);
}

pub(super) fn finished(input: &mut Reader<'_>) -> Result<Finished, Malformed> {
    Ok(Finished {
        id: id(input)?,
        key: option(input, key)?,
        outcome: match input.u8()? {
            1 => Outcome::Acked,
            2 => Outcome::Cancelled,
            3 => Outcome::Replaced,
            4 => Outcome::Purged,
            _ => return Err(Malformed("an unknown outcome")),
        },
        at: time(input)?,
        receipt: option(input, |input| Ok((input.u32()?, input.u32()?)))?,
        previous: place(input)?,
    })
}

pub(super) fn put_dedup(out: &mut Vec<u8>, dedup: &DedupRecord) {
    put_u32(out, dedup.topic.0);
    put_text(out, dedup.dedup_id.as_str());
    put_bytes(out, &dedup.content_hash.to_le_bytes());
    put_id(out, dedup.message);
    put_time(out, dedup.due_at);
    put_time(out, dedup.expires_at);
}

pub(super) fn dedup(input: &mut Reader<'_>) -> Result<DedupRecord, Malformed> {
    Ok(DedupRecord {
        topic: TopicId(input.u32()?),
        dedup_id: DedupId::parse(input.text()?).map_err(|_| Malformed("a dedup id out of range"))?,
        content_hash: input.bytes()?.try_into().map(u128::from_le_bytes).map_err(|_| Malformed("a hash length"))?,
        message: id(input)?,
        due_at: time(input)?,
        expires_at: time(input)?,
    })
}

pub(super) fn put_totals(out: &mut Vec<u8>, totals: &Totals) {
    let fields = [totals.produced, totals.acked, totals.cancelled, totals.replaced, totals.purged, totals.quarantined];
    for field in fields {
        put_u64(out, field);
    }
}

pub(super) fn totals(input: &mut Reader<'_>) -> Result<Totals, Malformed> {
    Ok(Totals {
        produced: input.u64()?,
        acked: input.u64()?,
        cancelled: input.u64()?,
        replaced: input.u64()?,
        purged: input.u64()?,
        quarantined: input.u64()?,
    })
}

pub(super) fn put_lease(out: &mut Vec<u8>, lease: &OpenLease) {
    put_id(out, lease.id);
    put_u32(out, lease.delivery);
    put_u32(out, lease.epoch);
    put_time(out, lease.delivered_at);
    put_time(out, lease.deadline);
    put_text(out, lease.consumer.as_str());
}

pub(super) fn lease(input: &mut Reader<'_>) -> Result<OpenLease, Malformed> {
    Ok(OpenLease {
        id: id(input)?,
        delivery: input.u32()?,
        epoch: input.u32()?,
        delivered_at: time(input)?,
        deadline: time(input)?,
        consumer: consumer(input)?,
    })
}

pub(super) fn put_damaged_part(out: &mut Vec<u8>, part: &DamagedPart) {
    put_u32(out, part.topic.0);
    out.push(part.level);
    put_u64(out, part.slot_start);
    put_u64(out, part.run);
    put_u32(out, part.page);
    out.push(part.is_whole.into());
    for (at, arrival) in [part.first, part.last] {
        put_time(out, at);
        put_u64(out, arrival);
    }
}

pub(super) fn damaged_part(input: &mut Reader<'_>) -> Result<DamagedPart, Malformed> {
    Ok(DamagedPart {
        topic: TopicId(input.u32()?),
        level: input.u8()?,
        slot_start: input.u64()?,
        run: input.u64()?,
        page: input.u32()?,
        is_whole: flag(input)?,
        first: (time(input)?, input.u64()?),
        last: (time(input)?, input.u64()?),
    })
}
