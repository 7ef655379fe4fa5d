//! What `verify` prints in the end.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::tally::{Answers, Found, Tally};
use crate::cli::output::Sheet;

/// What a run has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Judgement {
    /// Every promise was kept.
    Kept,
    /// At least one was broken.
    Broken,
    /// A signal ended the load early; nothing was wrong with what was done until then.
    Interrupted,
    /// Nothing wrong was seen, but the run could not be finished, or nothing was confirmed.
    Incomplete,
}

/// The report.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) judgement: Judgement,
    pub(super) seed: u64,
    pub(super) topic: String,
    pub(super) kills: u64,
    pub(super) seconds: f64,
    /// The load ended early because so many messages were produced.
    pub(super) is_full: bool,
    pub(super) tally: Tally,
}

impl Serialize for Verdict {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let operations: BTreeMap<_, Value> = (self.tally.answers.iter())
            .map(|(operation, answers)| {
                let Answers { ok, failed, unknown } = answers;
                (operation, json!({"ok": ok, "failed": failed, "unknown": unknown}))
            })
            .collect();
        let violations: BTreeMap<_, Value> = (self.tally.found.iter())
            .map(|(violation, Found { count, examples })| (violation, json!({"count": count, "examples": examples})))
            .collect();
        json!({
            "verdict": self.judgement,
            "seed": self.seed,
            "topic": self.topic,
            "seconds": self.seconds,
            "kills": self.kills,
            "operations": operations,
            "deliveries": self.tally.deliveries,
            "duplicates": self.tally.duplicates,
            "duplicates_bound": self.tally.in_flight_at_breaks,
            "extended_leases_kept": self.tally.leases_kept,
            "violations": violations,
            "violation_count": self.tally.violations(),
            "full": self.is_full,
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
        lines.push(("extended", format!("{} leases, kept beyond the lease time of the topic", self.tally.leases_kept)));
        for (violation, Found { count, examples }) in &self.tally.found {
            lines.push(("VIOLATION", format!("{}: {count}", name(violation))));
            lines.extend(examples.iter().map(|example| ("", example.clone())));
        }
        if self.is_full {
            lines.push(("load", "ended early, at --max-messages".to_owned()));
        }
        let verdict = match self.judgement {
            Judgement::Kept => "every promise was kept".to_owned(),
            Judgement::Broken => format!("{} violations", self.tally.violations()),
            Judgement::Interrupted => "interrupted; nothing was wrong so far".to_owned(),
            Judgement::Incomplete => "none: the run was not finished; nothing was wrong so far".to_owned(),
        };
        lines.push(("verdict", verdict));
        lines
    }
}

/// The name in the report, such as `settled_again`.
fn name(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
}
