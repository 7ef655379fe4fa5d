//! The model's half of producing: limits, dedup window, key policy, first wait.

use duewheel::queue::change::Outcome;
use duewheel::queue::command::{Due, KeyPolicy, Produce, ProduceRejection, Produced, Reply};
use duewheel::queue::limits::MAX_ATTEMPTS;
use duewheel::queue::message::{Content, MessageId, Progress, TopicId};
use duewheel::queue::schedule::RetrySchedule;
use duewheel::queue::time::Timestamp;
use duewheel::queue::values::Invalid;

use crate::model::{Did, Model, jittered};
use crate::parts::{Dedup, Entry};

impl Model {
    pub(crate) fn produce(
        &mut self,
        now: Timestamp,
        produce: &Produce,
        did: &Did,
    ) -> Result<Produced, ProduceRejection> {
        let Some(topic) = self.topic(&produce.topic) else {
            return Err(ProduceRejection::TopicNotFound(produce.topic.clone()));
        };
        let (topic, settings) = (topic.record.id, topic.record.settings.clone());
        self.check_produce(now, produce)?;
        let asked = format!("{:?}", Produce { dedup_id: None, ..produce.clone() });
        if let Some(dedup_id) = &produce.dedup_id {
            let remembered = self.remembered_dedups(topic);
            if let Some(first) = remembered.iter().find(|dedup| dedup.id == *dedup_id) {
                if first.asked != asked {
                    return Err(ProduceRejection::DedupIdReused { first: first.message });
                }
                return Ok(Produced { id: first.message, due_at: first.due_at, existing: true });
            }
            if remembered.len() >= settings.dedup_capacity as usize {
                let oldest = remembered.iter().map(|dedup| dedup.expires_at).min().expect("a full window is not empty");
                let (capacity, retry_after_ms) = (settings.dedup_capacity, oldest.since(now));
                return Err(ProduceRejection::DedupWindowFull { capacity, retry_after_ms });
            }
        }
        let produced = self.store_or_keep(now, topic, produce, did)?;
        if let Some(id) = produce.dedup_id.clone() {
            let expires_at = now.plus(settings.dedup_window_ms);
            let (message, due_at) = (produced.id, produced.due_at);
            self.dedups.push(Dedup { topic, id, asked, message, due_at, expires_at });
        }
        Ok(produced)
    }

    fn check_produce(&self, now: Timestamp, produce: &Produce) -> Result<(), Invalid> {
        let bad = |field| Err(Invalid::new(field, "out of range"));
        let max = self.limits.max_delay_ms;
        if produce.body.len() > self.limits.max_body_bytes {
            return bad("body");
        }
        match produce.due {
            Some(Due::After(ms)) if ms > max => return bad("delay"),
            Some(Due::At(at)) if at.since(now) > max => return bad("due_at"),
            _ => {}
        }
        let tiers = produce.schedule.as_ref().map(RetrySchedule::tiers);
        if tiers.is_some_and(|tiers| tiers.is_empty() || tiers.iter().any(|&tier| tier > max)) {
            return bad("schedule");
        }
        if produce.max_attempts.is_some_and(|max| max == 0 || max > MAX_ATTEMPTS) {
            return bad("max_attempts");
        }
        Ok(())
    }

    fn store_or_keep(
        &mut self,
        now: Timestamp,
        topic: TopicId,
        produce: &Produce,
        did: &Did,
    ) -> Result<Produced, ProduceRejection> {
        let holder = produce.key.as_ref().and_then(|key| self.holder(topic, key));
        if let Some(holder) = holder {
            let (id, due_at) = (holder.id, holder.progress.due_at);
            let (dead, leased) = (holder.progress.dead.is_some(), holder.lease.is_some());
            match produce.key_policy {
                KeyPolicy::Keep => return Ok(Produced { id, due_at, existing: true }),
                KeyPolicy::Replace if leased => return Err(ProduceRejection::KeyInFlight { holder: id }),
                KeyPolicy::Replace if !dead => self.finish(now, id.arrival, Outcome::Replaced, None),
                KeyPolicy::Replace | KeyPolicy::Reject => {
                    return Err(ProduceRejection::KeyInUse { holder: id, dead });
                }
            }
        }
        let settings = self.settings(topic);
        let Some(Ok(Reply::Produced(answer))) = did.answer else { panic!("the message must be stored") };
        let due_at = match produce.due {
            Some(Due::After(ms)) => now.plus(ms),
            Some(Due::At(at)) => at.max(now),
            None => {
                let schedule = produce.schedule.as_ref().unwrap_or(&settings.schedule);
                jittered(now, schedule.wait(1).expect("not empty"), &settings, answer.due_at)
            }
        };
        let arrival = answer.id.arrival;
        assert!(arrival >= self.next_arrival, "arrival {arrival} was used before {}", self.next_arrival);
        self.next_arrival = arrival + 1;
        let content = Content {
            key: produce.key.clone(),
            headers: produce.headers.clone(),
            body: produce.body.clone(),
            schedule: produce.schedule.clone(),
            max_attempts: produce.max_attempts,
            explicit_first_wait: produce.due.is_some(),
            produced_at: now,
        };
        let id = MessageId { topic, birth_due: due_at, arrival };
        let entry = Entry {
            id,
            content: content.into(),
            progress: Progress::new(due_at),
            history: Vec::new(),
            lease: None,
            suspected: false,
            suspected_now: false,
            due_at_opening: false,
        };
        self.entries.insert(arrival, entry);
        self.topic_mut(topic).totals.produced += 1;
        Ok(Produced { id, due_at, existing: false })
    }
}
