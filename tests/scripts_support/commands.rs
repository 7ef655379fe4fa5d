//! Reads the commands of a script.

use bytes::Bytes;
use duewheel::queue::command::{Command, DeadLetter, Due, KeyPolicy, LeaseRequest, Nack, NackReason, Produce, Target};
use duewheel::queue::message::MessageId;
use duewheel::queue::receipt::Receipt;
use duewheel::queue::schedule::{RetrySchedule, parse_duration};
use duewheel::queue::settings::{RateCap, TopicSettings};
use duewheel::queue::values::{ConsumerName, DedupId, Headers, Key, NackText, TopicName};

use crate::world::World;

/// The words of a command: some in order, some as `name=value`.
pub(crate) struct Words {
    plain: Vec<String>,
    named: Vec<(String, String)>,
}

impl Words {
    pub(crate) fn parse(line: &str) -> Self {
        let (mut plain, mut named) = (Vec::new(), Vec::new());
        for word in line.split_whitespace() {
            match word.split_once('=') {
                Some((name, value)) => named.push((name.to_owned(), value.to_owned())),
                None => plain.push(word.to_owned()),
            }
        }
        assert!(!plain.is_empty(), "'{line}' has no verb");
        Self { plain, named }
    }

    pub(crate) fn verb(&self) -> &str {
        &self.plain[0]
    }

    pub(crate) fn at(&self, index: usize) -> &str {
        self.plain.get(index).map_or("", String::as_str)
    }

    pub(crate) fn has(&self, word: &str) -> bool {
        self.plain.iter().any(|plain| plain == word)
    }

    pub(crate) fn duration(&self, index: usize) -> u64 {
        parse_duration(self.at(index)).expect("a duration")
    }

    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.named.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn span(&self, name: &str) -> Option<u64> {
        self.value(name).map(|text| parse_duration(text).expect("a duration"))
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.value(name).map(|text| text.parse().ok().expect("a number"))
    }

    pub(crate) fn topic(&self, index: usize) -> TopicName {
        TopicName::parse(self.at(index)).expect("a topic name")
    }

    fn due(&self) -> Option<Due> {
        let at = self.value("at").map(|text| Due::At(World::parse_instant(text)));
        self.span("delay").map(Due::After).or(at)
    }
}

/// The command of a line, or why its values are refused before they reach the queue.
pub(crate) fn parse(world: &mut World, words: &Words) -> Result<Command, String> {
    let command = match words.verb() {
        "topic" => topic_command(world, words)?,
        "pause" | "resume" => Command::SetPaused { name: words.topic(1), paused: words.verb() == "pause" },
        "produce" => Command::Produce(produce(words)?),
        "lease" => {
            let name = words.value("as").unwrap_or_default();
            Command::Lease(LeaseRequest {
                topic: words.topic(1),
                consumer: world.consumer(name),
                consumer_name: ConsumerName::parse(name).expect("a consumer name"),
                max: words.number("max").unwrap_or(1),
                lease_ms: words.span("lease"),
            })
        }
        "ack" => Command::Ack(receipt(world, words)),
        "nack" => Command::Nack(nack(world, words)),
        "extend" => Command::Extend { receipt: receipt(world, words), lease_ms: words.span("lease") },
        "return" => Command::Return(receipt(world, words)),
        "disconnect" => Command::ReturnAll(world.consumer(words.at(1))),
        "cancel" => Command::Cancel {
            topic: words.topic(1),
            target: target(world, words),
            when_lease_ends: words.has("when-lease-ends"),
        },
        "reschedule" => {
            let due = words.due().expect("a reschedule needs delay= or at=");
            Command::Reschedule { topic: words.topic(1), target: target(world, words), due }
        }
        "redrive" | "purge" => {
            let died_at = words.value("died").map(World::parse_instant);
            let letter = DeadLetter { topic: words.topic(1), id: message(world, words.at(2)), died_at };
            if words.verb() == "purge" { Command::Purge(letter) } else { Command::Redrive(letter) }
        }
        verb => panic!("'{verb}' is no command"),
    };
    Ok(command)
}

/// The topic that a command names.
pub(crate) fn topic_of(command: &Command) -> Option<TopicName> {
    match command {
        Command::Produce(produce) => Some(produce.topic.clone()),
        _ => None,
    }
}

/// By message or by key.
pub(crate) fn target(world: &World, words: &Words) -> Target {
    match words.value("key") {
        Some(key) => Target::Key(Key::parse(key).expect("a key")),
        None => Target::Id(message(world, words.at(2))),
    }
}

