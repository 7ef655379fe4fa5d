//! A store in memory, as naive as can be: the changes in order, and their fold into records.
//!
//! Folding checks the contract that the real store relies on: a message is produced once, a change names the
//! place where the message was kept before, epochs and reservations ascend, and nothing follows a `Closed` but a
//! new start.

use std::collections::BTreeMap;

use duewheel::queue::change::{Change, Closing, DedupRecord, Finished, Restored, TopicRecord, Totals};
use duewheel::queue::due::FirstInPages;
use duewheel::queue::far::{Carried, Load, Loaded, Missing};
use duewheel::queue::key_hash;
use duewheel::queue::message::{Message, Place, TopicId};
use duewheel::queue::time::Timestamp;

/// Everything that is durable.
#[derive(Clone, Default)]
pub(crate) struct Store {
    /// As of the last durable fold.
    folded: Records,
    /// Messages in pages as of the last durable fold, by arrival number. What is live and not here was carried.
    pages: BTreeMap<u64, Message>,
    /// Number of the last durable fold.
    fold: u64,
    /// What is being folded, and how many of the changes it covers.
    frozen: Option<(Records, usize)>,
    /// Changes since the last fold.
    changes: Vec<Change>,
    /// The fold of everything, kept up to date with each change.
    pub(crate) records: Records,
}

/// What the changes amount to.
#[derive(Clone, Default)]
pub(crate) struct Records {
    pub(crate) topics: BTreeMap<TopicId, TopicRecord>,
    pub(crate) totals: BTreeMap<TopicId, Totals>,
    /// By arrival number.
    pub(crate) messages: BTreeMap<u64, Message>,
    /// Oldest first.
    pub(crate) ended: Vec<Finished>,
    pub(crate) dedups: Vec<DedupRecord>,
    /// The highest number that a topic ever had.
    pub(crate) last_topic: TopicId,
    pub(crate) reserved: u64,
    pub(crate) epoch: u32,
    pub(crate) opened_at: Timestamp,
    /// Set if the last change was a clean close.
    pub(crate) closed: Option<Closing>,
}

impl Store {
    /// Makes changes durable.
    pub(crate) fn commit(&mut self, changes: &[Change]) {
        for change in changes {
            self.records.apply(change);
            self.changes.push(change.clone());
        }
    }

    /// Starts a fold of everything durable so far; false if one is under way.
    pub(crate) fn freeze(&mut self) -> bool {
        if self.frozen.is_some() {
            return false;
        }
        self.frozen = Some((self.records.clone(), self.changes.len()));
        true
    }

    /// Makes the fold durable. Messages that changed since the last fold, or were carried then, are carried (stay
    /// in the journal) if `carry` says so. Returns the number of the fold and the carried messages.
    pub(crate) fn complete(&mut self, mut carry: impl FnMut() -> bool) -> Option<(u64, Vec<Carried>)> {
        let (records, covered) = self.frozen.take()?;
        let is_paged = |message: &Message| self.pages.get(&message.id.arrival) == Some(message);
        let young = records.messages.values().filter(|message| !is_paged(message));
        let carried: Vec<Carried> = young
            .filter(|message| message.progress.cancel_on_lease_end || carry())
            .map(|message| Carried { topic: message.id.topic, arrival: message.id.arrival, place: message.place() })
            .collect();
        // The pages of a topic that was deleted since stay until the fold after this one.
        self.pages = records.messages.clone();
        self.pages.retain(|arrival, _| carried.iter().all(|carried| carried.arrival != *arrival));
        self.changes.drain(..covered);
        self.folded = records;
        self.fold += 1;
        Some((self.fold, carried))
    }

    /// Reads the message that a command needs and memory does not know.
    pub(crate) fn find(&self, missing: &Missing) -> Option<Message> {
        let at = |&(arrival, place): &(u64, Place)| self.pages.get(&arrival).filter(|message| message.place() == place);
        let has_key =
            |message: &&Message| missing.key.as_ref().is_none_or(|key| message.content.key.as_ref() == Some(key));
        missing.candidates.iter().filter_map(at).find(has_key).cloned()
    }

