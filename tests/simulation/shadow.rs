//! What the store must hold: every change whose commit has returned, applied to the simplest state there is. Each
//! change is judged on the way: whether the rules allow it, and whether anybody asked for it.

use std::collections::{BTreeMap, BTreeSet};

use duewheel::queue::change::{Change, Closing, DedupRecord, Finished, Outcome, TopicRecord, Totals};
use duewheel::queue::message::{DeliveryOutcome, HistoryEntry, Message, MessageId, Place, Progress, TopicId};
use duewheel::queue::time::Timestamp;
use duewheel::queue::values::Key;

use crate::asked::Asked;
use crate::coverage::Coverage;
use crate::rules;

/// A broken promise, in words.
pub(crate) type Violation = String;

/// Fails with the text unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => {
        if !$condition {
            return Err(format!($($text)*));
        }
    };
}
pub(crate) use ensure;

/// How a message ended.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) finished: Finished,
    /// The run in which it did.
    pub(crate) epoch: u32,
}

/// The durable state, and what was ever in it.
#[derive(Clone, Default)]
pub(crate) struct Shadow {
    pub(crate) topics: BTreeMap<TopicId, TopicRecord>,
    pub(crate) live: BTreeMap<u64, Message>,
    pub(crate) totals: BTreeMap<TopicId, Totals>,
    pub(crate) epoch: u32,
    pub(crate) closing: Option<Closing>,
    /// The rest never shrinks.
    pub(crate) puts: Vec<TopicRecord>,
    pub(crate) deleted: BTreeSet<TopicId>,
    pub(crate) born: BTreeMap<u64, Message>,
    pub(crate) ends: BTreeMap<u64, End>,
    /// Every state that a message ever had.
    pub(crate) states: BTreeMap<u64, Vec<Progress>>,
    /// Deliveries that ended without an ack, by arrival and delivery number, with the next due time.
    pub(crate) ended: BTreeMap<(u64, u32), Option<Timestamp>>,
    /// The run in which a message was rescheduled last.
    pub(crate) rescheduled: BTreeMap<u64, u32>,
    pub(crate) dedups: BTreeMap<(TopicId, String), DedupRecord>,
}

impl Shadow {
    /// Takes in the changes of a commit. `latest` is the latest instant that any run has seen.
    pub(crate) fn commit(
        &mut self,
        changes: &[Change],
        asked: &Asked,
        latest: Timestamp,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        for change in changes {
            let applied = self.apply(change, asked, latest, coverage);
            applied.map_err(|problem| format!("{problem}\n  in the change {change:?}"))?;
        }
        self.check_keys()
    }

    fn apply(
        &mut self,
        change: &Change,
        asked: &Asked,
        latest: Timestamp,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        self.closing = None;
        match change {
            Change::TopicPut(record) => {
                ensure!(!self.deleted.contains(&record.id), "a deleted topic is back");
                self.topics.insert(record.id, record.clone());
                self.totals.entry(record.id).or_default();
                self.puts.push(record.clone());
            }
            Change::TopicDeleted { topic, .. } => {
                ensure!(self.topics.remove(topic).is_some(), "a topic that does not exist is deleted");
                self.totals.remove(topic);
                self.live.retain(|_, message| message.id.topic != *topic);
                self.deleted.insert(*topic);
            }
            Change::Produced(message) => self.produced(message, asked)?,
            Change::Moved { message, previous, entry } => {
                self.moved(message, *previous, entry.as_ref(), asked, coverage)?;
            }
            Change::Finished(finished) => self.finished(finished, asked, coverage)?,
            Change::DedupPut(record) => self.dedup(record, latest)?,
            Change::Quarantined(part) => return Err(format!("damage where nothing was damaged: {part}")),
            Change::ArrivalsReserved(_) => {}
            Change::Opened { epoch, .. } => {
                ensure!(*epoch > self.epoch, "epoch {epoch} after {}", self.epoch);
                self.epoch = *epoch;
            }
            Change::Closed(closing) => self.closing = Some(closing.clone()),
        }
        Ok(())
    }

