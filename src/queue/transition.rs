//! What the end of a lease does to a message: one total function over message, settings and event.

use super::message::{DeadReason, DeliveryOutcome, Message, MessageId, Progress};
use super::settings::TopicSettings;
use super::time::Timestamp;

/// How a lease ended without an ack. Waits are milliseconds instead of the tier, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseEnd {
    NotYet(Option<u64>),
    Failed(Option<u64>),
    Dead,
    Expired,
    Returned,
}

/// Where the message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Wait,
    Dead,
    Cancelled,
}

/// Attempts after which a message is dead: its own cap, the topic's, or else so many that every wait which
/// its schedule describes is used once: one per tier, and one more if the first wait was not tier 1.
pub(super) fn max_attempts(message: &Message, settings: &TopicSettings) -> u32 {
    message.content.max_attempts.or(settings.max_attempts).unwrap_or_else(|| {
        let tiers = message.content.schedule.as_ref().unwrap_or(&settings.schedule).tiers().len();
        u32::try_from(tiers).expect("a schedule has at most 64 tiers") + u32::from(!first_wait_was_tier_one(message))
    })
}

/// The present attempt, 1-based.
pub(super) fn attempt(message: &Message) -> u32 {
    message.progress.attempts + 1
}

/// The first wait of a message that is produced without one: tier 1 of its schedule.
pub(super) fn first_wait(message: &Message, settings: &TopicSettings) -> u64 {
    tier(message, settings, 1)
}

/// The progress after the lease has ended, and where the message goes. Adds one to `deliveries`.
pub(super) fn end_lease(
    message: &Message,
    settings: &TopicSettings,
    now: Timestamp,
    end: LeaseEnd,
) -> (Progress, Verdict) {
    let mut next = message.progress;
    next.deliveries += 1;
    next.returns = if end == LeaseEnd::Returned { next.returns + 1 } else { 0 };
    if next.cancel_on_lease_end {
        return (next, Verdict::Cancelled);
    }
    let dead = match end {
        LeaseEnd::NotYet(wait) => spend_attempt(message, settings, now, wait, &mut next),
        LeaseEnd::Expired => spend_attempt(message, settings, now, None, &mut next),
        LeaseEnd::Failed(wait) => fail(message, settings, now, wait, &mut next),
        LeaseEnd::Returned => give_back(message, settings, now, &mut next),
        LeaseEnd::Dead => Some(DeadReason::Consumer),
    };
    let leases = next.deliveries - next.deliveries_before_redrive;
    let dead = dead.or((leases >= settings.max_deliveries).then_some(DeadReason::MaxDeliveries));
    let Some(reason) = dead else { return (next, Verdict::Wait) };
    next.due_at = message.progress.due_at;
    next.dead = Some((reason, now));
    next.holds_key = !settings.dead_releases_key;
    (next, Verdict::Dead)
}

/// The outcome that the attempt history shows.
pub(super) fn outcome(end: LeaseEnd) -> DeliveryOutcome {
    match end {
        LeaseEnd::NotYet(_) => DeliveryOutcome::NotYet,
        LeaseEnd::Failed(_) => DeliveryOutcome::Failed,
        LeaseEnd::Dead => DeliveryOutcome::Dead,
        LeaseEnd::Expired => DeliveryOutcome::LeaseExpired,
        LeaseEnd::Returned => DeliveryOutcome::Returned,
    }
}

/// The attempt is spent: the next tier, or dead at the cap.
fn spend_attempt(
    message: &Message,
    settings: &TopicSettings,
    now: Timestamp,
    wait: Option<u64>,
    next: &mut Progress,
) -> Option<DeadReason> {
    next.attempts += 1;
    next.failures = 0;
    if next.attempts >= max_attempts(message, settings) {
        return Some(DeadReason::MaxAttempts);
    }
    let number = next.attempts + u32::from(first_wait_was_tier_one(message));
    next.due_at = now.plus(wait.unwrap_or_else(|| tier(message, settings, number)));
    None
}

/// The check itself broke: again within the attempt, until the error schedule is used up.
fn fail(
    message: &Message,
    settings: &TopicSettings,
    now: Timestamp,
    wait: Option<u64>,
    next: &mut Progress,
) -> Option<DeadReason> {
    let Some(&error_tier) = settings.error_schedule.tiers().get(next.failures as usize) else {
        return spend_attempt(message, settings, now, wait, next);
    };
    next.failures += 1;
    next.due_at = now.plus(wait.unwrap_or(error_tier));
    None
}

/// The consumer went away: again after the gap, unless that happened too often in a row.
fn give_back(message: &Message, settings: &TopicSettings, now: Timestamp, next: &mut Progress) -> Option<DeadReason> {
    let gap_ends = now.plus(settings.min_redelivery_gap_ms);
    if next.returns < settings.max_returns {
        next.due_at = gap_ends;
        return None;
    }
    next.returns = 0;
    let dead = spend_attempt(message, settings, now, None, next);
    next.due_at = next.due_at.max(gap_ends);
    dead
}

/// Tier 1 was the first wait only if the produce gave none and no redrive has started the schedule anew.
fn first_wait_was_tier_one(message: &Message) -> bool {
    !message.content.explicit_first_wait && message.progress.redrives == 0
}

/// Tier `number` of the message's schedule, with its jitter.
fn tier(message: &Message, settings: &TopicSettings, number: u32) -> u64 {
    let schedule = message.content.schedule.as_ref().unwrap_or(&settings.schedule);
    let wait = schedule.wait(number).expect("a retry schedule has at least one tier");
    let most = wait / 100 * u64::from(settings.jitter_percent) + wait % 100 * u64::from(settings.jitter_percent) / 100;
    if most == 0 { wait } else { wait + mix(message.id, message.progress.deliveries) % (most + 1) }
}

/// A number that depends on message and delivery only (the finalizer of splitmix64), so that the same history
/// gives the same jitter.
fn mix(id: MessageId, delivery: u32) -> u64 {
    let mut z = id.arrival.wrapping_add(u64::from(delivery).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
