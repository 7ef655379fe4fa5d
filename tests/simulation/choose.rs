//! What a client does next, chosen from the state: mostly what can succeed, and often enough what cannot.

use bytes::Bytes;

use duewheel::engine::{Thread, Window};
use duewheel::queue::command::{Command, DeadLetter, Due, KeyPolicy, Nack, NackReason, Produce, Target};
use duewheel::queue::limits::DAY_MS;
use duewheel::queue::message::{MessageId, TopicId};
use duewheel::queue::receipt::Receipt;
use duewheel::queue::schedule::RetrySchedule;
use duewheel::queue::settings::{RateCap, TopicSettings};
use duewheel::queue::time::Timestamp;
use duewheel::queue::values::{DedupId, Headers, Key, NackText, TopicName};

use crate::rules::wait_text;
use crate::shadow::Violation;
use crate::world::{LIMITS, World};

const TOPICS: [&str; 2] = ["orders", "payments"];

/// Few messages that live a full life meet more than many that never move.
const MOST_LIVE: usize = 45;

pub(crate) fn topic_name(name: &str) -> TopicName {
    TopicName::parse(name).expect("a good name")
}

impl World {
    pub(crate) fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.rng.usize(..choices.len())].clone()
    }

    pub(crate) fn create_topics(&mut self) -> Result<(), Violation> {
        for name in TOPICS {
            let settings = self.choose_settings();
            self.send(vec![Command::CreateTopic { name: topic_name(name), settings }])?;
        }
        self.turn()
    }

    /// A client does something.
    pub(crate) fn act(&mut self) -> Result<(), Violation> {
        self.go_on_closing()?;
        match self.rng.u32(0..100) {
            0..=14 => {
                let count = self.pick(&[1, 1, 1, 2, 5]);
                let produces = (0..count).map(|_| self.choose_produce()).collect();
                self.send(produces)
            }
            15..=47 => self.consume(),
            48..=79 => self.settle(),
            80..=83 => self.send_one(Self::choose_cancel),
            84..=87 => self.send_one(Self::choose_reschedule),
            88..=92 => self.send_one(Self::choose_dead_letter),
            93..=94 => self.send_one(|world| Some(world.choose_topic_command())),
            95..=96 => self.send_one(|world| Some(world.choose_bad())),
            _ => self.look(),
        }
    }

    /// After a step of a fold, before anybody knows of it, a message is named that may be on disk.
    pub(crate) fn fold(&mut self) -> Result<(), Violation> {
        self.thread(Thread::Fold)?;
        if self.rng.u32(0..3) == 0 {
            self.send_one(Self::choose_reschedule)?;
            self.thread(Thread::Owner)?;
        }
        Ok(())
    }

    /// Somebody asks, or reads the answer.
    fn look(&mut self) -> Result<(), Violation> {
        if self.questions.is_empty() || self.rng.u32(0..3) == 0 {
            if let Some((topic, target)) = self.choose_target() {
                self.ask(topic, target);
            }
            return Ok(());
        }
        let index = self.rng.usize(..self.questions.len());
        self.read_question(index)
    }

    fn send_one(&mut self, choose: impl FnOnce(&mut Self) -> Option<Command>) -> Result<(), Violation> {
        choose(self).map_or(Ok(()), |command| self.send(vec![command]))
    }

    /// Streams and fetches come, read, stall and go.
    fn consume(&mut self) -> Result<(), Violation> {
        match self.rng.u32(0..100) {
            0..=14 if self.connections.len() < 4 => {
                let lease_ms = self.pick(&[None, None, Some(100), Some(5_000)]);
                let mut topics = TOPICS.to_vec();
                if self.rng.bool() {
                    topics.remove(self.rng.usize(..2));
                }
                let window = self.pick(&[1, 2, 10]);
                let windows = topics.into_iter().map(|name| Window { topic: topic_name(name), window, lease_ms });
                self.connect(windows.collect());
            }
            15..=18 if !self.connections.is_empty() => {
                let index = self.rng.usize(..self.connections.len());
                self.coverage.mark("disconnect");
                self.disconnect(index);
            }
            19..=74 if !self.connections.is_empty() => {
                let index = self.rng.usize(..self.connections.len());
                self.read_stream(index)?;
            }
            75..=79 if self.fetches.len() < 4 => {
                let topic = topic_name(self.pick(&TOPICS));
                let (max, wait_ms) = (self.pick(&[1, 3, 100]), self.pick(&[0, 500, 60_000]));
                let lease_ms = self.pick(&[None, Some(100), Some(60_000), Some(99)]);
                self.fetch(topic, max, wait_ms, lease_ms);
            }
            80..=82 if !self.fetches.is_empty() => {
                let index = self.rng.usize(..self.fetches.len());
                self.drop_fetch(index);
            }
            _ if !self.fetches.is_empty() => {
                let index = self.rng.usize(..self.fetches.len());
                self.read_fetch(index)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Consumers settle what they hold: in time, late, twice, or all at once.
    fn settle(&mut self) -> Result<(), Violation> {
        if self.held.is_empty() || self.rng.u32(0..12) == 0 {
            // An ended lease, or one that was settled before.
            let Some(receipt) = self.choose_old_receipt() else { return Ok(()) };
            let command = match self.rng.u32(0..4) {
                0..=1 => Command::Ack(receipt),
                2 => self.choose_nack(receipt),
                _ => Command::Extend { receipt, lease_ms: None },
            };
            return self.send(vec![command]);
        }
        if self.rng.u32(0..25) == 0 {
            let held = std::mem::take(&mut self.held);
            let nacks = held.iter().map(|delivery| self.choose_nack(delivery.receipt)).collect();
            self.coverage.mark("nack storm");
            return self.send(nacks);
        }
        let index = self.rng.usize(..self.held.len());
        let receipt = self.held[index].receipt;
        match self.rng.u32(0..100) {
            0..=29 => {
                self.held.swap_remove(index);
                self.send(vec![Command::Ack(receipt)])
            }
            30..=34 => {
                self.held.swap_remove(index);
                self.coverage.mark("acked twice");
                self.send(vec![Command::Ack(receipt), Command::Ack(receipt)])
            }
            35..=74 => {
                self.held.swap_remove(index);
                let nack = self.choose_nack(receipt);
                self.send(vec![nack])
            }
            75..=84 => {
                let lease_ms = self.pick(&[None, None, Some(100), Some(2_000), Some(60_000), Some(99)]);
                self.send(vec![Command::Extend { receipt, lease_ms }])
            }
            85..=89 => {
                let (topic, target) = (self.held[index].topic.clone(), Target::Id(receipt.id));
                self.send(vec![Command::Cancel { topic, target, when_lease_ends: true }])
            }
            // It crashes: its work is lost, and the lease will expire.
            _ => {
                self.held.swap_remove(index);
                Ok(())
            }
        }
    }

    fn choose_old_receipt(&mut self) -> Option<Receipt> {
        let recent = self.receipts.len().saturating_sub(40);
        let recent = self.receipts[recent..].to_vec();
        (!recent.is_empty()).then(|| self.pick(&recent))
    }

    fn choose_nack(&mut self, receipt: Receipt) -> Command {
        let wait = self.pick(&[None, None, None, Some(0), Some(700), Some(4_000), Some(3 * DAY_MS)]);
        let (reason, wait) = match self.rng.u32(0..10) {
            0..=5 => (NackReason::NotYet(wait), wait),
            6..=8 => (NackReason::Failed(wait), wait),
            _ => (NackReason::Dead, None),
        };
        let text = NackText::parse(&wait_text(wait)).expect("a short text");
        Command::Nack(Nack { receipt, reason, text })
    }

    pub(crate) fn choose_produce(&mut self) -> Command {
        if !self.repeats.is_empty() && self.rng.bool() {
            let index = self.rng.usize(..self.repeats.len());
            return Command::Produce(self.repeats.swap_remove(index));
        }
        if self.shadow.live.len() > MOST_LIVE {
            // There is enough to do: the holder of a key is looked for instead.
            return self.choose_cancel().unwrap_or_else(|| self.choose_topic_command());
        }
        self.names += 1;
        let padding = self.pick(&[0, 20, 100, 100, 600, 5_000]);
        let body = Bytes::from(format!("m{} {}", self.names, "x".repeat(padding)));
        let now = self.now();
        let due = match self.rng.u32(0..16) {
            0..=3 => None,
            4..=5 => Some(Due::After(0)),
            6 => Some(Due::At(now.minus(5_000))),
            7 => Some(Due::At(now.plus(self.rng.u64(1..5_000)))),
            8..=9 => Some(Due::After(self.rng.u64(0..100_000))),
            10 => Some(Due::After(self.rng.u64(0..3_600_000))),
            11 => Some(Due::After(self.rng.u64(0..40 * DAY_MS))),
            12 => Some(Due::After(self.pick(&[63, 64, 4_096, 3_600_000, 30 * DAY_MS, LIMITS.max_delay_ms]))),
            _ => Some(Due::After(self.rng.u64(0..6_000))),
        };
        let schedule = match self.rng.u32(0..8) {
            0 => Some(RetrySchedule::new("schedule", &[70]).expect("one tier")),
            1 => Some(RetrySchedule::new("schedule", &[10, 3_000, 20]).expect("three tiers")),
            _ => None,
        };
        let key = (self.rng.u32(0..3) == 0).then(|| self.pick(&["k0", "k1", "k2", "k3", "k4"]));
        let dedup = (key.is_none() && self.rng.u32(0..3) == 0).then(|| format!("d{}", self.rng.u32(0..6)));
        let produce = Produce {
            topic: topic_name(self.pick(&TOPICS)),
            key: key.map(|key| Key::parse(key).expect("a short key")),
            headers: Headers::default(),
            body,
            due,
            schedule,
            max_attempts: self.pick(&[None, None, None, Some(1), Some(2), Some(4)]),
            key_policy: self.pick(&[KeyPolicy::Reject, KeyPolicy::Replace, KeyPolicy::Keep]),
            dedup_id: dedup.map(|id| DedupId::parse(&id).expect("a short id")),
        };
        if produce.dedup_id.is_some() && self.rng.bool() {
            self.repeats.push(produce.clone());
        }
        Command::Produce(produce)
    }

    /// A message of any state, sometimes one that is over.
    fn choose_message(&mut self) -> Option<MessageId> {
        let over = self.rng.u32(0..5) == 0 && !self.shadow.ends.is_empty();
        if over {
            let ids: Vec<_> = self.shadow.ends.values().rev().take(12).map(|end| end.finished.id).collect();
            return Some(self.pick(&ids));
        }
        let ids: Vec<_> = self.shadow.live.values().map(|message| message.id).collect();
        (!ids.is_empty()).then(|| self.pick(&ids))
    }

    fn choose_target(&mut self) -> Option<(TopicName, Target)> {
        if self.rng.u32(0..3) == 0 {
            let key = Key::parse(self.pick(&["k0", "k1", "k2", "k3", "k4"])).expect("a short key");
            return Some((topic_name(self.pick(&TOPICS)), Target::Key(key)));
        }
        let id = self.choose_message()?;
        Some((self.topic_of(id.topic), Target::Id(id)))
    }

    /// The name of a topic; of a deleted one that of some other.
    fn topic_of(&mut self, id: TopicId) -> TopicName {
        let name = self.shadow.topics.get(&id).map(|record| record.name.clone());
        name.unwrap_or_else(|| topic_name(self.pick(&TOPICS)))
    }

    fn choose_cancel(&mut self) -> Option<Command> {
        let (topic, target) = self.choose_target()?;
        Some(Command::Cancel { topic, target, when_lease_ends: self.rng.bool() })
    }

    fn choose_reschedule(&mut self) -> Option<Command> {
        let (topic, target) = self.choose_target()?;
        let now = self.now();
        let due = match self.rng.u32(0..6) {
            0..=1 => Due::After(0),
            2 => Due::At(now.minus(1_000)),
            3 => Due::After(self.rng.u64(0..3_000)),
            4 => Due::After(self.rng.u64(0..10 * DAY_MS)),
            _ => Due::At(now.plus(self.rng.u64(0..100_000))),
        };
        Some(Command::Reschedule { topic, target, due })
    }

    fn choose_dead_letter(&mut self) -> Option<Command> {
        let dead = self.shadow.live.values().filter(|message| message.progress.dead.is_some());
        let dead: Vec<_> = dead.map(|message| (message.id, message.progress.dead.map(|(_, at)| at))).collect();
        let (id, died_at) =
            if dead.is_empty() || self.rng.u32(0..8) == 0 { (self.choose_message()?, None) } else { self.pick(&dead) };
        let died_at = died_at.filter(|_| self.rng.bool());
        let died_at = if self.rng.u32(0..10) == 0 { Some(Timestamp::ZERO) } else { died_at };
        let letter = DeadLetter { topic: self.topic_of(id.topic), id, died_at };
        Some(if self.rng.u32(0..4) == 0 { Command::Purge(letter) } else { Command::Redrive(letter) })
    }

    pub(crate) fn choose_settings(&mut self) -> TopicSettings {
        let schedules: [&[u64]; 5] =
            [&[1_000], &[50, 200, 800], &[300, 300, 60_000], &[1_000, 2_000, 5_000], &[40_000, DAY_MS]];
        let schedule = self.pick(&schedules);
        let errors: [&[u64]; 3] = [&[], &[100], &[100, 1_000, 50]];
        let error_schedule = self.pick(&errors);
        let rate = RateCap { deliveries: 2, period_ms: 700 };
        TopicSettings {
            schedule: RetrySchedule::new("schedule", schedule).expect("in range"),
            error_schedule: RetrySchedule::new("error_schedule", error_schedule).expect("in range"),
            max_attempts: self.pick(&[None, None, Some(3), Some(6)]),
            max_deliveries: self.pick(&[2, 4, 1_000, 1_000]),
            lease_ms: self.pick(&[300, 2_000, 30_000]),
            min_redelivery_gap_ms: self.pick(&[0, 500]),
            max_returns: self.pick(&[1, 2, 3]),
            rate: self.pick(&[None, None, None, Some(rate)]),
            concurrency: self.pick(&[None, None, Some(2)]),
            jitter_percent: self.pick(&[0, 0, 30]),
            dedup_window_ms: self.pick(&[1_000, 60_000, 3_600_000]),
            dedup_capacity: self.pick(&[2, 1_000]),
            dead_releases_key: self.rng.bool(),
            history_count: self.pick(&[2, 100, 1_000]),
            history_age_ms: self.pick(&[1_000, DAY_MS]),
        }
    }

    fn choose_topic_command(&mut self) -> Command {
        let missing = TOPICS.into_iter().find(|&name| !self.has_topic(name));
        if let Some(name) = missing {
            return Command::CreateTopic { name: topic_name(name), settings: self.choose_settings() };
        }
        let name = topic_name(self.pick(&TOPICS));
        let is_paused = self.shadow.topics.values().any(|record| record.name == name && record.paused);
        if is_paused && self.rng.bool() {
            return Command::SetPaused { name, paused: false };
        }
        match self.rng.u32(0..20) {
            0..=2 => Command::SetPaused { name, paused: !is_paused },
            5 => Command::DeleteTopic { name, purge: true },
            6 => Command::DeleteTopic { name, purge: false },
            7 => Command::CreateTopic { name, settings: self.choose_settings() },
            _ => Command::UpdateTopic { name, settings: self.choose_settings() },
        }
    }

    fn has_topic(&self, name: &str) -> bool {
        self.shadow.topics.values().any(|record| record.name.as_str() == name)
    }

    /// What must be refused.
    fn choose_bad(&mut self) -> Command {
        let name = topic_name(self.pick(&TOPICS));
        let bad = topic_name("nowhere");
        let (max, now) = (LIMITS.max_delay_ms, self.now());
        let target = Target::Key(Key::parse("k0").expect("a short key"));
        match self.rng.u32(0..10) {
            9 => {
                // One more topic may be, and no other.
                let name = topic_name(self.pick(&["refunds", "returns"]));
                Command::CreateTopic { name, settings: self.choose_settings() }
            }
            0 => Command::Cancel { topic: bad, target, when_lease_ends: false },
            1 => Command::SetPaused { name: bad, paused: true },
            2 => Command::UpdateTopic { name, settings: TopicSettings { lease_ms: 1, ..TopicSettings::default() } },
            3 => Command::Reschedule { topic: name, target, due: Due::After(max + 1) },
            4 => Command::CreateTopic {
                name: bad,
                settings: TopicSettings { max_returns: 0, ..TopicSettings::default() },
            },
            kind => {
                let Command::Produce(mut produce) = self.choose_produce() else { return self.choose_topic_command() };
                // It may be a repetition, and is of its own now.
                self.names += 1;
                produce.body = Bytes::from(format!("m{} bad", self.names));
                match kind {
                    5 => produce.topic = bad,
                    6 => produce.due = Some(Due::At(now.plus(max + 1))),
                    7 => produce.max_attempts = Some(0),
                    _ => produce.body = Bytes::from(vec![b'x'; LIMITS.max_body_bytes + 1]),
                }
                Command::Produce(produce)
            }
        }
    }
}
