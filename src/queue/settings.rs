//! Settings of a topic, their ranges and defaults.

use std::fmt;

use super::limits::{
    Limits, MAX_ATTEMPTS, MAX_CONCURRENCY, MAX_DEDUP_CAPACITY, MAX_DEDUP_WINDOW_MS, MAX_DELIVERIES, MAX_HISTORY_AGE_MS,
    MAX_HISTORY_COUNT, MAX_LEASE_MS, MAX_RATE_DELIVERIES, MAX_RATE_PERIOD_MS, MAX_REDELIVERY_GAP_MS, MAX_RETURNS,
    MIN_DEDUP_WINDOW_MS, MIN_LEASE_MS,
};
use super::schedule::{RetrySchedule, format_duration, parse_duration};
use super::values::Invalid;

/// At most `deliveries` in any window of `period_ms`, evenly paced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateCap {
    /// Deliveries in a period, 1 to 1,000,000.
    pub deliveries: u32,
    /// The period, 1 ms to 1 day.
    pub period_ms: u64,
}

impl RateCap {
    /// Parses a cap as people write it: `20/s`, `600/m` or `1/3s`.
    ///
    /// # Errors
    /// A sentence that quotes the text and says what is expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let problem = || format!("'{text}' is not a rate; write it as 20/s, 600/m or 1/3s");
        let (count, period) = text.split_once('/').ok_or_else(problem)?;
        let in_range = |deliveries: &u32| (1..=MAX_RATE_DELIVERIES).contains(deliveries);
        let deliveries = count.trim().parse().ok().filter(in_range).ok_or_else(problem)?;
        let period = period.trim();
        let has_number = period.starts_with(|c: char| c.is_ascii_digit());
        let named = if has_number { period.to_owned() } else { format!("1{period}") };
        let period_ms = parse_duration(&named).ok().filter(|&ms| ms > 0).ok_or_else(problem)?;
        Ok(Self { deliveries, period_ms })
    }
}

impl fmt::Display for RateCap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let period = format_duration(self.period_ms);
        let unit = period.strip_prefix('1').filter(|unit| unit.chars().all(char::is_alphabetic));
        write!(f, "{}/{}", self.deliveries, unit.unwrap_or(&period))
    }
}

/// Settings of a topic; a change applies from each message's next transition on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicSettings {
    /// Delay tiers between attempts; never empty.
    pub schedule: RetrySchedule,
    /// The retry cap; `None`: as many attempts as the schedule describes waits.
    pub max_attempts: Option<u32>,
    /// Delays of failed deliveries within one attempt; may be empty.
    pub error_schedule: RetrySchedule,
    /// The cap on all leases of a message.
    pub max_deliveries: u32,
    /// Lease time, milliseconds.
    pub lease_ms: u64,
    /// Shortest time before a returned lease's message is delivered again, milliseconds.
    pub min_redelivery_gap_ms: u64,
    /// Consecutive returned leases that spend the attempt.
    pub max_returns: u32,
    /// Cap on deliveries over time.
    pub rate: Option<RateCap>,
    /// Messages leased at once over all consumers.
    pub concurrency: Option<u32>,
    /// Percent of a delay tier that may be added, deterministically.
    pub jitter_percent: u32,
    /// How long a dedup id is remembered, milliseconds.
    pub dedup_window_ms: u64,
    /// How many dedup ids are remembered at once.
    pub dedup_capacity: u32,
    /// A dead letter gives its key free.
    pub dead_releases_key: bool,
    /// How many ended messages the history remembers.
    pub history_count: u32,
    /// How long the history remembers an ended message, milliseconds.
    pub history_age_ms: u64,
}

