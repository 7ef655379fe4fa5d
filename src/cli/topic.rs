//! `duewheel topic`: create, list, show, update, pause, resume, delete.

use clap::{Args, Subcommand};
use serde::Serialize;

use super::args::{Cap, Rate, duration_ms, number_or_none, number_to, rate_or_none, schedule};
use super::exit::{Exit, Failure};
use super::output::{Row, Sheet, print_rows, print_sheet};
use super::session::Session;
use super::topic_delete::{self, DeleteArgs};
use crate::client::{span, span_ms, tiers, tiers_text, timestamp};
use crate::pb;
use crate::queue::limits::{MAX_ATTEMPTS, MAX_DEDUP_CAPACITY, MAX_DELIVERIES, MAX_HISTORY_COUNT, MAX_RETURNS};
use crate::queue::schedule::{RetrySchedule, format_duration};
use crate::queue::time::Timestamp;

/// The commands about topics.
#[derive(Debug, Subcommand)]
pub(super) enum TopicCommand {
    /// Create a topic; settings that are not given take their defaults
    #[command(after_long_help = "\
Examples:
  duewheel topic create dropped-orders
  duewheel topic create dropped-orders --schedule 1s,2s,5s,4x10s --rate 20/s
  duewheel topic create close-unpaid --schedule 30m --concurrency 50")]
    Create(Named),
    /// List all topics
    #[command(after_long_help = "Examples:\n  duewheel topic list\n  duewheel topic list -o jsonl")]
    List,
    /// Show a topic with all its settings
    #[command(after_long_help = "Examples:\n  duewheel topic show dropped-orders")]
    Show(Name),
    /// Change settings; they apply from each message's next transition on
    #[command(after_long_help = "\
What is not given stays as it is.

Examples:
  duewheel topic update dropped-orders --schedule 1s,5s,30s,5x2m
  duewheel topic update dropped-orders --rate none --concurrency 100")]
    Update(Named),
    /// Stop new leases; leased messages and producing go on
    #[command(after_long_help = "Examples:\n  duewheel topic pause dropped-orders")]
    Pause(Name),
    /// Allow leases again
    #[command(after_long_help = "Examples:\n  duewheel topic resume dropped-orders")]
    Resume(Name),
    /// Delete a topic, with --purge also one that has messages
    #[command(after_long_help = "\
Asks first, or takes --yes. A topic with messages is refused unless --purge is given; then all of them are deleted with it, \
for good. When the command says so, the topic is gone and one of the same name can be created. The broker then gives back \
the disk space, which may take a while: Ctrl-C, or ten seconds without progress, end the watching, not the work.

Examples:
  duewheel topic delete old-orders
  duewheel topic delete old-orders --purge
  duewheel topic delete old-orders --purge --yes")]
    Delete(DeleteArgs),
}

/// A topic by name.
#[derive(Debug, Args)]
pub(super) struct Name {
    /// Name of the topic
    name: String,
}

/// A topic by name, and settings.
#[derive(Debug, Args)]
pub(super) struct Named {
    /// Name of the topic: letters, digits, '.', '_' and '-'
    name: String,
    #[command(flatten)]
    settings: Settings,
}

/// Settings of a topic as flags.
#[derive(Debug, Default, Args)]
struct Settings {
    /// Delays between attempts, such as 1s,2s,5x10s [default: 1s,2s,5s,10s,20s,40s,100s]
    #[arg(long, value_name = "DELAYS", value_parser = schedule)]
    schedule: Option<RetrySchedule>,
    /// The retry cap; 0: as many attempts as the schedule has waits [default: 0]
    #[arg(long, value_name = "N", value_parser = number_to(MAX_ATTEMPTS))]
    max_attempts: Option<u32>,
    /// Delays of failed deliveries within one attempt; empty: a failure spends the attempt [default: 3x1s]
    #[arg(long, value_name = "DELAYS", value_parser = schedule)]
    error_schedule: Option<RetrySchedule>,
    /// The cap on all leases of a message [default: 1000]
    #[arg(long, value_name = "N", value_parser = number_to(MAX_DELIVERIES))]
    max_deliveries: Option<u32>,
    /// Lease time, 100ms to 12h [default: 30s]
    #[arg(long, value_name = "SPAN", value_parser = duration_ms)]
    lease: Option<u64>,
    /// Shortest time before a returned lease's message is delivered again [default: 1s]
    #[arg(long, value_name = "SPAN", value_parser = duration_ms)]
    min_redelivery_gap: Option<u64>,
    /// Consecutive returned leases that spend the attempt [default: 5]
    #[arg(long, value_name = "N", value_parser = number_to(MAX_RETURNS))]
    max_returns: Option<u32>,
    /// Cap on deliveries, evenly paced, such as 20/s or 1/3s, or none [default: none]
    #[arg(long, value_name = "RATE", value_parser = rate_or_none)]
    rate: Option<Cap<Rate>>,
    /// Messages leased at once over all consumers, or none [default: none]
    #[arg(long, value_name = "N", value_parser = number_or_none)]
    concurrency: Option<Cap<u32>>,
    /// Percent of a delay tier that may be added to it [default: 0]
    #[arg(long, value_name = "PERCENT", value_parser = number_to(100))]
    jitter: Option<u32>,
    /// How long a dedup id is remembered [default: 1h]
    #[arg(long, value_name = "SPAN", value_parser = duration_ms)]
    dedup_window: Option<u64>,
    /// How many dedup ids are remembered at once [default: 1000000]
    #[arg(long, value_name = "N", value_parser = number_to(MAX_DEDUP_CAPACITY))]
    dedup_capacity: Option<u32>,
    /// Whether a dead letter gives its key free [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    dead_releases_key: Option<bool>,
    /// How many ended messages the history remembers [default: 100000]
    #[arg(long, value_name = "N", value_parser = number_to(MAX_HISTORY_COUNT))]
    history_count: Option<u32>,
    /// How long the history remembers an ended message [default: 1d]
    #[arg(long, value_name = "SPAN", value_parser = duration_ms)]
    history_age: Option<u64>,
}