    /// Reads a part of a topic.
    pub(crate) fn load(&self, load: Load) -> Loaded {
        assert_eq!(load.fold, self.fold, "a load of the last fold");
        let order = |message: &Message| (message.progress.due_at, message.id.arrival);
        let waits = |message: &&Message| message.id.topic == load.topic && message.progress.dead.is_none();
        let mut messages: Vec<Message> = self.pages.values().filter(waits).cloned().collect();
        messages.retain(|message| order(message) >= load.from);
        messages.sort_by_key(order);
        let frontier = messages.get(load.max).map(order);
        messages.truncate(load.max);
        Loaded { load, messages, frontier }
    }

    /// Waiting messages of a topic in pages in each of the spans between `edges`.
    pub(crate) fn due(&self, topic: TopicId, edges: &[Timestamp]) -> Vec<u64> {
        let waits = |message: &&Message| message.id.topic == topic && message.progress.dead.is_none();
        let due: Vec<Timestamp> = self.pages.values().filter(waits).map(|message| message.progress.due_at).collect();
        let count = |ends: &[Timestamp]| due.iter().filter(|&&at| ends[0] <= at && at < ends[1]).count() as u64;
        edges.windows(2).map(count).collect()
    }

    /// Due times of the first waiting messages of a topic in pages from a place in its order on.
    pub(crate) fn first_due(&self, topic: TopicId, from: (Timestamp, u64), max: usize) -> FirstInPages {
        let load = Load { topic, from, max, fold: self.fold };
        let Loaded { messages, frontier, .. } = self.load(load);
        let mut due: Vec<(Timestamp, u32)> = Vec::new();
        for at in messages.iter().map(|message| message.progress.due_at) {
            match due.last_mut().filter(|last| last.0 == at) {
                Some((_, count)) => *count += 1,
                None => due.push((at, 1)),
            }
        }
        FirstInPages { due, is_all: frontier.is_none() }
    }

    /// Dead letters of a topic on disk, in order.
    pub(crate) fn dead(&self, topic: TopicId) -> Vec<Message> {
        let mut dead: Vec<Message> = self.pages.values().filter(|message| message.id.topic == topic).cloned().collect();
        dead.retain(|message| message.progress.dead.is_some());
        dead.sort_by_key(|message| (message.progress.dead.map(|(_, at)| at), message.id.arrival));
        dead
    }

    /// The broker is gone; a fold that was not durable never was.
    pub(crate) fn lose_unfinished_fold(&mut self) {
        self.frozen = None;
    }

    /// True if the broker has stopped cleanly.
    pub(crate) fn is_clean(&self) -> bool {
        self.records.closed.is_some()
    }

    /// What a restoring queue is told.
    pub(crate) fn restored(&self) -> Vec<Restored> {
        let records = &self.folded;
        let mut restored: Vec<Restored> = records.topics.values().cloned().map(Restored::Topic).collect();
        restored.extend(records.totals.iter().map(|(&topic, &totals)| Restored::Totals(topic, totals)));
        restored.push(Restored::LastTopic(records.last_topic));
        restored.push(Restored::Fold(self.fold));
        for &topic in records.topics.keys() {
            let of_topic = || self.pages.values().filter(|message| message.id.topic == topic);
            let waiting = || of_topic().filter(|message| message.progress.dead.is_none());
            let first = waiting().map(|message| (message.progress.due_at, message.id.arrival)).min();
            let (waiting, all) = (waiting().count() as u64, of_topic().count() as u64);
            restored.push(Restored::Stored { topic, waiting, dead: all - waiting, first });
        }
        restored.extend(self.pages.values().filter_map(index));
        let carried = records.messages.values().filter(|message| !self.pages.contains_key(&message.id.arrival));
        restored.extend(carried.cloned().map(Restored::Message));
        restored.extend(records.ended.iter().cloned().map(Restored::Ended));
        restored.extend(records.dedups.iter().cloned().map(Restored::Dedup));
        if records.reserved > 0 {
            restored.push(Restored::Change(Change::ArrivalsReserved(records.reserved)));
        }
        if records.epoch > 0 {
            restored.push(Restored::Change(Change::Opened { epoch: records.epoch, at: records.opened_at }));
        }
        if let Some(closing) = records.closed.clone() {
            restored.push(Restored::Change(Change::Closed(closing)));
        }
        restored.extend(self.changes.iter().cloned().map(Restored::Change));
        restored
    }
}

