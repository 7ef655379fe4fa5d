//! What the naive model keeps: topics, messages with their leases, dedup ids.

use duewheel::queue::change::{TopicRecord, Totals};
use duewheel::queue::command::ConsumerId;
use duewheel::queue::message::{AttemptHistory, Content, HistoryEntry, Message, MessageId, Progress, TopicId};
use duewheel::queue::receipt::Receipt;
use duewheel::queue::schedule::RetrySchedule;
use duewheel::queue::settings::TopicSettings;
use duewheel::queue::time::Timestamp;
use duewheel::queue::values::{ConsumerName, DedupId};

/// Longest delay that a paced topic may catch up with, milliseconds.
pub(crate) const CATCH_UP_MS: u64 = 10;

#[derive(Clone)]
pub(crate) struct Topic {
    pub(crate) record: TopicRecord,
    pub(crate) totals: Totals,
    /// Times of all deliveries under the present rate cap.
    pub(crate) delivered: Vec<Timestamp>,
    /// The rate cap counts from here: start of the broker, creation, or a change of settings.
    pub(crate) paced_since: Timestamp,
    /// A lease found a ready message and was held back by the rate cap.
    pub(crate) rate_wanted: bool,
    /// Its settings have been changed, so that messages may exceed caps that were lowered.
    pub(crate) updated: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: MessageId,
    pub(crate) content: std::sync::Arc<Content>,
    pub(crate) progress: Progress,
    /// Every delivery that ended without an ack, none left out.
    pub(crate) history: Vec<HistoryEntry>,
    pub(crate) lease: Option<Lease>,
    /// It was due when the broker opened after some crash, so it may have been delivered before.
    pub(crate) suspected: bool,
    /// The same, at the start of the present run.
    pub(crate) suspected_now: bool,
    /// It has been due in the very millisecond of the opening, so that its record looks as if it had been due before.
    pub(crate) due_at_opening: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) receipt: Receipt,
    pub(crate) consumer: ConsumerId,
    pub(crate) name: ConsumerName,
    pub(crate) delivered_at: Timestamp,
    pub(crate) deadline: Timestamp,
}

#[derive(Clone)]
pub(crate) struct Dedup {
    pub(crate) topic: TopicId,
    pub(crate) id: DedupId,
    /// Everything that was asked for.
    pub(crate) asked: String,
    pub(crate) message: MessageId,
    pub(crate) due_at: Timestamp,
    pub(crate) expires_at: Timestamp,
}

impl Topic {
    /// The instant by which a rate cap certainly allows the next delivery. Tokens come a little slower than the cap
    /// says, so that a broker that is a few milliseconds late may catch up and still keep within the cap.
    pub(crate) fn token_by(&self) -> Option<Timestamp> {
        let rate = self.record.settings.rate?;
        Some(self.last_token().plus((rate.period_ms + CATCH_UP_MS).div_ceil(u64::from(rate.deliveries)) + 1))
    }

    /// The instant before which the rate cap certainly does not allow the next delivery.
    pub(crate) fn token_from(&self) -> Option<Timestamp> {
        let rate = self.record.settings.rate?;
        Some(self.last_token().plus(rate.period_ms / u64::from(rate.deliveries)).minus(CATCH_UP_MS))
    }

    fn last_token(&self) -> Timestamp {
        self.delivered.last().map_or(self.paced_since, |&last| last.max(self.paced_since))
    }
}

/// Where a live message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Scheduled,
    Ready,
    Leased,
    Dead,
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Ready => "ready",
            Self::Leased => "leased",
            Self::Dead => "dead",
        }
    }
}

impl Entry {
    pub(crate) fn state(&self, advanced_to: Timestamp) -> State {
        if self.progress.dead.is_some() {
            return State::Dead;
        }
        match self.lease {
            Some(_) => State::Leased,
            None if self.progress.due_at <= advanced_to => State::Ready,
            None => State::Scheduled,
        }
    }

    /// The schedule in force.
    pub(crate) fn schedule(&self, settings: &TopicSettings) -> RetrySchedule {
        self.content.schedule.clone().unwrap_or_else(|| settings.schedule.clone())
    }

    /// The waits before the first attempt do not count as a tier.
    pub(crate) fn starts_before_tier_1(&self) -> bool {
        self.content.explicit_first_wait || self.progress.redrives > 0
    }

    pub(crate) fn max_attempts(&self, settings: &TopicSettings) -> u32 {
        let tiers = self.schedule(settings).tiers().len();
        let described = if self.starts_before_tier_1() { tiers + 1 } else { tiers };
        let default = u32::try_from(described).expect("schedules are short");
        self.content.max_attempts.or(settings.max_attempts).unwrap_or(default)
    }

    /// The durable form: the attempt history keeps the first 4 and the last 16.
    pub(crate) fn message(&self) -> Message {
        let mut message =
            Message { id: self.id, content: self.content.clone(), progress: self.progress, history: None };
        let count = self.history.len();
        let kept = self.history.iter().enumerate().filter(|&(at, _)| at < 4 || at + 16 >= count);
        let omitted = u32::try_from(count.saturating_sub(20)).expect("histories are short");
        if count > 0 {
            let entries = kept.map(|(_, entry)| entry.clone()).collect();
            message.history = Some(AttemptHistory::from_parts(entries, omitted).into());
        }
        message
    }
}
