//! What the clients know: written down before they ask, and when they are answered.
//!
//! The ledger is the judge. It trusts nothing that the broker says about itself, only what its clients asked for,
//! what they were answered, and when by their own clock. It never stops at a violation: it counts each by its kind
//! and keeps the first as examples.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};

use super::accounts::{self, Dead};
use super::order::{Novelty, Order, Produced};
use super::tally::{Operation, Result as Answer, Tally, Violation};
use super::world::{EXTENDED_MS, MAX_ATTEMPTS};
use crate::client::Error;
use crate::clock::since_boot;
use crate::pb;

/// The broker's clock has whole milliseconds, so a wait may look this much shorter, microseconds.
const EARLY_TOLERANCE_US: u64 = 2_000;
/// It is slewed by 1 part in 2,000, and the clocks of two machines differ by less than that: a wait may look shorter
/// by one part in so many.
const EARLY_TOLERANCE_DIVISOR: u64 = 1_000;

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

/// A delivery whose lease its consumer has extended, to keep it for a while.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    delivery: u32,
    /// The lease lasts at least until then, by the client's clock, microseconds; `None`: the extend was not answered.
    until_us: Option<u64>,
    /// A later delivery was read before that.
    came_again: bool,
}

/// What is written down.
pub(super) struct Book {
    /// The order with number n at n - 1.
    pub(super) orders: Vec<Order>,
    /// By order.
    kept: HashMap<u64, Kept>,
    pub(super) tally: Tally,
    log: Option<BufWriter<File>>,
    log_error: Option<io::Error>,
}

impl Book {
    fn order(&mut self, number: u64) -> Option<&mut Order> {
        self.orders.get_mut(usize::try_from(number.checked_sub(1)?).ok()?)
    }

    /// Takes out what is known of a delivery that was kept.
    fn take_kept(&mut self, number: u64, delivery: u32) -> Option<Kept> {
        self.kept.get(&number).filter(|kept| kept.delivery == delivery)?;
        self.kept.remove(&number)
    }
}

/// The book of all clients.
pub(super) struct Ledger {
    opened: Duration,
    /// Most orders; each takes about 100 bytes.
    max_orders: u64,
    book: Mutex<Book>,
}

impl Ledger {
    /// An empty book for at most `max_orders`; each entry also goes into `log`, as a line of JSON.
    pub(super) fn new(max_orders: u64, log: Option<File>) -> Self {
        let log = log.map(BufWriter::new);
        let (orders, kept, tally) = (Vec::new(), HashMap::new(), Tally::default());
        let book = Book { orders, kept, tally, log, log_error: None };
        Self { opened: since_boot(), max_orders, book: Mutex::new(book) }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("no client panics with the book open")
    }

    /// Microseconds since the book was opened, suspend included.
    pub(super) fn now_us(&self) -> u64 {
        u64::try_from(since_boot().saturating_sub(self.opened).as_micros()).unwrap_or(u64::MAX)
    }

    fn entry(&self, book: &mut Book, what: &str, order: u64, more: impl FnOnce() -> Value) {
        if let Some(log) = &mut book.log {
            let line = json!({"at_us": self.now_us(), "what": what, "order": order, "more": more()});
            if let Err(error) = writeln!(log, "{line}") {
                book.log_error = Some(error);
                book.log = None;
            }
        }
    }

    /// Writes an entry, and applies `act` to the order if there is one.
    fn note(&self, what: &str, number: u64, act: impl FnOnce(&mut Order)) {
        let mut book = self.book();
        self.entry(&mut book, what, number, || Value::Null);
        if let Some(order) = book.order(number) {
            act(order);
        }
    }

    /// Writes everything to the log file; an error if not all of it could be written.
    pub(super) fn close_log(&self) -> io::Result<()> {
        let mut book = self.book();
        if let Some(error) = book.log_error.take() {
            return Err(error);
        }
        book.log.as_mut().map_or(Ok(()), io::Write::flush)
    }

    /// A client was answered, or not.
    pub(super) fn answered(&self, operation: Operation, answer: Answer, count: u64) {
        self.book().tally.answered(operation, answer, count);
    }

    /// Something broke a promise in a way that the book alone cannot see.
    pub(super) fn violation(&self, violation: Violation, order: u64, text: &str) {
        self.book().tally.violation(violation, order, text);
    }

