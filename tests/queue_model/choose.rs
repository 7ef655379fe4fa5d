//! Chooses what happens next, from the state: mostly what can succeed, and often enough what cannot.

use bytes::Bytes;
use duewheel::queue::command::{
    Command, ConsumerId, DeadLetter, Due, KeyPolicy, LeaseRequest, Nack, NackReason, Produce, Target,
};
use duewheel::queue::fields::{TopicField, TopicPatch};
use duewheel::queue::limits::DAY_MS;
use duewheel::queue::message::{MessageId, TopicId};
use duewheel::queue::receipt::Receipt;
use duewheel::queue::schedule::RetrySchedule;
use duewheel::queue::settings::{RateCap, TopicSettings};
use duewheel::queue::time::Timestamp;
use duewheel::queue::values::{ConsumerName, DedupId, Headers, Key, NackText, TopicName};

use crate::driver::{LIMITS, Run};
use crate::parts::{Entry, State};

const TOPICS: [&str; 2] = ["orders", "payments"];

impl Run {
    pub(crate) fn create_topics(&mut self) {
        for name in TOPICS {
            let settings = self.choose_settings();
            self.apply(&Command::CreateTopic { name: topic_name(name), settings });
        }
    }

    pub(crate) fn choose_command(&mut self) -> Command {
        // What was deleted comes back soon, since little can be done without.
        if let Some(name) = TOPICS.iter().map(|name| topic_name(name)).find(|name| self.model.topic(name).is_none())
            && self.rng.bool()
            && self.model.topics.len() < LIMITS.max_topics
        {
            return Command::CreateTopic { name, settings: self.choose_settings() };
        }
        if self.rng.u32(0..150) == 0 {
            return self.choose_deletion();
        }
        let live = self.model.entries.len();
        let leased = self.model.entries.values().any(|entry| entry.lease.is_some());
        if leased && self.rng.u32(0..10) < 6 {
            return self.choose_settlement();
        }
        if self.rng.u32(0..8) == 0 {
            let paused = self.model.topics.iter().find(|topic| topic.record.paused);
            if let Some(topic) = paused {
                return Command::SetPaused { name: topic.record.name.clone(), paused: false };
            }
        }
        match self.rng.u32(0..100) {
            // Few messages that live a full life meet more than many that never move.
            0..=59 if live < 24 => self.choose_produce(),
            0..=64 => self.choose_settlement(),
            65..=75 => self.choose_cancel(),
            76..=83 => self.choose_reschedule(),
            84..=95 => self.choose_redrive(),
            _ => self.choose_topic_command(),
        }
    }

    fn choose_settlement(&mut self) -> Command {
        match self.rng.u32(0..100) {
            0..=19 => self.choose_receipt().map_or_else(|| self.choose_lease(), Command::Ack),
            20..=25 => self.choose_acked().map_or_else(|| self.choose_lease(), Command::Ack),
            26..=64 => self.choose_nack(),
            65..=74 => self.choose_extend(),
            75..=80 => Command::ReturnAll(self.choose_consumer()),
            81..=88 => self.choose_receipt().map_or_else(|| self.choose_lease(), Command::Return),
            89..=95 => self.choose_cancel(),
            _ => self.choose_reschedule(),
        }
    }

    pub(crate) fn choose_lease(&mut self) -> Command {
        let consumer = self.choose_consumer();
        Command::Lease(LeaseRequest {
            topic: self.choose_topic(),
            consumer,
            consumer_name: ConsumerName::parse(&format!("c{}", consumer.0)).expect("a short name"),
            max: self.pick(&[0, 1, 1, 1, 2, 2, 3, 100]),
            lease_ms: match self.rng.u32(0..30) {
                0 => self.pick(&[Some(99), Some(u64::MAX)]),
                1..=5 => self.pick(&[Some(100), Some(750), Some(60_000)]),
                _ => None,
            },
        })
    }

