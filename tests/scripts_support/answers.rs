//! Writes the answers of a script.

use duewheel::queue::change::{Change, Outcome};
use duewheel::queue::command::{
    CancelReply, Delivery, Ending, Nacked, PurgeReply, RedriveReply, Rejection, Reply, RescheduleReply,
};
use duewheel::queue::dead::{DeadFilter, DeadQuery, StoredDead};
use duewheel::queue::message::{AttemptHistory, DeadReason, DeliveryOutcome, HistoryEntry, Message};
use duewheel::queue::schedule::format_duration;
use duewheel::queue::values::{Key, NackText};
use duewheel::queue::view::{Hindrance, LiveView, MessageView, StateView};

use crate::commands::{Words, target};
use crate::world::{World, instant};

pub(crate) fn answer(world: &World, answer: &Result<Reply, Rejection>) -> Vec<String> {
    let reply = match answer {
        Ok(reply) => reply,
        Err(rejection) => return vec![world.with_names(&format!("refused: {rejection}"))],
    };
    let line = match reply {
        Reply::Topic(record) => {
            format!("topic {}{}", record.name, if record.paused { ", paused" } else { "" })
        }
        Reply::Produced(produced) => {
            let existing = if produced.existing { ", existing" } else { "" };
            format!("{} due {}{existing}", world.name(produced.id), instant(produced.due_at))
        }
        Reply::Leased(deliveries) if deliveries.is_empty() => "nothing".to_owned(),
        Reply::Leased(deliveries) => return deliveries.iter().map(|delivery| leased(world, delivery)).collect(),
        Reply::Acked { repeated } => if *repeated { "acked before" } else { "acked" }.to_owned(),
        Reply::Nacked(Nacked::Waits(due_at)) => format!("waits until {}", instant(*due_at)),
        Reply::Nacked(Nacked::Dead) => "dead".to_owned(),
        Reply::Nacked(Nacked::Cancelled) => "cancelled".to_owned(),
        Reply::Extended(deadline) => format!("until {}", instant(*deadline)),
        Reply::Returned(count) => format!("returned {count}"),
        Reply::Cancel(reply) => match reply {
            CancelReply::Cancelled(id) => format!("CANCELLED {}", world.name(*id)),
            CancelReply::InFlight(id) => format!("IN_FLIGHT {}", world.name(*id)),
            CancelReply::AlreadyDone(id, ending) => format!("ALREADY_DONE {}, {}", world.name(*id), ended(*ending)),
            CancelReply::NotFound => "NOT_FOUND".to_owned(),
        },
        Reply::Reschedule(reply) => match reply {
            RescheduleReply::Rescheduled(id, due_at) => {
                format!("RESCHEDULED {} due {}", world.name(*id), instant(*due_at))
            }
            RescheduleReply::InFlight(id) => format!("IN_FLIGHT {}", world.name(*id)),
            RescheduleReply::AlreadyDone(id, ending) => {
                format!("ALREADY_DONE {}, {}", world.name(*id), ended(*ending))
            }
            RescheduleReply::NotFound => "NOT_FOUND".to_owned(),
        },
        Reply::Redrive(reply) => match reply {
            RedriveReply::Redriven => "REDRIVEN",
            RedriveReply::KeyInUse => "KEY_IN_USE",
            RedriveReply::NotDead => "NOT_DEAD",
            RedriveReply::NotFound => "NOT_FOUND",
        }
        .to_owned(),
        Reply::Purge(reply) => match reply {
            PurgeReply::Purged => "PURGED",
            PurgeReply::NotDead => "NOT_DEAD",
            PurgeReply::NotFound => "NOT_FOUND",
        }
        .to_owned(),
        Reply::TopicDeleted(deleted) => format!("deleted with {} messages", deleted.messages),
    };
    vec![line]
}

fn leased(world: &World, delivery: &Delivery) -> String {
    let receipt = world.receipts.iter().position(|known| *known == delivery.receipt).expect("a named receipt");
    let message = world.name(delivery.message.id);
    let (attempt, max_attempts) = (delivery.attempt, delivery.max_attempts);
    let redelivered = if delivery.redelivered { ", redelivered" } else { "" };
    let deadline = instant(delivery.deadline);
    format!("r{}: {message}, attempt {attempt} of {max_attempts}, until {deadline}{redelivered}", receipt + 1)
}

