//! How many messages wait at which instant, without looking at any of them.
//!
//! The store's directory counts the waiting messages in pages by due time, as of the last fold. What has changed
//! since is kept here as *shifts*: per instant, how many more or fewer messages wait than the pages say. Both
//! together are exact. A message that is loaded into memory, or leaves it, changes nothing; so this follows the
//! changes that are to be made durable, and nothing else. It costs 16 bytes for each due time that such a change came
//! from or went to, until the fold after it: a list to append to, which only a question adds up.

use std::collections::BTreeMap;

use super::limits::DAY_MS;
use super::message::{Message, Place, TopicId};
use super::state::Queue;
use super::stored::NO_FRONTIER;
use super::time::Timestamp;
use super::values::TopicName;

/// Spans of a timeline that are one minute long.
pub const TIMELINE_MINUTES: usize = 60;
/// Spans of a timeline that are one hour long.
pub const TIMELINE_HOURS: usize = 48;
/// Spans of a timeline that are one day long; a last span holds everything after.
pub const TIMELINE_DAYS: usize = 35;

/// The ends of the spans of a timeline at `now`: minutes, hours, then days, and one for the rest. Each span goes from
/// one end up to the next, without it. The first instant is the one after `now`; all others but the last are whole
/// minutes, hours and days of UTC, so the first span of each length may be shorter.
pub fn timeline_edges(now: Timestamp) -> Vec<Timestamp> {
    let mut edges = vec![now.plus(1)];
    for (width, count) in [(60_000, TIMELINE_MINUTES), (60 * 60_000, TIMELINE_HOURS), (DAY_MS, TIMELINE_DAYS)] {
        let last = edges.last().expect("there is a first").as_millis();
        let first = last / width + 1;
        edges.extend((0..count as u64).map(|n| Timestamp::from_millis((first + n).saturating_mul(width))));
    }
    edges.push(Timestamp::MAX);
    edges
}

/// Each says at which due time how many messages more wait than the pages say.
type Differences = Vec<(Timestamp, i32)>;

/// What has changed since the fold that the pages have.
#[derive(Debug, Default)]
pub(super) struct Shifts {
    /// In the present generation.
    young: Differences,
    /// In the generation that is being folded.
    frozen: Differences,
    /// Leases that outlived a clean stop do not wait. Only these may be of messages that are due later than now, since
    /// the clock may have been set back between the runs; any other leased message counts as due.
    reopened: Differences,
}

impl Shifts {
    /// A message has come to a place, or left one.
    pub(super) fn note(&mut self, from: Option<Place>, to: Option<Place>) {
        if from == to {
            return;
        }
        if let Some(Place::Due(at)) = from {
            self.young.push((at, -1));
        }
        if let Some(Place::Due(at)) = to {
            self.young.push((at, 1));
        }
    }

    /// A lease of an earlier run goes on.
    pub(super) fn reopened(&mut self, due_at: Timestamp) {
        self.reopened.push((due_at, -1));
    }

    /// Such a lease has ended.
    pub(super) fn reopened_ended(&mut self, due_at: Timestamp) {
        self.reopened.push((due_at, 1));
    }

    /// The generation ends.
    pub(super) fn freeze(&mut self) {
        self.frozen = std::mem::take(&mut self.young);
    }

    /// The pages have the frozen generation.
    pub(super) fn folded(&mut self) {
        self.frozen = Differences::default();
    }

    /// How many more messages wait for an instant in each of the spans between `edges`, which ascend.
    fn between(&self, edges: &[Timestamp]) -> Vec<i64> {
        let mut counts = vec![0_i64; edges.len().saturating_sub(1)];
        for (at, difference) in self.all() {
            let span = edges.partition_point(|&edge| edge <= at).checked_sub(1);
            if let Some(count) = span.and_then(|span| counts.get_mut(span)) {
                *count += difference;
            }
        }
        counts
    }

    /// Adds how many more messages wait for each of the instants of `counts`.
    fn add_to(&self, counts: &mut BTreeMap<Timestamp, i64>) {
        for (at, difference) in self.all() {
            counts.entry(at).and_modify(|count| *count += difference);
        }
    }

    fn all(&self) -> impl Iterator<Item = (Timestamp, i64)> {
        let all = [&self.young, &self.frozen, &self.reopened].into_iter().flatten();
        all.map(|&(at, difference)| (at, i64::from(difference)))
    }
}

/// What the pages say of the first waiting messages of a topic from the instant of its frontier on, as of the last
/// fold. All of that instant count, also those before the frontier: what has changed since is known per instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FirstInPages {
    /// Due times, ascending, and how many messages wait for each.
    pub due: Vec<(Timestamp, u32)>,
    /// Nothing waits in the pages after these; else no more was read.
    pub is_all: bool,
}