    /// An instant that matters, the millisecond before it or after it; or some later time.
    pub(crate) fn choose_instant(&mut self) -> Timestamp {
        let mut instants: Vec<Timestamp> = Vec::new();
        for entry in self.model.entries.values() {
            match (entry.state(self.model.advanced_to), &entry.lease) {
                (State::Scheduled, _) => instants.push(entry.progress.due_at),
                (_, Some(lease)) => instants.push(lease.deadline),
                _ => {}
            }
        }
        instants.extend(self.model.dedups.iter().map(|dedup| dedup.expires_at));
        for topic in &self.model.topics {
            instants.extend(topic.token_by());
            let age = topic.record.settings.history_age_ms;
            let ended = self.model.ended.iter().filter(|ended| ended.id.topic == topic.record.id);
            instants.extend(ended.map(|ended| ended.at.plus(age)).find(|&at| at >= self.now));
        }
        instants.retain(|&instant| instant >= self.now);
        instants.sort_unstable();
        if instants.is_empty() || self.rng.u32(0..4) == 0 {
            return self.now.plus(self.rng.u64(0..3_000));
        }
        // Near ones more often: a jump over everything leaves little to see.
        let near = if self.rng.bool() { instants.len().min(3) } else { instants.len() };
        let instant = instants[self.rng.usize(0..near)];
        self.pick(&[instant.minus(1), instant, instant, instant.plus(1)]).max(self.now)
    }

    fn choose_produce(&mut self) -> Command {
        let topic = self.choose_topic();
        if self.rng.u32(0..40) == 0 {
            return self.choose_bad_produce(topic);
        }
        let now = self.now;
        let due = match self.rng.u32(0..14) {
            0..=4 => None,
            5 => Some(Due::After(0)),
            6 => Some(Due::At(now.minus(5_000))),
            7 => Some(Due::At(now)),
            8 => Some(Due::At(now.plus(self.rng.u64(1..5_000)))),
            9 => Some(Due::After(self.pick(&[63, 64, 65, 4_095, 4_096, 4_097]))),
            10 => Some(Due::After(self.pick(&[3_600_000, DAY_MS, 30 * DAY_MS, LIMITS.max_delay_ms]))),
            _ => Some(Due::After(self.rng.u64(0..3_000))),
        };
        let schedule = match self.rng.u32(0..6) {
            0 => Some(RetrySchedule::new("schedule", &[70]).expect("one tier")),
            1 => Some(RetrySchedule::new("schedule", &[10, 300, 20]).expect("three tiers")),
            _ => None,
        };
        let key = match self.rng.u32(0..8) {
            0..=3 => Some(self.pick(&["k0", "k1", "k2", "k3"])),
            _ => None,
        };
        let dedup = match self.rng.u32(0..4) {
            0 => Some(self.pick(&["d0", "d1", "d2", "d3"])),
            _ => None,
        };
        let mut produce = Produce {
            topic,
            key: key.map(|key| Key::parse(key).expect("a short key")),
            headers: Headers::default(),
            body: Bytes::from_static(self.pick(&[b"body", b"else"])),
            due,
            schedule,
            max_attempts: self.pick(&[None, None, None, Some(1), Some(2), Some(5)]),
            key_policy: self.pick(&[KeyPolicy::Reject, KeyPolicy::Replace, KeyPolicy::Replace, KeyPolicy::Keep]),
            dedup_id: dedup.map(|id| DedupId::parse(id).expect("a short id")),
        };
        if produce.dedup_id.is_some() && self.rng.bool() {
            // The same again, so that dedup ids are really repeated.
            produce.due = Some(Due::After(1_000));
            (produce.key, produce.schedule, produce.max_attempts) = (None, None, None);
            produce.key_policy = KeyPolicy::Reject;
        }
        Command::Produce(produce)
    }

