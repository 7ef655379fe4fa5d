//! Deleting a topic: at once for everybody who asks, and piece by piece in memory.
//!
//! With its record the topic is gone: no name, key, id or receipt finds anything of it. Its messages that memory holds
//! are *orphans* until a walk over memory, a bounded piece a round, has removed them. What is on disk is not the
//! queue's business.

use super::change::Change;
use super::command::{DeletedTopic, TopicRejection};
use super::entry::{Entry, State};
use super::state::{Effects, Queue};
use super::values::TopicName;

impl Queue {
    /// Deletes a topic. `pages_hold_some`: pages have something of it, be it only what has ended; the queue itself knows
    /// of what is live there.
    ///
    /// # Errors
    /// [`TopicRejection`], and nothing is changed.
    pub fn delete_topic(
        &mut self,
        name: &TopicName,
        purge: bool,
        pages_hold_some: bool,
        effects: &mut Effects,
    ) -> Result<DeletedTopic, TopicRejection> {
        let id = self.topic_id(name).ok_or_else(|| TopicRejection::NotFound(name.clone()))?;
        let topic = &self.topics[&id];
        let messages = topic.totals.live();
        if messages > 0 && !purge {
            let (leased, dead) = (topic.leased.len() as u64, topic.dead.len() as u64 + topic.stored.dead);
            let waiting = messages - leased - dead;
            return Err(TopicRejection::NotEmpty { topic: name.clone(), waiting, leased, dead });
        }
        let of_topic = |&&(_, arrival): &&(_, u64)| self.message(self.by_arrival[&arrival]).id.topic == id;
        let leased: Vec<u64> = self.leases.iter().filter(of_topic).map(|&(_, arrival)| arrival).collect();
        for arrival in leased {
            let index = self.by_arrival[&arrival];
            self.lift(index, effects);
            self.entries.remove(index as usize);
            self.by_arrival.remove(&arrival);
        }
        let topic = self.topics.remove(&id).expect("a name belongs to a topic");
        self.names.remove(name);
        topic.noted_load_at.map(|at| self.loads.remove(&(at, id)));
        self.token_waits.retain(|&(_, waiting)| waiting != id);
        if topic.scheduled > 0 || !topic.ready.is_empty() || !topic.dead.is_empty() {
            self.orphans = Some(0);
        }
        // A fold that is under way may write what it knows of the topic.
        let is_folding = self.generation > self.folded_generation + 1;
        let in_pages = pages_hold_some || messages > 0 && (is_folding || !topic.stored.is_empty());
        effects.changes.push(Change::TopicDeleted { topic: id, in_pages });
        Ok(DeletedTopic { id, messages, generation: in_pages.then_some(self.generation) })
    }

    /// True once a fold has taken what pages hold of a topic out of use that was deleted in that generation.
    pub fn is_deletion_folded(&self, generation: u32) -> bool {
        self.folded_generation >= generation
    }

    /// Removes messages of deleted topics from memory, looking at no more than `limit`; true if more is left to do.
    pub(super) fn drop_orphans(&mut self, limit: usize) -> bool {
        let Some(from) = self.orphans else { return false };
        let until = self.entries.capacity().min(from + limit);
        for index in from..until {
            let index = u32::try_from(index).expect("memory holds fewer than 2^32 messages");
            if self.entries.contains(index as usize) && self.is_orphan(index) {
                self.drop_orphan(index);
            }
        }
        self.orphans = (until < self.entries.capacity()).then_some(until);
        self.orphans.is_some()
    }

    /// True if the message's topic was deleted.
    pub(super) fn is_orphan(&self, index: u32) -> bool {
        self.orphans.is_some() && !self.topics.contains_key(&self.message(index).id.topic)
    }

    /// The due instant of an orphan has come; its timer is gone already.
    pub(super) fn drop_fired_orphan(&mut self, index: u32) {
        self.entries[index as usize].state = State::Ready;
        self.drop_orphan(index);
    }

    fn drop_orphan(&mut self, index: u32) {
        let Entry { message, state, .. } = self.entries.remove(index as usize);
        self.by_arrival.remove(&message.id.arrival);
        match state {
            State::Scheduled(timer) => drop(self.wheel.remove(timer)),
            State::Ready | State::Dead => {}
            State::Leased(_) => unreachable!("the leases of a topic end when it is deleted"),
        }
    }
}
