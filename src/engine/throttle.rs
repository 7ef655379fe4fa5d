//! Slowing produce down while folds cannot keep up with it: smoothly, and never to a stop.
//!
//! Every other command goes on at full speed, since acks and cancels are what makes room in the end. Requests that
//! produce pass one after the other, each after a wait in proportion to its size.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::admission::cost;
use super::signals::Signals;
use crate::queue::command::Command;

/// Below this pressure nothing is slowed down: one generation is full and being folded, the next is half full.
const FREE_PRESSURE: f64 = 1.5;

/// From this pressure on produce is slowest.
const FULL_PRESSURE: f64 = 2.0;

/// The rate just above the free pressure, in bytes of cost a second.
const FASTEST: f64 = 128.0 * 1024.0 * 1024.0;

/// The rate at full pressure and above.
const SLOWEST: f64 = 2.0 * 1024.0 * 1024.0;

/// Shorter waits are saved up: a timer cannot keep them.
const SHORTEST_WAIT: Duration = Duration::from_millis(5);

/// Lets requests that produce pass at the rate that the pressure on the journal allows.
pub(super) struct Throttle {
    /// Who holds it is the one who waits.
    turn: Semaphore,
    /// Waits saved up, nanoseconds; changed only by who holds the turn.
    debt_ns: AtomicU64,
}

impl Throttle {
    pub(super) fn new() -> Self {
        Self { turn: Semaphore::new(1), debt_ns: AtomicU64::new(0) }
    }

    /// Waits until these commands may go on.
    pub(super) async fn pass(&self, commands: &[Command], signals: &Signals) {
        if signals.pressure() < FREE_PRESSURE || !commands.iter().any(is_produce) {
            return;
        }
        let _turn = self.turn.acquire().await.expect("it is never closed");
        // The pressure may have changed meanwhile.
        let wait = wait(cost(commands), signals.pressure());
        let debt = Duration::from_nanos(self.debt_ns.load(Ordering::Relaxed)) + wait;
        let is_due = debt >= SHORTEST_WAIT;
        let left = if is_due { Duration::ZERO } else { debt };
        self.debt_ns.store(u64::try_from(left.as_nanos()).expect("it is short"), Ordering::Relaxed);
        if is_due {
            sleep(debt).await;
        }
    }
}

pub(super) fn is_produce(command: &Command) -> bool {
    matches!(command, Command::Produce(_))
}

/// How long the next request waits after one of so many bytes.
#[expect(clippy::cast_precision_loss, reason = "a request is far below 2^52 bytes")]
fn wait(bytes: usize, pressure: f64) -> Duration {
    if pressure < FREE_PRESSURE {
        return Duration::ZERO;
    }
    let left = (FULL_PRESSURE - pressure) / (FULL_PRESSURE - FREE_PRESSURE);
    Duration::from_secs_f64(bytes as f64 / (FASTEST * left).max(SLOWEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn produce_is_free_at_first_then_slows_down_smoothly_and_never_stops() {
        let second_at_slowest = 2 * 1024 * 1024;
        assert_eq!(wait(second_at_slowest, 0.0), Duration::ZERO);
        assert_eq!(wait(second_at_slowest, FREE_PRESSURE - 0.001), Duration::ZERO);
        let waits: Vec<f64> =
            (1_500..5_000).map(|p| wait(second_at_slowest, f64::from(p) / 1_000.0).as_secs_f64()).collect();
        assert!(waits.is_sorted(), "more pressure never means less of a wait");
        assert!(waits[0] < 0.02 && waits[250] < 0.04, "half way it is half as fast: {} s", waits[250]);
        assert_eq!(waits.last(), Some(&1.0));
        assert_eq!(wait(second_at_slowest, f64::MAX), Duration::from_secs(1));
    }
}
