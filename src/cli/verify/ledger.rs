//! What the clients know: written down before they ask, and when they are answered.
//!
//! The ledger is the judge. It trusts nothing that the broker says about itself, only what its clients asked for,
//! what they were answered, and when by their own clock. It never stops at a violation: it counts each by its kind
//! and keeps the first as examples.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::sync::{Mutex, MutexGuard};

use serde_json::json;

use super::order::{Order, Produced};
use super::tally::{Operation, Result as Answer, Tally, Violation};
use crate::clock::Stopwatch;
use crate::pb;

/// The broker's clock has milliseconds and may be slewed, so an interval may look this much shorter, microseconds.
const EARLY_TOLERANCE_US: u64 = 2_000;

/// What a client saw of a delivery.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) delivery: u32,
    pub(super) attempt: u32,
    pub(super) redelivered: bool,
    /// By the broker's clock, microseconds.
    pub(super) due_at_us: i64,
    /// By the broker's clock, microseconds.
    pub(super) delivered_at_us: i64,
}

impl Arrival {
    pub(super) fn of(delivery: &pb::Delivery) -> Self {
        let us = |at: Option<prost_types::Timestamp>| {
            at.map_or(0, |at| at.seconds * 1_000_000 + i64::from(at.nanos) / 1_000)
        };
        Self {
            delivery: delivery.delivery,
            attempt: delivery.attempt,
            redelivered: delivery.redelivered,
            due_at_us: us(delivery.due_at),
            delivered_at_us: us(delivery.delivered_at),
        }
    }
}

/// How a settlement was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    Acked,
    /// Waits again, for at least so many microseconds from when it was asked.
    Waits(u64),
    Dead,
    Cancelled,
}

struct Book {
    orders: HashMap<u64, Order>,
    /// The number of the newest order.
    newest: u64,
    tally: Tally,
    log: Option<BufWriter<File>>,
}

/// The book of all clients.
pub(super) struct Ledger {
    watch: Stopwatch,
    book: Mutex<Book>,
}

impl Ledger {
    /// An empty book; each entry also goes into `log`, as a line of JSON.
    pub(super) fn new(log: Option<File>) -> Self {
        let log = log.map(BufWriter::new);
        let book = Book { orders: HashMap::new(), newest: 0, tally: Tally::default(), log };
        Self { watch: Stopwatch::start(), book: Mutex::new(book) }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("no client panics with the book open")
    }

    /// Microseconds since the book was opened.
    fn now_us(&self) -> u64 {
        self.watch.elapsed_us()
    }

    fn entry(&self, book: &mut Book, what: &str, order: u64, more: &serde_json::Value) {
        if let Some(log) = &mut book.log {
            let line = json!({"at_us": self.now_us(), "what": what, "order": order, "more": more});
            // A log that cannot be written is missed by its reader; the verdict does not rest on it.
            let _ = writeln!(log, "{line}");
        }
    }

    /// A client was answered, or not.
    pub(super) fn answered(&self, operation: Operation, answer: Answer, count: u64) {
        self.book().tally.answered(operation, answer, count);
    }

    /// An answer that no broker may give to this.
    pub(super) fn unexpected(&self, order: u64, text: &str) {
        self.book().tally.violation(Violation::Unexpected, order, text);
    }

    /// A new order, about to be produced so that it is due after `delay_us`.
    pub(super) fn open_order(&self, is_retried: bool, delay_us: impl Fn(u64) -> u64) -> u64 {
        let mut book = self.book();
        book.newest += 1;
        let number = book.newest;
        let not_before_us = self.now_us() + delay_us(number);
        book.orders.insert(number, Order::new(is_retried, not_before_us));
        self.entry(&mut book, "produce", number, &json!({"dedup": is_retried}));
        number
    }

    fn with<T>(&self, number: u64, act: impl FnOnce(&mut Order) -> T) -> Option<T> {
        self.book().orders.get_mut(&number).map(act)
    }

    /// True if the order's produce carries a dedup id.
    pub(super) fn is_retried(&self, number: u64) -> bool {
        self.with(number, |order| order.is_retried).unwrap_or(false)
    }

    pub(super) fn produced(&self, number: u64) {
        self.with(number, |order| order.produced = Produced::Confirmed);
        self.entry(&mut self.book(), "produced", number, &json!(null));
    }

    pub(super) fn refused(&self, number: u64) {
        self.with(number, |order| order.produced = Produced::Refused);
        self.entry(&mut self.book(), "refused", number, &json!(null));
    }

