//! Instants of the broker's clock, in whole milliseconds.

use std::fmt;

/// An instant of the broker's clock: milliseconds since 1970-01-01T00:00:00Z.
///
/// The queue never reads a clock; callers pass the instant in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The earliest instant.
    pub const ZERO: Self = Self(0);
    /// Later than every instant that the broker accepts.
    pub const MAX: Self = Self(u64::MAX);

    /// The instant that lies `ms` milliseconds after the epoch.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms)
    }

    /// Milliseconds since the epoch.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The instant `ms` milliseconds later; saturates at [`Timestamp::MAX`].
    #[must_use]
    pub const fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// The instant `ms` milliseconds earlier; saturates at [`Timestamp::ZERO`].
    #[must_use]
    pub const fn minus(self, ms: u64) -> Self {
        Self(self.0.saturating_sub(ms))
    }

    /// The instant as people read it: RFC 3339 in UTC, always with milliseconds.
    #[must_use]
    pub fn to_rfc3339(self) -> String {
        let instant = i64::try_from(self.0).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        instant.map_or_else(|| format!("{self} ms after 1970"), |instant| format!("{instant:.3}"))
    }

    /// Milliseconds from `earlier` to this instant; 0 if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_written_with_three_digits_of_milliseconds_whatever_they_are() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (1_800_000_000_120, "2027-01-15T08:00:00.120Z"),
            (1_800_000_000_007, "2027-01-15T08:00:00.007Z"),
            (u64::MAX, "18446744073709551615 ms after 1970"),
        ] {
            assert_eq!(Timestamp::from_millis(ms).to_rfc3339(), text);
        }
    }
}
