//! Answers of the engine in their wire form. Bodies are shared, not copied.

use std::collections::HashMap;

use bytes::Bytes;

use super::batch::Results;
use super::dead_job::{Fate, Tally};
use super::time::{signed_span_to_wire, span_to_wire, to_wire};
use super::topic_settings;
use super::why::why;
use crate::engine::{Audience, BrokerStats, DueSpan, Seen, Stats, TopicStats};
use crate::pb;
use crate::queue::change::{Finished, Outcome, TopicRecord};
use crate::queue::command::{CancelReply, Delivery, Ending, Nacked, Produced, Reply, RescheduleReply};
use crate::queue::message::{DeadReason, DeliveryOutcome, HistoryEntry};
use crate::queue::receipt::ReceiptKey;
use crate::queue::schedule::RetrySchedule;
use crate::queue::time::Timestamp;
use crate::queue::values::{Headers, TopicName};
use crate::queue::view::{LiveView, MessageView, StateView};

/// The results of a produce.
pub(super) fn produce_results(results: Results) -> Vec<pb::ProduceResult> {
    let result = |result| match result {
        Ok(Reply::Produced(stored)) => pb::produce_result::Result::Produced(produced(stored)),
        Ok(other) => unreachable!("a produce is not answered by {other:?}"),
        Err(fault) => pb::produce_result::Result::Error(Into::into(fault)),
    };
    results.into_iter().map(|item| pb::ProduceResult { result: Some(result(item)) }).collect()
}

fn produced(produced: Produced) -> pb::Produced {
    pb::Produced { id: produced.id.to_string(), due_at: Some(to_wire(produced.due_at)), existing: produced.existing }
}

/// The results of settlements.
pub(super) fn settlement_results(results: Results) -> Vec<pb::SettlementResult> {
    use pb::settlement_result::Result as Wire;
    let result = |result| match result {
        Ok(Reply::Acked { repeated }) => Wire::Acked(pb::Acked { repeated }),
        Ok(Reply::Nacked(outcome)) => Wire::Nacked(nacked(outcome)),
        Ok(Reply::Extended(deadline)) => Wire::Extended(pb::Extended { lease_deadline: Some(to_wire(deadline)) }),
        Ok(other) => unreachable!("a settlement is not answered by {other:?}"),
        Err(fault) => Wire::Error(Into::into(fault)),
    };
    results.into_iter().map(|item| pb::SettlementResult { result: Some(result(item)) }).collect()
}

fn nacked(nacked: Nacked) -> pb::Nacked {
    match nacked {
        Nacked::Waits(due_at) => pb::Nacked { due_at: Some(to_wire(due_at)), ..Default::default() },
        Nacked::Dead => pb::Nacked { dead: true, ..Default::default() },
        Nacked::Cancelled => pb::Nacked { cancelled: true, ..Default::default() },
    }
}

/// A leased message.
pub(super) fn delivery(delivery: &Delivery, key: &ReceiptKey) -> pb::Delivery {
    let content = &delivery.message.content;
    pb::Delivery {
        topic: delivery.topic.as_str().to_owned(),
        id: delivery.message.id.to_string(),
        receipt: Bytes::copy_from_slice(&key.seal(&delivery.receipt)),
        key: content.key.as_ref().map(|key| key.as_str().to_owned()).unwrap_or_default(),
        body: content.body.clone(),
        headers: headers(&content.headers),
        attempt: delivery.attempt,
        max_attempts: delivery.max_attempts,
        delivery: delivery.receipt.delivery,
        due_at: Some(to_wire(delivery.message.progress.due_at)),
        delivered_at: Some(to_wire(delivery.delivered_at)),
        lease_deadline: Some(to_wire(delivery.deadline)),
        redelivered: delivery.redelivered,
        produced_at: Some(to_wire(content.produced_at)),
    }
}