impl Settings {
    /// The settings that were given, and their names in the API.
    fn to_wire(&self) -> (pb::TopicSettings, Vec<&'static str>) {
        let mut fields = Vec::new();
        let mut given = |field: &'static str, is_given: bool| {
            if is_given {
                fields.push(field);
            }
        };
        given("schedule", self.schedule.is_some());
        given("max_attempts", self.max_attempts.is_some());
        given("error_schedule", self.error_schedule.is_some());
        given("max_deliveries", self.max_deliveries.is_some());
        given("lease", self.lease.is_some());
        given("min_redelivery_gap", self.min_redelivery_gap.is_some());
        given("max_returns", self.max_returns.is_some());
        given("rate", self.rate.is_some());
        given("concurrency", self.concurrency.is_some());
        given("jitter_percent", self.jitter.is_some());
        given("dedup_window", self.dedup_window.is_some());
        given("dedup_capacity", self.dedup_capacity.is_some());
        given("dead_releases_key", self.dead_releases_key.is_some());
        given("history_count", self.history_count.is_some());
        given("history_age", self.history_age.is_some());
        let rate = self.rate.and_then(Cap::value);
        let settings = pb::TopicSettings {
            schedule: self.schedule.as_ref().map(tiers),
            max_attempts: self.max_attempts.unwrap_or_default(),
            error_schedule: self.error_schedule.as_ref().map(tiers),
            max_deliveries: self.max_deliveries.unwrap_or_default(),
            lease: self.lease.map(span),
            min_redelivery_gap: self.min_redelivery_gap.map(span),
            max_returns: self.max_returns.unwrap_or_default(),
            rate: rate.map(|rate| pb::RateCap { deliveries: rate.count, period: Some(span(rate.period_ms)) }),
            concurrency: self.concurrency.and_then(Cap::value).unwrap_or_default(),
            jitter_percent: self.jitter.unwrap_or_default(),
            dedup_window: self.dedup_window.map(span),
            dedup_capacity: self.dedup_capacity.unwrap_or_default(),
            dead_releases_key: self.dead_releases_key.unwrap_or_default(),
            history_count: self.history_count,
            history_age: self.history_age.map(span),
        };
        (settings, fields)
    }
}

/// Runs a command about topics.
pub(super) async fn run(session: &Session, command: TopicCommand) -> Result<(), Failure> {
    let client = session.connect().await?;
    let (what, topic) = match command {
        TopicCommand::List => {
            let topics = client.topics().await.map_err(|error| Failure::call("list topics", &error))?;
            let views: Vec<TopicView> = topics.into_iter().map(TopicView::new).collect();
            return Ok(print_rows(session.format, &views)?);
        }
        TopicCommand::Delete(args) => return topic_delete::run(session, &client, &args).await,
        TopicCommand::Create(Named { name, settings }) => {
            (format!("create topic '{name}'"), client.create_topic(&name, settings.to_wire().0).await)
        }
        TopicCommand::Update(Named { name, settings }) => {
            let (settings, fields) = settings.to_wire();
            if fields.is_empty() {
                let failure = Failure::new(Exit::Usage, "nothing to change: no setting was given");
                return Err(failure.next("see duewheel topic update --help"));
            }
            (format!("update topic '{name}'"), client.update_topic(&name, settings, &fields).await)
        }
        TopicCommand::Show(Name { name }) => (format!("show topic '{name}'"), client.topic(&name).await),
        TopicCommand::Pause(Name { name }) => (format!("pause topic '{name}'"), client.pause_topic(&name).await),
        TopicCommand::Resume(Name { name }) => (format!("resume topic '{name}'"), client.resume_topic(&name).await),
    };
    let topic = topic.map_err(|error| Failure::call(what, &error))?;
    Ok(print_sheet(session.format, &TopicView::new(topic))?)
}

