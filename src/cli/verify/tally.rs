//! What is counted: answers by operation, deliveries, and violations by kind with examples.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::output::Sheet;

/// Examples that are kept of each kind of violation.
const MAX_EXAMPLES: usize = 10;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Operation {
    Produce,
    Ack,
    Nack,
    Extend,
    Cancel,
    Reschedule,
}

/// How it was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Result {
    /// Done.
    Ok,
    /// Refused: definitely not done.
    Failed,
    /// No answer: done or not.
    Unknown,
}

/// A promise that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Violation {
    /// Confirmed, not ended by anybody, and gone.
    Lost,
    /// Delivered before it was due.
    Early,
    /// Delivered after its end was confirmed.
    Resurrected,
    /// A delivery whose settlement was confirmed came again.
    SettledAgain,
    /// A repeated delivery without the flag.
    NotFlagged,
    /// More repeated deliveries than were in flight when connections broke.
    TooManyDuplicates,
    /// An attempt number was left out.
    AttemptSkipped,
    /// Body or key are not those that were produced.
    WrongContent,
    /// The key of a message that is over cannot be used.
    KeyLeaked,
    /// The counts of the broker do not add up.
    NotConserved,
    /// Messages that do not come to an end though everybody acks.
    Stuck,
    /// An answer that is not documented for what was asked.
    Unexpected,
}

#[derive(Clone, Debug, Default)]
struct Answers {
    ok: u64,
    failed: u64,
    unknown: u64,
}

#[derive(Clone, Debug, Default)]
struct Found {
    count: u64,
    examples: Vec<String>,
}

/// Everything that was counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    answers: BTreeMap<Operation, Answers>,
    violations: BTreeMap<Violation, Found>,
    pub(super) deliveries: u64,
    pub(super) duplicates: u64,
    /// Deliveries that were not settled when their connection broke: the bound of the duplicates.
    pub(super) in_flight_at_breaks: u64,
}

impl Tally {
    pub(super) fn answered(&mut self, operation: Operation, answer: Result, count: u64) {
        let answers = self.answers.entry(operation).or_default();
        *match answer {
            Result::Ok => &mut answers.ok,
            Result::Failed => &mut answers.failed,
            Result::Unknown => &mut answers.unknown,
        } += count;
    }

    /// `order` 0: it is not about one order.
    pub(super) fn violation(&mut self, violation: Violation, order: u64, text: &str) {
        let found = self.violations.entry(violation).or_default();
        found.count += 1;
        if found.examples.len() < MAX_EXAMPLES {
            let name = if order > 0 { format!("order {order}: ") } else { String::new() };
            found.examples.push(format!("{name}{text}"));
        }
    }

    /// Violations of all kinds.
    pub(super) fn violations(&self) -> u64 {
        self.violations.values().map(|found| found.count).sum()
    }

    /// Confirmed operations.
    pub(super) fn confirmed(&self) -> u64 {
        self.answers.values().map(|answers| answers.ok).sum()
    }
}

/// What `verify` prints in the end.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) seed: u64,
    pub(super) topic: String,
    pub(super) kills: u64,
    pub(super) seconds: f64,
    pub(super) interrupted: bool,
    pub(super) tally: Tally,
}

impl Serialize for Verdict {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let operations: BTreeMap<_, Value> = (self.tally.answers.iter())
            .map(|(operation, answers)| {
                let Answers { ok, failed, unknown } = answers;
                (operation, json!({"ok": ok, "failed": failed, "unknown": unknown}))
            })
            .collect();
        let violations: BTreeMap<_, Value> = (self.tally.violations.iter())
            .map(|(violation, Found { count, examples })| (violation, json!({"count": count, "examples": examples})))
            .collect();
        json!({
            "seed": self.seed,
            "topic": self.topic,
            "seconds": self.seconds,
            "kills": self.kills,
            "operations": operations,
            "deliveries": self.tally.deliveries,
            "duplicates": self.tally.duplicates,
            "duplicates_bound": self.tally.in_flight_at_breaks,
            "violations": violations,
            "violation_count": self.tally.violations(),
            "interrupted": self.interrupted,
        })
        .serialize(serializer)
    }
}

impl Sheet for Verdict {
    fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![
            ("seed", self.seed.to_string()),
            ("topic", self.topic.clone()),
            ("time", format!("{:.1} s", self.seconds)),
            ("kills", self.kills.to_string()),
        ];
        for (operation, Answers { ok, failed, unknown }) in &self.tally.answers {
            lines.push(("operation", format!("{}: {ok} ok, {failed} failed, {unknown} unknown", name(operation))));
        }
        lines.push(("deliveries", self.tally.deliveries.to_string()));
        let bound = self.tally.in_flight_at_breaks;
        lines.push(("duplicates", format!("{}, of at most {bound} in flight at breaks", self.tally.duplicates)));
        for (violation, Found { count, examples }) in &self.tally.violations {
            lines.push(("VIOLATION", format!("{}: {count}", name(violation))));
            lines.extend(examples.iter().map(|example| ("", example.clone())));
        }
        let verdict = match self.tally.violations() {
            0 if self.interrupted => "interrupted; nothing wrong so far".to_owned(),
            0 => "every promise was kept".to_owned(),
            count => format!("{count} violations"),
        };
        lines.push(("verdict", verdict));
        lines
    }
}

/// The name in the report, such as `settled_again`.
fn name(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
}
