//! What is far away stays on disk: messages leave memory after a fold, come back before they are due, and are
//! looked up on disk when a command names them.
//!
//! A *generation* is what the journal holds between two folds. A message that has changed in a generation which
//! is not folded yet is always in memory; so is every message before its topic's frontier, and every leased one.
//! The rest is on disk only. What memory knows overrules what is read from disk: messages in memory may have an
//! outdated copy there, and those that are gone may have a copy until the generation of their end is folded.

use std::collections::HashMap;

use super::command::{Command, Target};
use super::entry::{Entry, State};
use super::message::{Message, MessageId, Place, TopicId};
use super::state::{Effects, Queue};
use super::stored::{NO_FRONTIER, held_key};
use super::time::Timestamp;
use super::topic::Order;
use super::values::{Key, TopicName};

/// Where a command's message may be on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The topic.
    pub topic: TopicId,
    /// Arrival numbers and places to try; nearly always one.
    pub candidates: Vec<(u64, Place)>,
    /// The message must have this key.
    pub key: Option<Key>,
}

/// A part of a topic to be read from disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The topic.
    pub topic: TopicId,
    /// From this place in the topic's order on, inclusive.
    pub from: (Timestamp, u64),
    /// At most so many messages.
    pub max: usize,
    /// The fold whose pages are to be read.
    pub fold: u64,
}

/// What a load found.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What was asked for.
    pub load: Load,
    /// The messages on disk from there on, in order.
    pub messages: Vec<Message>,
    /// The place in the order up to which that is complete; `None` if nothing is left.
    pub frontier: Option<(Timestamp, u64)>,
}

/// A message that a fold left to the journal instead of putting it into pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Its topic.
    pub topic: TopicId,
    /// Its arrival number.
    pub arrival: u64,
    /// Where it was when the folded generation ended.
    pub place: Place,
}

/// A walk over memory that takes out what is far.
#[derive(Debug)]
pub(super) struct Sweep {
    cursor: usize,
    bounds: HashMap<TopicId, Order>,
}

impl Queue {
    /// The generation ends here: what the journal holds is going to be folded. At most one fold at a time.
    pub fn freeze(&mut self) {
        assert!(self.gone_frozen.is_empty() && self.generation == self.folded_generation + 1, "one fold at a time");
        self.generation += 1;
        self.gone_frozen = std::mem::take(&mut self.gone);
        self.topics.values_mut().for_each(|topic| topic.shifts.freeze());
    }

    /// Fold number `fold` is durable: everything of the frozen generation is in pages, apart from `carried`
    /// messages, which were written to the present generation instead: at least those to be cancelled when their
    /// lease ends. Starts a sweep.
    pub fn folded(&mut self, now: Timestamp, fold: u64, carried: &[Carried]) {
        self.topics.values_mut().for_each(|topic| topic.shifts.folded());
        for &Carried { topic, arrival, place } in carried {
            // Where it was when the generation ended; what became of it since was noted as it happened.
            if let Some(topic) = self.topics.get_mut(&topic) {
                topic.shifts.note(None, Some(place));
            }
            if let Some(&index) = self.by_arrival.get(&arrival) {
                self.entries[index as usize].changed = self.generation;
            }
        }
        self.folded_generation = self.generation - 1;
        self.folds = fold;
        self.gone_frozen.clear();
        let keep = self.limits.near;
        let bound = |ready: &std::collections::BTreeMap<Order, u32>| {
            let near = (now.plus(keep.span_ms), 0);
            ready.keys().nth(keep.max_ready).map_or(near, |&order| order.min(near))
        };
        let bounds = self.topics.iter().map(|(&id, topic)| (id, bound(&topic.ready))).collect();
        self.sweep = Some(Sweep { cursor: 0, bounds });
    }

