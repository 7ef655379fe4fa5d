//! Every maximum of the domain, in one place. What is over a limit is refused by name, never clamped.

/// Milliseconds of one day.
pub const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Longest topic name, bytes.
pub const MAX_TOPIC_NAME_BYTES: usize = 128;
/// Longest business key, bytes.
pub const MAX_KEY_BYTES: usize = 256;
/// Most headers of a message.
pub const MAX_HEADERS: usize = 32;
/// Longest header name, bytes.
pub const MAX_HEADER_NAME_BYTES: usize = 128;
/// All header names and values of a message together, bytes.
pub const MAX_HEADERS_BYTES: usize = 8 * 1024;
/// Longest `dedup_id`, bytes.
pub const MAX_DEDUP_ID_BYTES: usize = 128;
/// Longest text of a nack, bytes.
pub const MAX_NACK_TEXT_BYTES: usize = 256;
/// Longest consumer name, bytes.
pub const MAX_CONSUMER_NAME_BYTES: usize = 128;
/// Most tiers of a retry schedule, repetitions written out.
pub const MAX_TIERS: usize = 64;
/// Shortest tier, milliseconds.
pub const MIN_TIER_MS: u64 = 1;
/// Largest `max_attempts`.
pub const MAX_ATTEMPTS: u32 = 10_000;
/// Largest `max_deliveries`.
pub const MAX_DELIVERIES: u32 = 100_000;
/// Largest `max_returns`.
pub const MAX_RETURNS: u32 = 1_000;
/// Shortest lease, milliseconds.
pub const MIN_LEASE_MS: u64 = 100;
/// Longest lease, milliseconds: 12 hours.
pub const MAX_LEASE_MS: u64 = 12 * 60 * 60 * 1000;
/// Longest redelivery gap, milliseconds: one hour.
pub const MAX_REDELIVERY_GAP_MS: u64 = 60 * 60 * 1000;
/// Most deliveries of a rate cap's period.
pub const MAX_RATE_DELIVERIES: u32 = 1_000_000;
/// Longest period of a rate cap, milliseconds: one day.
pub const MAX_RATE_PERIOD_MS: u64 = DAY_MS;
/// Largest concurrency cap.
pub const MAX_CONCURRENCY: u32 = 1_000_000;
/// Shortest dedup window, milliseconds.
pub const MIN_DEDUP_WINDOW_MS: u64 = 1_000;
/// Longest dedup window, milliseconds: 30 days.
pub const MAX_DEDUP_WINDOW_MS: u64 = 30 * DAY_MS;
/// Most remembered dedup ids of a topic.
pub const MAX_DEDUP_CAPACITY: u32 = 10_000_000;
/// Most remembered ended messages of a topic.
pub const MAX_HISTORY_COUNT: u32 = 1_000_000;
/// Longest memory of an ended message, milliseconds: 30 days.
pub const MAX_HISTORY_AGE_MS: u64 = 30 * DAY_MS;
/// Attempt history entries kept from the start of a message's life.
pub const HISTORY_FIRST: usize = 4;
/// Attempt history entries kept from the end of a message's life.
pub const HISTORY_LAST: usize = 16;
/// Arrival numbers reserved by one durable record.
pub const ARRIVALS_PER_RESERVATION: u64 = 1 << 20;
/// Most items of one request: messages, receipts, settlements, redrives.
pub const MAX_BATCH: usize = 1_000;
/// A lease command ends with the message whose content brings it to this many bytes, so that what is leased at
/// once fits the responses that clients accept.
pub const MAX_LEASE_BYTES: usize = 1024 * 1024;
/// Most messages leased at once to one stream and topic.
pub const MAX_WINDOW: u32 = 10_000;
/// Most topics of one consume stream.
pub const MAX_STREAM_TOPICS: usize = 64;
/// Longest wait of a fetch, milliseconds.
pub const MAX_FETCH_WAIT_MS: u64 = 60_000;
/// Dead letters a second that a job redrives or purges at most.
pub const MAX_DEAD_RATE: u32 = 10_000;
/// Dead letters a second that a redrive is paced to if it names no rate.
pub const DEFAULT_REDRIVE_RATE: u32 = 100;
/// Dead letters a second that a purge is paced to if it names no rate.
pub const DEFAULT_PURGE_RATE: u32 = 1_000;
/// Most items of a page of a listing.
pub const MAX_PAGE_SIZE: u32 = 1_000;

/// How much of a topic is kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nearness {
    /// Messages due within this span stay in memory, milliseconds. Default 30 s.
    pub span_ms: u64,
    /// Ready messages of a topic beyond this many may leave memory. Default 20,000.
    pub max_ready: usize,
    /// Messages on disk are loaded this long before they are due, milliseconds. Default 2 s.
    pub load_ahead_ms: u64,
    /// Nothing is loaded while a topic has so many ready messages in memory. Default 5,000.
    pub load_below: usize,
    /// Most messages of one load. Default 2,000.
    pub load_max: usize,
}

impl Default for Nearness {
    fn default() -> Self {
        Self { span_ms: 30_000, max_ready: 20_000, load_ahead_ms: 2_000, load_below: 5_000, load_max: 2_000 }
    }
}

/// The limits that an operator may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest delay, and farthest due time from now, milliseconds. Default 400 days; at most
    /// [`Limits::LARGEST_MAX_DELAY_MS`].
    pub max_delay_ms: u64,
    /// Longest body, bytes. Default 256 KiB.
    pub max_body_bytes: usize,
    /// Most topics. Default 10,000.
    pub max_topics: usize,
    /// How much of a topic is kept in memory.
    pub near: Nearness,
}

impl Limits {
    /// No configuration may allow a longer delay: ten years.
    pub const LARGEST_MAX_DELAY_MS: u64 = 3_653 * DAY_MS;
    /// No configuration may allow a longer body, bytes.
    pub const LARGEST_MAX_BODY_BYTES: usize = 1024 * 1024;
    /// No configuration may allow more topics.
    pub const LARGEST_MAX_TOPICS: usize = 100_000;
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_delay_ms: 400 * DAY_MS, max_body_bytes: 256 * 1024, max_topics: 10_000, near: Nearness::default() }
    }
}
