//! The little world of a script: a queue, a store, a clock, and names for what was handed out.

use std::collections::BTreeMap;

use duewheel::queue::change::Change;
use duewheel::queue::command::{Command, ConsumerId, Rejection, Reply};
use duewheel::queue::limits::Limits;
use duewheel::queue::message::MessageId;
use duewheel::queue::receipt::Receipt;
use duewheel::queue::schedule::{format_duration, parse_duration};
use duewheel::queue::time::Timestamp;
use duewheel::queue::values::TopicName;
use duewheel::queue::{Effects, Queue, Restore};

use crate::answers;
use crate::commands::{self, Words};
use crate::store::Store;

const START: Timestamp = Timestamp::from_millis(1_700_000_000_000);
/// Messages touched by one call of `advance` at most.
const ADVANCE_LIMIT: usize = 4;

pub(crate) struct World {
    pub(crate) now: Timestamp,
    pub(crate) queue: Queue,
    store: Store,
    /// Messages in the order in which they were produced: `m1`, `m2`, ...
    pub(crate) messages: Vec<(TopicName, MessageId)>,
    /// Receipts in the order in which they were issued: `r1`, `r2`, ...
    pub(crate) receipts: Vec<Receipt>,
    consumers: BTreeMap<String, ConsumerId>,
    /// Changes of the last command and of the timed work after it.
    changes: Vec<Change>,
}

impl World {
    pub(crate) fn new() -> Self {
        let mut effects = Effects::default();
        let queue = Restore::new(Limits::default()).finish(START, &mut effects);
        let mut store = Store::default();
        store.commit(&effects.changes);
        Self {
            now: START,
            queue,
            store,
            messages: Vec::new(),
            receipts: Vec::new(),
            consumers: BTreeMap::new(),
            changes: Vec::new(),
        }
    }

    /// Runs one line and returns the answer, line by line.
    pub(crate) fn run(&mut self, line: &str) -> Vec<String> {
        let words = Words::parse(line);
        let mut lines = match words.verb() {
            "sleep" => {
                self.now = self.now.plus(words.duration(1));
                return Vec::new();
            }
            "show" => return answers::look_up(self, &words),
            "counts" => return answers::counts(self, &words),
            "dead" => return answers::dead_letters(self, &words),
            "topic" if words.at(1) == "show" => return answers::topic(self, &words),
            "wakeup" => return vec![self.wake_up(&words)],
            "changes" => return self.changes.iter().map(|change| answers::change(self, change)).collect(),
            "fold" => {
                self.store.freeze();
                self.store.complete(|| true);
                return Vec::new();
            }
            "grace" => {
                self.queue.grant_grace(self.now, words.duration(1));
                Vec::new()
            }
            "crash" | "restart" => {
                let lines = self.stop_and_start(words.verb() == "restart", &words);
                if words.has("at-once") {
                    return lines;
                }
                lines
            }
            verb if verb.starts_with('+') => self.wait(parse_duration(&verb[1..]).expect("a duration")),
            _ => {
                let command = commands::parse(self, &words);
                self.apply(command)
            }
        };
        lines.extend(self.advance());
        lines
    }

    fn apply(&mut self, command: Result<Command, String>) -> Vec<String> {
        let command = match command {
            Ok(command) => command,
            Err(problem) => return vec![format!("refused: {problem}")],
        };
        let mut effects = Effects::default();
        let topic = commands::topic_of(&command);
        let answer = self.queue.apply(self.now, command, None, &mut effects);
        self.name_what_is_new(topic, &answer);
        self.changes.clear();
        self.commit(effects);
        answers::answer(self, &answer)
    }

    fn name_what_is_new(&mut self, topic: Option<TopicName>, answer: &Result<Reply, Rejection>) {
        match answer {
            Ok(Reply::Produced(produced)) if !produced.existing => {
                self.messages.push((topic.expect("a produce names its topic"), produced.id));
            }
            Ok(Reply::Leased(deliveries)) => self.receipts.extend(deliveries.iter().map(|delivery| delivery.receipt)),
            _ => {}
        }
    }