    fn choose_bad_produce(&mut self, topic: TopicName) -> Command {
        let mut produce = Produce {
            topic,
            key: None,
            headers: Headers::default(),
            body: Bytes::new(),
            due: None,
            schedule: None,
            max_attempts: None,
            key_policy: KeyPolicy::Reject,
            dedup_id: None,
        };
        let max = LIMITS.max_delay_ms;
        match self.rng.u32(0..8) {
            0 => produce.topic = topic_name("nowhere"),
            1 => produce.body = Bytes::from(vec![0; LIMITS.max_body_bytes + 1]),
            2 => produce.due = Some(Due::After(max + 1)),
            3 => produce.due = Some(Due::After(u64::MAX)),
            4 => produce.due = Some(Due::At(self.now.plus(max + 1))),
            5 => produce.max_attempts = Some(self.pick(&[0, 10_001])),
            6 => produce.schedule = Some(RetrySchedule::new("schedule", &[]).expect("an empty schedule")),
            _ => produce.schedule = Some(RetrySchedule::new("schedule", &[1, max + 1]).expect("a long tier")),
        }
        Command::Produce(produce)
    }

    fn choose_nack(&mut self) -> Command {
        let Some(receipt) = self.choose_receipt() else { return self.choose_produce() };
        let live = self.model.entries.get(&receipt.id.arrival).and_then(|entry| entry.lease.as_ref());
        let is_live = live.is_some_and(|lease| lease.receipt == receipt);
        let delay = match self.rng.u32(0..10) {
            0 => Some(0),
            1 => Some(self.rng.u64(1..5_000)),
            2 if is_live => Some(self.pick(&[LIMITS.max_delay_ms, LIMITS.max_delay_ms + 1, u64::MAX])),
            _ => None,
        };
        let reason = match self.rng.u32(0..10) {
            0..=4 => NackReason::NotYet(delay),
            5..=8 => NackReason::Failed(delay),
            _ => NackReason::Dead,
        };
        let text = NackText::parse(self.pick(&["", "processing", "timeout"])).expect("a short text");
        Command::Nack(Nack { receipt, reason, text })
    }

    fn choose_extend(&mut self) -> Command {
        match self.choose_live_receipt() {
            Some(receipt) => {
                let lease_ms = self.pick(&[None, None, Some(100), Some(1_500), Some(99), Some(u64::MAX)]);
                Command::Extend { receipt, lease_ms }
            }
            None => self.choose_lease(),
        }
    }

    fn choose_cancel(&mut self) -> Command {
        let (topic, target) = self.choose_target();
        Command::Cancel { topic, target, when_lease_ends: self.rng.bool() }
    }

    fn choose_reschedule(&mut self) -> Command {
        let (topic, target) = self.choose_target();
        let max = LIMITS.max_delay_ms;
        let due = match self.rng.u32(0..9) {
            0..=1 => Due::After(0),
            2 => Due::At(self.now.minus(1)),
            3 => Due::After(max),
            4 => self.pick(&[Due::After(max + 1), Due::After(u64::MAX), Due::At(self.now.plus(max + 1))]),
            5 => Due::At(self.now.plus(self.rng.u64(0..2_000))),
            _ => Due::After(self.rng.u64(0..2_000)),
        };
        Command::Reschedule { topic, target, due }
    }

    fn choose_redrive(&mut self) -> Command {
        let dead = |entry: &&Entry| entry.progress.dead.is_some();
        let dead: Vec<MessageId> = self.model.entries.values().filter(dead).map(|entry| entry.id).collect();
        let id = if dead.is_empty() || self.rng.u32(0..8) == 0 { self.choose_id() } else { Some(self.pick(&dead)) };
        let Some(id) = id else { return self.choose_produce() };
        let Some(topic) = self.name_of(id.topic) else { return self.choose_produce() };
        let died_at = self.model.entries.get(&id.arrival).and_then(|entry| entry.progress.dead).map(|(_, at)| at);
        let other = died_at.map(|at| at.minus(1));
        let letter = DeadLetter { topic, id, died_at: self.pick(&[None, died_at, died_at, other]) };
        if self.rng.u32(0..6) == 0 { Command::Purge(letter) } else { Command::Redrive(letter) }
    }

