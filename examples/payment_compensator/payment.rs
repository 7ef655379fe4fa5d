//! Payments as the data file describes them: what happened, and what the channel will answer when.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use duewheel::queue::schedule::{format_duration, parse_duration};
use serde::{Deserialize, Serialize};

/// One uncertain payment: the channel answered only "accepted". A line of the data file.
///
/// All times are spans as people write them. `at` counts from the start of the run, the others from the payment.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Payment {
    /// Order number.
    pub(crate) order: String,
    /// Who moves the money.
    pub(crate) channel: String,
    /// Amount in the smallest unit of the currency.
    pub(crate) amount: u64,
    /// ISO 4217 code.
    pub(crate) currency: String,
    /// When the customer paid.
    pub(crate) at: Span,
    /// How it ends; `None`: the channel never says.
    pub(crate) result: Option<Answer>,
    /// When the channel knows how it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) settles_after: Option<Span>,
    /// What the first queries run into instead of an answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) glitches: Vec<Glitch>,
    /// When the channel's asynchronous notification arrives, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) notified_after: Option<Span>,
    /// When somebody asks for a query at once, if somebody does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) query_now_after: Option<Span>,
}

/// A definite answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    /// The money has moved.
    Paid,
    /// It has not, and will not.
    Failed,
}

/// What a query may run into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Glitch {
    /// No answer within the query timeout.
    Timeout,
    /// The channel's gateway answers with an error.
    Error,
}

/// A span of time, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Span(pub(crate) u64);

impl Span {
    /// The span in a run that goes `scale` times faster than life.
    #[allow(dead_code, reason = "the generator of the data file has no use for it")]
    pub(crate) fn scaled(self, scale: f64) -> Duration {
        Duration::from_millis(self.0).div_f64(scale)
    }
}

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        parse_duration(&text).map(Self)
    }
}

impl From<Span> for String {
    fn from(span: Span) -> Self {
        format_duration(span.0)
    }
}

/// Reads a data file; with a limit, that many payments spread evenly over it.
#[allow(dead_code, reason = "the generator of the data file has no use for it")]
pub(crate) fn read(path: &Path, limit: Option<usize>) -> anyhow::Result<Vec<Payment>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&path.display().to_string(), &text, limit)
}

/// Reads the text of a data file, which complaints call `name`.
#[allow(dead_code, reason = "the generator of the data file has no use for it")]
pub(crate) fn parse(name: &str, text: &str, limit: Option<usize>) -> anyhow::Result<Vec<Payment>> {
    let mut payments = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let payment: Payment = serde_json::from_str(line).with_context(|| format!("{name}:{}", index + 1))?;
        if payment.result.is_some() != payment.settles_after.is_some() {
            bail!("{name}:{}: a result needs a time, and a time a result", index + 1);
        }
        payments.push(payment);
    }
    let count = payments.len();
    let limit = limit.unwrap_or(count).min(count);
    Ok((0..limit).map(|index| payments[index * count / limit].clone()).collect())
}
