//! Values of settings: one parser each, whose complaint quotes the text and names the range or the form.

use std::net::SocketAddr;
use std::time::Duration;

use tracing_subscriber::filter::EnvFilter;

use super::LogFormat;
use crate::cli::args::{SIZE_UNITS, bytes, duration_ms};
use crate::cli::nearest::nearest;
use crate::queue::schedule::format_duration;
use crate::server::StepPolicy;

/// Longest time that a shutdown may take, milliseconds: one day.
const MAX_DRAIN_MS: u64 = 24 * 60 * 60 * 1000;

/// An address with a port.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("'{text}' is not an address; write it as 127.0.0.1:7383 or [::1]:7383"))
}

/// True or false.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "true" | "1" | "yes" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        _ => Err(format!("'{text}' is neither true nor false")),
    }
}

/// A count from `min` to `max`.
pub(super) fn number_within(text: &str, min: usize, max: usize) -> Result<usize, String> {
    let number = text.parse().map_err(|_| format!("'{text}' is not a whole number from {min} to {max}"))?;
    if (min..=max).contains(&number) { Ok(number) } else { Err(format!("'{text}' is out of range; {min} to {max}")) }
}

/// Bytes from `min` to `max`.
pub(super) fn size_within(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let size = bytes(text)? as u64;
    if (min..=max).contains(&size) {
        return Ok(size);
    }
    Err(format!("'{text}' is out of range; {} to {}", bytes_text(min), bytes_text(max)))
}

/// Bytes as people write them, in the largest unit that leaves no rest.
pub(super) fn bytes_text(bytes: u64) -> String {
    let mut units = SIZE_UNITS.into_iter().map(|(unit, scale)| (unit, scale as u64));
    let whole = units.find(|&(_, scale)| bytes > 0 && bytes.is_multiple_of(scale));
    whole.map_or_else(|| bytes.to_string(), |(unit, scale)| format!("{}{unit}", bytes / scale))
}

/// A span from `min_ms` to `max_ms`, milliseconds.
pub(super) fn span_within(text: &str, min_ms: u64, max_ms: u64) -> Result<u64, String> {
    let ms = duration_ms(text)?;
    if (min_ms..=max_ms).contains(&ms) {
        return Ok(ms);
    }
    Err(format!("'{text}' is out of range; {} to {}", format_duration(min_ms), format_duration(max_ms)))
}

/// How long a shutdown may take.
pub(super) fn drain_timeout(text: &str) -> Result<Duration, String> {
    span_within(text, 0, MAX_DRAIN_MS).map(Duration::from_millis)
}

/// Whole milliseconds of a span that was read by [`span_within`].
pub(super) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// What to do when the wall clock is set.
pub(super) fn step_policy(text: &str) -> Result<StepPolicy, String> {
    match text {
        "report" => Ok(StepPolicy::Report),
        "adopt" => Ok(StepPolicy::Adopt),
        _ => Err(format!("'{text}' is neither report nor adopt")),
    }
}

/// The text that [`step_policy`] reads.
pub(super) fn step_policy_text(policy: StepPolicy) -> &'static str {
    match policy {
        StepPolicy::Report => "report",
        StepPolicy::Adopt => "adopt",
    }
}

/// Levels of the log.
const LOG_LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// A filter of the log. A word alone is a level, or a part of this program: the library takes any other for the name of
/// a module, and nothing would be logged.
pub(super) fn log_filter(text: &str) -> Result<String, String> {
    let parsed = text.parse::<EnvFilter>();
    let is_known = |word: &&str| {
        let is_module = word.split("::").next() == Some("duewheel") || word.contains(['=', '[', ']', '{', '}']);
        word.is_empty() || is_module || LOG_LEVELS.contains(&word.to_ascii_lowercase().as_str())
    };
    if let Some(unknown) = text.split(',').map(str::trim).find(|word| !is_known(word)) {
        let meant = nearest(&unknown.to_ascii_lowercase(), LOG_LEVELS);
        let meant = meant.map_or_else(String::new, |level| format!("; did you mean '{level}'?"));
        return Err(format!("'{unknown}' is not a level of the log ({}){meant}", LOG_LEVELS.join(", ")));
    }
    match parsed {
        Ok(_) if !text.trim_matches([',', ' ']).is_empty() => Ok(text.to_owned()),
        _ => Err(format!("'{text}' is not a log filter; write it as info or info,duewheel=debug")),
    }
}

/// The form of the log.
pub(super) fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "auto" => Ok(LogFormat::Auto),
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err(format!("'{text}' is not a log format; auto, text or json")),
    }
}

/// The text that [`log_format`] reads.
pub(super) fn log_format_text(format: LogFormat) -> &'static str {
    match format {
        LogFormat::Auto => "auto",
        LogFormat::Text => "text",
        LogFormat::Json => "json",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_of_the_log_is_refused_with_the_one_that_was_meant() {
        for good in ["info", "WARN", "off", "info,duewheel=debug", "duewheel", "warn,duewheel::audit=info", "h2=error"]
        {
            assert_eq!(log_filter(good).as_deref(), Ok(good));
        }
        let meant =
            [("inof", "info"), ("warning", "warn"), ("debgu", "debug"), ("info,tarce", "trace"), ("ERR0R", "error")];
        for (bad, meant) in meant {
            let problem = log_filter(bad).expect_err(bad);
            assert!(problem.ends_with(&format!("did you mean '{meant}'?")), "{problem}");
        }
        for bad in ["", ",", "loudly", "duewheel=inof", "info,h2"] {
            assert!(log_filter(bad).is_err(), "{bad}");
        }
    }
}