    /// An answer that no broker may give to this.
    pub(super) fn unexpected(&self, order: u64, text: &str) {
        self.violation(Violation::Unexpected, order, text);
    }

    /// A refusal for good, which no broker may give to this: at worst it has lost the topic.
    pub(super) fn refusal(&self, order: u64, what: &str, error: &Error) {
        let is_lost = error.reason() == Some("TOPIC_NOT_FOUND");
        let violation = if is_lost { Violation::Lost } else { Violation::Unexpected };
        self.violation(violation, order, &format!("{what}: {error}"));
    }

    /// A new order, about to be produced so that it is due after `delay_us`. `None`: the book is full.
    pub(super) fn open_order(&self, is_retried: bool, delay_us: impl Fn(u64) -> u64) -> Option<u64> {
        let mut book = self.book();
        let number = book.orders.len() as u64 + 1;
        if number > self.max_orders {
            return None;
        }
        let not_before_us = self.now_us() + at_least(delay_us(number));
        book.orders.push(Order::new(is_retried, not_before_us));
        self.entry(&mut book, "produce", number, || json!({"dedup": is_retried}));
        Some(number)
    }

    /// True if the order's produce carries a dedup id and is not answered yet.
    pub(super) fn is_retried(&self, number: u64) -> bool {
        self.book().order(number).is_some_and(|order| order.is_retried)
    }

    pub(super) fn produced(&self, number: u64) {
        self.produce_answered("produced", number, Produced::Confirmed);
    }

    pub(super) fn refused(&self, number: u64) {
        self.produce_answered("refused", number, Produced::Refused);
    }

    /// A produce was answered in a way that says nothing; it is not repeated.
    pub(super) fn produce_unclear(&self, number: u64) {
        self.produce_answered("unclear", number, Produced::Unknown);
    }

    fn produce_answered(&self, what: &str, number: u64, produced: Produced) {
        let mut book = self.book();
        self.entry(&mut book, what, number, || Value::Null);
        let Some(order) = book.order(number) else { return };
        order.produced = produced;
        order.is_retried = false;
    }

    /// A delivery came in. False: it is an old one that was only read late.
    pub(super) fn delivered(&self, number: u64, arrival: Arrival) -> bool {
        let now_us = self.now_us();
        let mut book = self.book();
        self.entry(
            &mut book,
            "delivered",
            number,
            || json!({"delivery": arrival.delivery, "attempt": arrival.attempt, "redelivered": arrival.redelivered}),
        );
        book.tally.deliveries += 1;
        let Some(order) = book.order(number) else {
            book.tally.violation(Violation::WrongContent, number, "nobody has produced it");
            return true;
        };
        let novelty = order.arrived(arrival, now_us);
        let found = match novelty {
            Novelty::ReadLate { .. } => None,
            _ => wrong_with(order, arrival, novelty, now_us),
        };
        let tally = &mut book.tally;
        tally.duplicates += u64::from(matches!(novelty, Novelty::Repeated | Novelty::ReadLate { is_repeated: true }));
        if let Some((violation, text)) = found {
            tally.violation(violation, number, &format!("{text}: {arrival:?}"));
        }
        if arrival.attempt > MAX_ATTEMPTS {
            tally.violation(Violation::BeyondCap, number, &format!("of {MAX_ATTEMPTS} attempts: {arrival:?}"));
        }
        if arrival.delivered_at_us < arrival.due_at_us {
            tally.violation(Violation::Early, number, &format!("by the broker's own clock: {arrival:?}"));
        }
        let is_late = matches!(novelty, Novelty::ReadLate { .. });
        if let Some(kept) = book.kept.get_mut(&number)
            && !is_late
            && arrival.delivery > kept.delivery
        {
            kept.came_again |= kept.until_us.is_some_and(|until_us| now_us < until_us);
        }
        !is_late
    }

    /// An ack is about to be sent; answers when.
    pub(super) fn ack_asked(&self, number: u64, delivery: u32) -> u64 {
        self.note("ack", number, |order| order.open_acks += 1);
        self.let_go(number, delivery);
        self.now_us()
    }

    /// An extend is about to be sent, of a delivery that will be kept; answers when.
    pub(super) fn extend_asked(&self, number: u64, delivery: u32) -> u64 {
        self.note("extend", number, |_| {});
        self.book().kept.insert(number, Kept { delivery, until_us: None, came_again: false });
        self.now_us()
    }