    /// Every produce that is repeated until it is answered is answered.
    pub(super) fn all_retries_answered(&self) -> bool {
        self.book().orders.values().all(|order| !order.is_retried || order.produced != Produced::Unknown)
    }

    /// A delivery came in. False: it is an old one that was only read late.
    pub(super) fn delivered(&self, number: u64, arrival: Arrival) -> bool {
        let now_us = self.now_us();
        let mut book = self.book();
        self.entry(&mut book, "delivered", number, &json!({"delivery": arrival.delivery, "attempt": arrival.attempt}));
        let Book { orders, tally, .. } = &mut *book;
        tally.deliveries += 1;
        let Some(order) = orders.get_mut(&number) else {
            tally.violation(Violation::WrongContent, number, "nobody has produced it");
            return true;
        };
        if order.is_late_reading(arrival) {
            return false;
        }
        if arrival.delivered_at_us < arrival.due_at_us {
            tally.violation(Violation::Early, number, &format!("by the broker's own clock: {arrival:?}"));
        }
        if !order.is_moved && now_us + EARLY_TOLERANCE_US < order.not_before_us {
            let us = order.not_before_us - now_us;
            tally.violation(Violation::Early, number, &format!("{us} us early by the client's clock: {arrival:?}"));
        }
        if let Some(end) = order.end() {
            tally.violation(Violation::Resurrected, number, &format!("it was {end} and comes back: {arrival:?}"));
        }
        if arrival.attempt > order.last_attempt + 1 {
            let before = order.last_attempt;
            tally.violation(Violation::AttemptSkipped, number, &format!("after attempt {before}: {arrival:?}"));
        }
        if arrival.delivery <= order.last_delivery {
            tally.duplicates += 1;
            if arrival.delivery <= order.last_settled {
                tally.violation(Violation::SettledAgain, number, &format!("its settlement was answered: {arrival:?}"));
            }
            if !arrival.redelivered {
                tally.violation(Violation::NotFlagged, number, &format!("a repeated delivery: {arrival:?}"));
            }
        }
        order.arrived(arrival, now_us);
        true
    }

    /// An ack is about to be sent; answers when.
    pub(super) fn ack_asked(&self, number: u64) -> u64 {
        self.entry(&mut self.book(), "ack", number, &json!(null));
        self.with(number, |order| order.ack_asked = true);
        self.now_us()
    }

    /// A nack is about to be sent; answers when.
    pub(super) fn nack_asked(&self, number: u64) -> u64 {
        self.entry(&mut self.book(), "nack", number, &json!(null));
        self.with(number, |order| order.nack_asked = true);
        self.now_us()
    }

    /// A settlement that was asked for at `asked_us` was answered.
    pub(super) fn settled(&self, number: u64, delivery: u32, asked_us: u64, settled: Settled) {
        let mut book = self.book();
        self.entry(&mut book, "settled", number, &json!({"delivery": delivery, "as": format!("{settled:?}")}));
        let Book { orders, tally, .. } = &mut *book;
        let Some(order) = orders.get_mut(&number) else { return };
        order.last_settled = order.last_settled.max(delivery);
        match settled {
            Settled::Acked => order.acked = true,
            Settled::Dead => order.dead = true,
            Settled::Cancelled => order.cancelled = true,
            Settled::Waits(wait_us) => {
                let not_before_us = asked_us + wait_us;
                let came_us = order.came_after(delivery);
                if let Some(us) = came_us.filter(|us| !order.is_moved && us + EARLY_TOLERANCE_US < not_before_us) {
                    let text = format!("{} us after a nack that asked for {wait_us}", us.saturating_sub(asked_us));
                    tally.violation(Violation::Early, number, &text);
                }
                order.not_before_us = order.not_before_us.max(not_before_us);
            }
        }
    }

    /// A stream broke or the broker went away while so many deliveries were not settled: each may come again.
    pub(super) fn note_in_flight(&self, count: u64) {
        self.book().tally.in_flight_at_breaks += count;
    }

    /// One of the newest 500 orders, if its produce was answered.
    pub(super) fn some_confirmed(&self, pick: impl FnOnce(u64) -> u64) -> Option<u64> {
        let book = self.book();
        let newest = book.newest;
        let number = newest.checked_sub(if newest == 0 { 1 } else { pick(newest.min(500)) })?;
        let order = book.orders.get(&number)?;
        (order.produced == Produced::Confirmed).then_some(number)
    }

    /// Orders that may still be live, confirmed or not.
    pub(super) fn maybe_live(&self) -> Vec<u64> {
        let book = self.book();
        let mut live: Vec<u64> =
            book.orders.iter().filter(|(_, order)| !order.is_over()).map(|(&number, _)| number).collect();
        live.sort_unstable();
        live
    }

