//! What a run has measured: named figures in the order in which they are read, one JSON line or a table.

use hdrhistogram::Histogram;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

pub(super) use crate::cli::live::per_second;
use crate::cli::output::Sheet;

/// Longest time that a spread tells apart, microseconds: an hour.
const MAX_US: u64 = 3_600_000_000;

/// The figures of one run.
#[derive(Clone, Debug, Default)]
pub(super) struct Report(Vec<(&'static str, Value)>);

impl Report {
    /// Adds a figure; `Value::Null` means that it could not be measured.
    pub(super) fn put(&mut self, name: &'static str, value: impl Into<Value>) {
        self.0.push((name, value.into()));
    }
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl Sheet for Report {
    fn lines(&self) -> Vec<(&'static str, String)> {
        self.0.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (*name, cell(value))).collect()
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Object(parts) => {
            let part = |name: &str| Some(format!("{} {}", name.trim_end_matches("_ms"), parts.get(name)?));
            let names = ["min_ms", "p50_ms", "p99_ms", "p999_ms", "max_ms"];
            format!("{} (ms)", names.iter().filter_map(|name| part(name)).collect::<Vec<_>>().join("  "))
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// How a time is spread over many samples: quantiles within 0.1 %.
#[derive(Clone, Debug)]
pub(super) struct Spread {
    histogram: Histogram<u64>,
    /// The smallest sample, microseconds; below zero: it came too early.
    min_us: i64,
    early: u64,
}

impl Spread {
    /// No samples yet.
    pub(super) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, MAX_US, 3).expect("the bounds are well formed");
        Self { histogram, min_us: i64::MAX, early: 0 }
    }

    /// Adds a time in microseconds.
    pub(super) fn add(&mut self, us: i64) {
        self.early += u64::from(us < 0);
        self.min_us = self.min_us.min(us);
        self.histogram.saturating_record(u64::try_from(us).unwrap_or(0));
    }

    /// Adds the time since a stopwatch was started.
    pub(super) fn add_since(&mut self, watch: &crate::clock::Stopwatch) {
        self.add(i64::try_from(watch.elapsed_us()).unwrap_or(i64::MAX));
    }

    /// Adds the samples of another.
    pub(super) fn merge(&mut self, other: &Self) {
        self.early += other.early;
        self.min_us = self.min_us.min(other.min_us);
        self.histogram.add(&other.histogram).expect("all spreads have the same bounds");
    }

    /// Samples below zero.
    pub(super) fn early(&self) -> u64 {
        self.early
    }

    /// The quantiles in milliseconds; null without samples.
    pub(super) fn to_json(&self) -> Value {
        if self.histogram.is_empty() {
            return Value::Null;
        }
        let at = |quantile| ms(i64::try_from(self.histogram.value_at_quantile(quantile)).unwrap_or(i64::MAX));
        json!({
            "p50_ms": at(0.5), "p99_ms": at(0.99), "p999_ms": at(0.999),
            "max_ms": ms(i64::try_from(self.histogram.max()).unwrap_or(i64::MAX)), "min_ms": ms(self.min_us),
        })
    }
}

/// Two digits behind the point.
pub(super) fn rounded(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52 microseconds")]
fn ms(us: i64) -> f64 {
    rounded(us as f64 / 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_tells_its_quantiles_and_counts_what_came_early() {
        let mut spread = Spread::new();
        assert_eq!(spread.to_json(), Value::Null);
        for us in 1..=1_000 {
            spread.add(us * 1_000);
        }
        let mut other = Spread::new();
        other.add(-500);
        spread.merge(&other);
        let json = spread.to_json();
        let near = |name: &str, want: f64| (json[name].as_f64().expect("a number") - want).abs() <= want / 400.0;
        assert!(near("p50_ms", 500.0) && near("p99_ms", 990.0) && near("max_ms", 1_000.0), "{json}");
        assert_eq!(json["min_ms"], -0.5);
        assert_eq!(spread.early(), 1);
    }

    #[test]
    fn figures_keep_their_order_in_json_and_nulls_are_left_out_of_the_table() {
        let mut report = Report::default();
        report.put("sent", 7);
        report.put("mem_mb", Value::Null);
        report.put("confirm", json!({"p50_ms": 0.5, "max_ms": 2.0}));
        assert_eq!(
            serde_json::to_string(&report).expect("JSON"),
            r#"{"sent":7,"mem_mb":null,"confirm":{"max_ms":2.0,"p50_ms":0.5}}"#
        );
        let lines = report.lines();
        assert_eq!(lines, [("sent", "7".to_owned()), ("confirm", "p50 0.5  max 2.0 (ms)".to_owned())]);
    }
}
