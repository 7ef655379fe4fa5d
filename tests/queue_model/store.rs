//! A store in memory, as naive as can be: the changes in order, and their fold into records.
//!
//! Folding checks the contract that the real store relies on: a message is produced once, a change names the
//! place where the message was kept before, epochs and reservations ascend, and nothing follows a `Closed` but a
//! new start.

use std::collections::BTreeMap;

use duewheel::queue::change::{Change, DedupRecord, Finished, OpenLease, Restored, TopicRecord, Totals};
use duewheel::queue::message::{Message, TopicId};
use duewheel::queue::time::Timestamp;

/// Everything that is durable.
#[derive(Clone, Default)]
pub(crate) struct Store {
    folded: Records,
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
    pub(crate) reserved: u64,
    pub(crate) epoch: u32,
    pub(crate) opened_at: Timestamp,
    /// Set if the last change was a clean close.
    pub(crate) closed: Option<(Timestamp, Vec<OpenLease>)>,
}

impl Store {
    /// Makes changes durable.
    pub(crate) fn commit(&mut self, changes: &[Change]) {
        for change in changes {
            self.records.apply(change);
            self.changes.push(change.clone());
        }
    }

    /// Moves what the changes amount to into records.
    pub(crate) fn fold(&mut self) {
        self.folded = self.records.clone();
        self.changes.clear();
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
        restored.extend(records.messages.values().cloned().map(Restored::Message));
        restored.extend(records.ended.iter().cloned().map(Restored::Ended));
        restored.extend(records.dedups.iter().cloned().map(Restored::Dedup));
        if records.reserved > 0 {
            restored.push(Restored::Change(Change::ArrivalsReserved(records.reserved)));
        }
        if records.epoch > 0 {
            restored.push(Restored::Change(Change::Opened { epoch: records.epoch, at: records.opened_at }));
        }
        if let Some((at, leases)) = records.closed.clone() {
            restored.push(Restored::Change(Change::Closed { at, leases }));
        }
        restored.extend(self.changes.iter().cloned().map(Restored::Change));
        restored
    }
}

impl Records {
    fn apply(&mut self, change: &Change) {
        self.closed = None;
        match change {
            Change::TopicPut(record) => {
                self.topics.insert(record.id, record.clone());
                self.totals.entry(record.id).or_default();
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
            Change::ArrivalsReserved(through) => {
                assert!(*through > self.reserved, "reservations ascend");
                self.reserved = *through;
            }
            Change::Opened { epoch, at } => {
                assert!(*epoch > self.epoch, "epochs ascend");
                (self.epoch, self.opened_at) = (*epoch, *at);
            }
            Change::Closed { at, leases } => self.closed = Some((*at, leases.clone())),
        }
    }
}
