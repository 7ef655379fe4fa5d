//! `duewheel stats` and `duewheel health`: what the broker is doing, and whether it serves.

use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::args::duration_ms;
use super::exit::{Exit, Failure, is_unknown_topic};
use super::output::{Format, Row, Sheet, print_rows, print_sheet};
use super::session::Session;
use super::signals::Stop;
use super::timeline::{self, SpanView};
use crate::client::{Client, span_ms, timestamp};
use crate::pb;
use crate::queue::schedule::format_duration;
use crate::queue::time::Timestamp;

/// Arguments of `stats`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Without a topic: one row per topic. With a topic: everything about it, and the broker.

Examples:
  duewheel stats
  duewheel stats dropped-orders -o json
  duewheel stats --watch
  duewheel stats dropped-orders --timeline
  duewheel stats dropped-orders --watch=5s")]
pub(super) struct StatsArgs {
    /// Only this topic
    topic: Option<String>,
    /// Also show how many messages fall due in each of the next minutes, hours and days
    #[arg(long, requires = "topic")]
    timeline: bool,
    /// Print again and again, until Ctrl-C
    #[arg(long, value_name = "SPAN", value_parser = duration_ms, num_args = 0..=1, default_missing_value = "1s",
        require_equals = true)]
    watch: Option<u64>,
}

/// Runs `stats`.
pub(super) async fn run(session: &Session, args: &StatsArgs) -> Result<(), Failure> {
    let client = session.connect().await?;
    let Some(interval_ms) = args.watch else {
        return print(session.format, read(&client, args).await?, args);
    };
    let stop = Stop::listen().map_err(|error| Failure::new(Exit::Failed, format!("cannot watch signals: {error}")))?;
    let mut ticks = tokio::time::interval(Duration::from_millis(interval_ms.max(100)));
    loop {
        tokio::select! {
            biased;
            () = stop.requested() => return Ok(()),
            _ = ticks.tick() => {}
        }
        let stats = read(&client, args).await?;
        if session.format == Format::Table && std::io::stdout().is_terminal() {
            // Clears the screen and starts at its top.
            print!("\x1b[2J\x1b[H");
        }
        print(session.format, stats, args)?;
    }
}

async fn read(client: &Client, args: &StatsArgs) -> Result<pb::GetStatsResponse, Failure> {
    let stats = match &args.topic {
        Some(topic) if args.timeline => client.stats_with_timeline(topic).await,
        topic => client.stats(topic.as_deref()).await,
    };
    stats.map_err(|error| match &args.topic {
        Some(span) if args.watch.is_some() && duration_ms(span).is_ok() && is_unknown_topic(&error) => {
            let failure = Failure::new(Exit::Usage, error.message());
            failure.next(format!("the time between two looks is written with '=': --watch={span}"))
        }
        _ => Failure::call("read the statistics", &error),
    })
}

fn print(format: Format, stats: pb::GetStatsResponse, args: &StatsArgs) -> Result<(), Failure> {
    let broker = stats.broker.map(BrokerView::new);
    let mut topics: Vec<TopicStatsView> = stats.topics.into_iter().map(TopicStatsView::new).collect();
    match (format, &args.topic, topics.pop_if(|_| args.topic.is_some())) {
        (Format::Table, _, Some(topic)) => {
            print_sheet(format, &topic)?;
            println!();
            if let Some(timeline) = &topic.timeline {
                println!("{}\n", timeline::chart(timeline));
            }
        }
        (Format::Table, _, None) => {
            print_rows(format, &topics)?;
            println!();
        }
        (_, _, topic) => {
            topics.extend(topic);
            return Ok(print_sheet(format, &AllView { topics, broker })?);
        }
    }
    match broker {
        Some(broker) => Ok(print_sheet(format, &broker)?),
        None => Ok(()),
    }
}

/// Runs `health`.
pub(super) async fn health(session: &Session) -> Result<(), Failure> {
    let client = session.connect().await?;
    let serving = client.is_serving().await.map_err(|error| {
        let mut failure = Failure::call("ask for health", &error);
        if failure.exit != Exit::Temporary {
            // What answers something else is no broker.
            failure.exit = Exit::Unreachable;
        }
        failure
    })?;
    let status = if serving { "SERVING" } else { "NOT_SERVING" };
    print_sheet(session.format, &HealthView { status })?;
    if serving { Ok(()) } else { Err(Failure::silent(Exit::Temporary)) }
}

#[derive(Serialize)]
struct HealthView {
    status: &'static str,
}

impl Sheet for HealthView {
    fn lines(&self) -> Vec<(&'static str, String)> {
        vec![("status", self.status.to_owned())]
    }
}

#[derive(Serialize)]
struct AllView {
    topics: Vec<TopicStatsView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    broker: Option<BrokerView>,
}

impl Sheet for AllView {
    fn lines(&self) -> Vec<(&'static str, String)> {
        self.broker.as_ref().map(Sheet::lines).unwrap_or_default()
    }
}

#[derive(Serialize)]
struct TopicStatsView {
    topic: String,
    paused: bool,
    scheduled: u64,
    ready: u64,
    leased: u64,
    dead: u64,
    produced: u64,
    acked: u64,
    cancelled: u64,
    replaced: u64,
    purged: u64,
    quarantined: u64,
    deliveries: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_ready_due_at: Option<String>,
    lateness_count: u64,
    lateness_p50_ms: u64,
    lateness_p99_ms: u64,
    lateness_max_ms: u64,
    consumers: u32,
    waiting_fetches: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeline: Option<Vec<SpanView>>,
}

