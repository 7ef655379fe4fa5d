//! The invariants of the queue, checked by walking everything: for tests and tools, not for the running broker.

use super::change::{DedupRecord, Finished, TopicRecord, Totals};
use super::entry::State;
use super::message::Message;
use super::state::Queue;
use super::stored::NO_FRONTIER;
use super::time::Timestamp;
use super::topic::Topic;

/// The durable projection of what is in memory: what a store that has made every change durable must give back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Topics with their totals, by number.
    pub topics: Vec<(TopicRecord, Totals)>,
    /// Live messages, by arrival number.
    pub messages: Vec<Message>,
    /// Ended messages that the history remembers, by topic, oldest first.
    pub ended: Vec<Finished>,
    /// Dedup ids that are remembered at the time of the snapshot, by topic and expiry.
    pub dedup: Vec<DedupRecord>,
}

impl Queue {
    /// Copies the durable projection. Takes time in proportion to everything in memory.
    pub fn snapshot(&self, now: Timestamp) -> Snapshot {
        let messages = self.entries.iter().map(|(_, entry)| &entry.message);
        let messages = messages.filter(|message| self.topics.contains_key(&message.id.topic));
        let mut messages: Vec<Message> = messages.cloned().collect();
        messages.sort_unstable_by_key(|message| message.id.arrival);
        let topics = self.topics.values();
        Snapshot {
            topics: topics.clone().map(|topic| (topic.record.clone(), topic.totals)).collect(),
            messages,
            ended: topics.clone().flat_map(|topic| topic.ended.iter().cloned()).collect(),
            dedup: topics.flat_map(|topic| topic.dedup.iter().filter(|r| r.expires_at > now).cloned()).collect(),
        }
    }

    /// Checks every invariant that can be seen from the state alone.
    ///
    /// # Errors
    /// A sentence that names the invariant and the message or topic.
    pub fn check(&self, now: Timestamp) -> Result<(), String> {
        let mut orphan_timers = 0;
        for (index, entry) in &self.entries {
            let index = u32::try_from(index).map_err(|_| "an index over 2^32".to_owned())?;
            let message = &entry.message;
            let Some(topic) = self.topics.get(&message.id.topic) else {
                let is_removed_soon = self.orphans.is_some() && !matches!(entry.state, State::Leased(_));
                orphan_timers += u64::from(matches!(entry.state, State::Scheduled(_)));
                is_removed_soon.then_some(()).ok_or(format!("{}: no topic", message.id))?;
                continue;
            };
            self.check_place(index, topic, now).map_err(|problem| format!("{}: {problem}", message.id))?;
        }
        for topic in self.topics.values() {
            self.check_topic(topic).map_err(|problem| format!("topic {}: {problem}", topic.record.name))?;
        }
        let leases = self.topics.values().map(|topic| topic.leased.len() as u64).sum::<u64>();
        let timers = self.topics.values().map(|topic| topic.scheduled).sum::<u64>() + leases + orphan_timers;
        let loads = self.topics.values().filter(|topic| topic.noted_load_at.is_some()).count();
        let ensure = |ok: bool, problem: &str| if ok { Ok(()) } else { Err(problem.to_owned()) };
        ensure(self.loads.len() == loads, "the times of loads do not match the topics")?;
        ensure(self.leases.len() as u64 == leases, "the lease index does not match the leased messages")?;
        ensure(self.wheel.len() as u64 == timers, "the wheel does not match the waiting messages")?;
        ensure(self.by_arrival.len() == self.entries.len(), "the arrival index does not match the messages")?;
        ensure(self.next_arrival <= self.reserved_through, "an arrival number was used before it was reserved")
    }

    fn check_place(&self, index: u32, topic: &Topic, now: Timestamp) -> Result<(), String> {
        let entry = &self.entries[index as usize];
        let (message, progress) = (&entry.message, entry.message.progress);
        let ensure = |ok: bool, problem: &str| if ok { Ok(()) } else { Err(problem.to_owned()) };
        ensure(self.by_arrival.get(&message.id.arrival) == Some(&index), "not found by its arrival number")?;
        let in_ready = topic.ready.get(&(progress.due_at, message.id.arrival)) == Some(&index);
        let in_dead = progress.dead.is_some_and(|(_, at)| topic.dead.get(&(at, message.id.arrival)) == Some(&index));
        let lease = match &entry.state {
            State::Leased(lease) => Some(lease),
            _ => None,
        };
        ensure(matches!(entry.state, State::Ready) == in_ready, "the ready index disagrees with its state")?;
        let in_leased = topic.leased.get(&(progress.due_at, message.id.arrival)) == Some(&index);
        ensure(lease.is_some() == in_leased, "the index of leased messages disagrees with its state")?;
        ensure(matches!(entry.state, State::Dead) == in_dead, "the dead index disagrees with its state")?;
        ensure(progress.dead.is_some() == in_dead, "its record says dead and its place does not")?;
        if let Some(lease) = lease {
            ensure(self.leases.contains(&(lease.consumer, message.id.arrival)), "its lease is not indexed")?;
            ensure(lease.delivery == progress.deliveries + 1, "its lease has the wrong delivery number")?;
            ensure(progress.due_at <= lease.delivered_at, "it was leased before it was due")?;
        }
        ensure(!in_ready || progress.due_at <= now, "it is ready before it is due")?;
        ensure(!progress.cancel_on_lease_end || lease.is_some(), "it is to be cancelled but not leased")?;
        let holder = message.content.key.as_ref().map(|key| topic.keys.get(key) == Some(&index));
        ensure(holder.is_none_or(|holds| holds == progress.holds_key), "the key index disagrees with its record")?;
        ensure(progress.holds_key || progress.dead.is_some(), "it is live and does not hold its key")
    }

    fn check_topic(&self, topic: &Topic) -> Result<(), String> {
        let memory = topic.scheduled + (topic.leased.len() + topic.ready.len() + topic.dead.len()) as u64;
        let live = memory + topic.stored.waiting + topic.stored.dead;
        let entries = self.entries.iter().filter(|(_, entry)| entry.message.id.topic == topic.record.id).count() as u64;
        if memory != entries || live != topic.totals.live() {
            let totals = topic.totals;
            return Err(format!("{memory} counted, {entries} in memory, {live} with disk, by the totals {totals:?}"));
        }
        if (topic.stored.frontier == NO_FRONTIER) && topic.stored.waiting > 0 {
            return Err(format!("{} messages on disk and no frontier", topic.stored.waiting));
        }
        // What a damaged page held stays noted.
        let (keyed, moved) = topic.stored.indexed();
        let on_disk = topic.stored.waiting + topic.stored.dead;
        if topic.totals.quarantined == 0 && keyed.max(moved) as u64 > on_disk {
            return Err(format!("{keyed} keyed and {moved} moved messages of {on_disk} on disk"));
        }
        let load_at = topic.load_at(self.limits.near.load_ahead_ms);
        if topic.noted_load_at != load_at || load_at.is_some_and(|at| !self.loads.contains(&(at, topic.record.id))) {
            return Err(format!("to be loaded at {load_at:?}, noted for {:?}", topic.noted_load_at));
        }
        let keyed = self.entries.iter().filter(|(_, entry)| {
            let message = &entry.message;
            message.id.topic == topic.record.id && message.content.key.is_some() && message.progress.holds_key
        });
        let keyed = keyed.count();
        if keyed != topic.keys.len() {
            return Err(format!("{keyed} messages hold a key, {} keys are held", topic.keys.len()));
        }
        Ok(())
    }
}
