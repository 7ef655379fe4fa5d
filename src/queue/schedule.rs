//! Retry schedules: ordered delay tiers, and the way people write delays.

use std::fmt;
use std::sync::Arc;

use super::limits::{Limits, MAX_TIERS, MIN_TIER_MS};
use super::values::Invalid;

/// Ordered delays between attempts, in milliseconds. May be empty only as an error schedule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RetrySchedule(Arc<[u64]>);

impl RetrySchedule {
    /// A schedule of `tiers`, milliseconds.
    ///
    /// # Errors
    /// [`Invalid`] naming `field` if there are too many tiers or one is out of range.
    pub fn new(field: &'static str, tiers: &[u64]) -> Result<Self, Invalid> {
        if tiers.len() > MAX_TIERS {
            return Err(Invalid::new(field, format!("{} tiers; at most {MAX_TIERS}", tiers.len())));
        }
        for &tier in tiers {
            let limit = if tier < MIN_TIER_MS {
                format!("at least {}", format_duration(MIN_TIER_MS))
            } else if tier > Limits::LARGEST_MAX_DELAY_MS {
                format!("at most {}", format_duration(Limits::LARGEST_MAX_DELAY_MS))
            } else {
                continue;
            };
            return Err(Invalid::new(field, format!("a tier of {}; {limit}", format_duration(tier))));
        }
        Ok(Self(tiers.into()))
    }

    /// Parses the text form: durations separated by commas, each optionally repeated, as in
    /// `1s,2s,5x3s`. The empty text is the empty schedule.
    ///
    /// # Errors
    /// [`Invalid`] naming `field` and the part that is wrong.
    pub fn parse(field: &'static str, text: &str) -> Result<Self, Invalid> {
        let mut tiers = Vec::new();
        for part in text.split(',').map(str::trim).filter(|_| !text.trim().is_empty()) {
            let (count, delay) = match part.split_once('x') {
                Some((count, delay)) => {
                    let count = count.trim().parse().ok().filter(|&n| (1..=MAX_TIERS).contains(&n));
                    let problem =
                        || Invalid::new(field, format!("'{part}': repeat 1 to {MAX_TIERS} times, as in 5x3s"));
                    (count.ok_or_else(problem)?, delay.trim())
                }
                None => (1, part),
            };
            let ms = parse_duration(delay).map_err(|problem| Invalid::new(field, problem))?;
            tiers.extend(std::iter::repeat_n(ms, count));
        }
        Self::new(field, &tiers)
    }

    /// The tiers, milliseconds.
    #[must_use]
    pub fn tiers(&self) -> &[u64] {
        &self.0
    }

    /// The wait of tier `number`, 1-based; the last tier repeats. `None` if the schedule is empty.
    #[must_use]
    pub fn wait(&self, number: u32) -> Option<u64> {
        let index = (number.max(1) - 1) as usize;
        self.0.get(index).or_else(|| self.0.last()).copied()
    }
}

impl fmt::Display for RetrySchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for run in self.0.chunk_by(|a, b| a == b) {
            let comma = if first { "" } else { "," };
            first = false;
            let delay = format_duration(run[0]);
            match run.len() {
                1 => write!(f, "{comma}{delay}")?,
                n => write!(f, "{comma}{n}x{delay}")?,
            }
        }
        Ok(())
    }
}

const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// What is wrong with `5s5s`, in which probably a comma was forgotten, and with `5s1m`.
const ORDER: &str = "each unit comes once, the largest first, and a comma stands between two delays of a schedule";

