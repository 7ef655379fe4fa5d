//! Instants and spans between the wire and the domain.

use std::time::Duration;

use crate::queue::schedule::RetrySchedule;
use crate::queue::time::Timestamp;
use crate::{pb, queue::schedule::format_duration};

/// A span of `ms` milliseconds on the wire.
#[must_use]
pub fn span(ms: u64) -> prost_types::Duration {
    let seconds = i64::try_from(ms / 1_000).expect("a u64 of milliseconds is an i64 of seconds");
    let nanos = i32::try_from(ms % 1_000 * 1_000_000).expect("below one second");
    prost_types::Duration { seconds, nanos }
}

/// Milliseconds of a span on the wire, rounded up; a negative one is 0.
#[must_use]
pub fn span_ms(span: &prost_types::Duration) -> u64 {
    let nanos = u64::try_from(span.nanos).unwrap_or(0);
    u64::try_from(span.seconds).unwrap_or(0).saturating_mul(1_000).saturating_add(nanos.div_ceil(1_000_000))
}

/// A span of `ms` milliseconds, which may be negative, on the wire.
#[must_use]
pub fn signed_span(ms: i64) -> prost_types::Duration {
    let absolute = span(ms.unsigned_abs());
    if ms < 0 { prost_types::Duration { seconds: -absolute.seconds, nanos: -absolute.nanos } } else { absolute }
}

/// Milliseconds of a span on the wire that may be negative; what is finer is cut off.
#[must_use]
pub fn signed_span_ms(span: &prost_types::Duration) -> i64 {
    span.seconds.saturating_mul(1_000).saturating_add(i64::from(span.nanos) / 1_000_000)
}

/// An instant on the wire.
#[must_use]
pub fn instant(at: Timestamp) -> prost_types::Timestamp {
    let span = span(at.as_millis());
    prost_types::Timestamp { seconds: span.seconds, nanos: span.nanos }
}

/// An instant from the wire; one before 1970 is [`Timestamp::ZERO`].
#[must_use]
pub fn timestamp(at: &prost_types::Timestamp) -> Timestamp {
    Timestamp::from_millis(span_ms(&prost_types::Duration { seconds: at.seconds, nanos: at.nanos }))
}

/// A retry schedule on the wire.
#[must_use]
pub fn tiers(schedule: &RetrySchedule) -> pb::RetrySchedule {
    pb::RetrySchedule { tiers: schedule.tiers().iter().copied().map(span).collect() }
}

/// The text form of a schedule from the wire, such as `1s,2s,5x3s`.
#[must_use]
pub fn tiers_text(schedule: &pb::RetrySchedule) -> String {
    let tiers: Vec<u64> = schedule.tiers.iter().map(span_ms).collect();
    RetrySchedule::new("schedule", &tiers).map_or_else(
        |_| tiers.iter().map(|&ms| format_duration(ms)).collect::<Vec<_>>().join(","),
        |schedule| schedule.to_string(),
    )
}

pub(super) fn span_of(duration: Duration) -> prost_types::Duration {
    span(u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

pub(super) fn timestamp_or_zero(at: Option<&prost_types::Timestamp>) -> Timestamp {
    at.map_or(Timestamp::ZERO, timestamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_instants_survive_the_wire() {
        for ms in [0, 1, 999, 1_000, 1_001, 86_400_000, 4_102_444_800_123] {
            assert_eq!(span_ms(&span(ms)), ms);
            assert_eq!(timestamp(&instant(Timestamp::from_millis(ms))).as_millis(), ms);
        }
        for ms in [0, 1, -1, 1_500, -1_500, -86_400_001] {
            assert_eq!(signed_span_ms(&signed_span(ms)), ms);
        }
        assert_eq!(span_ms(&prost_types::Duration { seconds: -1, nanos: 0 }), 0);
        assert_eq!(span_of(Duration::from_micros(1)), span(1), "a wait is never shortened");
    }

    #[test]
    fn a_schedule_is_written_as_people_write_it() {
        let schedule = RetrySchedule::parse("schedule", "1s,5x3s").expect("well formed");
        assert_eq!(tiers_text(&tiers(&schedule)), "1s,5x3s");
    }
}