    /// A cancel is about to be sent.
    pub(super) fn cancel_asked(&self, number: u64) {
        self.entry(&mut self.book(), "cancel", number, &json!(null));
        self.with(number, |order| order.open_cancels += 1);
    }

    pub(super) fn cancelled(&self, number: u64) {
        self.entry(&mut self.book(), "cancelled", number, &json!(null));
        self.with(number, |order| order.cancelled = true);
    }

    /// A cancel was answered, and it did not and will not take effect.
    pub(super) fn not_cancelled(&self, number: u64) {
        self.with(number, |order| order.open_cancels -= 1);
    }

    /// A reschedule is about to be sent: from now on the order may come at any time.
    pub(super) fn reschedule_asked(&self, number: u64) {
        self.entry(&mut self.book(), "reschedule", number, &json!(null));
        self.with(number, |order| order.is_moved = true);
    }

    /// The broker knows nothing of an order: only right if it may be over.
    pub(super) fn not_found(&self, number: u64) {
        let mut book = self.book();
        let Book { orders, tally, .. } = &mut *book;
        if orders.get(&number).is_some_and(|order| !order.may_be_over()) {
            tally.violation(Violation::Lost, number, "its produce was confirmed and the broker does not know it");
        }
    }

    /// So many messages did not come to an end in the time given.
    pub(super) fn stuck(&self, count: u64) {
        if count > 0 {
            self.book().tally.violation(Violation::Stuck, 0, &format!("{count} messages do not come to an end"));
        }
    }

    /// A key of a message that is over cannot be used again.
    pub(super) fn key_leaked(&self, number: u64, text: &str) {
        self.book().tally.violation(Violation::KeyLeaked, number, text);
    }

    /// Orders that are over and gave their keys free, at most `max`.
    pub(super) fn ended(&self, max: usize) -> Vec<u64> {
        let book = self.book();
        let is_free = |order: &&Order| (order.acked || order.cancelled) && !order.dead;
        let mut ended: Vec<u64> =
            book.orders.iter().filter(|(_, order)| is_free(order)).map(|(&number, _)| number).collect();
        ended.sort_unstable();
        let step = (ended.len() / max.max(1)).max(1);
        ended.into_iter().step_by(step).take(max).collect()
    }

    /// The broker has run empty but for the dead letters: every confirmed order must have ended in a way that
    /// somebody asked for, and the counts of the broker must agree.
    pub(super) fn settle_accounts(&self, stats: &pb::TopicStats, dead: &std::collections::HashSet<u64>) {
        let mut book = self.book();
        let Book { orders, tally, newest, .. } = &mut *book;
        let (mut confirmed, mut acked) = (0, 0);
        for (&number, order) in orders.iter() {
            let is_dead = dead.contains(&number);
            confirmed += u64::from(order.produced == Produced::Confirmed);
            acked += u64::from(order.acked);
            if order.produced == Produced::Confirmed && !is_dead && !order.may_be_over() {
                tally.violation(Violation::Lost, number, "its produce was confirmed and nobody ended it");
            }
            if order.dead && !is_dead && !order.may_be_cancelled() {
                tally.violation(Violation::Lost, number, "its death was confirmed and it is not a dead letter");
            }
            if is_dead && let Some(end) = order.end().filter(|&end| end != "dead") {
                tally.violation(Violation::Resurrected, number, &format!("it was {end} and is a dead letter"));
            }
        }
        let ends = stats.acked + stats.cancelled + stats.dead + stats.purged + stats.replaced + stats.quarantined;
        if stats.produced != ends + stats.scheduled + stats.ready + stats.leased {
            tally.violation(Violation::NotConserved, 0, &format!("{stats:?}"));
        }
        if !(confirmed..=*newest).contains(&stats.produced) {
            let text = format!("{} produced, {confirmed} confirmed of {newest}", stats.produced);
            tally.violation(Violation::NotConserved, 0, &text);
        }
        if stats.acked < acked {
            let text = format!("the broker counts {} acks, its clients {acked}", stats.acked);
            tally.violation(Violation::NotConserved, 0, &text);
        }
        if tally.duplicates > tally.in_flight_at_breaks {
            let text = format!("{} in flight when connections broke", tally.in_flight_at_breaks);
            tally.violation(Violation::TooManyDuplicates, 0, &text);
        }
    }

    /// The counts so far.
    pub(super) fn tally(&self) -> Tally {
        let mut book = self.book();
        if let Some(log) = &mut book.log {
            let _ = log.flush();
        }
        book.tally.clone()
    }
}
