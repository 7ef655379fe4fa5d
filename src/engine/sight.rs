//! What a question to the engine can see.

use std::sync::atomic::Ordering;

use super::handle::Seen;
use super::service::Service;
use super::signals::Signals;
use super::stats::{BrokerStats, Stats, Tally, TopicStats};
use crate::clock::Clock;
use crate::queue::Queue;
use crate::queue::change::TopicRecord;
use crate::queue::command::{FindRejection, Target};
use crate::queue::time::Timestamp;
use crate::queue::values::TopicName;

/// The state of the engine in the middle of a round.
pub(super) struct Sight<'a> {
    pub(super) now: Timestamp,
    pub(super) queue: &'a Queue,
    pub(super) service: &'a Service,
    pub(super) tally: &'a Tally,
    pub(super) signals: &'a Signals,
    pub(super) clock: &'a Clock,
    pub(super) started_at: Timestamp,
}

impl Sight<'_> {
    pub(super) fn message(&self, topic: &TopicName, target: &Target) -> Result<Option<Seen>, FindRejection> {
        let view = self.queue.look_up(self.now, topic, target, None)?;
        let id = self.queue.topic(topic).map(|record| record.id);
        let (streams, fetches) = id.map_or((0, 0), |id| self.service.interested(id));
        Ok(view.map(|view| Seen { view, consumers: streams + fetches, now: self.now }))
    }

    pub(super) fn stats(&self, topic: Option<TopicName>) -> Result<Stats, FindRejection> {
        let topics = match topic {
            Some(name) => {
                let record = self.queue.topic(&name).ok_or(FindRejection::TopicNotFound(name))?;
                vec![self.topic_stats(record)]
            }
            None => self.queue.topics(None).map(|record| self.topic_stats(record)).collect(),
        };
        Ok(Stats { topics, broker: self.broker_stats() })
    }

    fn topic_stats(&self, record: &TopicRecord) -> TopicStats {
        let (consumers, waiting_fetches) = self.service.interested(record.id);
        TopicStats {
            counts: self.queue.counts(self.now, &record.name).expect("a topic that exists has counts"),
            deliveries: self.tally.deliveries(record.id),
            lateness: self.tally.lateness(record.id),
            consumers,
            waiting_fetches,
        }
    }

    fn broker_stats(&self) -> BrokerStats {
        BrokerStats {
            epoch: self.queue.epoch(),
            started_at: self.started_at,
            now: self.now,
            clock_offset_ms: self.clock.offset_ms(),
            commits: self.signals.commits.load(Ordering::Relaxed),
            folds: self.signals.folds.load(Ordering::Relaxed),
            journal_bytes: self.signals.journal_bytes.load(Ordering::Relaxed),
        }
    }
}
