//! The limits of a broker as people and programs read them.

use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};

use crate::client::span_ms;
use crate::pb;
use crate::queue::schedule::format_duration;

/// A limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// So many.
    Number(u64),
    /// A span as people write it.
    Span(String),
}

impl Limit {
    /// As it is printed in a table.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Span(span) => span.clone(),
        }
    }
}

/// All limits with their names on the wire, in that order.
pub(super) struct LimitsView(pub(super) Vec<(&'static str, Limit)>);

impl LimitsView {
    pub(super) fn new(limits: &pb::Limits) -> Self {
        let span =
            |span: &Option<prost_types::Duration>| Limit::Span(format_duration(span.as_ref().map_or(0, span_ms)));
        Self(vec![
            ("max_delay", span(&limits.max_delay)),
            ("max_body_bytes", Limit::Number(limits.max_body_bytes)),
            ("max_topics", Limit::Number(limits.max_topics)),
            ("max_topic_name_bytes", Limit::Number(limits.max_topic_name_bytes)),
            ("max_key_bytes", Limit::Number(limits.max_key_bytes)),
            ("max_headers", Limit::Number(limits.max_headers)),
            ("max_header_name_bytes", Limit::Number(limits.max_header_name_bytes)),
            ("max_headers_bytes", Limit::Number(limits.max_headers_bytes)),
            ("max_dedup_id_bytes", Limit::Number(limits.max_dedup_id_bytes)),
            ("max_nack_text_bytes", Limit::Number(limits.max_nack_text_bytes)),
            ("max_consumer_name_bytes", Limit::Number(limits.max_consumer_name_bytes)),
            ("max_batch", Limit::Number(limits.max_batch)),
            ("max_request_bytes", Limit::Number(limits.max_request_bytes)),
            ("max_response_bytes", Limit::Number(limits.max_response_bytes)),
            ("max_lease_bytes", Limit::Number(limits.max_lease_bytes)),
            ("max_page_size", Limit::Number(limits.max_page_size)),
            ("max_tiers", Limit::Number(limits.max_tiers)),
            ("min_tier", span(&limits.min_tier)),
            ("max_attempts", Limit::Number(limits.max_attempts)),
            ("max_deliveries", Limit::Number(limits.max_deliveries)),
            ("max_returns", Limit::Number(limits.max_returns)),
            ("min_lease", span(&limits.min_lease)),
            ("max_lease", span(&limits.max_lease)),
            ("max_redelivery_gap", span(&limits.max_redelivery_gap)),
            ("max_rate_deliveries", Limit::Number(limits.max_rate_deliveries)),
            ("max_rate_period", span(&limits.max_rate_period)),
            ("max_concurrency", Limit::Number(limits.max_concurrency)),
            ("min_dedup_window", span(&limits.min_dedup_window)),
            ("max_dedup_window", span(&limits.max_dedup_window)),
            ("max_dedup_capacity", Limit::Number(limits.max_dedup_capacity)),
            ("max_history_count", Limit::Number(limits.max_history_count)),
            ("max_history_age", span(&limits.max_history_age)),
            ("max_attempt_history", Limit::Number(limits.max_attempt_history)),
            ("max_window", Limit::Number(limits.max_window)),
            ("max_stream_topics", Limit::Number(limits.max_stream_topics)),
            ("max_streams", Limit::Number(limits.max_streams)),
            ("max_fetch_wait", span(&limits.max_fetch_wait)),
            ("max_waiting_fetches", Limit::Number(limits.max_waiting_fetches)),
        ])
    }
}

impl Serialize for LimitsView {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, limit) in &self.0 {
            match limit {
                Limit::Number(number) => map.serialize_entry(name, number)?,
                Limit::Span(span) => map.serialize_entry(name, span)?,
            }
        }
        map.end()
    }
}
