//! Looking at the queue without changing it.

use std::ops::Bound;

use super::change::TopicRecord;
use super::command::{FindRejection, Target};
use super::entry::State;
use super::lease::hindrance;
use super::limits::Limits;
use super::message::{Message, Progress};
use super::state::{Found, Queue};
use super::stored::NO_FRONTIER;
use super::time::Timestamp;
use super::topic::Topic;
use super::transition::max_attempts;
use super::values::TopicName;
use super::view::{LiveView, MessageView, StateView, TopicCounts};

/// Ready messages before one are counted up to this many.
const MOST_COUNTED_AHEAD: usize = 1_000;

impl Queue {
    /// The limits in force.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The number of this run of the broker.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Everything known about a message; `None` if nothing by that id or key is live or remembered. `found` is the
    /// stored record, if memory does not hold it.
    ///
    /// # Errors
    /// [`FindRejection::TopicNotFound`].
    pub fn look_up(
        &self,
        now: Timestamp,
        topic: &TopicName,
        target: &Target,
        found: Option<&Message>,
    ) -> Result<Option<MessageView>, FindRejection> {
        let topic = self.existing(topic)?;
        let found = found.filter(|message| !self.overrules(message.id.arrival));
        Ok(match (self.find(topic, target, now), found) {
            (Found::Live(index), _) => Some(MessageView::Live(Box::new(self.live_view(now, index, true)))),
            (_, Some(message)) => Some(MessageView::Live(Box::new(self.stored_view(now, message)))),
            (Found::Gone(finished), None) => Some(MessageView::Gone(finished.clone())),
            (Found::Nothing, None) => None,
        })
    }

    /// The topic of that name.
    pub fn topic(&self, name: &TopicName) -> Option<&TopicRecord> {
        self.topic_id(name).map(|id| &self.topics[&id].record)
    }

    /// Topics by name, from the one after `after` on.
    pub fn topics(&self, after: Option<&TopicName>) -> impl Iterator<Item = &TopicRecord> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.names.range::<TopicName, _>((start, Bound::Unbounded)).map(|(_, id)| &self.topics[id].record)
    }

    /// Counts of a topic, in constant time.
    pub fn counts(&self, now: Timestamp, name: &TopicName) -> Option<TopicCounts> {
        let topic = &self.topics[&self.topic_id(name)?];
        let first = topic.ready.first_key_value().map_or(Timestamp::MAX, |(&(due_at, _), _)| due_at);
        let oldest = first.min(topic.stored.frontier.0);
        Some(TopicCounts {
            topic: topic.record.clone(),
            scheduled: topic.scheduled,
            ready: topic.ready.len() as u64,
            leased: topic.leased.len() as u64,
            dead: topic.dead.len() as u64 + topic.stored.dead,
            stored: topic.stored.waiting,
            frontier: (topic.stored.frontier != NO_FRONTIER).then_some(topic.stored.frontier.0),
            totals: topic.totals,
            oldest_ready_due_at: (oldest <= now).then_some(oldest),
        })
    }

    pub(super) fn live_view(&self, now: Timestamp, index: u32, counts_ahead: bool) -> LiveView {
        let entry = &self.entries[index as usize];
        let message = &entry.message;
        let topic = &self.topics[&message.id.topic];
        let state = match &entry.state {
            State::Scheduled(_) => StateView::Scheduled,
            State::Dead => StateView::Dead,
            State::Leased(lease) => StateView::Leased {
                consumer: lease.consumer_name.clone(),
                delivered_at: lease.delivered_at,
                deadline: lease.deadline,
            },
            State::Ready => {
                let order = (message.progress.due_at, message.id.arrival);
                let count = || topic.ready.range(..order).take(MOST_COUNTED_AHEAD + 1).count();
                let ahead = counts_ahead.then(count).filter(|&ahead| ahead <= MOST_COUNTED_AHEAD);
                let ahead = ahead.map(|ahead| ahead as u64);
                StateView::Ready { hindrance: hindrance(topic, now), ahead }
            }
        };
        view(topic, message, state)
    }

    /// The view of a message that is on disk only.
    pub(super) fn stored_view(&self, now: Timestamp, message: &Message) -> LiveView {
        let topic = &self.topics[&message.id.topic];
        let state = match message.progress {
            Progress { dead: Some(_), .. } => StateView::Dead,
            Progress { due_at, .. } if due_at > now => StateView::Scheduled,
            _ => StateView::Ready { hindrance: hindrance(topic, now), ahead: None },
        };
        view(topic, message, state)
    }
}

fn view(topic: &Topic, message: &Message, state: StateView) -> LiveView {
    LiveView {
        topic: topic.record.clone(),
        message: message.clone(),
        state,
        max_attempts: max_attempts(message, &topic.record.settings),
    }
}
