//! The queue's state, and the few moves that keep a message in exactly one place.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::{FxHashMap, FxHashSet};
use slab::Slab;

use super::change::{Change, Finished, Outcome};
use super::command::{Command, ConsumerId, Rejection, Reply, Target};
use super::entry::{Entry, State};
use super::far::Sweep;
use super::limits::{ARRIVALS_PER_RESERVATION, Limits};
use super::message::{HistoryEntry, Message, Place, Progress, TopicId};
use super::time::Timestamp;
use super::topic::Topic;
use super::values::TopicName;
use super::wheel::Wheel;

/// What a round leads to: to be made durable, and to be told to the consumers' windows.
#[derive(Debug, Default)]
pub struct Effects {
    /// Durable changes, in order.
    pub changes: Vec<Change>,
    /// Leases that ended, one entry each: the stream has room for one more message of the topic.
    pub ended_leases: Vec<(ConsumerId, TopicId)>,
}

/// The state machine of all topics.
#[derive(Debug)]
pub struct Queue {
    pub(super) limits: Limits,
    /// This run of the broker; part of every receipt that it issues.
    pub(super) epoch: u32,
    pub(super) topics: BTreeMap<TopicId, Topic>,
    pub(super) names: BTreeMap<TopicName, TopicId>,
    /// The highest number that a topic ever had.
    pub(super) last_topic: TopicId,
    /// Live messages in memory.
    pub(super) entries: Slab<Entry>,
    pub(super) by_arrival: FxHashMap<u64, u32>,
    /// Due instants of scheduled messages and deadlines of leased ones.
    pub(super) wheel: Wheel<u32>,
    /// All leases, by consumer and arrival number.
    pub(super) leases: BTreeSet<(ConsumerId, u64)>,
    /// When rate caps allow the next delivery, for topics whose lease was refused for want of a token.
    pub(super) token_waits: BTreeSet<(Timestamp, TopicId)>,
    /// The generation that changes belong to, from 1 on.
    pub(super) generation: u32,
    /// The last generation whose fold is durable.
    pub(super) folded_generation: u32,
    /// Number of the last fold.
    pub(super) folds: u64,
    /// Messages that may have a copy on disk and are gone since the last freeze.
    pub(super) gone: FxHashSet<u64>,
    /// The same, gone in the generation that is being folded.
    pub(super) gone_frozen: FxHashSet<u64>,
    pub(super) sweep: Option<Sweep>,
    /// While memory may hold messages of deleted topics: how far they are removed.
    pub(super) orphans: Option<usize>,
    /// When the next part of each topic is to be loaded from disk.
    pub(super) loads: BTreeSet<(Timestamp, TopicId)>,
    /// After an unclean stop: messages that arrived before that number and were due at that time may have been
    /// delivered.
    pub(super) voided: Option<(Timestamp, u64)>,
    pub(super) next_arrival: u64,
    /// Arrival numbers below this one are durably reserved.
    pub(super) reserved_through: u64,
}

/// What a target names.
pub(super) enum Found<'a> {
    /// A live message in memory.
    Live(u32),
    /// A message that is gone.
    Gone(&'a Finished),
    /// Nothing live or remembered.
    Nothing,
}

impl Queue {
    /// Does one command. `found` is the stored record of the message that the command names, if memory does not
    /// hold it; what memory knows overrules it. A rejection changes nothing.
    ///
    /// # Errors
    /// The [`Rejection`] of the command's kind.
    pub fn apply(
        &mut self,
        now: Timestamp,
        command: Command,
        found: Option<Message>,
        effects: &mut Effects,
    ) -> Result<Reply, Rejection> {
        let taken_in = found.and_then(|message| {
            let arrival = message.id.arrival;
            self.take_in(now, message).map(|_| arrival)
        });
        let reply = self.dispatch(now, command, effects);
        if let Some(arrival) = taken_in {
            self.put_back(arrival);
        }
        reply
    }

    fn dispatch(&mut self, now: Timestamp, command: Command, effects: &mut Effects) -> Result<Reply, Rejection> {
        match command {
            Command::CreateTopic { name, settings } => {
                Ok(Reply::Topic(self.create_topic(now, name, settings, effects)?))
            }
            Command::UpdateTopic { name, settings } => {
                Ok(Reply::Topic(self.update_topic(now, &name, settings, effects)?))
            }
            Command::PatchTopic { name, patch } => Ok(Reply::Topic(self.patch_topic(now, &name, &patch, effects)?)),
            Command::SetPaused { name, paused } => Ok(Reply::Topic(self.set_paused(&name, paused, effects)?)),
            Command::DeleteTopic { name, purge } => {
                Ok(Reply::TopicDeleted(self.delete_topic(&name, purge, false, effects)?))
            }
            Command::Produce(produce) => Ok(Reply::Produced(self.produce(now, produce, effects)?)),
            Command::Lease(request) => Ok(Reply::Leased(self.lease(now, &request)?)),
            Command::Ack(receipt) => Ok(self.ack(now, &receipt, effects)?),
            Command::Nack(nack) => Ok(Reply::Nacked(self.nack(now, nack, effects)?)),
            Command::Extend { receipt, lease_ms } => Ok(Reply::Extended(self.extend(now, &receipt, lease_ms)?)),
            Command::ReturnAll(consumer) => Ok(Reply::Returned(self.return_all(now, consumer, effects))),
            Command::Return(receipt) => Ok(Reply::Returned(self.return_one(now, &receipt, effects)?)),
            Command::Cancel { topic, target, when_lease_ends } => {
                Ok(Reply::Cancel(self.cancel(now, &topic, &target, when_lease_ends, effects)?))
            }
            Command::Reschedule { topic, target, due } => {
                Ok(Reply::Reschedule(self.reschedule(now, &topic, &target, due, effects)?))
            }
            Command::Redrive(letter) => Ok(Reply::Redrive(self.redrive(now, &letter, effects)?)),
            Command::Purge(letter) => Ok(Reply::Purge(self.purge(now, &letter, effects)?)),
        }
    }