/// What the index says of a message in pages.
fn index(message: &Message) -> Option<Restored> {
    let (id, place) = (message.id, message.place());
    let key_hash = message.content.key.as_ref().filter(|_| message.progress.holds_key).map(key_hash);
    let is_indexed = key_hash.is_some() || place != Place::Due(id.birth_due);
    is_indexed.then_some(Restored::Index { id, place, key_hash })
}

impl Records {
    fn apply(&mut self, change: &Change) {
        self.closed = None;
        match change {
            Change::TopicPut(record) => {
                assert!(record.id <= self.last_topic || !self.topics.contains_key(&record.id), "topic numbers ascend");
                self.last_topic = self.last_topic.max(record.id);
                self.topics.insert(record.id, record.clone());
                self.totals.entry(record.id).or_default();
            }
            Change::TopicDeleted { topic, .. } => {
                self.topics.remove(topic).expect("only a topic that exists is deleted");
                self.totals.remove(topic);
                self.messages.retain(|_, message| message.id.topic != *topic);
                self.ended.retain(|finished| finished.id.topic != *topic);
                self.dedups.retain(|dedup| dedup.topic != *topic);
            }
            Change::Produced(message) => {
                let id = message.id;
                assert!(id.arrival < self.reserved, "{id} was produced beyond the reserved arrivals {}", self.reserved);
                self.totals.get_mut(&id.topic).expect("the topic of a message is stored before it").produced += 1;
                assert!(self.messages.insert(id.arrival, message.clone()).is_none(), "{id} was produced twice");
            }
            Change::Moved { message, previous, entry } => {
                let stored = self.messages.get_mut(&message.id.arrival).expect("only a live message moves");
                assert_eq!(stored.id, message.id, "an id changed");
                assert_eq!(stored.place(), *previous, "{} was not kept where its change says", message.id);
                assert_eq!(stored.content, message.content, "content changed");
                if let Some(entry) = entry {
                    let last = message.history.as_ref().and_then(|history| history.iter().last());
                    assert_eq!(last, Some(entry), "the entry is not part of the history");
                }
                *stored = message.clone();
            }
            Change::Finished(finished) => {
                let stored = self.messages.remove(&finished.id.arrival).expect("only a live message ends");
                assert_eq!(stored.id, finished.id, "an id changed");
                assert_eq!(stored.place(), finished.previous, "{} was not kept where its end says", finished.id);
                assert_eq!(stored.content.key, finished.key, "a key changed");
                self.totals.get_mut(&finished.id.topic).expect("the topic is stored").count(finished.outcome);
                self.ended.push(finished.clone());
            }
            Change::DedupPut(record) => {
                self.dedups.retain(|old| (old.topic, &old.dedup_id) != (record.topic, &record.dedup_id));
                self.dedups.push(record.clone());
            }
            Change::Quarantined(part) => panic!("nothing is damaged: {part}"),
            Change::ArrivalsReserved(through) => {
                assert!(*through > self.reserved, "reservations ascend");
                self.reserved = *through;
            }
            Change::Opened { epoch, at } => {
                assert!(*epoch > self.epoch, "epochs ascend");
                (self.epoch, self.opened_at) = (*epoch, *at);
            }
            Change::Closed(closing) => self.closed = Some(closing.clone()),
        }
    }
}
