//! What is counted: answers by operation, deliveries, and violations by kind with examples.

use std::collections::BTreeMap;

use serde::Serialize;

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
    /// An extend after the ack of the same lease, which has to be refused.
    LateExtend,
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
    /// A lease that had been extended ended before its time.
    LeaseCut,
    /// An attempt number was left out.
    AttemptSkipped,
    /// Delivered with an attempt above the retry cap.
    BeyondCap,
    /// A dead letter that had attempts left.
    DeadTooSoon,
    /// Body, headers or key are not those that were produced.
    WrongContent,
    /// The key of a message that is over cannot be used.
    KeyLeaked,
    /// The counts of the broker do not add up.
    NotConserved,
    /// Messages that do not come to an end although everything is made due and acked.
    Stuck,
    /// An answer that is not documented for what was asked.
    Unexpected,
}

/// How often an operation was answered how.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers {
    pub(super) ok: u64,
    pub(super) failed: u64,
    pub(super) unknown: u64,
}

/// What was found of one kind of violation.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    pub(super) count: u64,
    pub(super) examples: Vec<String>,
}

/// Everything that was counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) answers: BTreeMap<Operation, Answers>,
    pub(super) found: BTreeMap<Violation, Found>,
    pub(super) deliveries: u64,
    pub(super) duplicates: u64,
    /// Extended leases that were kept beyond the lease time of the topic and settled then.
    pub(super) leases_kept: u64,
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
        let found = self.found.entry(violation).or_default();
        found.count += 1;
        if found.examples.len() < MAX_EXAMPLES {
            let name = if order > 0 { format!("order {order}: ") } else { String::new() };
            found.examples.push(format!("{name}{text}"));
        }
    }

    /// Violations of all kinds.
    pub(super) fn violations(&self) -> u64 {
        self.found.values().map(|found| found.count).sum()
    }

    /// Confirmed produces.
    pub(super) fn produced(&self) -> u64 {
        self.answers.get(&Operation::Produce).map_or(0, |answers| answers.ok)
    }
}