/// One durable change, in a line.
pub(crate) fn change(world: &World, change: &Change) -> String {
    match change {
        Change::TopicPut(record) => format!("stored topic {}", record.name),
        Change::TopicDeleted { topic, .. } => format!("deleted topic number {}", topic.0),
        Change::Produced(message) => {
            format!("stored {} due {}", world.name(message.id), instant(message.progress.due_at))
        }
        Change::Moved { message, entry, .. } => {
            let how = match entry {
                Some(entry) => format!("{}, ", outcome(entry.outcome)),
                None if message.progress.cancel_on_lease_end => "to be cancelled when its lease ends, ".to_owned(),
                None => String::new(),
            };
            format!("{} {how}{}", world.name(message.id), place(message))
        }
        Change::Finished(finished) => format!("{} {}", world.name(finished.id), gone(finished.outcome)),
        Change::DedupPut(record) => {
            format!("remembered dedup id {} until {}", record.dedup_id, instant(record.expires_at))
        }
        Change::ArrivalsReserved(through) => format!("reserved arrival numbers below {through}"),
        Change::Quarantined(part) => format!("to be set aside: {part}"),
        Change::Opened { epoch, .. } => format!("opened, epoch {epoch}"),
        Change::Closed(closing) => format!("closed with {} open leases", closing.leases.len()),
    }
}

fn place(message: &Message) -> String {
    match message.progress.dead {
        Some((reason, _)) => format!("dead ({})", dead_reason(reason)),
        None => format!("waits until {}", instant(message.progress.due_at)),
    }
}

pub(crate) fn look_up(world: &World, words: &Words) -> Vec<String> {
    let topic = words.topic(1);
    let view = match world.queue.look_up(world.now, &topic, &target(world, words), None) {
        Ok(view) => view,
        Err(rejection) => return vec![format!("refused: {rejection}")],
    };
    match view {
        None => vec!["not found".to_owned()],
        Some(MessageView::Gone(finished)) => {
            let (name, at) = (world.name(finished.id), instant(finished.at));
            vec![format!("{name} {} at {at}", gone(finished.outcome))]
        }
        Some(MessageView::Live(view)) => live(world, &view),
    }
}

fn live(world: &World, view: &LiveView) -> Vec<String> {
    let progress = &view.message.progress;
    let state = match &view.state {
        StateView::Scheduled => format!("scheduled, due {}", instant(progress.due_at)),
        StateView::Ready { hindrance, ahead } => {
            let hindrance = match hindrance {
                None => String::new(),
                Some(Hindrance::Paused) => ", paused".to_owned(),
                Some(Hindrance::RateCap(at)) => format!(", rate cap until {}", instant(*at)),
                Some(Hindrance::ConcurrencyCap(cap)) => format!(", concurrency cap of {cap}"),
            };
            let ahead = ahead.map_or("many".to_owned(), |ahead| ahead.to_string());
            format!("ready since {}{hindrance}, {ahead} ahead", instant(progress.due_at))
        }
        StateView::Leased { consumer, delivered_at, deadline } => {
            let (since, until) = (instant(*delivered_at), instant(*deadline));
            let cancel = if progress.cancel_on_lease_end { ", then cancelled" } else { "" };
            format!("leased to '{consumer}' from {since} until {until}{cancel}")
        }
        StateView::Dead => {
            let (reason, at) = progress.dead.expect("a dead message has a reason");
            format!("dead since {} ({})", instant(at), dead_reason(reason))
        }
    };
    let mut lines = vec![format!("{} {state}", world.name(view.message.id))];
    lines.push(format!(
        "  attempts {} of {}, failures {}, returns {}, deliveries {}, redrives {}",
        progress.attempts,
        view.max_attempts,
        progress.failures,
        progress.returns,
        progress.deliveries,
        progress.redrives
    ));
    if let Some(history) = &view.message.history {
        lines.extend(attempts(history));
    }
    lines
}

fn attempts(history: &AttemptHistory) -> Vec<String> {
    let mut lines = Vec::new();
    for (at, entry) in history.iter().enumerate() {
        if at == 4 && history.omitted() > 0 {
            lines.push(format!("  ({} left out)", history.omitted()));
        }
        lines.push(format!("  {}", attempt(entry)));
    }
    lines
}

