//! Settings of a topic, to and from the wire, and the field mask of an update.

use super::errors::Fault;
use super::from_wire::schedule;
use super::time::{span_ms, span_to_wire};
use super::to_wire::schedule_to_wire;
use crate::pb;
use crate::queue::schedule::RetrySchedule;
use crate::queue::settings::{RateCap, TopicSettings};

/// A rate cap without a period counts per second.
const DEFAULT_RATE_PERIOD_MS: u64 = 1_000;

/// The settings of a new topic: unset fields take their defaults.
pub(super) fn created(wire: Option<&pb::TopicSettings>) -> Result<TopicSettings, Fault> {
    let mut settings = TopicSettings::default();
    let Some(wire) = wire else { return Ok(settings) };
    for path in PATHS {
        assert!(set(&mut settings, wire, path)?, "every path of PATHS is known");
    }
    Ok(settings)
}

/// The settings after an update of the fields named in `mask`; named and unset means the default.
pub(super) fn updated(
    mut settings: TopicSettings,
    wire: Option<&pb::TopicSettings>,
    mask: &prost_types::FieldMask,
) -> Result<TopicSettings, Fault> {
    let unset = pb::TopicSettings::default();
    let wire = wire.unwrap_or(&unset);
    let paths = &mask.paths;
    if paths.is_empty() {
        return Err(Fault::invalid("update_mask", "must name at least one field of TopicSettings"));
    }
    for path in paths {
        if !set(&mut settings, wire, path)? {
            let problem = format!("'{path}' is not a field of TopicSettings; fields are {}", PATHS.join(", "));
            return Err(Fault::invalid("update_mask", problem));
        }
    }
    Ok(settings)
}

/// The fields of `TopicSettings`, as a mask names them.
const PATHS: [&str; 15] = [
    "schedule",
    "max_attempts",
    "error_schedule",
    "max_deliveries",
    "lease",
    "min_redelivery_gap",
    "max_returns",
    "rate",
    "concurrency",
    "jitter_percent",
    "dedup_window",
    "dedup_capacity",
    "dead_releases_key",
    "history_count",
    "history_age",
];