    fn produced(&mut self, message: &Message, asked: &Asked) -> Result<(), Violation> {
        let (id, progress) = (message.id, message.progress);
        let topic = self.topics.get(&id.topic).ok_or("a message without a topic")?;
        ensure!(!self.born.contains_key(&id.arrival), "arrival number {} is used twice", id.arrival);
        ensure!(progress == Progress::new(id.birth_due), "a fresh message that is not fresh");
        ensure!(asked.bodies.contains_key(&message.content.body), "nobody has produced it");
        if !message.content.explicit_first_wait {
            let (least, most) = rules::first_due(message, &topic.settings);
            ensure!((least..=most).contains(&id.birth_due), "the first tier is over at {least} to {most}");
        }
        ensure!(id.birth_due >= message.content.produced_at, "it is due before it was produced");
        self.totals.entry(id.topic).or_default().produced += 1;
        self.born.insert(id.arrival, message.clone());
        self.states.insert(id.arrival, vec![progress]);
        self.live.insert(id.arrival, message.clone());
        Ok(())
    }

    fn moved(
        &mut self,
        message: &Message,
        previous: Place,
        entry: Option<&HistoryEntry>,
        asked: &Asked,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let arrival = message.id.arrival;
        let ended = self.ends.get(&arrival);
        let before = self.live.get(&arrival).ok_or_else(|| format!("it is not live; its end was {ended:?}"))?;
        ensure!(before.id == message.id && before.content == message.content, "it has become another message");
        ensure!(before.place() == previous, "it was in {:?}, not in {previous:?}", before.place());
        if let Some(entry) = entry {
            self.judge_end(before, message, entry, asked)?;
            let dead = message.progress.dead.map_or_else(String::new, |(reason, _)| format!(" dead {reason:?}"));
            let is_spent = message.progress.attempts > before.progress.attempts;
            coverage.mark(format!("lease ended {:?} spent={is_spent}{dead}", entry.outcome));
            self.ended.insert((arrival, entry.delivery), entry.next_due_at);
        } else {
            let what = judge_move(&before.progress, &message.progress)?;
            if what == "rescheduled" {
                self.rescheduled.insert(arrival, self.epoch);
            }
            coverage.mark(what);
        }
        self.states.entry(arrival).or_default().push(message.progress);
        self.live.insert(arrival, message.clone());
        Ok(())
    }

    /// A lease has ended without an ack: as the schedule says, and because of something that has happened.
    fn judge_end(
        &self,
        before: &Message,
        after: &Message,
        entry: &HistoryEntry,
        asked: &Asked,
    ) -> Result<(), Violation> {
        let (progress, settings) = (after.progress, &self.topics[&before.id.topic].settings);
        ensure!(before.progress.dead.is_none(), "a dead message had a lease");
        ensure!(entry.delivered_at >= before.progress.due_at, "it was leased before it was due");
        ensure!(entry.delivery == before.progress.deliveries + 1, "a delivery number was skipped");
        ensure!(entry.attempt == before.progress.attempts + 1, "an attempt was skipped");
        let (mut expected, latest) = rules::end_lease(before, settings, entry);
        let is_in_time = (expected.due_at..=latest).contains(&progress.due_at);
        ensure!(is_in_time, "due at {}, not at {} to {latest}", progress.due_at, expected.due_at);
        expected.due_at = progress.due_at;
        ensure!(progress == expected, "not as the schedule says:\n  {progress:?}, but\n  {expected:?}");
        let lease = (before.id.arrival, entry.delivery);
        match entry.outcome {
            DeliveryOutcome::LeaseExpired => {
                let deadline = asked.deadlines.get(&lease).copied().unwrap_or_default();
                ensure!(entry.ended_at >= deadline, "it expired at {}, before its deadline {deadline}", entry.ended_at);
            }
            DeliveryOutcome::Returned => {
                ensure!(asked.gone.contains(entry.consumer.as_str()), "{} has not gone away", entry.consumer.as_str());
            }
            _ => ensure!(asked.nacks.contains(&lease), "nobody has nacked it"),
        }
        Ok(())
    }