    /// All timed work up to `now`: due messages become ready, leases whose deadline has come expire. Touches at
    /// most `limit` messages; true if more is left at `now`.
    pub fn advance(&mut self, now: Timestamp, limit: usize, effects: &mut Effects) -> bool {
        let mut fired = Vec::new();
        let more = self.wheel.advance(now.as_millis(), limit, |index| fired.push(index));
        for index in fired {
            match self.entries[index as usize].state {
                State::Scheduled(_) if self.is_orphan(index) => self.drop_fired_orphan(index),
                State::Scheduled(_) => self.make_ready(index),
                State::Leased(_) => self.expire(now, index, effects),
                State::Ready | State::Dead => unreachable!("only scheduled and leased messages have timers"),
            }
        }
        while self.token_waits.first().is_some_and(|&(at, _)| at <= now) {
            self.token_waits.pop_first();
        }
        more
    }

    /// When to call [`Queue::advance`] next: never later than the next due instant, lease deadline, or rate
    /// token that a lease was refused for want of, or time to load from disk; it may be earlier, when the wheel has to
    /// move far entries nearer.
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        let token = self.token_waits.first().map(|&(at, _)| at);
        let wheel = self.wheel.next_wakeup().map(Timestamp::from_millis);
        wheel.into_iter().chain(token).chain(self.next_load_at()).min()
    }

    /// Every message due at or before this instant has become ready; nothing later is leased.
    pub(super) fn fired_through(&self) -> Timestamp {
        Timestamp::from_millis(self.wheel.fired_through())
    }

    /// The topic of that name.
    pub(super) fn topic_id(&self, name: &TopicName) -> Option<TopicId> {
        self.names.get(name).copied()
    }

    /// The topic of a message or of a known name.
    pub(super) fn topic_mut(&mut self, id: TopicId) -> &mut Topic {
        self.topics.get_mut(&id).expect("messages and names refer to topics that exist")
    }

    /// What `target` names in the topic.
    pub(super) fn find(&self, topic: TopicId, target: &Target, now: Timestamp) -> Found<'_> {
        let state = &self.topics[&topic];
        let settings = &state.record.settings;
        let (live, gone) = match target {
            Target::Id(id) if id.topic != topic => return Found::Nothing,
            Target::Id(id) => {
                let live = self.by_arrival.get(&id.arrival).copied();
                (live.filter(|&index| self.message(index).id == *id), state.ended.by_arrival(id.arrival, settings, now))
            }
            Target::Key(key) => (state.keys.get(key).copied(), state.ended.by_key(key, settings, now)),
        };
        match (live, gone) {
            (Some(index), _) => Found::Live(index),
            (None, Some(finished)) if !matches!(target, Target::Id(id) if *id != finished.id) => Found::Gone(finished),
            (None, _) => Found::Nothing,
        }
    }

    pub(super) fn message(&self, index: u32) -> &Message {
        &self.entries[index as usize].message
    }

    /// The next arrival number, reserved durably before it is used.
    pub(super) fn take_arrival(&mut self, effects: &mut Effects) -> u64 {
        if self.next_arrival == self.reserved_through {
            self.reserved_through += ARRIVALS_PER_RESERVATION;
            effects.changes.push(Change::ArrivalsReserved(self.reserved_through));
        }
        self.next_arrival += 1;
        self.next_arrival - 1
    }

    /// Puts a message into memory: dead, ready or scheduled, as its record says.
    pub(super) fn insert(&mut self, now: Timestamp, message: Message, maybe_delivered: bool) -> u32 {
        let (id, key) = (message.id, message.content.key.clone().filter(|_| message.progress.holds_key));
        let (born, changed) = (self.generation, self.generation);
        let entry = Entry { message, state: State::Dead, maybe_delivered, born, changed };
        let index = u32::try_from(self.entries.insert(entry)).expect("memory holds fewer than 2^32 messages");
        self.by_arrival.insert(id.arrival, index);
        if let Some(key) = key {
            self.topic_mut(id.topic).keys.insert(key, index);
        }
        self.place(now, index);
        index
    }

    /// Gives a live message new progress and puts it where that belongs. It must have been [`Queue::lift`]ed.
    pub(super) fn settle_at(
        &mut self,
        now: Timestamp,
        index: u32,
        progress: Progress,
        ended: Option<HistoryEntry>,
        effects: &mut Effects,
    ) {
        let previous = self.update(index, progress, ended.as_ref());
        let message = self.message(index).clone();
        let (topic, key) = (message.id.topic, message.content.key.clone());
        self.shift(&message, Some(previous), Some(message.place()));
        effects.changes.push(Change::Moved { message, previous, entry: ended });
        if let Some(key) = key {
            let keys = &mut self.topic_mut(topic).keys;
            if progress.holds_key {
                keys.insert(key, index);
            } else if keys.get(&key) == Some(&index) {
                keys.remove(&key);
            }
        }
        self.place(now, index);
    }

    /// Gives a live message new progress where it is.
    pub(super) fn mark(&mut self, index: u32, progress: Progress, effects: &mut Effects) {
        let previous = self.update(index, progress, None);
        effects.changes.push(Change::Moved { message: self.message(index).clone(), previous, entry: None });
    }

    /// Changes a message's record; returns where the store kept it.
    fn update(&mut self, index: u32, progress: Progress, ended: Option<&HistoryEntry>) -> Place {
        let Entry { message, changed, .. } = &mut self.entries[index as usize];
        *changed = self.generation;
        let previous = message.place();
        message.progress = progress;
        if let Some(entry) = ended {
            message.record(entry.clone());
        }
        previous
    }

    /// Takes a message out of its place; it is in none until it is placed again or removed.
    pub(super) fn lift(&mut self, index: u32, effects: &mut Effects) {
        let Entry { message, state, .. } = &mut self.entries[index as usize];
        let (id, order) = (message.id, (message.progress.due_at, message.id.arrival));
        let topic = self.topics.get_mut(&id.topic).expect("a live message's topic exists");
        match std::mem::replace(state, State::Dead) {
            State::Scheduled(timer) => {
                self.wheel.remove(timer);
                topic.scheduled -= 1;
            }
            State::Ready => drop(topic.ready.remove(&order)),
            State::Leased(lease) => {
                lease.timer.map(|timer| self.wheel.remove(timer));
                topic.leased.remove(&order);
                self.leases.remove(&(lease.consumer, id.arrival));
                if lease.epoch != self.epoch {
                    topic.shifts.reopened_ended(order.0);
                }
                if lease.consumer != ConsumerId::NONE {
                    effects.ended_leases.push((lease.consumer, id.topic));
                }
            }
            State::Dead => {
                let (_, died_at) = message.progress.dead.expect("a dead message has a time of death");
                topic.dead.remove(&(died_at, id.arrival));
            }
        }
    }

    /// Removes a message for good; the history remembers it. It must have been [`Queue::lift`]ed.
    pub(super) fn finish(
        &mut self,
        now: Timestamp,
        index: u32,
        outcome: Outcome,
        receipt: Option<(u32, u32)>,
        effects: &mut Effects,
    ) {
        let Entry { message, born, .. } = self.entries.remove(index as usize);
        let (id, previous, key) = (message.id, message.place(), message.content.key.clone());
        self.shift(&message, Some(previous), None);
        self.by_arrival.remove(&id.arrival);
        if born < self.generation {
            self.gone.insert(id.arrival);
        }
        let topic = self.topic_mut(id.topic);
        if let Some(key) = &key
            && topic.keys.get(key) == Some(&index)
        {
            topic.keys.remove(key);
        }
        topic.totals.count(outcome);
        let finished = Finished { id, key, outcome, at: now, receipt, previous };
        topic.ended.push(finished.clone(), &topic.record.settings);
        effects.changes.push(Change::Finished(finished));
    }

    /// Cancels a message that no consumer works on.
    pub(super) fn cancel_waiting(&mut self, now: Timestamp, index: u32, effects: &mut Effects) {
        self.lift(index, effects);
        self.finish(now, index, Outcome::Cancelled, None, effects);
    }

    /// Puts a lifted message where its progress says.
    fn place(&mut self, now: Timestamp, index: u32) {
        let message = self.message(index);
        let (id, due_at, dead) = (message.id, message.progress.due_at, message.progress.dead);
        if let Some((_, died_at)) = dead {
            self.entries[index as usize].state = State::Dead;
            self.topic_mut(id.topic).dead.insert((died_at, id.arrival), index);
            return;
        }
        let topic = self.topics.get_mut(&id.topic).expect("a live message's topic exists");
        if due_at <= now {
            self.entries[index as usize].state = State::Ready;
            topic.ready.insert((due_at, id.arrival), index);
        } else {
            let timer = self.wheel.insert(due_at.as_millis(), index);
            self.entries[index as usize].state = State::Scheduled(timer);
            topic.scheduled += 1;
        }
    }

    /// The due instant of a scheduled message has come.
    fn make_ready(&mut self, index: u32) {
        let Entry { message, state, .. } = &mut self.entries[index as usize];
        let (topic, order) = (message.id.topic, (message.progress.due_at, message.id.arrival));
        *state = State::Ready;
        let topic = self.topic_mut(topic);
        topic.scheduled -= 1;
        topic.ready.insert(order, index);
    }
}