impl Default for TopicSettings {
    fn default() -> Self {
        let schedule = |field, tiers: &[u64]| RetrySchedule::new(field, tiers).expect("the defaults are in range");
        Self {
            schedule: schedule("schedule", &[1_000, 2_000, 5_000, 10_000, 20_000, 40_000, 100_000]),
            max_attempts: None,
            error_schedule: schedule("error_schedule", &[1_000, 1_000, 1_000]),
            max_deliveries: 1_000,
            lease_ms: 30_000,
            min_redelivery_gap_ms: 1_000,
            max_returns: 5,
            rate: None,
            concurrency: None,
            jitter_percent: 0,
            dedup_window_ms: 3_600_000,
            dedup_capacity: 1_000_000,
            dead_releases_key: false,
            history_count: 100_000,
            history_age_ms: 24 * 3_600_000,
        }
    }
}

impl TopicSettings {
    /// Checks every field against its range.
    ///
    /// # Errors
    /// [`Invalid`] naming the first field that is out of range, and the range.
    pub fn check(&self, limits: &Limits) -> Result<(), Invalid> {
        if self.schedule.tiers().is_empty() {
            return Err(Invalid::new("schedule", "must have at least one tier"));
        }
        for (field, schedule) in [("schedule", &self.schedule), ("error_schedule", &self.error_schedule)] {
            check_tiers(field, schedule, limits)?;
        }
        if let Some(max_attempts) = self.max_attempts {
            within("max_attempts", max_attempts.into(), 1, MAX_ATTEMPTS.into())?;
        }
        within("max_deliveries", self.max_deliveries.into(), 1, MAX_DELIVERIES.into())?;
        within_ms("lease", self.lease_ms, MIN_LEASE_MS, MAX_LEASE_MS)?;
        within_ms("min_redelivery_gap", self.min_redelivery_gap_ms, 0, MAX_REDELIVERY_GAP_MS)?;
        within("max_returns", self.max_returns.into(), 1, MAX_RETURNS.into())?;
        if let Some(rate) = self.rate {
            within("rate.deliveries", rate.deliveries.into(), 1, MAX_RATE_DELIVERIES.into())?;
            within_ms("rate.period", rate.period_ms, 1, MAX_RATE_PERIOD_MS)?;
            if u64::from(rate.deliveries) > rate.period_ms * 1_000 {
                return Err(Invalid::new("rate", "more than one delivery per microsecond"));
            }
        }
        if let Some(concurrency) = self.concurrency {
            within("concurrency", concurrency.into(), 1, MAX_CONCURRENCY.into())?;
        }
        within("jitter_percent", self.jitter_percent.into(), 0, 100)?;
        within_ms("dedup_window", self.dedup_window_ms, MIN_DEDUP_WINDOW_MS, MAX_DEDUP_WINDOW_MS)?;
        within("dedup_capacity", self.dedup_capacity.into(), 1, MAX_DEDUP_CAPACITY.into())?;
        within("history_count", self.history_count.into(), 0, MAX_HISTORY_COUNT.into())?;
        within_ms("history_age", self.history_age_ms, 0, MAX_HISTORY_AGE_MS)
    }
}

/// Checks that no tier is longer than the longest delay.
pub(super) fn check_tiers(field: &'static str, schedule: &RetrySchedule, limits: &Limits) -> Result<(), Invalid> {
    match schedule.tiers().iter().find(|&&tier| tier > limits.max_delay_ms) {
        Some(&tier) => Err(too_long(field, tier, limits)),
        None => Ok(()),
    }
}

/// The complaint about a span over the longest delay.
pub(super) fn too_long(field: &'static str, ms: u64, limits: &Limits) -> Invalid {
    let max = format_duration(limits.max_delay_ms);
    Invalid::new(field, format!("{}; at most {max}", format_duration(ms)))
}

fn within(field: &'static str, value: u64, min: u64, max: u64) -> Result<(), Invalid> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Invalid::new(field, format!("{value}; must be {min} to {max}")))
}

fn within_ms(field: &'static str, value: u64, min: u64, max: u64) -> Result<(), Invalid> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    let text = format!("{}; must be {} to {}", format_duration(value), format_duration(min), format_duration(max));
    Err(Invalid::new(field, text))
}