impl TopicStatsView {
    fn new(stats: pb::TopicStats) -> Self {
        let lateness = stats.lateness.unwrap_or_default();
        let ms = |span: Option<prost_types::Duration>| span.as_ref().map_or(0, span_ms);
        Self {
            topic: stats.topic,
            paused: stats.paused,
            scheduled: stats.scheduled,
            ready: stats.ready,
            leased: stats.leased,
            dead: stats.dead,
            produced: stats.produced,
            acked: stats.acked,
            cancelled: stats.cancelled,
            replaced: stats.replaced,
            purged: stats.purged,
            quarantined: stats.quarantined,
            deliveries: stats.deliveries,
            oldest_ready_due_at: stats.oldest_ready_due_at.as_ref().map(timestamp).map(Timestamp::to_rfc3339),
            lateness_count: lateness.count,
            lateness_p50_ms: ms(lateness.p50),
            lateness_p99_ms: ms(lateness.p99),
            lateness_max_ms: ms(lateness.max),
            consumers: stats.consumers,
            waiting_fetches: stats.waiting_fetches,
            timeline: (!stats.timeline.is_empty()).then(|| stats.timeline.iter().map(SpanView::new).collect()),
        }
    }

    fn lateness(&self, ms: u64) -> String {
        if self.lateness_count == 0 { "-".to_owned() } else { format_duration(ms) }
    }

    /// Open streams, and fetches that wait.
    fn all_consumers(&self) -> u32 {
        self.consumers.saturating_add(self.waiting_fetches)
    }

    fn oldest(&self) -> String {
        self.oldest_ready_due_at.clone().unwrap_or_else(|| "-".to_owned())
    }
}

impl Row for TopicStatsView {
    const COLUMNS: &'static [&'static str] = &[
        "topic",
        "scheduled",
        "ready",
        "leased",
        "dead",
        "acked",
        "cancelled",
        "late p50",
        "late p99",
        "oldest ready",
        "consumers",
    ];

    fn cells(&self) -> Vec<String> {
        let paused = if self.paused { " (paused)" } else { "" };
        vec![
            format!("{}{paused}", self.topic),
            self.scheduled.to_string(),
            self.ready.to_string(),
            self.leased.to_string(),
            self.dead.to_string(),
            self.acked.to_string(),
            self.cancelled.to_string(),
            self.lateness(self.lateness_p50_ms),
            self.lateness(self.lateness_p99_ms),
            self.oldest(),
            self.all_consumers().to_string(),
        ]
    }
}

impl Sheet for TopicStatsView {
    fn lines(&self) -> Vec<(&'static str, String)> {
        vec![
            ("topic", self.topic.clone()),
            ("paused", if self.paused { "yes" } else { "no" }.to_owned()),
            ("scheduled", self.scheduled.to_string()),
            ("ready", self.ready.to_string()),
            ("leased", self.leased.to_string()),
            ("dead", self.dead.to_string()),
            ("produced", self.produced.to_string()),
            ("acked", self.acked.to_string()),
            ("cancelled", self.cancelled.to_string()),
            ("replaced", self.replaced.to_string()),
            ("purged", self.purged.to_string()),
            ("quarantined", self.quarantined.to_string()),
            ("deliveries since start", self.deliveries.to_string()),
            ("oldest ready since", self.oldest()),
            ("lateness p50", self.lateness(self.lateness_p50_ms)),
            ("lateness p99", self.lateness(self.lateness_p99_ms)),
            ("lateness max", self.lateness(self.lateness_max_ms)),
            ("consumers", self.all_consumers().to_string()),
            ("of these fetches", self.waiting_fetches.to_string()),
        ]
    }
}

#[derive(Serialize)]
struct BrokerView {
    version: String,
    epoch: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    now: Option<String>,
    clock_offset_ms: i64,
    commits: u64,
    folds: u64,
    journal_bytes: u64,
    disk_free_bytes: u64,
    disk_reserve_bytes: u64,
    produce_refused: bool,
}

impl BrokerView {
    fn new(broker: pb::BrokerStats) -> Self {
        let at = |at: Option<&prost_types::Timestamp>| at.map(timestamp).map(Timestamp::to_rfc3339);
        let offset = broker.clock_offset.unwrap_or_default();
        Self {
            version: broker.version,
            epoch: broker.epoch,
            started_at: at(broker.started_at.as_ref()),
            now: at(broker.now.as_ref()),
            clock_offset_ms: offset.seconds * 1_000 + i64::from(offset.nanos) / 1_000_000,
            commits: broker.commits,
            folds: broker.folds,
            journal_bytes: broker.journal_bytes,
            disk_free_bytes: broker.disk_free_bytes,
            disk_reserve_bytes: broker.disk_reserve_bytes,
            produce_refused: broker.produce_refused,
        }
    }
}

impl Sheet for BrokerView {
    fn lines(&self) -> Vec<(&'static str, String)> {
        vec![
            ("broker", format!("{}, start {}", self.version, self.epoch)),
            ("started at", self.started_at.clone().unwrap_or_default()),
            ("now", self.now.clone().unwrap_or_default()),
            ("clock offset", format!("{} ms", self.clock_offset_ms)),
            ("commits", self.commits.to_string()),
            ("folds", self.folds.to_string()),
            ("journal bytes", self.journal_bytes.to_string()),
            ("disk free bytes", self.disk_free_bytes.to_string()),
            ("disk reserve bytes", self.disk_reserve_bytes.to_string()),
            ("produce", if self.produce_refused { "refused: the disk is nearly full" } else { "accepted" }.to_owned()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fetch_that_waits_is_a_consumer() {
        let stats = pb::TopicStats { consumers: 1, waiting_fetches: 2, ..pb::TopicStats::default() };
        let view = TopicStatsView::new(stats);
        assert_eq!(view.cells().last().map(String::as_str), Some("3"));
        assert!(view.lines().contains(&("consumers", "3".to_owned())));
    }
}