fn headers(headers: &Headers) -> HashMap<String, String> {
    headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// What a cancel found.
pub(super) fn cancelled(reply: CancelReply) -> pb::CancelResponse {
    let mut response = pb::CancelResponse::default();
    let (status, id) = match reply {
        CancelReply::Cancelled(id) => (pb::CancelStatus::Cancelled, Some(id)),
        CancelReply::InFlight(id) => (pb::CancelStatus::InFlight, Some(id)),
        CancelReply::AlreadyDone(id, ending) => {
            (response.outcome, response.dead) = ended(ending);
            (pb::CancelStatus::AlreadyDone, Some(id))
        }
        CancelReply::NotFound => (pb::CancelStatus::NotFound, None),
    };
    response.set_status(status);
    response.id = id.map(|id| id.to_string()).unwrap_or_default();
    response
}

/// What a reschedule found.
pub(super) fn rescheduled(reply: RescheduleReply) -> pb::RescheduleResponse {
    let mut response = pb::RescheduleResponse::default();
    let (status, id) = match reply {
        RescheduleReply::Rescheduled(id, due_at) => {
            response.due_at = Some(to_wire(due_at));
            (pb::RescheduleStatus::Rescheduled, Some(id))
        }
        RescheduleReply::InFlight(id) => (pb::RescheduleStatus::InFlight, Some(id)),
        RescheduleReply::AlreadyDone(id, ending) => {
            (response.outcome, response.dead) = ended(ending);
            (pb::RescheduleStatus::AlreadyDone, Some(id))
        }
        RescheduleReply::NotFound => (pb::RescheduleStatus::NotFound, None),
    };
    response.set_status(status);
    response.id = id.map(|id| id.to_string()).unwrap_or_default();
    response
}

fn ended(ending: Ending) -> (i32, bool) {
    match ending {
        Ending::Gone(outcome) => (outcome_to_wire(outcome).into(), false),
        Ending::Dead => (pb::Outcome::Unspecified.into(), true),
    }
}

fn outcome_to_wire(outcome: Outcome) -> pb::Outcome {
    match outcome {
        Outcome::Acked => pb::Outcome::Acked,
        Outcome::Cancelled => pb::Outcome::Cancelled,
        Outcome::Replaced => pb::Outcome::Replaced,
        Outcome::Purged => pb::Outcome::Purged,
    }
}

/// How far a redrive is.
pub(super) fn redrive_progress(tally: &Tally, fates: &[Fate]) -> pb::RedriveDeadLettersResponse {
    let status = |fate: &Fate| match fate {
        Fate::Done => pb::RedriveStatus::Redriven,
        Fate::KeyInUse => pb::RedriveStatus::KeyInUse,
        Fate::NotDead => pb::RedriveStatus::NotDead,
        Fate::NotFound => pb::RedriveStatus::NotFound,
    };
    pb::RedriveDeadLettersResponse {
        results: fates.iter().map(|fate| status(fate).into()).collect(),
        matched: tally.matched,
        redriven: tally.done,
        key_in_use: tally.key_in_use,
        not_dead: tally.not_dead,
        not_found: tally.not_found,
        remaining: tally.remaining,
    }
}

/// How far a purge is.
pub(super) fn purge_progress(tally: &Tally, fates: &[Fate]) -> pb::PurgeDeadLettersResponse {
    let status = |fate: &Fate| match fate {
        Fate::Done => pb::PurgeStatus::Purged,
        Fate::KeyInUse => unreachable!("a purge asks for no key"),
        Fate::NotDead => pb::PurgeStatus::NotDead,
        Fate::NotFound => pb::PurgeStatus::NotFound,
    };
    pb::PurgeDeadLettersResponse {
        results: fates.iter().map(|fate| status(fate).into()).collect(),
        matched: tally.matched,
        purged: tally.done,
        not_dead: tally.not_dead,
        not_found: tally.not_found,
        remaining: tally.remaining,
    }
}

/// Everything known about a message of `topic`.
pub(super) fn seen(topic: &TopicName, seen: &Seen, omit_body: bool) -> pb::MessageInfo {
    let mut info = match &seen.view {
        MessageView::Live(view) => live(view, omit_body),
        MessageView::Gone(finished) => gone(topic, finished),
    };
    info.why = why(seen);
    info
}

/// A dead letter.
pub(super) fn dead_letter(view: LiveView, now: Timestamp, omit_body: bool) -> pb::MessageInfo {
    let mut info = live(&view, omit_body);
    info.why = why(&Seen { view: MessageView::Live(Box::new(view)), audience: Audience::default(), now });
    info
}

/// A message of a listing, without body and headers.
pub(super) fn listed(view: LiveView, audience: Audience, now: Timestamp) -> pb::MessageInfo {
    let mut info = live(&view, true);
    info.why = why(&Seen { view: MessageView::Live(Box::new(view)), audience, now });
    info
}

fn live(view: &LiveView, omit_body: bool) -> pb::MessageInfo {
    let LiveView { topic, message, state, max_attempts } = view;
    let (content, progress) = (&message.content, &message.progress);
    let mut info = pb::MessageInfo {
        topic: topic.name.as_str().to_owned(),
        id: message.id.to_string(),
        key: content.key.as_ref().map(|key| key.as_str().to_owned()).unwrap_or_default(),
        produced_at: Some(to_wire(content.produced_at)),
        due_at: Some(to_wire(progress.due_at)),
        attempts: progress.attempts,
        max_attempts: *max_attempts,
        failures: progress.failures,
        deliveries: progress.deliveries,
        redrives: progress.redrives,
        cancel_when_lease_ends: progress.cancel_on_lease_end,
        schedule: Some(schedule_to_wire(content.schedule.as_ref().unwrap_or(&topic.settings.schedule))),
        ..Default::default()
    };
    if !omit_body {
        info.body = content.body.clone();
        info.headers = headers(&content.headers);
    }
    if let Some(history) = &message.history {
        info.history = history.iter().map(history_entry).collect();
        info.history_omitted = history.omitted();
    }
    if let Some((reason, at)) = progress.dead {
        info.set_dead_reason(dead_reason(reason));
        info.ended_at = Some(to_wire(at));
    }
    let state = match state {
        StateView::Scheduled => pb::MessageState::Scheduled,
        StateView::Ready { .. } => pb::MessageState::Ready,
        StateView::Leased { consumer, deadline, .. } => {
            info.deliveries += 1;
            consumer.as_str().clone_into(&mut info.consumer);
            info.lease_deadline = Some(to_wire(*deadline));
            pb::MessageState::Leased
        }
        StateView::Dead => pb::MessageState::Dead,
    };
    info.set_state(state);
    info
}

fn gone(topic: &TopicName, finished: &Finished) -> pb::MessageInfo {
    pb::MessageInfo {
        topic: topic.as_str().to_owned(),
        id: finished.id.to_string(),
        key: finished.key.as_ref().map(|key| key.as_str().to_owned()).unwrap_or_default(),
        state: pb::MessageState::Done.into(),
        outcome: outcome_to_wire(finished.outcome).into(),
        ended_at: Some(to_wire(finished.at)),
        ..Default::default()
    }
}

fn dead_reason(reason: DeadReason) -> pb::DeadReason {
    match reason {
        DeadReason::MaxAttempts => pb::DeadReason::MaxAttempts,
        DeadReason::MaxDeliveries => pb::DeadReason::MaxDeliveries,
        DeadReason::Consumer => pb::DeadReason::Consumer,
    }
}

fn history_entry(entry: &HistoryEntry) -> pb::HistoryEntry {
    let outcome = match entry.outcome {
        DeliveryOutcome::NotYet => pb::DeliveryOutcome::NotYet,
        DeliveryOutcome::Failed => pb::DeliveryOutcome::Failed,
        DeliveryOutcome::Dead => pb::DeliveryOutcome::Dead,
        DeliveryOutcome::LeaseExpired => pb::DeliveryOutcome::LeaseExpired,
        DeliveryOutcome::Returned => pb::DeliveryOutcome::Returned,
    };
    pb::HistoryEntry {
        delivery: entry.delivery,
        attempt: entry.attempt,
        delivered_at: Some(to_wire(entry.delivered_at)),
        ended_at: Some(to_wire(entry.ended_at)),
        consumer: entry.consumer.as_str().to_owned(),
        outcome: outcome.into(),
        text: entry.text.as_str().to_owned(),
        next_due_at: entry.next_due_at.map(to_wire),
    }
}

/// A retry schedule.
pub(super) fn schedule_to_wire(schedule: &RetrySchedule) -> pb::RetrySchedule {
    pb::RetrySchedule { tiers: schedule.tiers().iter().map(|&ms| span_to_wire(ms)).collect() }
}

/// A topic.
pub(super) fn topic(record: &TopicRecord) -> pb::Topic {
    pb::Topic {
        name: record.name.as_str().to_owned(),
        settings: Some(topic_settings::to_wire(&record.settings)),
        paused: record.paused,
        created_at: Some(to_wire(record.created_at)),
    }
}

/// A page of statistics, and the token of the next one.
pub(super) fn stats(stats: &Stats, next_page_token: String) -> pb::GetStatsResponse {
    let topics = stats.topics.iter().map(topic_stats).collect();
    pb::GetStatsResponse { topics, broker: Some(broker_stats(&stats.broker)), next_page_token }
}

/// Counts and lateness of a topic.
fn topic_stats(stats: &TopicStats) -> pb::TopicStats {
    let TopicStats { counts, timeline, deliveries, lateness, consumers, waiting_fetches } = stats;
    let totals = &counts.totals;
    pb::TopicStats {
        topic: counts.topic.name.as_str().to_owned(),
        paused: counts.topic.paused,
        scheduled: counts.scheduled,
        ready: counts.ready,
        leased: counts.leased,
        dead: counts.dead,
        produced: totals.produced,
        acked: totals.acked,
        cancelled: totals.cancelled,
        replaced: totals.replaced,
        purged: totals.purged,
        quarantined: totals.quarantined,
        deliveries: *deliveries,
        oldest_ready_due_at: counts.oldest_ready_due_at.map(to_wire),
        lateness: Some(pb::Lateness {
            count: lateness.count,
            p50: Some(span_to_wire(lateness.p50_ms)),
            p99: Some(span_to_wire(lateness.p99_ms)),
            max: Some(span_to_wire(lateness.max_ms)),
        }),
        consumers: u32::try_from(*consumers).unwrap_or(u32::MAX),
        waiting_fetches: u32::try_from(*waiting_fetches).unwrap_or(u32::MAX),
        timeline: timeline.iter().flatten().map(due_span).collect(),
    }
}

fn due_span(span: &DueSpan) -> pb::DueSpan {
    let until = (span.until != Timestamp::MAX).then(|| to_wire(span.until));
    pb::DueSpan { from: Some(to_wire(span.from)), until, count: span.count }
}

/// The state of the broker.
fn broker_stats(stats: &BrokerStats) -> pb::BrokerStats {
    pb::BrokerStats {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        epoch: stats.epoch,
        started_at: Some(to_wire(stats.started_at)),
        now: Some(to_wire(stats.now)),
        clock_offset: Some(signed_span_to_wire(stats.clock_offset_ms)),
        commits: stats.commits,
        folds: stats.folds,
        journal_bytes: stats.journal_bytes,
        disk_free_bytes: stats.disk.map_or(0, |disk| disk.free_bytes),
        disk_reserve_bytes: stats.disk.map_or(0, |disk| disk.reserve_bytes),
        produce_refused: stats.disk.is_some_and(|disk| disk.is_short),
    }
}
