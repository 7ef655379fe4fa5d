//! What is due when: the part of it that only the pages know, asked for apart and joined with what memory knows.
//!
//! The owner never waits for a disk to answer a question about counts. It says what it needs from the pages; the
//! look thread counts that; and the owner joins both if the pages are still those that were counted. If not, the
//! question is asked again; what was counted of pages that stay is kept.

use std::collections::BTreeMap;

use super::pages::Reads;
use crate::queue::Queue;
use crate::queue::change::TopicRecord;
use crate::queue::due::{FirstInPages, timeline_edges};
use crate::queue::message::TopicId;
use crate::queue::time::Timestamp;
use crate::queue::view::TopicCounts;
use crate::store::ReadError;

/// How many messages fall due in a span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueSpan {
    /// Its first instant.
    pub from: Timestamp,
    /// The first instant after it; [`Timestamp::MAX`]: it has no end.
    pub until: Timestamp,
    /// Scheduled messages that are due in it.
    pub count: u64,
}

/// What is to be counted in the pages.
pub(super) struct DueQuestion {
    at: Timestamp,
    edges: Vec<Timestamp>,
    is_timeline: bool,
    /// With the frontier, if that has passed.
    topics: Vec<(TopicId, Option<(Timestamp, u64)>)>,
}

/// What was counted.
pub(super) struct DueInPages {
    question: DueQuestion,
    /// The last change of the pages before it was counted.
    run: u64,
    topics: BTreeMap<TopicId, (Vec<u64>, FirstInPages)>,
}

impl DueQuestion {
    /// What the pages have to say about these topics at `at`; `None` if memory knows everything.
    pub(super) fn about<'a>(
        queue: &Queue,
        at: Timestamp,
        is_timeline: bool,
        topics: impl Iterator<Item = &'a TopicRecord>,
    ) -> Option<Self> {
        let passed = |record: &TopicRecord| queue.frontier(record.id).filter(|frontier| frontier.0 <= at);
        let topics = topics.map(|record| (record.id, passed(record)));
        let topics: Vec<_> = topics.filter(|(_, passed)| is_timeline || passed.is_some()).collect();
        let edges = if is_timeline { timeline_edges(at) } else { vec![at.plus(1), Timestamp::MAX] };
        (!topics.is_empty()).then_some(Self { at, edges, is_timeline, topics })
    }

    /// Counts. Of a topic whose pages are damaged nothing is said, unless it is a timeline that was asked for.
    pub(super) fn answer(self, pages: &mut dyn Reads) -> Result<DueInPages, ReadError> {
        let mut topics = BTreeMap::new();
        for &(topic, frontier) in &self.topics {
            let first = frontier.map(|frontier| pages.first_due(topic, (frontier.0, 0))).transpose();
            match first.and_then(|first| Ok((pages.due(topic, &self.edges)?, first.unwrap_or_default()))) {
                Ok(counted) => drop(topics.insert(topic, counted)),
                Err(ReadError::Damaged { .. }) if !self.is_timeline => {}
                Err(error) => return Err(error),
            }
        }
        Ok(DueInPages { question: self, run: pages.run(), topics })
    }
}

impl DueInPages {
    /// True if nothing has changed in the pages since.
    pub(super) fn is_valid(&self, run: u64) -> bool {
        self.run == run
    }

    /// Makes the counts of a topic exact, as of the moment of the question, and gives its timeline.
    pub(super) fn join(&self, queue: &Queue, counts: &mut TopicCounts) -> Option<Vec<DueSpan>> {
        let (name, id) = (&counts.topic.name, counts.topic.id);
        let (in_pages, first) = self.topics.get(&id)?;
        let due = queue.due_between(name, &self.question.edges, in_pages)?;
        counts.oldest_ready_due_at = queue.oldest_overdue(self.question.at, name, first);
        let waiting = counts.scheduled + counts.ready + counts.stored;
        counts.scheduled = due.iter().sum::<u64>().min(waiting);
        counts.ready = waiting - counts.scheduled;
        counts.stored = 0;
        // Where all that was read has ended it is not known how much later the first one is; that there is one is.
        counts.oldest_ready_due_at = counts.oldest_ready_due_at.filter(|_| counts.ready > 0);
        let spans = self.question.edges.windows(2).zip(due);
        let spans = spans.map(|(ends, count)| DueSpan { from: ends[0], until: ends[1], count });
        self.question.is_timeline.then(|| spans.collect())
    }
}
