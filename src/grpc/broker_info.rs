//! The broker, its clock and its limits in their wire form.

use super::time::{signed_span_to_wire, span_to_wire, to_wire};
use super::{MAX_REQUEST_BYTES, MAX_RESPONSE_BYTES};
use crate::clock::{Adoption, ClockState, StepPolicy};
use crate::engine::{BrokerView, EngineSettings};
use crate::pb;
use crate::queue::limits::{
    HISTORY_FIRST, HISTORY_LAST, Limits, MAX_ATTEMPTS, MAX_BATCH, MAX_CONCURRENCY, MAX_CONSUMER_NAME_BYTES,
    MAX_DEDUP_CAPACITY, MAX_DEDUP_ID_BYTES, MAX_DEDUP_WINDOW_MS, MAX_DELIVERIES, MAX_FETCH_WAIT_MS,
    MAX_HEADER_NAME_BYTES, MAX_HEADERS, MAX_HEADERS_BYTES, MAX_HISTORY_AGE_MS, MAX_HISTORY_COUNT, MAX_KEY_BYTES,
    MAX_LEASE_BYTES, MAX_LEASE_MS, MAX_NACK_TEXT_BYTES, MAX_PAGE_SIZE, MAX_RATE_DELIVERIES, MAX_RATE_PERIOD_MS,
    MAX_REDELIVERY_GAP_MS, MAX_RETURNS, MAX_STREAM_TOPICS, MAX_TIERS, MAX_TOPIC_NAME_BYTES, MAX_WINDOW,
    MIN_DEDUP_WINDOW_MS, MIN_LEASE_MS, MIN_TIER_MS,
};

/// The broker.
pub(super) fn info(view: &BrokerView) -> pb::BrokerInfo {
    let BrokerView { stats, data_format, opening_ms, clock: state, limits: allowed, bounds } = view;
    pb::BrokerInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        epoch: stats.epoch,
        data_format: *data_format,
        started_at: Some(to_wire(stats.started_at)),
        opening: Some(span_to_wire(*opening_ms)),
        clock: Some(clock(state)),
        limits: Some(limits(allowed, bounds)),
        disk_free_bytes: stats.disk.map_or(0, |disk| disk.free_bytes),
        disk_reserve_bytes: stats.disk.map_or(0, |disk| disk.reserve_bytes),
        produce_refused: stats.disk.is_some_and(|disk| disk.is_short),
    }
}

/// What adopting the wall clock has changed.
pub(super) fn adopted(adoption: &Adoption) -> pb::AdoptClockResponse {
    pb::AdoptClockResponse { before: Some(clock(&adoption.before)), after: Some(clock(&adoption.after)) }
}

fn clock(state: &ClockState) -> pb::ClockState {
    let policy = match state.policy {
        StepPolicy::Report => pb::ClockPolicy::Report,
        StepPolicy::Adopt => pb::ClockPolicy::Adopt,
    };
    pb::ClockState {
        now: Some(to_wire(state.now)),
        offset: Some(signed_span_to_wire(state.offset_ms)),
        stepped: state.is_stepped,
        slewing: state.is_slewing,
        hold: (state.held_ms > 0).then(|| span_to_wire(state.held_ms)),
        steps: state.steps,
        policy: policy.into(),
    }
}

/// The limits, from where they are enforced.
fn limits(limits: &Limits, bounds: &EngineSettings) -> pb::Limits {
    let span = |ms| Some(span_to_wire(ms));
    pb::Limits {
        max_delay: span(limits.max_delay_ms),
        max_body_bytes: limits.max_body_bytes as u64,
        max_topics: limits.max_topics as u64,
        max_topic_name_bytes: MAX_TOPIC_NAME_BYTES as u64,
        max_key_bytes: MAX_KEY_BYTES as u64,
        max_headers: MAX_HEADERS as u64,
        max_header_name_bytes: MAX_HEADER_NAME_BYTES as u64,
        max_headers_bytes: MAX_HEADERS_BYTES as u64,
        max_dedup_id_bytes: MAX_DEDUP_ID_BYTES as u64,
        max_nack_text_bytes: MAX_NACK_TEXT_BYTES as u64,
        max_consumer_name_bytes: MAX_CONSUMER_NAME_BYTES as u64,
        max_batch: MAX_BATCH as u64,
        max_request_bytes: MAX_REQUEST_BYTES as u64,
        max_response_bytes: MAX_RESPONSE_BYTES as u64,
        max_lease_bytes: MAX_LEASE_BYTES as u64,
        max_page_size: u64::from(MAX_PAGE_SIZE),
        max_tiers: MAX_TIERS as u64,
        min_tier: span(MIN_TIER_MS),
        max_attempts: u64::from(MAX_ATTEMPTS),
        max_deliveries: u64::from(MAX_DELIVERIES),
        max_returns: u64::from(MAX_RETURNS),
        min_lease: span(MIN_LEASE_MS),
        max_lease: span(MAX_LEASE_MS),
        max_redelivery_gap: span(MAX_REDELIVERY_GAP_MS),
        max_rate_deliveries: u64::from(MAX_RATE_DELIVERIES),
        max_rate_period: span(MAX_RATE_PERIOD_MS),
        max_concurrency: u64::from(MAX_CONCURRENCY),
        min_dedup_window: span(MIN_DEDUP_WINDOW_MS),
        max_dedup_window: span(MAX_DEDUP_WINDOW_MS),
        max_dedup_capacity: u64::from(MAX_DEDUP_CAPACITY),
        max_history_count: u64::from(MAX_HISTORY_COUNT),
        max_history_age: span(MAX_HISTORY_AGE_MS),
        max_attempt_history: (HISTORY_FIRST + HISTORY_LAST) as u64,
        max_window: u64::from(MAX_WINDOW),
        max_stream_topics: MAX_STREAM_TOPICS as u64,
        max_streams: bounds.max_streams as u64,
        max_fetch_wait: span(MAX_FETCH_WAIT_MS),
        max_waiting_fetches: bounds.max_waiters as u64,
    }
}