    /// Takes far messages that are safe on disk out of memory, and those of deleted topics, looking at no more than
    /// `limit`; true if more is left to do.
    pub fn sweep(&mut self, limit: usize) -> bool {
        let orphans_left = self.drop_orphans(limit);
        let Some(mut sweep) = self.sweep.take() else { return orphans_left };
        let range = sweep.cursor..self.entries.capacity().min(sweep.cursor + limit);
        let is_far = |index: &usize| {
            let Some(entry) = self.entries.get(*index) else { return false };
            if !self.topics.contains_key(&entry.message.id.topic) {
                return false;
            }
            let order = (entry.message.progress.due_at, entry.message.id.arrival);
            let bound = sweep.bounds.get(&entry.message.id.topic).copied().unwrap_or(NO_FRONTIER);
            let beyond = matches!(entry.state, State::Dead) || order >= bound;
            // A suspicion that could not be told again from the record keeps the message in memory.
            let is_told = !entry.maybe_delivered || self.is_suspected(&entry.message);
            beyond && is_told && !matches!(entry.state, State::Leased(_)) && entry.changed <= self.folded_generation
        };
        let far: Vec<usize> = range.clone().filter(is_far).collect();
        sweep.cursor = range.end;
        let more = range.end < self.entries.capacity();
        for index in far {
            self.evict(u32::try_from(index).expect("memory holds fewer than 2^32 messages"));
        }
        self.sweep = more.then_some(sweep);
        more || orphans_left
    }

    /// The next part of a topic that memory needs from disk.
    pub fn next_load(&mut self, now: Timestamp) -> Option<Load> {
        let near = self.limits.near;
        let mut due = self.loads.iter().take_while(|&&(at, _)| at <= now).map(|&(_, id)| id);
        let id = due.find(|&id| self.has_few_to_lease(id))?;
        let fold = self.folds;
        let topic = self.topic_mut(id);
        topic.loading = true;
        let load = Load { topic: id, from: topic.stored.frontier, max: near.load_max, fold };
        self.note_load(id);
        Some(load)
    }

    /// When the next part of a topic is to be loaded. A topic with enough ready messages in memory loads once they
    /// are leased, in the round that leases them.
    pub(super) fn next_load_at(&self) -> Option<Timestamp> {
        // What is ready lies before the frontier, unless the frontier has passed. Then a load was asked for at once, and
        // only one that has failed is still to come; so only then they are counted.
        let is_wanted = |id: TopicId| {
            let topic = &self.topics[&id];
            let has_failed = topic.load_again_at != Timestamp::ZERO;
            topic.ready.len() <= self.limits.near.load_below || has_failed && self.has_few_to_lease(id)
        };
        self.loads.iter().find(|&&(_, id)| is_wanted(id)).map(|&(at, _)| at)
    }

    /// True if memory has few ready messages of the topic that come before those on disk.
    fn has_few_to_lease(&self, id: TopicId) -> bool {
        let (topic, most) = (&self.topics[&id], self.limits.near.load_below);
        topic.ready.len() <= most || topic.ready.range(..topic.stored.frontier).nth(most).is_none()
    }

    /// Notes when the next part of a topic is to be loaded, whenever something that it depends on has changed.
    pub(super) fn note_load(&mut self, id: TopicId) {
        let ahead_ms = self.limits.near.load_ahead_ms;
        let topic = self.topic_mut(id);
        let load_at = topic.load_at(ahead_ms);
        let before = std::mem::replace(&mut topic.noted_load_at, load_at);
        if before != load_at {
            before.map(|at| self.loads.remove(&(at, id)));
            load_at.map(|at| self.loads.insert((at, id)));
        }
    }

    /// Takes in what a load found. A load that a fold or a sweep has overtaken is dropped and asked for again.
    pub fn loaded(&mut self, now: Timestamp, loaded: Loaded) {
        let Load { topic: id, from, fold, .. } = loaded.load;
        let Some(topic) = self.topics.get_mut(&id) else { return };
        topic.loading = false;
        let overtaken = fold != self.folds || topic.stored.frontier != from;
        if !overtaken {
            for message in loaded.messages {
                self.take_in(now, message);
            }
            self.topic_mut(id).stored.frontier = loaded.frontier.unwrap_or(NO_FRONTIER);
        }
        self.note_load(id);
    }

    /// A load has failed; it is asked for again, but not before `again_at`.
    pub fn load_failed(&mut self, load: Load, again_at: Timestamp) {
        // A topic that was deleted meanwhile needs none.
        let Some(topic) = self.topics.get_mut(&load.topic) else { return };
        topic.loading = false;
        topic.load_again_at = again_at;
        self.note_load(load.topic);
    }