    /// An extend that was asked for at `asked_us` was answered as done.
    pub(super) fn extended(&self, number: u64, delivery: u32, asked_us: u64) {
        self.note("extended", number, |_| {});
        if let Some(kept) = self.book().kept.get_mut(&number).filter(|kept| kept.delivery == delivery) {
            kept.until_us = Some(asked_us + at_least(EXTENDED_MS * 1_000));
        }
    }

    /// A delivery is not kept any longer: it is to be settled, or its stream is over. What was seen of it meanwhile.
    pub(super) fn let_go(&self, number: u64, delivery: u32) -> Option<Kept> {
        self.book().take_kept(number, delivery)
    }

    /// The ack of a delivery that was kept was answered, on the stream that it came by: so nothing but its time could
    /// have ended the lease before.
    pub(super) fn kept_settled(&self, number: u64, kept: Kept, is_refused: bool) {
        let Some(until_us) = kept.until_us else { return };
        let left_us = until_us.saturating_sub(self.now_us());
        let mut book = self.book();
        if is_refused && left_us > 0 {
            let text = format!("its ack was refused at least {left_us} us before its extended lease was over");
            book.tally.violation(Violation::LeaseCut, number, &text);
        } else if kept.came_again {
            book.tally.violation(Violation::LeaseCut, number, "it came again before its extended lease was over");
        } else {
            book.tally.leases_kept += u64::from(!is_refused);
        }
    }

    /// An ack was answered, and it did not and will not take effect.
    pub(super) fn not_acked(&self, number: u64) {
        self.note("not acked", number, |order| order.open_acks = order.open_acks.saturating_sub(1));
    }

    /// A nack is about to be sent; answers when.
    pub(super) fn nack_asked(&self, number: u64, delivery: u32) -> u64 {
        self.note("nack", number, |_| {});
        self.let_go(number, delivery);
        self.now_us()
    }

    /// A settlement that was asked for at `asked_us` was answered.
    pub(super) fn settled(&self, number: u64, delivery: u32, asked_us: u64, settled: Settled) {
        let mut book = self.book();
        self.entry(&mut book, "settled", number, || json!({"delivery": delivery, "as": format!("{settled:?}")}));
        let Some(order) = book.order(number) else { return };
        order.last_settled = order.last_settled.max(delivery);
        let found = match settled {
            Settled::Acked => end(order, "acked", |order| &mut order.acked),
            Settled::Dead => end(order, "dead", |order| &mut order.dead),
            Settled::Cancelled if !order.may_be_cancelled() => {
                Some((Violation::Lost, "a nack was answered as cancelled, and nobody had asked for that".to_owned()))
            }
            Settled::Cancelled => end(order, "cancelled", |order| &mut order.cancelled),
            Settled::Waits(wait_us) => {
                let not_before_us = asked_us + at_least(wait_us);
                order.not_before_us = order.not_before_us.max(not_before_us);
                let came_us = order.came_after(delivery).filter(|&us| !order.is_moved && us < not_before_us);
                came_us.map(|us| {
                    let after = us.saturating_sub(asked_us);
                    (Violation::Early, format!("{after} us after a nack that waits {wait_us} us"))
                })
            }
        };
        if let Some((violation, text)) = found {
            book.tally.violation(violation, number, &text);
        }
    }

    /// A stream broke while these deliveries were not settled: each may come again, unless the message has gone on.
    pub(super) fn note_in_flight(&self, open: impl Iterator<Item = (u64, u32)>) {
        let mut book = self.book();
        let count = open.filter(|&open| is_in_flight(&mut book, open)).count();
        book.tally.in_flight_at_breaks += count as u64;
    }

    /// Takes those deliveries from a set that are over: their message has gone on or has ended.
    pub(super) fn keep_in_flight(&self, open: &mut std::collections::HashSet<(u64, u32)>) {
        let mut book = self.book();
        open.retain(|&open| is_in_flight(&mut book, open));
    }

    /// One of the newest 500 orders, if its produce was answered.
    pub(super) fn some_confirmed(&self, pick: impl FnOnce(u64) -> u64) -> Option<u64> {
        let mut book = self.book();
        let newest = book.orders.len() as u64;
        let number = newest.checked_sub(if newest == 0 { 1 } else { pick(newest.min(500)) })?;
        let order = book.order(number)?;
        (order.produced == Produced::Confirmed).then_some(number)
    }