    fn choose_deletion(&mut self) -> Command {
        let name = topic_name(self.pick(&["orders", "payments", "third", "third", "fourth", "nowhere"]));
        Command::DeleteTopic { name, purge: self.rng.u32(0..3) > 0 }
    }

    fn choose_topic_command(&mut self) -> Command {
        let name = self.choose_topic();
        match self.rng.u32(0..10) {
            0..=5 => {
                let paused = self.model.topic(&name).is_some_and(|topic| topic.record.paused);
                Command::SetPaused { name, paused: !paused }
            }
            6 => {
                let mut patch = TopicPatch::default();
                let (field, text) = self.pick(&[
                    (TopicField::Lease, "4s"),
                    (TopicField::MaxAttempts, "2"),
                    (TopicField::Concurrency, "3"),
                    (TopicField::Rate, "none"),
                ]);
                patch.set(field, text).expect("well formed");
                Command::PatchTopic { name, patch }
            }
            7 => {
                let mut settings = self.choose_settings();
                // How much is remembered follows from the settings as a whole, not message by message; a script
                // shows how a change of them works.
                if let Some(topic) = self.model.topic(&name) {
                    let old = &topic.record.settings;
                    settings.history_count = old.history_count;
                    settings.history_age_ms = old.history_age_ms;
                }
                Command::UpdateTopic { name, settings }
            }
            8 => {
                let bad = TopicSettings { lease_ms: 1, ..TopicSettings::default() };
                Command::UpdateTopic { name: topic_name("orders"), settings: bad }
            }
            _ => {
                let name = topic_name(self.pick(&["orders", "third", "fourth"]));
                let settings = TopicSettings { max_attempts: self.pick(&[None, Some(0)]), ..TopicSettings::default() };
                let exists = self.model.topic(&name).is_some();
                let full = self.model.topics.len() >= LIMITS.max_topics;
                // One cause at a time: which of two is named is nobody's promise.
                let settings = if exists || full { TopicSettings::default() } else { settings };
                Command::CreateTopic { name, settings }
            }
        }
    }

    /// Live receipts mostly; sometimes one that was live once.
    fn choose_receipt(&mut self) -> Option<Receipt> {
        if self.rng.u32(0..7) == 0 && !self.receipts.is_empty() {
            let from = if self.rng.bool() { self.receipts.len().saturating_sub(6) } else { 0 };
            let at = self.rng.usize(from..self.receipts.len());
            let mut receipt = self.receipts[at];
            if self.rng.u32(0..8) == 0 {
                receipt.epoch += self.pick(&[1, 0]);
                receipt.delivery += 1;
            }
            return Some(receipt);
        }
        self.choose_live_receipt()
    }

    /// A receipt that has acked its message, as far as the history remembers.
    fn choose_acked(&mut self) -> Option<Receipt> {
        let acked: Vec<Receipt> = self
            .model
            .ended
            .iter()
            .filter_map(|ended| ended.receipt.map(|(delivery, epoch)| Receipt { id: ended.id, delivery, epoch }))
            .collect();
        (!acked.is_empty()).then(|| self.pick(&acked))
    }

    fn choose_live_receipt(&mut self) -> Option<Receipt> {
        let lease = |entry: &Entry| entry.lease.as_ref().map(|lease| lease.receipt);
        let live: Vec<Receipt> = self.model.entries.values().filter_map(lease).collect();
        (!live.is_empty()).then(|| self.pick(&live))
    }

