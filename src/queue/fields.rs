//! The settings of a topic one by one: their names in the API, and how people write their values.
//!
//! A [`TopicPatch`] names some of them with new values and leaves the others as they are. It is applied inside the
//! queue, so that two changes of one topic at the same time never undo each other.

use super::schedule::{RetrySchedule, format_duration, parse_duration};
use super::settings::{RateCap, TopicSettings};

/// What stands for a cap that is not there.
const NONE: &str = "none";

/// A setting of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TopicField {
    /// Delay tiers between attempts.
    Schedule,
    /// The retry cap; 0: as many attempts as the schedule has waits.
    MaxAttempts,
    /// Delays of failed deliveries within one attempt.
    ErrorSchedule,
    /// The cap on all leases of a message.
    MaxDeliveries,
    /// Lease time.
    Lease,
    /// Shortest time before a returned lease's message is delivered again.
    MinRedeliveryGap,
    /// Consecutive returned leases that spend the attempt.
    MaxReturns,
    /// Cap on deliveries over time.
    Rate,
    /// Messages leased at once over all consumers.
    Concurrency,
    /// Percent of a delay tier that may be added.
    JitterPercent,
    /// How long a dedup id is remembered.
    DedupWindow,
    /// How many dedup ids are remembered at once.
    DedupCapacity,
    /// A dead letter gives its key free.
    DeadReleasesKey,
    /// How many ended messages the history remembers.
    HistoryCount,
    /// How long the history remembers an ended message.
    HistoryAge,
}

impl TopicField {
    /// Every field, in the order of [`TopicSettings`].
    pub const ALL: [Self; 15] = [
        Self::Schedule,
        Self::MaxAttempts,
        Self::ErrorSchedule,
        Self::MaxDeliveries,
        Self::Lease,
        Self::MinRedeliveryGap,
        Self::MaxReturns,
        Self::Rate,
        Self::Concurrency,
        Self::JitterPercent,
        Self::DedupWindow,
        Self::DedupCapacity,
        Self::DeadReleasesKey,
        Self::HistoryCount,
        Self::HistoryAge,
    ];

    /// The name in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::MaxAttempts => "max_attempts",
            Self::ErrorSchedule => "error_schedule",
            Self::MaxDeliveries => "max_deliveries",
            Self::Lease => "lease",
            Self::MinRedeliveryGap => "min_redelivery_gap",
            Self::MaxReturns => "max_returns",
            Self::Rate => "rate",
            Self::Concurrency => "concurrency",
            Self::JitterPercent => "jitter_percent",
            Self::DedupWindow => "dedup_window",
            Self::DedupCapacity => "dedup_capacity",
            Self::DeadReleasesKey => "dead_releases_key",
            Self::HistoryCount => "history_count",
            Self::HistoryAge => "history_age",
        }
    }

    /// The field of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.name() == name)
    }

    /// Its value in `settings` as people write it. Different values have different texts.
    #[must_use]
    pub fn text(self, settings: &TopicSettings) -> String {
        match self {
            Self::Schedule => settings.schedule.to_string(),
            Self::MaxAttempts => settings.max_attempts.unwrap_or(0).to_string(),
            Self::ErrorSchedule => settings.error_schedule.to_string(),
            Self::MaxDeliveries => settings.max_deliveries.to_string(),
            Self::Lease => format_duration(settings.lease_ms),
            Self::MinRedeliveryGap => format_duration(settings.min_redelivery_gap_ms),
            Self::MaxReturns => settings.max_returns.to_string(),
            Self::Rate => settings.rate.map_or_else(|| NONE.to_owned(), |rate| rate.to_string()),
            Self::Concurrency => settings.concurrency.map_or_else(|| NONE.to_owned(), |cap| cap.to_string()),
            Self::JitterPercent => settings.jitter_percent.to_string(),
            Self::DedupWindow => format_duration(settings.dedup_window_ms),
            Self::DedupCapacity => settings.dedup_capacity.to_string(),
            Self::DeadReleasesKey => settings.dead_releases_key.to_string(),
            Self::HistoryCount => settings.history_count.to_string(),
            Self::HistoryAge => format_duration(settings.history_age_ms),
        }
    }

    /// Sets it in `settings` from the form of [`TopicField::text`]. Ranges are those of [`TopicSettings::check`].
    ///
    /// # Errors
    /// A sentence that quotes the text and says what is expected; `settings` is as it was.
    pub fn parse(self, text: &str, settings: &mut TopicSettings) -> Result<(), String> {
        match self {
            Self::Schedule => settings.schedule = tiers("schedule", text)?,
            Self::MaxAttempts => settings.max_attempts = Some(number(text)?).filter(|&cap| cap > 0),
            Self::ErrorSchedule => settings.error_schedule = tiers("error_schedule", text)?,
            Self::MaxDeliveries => settings.max_deliveries = number(text)?,
            Self::Lease => settings.lease_ms = parse_duration(text)?,
            Self::MinRedeliveryGap => settings.min_redelivery_gap_ms = parse_duration(text)?,
            Self::MaxReturns => settings.max_returns = number(text)?,
            Self::Rate => settings.rate = (text != NONE).then(|| RateCap::parse(text)).transpose()?,
            Self::Concurrency => settings.concurrency = (text != NONE).then(|| number(text)).transpose()?,
            Self::JitterPercent => settings.jitter_percent = number(text)?,
            Self::DedupWindow => settings.dedup_window_ms = parse_duration(text)?,
            Self::DedupCapacity => settings.dedup_capacity = number(text)?,
            Self::DeadReleasesKey => {
                settings.dead_releases_key = text.parse().map_err(|_| format!("'{text}' is neither true nor false"))?;
            }
            Self::HistoryCount => settings.history_count = number(text)?,
            Self::HistoryAge => settings.history_age_ms = parse_duration(text)?,
        }
        Ok(())
    }

    fn copy(self, from: &TopicSettings, to: &mut TopicSettings) {
        match self {
            Self::Schedule => to.schedule = from.schedule.clone(),
            Self::MaxAttempts => to.max_attempts = from.max_attempts,
            Self::ErrorSchedule => to.error_schedule = from.error_schedule.clone(),
            Self::MaxDeliveries => to.max_deliveries = from.max_deliveries,
            Self::Lease => to.lease_ms = from.lease_ms,
            Self::MinRedeliveryGap => to.min_redelivery_gap_ms = from.min_redelivery_gap_ms,
            Self::MaxReturns => to.max_returns = from.max_returns,
            Self::Rate => to.rate = from.rate,
            Self::Concurrency => to.concurrency = from.concurrency,
            Self::JitterPercent => to.jitter_percent = from.jitter_percent,
            Self::DedupWindow => to.dedup_window_ms = from.dedup_window_ms,
            Self::DedupCapacity => to.dedup_capacity = from.dedup_capacity,
            Self::DeadReleasesKey => to.dead_releases_key = from.dead_releases_key,
            Self::HistoryCount => to.history_count = from.history_count,
            Self::HistoryAge => to.history_age_ms = from.history_age_ms,
        }
    }
}

