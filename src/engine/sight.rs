//! What a question to the engine can see.

use std::cell::RefCell;
use std::mem;
use std::sync::atomic::Ordering;

use super::due::{DueInPages, DueQuestion};
use super::handle::Seen;
use super::pages::Reads;
use super::reclaim::Reclaiming;
use super::service::Service;
use super::signals::Signals;
use super::stats::{Audience, BrokerStats, Stats, StatsOf, Tally, TopicStats};
use crate::clock::Clock;
use crate::queue::Queue;
use crate::queue::change::TopicRecord;
use crate::queue::command::{DeletedTopic, FindRejection, Target};
use crate::queue::dead::{DeadPage, DeadQuery};
use crate::queue::limits::MAX_PAGE_SIZE;
use crate::queue::time::Timestamp;
use crate::queue::values::TopicName;
use crate::store::ReadError;

/// An answer to a question about counts.
pub(super) enum StatsSeen {
    /// The answer.
    Whole(Box<Stats>),
    /// This is to be counted in the pages first.
    Needs(DueQuestion),
}

/// The state of the engine in the middle of a round.
pub(super) struct Sight<'a> {
    pub(super) now: Timestamp,
    pub(super) queue: &'a Queue,
    pub(super) pages: &'a RefCell<Box<dyn Reads>>,
    pub(super) service: &'a Service,
    pub(super) tally: &'a Tally,
    pub(super) signals: &'a Signals,
    pub(super) clock: &'a Clock,
    pub(super) started_at: Timestamp,
}

impl Sight<'_> {
    pub(super) fn message(&self, topic: &TopicName, target: &Target) -> Result<Option<Seen>, FindRejection> {
        let missing = self.queue.missing_target(topic, target);
        let found = missing.map(|missing| self.pages.borrow_mut().find(&missing)).transpose();
        let found = found.map_err(|error| unreadable(&error))?.flatten();
        let view = self.queue.look_up(self.now, topic, target, found.as_ref())?;
        Ok(view.map(|view| Seen { view, audience: self.audience(topic), now: self.now }))
    }

    /// Who takes messages of a topic.
    pub(super) fn audience(&self, topic: &TopicName) -> Audience {
        let Some(counts) = self.queue.counts(self.now, topic) else { return Audience::default() };
        let (streams, fetches) = self.service.interested(counts.topic.id);
        Audience { waiting: streams + fetches, leased: counts.leased }
    }

    /// Counts and lateness of one topic or of several; or what is to be counted in the pages first.
    pub(super) fn stats(
        &self,
        of: &StatsOf,
        with_timeline: bool,
        in_pages: Option<&DueInPages>,
    ) -> Result<StatsSeen, FindRejection> {
        let topics: Vec<&TopicRecord> = match of {
            StatsOf::Topic(name) => {
                vec![self.queue.topic(name).ok_or_else(|| FindRejection::TopicNotFound(name.clone()))?]
            }
            StatsOf::Topics(after, limit) => self.queue.topics(after.as_ref()).take(*limit).collect(),
        };
        let in_pages = in_pages.filter(|counted| counted.is_valid(self.pages.borrow().run()));
        if in_pages.is_none()
            && let Some(question) = DueQuestion::about(self.queue, self.now, with_timeline, topics.iter().copied())
        {
            return Ok(StatsSeen::Needs(question));
        }
        let topics = topics.into_iter().map(|record| self.topic_stats(record, in_pages)).collect();
        Ok(StatsSeen::Whole(Box::new(Stats { topics, broker: self.broker_stats() })))
    }

    fn topic_stats(&self, record: &TopicRecord, in_pages: Option<&DueInPages>) -> TopicStats {
        let (consumers, waiting_fetches) = self.service.interested(record.id);
        let mut counts = self.queue.counts(self.now, &record.name).expect("a topic that exists has counts");
        let timeline = in_pages.and_then(|in_pages| in_pages.join(self.queue, &mut counts));
        // What is on disk only is not due before the frontier; if that has passed, the pages have said what is due.
        counts.scheduled += mem::take(&mut counts.stored);
        TopicStats {
            counts,
            timeline,
            deliveries: self.tally.deliveries(record.id),
            lateness: self.tally.lateness(record.id),
            consumers,
            waiting_fetches,
        }
    }

    /// Dead letters of a topic; see [`Queue::dead_letters`].
    pub(super) fn dead_letters(&self, topic: &TopicName, query: &DeadQuery) -> Result<DeadPage, FindRejection> {
        let id = self.queue.topic(topic).ok_or_else(|| FindRejection::TopicNotFound(topic.clone()))?.id;
        // What memory overrules or the filter leaves out is read all the same; more than a page of a listing is not.
        let stored = self.pages.borrow_mut().dead(id, query.begins_after(), MAX_PAGE_SIZE as usize);
        let stored = stored.map_err(|error| unreadable(&error))?;
        self.queue.dead_letters(self.now, topic, query, &stored)
    }

    /// How far the room of a deleted topic is given back.
    pub(super) fn reclaiming(&self, deleted: &DeletedTopic) -> Reclaiming {
        let is_folded = deleted.generation.is_none_or(|generation| self.queue.is_deletion_folded(generation));
        Reclaiming { pages: self.pages.borrow().pages_of(deleted.id), is_folded }
    }

    pub(super) fn broker_stats(&self) -> BrokerStats {
        BrokerStats {
            epoch: self.queue.epoch(),
            started_at: self.started_at,
            now: self.now,
            clock_offset_ms: self.clock.offset_ms(),
            commits: self.signals.commits.load(Ordering::Relaxed),
            folds: self.signals.folds.load(Ordering::Relaxed),
            journal_bytes: self.signals.journal_bytes.load(Ordering::Relaxed),
            disk: self.signals.disk.view(),
        }
    }
}

/// What is on disk cannot be read.
pub(super) fn unreadable(error: &ReadError) -> FindRejection {
    match error {
        // A page store that has failed ends the broker: it is to be asked again after that.
        ReadError::Overtaken | ReadError::Failed { .. } => FindRejection::PagesMoving,
        ReadError::Damaged { .. } => FindRejection::Damaged(error.to_string()),
    }
}
