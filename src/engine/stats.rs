//! What the engine counts: deliveries and their lateness, per topic.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use super::due::DueSpan;
use super::reserve::DiskView;
use super::start::EngineSettings;
use crate::clock::ClockState;
use crate::queue::command::Delivery;
use crate::queue::limits::Limits;
use crate::queue::message::TopicId;
use crate::queue::time::Timestamp;
use crate::queue::values::TopicName;
use crate::queue::view::TopicCounts;

/// Whose numbers are asked for.
#[derive(Clone, Debug)]
pub(super) enum StatsOf {
    /// Those of one topic.
    Topic(TopicName),
    /// Those of so many topics at most, by name, from the one after this on.
    Topics(Option<TopicName>, usize),
}

/// A look at the broker's numbers.
#[derive(Clone, Debug)]
pub struct Stats {
    /// By name.
    pub topics: Vec<TopicStats>,
    /// Of the broker as a whole.
    pub broker: BrokerStats,
}

/// Numbers of a topic.
#[derive(Clone, Debug)]
pub struct TopicStats {
    /// Messages by state, and ever.
    pub counts: TopicCounts,
    /// What is scheduled, by due time, if it was asked for: minutes, hours, days, and a last span without an end.
    pub timeline: Option<Vec<DueSpan>>,
    /// Deliveries since the start of the broker.
    pub deliveries: u64,
    /// Of these deliveries.
    pub lateness: LatenessSummary,
    /// Streams with a window on it.
    pub consumers: usize,
    /// Fetches that wait.
    pub waiting_fetches: usize,
}

/// Who takes messages of a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audience {
    /// Streams with a window on it, and fetches that wait.
    pub waiting: usize,
    /// Messages of it that are being worked on. Those of a fetch are held without a stream.
    pub leased: u64,
}

/// Delivered at minus due at, milliseconds, to within 1 percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatenessSummary {
    /// Deliveries measured.
    pub count: u64,
    /// Half were not later.
    pub p50_ms: u64,
    /// 99 percent were not later.
    pub p99_ms: u64,
    /// None was later.
    pub max_ms: u64,
}

/// Numbers of the broker.
#[derive(Clone, Copy, Debug)]
pub struct BrokerStats {
    /// The number of this run.
    pub epoch: u32,
    /// When it started.
    pub started_at: Timestamp,
    /// When this was looked at.
    pub now: Timestamp,
    /// Wall clock minus broker's clock, milliseconds.
    pub clock_offset_ms: i64,
    /// Durable commits since the start.
    pub commits: u64,
    /// Folds since the start.
    pub folds: u64,
    /// Size of the journal on disk.
    pub journal_bytes: u64,
    /// Room on the data file system; `None`: nobody looks.
    pub disk: Option<DiskView>,
}

/// The broker and what it runs by.
#[derive(Clone, Copy, Debug)]
pub struct BrokerView {
    /// Its numbers.
    pub stats: BrokerStats,
    /// Version of the format of the store.
    pub data_format: u32,
    /// How long it took to read the store, milliseconds.
    pub opening_ms: u64,
    /// Its clock.
    pub clock: ClockState,
    /// The limits of the queue.
    pub limits: Limits,
    /// The bounds of the engine.
    pub bounds: EngineSettings,
}

/// Counts deliveries and their lateness, per topic.
#[derive(Default)]
pub(super) struct Tally {
    topics: BTreeMap<TopicId, Histogram<u64>>,
}

/// Precision of the histograms.
const SIGNIFICANT_DIGITS: u8 = 2;

impl Tally {
    pub(super) fn count(&mut self, topic: TopicId, deliveries: &[Delivery]) {
        let new = || Histogram::new(SIGNIFICANT_DIGITS).expect("two digits are supported");
        let histogram = self.topics.entry(topic).or_insert_with(new);
        for delivery in deliveries {
            let late_ms = delivery.delivered_at.since(delivery.message.progress.due_at);
            histogram.record(late_ms).expect("the histogram grows as far as needed");
        }
    }

    /// The topic is gone.
    pub(super) fn forget(&mut self, topic: TopicId) {
        self.topics.remove(&topic);
    }

    /// Deliveries of the topic.
    pub(super) fn deliveries(&self, topic: TopicId) -> u64 {
        self.topics.get(&topic).map_or(0, Histogram::len)
    }

    pub(super) fn lateness(&self, topic: TopicId) -> LatenessSummary {
        self.topics.get(&topic).map_or_else(LatenessSummary::default, |histogram| LatenessSummary {
            count: histogram.len(),
            p50_ms: histogram.value_at_quantile(0.5),
            p99_ms: histogram.value_at_quantile(0.99),
            max_ms: histogram.max(),
        })
    }
}