    /// Orders that may still be live, confirmed or not.
    pub(super) fn maybe_live(&self) -> Vec<u64> {
        let book = self.book();
        (1..).zip(&book.orders).filter(|(_, order)| !order.is_over()).map(|(number, _)| number).collect()
    }

    /// A cancel is about to be sent.
    pub(super) fn cancel_asked(&self, number: u64) {
        self.note("cancel", number, |order| order.open_cancels += 1);
    }

    pub(super) fn cancelled(&self, number: u64) {
        let mut book = self.book();
        self.entry(&mut book, "cancelled", number, || Value::Null);
        let found = book.order(number).and_then(|order| end(order, "cancelled", |order| &mut order.cancelled));
        if let Some((violation, text)) = found {
            book.tally.violation(violation, number, &text);
        }
    }

    /// A cancel was answered, and it did not and will not take effect.
    pub(super) fn not_cancelled(&self, number: u64) {
        self.note("not cancelled", number, |order| order.open_cancels -= 1);
    }

    /// A reschedule is about to be sent: from now on the order may come at any time.
    pub(super) fn reschedule_asked(&self, number: u64) {
        self.note("reschedule", number, |order| order.is_moved = true);
    }

    /// The broker knows nothing of an order: only right if it may be over.
    pub(super) fn not_found(&self, number: u64) {
        let mut book = self.book();
        if book.order(number).is_some_and(|order| !order.dead && !order.may_be_over()) {
            let text = "its produce was confirmed and the broker does not know it";
            book.tally.violation(Violation::Lost, number, text);
        }
    }

    /// Orders that are over and gave their keys free, at most `max`.
    pub(super) fn ended(&self, max: usize, dead: &Dead) -> Vec<u64> {
        let book = self.book();
        let is_free = |(number, order): &(u64, &Order)| (order.acked || order.cancelled) && !dead.contains_key(number);
        let ended: Vec<u64> = (1..).zip(&book.orders).filter(is_free).map(|(number, _)| number).collect();
        let step = ended.len().div_ceil(max.max(1)).max(1);
        ended.into_iter().step_by(step).collect()
    }

    /// Closes the accounts with what the broker says in the end.
    pub(super) fn settle_accounts(&self, stats: &pb::TopicStats, dead: &Dead) {
        accounts::settle(&mut self.book(), stats, dead);
    }

    /// The counts so far.
    pub(super) fn tally(&self) -> Tally {
        self.book().tally.clone()
    }
}

/// The least that a wait may look like by another clock.
fn at_least(wait_us: u64) -> u64 {
    (wait_us - wait_us / EARLY_TOLERANCE_DIVISOR).saturating_sub(EARLY_TOLERANCE_US)
}

/// What is wrong with a delivery, the gravest first: what comes again after its end is early as well, and the like.
fn wrong_with(order: &Order, arrival: Arrival, novelty: Novelty, now_us: u64) -> Option<(Violation, String)> {
    if let Some(end) = order.end() {
        return Some((Violation::Resurrected, format!("it was {end} and comes back")));
    }
    if order.produced == Produced::Refused {
        return Some((Violation::Unexpected, "its produce was refused as not done, and it comes".to_owned()));
    }
    if novelty == Novelty::Repeated {
        return if arrival.delivery <= order.last_settled {
            Some((Violation::SettledAgain, "its settlement was answered".to_owned()))
        } else if arrival.redelivered {
            None
        } else {
            Some((Violation::NotFlagged, "a repeated delivery".to_owned()))
        };
    }
    let early_us = order.not_before_us.saturating_sub(now_us);
    (early_us > 0 && !order.is_moved)
        .then(|| (Violation::Early, format!("at least {early_us} us early by the client's clock")))
}

/// An end was confirmed: there can be one only.
fn end(order: &mut Order, end: &str, flag: impl FnOnce(&mut Order) -> &mut bool) -> Option<(Violation, String)> {
    let before = order.end().filter(|&before| before != end);
    *flag(order) = true;
    before.map(|before| (Violation::Resurrected, format!("it was {before}, and was then confirmed to be {end}")))
}

/// The message of a delivery that was not settled has neither gone on to the next nor ended.
fn is_in_flight(book: &mut Book, (number, delivery): (u64, u32)) -> bool {
    book.order(number).is_some_and(|order| order.last_delivery == delivery && order.end().is_none())
}