/// New values for some settings of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicPatch {
    fields: Vec<TopicField>,
    /// The new values; a field that is not named has its default.
    values: TopicSettings,
}

impl TopicPatch {
    /// Names a field with its new value, in the form of [`TopicField::text`].
    ///
    /// # Errors
    /// As [`TopicField::parse`]; the patch is as it was.
    pub fn set(&mut self, field: TopicField, text: &str) -> Result<(), String> {
        field.parse(text, &mut self.values)?;
        if !self.fields.contains(&field) {
            self.fields.push(field);
        }
        Ok(())
    }

    /// The fields it names.
    #[must_use]
    pub fn fields(&self) -> &[TopicField] {
        &self.fields
    }

    /// The settings of a new topic: what is not named has its default.
    #[must_use]
    pub fn of_new(&self) -> &TopicSettings {
        &self.values
    }

    /// The settings of a topic that has `present`: what is not named stays.
    #[must_use]
    pub fn of_present(&self, present: &TopicSettings) -> TopicSettings {
        let mut settings = present.clone();
        for field in &self.fields {
            field.copy(&self.values, &mut settings);
        }
        settings
    }
}

fn tiers(field: &'static str, text: &str) -> Result<RetrySchedule, String> {
    RetrySchedule::parse(field, text).map_err(|invalid| invalid.problem)
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("'{text}' is not a whole number of at least 0 and at most {}", u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every field has another value than the default.
    const CHANGED: [&str; 15] =
        ["5ms,2x1h", "3", "", "7", "1s1ms", "0s", "2", "9/m", "4", "10", "2s", "8", "true", "0", "1d1h"];

    #[test]
    fn every_field_is_read_from_its_text_and_changes_nothing_else() {
        for (field, text) in TopicField::ALL.into_iter().zip(CHANGED) {
            assert_eq!(TopicField::named(field.name()), Some(field));
            let mut patch = TopicPatch::default();
            patch.set(field, text).expect("well formed");
            let settings = patch.of_present(&TopicSettings::default());
            assert_eq!(&settings, patch.of_new(), "a new topic has the defaults beside it");
            for other in TopicField::ALL {
                let default = other.text(&TopicSettings::default());
                assert_ne!(default, CHANGED[other as usize], "{}", other.name());
                assert_eq!(other.text(&settings), if other == field { text } else { &default });
            }
        }
    }

    #[test]
    fn what_a_patch_does_not_name_stays() {
        let mut present = TopicSettings::default();
        for (field, text) in TopicField::ALL.into_iter().zip(CHANGED) {
            field.parse(text, &mut present).expect("well formed");
        }
        assert_eq!(TopicPatch::default().of_present(&present), present);
        let mut patch = TopicPatch::default();
        patch.set(TopicField::Lease, "9s").expect("a span");
        patch.set(TopicField::Rate, "none").expect("no cap");
        let settings = patch.of_present(&present);
        assert_eq!(settings, TopicSettings { lease_ms: 9_000, rate: None, ..present });
    }

    #[test]
    fn a_value_of_the_wrong_form_is_quoted_and_changes_nothing() {
        let mut patch = TopicPatch::default();
        for (field, bad) in [
            (TopicField::Schedule, "soon"),
            (TopicField::MaxAttempts, "-1"),
            (TopicField::Lease, "30"),
            (TopicField::Rate, "fast"),
            (TopicField::Concurrency, "many"),
            (TopicField::DeadReleasesKey, "maybe"),
        ] {
            let problem = patch.set(field, bad).expect_err(bad);
            assert!(problem.contains(bad), "{problem}");
        }
        assert_eq!(patch, TopicPatch::default());
    }
}
