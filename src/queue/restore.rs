//! Building the queue from what the store holds.
//!
//! A [`Restore`] is fed everything durable, in order, and then finished at the time of opening. After a clean
//! stop the open leases go on; otherwise they are void, and every message that was due may have been delivered.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::{FxHashMap, FxHashSet};
use slab::Slab;

use super::change::{Change, Closing, DedupRecord, Finished, OpenLease, Restored, TopicRecord, Totals};
use super::command::ConsumerId;
use super::due::Shifts;
use super::entry::{Lease, State};
use super::limits::Limits;
use super::message::{Message, MessageId, Place, TopicId};
use super::state::{Effects, Queue};
use super::stored::{NO_FRONTIER, Stored};
use super::time::Timestamp;
use super::topic::Topic;
use super::wheel::Wheel;

/// Where it goes in memory; id and place of a message on disk, and the hash of the key that it holds.
type Indexed = ((TopicId, u32), MessageId, Place, Option<u64>);

/// So many places are entered together; 17 MB.
const INDEXED_AT_ONCE: usize = 1 << 18;

/// A queue being restored.
#[derive(Debug)]
pub struct Restore {
    limits: Limits,
    topics: BTreeMap<TopicId, TopicRecord>,
    totals: BTreeMap<TopicId, Totals>,
    stored: BTreeMap<TopicId, Stored>,
    /// Topics that are gone; what is told of them before that counts for nothing.
    deleted: BTreeSet<TopicId>,
    last_topic: TopicId,
    /// Places of messages on disk that are not entered yet; empty whenever something else comes.
    indexed: Vec<Indexed>,
    folds: u64,
    /// What waits when, compared with the pages.
    shifts: BTreeMap<TopicId, Shifts>,
    /// Messages that are in memory from the start: they changed since the last fold, or were carried.
    messages: FxHashMap<u64, Message>,
    /// Messages that may have a copy in pages and are gone.
    gone: FxHashSet<u64>,
    ended: Vec<Finished>,
    dedup: Vec<DedupRecord>,
    epoch: u32,
    reserved_through: u64,
    /// Set if the last change was a clean stop.
    closed: Option<Closing>,
}

