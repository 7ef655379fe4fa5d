//! The naive model: the same rules, written down a second time with nothing clever in them. Messages lie in one
//! map, every question scans all of them, and no two facts are kept that could disagree.
//!
//! Where the rules leave a choice to the queue (arrival numbers, jitter, the order of what ends at one instant, how many
//! deliveries a rate cap lets go), the model takes the choice from the queue's answer and checks that it was allowed.

use std::collections::BTreeMap;

use duewheel::queue::change::{Change, Finished, Outcome, TopicRecord, Totals};
use duewheel::queue::command::{
    Command, ConsumerId, DeletedTopic, FindRejection, Rejection, Reply, Target, TopicRejection,
};
use duewheel::queue::limits::Limits;
use duewheel::queue::message::{MessageId, TopicId};
use duewheel::queue::settings::TopicSettings;
use duewheel::queue::time::Timestamp;
use duewheel::queue::values::{Key, TopicName};

use crate::parts::{Dedup, Entry, State, Topic};

/// What the queue did, for the choices that are its own.
pub(crate) struct Did<'a> {
    pub(crate) answer: Option<&'a Result<Reply, Rejection>>,
    pub(crate) changes: &'a [Change],
}

impl Did<'_> {
    /// Where among the changes the message ended or moved.
    fn position(&self, id: MessageId) -> Option<usize> {
        self.changes.iter().position(|change| match change {
            Change::Moved { message, .. } => message.id == id,
            Change::Finished(finished) => finished.id == id,
            _ => false,
        })
    }
}

#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) limits: Limits,
    pub(crate) epoch: u32,
    /// When this run of the broker began.
    pub(crate) opened_at: Timestamp,
    /// When an unclean stop last made leases void.
    pub(crate) voided_at: Option<Timestamp>,
    /// The latest instant that was passed in.
    clock: Timestamp,
    /// Messages due at or before this instant are ready.
    pub(crate) advanced_to: Timestamp,
    /// The last advance was stopped by its limit: some of what is due is not ready yet, and some leases are over and
    /// have not expired.
    pub(crate) interrupted: bool,
    pub(crate) topics: Vec<Topic>,
    pub(crate) entries: BTreeMap<u64, Entry>,
    /// Every message that ever ended and is still remembered, oldest first.
    pub(crate) ended: Vec<Finished>,
    pub(crate) dedups: Vec<Dedup>,
    /// Arrivals below this one are used.
    pub(crate) next_arrival: u64,
    /// The highest number that a topic ever had.
    pub(crate) last_topic: TopicId,
}

impl Model {
    pub(crate) fn new(limits: Limits, epoch: u32, opened_at: Timestamp) -> Self {
        Self {
            limits,
            epoch,
            opened_at,
            voided_at: None,
            clock: opened_at,
            advanced_to: opened_at,
            interrupted: false,
            topics: Vec::new(),
            entries: BTreeMap::new(),
            ended: Vec::new(),
            dedups: Vec::new(),
            next_arrival: 0,
            last_topic: TopicId(0),
        }
    }

    /// What the queue must answer.
    pub(crate) fn apply(&mut self, now: Timestamp, command: &Command, did: &Did) -> Result<Reply, Rejection> {
        self.clock = now;
        let answer = self.answer(now, command, did);
        for entry in self.entries.values_mut() {
            entry.due_at_opening |= entry.progress.due_at == self.opened_at;
        }
        answer
    }