fn attempt(entry: &HistoryEntry) -> String {
    let (from, to) = (instant(entry.delivered_at), instant(entry.ended_at));
    let text = if entry.text.as_str().is_empty() { String::new() } else { format!(" '{}'", entry.text) };
    let next = entry.next_due_at.map_or("dead".to_owned(), |at| format!("next {}", instant(at)));
    let (delivery, attempt, consumer) = (entry.delivery, entry.attempt, &entry.consumer);
    let outcome = outcome(entry.outcome);
    format!("delivery {delivery}, attempt {attempt}, '{consumer}' {from} to {to}: {outcome}{text}, {next}")
}

pub(crate) fn counts(world: &World, words: &Words) -> Vec<String> {
    let Some(counts) = world.queue.counts(world.now, &words.topic(1)) else { return vec!["no such topic".to_owned()] };
    let totals = counts.totals;
    let oldest = counts.oldest_ready_due_at.map_or(String::new(), |at| format!(", oldest ready {}", instant(at)));
    let purged = if totals.purged > 0 { format!(" + purged {}", totals.purged) } else { String::new() };
    vec![
        format!(
            "scheduled {}, ready {}, leased {}, dead {}{oldest}",
            counts.scheduled, counts.ready, counts.leased, counts.dead
        ),
        format!(
            "produced {} = live {} + acked {} + cancelled {} + replaced {}{purged}",
            totals.produced,
            totals.live(),
            totals.acked,
            totals.cancelled,
            totals.replaced
        ),
    ]
}

pub(crate) fn dead_letters(world: &World, words: &Words) -> Vec<String> {
    let filter = DeadFilter {
        reason: words.value("reason").map(|reason| match reason {
            "max-attempts" => DeadReason::MaxAttempts,
            "max-deliveries" => DeadReason::MaxDeliveries,
            "consumer" => DeadReason::Consumer,
            other => panic!("'{other}' is no reason"),
        }),
        key: words.value("key").map(|key| Key::parse(key).expect("a key")),
        text: words.value("text").map(|text| NackText::parse(text).expect("a text")),
        died_from: words.value("from").map(World::parse_instant),
        died_before: words.value("before").map(World::parse_instant),
    };
    let query = DeadQuery { filter, limit: 100, ..DeadQuery::default() };
    let page = match world.queue.dead_letters(world.now, &words.topic(1), &query, &StoredDead::default()) {
        Ok(page) => page,
        Err(rejection) => return vec![format!("refused: {rejection}")],
    };
    let views = page.letters;
    if views.is_empty() {
        return vec!["none".to_owned()];
    }
    views.iter().map(|view| live(world, view).swap_remove(0)).collect()
}

pub(crate) fn topic(world: &World, words: &Words) -> Vec<String> {
    let Some(record) = world.queue.topic(&words.topic(2)) else { return vec!["no such topic".to_owned()] };
    let settings = &record.settings;
    let attempts = settings.max_attempts.map_or("by schedule".to_owned(), |max| max.to_string());
    let lease = format_duration(settings.lease_ms);
    let paused = if record.paused { ", paused" } else { "" };
    vec![format!("{} schedule {}, max attempts {attempts}, lease {lease}{paused}", record.name, settings.schedule)]
}

fn ended(ending: Ending) -> &'static str {
    match ending {
        Ending::Gone(outcome) => gone(outcome),
        Ending::Dead => "dead",
    }
}

fn gone(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Acked => "acked",
        Outcome::Cancelled => "cancelled",
        Outcome::Replaced => "replaced",
        Outcome::Purged => "purged",
    }
}

fn outcome(outcome: DeliveryOutcome) -> &'static str {
    match outcome {
        DeliveryOutcome::NotYet => "not-yet",
        DeliveryOutcome::Failed => "failed",
        DeliveryOutcome::Dead => "given up",
        DeliveryOutcome::LeaseExpired => "lease expired",
        DeliveryOutcome::Returned => "returned",
    }
}

fn dead_reason(reason: DeadReason) -> &'static str {
    match reason {
        DeadReason::MaxAttempts => "max attempts",
        DeadReason::MaxDeliveries => "max deliveries",
        DeadReason::Consumer => "consumer gave up",
    }
}
