//! The rules of delay tiers and lease ends, written down a second time and naively.

use duewheel::queue::message::{DeadReason, DeliveryOutcome, HistoryEntry, Message, Progress};
use duewheel::queue::settings::TopicSettings;
use duewheel::queue::time::Timestamp;

/// The text with which a simulated consumer tells the wait that it asks for, since the record of a nack does not.
pub(crate) fn wait_text(wait: Option<u64>) -> String {
    wait.map_or_else(String::new, |ms| format!("wait {ms}"))
}

fn asked_wait(entry: &HistoryEntry) -> Option<u64> {
    entry.text.as_str().strip_prefix("wait ").map(|ms| ms.parse().expect("the simulation wrote it"))
}

/// The least and the most that tier `number` may last.
fn tier(message: &Message, settings: &TopicSettings, number: u32) -> (u64, u64) {
    let tiers = message.content.schedule.as_ref().unwrap_or(&settings.schedule).tiers();
    let wait = tiers[(number as usize - 1).min(tiers.len() - 1)];
    (wait, wait + wait * u64::from(settings.jitter_percent) / 100)
}

/// The due time of a fresh message that names none.
pub(crate) fn first_due(message: &Message, settings: &TopicSettings) -> (Timestamp, Timestamp) {
    let (least, most) = tier(message, settings, 1);
    (message.content.produced_at.plus(least), message.content.produced_at.plus(most))
}

fn cap(message: &Message, settings: &TopicSettings) -> u32 {
    let tiers = message.content.schedule.as_ref().unwrap_or(&settings.schedule).tiers().len();
    let described = u32::try_from(tiers).expect("few") + u32::from(!starts_at_tier_one(message));
    message.content.max_attempts.or(settings.max_attempts).unwrap_or(described)
}

fn starts_at_tier_one(message: &Message) -> bool {
    !message.content.explicit_first_wait && message.progress.redrives == 0
}

/// What the end of a lease that `entry` tells of makes of a message: its progress with the earliest due time, and the
/// latest.
pub(crate) fn end_lease(before: &Message, settings: &TopicSettings, entry: &HistoryEntry) -> (Progress, Timestamp) {
    let mut after = before.progress;
    after.deliveries += 1;
    after.returns = 0;
    let (now, failures) = (entry.ended_at, before.progress.failures as usize);
    let asked = asked_wait(entry).map(|ms| (ms, ms));
    let error_tier = settings.error_schedule.tiers().get(failures).map(|&ms| (ms, ms));
    let mut dead = None;
    let mut spends = false;
    let wait = match entry.outcome {
        DeliveryOutcome::Dead => {
            dead = Some(DeadReason::Consumer);
            (0, 0)
        }
        DeliveryOutcome::Failed if error_tier.is_some() => {
            after.failures += 1;
            asked.or(error_tier).expect("one of the two")
        }
        DeliveryOutcome::Returned if before.progress.returns + 1 < settings.max_returns => {
            after.returns = before.progress.returns + 1;
            (settings.min_redelivery_gap_ms, settings.min_redelivery_gap_ms)
        }
        outcome => {
            spends = true;
            let number = before.progress.attempts + 1 + u32::from(starts_at_tier_one(before));
            let (least, most) = tier(before, settings, number);
            match outcome {
                DeliveryOutcome::Returned => {
                    let gap = settings.min_redelivery_gap_ms;
                    (least.max(gap), most.max(gap))
                }
                _ => asked.unwrap_or((least, most)),
            }
        }
    };
    if spends {
        after.attempts += 1;
        after.failures = 0;
        if after.attempts >= cap(before, settings) {
            dead = Some(DeadReason::MaxAttempts);
        }
    }
    if after.deliveries - after.deliveries_before_redrive >= settings.max_deliveries {
        dead = dead.or(Some(DeadReason::MaxDeliveries));
    }
    let Some(reason) = dead else {
        after.due_at = now.plus(wait.0);
        return (after, now.plus(wait.1));
    };
    after.dead = Some((reason, now));
    after.holds_key = !settings.dead_releases_key;
    (after, after.due_at)
}