impl Queue {
    /// How many messages of a topic wait for an instant in each of the spans between `edges`, which ascend and begin
    /// after the present instant. `in_pages` is what the pages of the last fold say of the same spans. `None`: there
    /// is no such topic.
    pub fn due_between(&self, topic: &TopicName, edges: &[Timestamp], in_pages: &[u64]) -> Option<Vec<u64>> {
        let topic = &self.topics[&self.topic_id(topic)?];
        let shifts = topic.shifts.between(edges);
        let counts = in_pages.iter().zip(shifts).map(|(&count, shift)| count.saturating_add_signed(shift));
        Some(counts.collect())
    }

    /// Due time of the first message of a topic that waits for a consumer: the first ready one in memory, or one on
    /// disk only, by what the pages say from the instant of the frontier on. Exact, unless all that was read there has ended or moved
    /// since the last fold: then it is the last instant read, and nothing waits before it.
    pub fn oldest_overdue(&self, now: Timestamp, topic: &TopicName, in_pages: &FirstInPages) -> Option<Timestamp> {
        let topic = &self.topics[&self.topic_id(topic)?];
        let mut counts = in_pages.due.iter().map(|&(at, count)| (at, i64::from(count))).collect();
        topic.shifts.add_to(&mut counts);
        let found = counts.iter().find(|&(_, &count)| count > 0).map(|(&at, _)| at);
        let on_disk = found.or(in_pages.due.last().filter(|_| !in_pages.is_all).map(|&(at, _)| at));
        let in_memory = topic.ready.first_key_value().map(|(&(at, _), _)| at);
        on_disk.into_iter().chain(in_memory).min().filter(|&at| at <= now)
    }

    /// Nothing of a topic that is on disk only comes before this place in its order; `None` if nothing is.
    pub fn frontier(&self, topic: TopicId) -> Option<(Timestamp, u64)> {
        self.topics.get(&topic).map(|topic| topic.stored.frontier).filter(|&frontier| frontier != NO_FRONTIER)
    }

    /// Notes that a waiting message has come to a place, or left one.
    pub(super) fn shift(&mut self, message: &Message, from: Option<Place>, to: Option<Place>) {
        self.topic_mut(message.id.topic).shifts.note(from, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spans_of_a_timeline_are_whole_minutes_hours_and_days_without_a_gap() {
        for now in [0, 59_999, 60_000, 1_700_000_000_000, 1_699_999_199_999, 1_700_006_399_999] {
            let now = Timestamp::from_millis(now);
            let edges = timeline_edges(now);
            assert_eq!(edges.len(), TIMELINE_MINUTES + TIMELINE_HOURS + TIMELINE_DAYS + 2);
            assert_eq!((edges[0], edges[edges.len() - 1]), (now.plus(1), Timestamp::MAX));
            assert!(edges.is_sorted_by(|a, b| a < b), "{now}: {edges:?}");
            let mut rest = &edges[1..];
            for (width, count) in [(60_000, TIMELINE_MINUTES), (3_600_000, TIMELINE_HOURS), (DAY_MS, TIMELINE_DAYS)] {
                let (these, others) = rest.split_at(count);
                assert!(these.iter().all(|edge| edge.as_millis().is_multiple_of(width)));
                assert!(these.windows(2).all(|pair| pair[1].since(pair[0]) == width));
                rest = others;
            }
        }
    }

    #[test]
    fn shifts_count_what_came_and_went_until_it_is_folded() {
        let at = |ms| Timestamp::from_millis(ms);
        let due = |ms| Some(Place::Due(at(ms)));
        let edges = [at(5), at(10), at(20), Timestamp::MAX];
        let mut shifts = Shifts::default();
        shifts.note(None, due(9));
        shifts.note(None, due(4));
        shifts.note(due(9), due(19));
        shifts.note(due(12), Some(Place::Dead(at(3))));
        assert_eq!(shifts.between(&edges), [0, 0, 0]);
        let mut counts = [at(19), at(12), at(9)].map(|at| (at, 0)).into();
        shifts.add_to(&mut counts);
        assert_eq!(counts, [(at(9), 0), (at(12), -1), (at(19), 1)].into());
        shifts.freeze();
        shifts.note(due(19), None);
        shifts.note(None, due(30));
        assert_eq!(shifts.between(&edges), [0, -1, 1]);
        shifts.folded();
        assert_eq!(shifts.between(&edges), [0, -1, 1]);
        shifts.freeze();
        shifts.folded();
        assert_eq!(shifts.between(&edges), [0, 0, 0]);
        shifts.reopened(at(30));
        assert_eq!(shifts.between(&edges), [0, 0, -1]);
        shifts.reopened_ended(at(30));
        assert_eq!(shifts.between(&edges), [0, 0, 0]);
    }
}
