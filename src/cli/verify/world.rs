//! What all clients of a run share: the broker, the topic, the ledger, and how far the run is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

use super::ledger::Ledger;
use crate::queue::schedule::RetrySchedule;

/// Between two tries to connect.
const CONNECT_AGAIN: Duration = Duration::from_millis(5);

/// Delay tiers of the topic.
pub(super) const SCHEDULE: &str = "50ms,100ms,200ms";
/// Delay of a failed delivery within its attempt.
pub(super) const ERROR_SCHEDULE: &str = "20ms";
/// Lease time of the topic, milliseconds.
pub(super) const LEASE_MS: u64 = 1_000;
/// What a lease is extended to, milliseconds.
pub(super) const EXTENDED_MS: u64 = 3_000;
/// How long a delivery whose lease was extended is kept, milliseconds: beyond the lease time of the topic.
pub(super) const KEPT_MS: u64 = 1_300;
/// Attempts of a message; few enough that some die.
pub(super) const MAX_ATTEMPTS: u32 = 8;

/// What all clients share.
pub(super) struct World {
    pub(super) endpoint: Endpoint,
    pub(super) topic: String,
    pub(super) ledger: Ledger,
    /// Waits of the tiers, microseconds.
    tiers_us: Vec<u64>,
    error_wait_us: u64,
    /// Producers and cancellers stop; consumers only ack.
    is_draining: AtomicBool,
    /// Everybody stops.
    is_over: AtomicBool,
    /// Producers that have not ended: what they have asked for may still be stored.
    producers: AtomicU64,
    /// The ledger takes no more orders.
    pub(super) full: CancellationToken,
    /// Confirmed produces, for the progress.
    pub(super) confirmed: Arc<AtomicU64>,
}

impl World {
    pub(super) fn new(endpoint: Endpoint, topic: String, ledger: Ledger, producers: u64) -> Self {
        let waits_us = |text: &str| -> Vec<u64> {
            let schedule = RetrySchedule::parse("schedule", text).expect("a good schedule");
            schedule.tiers().iter().map(|ms| ms * 1_000).collect()
        };
        let (tiers_us, error_waits) = (waits_us(SCHEDULE), waits_us(ERROR_SCHEDULE));
        Self {
            endpoint,
            topic,
            ledger,
            error_wait_us: error_waits.into_iter().chain(tiers_us.iter().copied()).min().unwrap_or(0),
            tiers_us,
            is_draining: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            producers: AtomicU64::new(producers),
            full: CancellationToken::new(),
            confirmed: Arc::default(),
        }
    }

    /// A connection to the broker, as soon as there is one; `None` if everything is over first.
    pub(super) async fn connect(&self) -> Option<Channel> {
        while !self.is_over() {
            match self.endpoint.connect().await {
                Ok(channel) => return Some(channel),
                Err(_) => tokio::time::sleep(CONNECT_AGAIN).await,
            }
        }
        None
    }

    /// The least wait after a not-yet of this attempt, microseconds: every message has an explicit first wait, so
    /// attempt k waits tier k.
    pub(super) fn tier_us(&self, attempt: u32) -> u64 {
        let last = self.tiers_us.len() - 1;
        self.tiers_us[usize::try_from(attempt.saturating_sub(1)).map_or(last, |tier| tier.min(last))]
    }

    /// The least wait after a failed delivery, microseconds.
    pub(super) fn error_wait_us(&self) -> u64 {
        self.error_wait_us
    }

    pub(super) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    pub(super) fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    /// A producer has ended: all its produces are answered, or will never be.
    pub(super) fn producer_ended(&self) {
        self.producers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Nothing more is produced.
    pub(super) fn are_producers_done(&self) -> bool {
        self.producers.load(Ordering::Relaxed) == 0
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}