/// Sets the field at `path` from the wire, or to its default if it is unset there; false if there is no
/// such field. Ranges are checked by the queue.
fn set(settings: &mut TopicSettings, wire: &pb::TopicSettings, path: &str) -> Result<bool, Fault> {
    let default = TopicSettings::default();
    let span = |path, span: Option<prost_types::Duration>, default| match span {
        Some(span) => span_ms(path, span).map_err(under_settings),
        None => Ok(default),
    };
    match path {
        "schedule" => settings.schedule = schedule_or("schedule", wire.schedule.as_ref(), default.schedule)?,
        "max_attempts" => settings.max_attempts = positive(wire.max_attempts),
        "error_schedule" => {
            settings.error_schedule =
                schedule_or("error_schedule", wire.error_schedule.as_ref(), default.error_schedule)?;
        }
        "max_deliveries" => settings.max_deliveries = positive(wire.max_deliveries).unwrap_or(default.max_deliveries),
        "lease" => settings.lease_ms = span("lease", wire.lease, default.lease_ms)?,
        "min_redelivery_gap" => {
            settings.min_redelivery_gap_ms =
                span("min_redelivery_gap", wire.min_redelivery_gap, default.min_redelivery_gap_ms)?;
        }
        "max_returns" => settings.max_returns = positive(wire.max_returns).unwrap_or(default.max_returns),
        "rate" => settings.rate = wire.rate.as_ref().map(rate).transpose()?,
        "concurrency" => settings.concurrency = positive(wire.concurrency),
        "jitter_percent" => settings.jitter_percent = wire.jitter_percent,
        "dedup_window" => {
            settings.dedup_window_ms = span("dedup_window", wire.dedup_window, default.dedup_window_ms)?;
        }
        "dedup_capacity" => settings.dedup_capacity = positive(wire.dedup_capacity).unwrap_or(default.dedup_capacity),
        "dead_releases_key" => settings.dead_releases_key = wire.dead_releases_key,
        "history_count" => settings.history_count = wire.history_count.unwrap_or(default.history_count),
        "history_age" => settings.history_age_ms = span("history_age", wire.history_age, default.history_age_ms)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn positive(number: u32) -> Option<u32> {
    Some(number).filter(|&number| number > 0)
}

fn under_settings(fault: Fault) -> Fault {
    fault.under("settings")
}

fn schedule_or(
    field: &'static str,
    wire: Option<&pb::RetrySchedule>,
    default: RetrySchedule,
) -> Result<RetrySchedule, Fault> {
    wire.map_or(Ok(default), |wire| schedule(field, wire).map_err(under_settings))
}

fn rate(wire: &pb::RateCap) -> Result<RateCap, Fault> {
    let period = wire.period.map(|period| span_ms("rate.period", period).map_err(under_settings)).transpose()?;
    Ok(RateCap { deliveries: wire.deliveries, period_ms: period.unwrap_or(DEFAULT_RATE_PERIOD_MS) })
}

/// The wire form of settings: every field is set.
pub(super) fn to_wire(settings: &TopicSettings) -> pb::TopicSettings {
    pb::TopicSettings {
        schedule: Some(schedule_to_wire(&settings.schedule)),
        max_attempts: settings.max_attempts.unwrap_or(0),
        error_schedule: Some(schedule_to_wire(&settings.error_schedule)),
        max_deliveries: settings.max_deliveries,
        lease: Some(span_to_wire(settings.lease_ms)),
        min_redelivery_gap: Some(span_to_wire(settings.min_redelivery_gap_ms)),
        max_returns: settings.max_returns,
        rate: settings
            .rate
            .map(|rate| pb::RateCap { deliveries: rate.deliveries, period: Some(span_to_wire(rate.period_ms)) }),
        concurrency: settings.concurrency.unwrap_or(0),
        jitter_percent: settings.jitter_percent,
        dedup_window: Some(span_to_wire(settings.dedup_window_ms)),
        dedup_capacity: settings.dedup_capacity,
        dead_releases_key: settings.dead_releases_key,
        history_count: Some(settings.history_count),
        history_age: Some(span_to_wire(settings.history_age_ms)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(paths: &[&str]) -> prost_types::FieldMask {
        prost_types::FieldMask { paths: paths.iter().map(|&path| path.to_owned()).collect() }
    }

    #[test]
    fn settings_survive_the_wire_and_unset_fields_take_their_defaults() {
        assert_eq!(created(None).expect("defaults"), TopicSettings::default());
        let settings = TopicSettings {
            schedule: RetrySchedule::new("schedule", &[5]).expect("a schedule"),
            max_attempts: Some(3),
            error_schedule: RetrySchedule::new("error_schedule", &[]).expect("empty"),
            max_deliveries: 7,
            lease_ms: 1_001,
            min_redelivery_gap_ms: 0,
            max_returns: 2,
            rate: Some(RateCap { deliveries: 9, period_ms: 60_000 }),
            concurrency: Some(4),
            jitter_percent: 10,
            dedup_window_ms: 1_000,
            dedup_capacity: 8,
            dead_releases_key: true,
            history_count: 0,
            history_age_ms: 0,
        };
        assert_eq!(created(Some(&to_wire(&settings))).expect("in range"), settings);
        let every_field = updated(TopicSettings::default(), Some(&to_wire(&settings)), &mask(&PATHS));
        assert_eq!(every_field.expect("in range"), settings);
        assert_eq!(updated(settings, None, &mask(&PATHS)).expect("defaults"), TopicSettings::default());
    }

    #[test]
    fn an_update_touches_only_the_fields_of_its_mask_and_refuses_unknown_ones() {
        let wire = pb::TopicSettings { max_attempts: 5, max_returns: 9, ..Default::default() };
        let settings = updated(TopicSettings::default(), Some(&wire), &mask(&["max_attempts"]));
        let want = TopicSettings { max_attempts: Some(5), ..TopicSettings::default() };
        assert_eq!(settings.expect("one field"), want);
        for bad in [mask(&["max_attempts", "tiers"]), mask(&[])] {
            let fault = updated(TopicSettings::default(), Some(&wire), &bad).expect_err("a bad mask");
            assert!(fault.into_item().message.starts_with("update_mask: "));
        }
    }
}