    fn finished(&mut self, finished: &Finished, asked: &Asked, coverage: &mut Coverage) -> Result<(), Violation> {
        let (arrival, topic) = (finished.id.arrival, finished.id.topic);
        let ended = self.ends.get(&arrival);
        let before = self.live.remove(&arrival).ok_or_else(|| format!("it is not live; its end was {ended:?}"))?;
        ensure!(before.id == finished.id && before.place() == finished.previous, "it was in {:?}", before.place());
        let is_dead = before.progress.dead.is_some();
        ensure!(is_dead == (finished.outcome == Outcome::Purged), "dead: {is_dead}");
        match (finished.outcome, finished.receipt) {
            (Outcome::Acked, Some((delivery, epoch))) => {
                ensure!(delivery == before.progress.deliveries + 1, "the receipt of an ended lease has acked it");
                ensure!(asked.acks.contains(&(arrival, delivery, epoch)), "nobody has acked it");
            }
            (Outcome::Cancelled, None) => {
                let by_key = || finished.key.as_ref().is_some_and(|key| asked.cancelled_keys.contains(key.as_str()));
                ensure!(asked.cancelled.contains(&arrival) || by_key(), "nobody has cancelled it");
            }
            (Outcome::Replaced, None) => ensure!(finished.key.is_some(), "it has no key"),
            (Outcome::Purged, None) => ensure!(asked.purged.contains(&arrival), "nobody has purged it"),
            (outcome, receipt) => return Err(format!("{outcome:?} with the receipt {receipt:?}")),
        }
        coverage.mark(format!("finished {:?}", finished.outcome));
        self.totals.entry(topic).or_default().count(finished.outcome);
        self.ends.insert(arrival, End { finished: finished.clone(), epoch: self.epoch });
        Ok(())
    }

    fn dedup(&mut self, record: &DedupRecord, latest: Timestamp) -> Result<(), Violation> {
        let name = (record.topic, record.dedup_id.as_str().to_owned());
        if let Some(earlier) = self.dedups.get(&name) {
            // Once it was over it may be forgotten, and the clock may have been set back since.
            ensure!(earlier.expires_at <= latest, "a dedup id answered twice within its window: {earlier:?}");
        }
        ensure!(self.born.contains_key(&record.message.arrival), "a dedup id without a message");
        self.dedups.insert(name, record.clone());
        Ok(())
    }

    fn check_keys(&self) -> Result<(), Violation> {
        let mut holders: BTreeMap<(TopicId, &Key), MessageId> = BTreeMap::new();
        for message in self.live.values().filter(|message| message.progress.holds_key) {
            let Some(key) = &message.content.key else { continue };
            if let Some(other) = holders.insert((message.id.topic, key), message.id) {
                return Err(format!("{other} and {} are live with the key {}", message.id, key.as_str()));
            }
        }
        Ok(())
    }

    /// True if the message is gone with its topic.
    pub(crate) fn is_deleted(&self, id: MessageId) -> bool {
        self.deleted.contains(&id.topic)
    }
}

/// A change without the end of a lease, and what it is called.
fn judge_move(before: &Progress, after: &Progress) -> Result<&'static str, Violation> {
    let rescheduled = Progress { due_at: after.due_at, ..*before };
    let marked = Progress { cancel_on_lease_end: true, ..*before };
    let redriven = Progress {
        due_at: after.due_at,
        attempts: 0,
        failures: 0,
        returns: 0,
        redrives: before.redrives + 1,
        deliveries_before_redrive: before.deliveries,
        holds_key: true,
        dead: None,
        ..*before
    };
    match after {
        after if after == before => Ok("written again"),
        after if *after == rescheduled && before.dead.is_none() => Ok("rescheduled"),
        after if *after == marked && before.dead.is_none() => Ok("marked"),
        after if *after == redriven && before.dead.is_some() => Ok("redriven"),
        _ => Err(format!("{before:?} has become\n  {after:?}")),
    }
}