    /// The next wake-up, or whether it is in time for an instant.
    fn wake_up(&self, words: &Words) -> String {
        match (self.queue.next_wakeup(), words.value("by")) {
            (None, _) => "none".to_owned(),
            (Some(wake), None) => instant(wake),
            (Some(wake), Some(by)) if wake > self.now && wake <= Self::parse_instant(by) => "in time".to_owned(),
            (Some(wake), Some(_)) => format!("at {}, not in time", instant(wake)),
        }
    }

    /// To a later instant, by way of every wake-up.
    fn wait(&mut self, ms: u64) -> Vec<String> {
        let target = self.now.plus(ms);
        self.changes.clear();
        let mut lines = Vec::new();
        while let Some(wake) = self.queue.next_wakeup().filter(|&wake| wake < target) {
            assert!(wake > self.now, "a wake-up in the past");
            self.now = wake;
            lines.extend(self.advance());
        }
        self.now = target;
        lines
    }

    /// The timed work of this instant.
    fn advance(&mut self) -> Vec<String> {
        let mut effects = Effects::default();
        while self.queue.advance(self.now, ADVANCE_LIMIT, &mut effects) {}
        let at = instant(self.now);
        let lines = effects.changes.iter().map(|change| format!("{at}: {}", answers::change(self, change))).collect();
        self.commit(effects);
        lines
    }

    fn stop_and_start(&mut self, clean: bool, words: &Words) -> Vec<String> {
        let mut effects = Effects::default();
        if clean {
            self.queue.close(self.now, &mut effects);
            self.store.commit(&effects.changes);
            assert!(self.store.is_clean(), "a clean stop is stored as such");
        }
        if let Some(down) = words.value("down") {
            self.now = self.now.plus(parse_duration(down).expect("a duration"));
        }
        if let Some(back) = words.value("back") {
            self.now = self.now.minus(parse_duration(back).expect("a duration"));
        }
        let mut restore = Restore::new(Limits::default());
        for restored in self.store.restored() {
            restore.record(restored);
        }
        let mut effects = Effects::default();
        self.queue = restore.finish(self.now, &mut effects);
        let told = |change: &&Change| !matches!(change, Change::Opened { .. });
        let lines = effects.changes.iter().filter(told).map(|change| answers::change(self, change)).collect();
        self.changes.clear();
        self.commit(effects);
        lines
    }

    fn commit(&mut self, effects: Effects) {
        self.store.commit(&effects.changes);
        self.changes.extend(effects.changes);
    }

    pub(crate) fn consumer(&mut self, name: &str) -> ConsumerId {
        if name.is_empty() {
            return ConsumerId::NONE;
        }
        let next = ConsumerId(self.consumers.len() as u64 + 1);
        *self.consumers.entry(name.to_owned()).or_insert(next)
    }

    /// The instant of such a text.
    pub(crate) fn parse_instant(text: &str) -> Timestamp {
        match text.strip_prefix('-') {
            Some(before) => START.minus(parse_duration(before).expect("a duration")),
            None => START.plus(parse_duration(text).expect("a duration")),
        }
    }

    /// The script's name of a message.
    pub(crate) fn name(&self, id: MessageId) -> String {
        let at = self.messages.iter().position(|&(_, known)| known == id);
        at.map_or_else(|| format!("unknown {id}"), |at| format!("m{}", at + 1))
    }

    /// Replaces ids in a text by the script's names.
    pub(crate) fn with_names(&self, text: &str) -> String {
        let replace = |text: String, (at, (_, id)): (usize, &(TopicName, MessageId))| {
            text.replace(&id.to_string(), &format!("m{}", at + 1))
        };
        self.messages.iter().enumerate().fold(text.to_owned(), replace)
    }
}

/// An instant as the time since the start of the script.
pub(crate) fn instant(at: Timestamp) -> String {
    if at < START { format!("-{}", format_duration(START.since(at))) } else { format_duration(at.since(START)) }
}