    fn answer(&mut self, now: Timestamp, command: &Command, did: &Did) -> Result<Reply, Rejection> {
        match command {
            Command::CreateTopic { name, settings } => self.create_topic(now, name, settings, did),
            Command::UpdateTopic { name, settings } => self.update_topic(now, name, settings),
            Command::PatchTopic { name, patch } => {
                let present = self.topic(name).map(|topic| topic.record.settings.clone()).unwrap_or_default();
                self.update_topic(now, name, &patch.of_present(&present))
            }
            Command::SetPaused { name, paused } => self.set_paused(name, *paused),
            Command::Produce(produce) => {
                self.produce(now, produce, did).map(Reply::Produced).map_err(Rejection::Produce)
            }
            Command::Lease(request) => self.lease(now, request, did).map(Reply::Leased).map_err(Rejection::Find),
            Command::Ack(receipt) => {
                self.ack(now, receipt).map(|repeated| Reply::Acked { repeated }).map_err(Rejection::Settle)
            }
            Command::Nack(nack) => self.nack(now, nack, did).map(Reply::Nacked).map_err(Rejection::Settle),
            Command::Extend { receipt, lease_ms } => {
                self.extend(now, receipt, *lease_ms).map(Reply::Extended).map_err(Rejection::Settle)
            }
            Command::ReturnAll(consumer) => Ok(Reply::Returned(self.return_all(now, *consumer, did))),
            Command::Return(receipt) => {
                self.return_one(now, receipt, did).map(|()| Reply::Returned(1)).map_err(Rejection::Settle)
            }
            Command::Cancel { topic, target, when_lease_ends } => {
                self.cancel(now, topic, target, *when_lease_ends).map(Reply::Cancel).map_err(Rejection::Find)
            }
            Command::Reschedule { topic, target, due } => {
                self.reschedule(now, topic, target, *due).map(Reply::Reschedule).map_err(Rejection::Find)
            }
            Command::Redrive(letter) => self.redrive(now, letter).map(Reply::Redrive).map_err(Rejection::Find),
            Command::Purge(letter) => self.purge(now, letter).map(Reply::Purge).map_err(Rejection::Find),
            Command::DeleteTopic { name, purge } => self.delete_topic(name, *purge, did),
        }
    }

    /// Leases that are over end, messages that are due become ready. If the queue stopped at its limit, those leases
    /// end that it has ended.
    pub(crate) fn advance(&mut self, now: Timestamp, interrupted: bool, did: &Did) {
        self.clock = now;
        self.interrupted = interrupted;
        let mut over: Vec<(Option<usize>, u64)> = Vec::new();
        for (&arrival, entry) in &self.entries {
            let touched = did.position(entry.id);
            let is_over = entry.lease.as_ref().is_some_and(|lease| lease.deadline <= now);
            if is_over && (touched.is_some() || !interrupted) {
                over.push((touched, arrival));
            }
        }
        // What ends at one instant ends in the order that the queue chose.
        over.sort_unstable();
        for (_, arrival) in over {
            self.expire(now, arrival, did);
        }
        self.advanced_to = self.advanced_to.max(now);
        for topic in &mut self.topics {
            // The wake-up for a token is given once; whoever wants the delivery asks again.
            topic.rate_wanted &= topic.token_from().is_some_and(|at| now < at);
        }
    }

    /// The next instant at which something happens by itself, a rate cap apart.
    pub(crate) fn next_event(&self) -> Option<Timestamp> {
        let is_paused = |id| self.topics.iter().any(|topic| topic.record.id == id && topic.record.paused);
        let instant = |entry: &Entry| match entry.state(self.advanced_to) {
            // What waits in a paused topic may stay on disk.
            State::Scheduled => (!is_paused(entry.id.topic)).then_some(entry.progress.due_at),
            State::Leased => entry.lease.as_ref().map(|lease| lease.deadline),
            State::Ready | State::Dead => None,
        };
        self.entries.values().filter_map(instant).min()
    }

    /// The broker stops and starts again. After a crash the leases are void.
    pub(crate) fn restart(&mut self, now: Timestamp, clean: bool, epoch: u32, reserved: u64, did: &Did) {
        self.epoch = epoch;
        let set_back_ms = self.clock.since(now);
        self.opened_at = now;
        self.clock = now;
        self.advanced_to = now;
        // Nothing has been advanced yet.
        self.interrupted = true;
        self.next_arrival = reserved;
        if !clean {
            self.voided_at = Some(now);
        }
        for topic in &mut self.topics {
            topic.paced_since = now;
            topic.rate_wanted = false;
            // If the clock has been set back, nobody knows how long ago these were.
            topic.delivered.retain(|&at| at <= now);
        }
        let mut arrivals: Vec<u64> = self.entries.keys().copied().collect();
        arrivals.sort_by_key(|arrival| did.position(self.entries[arrival].id));
        for arrival in arrivals {
            let entry = self.entries.get_mut(&arrival).expect("just listed");
            entry.due_at_opening = false;
            if clean {
                // The suspicion outlives a clean stop as long as the due time still tells it.
                let voided_at = self.voided_at.unwrap_or(Timestamp::ZERO);
                entry.suspected_now &= entry.progress.due_at <= voided_at;
                if let Some(lease) = &mut entry.lease {
                    lease.consumer = ConsumerId::NONE;
                    // It has no more time left than it had, however far the clock was set back.
                    lease.deadline = lease.deadline.minus(set_back_ms);
                }
                continue;
            }
            entry.lease = None;
            entry.suspected_now = false;
            if entry.progress.dead.is_none() && entry.progress.due_at <= now {
                (entry.suspected, entry.suspected_now) = (true, true);
            }
            if entry.progress.cancel_on_lease_end {
                self.finish(now, arrival, Outcome::Cancelled, None);
            }
        }
    }

