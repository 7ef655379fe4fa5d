//! When messages fall due, as a chart.

use serde::Serialize;

use super::output::table;
use crate::client::timestamp;
use crate::pb;
use crate::queue::time::Timestamp;

/// A span of time and how many messages fall due in it.
#[derive(Serialize)]
pub(super) struct SpanView {
    from: String,
    /// The first instant after it; without one it has no end.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    count: u64,
}

impl SpanView {
    pub(super) fn new(span: &pb::DueSpan) -> Self {
        let text = |at: Option<&prost_types::Timestamp>| at.map(timestamp).map(Timestamp::to_rfc3339);
        Self { from: text(span.from.as_ref()).unwrap_or_default(), until: text(span.until.as_ref()), count: span.count }
    }
}

/// Length of the longest bar.
const LONGEST_BAR: u64 = 40;

/// A row with a bar for each span in which something falls due.
pub(super) fn chart(spans: &[SpanView]) -> String {
    let most = spans.iter().map(|span| span.count).max().unwrap_or(0);
    if most == 0 {
        return "nothing is scheduled".to_owned();
    }
    let bar = |count: u64| {
        let length = u128::from(count) * u128::from(LONGEST_BAR) / u128::from(most);
        "#".repeat(usize::try_from(length).expect("no longer than the longest").max(1))
    };
    let short =
        |instant: &str| instant.strip_suffix(":00.000Z").map_or_else(|| instant.to_owned(), |at| format!("{at}Z"));
    let row = |span: &SpanView| {
        let until = span.until.as_deref().map_or_else(|| "later".to_owned(), short);
        vec![short(&span.from), until, span.count.to_string(), bar(span.count)]
    };
    let rows = spans.iter().filter(|span| span.count > 0).map(row);
    table(&["due from", "until", "messages", ""], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_leaves_out_what_is_empty_and_shows_the_least_there_is() {
        let span = |from: &str, until: Option<&str>, count| SpanView {
            from: from.to_owned(),
            until: until.map(str::to_owned),
            count,
        };
        let spans = [
            span("2026-12-01T09:30:12.001Z", Some("2026-12-01T09:31:00.000Z"), 1),
            span("2026-12-01T09:31:00.000Z", Some("2026-12-01T09:32:00.000Z"), 0),
            span("2027-01-06T00:00:00.000Z", None, 4_000),
        ];
        let text = chart(&spans);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[1].starts_with("2026-12-01T09:30:12.001Z") && lines[1].ends_with(" #"), "{text}");
        assert!(lines[2].starts_with("2027-01-06T00:00Z") && lines[2].contains("later"), "{text}");
        assert!(lines[2].ends_with(&"#".repeat(40)), "{text}");
        assert_eq!(chart(&spans[1..2]), "nothing is scheduled");
    }
}
