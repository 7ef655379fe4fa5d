//! What the histories have reached, and how often it must be reached: a property that holds because nothing
//! happened proves nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use duewheel::queue::command::{CancelReply, Ending, Nacked, Rejection, Reply, RescheduleReply};

/// How often each thing was seen.
#[derive(Default)]
pub(crate) struct Coverage(BTreeMap<String, u64>);

impl Coverage {
    pub(crate) fn mark(&mut self, what: impl Into<String>) {
        *self.0.entry(what.into()).or_default() += 1;
    }

    pub(crate) fn add(&mut self, other: Self) {
        for (what, count) in other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }

    /// Fails with a list of what was reached less often than required.
    pub(crate) fn assert_at_least(&self, minimums: &[(&str, u64)]) {
        let mut missing = String::new();
        for &(what, minimum) in minimums {
            let count = self.0.get(what).copied().unwrap_or_default();
            if count < minimum {
                let _ = writeln!(missing, "{what}: {count} times, at least {minimum} wanted");
            }
        }
        assert!(missing.is_empty(), "not reached often enough:\n{missing}\nreached:\n{self}");
    }
}

impl std::fmt::Display for Coverage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (what, count) in &self.0 {
            writeln!(f, "{count:>8} {what}")?;
        }
        Ok(())
    }
}

/// The kind of an answer, as a word to count by.
pub(crate) fn kind(answer: &Result<Reply, Rejection>) -> String {
    match answer {
        Err(rejection) => {
            let text = format!("{rejection:?}");
            let words = text.split(['(', ' ', '{', ')']).filter(|word| !word.is_empty()).take(2).collect::<Vec<_>>();
            let state = text.split("state: \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
            format!("refused {} {state}", words.join(" ")).trim_end().to_owned()
        }
        Ok(reply) => match reply {
            Reply::Topic(_) => "topic".to_owned(),
            Reply::Produced(produced) => format!("produced existing={}", produced.existing),
            Reply::Leased(deliveries) if deliveries.is_empty() => "leased nothing".to_owned(),
            Reply::Leased(_) => "leased".to_owned(),
            Reply::Acked { repeated } => format!("acked repeated={repeated}"),
            Reply::Nacked(Nacked::Waits(_)) => "nacked waits".to_owned(),
            Reply::Nacked(nacked) => format!("nacked {nacked:?}"),
            Reply::Extended(_) => "extended".to_owned(),
            Reply::Returned(0) => "returned nothing".to_owned(),
            Reply::Returned(_) => "returned".to_owned(),
            Reply::Cancel(CancelReply::AlreadyDone(_, ending)) => format!("cancel {}", ending_word(*ending)),
            Reply::Cancel(reply) => format!("cancel {}", first_word(&format!("{reply:?}"))),
            Reply::Reschedule(RescheduleReply::AlreadyDone(_, ending)) => {
                format!("reschedule {}", ending_word(*ending))
            }
            Reply::Reschedule(reply) => format!("reschedule {}", first_word(&format!("{reply:?}"))),
            Reply::Redrive(reply) => format!("redrive {reply:?}"),
            Reply::Purge(reply) => format!("purge {reply:?}"),
            Reply::TopicDeleted(deleted) => {
                let (empty, in_pages) = (deleted.messages == 0, deleted.generation.is_some());
                format!("topic deleted empty={empty} in_pages={in_pages}")
            }
        },
    }
}

fn ending_word(ending: Ending) -> String {
    match ending {
        Ending::Gone(outcome) => format!("AlreadyDone {outcome:?}"),
        Ending::Dead => "AlreadyDone Dead".to_owned(),
    }
}

fn first_word(text: &str) -> &str {
    text.split('(').next().unwrap_or_default()
}
