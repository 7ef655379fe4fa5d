//! Building the queue from what the store holds.
//!
//! A [`Restore`] is fed everything durable, in order, and then finished at the time of opening. After a clean
//! stop the open leases go on; otherwise they are void, and every message that was due may have been delivered.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use slab::Slab;

use super::change::{Change, DedupRecord, Finished, OpenLease, Outcome, Restored, TopicRecord, Totals};
use super::command::ConsumerId;
use super::entry::{Lease, State};
use super::limits::Limits;
use super::message::{Message, TopicId};
use super::state::{Effects, Queue};
use super::time::Timestamp;
use super::topic::Topic;
use super::wheel::Wheel;

/// A queue being restored.
#[derive(Debug)]
pub struct Restore {
    limits: Limits,
    topics: BTreeMap<TopicId, TopicRecord>,
    totals: BTreeMap<TopicId, Totals>,
    messages: FxHashMap<u64, Message>,
    ended: Vec<Finished>,
    dedup: Vec<DedupRecord>,
    epoch: u32,
    reserved_through: u64,
    /// The open leases if the last change was a clean stop.
    closed: Option<Vec<OpenLease>>,
}

impl Restore {
    /// Nothing restored yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            topics: BTreeMap::new(),
            totals: BTreeMap::new(),
            messages: FxHashMap::default(),
            ended: Vec::new(),
            dedup: Vec::new(),
            epoch: 0,
            reserved_through: 0,
            closed: None,
        }
    }

    /// Takes in the next thing that the store holds.
    pub fn record(&mut self, restored: Restored) {
        match restored {
            Restored::Topic(record) => drop(self.topics.insert(record.id, record)),
            Restored::Totals(topic, totals) => drop(self.totals.insert(topic, totals)),
            Restored::Message(message) => drop(self.messages.insert(message.id.arrival, message)),
            Restored::Ended(finished) => self.ended.push(finished),
            Restored::Dedup(record) => self.dedup.push(record),
            Restored::Change(change) => self.replay(change),
        }
    }

    /// The queue at `now`, as a new run of the broker. The changes that open the run are in `effects` and must
    /// be durable before anything else.
    pub fn finish(self, now: Timestamp, effects: &mut Effects) -> Queue {
        let clean = self.closed.is_some();
        let epoch = self.epoch.checked_add(1).expect("a store is opened fewer than 2^32 times");
        effects.changes.push(Change::Opened { epoch, at: now });
        let mut queue = Queue {
            limits: self.limits,
            epoch,
            names: self.topics.values().map(|record| (record.name.clone(), record.id)).collect(),
            topics: self.topics.into_values().map(|record| (record.id, topic(record, &self.totals, now))).collect(),
            entries: Slab::with_capacity(self.messages.len()),
            by_arrival: FxHashMap::default(),
            wheel: Wheel::new(now.as_millis()),
            leases: BTreeSet::new(),
            token_waits: BTreeSet::new(),
            next_arrival: self.reserved_through,
            reserved_through: self.reserved_through,
        };
        self.ended.into_iter().for_each(|finished| remember(&mut queue, finished));
        self.dedup.into_iter().for_each(|record| queue.topic_mut(record.topic).dedup.insert(record, now));
        let mut messages: Vec<Message> = self.messages.into_values().collect();
        messages.sort_unstable_by_key(|message| message.id.arrival);
        for message in messages {
            let maybe_delivered = !clean && message.progress.dead.is_none() && message.progress.due_at <= now;
            queue.insert(now, message, maybe_delivered);
        }
        self.closed.into_iter().flatten().for_each(|lease| reopen(&mut queue, lease, effects));
        cancel_marked(&mut queue, now, effects);
        queue
    }

    fn replay(&mut self, change: Change) {
        self.closed = None;
        match change {
            Change::TopicPut(record) => drop(self.topics.insert(record.id, record)),
            Change::Produced(message) => {
                self.totals.entry(message.id.topic).or_default().produced += 1;
                self.messages.insert(message.id.arrival, message);
            }
            Change::Moved { message, .. } => drop(self.messages.insert(message.id.arrival, message)),
            Change::Finished(finished) => {
                self.totals.entry(finished.id.topic).or_default().count(finished.outcome);
                self.messages.remove(&finished.id.arrival);
                self.ended.push(finished);
            }
            Change::DedupPut(record) => self.dedup.push(record),
            Change::ArrivalsReserved(through) => self.reserved_through = self.reserved_through.max(through),
            Change::Opened { epoch, .. } => self.epoch = self.epoch.max(epoch),
            Change::Closed { leases, .. } => self.closed = Some(leases),
        }
    }
}

fn topic(record: TopicRecord, totals: &BTreeMap<TopicId, Totals>, now: Timestamp) -> Topic {
    let totals = totals.get(&record.id).copied().unwrap_or_default();
    Topic::new(record, totals, now)
}

fn remember(queue: &mut Queue, finished: Finished) {
    let topic = queue.topic_mut(finished.id.topic);
    topic.ended.push(finished, &topic.record.settings);
}

/// A lease that outlived a clean stop goes on, without a stream.
fn reopen(queue: &mut Queue, open: OpenLease, effects: &mut Effects) {
    let index = queue.by_arrival[&open.id.arrival];
    queue.lift(index, effects);
    let timer = queue.wheel.insert(open.deadline.as_millis(), index);
    queue.leases.insert((ConsumerId::NONE, open.id.arrival));
    queue.entries[index as usize].state = State::Leased(Box::new(Lease {
        delivery: open.delivery,
        epoch: open.epoch,
        consumer: ConsumerId::NONE,
        consumer_name: open.consumer,
        delivered_at: open.delivered_at,
        deadline: open.deadline,
        timer: Some(timer),
    }));
    queue.topic_mut(open.id.topic).leased += 1;
}

/// Messages that were to be cancelled when their lease ends, and whose lease is void now.
fn cancel_marked(queue: &mut Queue, now: Timestamp, effects: &mut Effects) {
    let is_marked = |(index, entry): (usize, &super::entry::Entry)| {
        let marked = entry.message.progress.cancel_on_lease_end && !matches!(entry.state, State::Leased(_));
        marked.then(|| u32::try_from(index).expect("memory holds fewer than 2^32 messages"))
    };
    let marked: Vec<u32> = queue.entries.iter().filter_map(is_marked).collect();
    for index in marked {
        queue.lift(index, effects);
        queue.finish(now, index, Outcome::Cancelled, None, effects);
    }
}