    pub(crate) fn topic(&self, name: &TopicName) -> Option<&Topic> {
        self.topics.iter().find(|topic| topic.record.name == *name)
    }

    pub(crate) fn topic_mut(&mut self, id: TopicId) -> &mut Topic {
        self.topics
            .iter_mut()
            .find(|topic| topic.record.id == id)
            .expect("its messages went with a topic that was deleted")
    }

    pub(crate) fn settings(&self, id: TopicId) -> TopicSettings {
        let topic = self.topics.iter().find(|topic| topic.record.id == id);
        topic.expect("its messages went with a topic that was deleted").record.settings.clone()
    }

    pub(crate) fn in_topic(&self, id: TopicId) -> impl Iterator<Item = &Entry> {
        self.entries.values().filter(move |entry| entry.id.topic == id)
    }

    pub(crate) fn count(&self, id: TopicId, state: State) -> usize {
        self.in_topic(id).filter(|entry| entry.state(self.advanced_to) == state).count()
    }

    /// Ready messages of a topic in the order in which they are leased.
    pub(crate) fn ready(&self, id: TopicId) -> Vec<&Entry> {
        let mut ready: Vec<&Entry> =
            self.in_topic(id).filter(|entry| entry.state(self.advanced_to) == State::Ready).collect();
        ready.sort_by_key(|entry| (entry.progress.due_at, entry.id.arrival));
        ready
    }

    /// The live message that holds a key.
    pub(crate) fn holder(&self, id: TopicId, key: &Key) -> Option<&Entry> {
        let holds = |entry: &&Entry| entry.content.key.as_ref() == Some(key) && entry.progress.holds_key;
        let mut holders = self.in_topic(id).filter(holds);
        let holder = holders.next();
        assert!(holders.next().is_none(), "a key has one holder");
        holder
    }

    /// The live message that a target names.
    pub(crate) fn live(&self, topic: TopicId, target: &Target) -> Option<&Entry> {
        match target {
            Target::Id(id) => self.entries.get(&id.arrival).filter(|entry| entry.id == *id && id.topic == topic),
            Target::Key(key) => self.holder(topic, key),
        }
    }

    /// The latest ended message that a target names and the history remembers.
    pub(crate) fn gone(&self, topic: TopicId, target: &Target) -> Option<&Finished> {
        let age = self.topics.iter().find(|known| known.record.id == topic)?.record.settings.history_age_ms;
        let known = |finished: &&Finished| finished.id.topic == topic && self.clock.since(finished.at) <= age;
        let mut newest_first = self.ended.iter().rev();
        let named = newest_first.find(|finished| match target {
            Target::Id(id) => finished.id == *id,
            Target::Key(key) => finished.id.topic == topic && finished.key.as_ref() == Some(key),
        });
        named.filter(known)
    }

    pub(crate) fn finish(&mut self, now: Timestamp, arrival: u64, outcome: Outcome, receipt: Option<(u32, u32)>) {
        let entry = self.entries.remove(&arrival).expect("a live message");
        self.topic_mut(entry.id.topic).totals.count(outcome);
        let (id, key, previous) = (entry.id, entry.content.key.clone(), entry.message().place());
        self.ended.push(Finished { id, key, outcome, at: now, receipt, previous });
        self.trim(now, id.topic);
    }

    /// The history of a topic forgets its oldest entries, by count and by age.
    fn trim(&mut self, now: Timestamp, topic: TopicId) {
        let settings = self.settings(topic);
        let of_topic = |finished: &Finished| finished.id.topic == topic;
        while let Some(oldest) = self.ended.iter().position(of_topic) {
            let count = self.ended.iter().filter(|finished| of_topic(finished)).count();
            let old = now.since(self.ended[oldest].at) > settings.history_age_ms;
            if count <= settings.history_count as usize && !old {
                break;
            }
            self.ended.remove(oldest);
        }
    }

    /// What the dedup window of a topic remembers: the last record of each id, until it expires.
    pub(crate) fn remembered_dedups(&self, topic: TopicId) -> Vec<&Dedup> {
        let last = |dedup: &&Dedup| {
            let same_id = |other: &&Dedup| other.topic == topic && other.id == dedup.id;
            let last = self.dedups.iter().rev().find(same_id);
            dedup.topic == topic && last.is_some_and(|last| std::ptr::eq(last, *dedup))
        };
        self.dedups.iter().filter(last).filter(|dedup| dedup.expires_at > self.clock).collect()
    }

