//! Values as people write them: spans, schedules, rates, instants, sizes, headers. One parser each.

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;

use clap::Command;
use clap::builder::RangedI64ValueParser;

use crate::queue::schedule::{RetrySchedule, parse_duration};
use crate::queue::settings::RateCap;
use crate::queue::time::Timestamp;

/// What stands in the help for values that may be written with a minus by mistake.
const NUMBERS: [&str; 9] = ["SPAN", "INSTANT", "DELAYS", "RATE", "N", "S", "PERCENT", "BYTES", "PID"];

/// Lets a value such as `-5s` reach the parser of its option, which says what is wrong with it, instead of being taken
/// for an option that does not exist.
pub(super) fn with_negative_values(command: Command) -> Command {
    let names_number = |arg: &clap::Arg| {
        let names = arg.get_value_names().unwrap_or_default();
        names.iter().any(|name| NUMBERS.contains(&name.as_str())) && !arg.is_require_equals_set()
    };
    command
        .mut_args(|arg| if names_number(&arg) { arg.allow_hyphen_values(true) } else { arg })
        .mut_subcommands(with_negative_values)
}

/// The option without the default that its help tells: where what is not given stays as it is, there is none.
pub(super) fn without_default(arg: clap::Arg) -> clap::Arg {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    match help.split_once(" [default: ") {
        Some((help, _)) => arg.help(help.to_owned()),
        None => arg,
    }
}

/// The value of an environment variable, or else `default`. As a default of an option it does not make the option look
/// required where the usage is shown, as a variable that clap reads does.
pub(super) fn variable_or(variable: &str, default: &str) -> OsString {
    std::env::var_os(variable).unwrap_or_else(|| default.into())
}

/// The directory of the store, for commands that work on it without a broker.
pub(super) fn default_data_dir() -> OsString {
    variable_or("DUEWHEEL_DATA_DIR", "duewheel-data")
}

/// A number from 0 to `max`.
pub(super) fn number_to(max: u32) -> RangedI64ValueParser<u32> {
    RangedI64ValueParser::new().range(0..=i64::from(max))
}

/// A number of at least 1.
pub(super) fn at_least_one<N: FromStr + PartialOrd + From<u8>>(text: &str) -> Result<N, String> {
    let problem = || format!("'{text}' is not a number of at least 1");
    text.parse().ok().filter(|n| *n >= N::from(1)).ok_or_else(problem)
}

/// Milliseconds of a span such as `30s` or `1h30m`.
pub(super) fn duration_ms(text: &str) -> Result<u64, String> {
    parse_duration(text)
}

/// A retry schedule such as `1s,2s,5x10s`.
pub(super) fn schedule(text: &str) -> Result<RetrySchedule, String> {
    RetrySchedule::parse("schedule", text).map_err(|invalid| invalid.problem)
}

/// A cap that can be lifted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cap<T> {
    /// No cap.
    None,
    /// At most this.
    At(T),
}

impl<T> Cap<T> {
    /// The cap, if there is one.
    pub(super) fn value(self) -> Option<T> {
        match self {
            Self::None => None,
            Self::At(cap) => Some(cap),
        }
    }
}

/// So many in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    /// How many in a period.
    pub(super) count: u32,
    /// The period, milliseconds.
    pub(super) period_ms: u64,
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        RateCap { deliveries: self.count, period_ms: self.period_ms }.fmt(f)
    }
}

/// A rate such as `20/s` or `1/3s`.
pub(super) fn rate(text: &str) -> Result<Rate, String> {
    RateCap::parse(text).map(|cap| Rate { count: cap.deliveries, period_ms: cap.period_ms })
}

/// A rate, or `none`.
pub(super) fn rate_or_none(text: &str) -> Result<Cap<Rate>, String> {
    if text == "none" { Ok(Cap::None) } else { rate(text).map(Cap::At) }
}

/// A number of at least 1, or `none`.
pub(super) fn number_or_none(text: &str) -> Result<Cap<u32>, String> {
    if text == "none" {
        return Ok(Cap::None);
    }
    at_least_one(text).map(Cap::At).map_err(|problem| format!("{problem}, nor 'none'"))
}

/// An instant in RFC 3339, such as `2026-12-01T09:30:00+01:00`.
pub(super) fn instant(text: &str) -> Result<Timestamp, String> {
    let problem = || format!("'{text}' is not an instant; write it as 2026-12-01T09:30:00Z or with an offset");
    let instant: jiff::Timestamp = text.parse().map_err(|_| problem())?;
    u64::try_from(instant.as_millisecond()).map(Timestamp::from_millis).map_err(|_| problem())
}

/// Units of a size, the largest first.
pub(super) const SIZE_UNITS: [(&str, usize); 4] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// Bytes: a number, or one with a unit of [`SIZE_UNITS`].
pub(super) fn bytes(text: &str) -> Result<usize, String> {
    let problem = || {
        format!("'{text}' is not a size; write it in bytes or with KiB, MiB, GiB or TiB, such as 65536, 64KiB or 2GiB")
    };
    let unit = SIZE_UNITS.into_iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)));
    let (number, scale) = unit.unwrap_or((text, 1));
    number.trim().parse::<usize>().ok().and_then(|n| n.checked_mul(scale)).ok_or_else(problem)
}

/// A text that is not empty. An option with an empty text is most often a shell variable that was not set.
pub(super) fn not_empty(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("it is empty: was a variable not set? Leave the option out if it is not wanted".to_owned());
    }
    Ok(text.to_owned())
}

/// A header such as `trace=abc`.
pub(super) fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("'{text}' is not a header; write it as NAME=VALUE")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_written_as_people_do() {
        for (text, count, period_ms) in [("20/s", 20, 1_000), ("1/3s", 1, 3_000), ("600/m", 600, 60_000)] {
            let parsed = rate(text).expect(text);
            assert_eq!(parsed, Rate { count, period_ms });
            assert_eq!(parsed.to_string(), text);
        }
        for bad in ["", "20", "0/s", "/s", "20/", "20/0s", "-1/s", "1.5/s", "20/y"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
        assert_eq!(rate_or_none("none"), Ok(Cap::None));
        assert_eq!(number_or_none("none"), Ok(Cap::None));
        assert!(number_or_none("0").is_err());
    }

    #[test]
    fn instants_are_rfc_3339_with_any_offset() {
        let at = instant("2026-12-01T09:30:00+01:00").expect("with an offset");
        assert_eq!(at.to_rfc3339(), "2026-12-01T08:30:00.000Z");
        assert_eq!(instant(&at.to_rfc3339()), Ok(at));
        for bad in ["", "tomorrow", "2026-12-01", "2026-12-01T09:30:00", "1960-01-01T00:00:00Z"] {
            assert!(instant(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_and_headers_name_the_expected_form() {
        assert_eq!(bytes("64KiB"), Ok(65_536));
        assert_eq!(bytes("1MiB"), Ok(1_048_576));
        assert_eq!(bytes("17"), Ok(17));
        assert_eq!(bytes("10TiB"), Ok(10 << 40));
        for bad in ["1GB", "100K", "-1", "1.5MiB", "16777216TiB"] {
            assert!(bytes(bad).expect_err(bad).contains("KiB, MiB, GiB or TiB"), "{bad}");
        }
        assert_eq!(header("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(header("=b").is_err());
        assert!(header("a").is_err());
    }
}
