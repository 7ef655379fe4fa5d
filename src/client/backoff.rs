//! Waits between attempts to reach a broker: exponential, jittered, bounded.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

static INSTANCES: AtomicU64 = AtomicU64::new(0);

/// Exponential waits with jitter, so that the clients of a broker that restarts do not come back in step.
///
/// Each wait lies between half of the nominal wait and the whole. The jitter is a hash of the process, the
/// instance and the attempt: spread over clients without a source of randomness.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    seed: u64,
    attempt: u32,
}

impl Backoff {
    /// Waits that start at `first`, double, and stay at `max`.
    #[must_use]
    pub fn new(first: Duration, max: Duration) -> Self {
        let mut hasher = DefaultHasher::new();
        (std::process::id(), INSTANCES.fetch_add(1, Ordering::Relaxed)).hash(&mut hasher);
        Self { first, max, seed: hasher.finish(), attempt: 0 }
    }

    /// The next wait.
    pub fn next_wait(&mut self) -> Duration {
        let nominal = self.first.saturating_mul(1 << self.attempt.min(20)).min(self.max);
        let mut hasher = DefaultHasher::new();
        (self.seed, self.attempt).hash(&mut hasher);
        self.attempt = self.attempt.saturating_add(1);
        let percent = 50 + u32::try_from(hasher.finish() % 51).expect("at most 50");
        nominal.saturating_mul(percent) / 100
    }

    /// Starts again at the first wait, after a success.
    pub fn reset(&mut self) {
        self.attempt = 0;
    }
}

impl Default for Backoff {
    /// From 50 ms to 2 s.
    fn default() -> Self {
        Self::new(Duration::from_millis(50), Duration::from_secs(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_with_jitter_up_to_the_maximum_and_start_again_after_a_success() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        for nominal_ms in [100, 200, 400, 800, 1_000, 1_000] {
            let wait = backoff.next_wait();
            assert!(wait <= Duration::from_millis(nominal_ms), "{wait:?} > {nominal_ms} ms");
            assert!(wait >= Duration::from_millis(nominal_ms / 2), "{wait:?} < half of {nominal_ms} ms");
        }
        for _ in 0..100 {
            backoff.next_wait();
        }
        backoff.reset();
        assert!(backoff.next_wait() <= Duration::from_millis(100));
    }
}
