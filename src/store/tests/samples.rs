//! Random values of every stored type, and random changes chosen from the present state.

use std::sync::Arc;

use bytes::Bytes;

use super::model::Model;
use crate::queue::change::{Change, DedupRecord, Finished, OpenLease, Outcome, TopicRecord};
use crate::queue::message::{
    Content, DeadReason, DeliveryOutcome, HistoryEntry, Message, MessageId, Place, Progress, TopicId,
};
use crate::queue::quarantine::DamagedPart;
use crate::queue::schedule::RetrySchedule;
use crate::queue::settings::{RateCap, TopicSettings};
use crate::queue::time::Timestamp;
use crate::queue::values::{ConsumerName, DedupId, Headers, Key, NackText, TopicName};
use crate::store::doubles::Chance;

pub(super) const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

pub(super) struct Samples {
    pub(super) chance: Chance,
    /// Everything is due within the same few days, and more is produced than ends: slots of many runs.
    pub(super) far: bool,
    /// Topics are deleted now and then.
    pub(super) deletes: bool,
    /// The topics of new messages; a number is never used again.
    pub(super) topics: [u32; 3],
}

impl Samples {
    pub(super) fn new(seed: u64) -> Self {
        Self { chance: Chance::new(seed), far: false, deletes: false, topics: [1, 2, 3] }
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.chance.below(bound)
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    /// A number of any magnitude.
    fn number(&mut self) -> u64 {
        let bits = self.below(65);
        if bits == 0 { 0 } else { self.chance.number() >> (64 - bits) }
    }

    fn number32(&mut self) -> u32 {
        u32::try_from(self.number() >> 32).expect("32 bits")
    }

    fn time(&mut self) -> Timestamp {
        Timestamp::from_millis(self.number())
    }

    fn text(&mut self, max: u64) -> String {
        let len = self.below(max + 1);
        (0..len).map(|_| if self.below(9) == 0 { 'ä' } else { char::from(b' ' + self.below(95) as u8) }).collect()
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.coin() { Some(make(self)) } else { None }
    }

    pub(super) fn id(&mut self) -> MessageId {
        MessageId { topic: TopicId(self.number32()), birth_due: self.time(), arrival: self.number() }
    }

    fn key(&mut self) -> Key {
        Key::parse(&format!("k{}", self.text(100))).expect("short")
    }

    fn schedule(&mut self, min: u64) -> RetrySchedule {
        let tiers: Vec<u64> = (0..min + self.below(5)).map(|_| 1 + self.below(1 << 30)).collect();
        RetrySchedule::new("schedule", &tiers).expect("in range")
    }

    pub(super) fn content(&mut self, body: u64) -> Content {
        let headers = (0..self.below(4)).map(|n| (format!("h{n}"), self.text(40))).collect::<Vec<_>>();
        let byte = self.below(256) as u8;
        let len = self.below(body + 1);
        Content {
            key: self.maybe(Self::key),
            headers: Headers::parse(headers).expect("few"),
            body: (0..len).map(|n| byte.wrapping_add(n as u8)).collect::<Bytes>(),
            schedule: self.maybe(|it| it.schedule(1)),
            max_attempts: self.maybe(Self::number32),
            explicit_first_wait: self.coin(),
            produced_at: self.time(),
        }
    }

    pub(super) fn progress(&mut self) -> Progress {
        Progress {
            due_at: self.time(),
            attempts: self.number32(),
            failures: self.number32(),
            deliveries: self.number32(),
            deliveries_before_redrive: self.number32(),
            returns: self.number32(),
            redrives: self.number32(),
            holds_key: self.coin(),
            cancel_on_lease_end: self.coin(),
            dead: self.maybe(|it| (it.dead_reason(), it.time())),
        }
    }

    fn dead_reason(&mut self) -> DeadReason {
        [DeadReason::MaxAttempts, DeadReason::MaxDeliveries, DeadReason::Consumer][self.below(3) as usize]
    }

    pub(super) fn entry(&mut self) -> HistoryEntry {
        let outcomes = [
            DeliveryOutcome::NotYet,
            DeliveryOutcome::Failed,
            DeliveryOutcome::Dead,
            DeliveryOutcome::LeaseExpired,
            DeliveryOutcome::Returned,
        ];
        HistoryEntry {
            delivery: self.number32(),
            attempt: self.number32(),
            delivered_at: self.time(),
            ended_at: self.time(),
            consumer: ConsumerName::parse(&self.text(20)).expect("short"),
            outcome: outcomes[self.below(5) as usize],
            text: NackText::parse(&self.text(60)).expect("short"),
            next_due_at: self.maybe(Self::time),
        }
    }

    pub(super) fn message(&mut self) -> Message {
        let mut message =
            Message { id: self.id(), content: Arc::new(self.content(9000)), progress: self.progress(), history: None };
        for _ in 0..self.below(30) {
            let entry = self.entry();
            message.record(entry);
        }
        message
    }

    pub(super) fn topic(&mut self, id: TopicId) -> TopicRecord {
        TopicRecord {
            id,
            name: TopicName::parse(&format!("topic-{}", id.0)).expect("a name"),
            settings: TopicSettings {
                schedule: self.schedule(1),
                max_attempts: self.maybe(Self::number32),
                error_schedule: self.schedule(0),
                max_deliveries: self.number32(),
                lease_ms: self.number(),
                min_redelivery_gap_ms: self.number(),
                max_returns: self.number32(),
                rate: self.maybe(|it| RateCap { deliveries: it.number32(), period_ms: it.number() }),
                concurrency: self.maybe(Self::number32),
                jitter_percent: self.number32(),
                dedup_window_ms: self.number(),
                dedup_capacity: self.number32(),
                dead_releases_key: self.coin(),
                history_count: self.number32(),
                history_age_ms: self.number(),
            },
            paused: self.coin(),
            created_at: self.time(),
        }
    }

    pub(super) fn finished(&mut self) -> Finished {
        Finished {
            id: self.id(),
            key: self.maybe(Self::key),
            outcome: self.outcome(),
            at: self.time(),
            receipt: self.maybe(|it| (it.number32(), it.number32())),
            previous: if self.coin() { Place::Due(self.time()) } else { Place::Dead(self.time()) },
        }
    }

    fn outcome(&mut self) -> Outcome {
        [Outcome::Acked, Outcome::Cancelled, Outcome::Replaced, Outcome::Purged][self.below(4) as usize]
    }

    pub(super) fn dedup(&mut self, topic: TopicId) -> DedupRecord {
        DedupRecord {
            topic,
            dedup_id: DedupId::parse(&format!("{}-{}", self.chance.number(), self.text(30))).expect("short"),
            content_hash: u128::from(self.chance.number()) << 64 | u128::from(self.chance.number()),
            message: self.id(),
            due_at: self.time(),
            expires_at: self.time(),
        }
    }

    pub(super) fn damaged_part(&mut self) -> DamagedPart {
        DamagedPart {
            topic: TopicId(self.number32()),
            level: self.below(5) as u8,
            slot_start: self.number(),
            run: self.number(),
            page: self.number32(),
            is_whole: self.coin(),
            first: (self.time(), self.number()),
            last: (self.time(), self.number()),
        }
    }

    pub(super) fn lease(&mut self) -> OpenLease {
        OpenLease {
            id: self.id(),
            delivery: self.number32(),
            epoch: self.number32(),
            delivered_at: self.time(),
            deadline: self.time(),
            consumer: ConsumerName::parse(&self.text(20)).expect("short"),
        }
    }

    /// A change that fits `model` at `now`. Bodies of up to `body` bytes.
    pub(super) fn change(&mut self, model: &Model, now: Timestamp, body: u64) -> Change {
        let n = self.below(3) as usize;
        let topic = TopicId(self.topics[n]);
        if self.deletes && self.below(50) == 0 {
            self.topics[n] += 3;
            return Change::TopicDeleted { topic, in_pages: self.coin() };
        }
        match self.below(24) {
            0 => Change::ArrivalsReserved(model.arrivals + 1 + self.below(1000)),
            1 => {
                let mut record = self.topic(topic);
                // What was forgotten under a smaller count does not come back under a larger one.
                record.settings.history_count = n as u32 * 4;
                record.settings.history_age_ms = (n as u64 + 1) * 60_000;
                Change::TopicPut(record)
            }
            2 => {
                let mut dedup = self.dedup(topic);
                dedup.expires_at = now.plus(self.below(100_000));
                Change::DedupPut(dedup)
            }
            3..=9 => self.produce(topic, now, body),
            10..=14 if self.far => self.produce(topic, now, body),
            kind => match self.pick(model) {
                None => self.produce(topic, now, body),
                Some(old) if kind <= 18 => self.step(old, now),
                Some(old) => self.end(&old, now),
            },
        }
    }

    fn pick(&mut self, model: &Model) -> Option<Message> {
        let n = model.messages.len() as u64;
        // The oldest and the newest more often than the others: folded long ago, and not at all.
        let at = match self.below(3) {
            _ if n == 0 => return None,
            0 => self.below(n.min(3)),
            1 => n - 1 - self.below(n.min(3)),
            _ => self.below(n),
        };
        model.messages.values().nth(at as usize).cloned()
    }

    pub(super) fn produce(&mut self, topic: TopicId, now: Timestamp, body: u64) -> Change {
        // Arrival numbers only need to be new; the seconds keep equal due times likely.
        let arrival = self.chance.number() >> 8;
        let due = self.due(now);
        let content = Arc::new(self.content(body));
        let id = MessageId { topic, birth_due: due, arrival };
        Change::Produced(Message { id, content, progress: Progress::new(due), history: None })
    }

    /// Over all levels, and past.
    fn due(&mut self, now: Timestamp) -> Timestamp {
        if self.far {
            let at = START.plus(3 * 86_400_000 + self.below(2 * 86_400_000) / 500 * 500);
            return at.max(now);
        }
        let spans = [3_000, 60_000, 3_600_000, 86_400_000, 40 * 86_400_000];
        let span = spans[self.below(5) as usize];
        let at = now.plus(self.below(span)).minus(500);
        Timestamp::from_millis(at.as_millis() / 500 * 500)
    }

    fn step(&mut self, old: Message, now: Timestamp) -> Change {
        let previous = old.place();
        let mut message = old;
        let entry = self.maybe(Self::entry);
        if let Some(entry) = &entry {
            message.record(entry.clone());
            message.progress.deliveries += 1;
        }
        match (message.progress.dead, self.below(4)) {
            (None, 0) => message.progress.dead = Some((self.dead_reason(), now)),
            (_, 1) => message.progress.cancel_on_lease_end = true,
            _ => {
                message.progress.dead = None;
                message.progress.due_at = self.due(now);
            }
        }
        Change::Moved { message, previous, entry }
    }

    fn end(&mut self, old: &Message, now: Timestamp) -> Change {
        Change::Finished(Finished {
            id: old.id,
            key: old.content.key.clone(),
            outcome: self.outcome(),
            at: now,
            receipt: self.maybe(|it| (it.number32(), it.number32())),
            previous: old.place(),
        })
    }
}
