//! One order: one message, and what its clients know of it.

use super::ledger::Arrival;
use super::world::MAX_ATTEMPTS;

/// What became of the produce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Produced {
    /// No answer, or none yet.
    Unknown,
    Confirmed,
    /// Definitely not stored.
    Refused,
}

/// One order.
#[expect(clippy::struct_excessive_bools, reason = "each is an answer of its own, in any combination")]
#[derive(Debug)]
pub(super) struct Order {
    pub(super) produced: Produced,
    /// It carries a dedup id and is not answered yet: its produce is repeated until it is.
    pub(super) is_retried: bool,
    /// Acks that may have taken effect: not answered, and nothing was delivered since.
    pub(super) open_acks: u32,
    pub(super) acked: bool,
    pub(super) dead: bool,
    /// Cancels that may have taken effect: not answered, or to take effect when the lease ends.
    pub(super) open_cancels: u32,
    pub(super) cancelled: bool,
    /// A reschedule was asked for: it may come at any time.
    pub(super) is_moved: bool,
    /// By the client's clock it may not come before, microseconds.
    pub(super) not_before_us: u64,
    /// The highest delivery number seen, when by the broker's clock, and when it was read.
    pub(super) last_delivery: u32,
    last_delivered_at_us: i64,
    last_read_us: u64,
    /// The highest delivery number whose settlement was answered.
    pub(super) last_settled: u32,
    /// A bit for each delivery number that was seen, from 1; those above 64 have none.
    deliveries_seen: u64,
    /// A bit for each attempt that was seen, from 1 to the cap.
    attempts_seen: u32,
}

/// How an arrival stands to what was seen of its order before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Novelty {
    New,
    /// The same delivery number again, or a lower one, delivered later by the broker's clock.
    Repeated,
    /// It waited in a connection while the message went on; its lease is over.
    ReadLate {
        /// Its number was seen before: a crash gave the number to a second delivery.
        is_repeated: bool,
    },
}

impl Order {
    pub(super) fn new(is_retried: bool, not_before_us: u64) -> Self {
        Self {
            produced: Produced::Unknown,
            is_retried,
            open_acks: 0,
            acked: false,
            dead: false,
            open_cancels: 0,
            cancelled: false,
            is_moved: false,
            not_before_us,
            last_delivery: 0,
            last_delivered_at_us: i64::MIN,
            last_read_us: 0,
            last_settled: 0,
            deliveries_seen: 0,
            attempts_seen: 0,
        }
    }

    /// It is known to be over.
    pub(super) fn is_over(&self) -> bool {
        self.end().is_some() || self.produced == Produced::Refused
    }