impl Restore {
    /// Nothing restored yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            topics: BTreeMap::new(),
            totals: BTreeMap::new(),
            stored: BTreeMap::new(),
            deleted: BTreeSet::new(),
            last_topic: TopicId(0),
            indexed: Vec::new(),
            folds: 0,
            shifts: BTreeMap::new(),
            messages: FxHashMap::default(),
            gone: FxHashSet::default(),
            ended: Vec::new(),
            dedup: Vec::new(),
            epoch: 0,
            reserved_through: 0,
            closed: None,
        }
    }

    /// Takes in the next thing that the store holds.
    pub fn record(&mut self, restored: Restored) {
        if !matches!(restored, Restored::Index { .. }) || self.indexed.len() == INDEXED_AT_ONCE {
            self.index();
        }
        match restored {
            Restored::Topic(record) => self.put_topic(record),
            Restored::LastTopic(topic) => self.last_topic = self.last_topic.max(topic),
            Restored::Totals(topic, totals) => drop(self.totals.insert(topic, totals)),
            Restored::Fold(number) => self.folds = number,
            Restored::Stored { topic, waiting, dead, first } => {
                let stored = self.stored(topic);
                (stored.waiting, stored.dead, stored.frontier) = (waiting, dead, first.unwrap_or(NO_FRONTIER));
            }
            Restored::IndexSize { topic, entries } => {
                self.stored(topic).make_room(usize::try_from(entries).unwrap_or(usize::MAX));
            }
            Restored::Index { id, place, key_hash } => {
                let bucket = self.stored(id.topic).place_in_memory(key_hash);
                self.indexed.push(((id.topic, bucket), id, place, key_hash));
            }
            Restored::Message(message) => {
                self.shift(message.id.topic, None, Some(message.place()));
                self.messages.insert(message.id.arrival, message);
            }
            Restored::Ended(finished) => self.ended.push(finished),
            Restored::Dedup(record) => self.dedup.push(record),
            Restored::Change(change) => self.replay(change),
        }
    }

    /// The run has this number, which is above that of every run before; without it, it is the next one.
    ///
    /// # Panics
    /// If there was a run with that number.
    pub fn set_epoch(&mut self, epoch: u32) {
        assert!(epoch > self.epoch, "no epoch is used twice");
        self.epoch = epoch - 1;
    }

    /// The queue at `now`, as a new run of the broker. The changes that open the run are in `effects` and must
    /// be durable before anything else.
    pub fn finish(mut self, now: Timestamp, effects: &mut Effects) -> Queue {
        self.index();
        self.forget_deleted();
        let epoch = self.epoch.checked_add(1).expect("a store is opened fewer than 2^32 times");
        effects.changes.push(Change::Opened { epoch, at: now });
        let mut queue = Queue {
            limits: self.limits,
            epoch,
            names: self.topics.values().map(|record| (record.name.clone(), record.id)).collect(),
            topics: BTreeMap::new(),
            last_topic: self.last_topic,
            entries: Slab::with_capacity(self.messages.len()),
            by_arrival: FxHashMap::default(),
            wheel: Wheel::new(now.as_millis()),
            leases: BTreeSet::new(),
            token_waits: BTreeSet::new(),
            generation: 1,
            folded_generation: 0,
            folds: self.folds,
            gone: self.gone,
            gone_frozen: FxHashSet::default(),
            sweep: None,
            orphans: None,
            loads: BTreeSet::new(),
            voided: self.closed.as_ref().map_or(Some((now, self.reserved_through)), |closing| closing.suspected),
            next_arrival: self.reserved_through,
            reserved_through: self.reserved_through,
        };
        for record in self.topics.into_values() {
            let totals = self.totals.get(&record.id).copied().unwrap_or_default();
            let stored = self.stored.remove(&record.id).unwrap_or_else(Stored::nothing);
            let (id, shifts) = (record.id, self.shifts.remove(&record.id).unwrap_or_default());
            queue.topics.insert(id, Topic { shifts, ..Topic::new(record, totals, stored, now) });
            queue.note_load(id);
        }
        self.ended.into_iter().for_each(|finished| remember(&mut queue, finished));
        self.dedup.into_iter().for_each(|record| queue.topic_mut(record.topic).dedup.insert(record, now));
        let mut messages: Vec<Message> = self.messages.into_values().collect();
        messages.sort_unstable_by_key(|message| message.id.arrival);
        for message in messages {
            let maybe_delivered = queue.is_suspected(&message);
            let index = queue.insert(now, message, maybe_delivered);
            queue.entries[index as usize].born = 0;
        }
        if let Some(closing) = self.closed {
            let set_back_ms = closing.at.since(now);
            closing.leases.into_iter().for_each(|lease| reopen(&mut queue, lease, set_back_ms, effects));
        }
        cancel_marked(&mut queue, now, effects);
        queue
    }

    fn put_topic(&mut self, record: TopicRecord) {
        self.last_topic = self.last_topic.max(record.id);
        self.topics.insert(record.id, record);
    }

    fn delete_topic(&mut self, topic: TopicId) {
        self.topics.remove(&topic);
        self.totals.remove(&topic);
        self.stored.remove(&topic);
        self.deleted.insert(topic);
    }

    /// Lets go of what belonged to deleted topics, all at once: there may be many of both.
    fn forget_deleted(&mut self) {
        if self.deleted.is_empty() {
            return;
        }
        let deleted = &self.deleted;
        self.messages.retain(|_, message| !deleted.contains(&message.id.topic));
        self.ended.retain(|finished| !deleted.contains(&finished.id.topic));
        self.dedup.retain(|record| !deleted.contains(&record.topic));
    }

    /// Enters places in the order in which the table has them: its blocks lie all over the memory, so that one
    /// after the other would wait for each.
    fn index(&mut self) {
        let mut indexed = std::mem::take(&mut self.indexed);
        indexed.sort_unstable_by_key(|&(order, ..)| order);
        for &(_, id, place, key_hash) in &indexed {
            self.stored(id.topic).index(id, place, key_hash);
        }
        indexed.clear();
        self.indexed = indexed;
    }

    fn stored(&mut self, topic: TopicId) -> &mut Stored {
        self.stored.entry(topic).or_insert_with(Stored::nothing)
    }

    fn shift(&mut self, topic: TopicId, from: Option<Place>, to: Option<Place>) {
        self.shifts.entry(topic).or_default().note(from, to);
    }

    fn replay(&mut self, change: Change) {
        self.closed = None;
        match change {
            Change::TopicPut(record) => self.put_topic(record),
            Change::TopicDeleted { topic, .. } => self.delete_topic(topic),
            Change::Produced(message) => {
                self.totals.entry(message.id.topic).or_default().produced += 1;
                self.shift(message.id.topic, None, Some(message.place()));
                self.messages.insert(message.id.arrival, message);
            }
            Change::Moved { message, previous, .. } => {
                let (id, key) = (message.id, message.content.key.clone());
                self.shift(id.topic, Some(previous), Some(message.place()));
                if self.messages.insert(id.arrival, message).is_none() {
                    self.stored(id.topic).take(id, previous, key.as_ref());
                }
            }
            Change::Finished(finished) => {
                self.totals.entry(finished.id.topic).or_default().count(finished.outcome);
                self.shift(finished.id.topic, Some(finished.previous), None);
                let Finished { id, previous, key, .. } = &finished;
                if self.messages.remove(&id.arrival).is_none() {
                    self.stored(id.topic).take(*id, *previous, key.as_ref());
                }
                self.gone.insert(id.arrival);
                self.ended.push(finished);
            }
            Change::DedupPut(record) => self.dedup.push(record),
            // They count once the fold that sets them aside is durable.
            Change::Quarantined(_) => {}
            Change::ArrivalsReserved(through) => self.reserved_through = self.reserved_through.max(through),
            Change::Opened { epoch, .. } => self.epoch = self.epoch.max(epoch),
            Change::Closed(closing) => self.closed = Some(closing),
        }
    }
}