fn message(world: &World, name: &str) -> MessageId {
    let at: usize = name.strip_prefix('m').and_then(|number| number.parse().ok()).expect("a message such as m1");
    world.messages[at - 1].1
}

fn receipt(world: &World, words: &Words) -> Receipt {
    let name = words.at(1);
    let at: usize = name.strip_prefix('r').and_then(|number| number.parse().ok()).expect("a receipt such as r1");
    world.receipts[at - 1]
}

fn topic_command(world: &World, words: &Words) -> Result<Command, String> {
    let name = words.topic(2);
    match words.at(1) {
        "create" => Ok(Command::CreateTopic { name, settings: settings(TopicSettings::default(), words)? }),
        "update" => {
            let old = world.queue.topic(&name).map(|topic| topic.settings.clone());
            Ok(Command::UpdateTopic { name, settings: settings(old.unwrap_or_default(), words)? })
        }
        "delete" => Ok(Command::DeleteTopic { name, purge: words.has("purge") }),
        other => panic!("'topic {other}' is no command"),
    }
}

fn settings(old: TopicSettings, words: &Words) -> Result<TopicSettings, String> {
    let mut settings = old;
    for (name, value) in &words.named {
        let span = || parse_duration(value).expect("a duration");
        let number = || value.parse::<u32>().expect("a number");
        let optional = || (value != "none").then(number);
        let tiers = |field| {
            let text = if value == "none" { "" } else { value.as_str() };
            RetrySchedule::parse(field, text).map_err(|invalid| invalid.to_string())
        };
        match name.as_str() {
            "schedule" => settings.schedule = tiers("schedule")?,
            "error_schedule" => settings.error_schedule = tiers("error_schedule")?,
            "max_attempts" => settings.max_attempts = optional(),
            "max_deliveries" => settings.max_deliveries = number(),
            "lease" => settings.lease_ms = span(),
            "gap" => settings.min_redelivery_gap_ms = span(),
            "max_returns" => settings.max_returns = number(),
            "rate" => {
                let parts = value.split_once('/');
                settings.rate = parts.map(|(deliveries, period)| RateCap {
                    deliveries: deliveries.parse().expect("a number"),
                    period_ms: parse_duration(period).expect("a duration"),
                });
            }
            "concurrency" => settings.concurrency = optional(),
            "jitter" => settings.jitter_percent = number(),
            "dedup_window" => settings.dedup_window_ms = span(),
            "dedup_capacity" => settings.dedup_capacity = number(),
            "dead_releases_key" => settings.dead_releases_key = value == "true",
            "history_count" => settings.history_count = number(),
            "history_age" => settings.history_age_ms = span(),
            other => panic!("'{other}' is no setting"),
        }
    }
    Ok(settings)
}

fn produce(words: &Words) -> Result<Produce, String> {
    let schedule = words.value("schedule").map(|text| RetrySchedule::parse("schedule", text)).transpose();
    let key = words.value("key").map(Key::parse).transpose();
    let body = match words.number("size") {
        Some(size) => Bytes::from(vec![b'x'; size]),
        None => Bytes::from(words.value("body").unwrap_or_default().to_owned()),
    };
    let policy = match words.value("policy") {
        None | Some("reject") => KeyPolicy::Reject,
        Some("replace") => KeyPolicy::Replace,
        Some("keep") => KeyPolicy::Keep,
        Some(other) => panic!("'{other}' is no key policy"),
    };
    Ok(Produce {
        topic: words.topic(1),
        key: key.map_err(|invalid| invalid.to_string())?,
        headers: Headers::default(),
        body,
        due: words.due(),
        schedule: schedule.map_err(|invalid| invalid.to_string())?,
        max_attempts: words.number("max_attempts"),
        key_policy: policy,
        dedup_id: words.value("dedup").map(|id| DedupId::parse(id).expect("a dedup id")),
    })
}

fn nack(world: &World, words: &Words) -> Nack {
    let delay = words.span("delay");
    let reason = match words.at(2) {
        "not-yet" => NackReason::NotYet(delay),
        "failed" => NackReason::Failed(delay),
        "dead" => NackReason::Dead,
        other => panic!("'{other}' is no reason"),
    };
    let text = NackText::parse(words.value("text").unwrap_or_default()).expect("a text");
    Nack { receipt: receipt(world, words), reason, text }
}