    /// By key or by id; live mostly, sometimes gone or never there.
    fn choose_target(&mut self) -> (TopicName, Target) {
        if self.rng.u32(0..30) == 0 {
            let id = MessageId { topic: TopicId(77), birth_due: self.now, arrival: 1 << 50 };
            return (topic_name(self.pick(&["orders", "nowhere"])), Target::Id(id));
        }
        if self.rng.u32(0..3) == 0 {
            let key = Key::parse(self.pick(&["k0", "k1", "k2", "k3"])).expect("a short key");
            return (self.choose_topic(), Target::Key(key));
        }
        let leased = |entry: &&Entry| entry.lease.is_some();
        let leased: Vec<MessageId> = self.model.entries.values().filter(leased).map(|entry| entry.id).collect();
        let id =
            if self.rng.u32(0..3) == 0 && !leased.is_empty() { Some(self.pick(&leased)) } else { self.choose_id() };
        match id {
            // Also by an id of a topic that was deleted, in another.
            Some(id) => (self.name_of(id.topic).unwrap_or_else(|| self.choose_topic()), Target::Id(id)),
            None => (self.choose_topic(), Target::Key(Key::parse("k0").expect("a short key"))),
        }
    }

    fn choose_id(&mut self) -> Option<MessageId> {
        let live: Vec<MessageId> = self.model.entries.values().map(|entry| entry.id).collect();
        if !live.is_empty() && self.rng.u32(0..4) > 0 {
            return Some(self.pick(&live));
        }
        if self.ids.is_empty() {
            return None;
        }
        let from = if self.rng.bool() { self.ids.len().saturating_sub(6) } else { 0 };
        Some(self.ids[self.rng.usize(from..self.ids.len())])
    }

    fn choose_topic(&mut self) -> TopicName {
        if self.rng.u32(0..200) == 0 { topic_name("nowhere") } else { topic_name(self.pick(&TOPICS)) }
    }

    fn choose_consumer(&mut self) -> ConsumerId {
        ConsumerId(self.rng.u64(0..4))
    }

    fn name_of(&self, id: TopicId) -> Option<TopicName> {
        let topic = self.model.topics.iter().find(|topic| topic.record.id == id);
        topic.map(|topic| topic.record.name.clone())
    }

    fn choose_settings(&mut self) -> TopicSettings {
        let tiers = |field, tiers: &[u64]| RetrySchedule::new(field, tiers).expect("small tiers");
        let schedules: [&[u64]; 4] = [&[100, 200, 500], &[1], &[1_000, 2_000], &[50, 40, 30, 20, 10]];
        let error_schedules: [&[u64]; 3] = [&[], &[30], &[10, 20]];
        let rates = [(1, 1_000), (3, 1_000), (7, 10), (2_000, 1_000), (3, 2)];
        let rate = (self.rng.u32(0..4) == 0).then(|| self.pick(&rates));
        TopicSettings {
            schedule: tiers("schedule", self.pick(&schedules)),
            max_attempts: self.pick(&[None, None, Some(1), Some(3), Some(30)]),
            error_schedule: tiers("error_schedule", self.pick(&error_schedules)),
            max_deliveries: self.pick(&[1_000, 1_000, 2, 5]),
            lease_ms: self.pick(&[500, 2_000, 30_000]),
            min_redelivery_gap_ms: self.pick(&[0, 25, 1_000]),
            max_returns: self.pick(&[1, 2, 3]),
            rate: rate.map(|(deliveries, period_ms)| RateCap { deliveries, period_ms }),
            concurrency: self.pick(&[None, None, Some(1), Some(3)]),
            jitter_percent: self.pick(&[0, 0, 0, 50, 100]),
            dedup_window_ms: self.pick(&[1_000, 5_000]),
            dedup_capacity: self.pick(&[1, 2, 1_000]),
            dead_releases_key: self.rng.bool(),
            history_count: self.pick(&[1_000, 1_000, 2, 0]),
            history_age_ms: self.pick(&[3_600_000, 3_600_000, 800, 0]),
        }
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.rng.usize(0..from.len())].clone()
    }
}

fn topic_name(name: &str) -> TopicName {
    TopicName::parse(name).expect("a good name")
}
