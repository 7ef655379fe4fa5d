//! One order: one message, and what its clients know of it.

use super::ledger::Arrival;

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
    /// It carries a dedup id: its produce is repeated until it is answered.
    pub(super) is_retried: bool,
    pub(super) ack_asked: bool,
    pub(super) acked: bool,
    pub(super) nack_asked: bool,
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
    pub(super) last_attempt: u32,
}

impl Order {
    pub(super) fn new(is_retried: bool, not_before_us: u64) -> Self {
        Self {
            produced: Produced::Unknown,
            is_retried,
            ack_asked: false,
            acked: false,
            nack_asked: false,
            dead: false,
            open_cancels: 0,
            cancelled: false,
            is_moved: false,
            not_before_us,
            last_delivery: 0,
            last_delivered_at_us: i64::MIN,
            last_read_us: 0,
            last_settled: 0,
            last_attempt: 0,
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

    /// Somebody asked for its end, or it was never there.
    pub(super) fn may_be_over(&self) -> bool {
        self.ack_asked || self.may_be_cancelled() || self.produced != Produced::Confirmed
    }

    /// An older delivery than the last, that waited in a connection while others went on.
    pub(super) fn is_late_reading(&self, arrival: Arrival) -> bool {
        arrival.delivery < self.last_delivery && arrival.delivered_at_us <= self.last_delivered_at_us
    }

    pub(super) fn arrived(&mut self, arrival: Arrival, now_us: u64) {
        self.last_attempt = self.last_attempt.max(arrival.attempt);
        self.last_delivery = self.last_delivery.max(arrival.delivery);
        self.last_delivered_at_us = arrival.delivered_at_us;
        self.last_read_us = now_us;
    }

    /// When the delivery after this one was read, if it was.
    pub(super) fn came_after(&self, delivery: u32) -> Option<u64> {
        (self.last_delivery == delivery + 1).then_some(self.last_read_us)
    }
}
