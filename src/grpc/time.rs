//! Spans and instants of the wire, to and from whole milliseconds.
//!
//! Whatever is finer than a millisecond rounds up: a wait is never shortened, a message never early.

use prost_types::{Duration, Timestamp as WireTimestamp};

use super::errors::Fault;
use crate::queue::schedule::format_duration;
use crate::queue::time::Timestamp;

const NANOS_PER_SECOND: u32 = 1_000_000_000;
const NANOS_PER_MS: u64 = 1_000_000;
/// What `google.protobuf.Duration` allows, seconds: about 10,000 years.
const MAX_DURATION_SECONDS: u64 = 315_576_000_000;
/// What `google.protobuf.Timestamp` allows, seconds: the years 1 to 9999.
const TIMESTAMP_SECONDS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// Milliseconds of a span of `min` to `max` milliseconds at `path`.
pub(super) fn span_within(path: &str, span: Duration, min: u64, max: u64) -> Result<u64, Fault> {
    let ms = span_ms(path, span)?;
    if (min..=max).contains(&ms) {
        return Ok(ms);
    }
    let range = format!("must be {} to {}", format_duration(min), format_duration(max));
    Err(Fault::invalid(path, format!("{}; {range}", format_duration(ms))))
}

/// Milliseconds of a span at `path`, whatever its length.
pub(super) fn span_ms(path: &str, span: Duration) -> Result<u64, Fault> {
    let Duration { seconds, nanos } = span;
    if seconds.unsigned_abs() > MAX_DURATION_SECONDS {
        let problem = format!("{seconds} seconds; a google.protobuf.Duration is at most 10,000 years");
        return Err(Fault::invalid(path, problem));
    }
    let well_formed =
        nanos.unsigned_abs() < NANOS_PER_SECOND && !(seconds > 0 && nanos < 0 || seconds < 0 && nanos > 0);
    if !well_formed {
        let problem = format!("{seconds} seconds and {nanos} nanos are not a valid google.protobuf.Duration");
        return Err(Fault::invalid(path, problem));
    }
    match (u64::try_from(seconds), u64::try_from(nanos)) {
        (Ok(seconds), Ok(nanos)) => Ok(seconds * 1_000 + nanos.div_ceil(NANOS_PER_MS)),
        _ => Err(Fault::invalid(path, "must not be negative")),
    }
}

/// The instant at `path`; one before 1970 lies in the past like any other.
pub(super) fn instant(path: &str, at: WireTimestamp) -> Result<Timestamp, Fault> {
    let WireTimestamp { seconds, nanos } = at;
    let nanos = u64::try_from(nanos).ok().filter(|&nanos| nanos < NANOS_PER_SECOND.into());
    let Some(nanos) = nanos.filter(|_| TIMESTAMP_SECONDS.contains(&seconds)) else {
        let problem = format!(
            "{seconds} seconds and {} nanos are not a google.protobuf.Timestamp of the years 1 to 9999",
            at.nanos
        );
        return Err(Fault::invalid(path, problem));
    };
    let ms = u64::try_from(seconds).map_or(0, |seconds| seconds * 1_000 + nanos.div_ceil(NANOS_PER_MS));
    Ok(Timestamp::from_millis(ms))
}

/// The wire form of an instant.
pub(super) fn to_wire(at: Timestamp) -> WireTimestamp {
    let (seconds, nanos) = split(at.as_millis());
    WireTimestamp { seconds, nanos }
}

/// The wire form of a span of milliseconds.
pub(super) fn span_to_wire(ms: u64) -> Duration {
    let (seconds, nanos) = split(ms);
    Duration { seconds, nanos }
}

/// The wire form of a span of milliseconds that may be negative.
pub(super) fn signed_span_to_wire(ms: i64) -> Duration {
    let Duration { seconds, nanos } = span_to_wire(ms.unsigned_abs());
    if ms < 0 { Duration { seconds: -seconds, nanos: -nanos } } else { Duration { seconds, nanos } }
}

/// Milliseconds of a span at `path` that may be negative.
pub(super) fn signed_span_ms(path: &str, span: Duration) -> Result<i64, Fault> {
    let is_negative = span.seconds < 0 || span.nanos < 0;
    let absolute = if is_negative {
        // What cannot be turned round is not valid, and is refused as it is.
        let turned = span.seconds.checked_neg().zip(span.nanos.checked_neg());
        turned.map_or(span, |(seconds, nanos)| Duration { seconds, nanos })
    } else {
        span
    };
    let ms = i64::try_from(span_ms(path, absolute)?).expect("10,000 years of milliseconds fit i64");
    Ok(if is_negative { -ms } else { ms })
}

fn split(ms: u64) -> (i64, i32) {
    let seconds = i64::try_from(ms / 1_000).expect("a thousandth of u64 fits i64");
    let nanos = i32::try_from(ms % 1_000 * NANOS_PER_MS).expect("less than a second of nanoseconds fits i32");
    (seconds, nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_round_up_and_malformed_or_negative_ones_are_refused() {
        let cases: [(i64, i32, Option<u64>); 11] = [
            (0, 0, Some(0)),
            (0, 1, Some(1)),
            (0, 999_999, Some(1)),
            (0, 1_000_001, Some(2)),
            (3, 999_000_001, Some(4_000)),
            (315_576_000_000, 0, Some(315_576_000_000_000)),
            (0, -1, None),
            (-1, 0, None),
            (1, -1, None),
            (0, 1_000_000_000, None),
            (i64::MIN, i32::MIN, None),
        ];
        for (seconds, nanos, want) in cases {
            let got = span_ms("delay", Duration { seconds, nanos }).ok();
            assert_eq!(got, want, "{seconds} s {nanos} ns");
        }
    }

    #[test]
    fn instants_before_1970_are_the_past_and_malformed_ones_are_refused() {
        let cases: [(i64, i32, Option<u64>); 7] = [
            (0, 0, Some(0)),
            (1, 1, Some(1_001)),
            (-1, 999_999_999, Some(0)),
            (253_402_300_799, 0, Some(253_402_300_799_000)),
            (253_402_300_800, 0, None),
            (0, -1, None),
            (i64::MAX, 0, None),
        ];
        for (seconds, nanos, want) in cases {
            let got = instant("due_at", WireTimestamp { seconds, nanos }).ok();
            assert_eq!(got, want.map(Timestamp::from_millis), "{seconds} s {nanos} ns");
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        let at = Timestamp::from_millis(1_790_000_000_123);
        assert_eq!(instant("due_at", to_wire(at)).ok(), Some(at));
        assert_eq!(signed_span_to_wire(-1_500), Duration { seconds: -1, nanos: -500_000_000 });
        for ms in [0, 1, -1, 1_500, -1_500, 315_576_000_000_000, -315_576_000_000_000] {
            assert_eq!(signed_span_ms("offset", signed_span_to_wire(ms)).ok(), Some(ms));
        }
        for (seconds, nanos) in [(1, -1), (-1, 1), (i64::MIN, 0), (0, i32::MIN), (-315_576_000_001, 0)] {
            assert!(signed_span_ms("offset", Duration { seconds, nanos }).is_err(), "{seconds} s {nanos} ns");
        }
    }
}
