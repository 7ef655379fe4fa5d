//! Taking messages: limits, dedup window, key policy, first wait.

use std::sync::Arc;

use super::change::{Change, DedupRecord, Outcome};
use super::command::{Due, KeyPolicy, Produce, ProduceRejection, Produced};
use super::dedup::content_hash;
use super::entry::State;
use super::limits::MAX_ATTEMPTS;
use super::message::{Content, Message, MessageId, Progress, TopicId};
use super::settings::{check_tiers, too_long};
use super::state::{Effects, Queue};
use super::time::Timestamp;
use super::transition::first_wait;
use super::values::Invalid;

/// What the key policy says about the holder of the key.
enum Holder {
    None,
    Replace(u32),
    Keep(u32),
}

impl Queue {
    pub(super) fn produce(
        &mut self,
        now: Timestamp,
        produce: Produce,
        effects: &mut Effects,
    ) -> Result<Produced, ProduceRejection> {
        let topic =
            self.topic_id(&produce.topic).ok_or_else(|| ProduceRejection::TopicNotFound(produce.topic.clone()))?;
        self.check_produce(now, &produce)?;
        let content_hash = produce.dedup_id.is_some().then(|| content_hash(&produce));
        if let Some(answer) = self.answered_before(now, topic, &produce, content_hash)? {
            return Ok(answer);
        }
        let holder = self.key_holder(topic, &produce)?;
        let dedup_id = produce.dedup_id.clone();
        let produced = match holder {
            Holder::Keep(index) => {
                let Message { id, progress, .. } = self.message(index);
                Produced { id: *id, due_at: progress.due_at, existing: true }
            }
            Holder::None => self.take_message(now, topic, produce, effects),
            Holder::Replace(index) => {
                self.lift(index, effects);
                self.finish(now, index, Outcome::Replaced, None, effects);
                self.take_message(now, topic, produce, effects)
            }
        };
        if let (Some(dedup_id), Some(content_hash)) = (dedup_id, content_hash) {
            let topic_state = self.topic_mut(topic);
            let expires_at = now.plus(topic_state.record.settings.dedup_window_ms);
            let Produced { id: message, due_at, .. } = produced;
            let record = DedupRecord { topic, dedup_id, content_hash, message, due_at, expires_at };
            topic_state.dedup.insert(record.clone(), now);
            effects.changes.push(Change::DedupPut(record));
        }
        Ok(produced)
    }

    fn check_produce(&self, now: Timestamp, produce: &Produce) -> Result<(), Invalid> {
        let limits = &self.limits;
        if produce.body.len() > limits.max_body_bytes {
            let problem = format!("{} bytes; at most {}", produce.body.len(), limits.max_body_bytes);
            return Err(Invalid::new("body", problem));
        }
        if let Some(schedule) = &produce.schedule {
            if schedule.tiers().is_empty() {
                return Err(Invalid::new("schedule", "must have at least one tier"));
            }
            check_tiers("schedule", schedule, limits)?;
        }
        if let Some(max) = produce.max_attempts.filter(|max| !(1..=MAX_ATTEMPTS).contains(max)) {
            return Err(Invalid::new("max_attempts", format!("{max}; must be 1 to {MAX_ATTEMPTS}")));
        }
        produce.due.map_or(Ok(()), |due| self.check_due(now, due))
    }

    /// Refuses a due time that is too far away.
    pub(super) fn check_due(&self, now: Timestamp, due: Due) -> Result<(), Invalid> {
        let (field, wait) = match due {
            Due::After(ms) => ("delay", ms),
            Due::At(at) => ("due_at", at.since(now)),
        };
        if wait > self.limits.max_delay_ms { Err(too_long(field, wait, &self.limits)) } else { Ok(()) }
    }

    fn answered_before(
        &self,
        now: Timestamp,
        topic: TopicId,
        produce: &Produce,
        hash: Option<u128>,
    ) -> Result<Option<Produced>, ProduceRejection> {
        let (Some(dedup_id), Some(hash)) = (&produce.dedup_id, hash) else { return Ok(None) };
        let state = &self.topics[&topic];
        match state.dedup.answered(dedup_id, now) {
            Some(record) if record.content_hash == hash => {
                Ok(Some(Produced { id: record.message, due_at: record.due_at, existing: true }))
            }
            Some(record) => Err(ProduceRejection::DedupIdReused { first: record.message }),
            None => {
                let capacity = state.record.settings.dedup_capacity;
                match state.dedup.full_for(capacity, now) {
                    Some(retry_after_ms) => Err(ProduceRejection::DedupWindowFull { capacity, retry_after_ms }),
                    None => Ok(None),
                }
            }
        }
    }

    fn key_holder(&self, topic: TopicId, produce: &Produce) -> Result<Holder, ProduceRejection> {
        let Some(key) = &produce.key else { return Ok(Holder::None) };
        let Some(&index) = self.topics[&topic].keys.get(key) else { return Ok(Holder::None) };
        let entry = &self.entries[index as usize];
        let holder = entry.message.id;
        match (produce.key_policy, &entry.state) {
            (KeyPolicy::Keep, _) => Ok(Holder::Keep(index)),
            (KeyPolicy::Replace, State::Leased(_)) => Err(ProduceRejection::KeyInFlight { holder }),
            (KeyPolicy::Replace, State::Scheduled(_) | State::Ready) => Ok(Holder::Replace(index)),
            (_, state) => Err(ProduceRejection::KeyInUse { holder, dead: matches!(state, State::Dead) }),
        }
    }

    fn take_message(&mut self, now: Timestamp, topic: TopicId, produce: Produce, effects: &mut Effects) -> Produced {
        let arrival = self.take_arrival(effects);
        let content = Content {
            key: produce.key,
            headers: produce.headers,
            body: produce.body,
            schedule: produce.schedule,
            max_attempts: produce.max_attempts,
            explicit_first_wait: produce.due.is_some(),
            produced_at: now,
        };
        let id = MessageId { topic, birth_due: now, arrival };
        let mut message = Message { id, content: Arc::new(content), progress: Progress::new(now), history: None };
        let due_at = match produce.due {
            Some(Due::After(ms)) => now.plus(ms),
            Some(Due::At(at)) => at.max(now),
            None => now.plus(first_wait(&message, &self.topics[&topic].record.settings)),
        };
        message.id.birth_due = due_at;
        message.progress.due_at = due_at;
        self.shift(&message, None, Some(message.place()));
        effects.changes.push(Change::Produced(message.clone()));
        let id = message.id;
        self.insert(now, message, false);
        self.topic_mut(topic).totals.produced += 1;
        Produced { id, due_at, existing: false }
    }
}
