//! What the clients were answered before the cuts, and what must therefore be so after them.

use std::fmt;
use std::sync::{Mutex, MutexGuard};

use duewheel::clock::wall_now;
use duewheel::pb::{Delivery, MessageInfo, MessageState, Outcome};
use fastrand::Rng;

/// Orders wait their turn to be cancelled, so that their messages are in pages by then.
const CANCEL_LAG: usize = 2_000;
/// So many wrongs are shown one by one.
const SHOWN: usize = 5;

/// So many orders, about, are verified again although nothing was done to them.
const SAMPLE: usize = 500;

/// One order: one message, and what was answered about it.
#[derive(Clone, Default)]
struct Order {
    /// The produce was confirmed, with this due time, ms; or that of a later nack.
    due_at: Option<i64>,
    /// Nacks that were confirmed.
    nacks: u32,
    is_nack_asked: bool,
    /// Settlements and cancels that were sent may hold, answered or not.
    is_end_asked: bool,
    ended: Option<Outcome>,
    /// Since it was last verified.
    is_changed: bool,
}

/// What must not happen, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wrongs {
    /// A confirmed change did not hold.
    pub(crate) lost: usize,
    /// Delivered before it was due.
    pub(crate) early: usize,
    /// Confirmed to be over, and there again.
    pub(crate) resurrected: usize,
    /// Waits, but not until the time that was confirmed.
    pub(crate) shifted: usize,
}

#[derive(Default)]
struct Book {
    orders: Vec<Order>,
    confirmed: usize,
    wrongs: Wrongs,
    shown: usize,
    next_to_cancel: usize,
}

/// The book of all clients of one disk.
#[derive(Default)]
pub(crate) struct Ledger(Mutex<Book>);

impl Ledger {
    /// New orders, about to be produced; the number of the first.
    pub(crate) fn open(&self, count: usize) -> usize {
        let mut book = self.book();
        let first = book.orders.len();
        book.orders.resize(first + count, Order::default());
        first
    }

    pub(crate) fn produced(&self, number: usize, due_at: Option<prost_types::Timestamp>) {
        self.confirm(number, |order| order.due_at = Some(ms(due_at)));
    }

    /// A delivery came in.
    pub(crate) fn delivered(&self, number: usize, delivery: &Delivery) {
        let now = i64::try_from(wall_now().as_millis()).expect("a present instant");
        let (due_at, delivered_at) = (ms(delivery.due_at), ms(delivery.delivered_at));
        let mut book = self.book();
        let order = &book.orders[number];
        let is_before_promise = !order.is_nack_asked && order.due_at.is_some_and(|promised| now < promised);
        let (is_early, is_over) = (delivered_at < due_at || now < due_at || is_before_promise, order.ended.is_some());
        if is_early {
            book.wrong(|wrongs| &mut wrongs.early, || format!("order {number} at {now}: {delivery:?}"));
        }
        if is_over {
            book.wrong(|wrongs| &mut wrongs.resurrected, || format!("order {number} is delivered: {delivery:?}"));
        }
    }

    pub(crate) fn end_asked(&self, number: usize) {
        self.book().orders[number].is_end_asked = true;
    }

    pub(crate) fn ended(&self, number: usize, outcome: Outcome) {
        self.confirm(number, |order| order.ended = Some(outcome));
    }

    pub(crate) fn nack_asked(&self, number: usize) {
        self.book().orders[number].is_nack_asked = true;
    }

    pub(crate) fn nacked(&self, number: usize) {
        self.confirm(number, |order| order.nacks += 1);
    }

    /// Confirmed orders of some age that wait and are to be cancelled: most of each second, so that its pages are
    /// worth a compaction. None if there are none yet.
    pub(crate) fn to_cancel(&self, count: usize, is_cancelled: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut book = self.book();
        let mut chosen = Vec::new();
        while chosen.len() < count && book.next_to_cancel + CANCEL_LAG < book.orders.len() {
            let number = book.next_to_cancel;
            book.next_to_cancel += 1;
            if is_cancelled(number) && book.orders[number].due_at.is_some() {
                book.orders[number].is_end_asked = true;
                chosen.push(number);
            }
        }
        chosen
    }

    /// Confirmed orders to look at: all of them, or those that have changed since they were looked at and some more.
    pub(crate) fn to_verify(&self, random: &mut Rng, all: bool) -> Vec<usize> {
        let book = self.book();
        let count = book.orders.len();
        let mut is_sample = || random.usize(0..count) < SAMPLE;
        let mut is_chosen = |order: &Order| order.due_at.is_some() && (all || order.is_changed || is_sample());
        (0..book.orders.len()).filter(|&number| is_chosen(&book.orders[number])).collect()
    }

    /// What the broker now says of a confirmed order; `None`: it does not know it. What it says holds from then on.
    pub(crate) fn found(&self, number: usize, message: Option<&MessageInfo>) {
        let mut book = self.book();
        let order = &mut book.orders[number];
        order.is_changed = false;
        let Some(message) = message else {
            return book.wrong(|wrongs| &mut wrongs.lost, || format!("order {number} is not known"));
        };
        let is_done = message.state() == MessageState::Done;
        match order.ended {
            Some(outcome) if is_done && message.outcome() == outcome => {}
            Some(_) if !is_done => {
                book.wrong(|wrongs| &mut wrongs.resurrected, || format!("order {number} had ended: {message:?}"));
            }
            None if is_done && order.is_end_asked => order.ended = Some(message.outcome()),
            // Within a tier's attempt nothing else counts attempts here.
            None if !is_done && message.attempts >= order.nacks => {
                // A lease that was given back waits for the redelivery gap.
                let promised = order.due_at.filter(|_| !order.is_nack_asked && message.history.is_empty());
                if promised.is_some_and(|promised| promised != ms(message.due_at)) {
                    book.wrong(
                        |wrongs| &mut wrongs.shifted,
                        || format!("order {number} is due otherwise: {message:?}"),
                    );
                }
            }
            _ => book.wrong(|wrongs| &mut wrongs.lost, || format!("order {number} is otherwise: {message:?}")),
        }
    }

    /// Confirmed changes so far.
    pub(crate) fn confirmed(&self) -> usize {
        self.book().confirmed
    }

    pub(crate) fn wrongs(&self) -> Wrongs {
        self.book().wrongs
    }

    /// All that was confirmed is gone: the disk does not open any more.
    pub(crate) fn lost_all(&self) {
        let mut book = self.book();
        book.wrongs.lost = book.confirmed;
    }

    /// The control is expected to lose: it does not show what.
    pub(crate) fn be_quiet(&self) {
        self.book().shown = SHOWN;
    }

    fn confirm(&self, number: usize, change: impl FnOnce(&mut Order)) {
        let mut book = self.book();
        book.orders[number].is_changed = true;
        change(&mut book.orders[number]);
        book.confirmed += 1;
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().expect("no client panics with the book open")
    }
}

impl Book {
    fn wrong(&mut self, count: impl Fn(&mut Wrongs) -> &mut usize, what: impl Fn() -> String) {
        *count(&mut self.wrongs) += 1;
        if self.shown < SHOWN {
            self.shown += 1;
            eprintln!("{}", what());
        }
    }
}

impl fmt::Display for Wrongs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lost, early, resurrected, shifted } = self;
        write!(f, "{lost} lost, {early} early, {resurrected} resurrected, {shifted} shifted")
    }
}

fn ms(at: Option<prost_types::Timestamp>) -> i64 {
    let at = at.expect("answers carry their instants");
    at.seconds * 1_000 + i64::from(at.nanos / 1_000_000)
}