    fn create_topic(
        &mut self,
        now: Timestamp,
        name: &TopicName,
        settings: &TopicSettings,
        did: &Did,
    ) -> Result<Reply, Rejection> {
        settings.check(&self.limits).map_err(TopicRejection::Invalid)?;
        if self.topic(name).is_some() {
            return Err(TopicRejection::Exists(name.clone()).into());
        }
        if self.topics.len() >= self.limits.max_topics {
            return Err(TopicRejection::TooMany(self.limits.max_topics).into());
        }
        let Some(Ok(Reply::Topic(TopicRecord { id, .. }))) = did.answer else { panic!("a topic must be created") };
        assert!(*id > self.last_topic, "a topic number is used again");
        self.last_topic = *id;
        let record =
            TopicRecord { id: *id, name: name.clone(), settings: settings.clone(), paused: false, created_at: now };
        self.topics.push(Topic {
            record: record.clone(),
            totals: Totals::default(),
            delivered: Vec::new(),
            paced_since: now,
            rate_wanted: false,
            updated: false,
        });
        Ok(Reply::Topic(record))
    }

    fn delete_topic(&mut self, name: &TopicName, purge: bool, did: &Did) -> Result<Reply, Rejection> {
        let Some(topic) = self.topic(name) else { return Err(TopicRejection::NotFound(name.clone()).into()) };
        let id = topic.record.id;
        let messages = self.in_topic(id).count() as u64;
        if messages > 0 && !purge {
            let [leased, dead] = [State::Leased, State::Dead].map(|state| self.count(id, state) as u64);
            let (topic, waiting) = (name.clone(), messages - leased - dead);
            return Err(TopicRejection::NotEmpty { topic, waiting, leased, dead }.into());
        }
        self.topics.retain(|topic| topic.record.id != id);
        self.entries.retain(|_, entry| entry.id.topic != id);
        self.ended.retain(|finished| finished.id.topic != id);
        self.dedups.retain(|dedup| dedup.topic != id);
        // Whether something of it is in pages is the queue's to know.
        let generation = match did.answer {
            Some(Ok(Reply::TopicDeleted(deleted))) => deleted.generation,
            _ => None,
        };
        assert!(messages > 0 || generation.is_none(), "nothing of an empty topic is to be given back");
        Ok(Reply::TopicDeleted(DeletedTopic { id, messages, generation }))
    }

    fn update_topic(&mut self, now: Timestamp, name: &TopicName, settings: &TopicSettings) -> Result<Reply, Rejection> {
        settings.check(&self.limits).map_err(TopicRejection::Invalid)?;
        let Some(topic) = self.topics.iter_mut().find(|topic| topic.record.name == *name) else {
            return Err(TopicRejection::NotFound(name.clone()).into());
        };
        if topic.record.settings.rate != settings.rate {
            topic.paced_since = now;
            topic.delivered.clear();
            // The round that changes the cap serves the waiting consumers anew.
            topic.rate_wanted = false;
        }
        topic.updated = true;
        topic.record.settings = settings.clone();
        Ok(Reply::Topic(topic.record.clone()))
    }

    fn set_paused(&mut self, name: &TopicName, paused: bool) -> Result<Reply, Rejection> {
        let Some(topic) = self.topics.iter_mut().find(|topic| topic.record.name == *name) else {
            return Err(TopicRejection::NotFound(name.clone()).into());
        };
        topic.record.paused = paused;
        Ok(Reply::Topic(topic.record.clone()))
    }
}

/// The due time after a tier: exactly the tier, or with jitter what the queue chose within the allowed range.
pub(crate) fn jittered(now: Timestamp, wait: u64, settings: &TopicSettings, chosen: Timestamp) -> Timestamp {
    let longest = wait + wait * u64::from(settings.jitter_percent) / 100;
    if settings.jitter_percent > 0 && (now.plus(wait)..=now.plus(longest)).contains(&chosen) {
        return chosen;
    }
    now.plus(wait)
}

pub(crate) fn find_topic(model: &Model, name: &TopicName) -> Result<TopicId, FindRejection> {
    model.topic(name).map(|topic| topic.record.id).ok_or_else(|| FindRejection::TopicNotFound(name.clone()))
}