fn remember(queue: &mut Queue, finished: Finished) {
    let topic = queue.topic_mut(finished.id.topic);
    topic.ended.push(finished, &topic.record.settings);
}

/// A lease that outlived a clean stop goes on, without a stream. It is a span of time, and has no more of it left than it
/// had at the stop, however far the clock was set back since: nobody may be there any more to end it.
fn reopen(queue: &mut Queue, open: OpenLease, set_back_ms: u64, effects: &mut Effects) {
    let deadline = open.deadline.minus(set_back_ms);
    let index = queue.by_arrival[&open.id.arrival];
    queue.lift(index, effects);
    let timer = queue.wheel.insert(deadline.as_millis(), index);
    queue.leases.insert((ConsumerId::NONE, open.id.arrival));
    queue.entries[index as usize].state = State::Leased(Box::new(Lease {
        delivery: open.delivery,
        epoch: open.epoch,
        consumer: ConsumerId::NONE,
        consumer_name: open.consumer,
        delivered_at: open.delivered_at,
        deadline,
        timer: Some(timer),
    }));
    let due_at = queue.message(index).progress.due_at;
    let topic = queue.topic_mut(open.id.topic);
    topic.leased.insert((due_at, open.id.arrival), index);
    topic.shifts.reopened(due_at);
}

/// Messages that were to be cancelled when their lease ends, and whose lease is void now.
fn cancel_marked(queue: &mut Queue, now: Timestamp, effects: &mut Effects) {
    let is_marked = |(index, entry): (usize, &super::entry::Entry)| {
        let marked = entry.message.progress.cancel_on_lease_end && !matches!(entry.state, State::Leased(_));
        marked.then(|| u32::try_from(index).expect("memory holds fewer than 2^32 messages"))
    };
    let marked: Vec<u32> = queue.entries.iter().filter_map(is_marked).collect();
    for index in marked {
        queue.cancel_waiting(now, index, effects);
    }
}