/// A topic as it is printed.
#[derive(Serialize)]
struct TopicView {
    name: String,
    paused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<String>,
    schedule: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    error_schedule: String,
    max_deliveries: u32,
    lease: String,
    min_redelivery_gap: String,
    max_returns: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency: Option<u32>,
    jitter_percent: u32,
    dedup_window: String,
    dedup_capacity: u32,
    dead_releases_key: bool,
    history_count: u32,
    history_age: String,
}

impl TopicView {
    fn new(topic: pb::Topic) -> Self {
        let settings = topic.settings.unwrap_or_default();
        let span = |span: Option<&prost_types::Duration>| format_duration(span.map_or(0, span_ms));
        let tiers = |schedule: Option<&pb::RetrySchedule>| schedule.map(tiers_text).unwrap_or_default();
        let rate = settings.rate.as_ref().map(|rate| {
            Rate { count: rate.deliveries, period_ms: rate.period.as_ref().map_or(1_000, span_ms) }.to_string()
        });
        Self {
            name: topic.name,
            paused: topic.paused,
            created_at: topic.created_at.as_ref().map(timestamp).map(Timestamp::to_rfc3339),
            schedule: tiers(settings.schedule.as_ref()),
            max_attempts: Some(settings.max_attempts).filter(|&n| n > 0),
            error_schedule: tiers(settings.error_schedule.as_ref()),
            max_deliveries: settings.max_deliveries,
            lease: span(settings.lease.as_ref()),
            min_redelivery_gap: span(settings.min_redelivery_gap.as_ref()),
            max_returns: settings.max_returns,
            rate,
            concurrency: Some(settings.concurrency).filter(|&n| n > 0),
            jitter_percent: settings.jitter_percent,
            dedup_window: span(settings.dedup_window.as_ref()),
            dedup_capacity: settings.dedup_capacity,
            dead_releases_key: settings.dead_releases_key,
            history_count: settings.history_count.unwrap_or_default(),
            history_age: span(settings.history_age.as_ref()),
        }
    }
}

fn or_none(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}

impl Row for TopicView {
    const COLUMNS: &'static [&'static str] = &["name", "paused", "schedule", "lease", "rate", "concurrency"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            if self.paused { "yes" } else { "no" }.to_owned(),
            self.schedule.clone(),
            self.lease.clone(),
            or_none(self.rate.as_ref()),
            or_none(self.concurrency),
        ]
    }
}

impl Sheet for TopicView {
    fn lines(&self) -> Vec<(&'static str, String)> {
        let max_attempts = self.max_attempts.map_or_else(|| "as the schedule".to_owned(), |n| n.to_string());
        vec![
            ("name", self.name.clone()),
            ("paused", if self.paused { "yes" } else { "no" }.to_owned()),
            ("created at", self.created_at.clone().unwrap_or_default()),
            ("schedule", self.schedule.clone()),
            ("max attempts", max_attempts),
            ("error schedule", self.error_schedule.clone()),
            ("max deliveries", self.max_deliveries.to_string()),
            ("lease", self.lease.clone()),
            ("min redelivery gap", self.min_redelivery_gap.clone()),
            ("max returns", self.max_returns.to_string()),
            ("rate", or_none(self.rate.as_ref())),
            ("concurrency", or_none(self.concurrency)),
            ("jitter percent", self.jitter_percent.to_string()),
            ("dedup window", self.dedup_window.clone()),
            ("dedup capacity", self.dedup_capacity.to_string()),
            ("dead releases key", if self.dead_releases_key { "yes" } else { "no" }.to_owned()),
            ("history count", self.history_count.to_string()),
            ("history age", self.history_age.clone()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_given_settings_are_named_and_none_unsets() {
        let (wire, fields) = Settings::default().to_wire();
        assert!(fields.is_empty());
        assert_eq!(wire, pb::TopicSettings::default());

        let settings = Settings { rate: Some(Cap::None), lease: Some(10_000), ..Settings::default() };
        let (wire, fields) = settings.to_wire();
        assert_eq!(fields, ["lease", "rate"]);
        assert_eq!(wire.rate, None);
        assert_eq!(wire.lease, Some(span(10_000)));
    }
}