/// Parses a span as people write it: `30m`, `1h30m`, `1.5s`, `250ms`, `2d`. Units are d, h, m, s and ms;
/// the result is in milliseconds.
///
/// # Errors
/// A sentence that quotes the text and says what is expected.
pub fn parse_duration(text: &str) -> Result<u64, String> {
    let problem = || format!("'{text}' is not a duration; write it as 250ms, 30s, 5m, 1h30m or 2d");
    if text == "0" {
        return Ok(0);
    }
    if text.starts_with('-') {
        return Err(format!("'{text}' is negative; a duration is 0 or longer"));
    }
    let mut rest = text;
    let mut total: u64 = 0;
    // Units smaller than the last one; each comes once, the largest first.
    let mut units = &UNITS[..];
    if rest.is_empty() {
        return Err(problem());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(problem)?;
        let (number, after) = rest.split_at(digits);
        let unit_end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        let place = |units: &[(&str, u64)]| units.iter().position(|(name, _)| *name == unit);
        let Some(at) = place(units) else {
            return Err(if place(&UNITS).is_some() { format!("{}; {ORDER}", problem()) } else { problem() });
        };
        let scale = units[at].1;
        units = &units[at + 1..];
        total = scaled(number, scale).and_then(|ms| total.checked_add(ms)).ok_or_else(problem)?;
        rest = next;
    }
    Ok(total)
}

/// `number`, which may have decimals, times `scale`; `None` if it is malformed, not whole or too large.
fn scaled(number: &str, scale: u64) -> Option<u64> {
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || (number.contains('.') && decimals.is_empty()) || decimals.len() > 9 {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(scale)?;
    if decimals.is_empty() {
        return Some(whole);
    }
    let divisor = 10_u64.pow(u32::try_from(decimals.len()).ok()?);
    let part = decimals.parse::<u64>().ok()?.checked_mul(scale)?;
    part.is_multiple_of(divisor).then(|| whole.checked_add(part / divisor))?
}

/// Writes a span of milliseconds as people do: `1h30m`, `2.5s` never, `2s500ms` instead.
#[must_use]
pub fn format_duration(ms: u64) -> String {
    if ms == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    let mut rest = ms;
    for (unit, scale) in UNITS {
        if rest >= scale {
            text.push_str(&format!("{}{unit}", rest / scale));
            rest %= scale;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        let cases: [(&str, Option<u64>); 21] = [
            ("0", Some(0)),
            ("0s", Some(0)),
            ("250ms", Some(250)),
            ("30m", Some(1_800_000)),
            ("1h30m", Some(5_400_000)),
            ("1.5s", Some(1_500)),
            ("1d2h3m4s5ms", Some(93_784_005)),
            ("5s5s", None),
            ("30s1m", None),
            ("1m30s1m", None),
            ("5ms5s", None),
            ("2d", Some(172_800_000)),
            ("", None),
            ("5", None),
            ("-1s", None),
            ("1y", None),
            ("s", None),
            ("1.s", None),
            ("0.0001s", None),
            ("NaN", None),
            ("18446744073709551615d", None),
        ];
        for (text, want) in cases {
            assert_eq!(parse_duration(text).ok(), want, "{text:?}");
        }
    }

    #[test]
    fn a_schedule_reads_and_writes_repetitions() {
        let schedule = RetrySchedule::parse("schedule", "1s, 2s,5x3s,1h30m").expect("well formed");
        assert_eq!(schedule.tiers(), [1_000, 2_000, 3_000, 3_000, 3_000, 3_000, 3_000, 5_400_000]);
        assert_eq!(schedule.to_string(), "1s,2s,5x3s,1h30m");
        assert_eq!(schedule.wait(1), Some(1_000));
        assert_eq!(schedule.wait(99), Some(5_400_000));
    }

    #[test]
    fn a_malformed_schedule_names_the_field_and_the_part() {
        for bad in ["5s5s", "1s,2s5s", "1s,,2s", "x3s", "0x3s", "65x1s", "1s,0s", "3sx5", ","] {
            let error = RetrySchedule::parse("schedule", bad).expect_err(bad);
            assert_eq!(error.field, "schedule", "{bad}");
        }
        assert!(RetrySchedule::parse("error_schedule", "").expect("empty").tiers().is_empty());
    }
}
