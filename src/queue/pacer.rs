//! The rate cap of a topic: evenly paced deliveries, never more than the cap in any period.
//!
//! Instants are whole milliseconds but tokens may be finer, so a delivery that comes up to `slack` late lets
//! the next ones catch up. The interval between tokens is lengthened to pay for the slack: of N + 1 deliveries
//! in a row the last is at least one period after the first. That costs at most 1 % of the rate for periods of
//! a second or more, and nothing is ever saved up beyond the slack.

use super::settings::RateCap;
use super::time::Timestamp;

/// Largest catch-up, microseconds.
const MAX_SLACK_US: u64 = 10_000;
/// One tick of the clock, microseconds: less slack than this would lose deliveries to rounding.
const TICK_US: u64 = 1_000;

/// Paces the deliveries of one topic.
#[derive(Debug)]
pub(super) struct Pacer {
    cap: Option<RateCap>,
    /// The next token exists from then on, microseconds.
    next_us: u64,
}

impl Pacer {
    /// A pacer that gives its first token one interval after `now`: what was delivered before a restart
    /// is not known.
    pub(super) fn new(cap: Option<RateCap>, now: Timestamp) -> Self {
        let next_us = cap.map_or(0, |cap| micros(now) + interval_us(cap));
        Self { cap, next_us }
    }

    /// The cap in force.
    pub(super) fn cap(&self) -> Option<RateCap> {
        self.cap
    }

    /// When the next delivery is allowed: an instant after `now`, or `None` for at once.
    pub(super) fn wait_until(&self, now: Timestamp) -> Option<Timestamp> {
        let next = Timestamp::from_millis(self.next_us.div_ceil(TICK_US));
        (self.cap.is_some() && next > now).then_some(next)
    }

    /// Takes the token of a delivery that is allowed at `now`.
    pub(super) fn take(&mut self, now: Timestamp) {
        if let Some(cap) = self.cap {
            self.next_us = self.next_us.max(micros(now).saturating_sub(slack_us(cap))) + interval_us(cap);
        }
    }
}

fn slack_us(cap: RateCap) -> u64 {
    (cap.period_ms * TICK_US / 100).clamp(TICK_US, MAX_SLACK_US)
}

fn interval_us(cap: RateCap) -> u64 {
    (cap.period_ms * TICK_US + slack_us(cap)).div_ceil(u64::from(cap.deliveries))
}

fn micros(at: Timestamp) -> u64 {
    at.as_millis().saturating_mul(TICK_US)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Delivers whenever allowed, looking only at the given instants, and returns when it delivered.
    fn deliveries(cap: RateCap, instants: impl Iterator<Item = u64>) -> Vec<u64> {
        let mut pacer = Pacer::new(Some(cap), Timestamp::ZERO);
        let mut delivered = Vec::new();
        for now in instants.map(Timestamp::from_millis) {
            while pacer.wait_until(now).is_none() {
                pacer.take(now);
                delivered.push(now.as_millis());
            }
        }
        delivered
    }

    #[test]
    fn no_period_holds_more_than_the_cap_however_the_broker_is_delayed() {
        for (n, period_ms) in
            [(1, 3_000), (10, 1_000), (700, 1_000), (20_000, 1_000), (5, 10), (1, 1), (1_000_000, 86_400_000)]
        {
            for seed in 0..20 {
                let mut random = fastrand::Rng::with_seed(seed);
                let mut now = 0;
                let instants = std::iter::from_fn(|| {
                    now += if random.u32(0..50) == 0 { random.u64(0..3_000) } else { random.u64(0..4) };
                    (now < 10_000).then_some(now)
                });
                let cap = RateCap { deliveries: n, period_ms };
                let delivered = deliveries(cap, instants);
                for window in delivered.windows(n as usize + 1) {
                    assert!(window[n as usize] - window[0] >= period_ms, "{cap:?}, seed {seed}: {} at once", n + 1);
                }
            }
        }
    }

    #[test]
    fn a_broker_that_is_on_time_loses_at_most_two_percent_and_starts_one_interval_late() {
        for (n, period_ms) in [(1, 1_000), (10, 1_000), (700, 1_000), (20_000, 1_000)] {
            let delivered = deliveries(RateCap { deliveries: n, period_ms }, 0..=20_000);
            let want = u64::from(n) * 20_000 / period_ms;
            let count = delivered.len() as u64;
            assert!(count <= want && count * 100 >= want * 98 - 200, "{n}: {count} of {want}");
            assert!(delivered[0] >= period_ms / u64::from(n));
        }
    }
}