    /// The end that was confirmed.
    pub(super) fn end(&self) -> Option<&'static str> {
        [(self.acked, "acked"), (self.cancelled, "cancelled"), (self.dead, "dead")]
            .into_iter()
            .find_map(|(is_so, end)| is_so.then_some(end))
    }

    pub(super) fn may_be_cancelled(&self) -> bool {
        self.cancelled || self.open_cancels > 0
    }

    /// Somebody asked for its end and was not refused, or it was never there.
    pub(super) fn may_be_over(&self) -> bool {
        self.acked || self.open_acks > 0 || self.may_be_cancelled() || self.produced != Produced::Confirmed
    }

    /// What an arrival is; it is noted.
    pub(super) fn arrived(&mut self, arrival: Arrival, now_us: u64) -> Novelty {
        let (bit, delivered_at_us) = (delivery_bit(arrival.delivery), arrival.delivered_at_us);
        let is_seen = self.deliveries_seen & bit != 0;
        self.deliveries_seen |= bit;
        if arrival.attempt <= MAX_ATTEMPTS {
            self.attempts_seen |= 1 << arrival.attempt.saturating_sub(1);
        }
        let is_late = match arrival.delivery.cmp(&self.last_delivery) {
            std::cmp::Ordering::Less => delivered_at_us <= self.last_delivered_at_us,
            std::cmp::Ordering::Equal => delivered_at_us < self.last_delivered_at_us,
            std::cmp::Ordering::Greater => false,
        };
        if is_late {
            return Novelty::ReadLate { is_repeated: is_seen };
        }
        let is_repeated = arrival.delivery <= self.last_delivery;
        self.last_delivery = self.last_delivery.max(arrival.delivery);
        self.last_delivered_at_us = delivered_at_us;
        self.last_read_us = now_us;
        // It is alive, so no ack of a delivery before has won or can win any more.
        self.open_acks = 0;
        if is_repeated { Novelty::Repeated } else { Novelty::New }
    }

    /// When the delivery after this one was read, if it was.
    pub(super) fn came_after(&self, delivery: u32) -> Option<u64> {
        (self.last_delivery == delivery + 1).then_some(self.last_read_us)
    }

    /// Attempts that were left out before the last one that was seen. A delivery that nobody could read, as its
    /// connection broke, may have spent one of them.
    pub(super) fn attempts_skipped(&self) -> u32 {
        let skipped = self.last_attempt() - self.attempts_seen.count_ones();
        skipped.saturating_sub(self.unread(self.last_delivery))
    }

    /// Attempts that were left when it died after `deliveries`; likewise less those that nobody could read.
    pub(super) fn attempts_left(&self, deliveries: u32) -> u32 {
        (MAX_ATTEMPTS - self.last_attempt()).saturating_sub(self.unread(deliveries))
    }

    /// The highest attempt that was seen, at most the cap.
    fn last_attempt(&self) -> u32 {
        u32::BITS - self.attempts_seen.leading_zeros()
    }

    /// Of so many deliveries those that were not seen.
    fn unread(&self, deliveries: u32) -> u32 {
        deliveries.saturating_sub(self.deliveries_seen.count_ones())
    }
}

fn delivery_bit(delivery: u32) -> u64 {
    1_u64.checked_shl(delivery.saturating_sub(1)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(delivery: u32, attempt: u32, delivered_at_us: i64) -> Arrival {
        Arrival { delivery, attempt, redelivered: false, due_at_us: 0, delivered_at_us }
    }

    #[test]
    fn a_delivery_that_was_read_late_is_told_from_one_that_comes_again() {
        let mut order = Order::new(false, 0);
        assert_eq!(order.arrived(arrival(2, 2, 200), 9), Novelty::New);
        assert_eq!(order.arrived(arrival(1, 1, 100), 9), Novelty::ReadLate { is_repeated: false });
        assert_eq!(order.arrived(arrival(2, 2, 200), 9), Novelty::Repeated, "the same sent twice");
        assert_eq!(order.arrived(arrival(2, 2, 300), 9), Novelty::Repeated, "after a crash");
        assert_eq!(order.arrived(arrival(2, 2, 200), 9), Novelty::ReadLate { is_repeated: true });
        assert_eq!(order.arrived(arrival(1, 1, 400), 9), Novelty::Repeated, "numbers that went back");
    }

    #[test]
    fn an_attempt_is_skipped_unless_a_delivery_was_lost_with_its_connection() {
        let mut order = Order::new(false, 0);
        order.arrived(arrival(1, 1, 1), 0);
        order.arrived(arrival(2, 2, 2), 0);
        assert_eq!((order.attempts_skipped(), order.attempts_left(2)), (0, MAX_ATTEMPTS - 2));
        assert_eq!(order.attempts_left(4), MAX_ATTEMPTS - 4, "two deliveries that nobody read");
        order.arrived(arrival(3, 4, 3), 0);
        assert_eq!(order.attempts_skipped(), 1);
        let mut order = Order::new(false, 0);
        order.arrived(arrival(3, 3, 3), 0);
        assert_eq!(order.attempts_skipped(), 0, "as many deliveries are missing");
    }
}