    /// The pages have changed: loads that have failed may be asked for again.
    pub fn retry_loads(&mut self) {
        let failed = self.topics.iter().filter(|(_, topic)| topic.load_again_at != Timestamp::ZERO);
        for id in failed.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.topic_mut(id).load_again_at = Timestamp::ZERO;
            self.note_load(id);
        }
    }

    /// Where on disk to look for the message that `command` names, if memory does not know it.
    pub fn missing(&self, command: &Command) -> Option<Missing> {
        match command {
            Command::Produce(produce) => self.missing_key(self.topic_id(&produce.topic)?, produce.key.as_ref()?),
            Command::Cancel { topic, target, .. } | Command::Reschedule { topic, target, .. } => {
                self.missing_target(topic, target)
            }
            Command::Redrive(letter) | Command::Purge(letter) => {
                self.topic_id(&letter.topic).filter(|&topic| topic == letter.id.topic)?;
                self.missing_id(letter.id)
            }
            Command::Ack(receipt) | Command::Extend { receipt, .. } | Command::Return(receipt) => {
                self.missing_id(receipt.id)
            }
            Command::Nack(nack) => self.missing_id(nack.receipt.id),
            Command::CreateTopic { .. }
            | Command::UpdateTopic { .. }
            | Command::PatchTopic { .. }
            | Command::SetPaused { .. }
            | Command::DeleteTopic { .. }
            | Command::Lease(_)
            | Command::ReturnAll(_) => None,
        }
    }

    /// Where on disk to look for `target`, if memory does not know it.
    pub fn missing_target(&self, topic: &TopicName, target: &Target) -> Option<Missing> {
        let topic = self.topic_id(topic)?;
        match target {
            Target::Id(id) if id.topic != topic => None,
            Target::Id(id) => self.missing_id(*id),
            Target::Key(key) => self.missing_key(topic, key),
        }
    }

    /// True if memory overrules whatever copy of that message is on disk.
    pub fn overrules(&self, arrival: u64) -> bool {
        self.by_arrival.contains_key(&arrival) || self.gone.contains(&arrival) || self.gone_frozen.contains(&arrival)
    }

    fn missing_id(&self, id: MessageId) -> Option<Missing> {
        let topic = self.topics.get(&id.topic)?;
        if topic.stored.is_empty() || self.overrules(id.arrival) || topic.ended.remembers(id.arrival) {
            return None;
        }
        Some(Missing { topic: id.topic, candidates: vec![(id.arrival, topic.stored.place_of(id))], key: None })
    }

    fn missing_key(&self, topic: TopicId, key: &Key) -> Option<Missing> {
        let state = &self.topics[&topic];
        if state.keys.contains_key(key) {
            return None;
        }
        let candidates: Vec<_> = state.stored.holders_of(key).collect();
        (!candidates.is_empty()).then(|| Missing { topic, candidates, key: Some(key.clone()) })
    }

    /// Takes the stored record of a message into memory; returns its index if it was not known.
    pub(super) fn take_in(&mut self, now: Timestamp, message: Message) -> Option<u32> {
        let id = message.id;
        if !self.topics.contains_key(&id.topic) || self.overrules(id.arrival) {
            return None;
        }
        let (place, key) = (message.place(), held_key(&message).cloned());
        self.topic_mut(id.topic).stored.take(id, place, key.as_ref());
        let maybe_delivered = self.is_suspected(&message);
        let index = self.insert(now, message, maybe_delivered);
        let entry = &mut self.entries[index as usize];
        (entry.born, entry.changed) = (0, 0);
        Some(index)
    }

    /// True if the message was due when an unclean stop made its lease void.
    pub(super) fn is_suspected(&self, message: &Message) -> bool {
        let progress = message.progress;
        self.voided.is_some_and(|(opened_at, first_arrival)| {
            message.id.arrival < first_arrival && progress.dead.is_none() && progress.due_at <= opened_at
        })
    }

    /// After a look-up: a message that nothing has changed goes back to disk.
    pub(super) fn put_back(&mut self, arrival: u64) {
        let Some(&index) = self.by_arrival.get(&arrival) else { return };
        let Entry { message, state, changed, .. } = &self.entries[index as usize];
        let order = (message.progress.due_at, arrival);
        let frontier = self.topics[&message.id.topic].stored.frontier;
        let waits_beyond = matches!(state, State::Scheduled(_) | State::Ready) && order >= frontier;
        if *changed == 0 && (waits_beyond || matches!(state, State::Dead)) {
            self.evict(index);
        }
    }

    fn evict(&mut self, index: u32) {
        self.lift(index, &mut Effects::default());
        let message = self.entries.remove(index as usize).message;
        self.by_arrival.remove(&message.id.arrival);
        let id = message.id.topic;
        let topic = self.topics.get_mut(&id).expect("a live message's topic exists");
        if let Some(key) = held_key(&message) {
            topic.keys.remove(key);
        }
        topic.stored.put(&message);
        self.note_load(id);
    }
}
