//! What the clients know: written down before they ask, and when they are answered.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use duewheel::clock::wall_now;
use duewheel::pb::{Delivery, TopicStats};

/// One order: one message, and what is known of it.
#[expect(clippy::struct_excessive_bools, reason = "each is an answer of its own, in any combination")]
#[derive(Default)]
struct Order {
    /// The produce was answered with this due time, ms.
    confirmed_due_at: Option<u64>,
    /// It carries a dedup id, so that a produce without answer is repeated until it is answered.
    is_retried: bool,
    ack_asked: bool,
    acked: bool,
    /// Cancels that may have taken effect: not answered, or to take effect when the lease ends.
    open_cancels: u32,
    cancelled: bool,
    /// Numbers of the deliveries that were seen.
    deliveries: HashSet<u32>,
    /// Those whose settlement was answered.
    settled: HashSet<u32>,
    last_attempt: u32,
}

#[derive(Default)]
struct Book {
    orders: HashMap<u64, Order>,
    /// Deliveries that were seen and whose settlement was not answered yet.
    open: HashSet<(u64, u32)>,
    /// How many were open at the kills.
    open_at_kills: usize,
    duplicates: usize,
    next: u64,
}

/// The book of all clients. It panics at the first thing that must not happen.
#[derive(Default)]
pub(crate) struct Ledger(Mutex<Book>);

impl Ledger {
    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.0.lock().expect("no client panics with the book open")
    }

    /// A new order, about to be produced.
    pub(crate) fn open_order(&self, is_retried: bool) -> u64 {
        let mut book = self.book();
        book.next += 1;
        let number = book.next;
        book.orders.insert(number, Order { is_retried, ..Order::default() });
        number
    }

    /// True if the order's produce carries a dedup id.
    pub(crate) fn is_retried(&self, number: u64) -> bool {
        self.book().orders[&number].is_retried
    }

    pub(crate) fn produced(&self, number: u64, due_at: u64) {
        self.book().orders.get_mut(&number).expect("a known order").confirmed_due_at = Some(due_at);
    }

    pub(crate) fn all_retries_answered(&self) -> bool {
        self.book().orders.values().all(|order| !order.is_retried || order.confirmed_due_at.is_some())
    }

    /// A delivery came in. Nothing may come early, and nothing that was answered to be over may come at all.
    pub(crate) fn delivered(&self, number: u64, delivery: &Delivery) {
        let now = wall_now().as_millis();
        let mut book = self.book();
        let order = book.orders.get_mut(&number).expect("only known orders are delivered");
        assert!(!order.acked, "order {number} was acked and comes back: {delivery:?}");
        assert!(!order.cancelled, "order {number} was cancelled and is delivered: {delivery:?}");
        let ms = |at: Option<prost_types::Timestamp>| {
            let at = at.expect("deliveries carry their instants");
            at.seconds * 1_000 + i64::from(at.nanos / 1_000_000)
        };
        assert!(ms(delivery.delivered_at) >= ms(delivery.due_at), "early by the broker's clock: {delivery:?}");
        assert!(i64::try_from(now).expect("a present instant") >= ms(delivery.due_at), "early by ours: {delivery:?}");
        assert!(delivery.attempt <= order.last_attempt + 1, "an attempt was skipped: {delivery:?}");
        order.last_attempt = order.last_attempt.max(delivery.attempt);
        let is_new = order.deliveries.insert(delivery.delivery);
        if !is_new {
            let number_of_it = delivery.delivery;
            assert!(!order.settled.contains(&number_of_it), "settled delivery {number_of_it} of {number} comes again");
            assert!(delivery.redelivered, "a duplicate is not flagged: {delivery:?}");
            book.duplicates += 1;
        }
        book.open.insert((number, delivery.delivery));
    }

    pub(crate) fn ack_asked(&self, number: u64) {
        self.book().orders.get_mut(&number).expect("a known order").ack_asked = true;
    }

    /// A settlement was answered: done for good, or waiting again.
    pub(crate) fn settled(&self, number: u64, delivery: u32, acked: bool, cancelled: bool) {
        let mut book = self.book();
        book.open.remove(&(number, delivery));
        let order = book.orders.get_mut(&number).expect("a known order");
        order.settled.insert(delivery);
        order.acked |= acked;
        order.cancelled |= cancelled;
    }

    /// A settlement was refused: the lease had ended before.
    pub(crate) fn lease_lost(&self, number: u64, delivery: u32) {
        self.book().open.remove(&(number, delivery));
    }

    /// Some order whose produce was answered.
    pub(crate) fn some_confirmed(&self, random: &mut fastrand::Rng) -> Option<u64> {
        let book = self.book();
        let newest = book.next;
        (newest > 0)
            .then(|| newest - random.u64(0..newest.min(500)))
            .filter(|number| book.orders[number].confirmed_due_at.is_some())
    }

    /// Orders whose produce was not answered.
    pub(crate) fn unconfirmed(&self) -> Vec<u64> {
        let book = self.book();
        let unconfirmed = book.orders.iter().filter(|(_, order)| order.confirmed_due_at.is_none());
        unconfirmed.map(|(&number, _)| number).collect()
    }

    /// Orders that nobody has been seen to end.
    pub(crate) fn unended(&self) -> Vec<u64> {
        let book = self.book();
        let is_unended = |order: &&Order| order.confirmed_due_at.is_some() && !order.ack_asked && !order.cancelled;
        book.orders.iter().filter(|(_, order)| is_unended(order)).map(|(&number, _)| number).collect()
    }

    pub(crate) fn cancel_asked(&self, number: u64) {
        self.book().orders.get_mut(&number).expect("a known order").open_cancels += 1;
    }

    pub(crate) fn cancelled(&self, number: u64) {
        self.book().orders.get_mut(&number).expect("a known order").cancelled = true;
    }

    /// A cancel was answered, and it did not and will not take effect.
    pub(crate) fn not_cancelled(&self, number: u64) {
        self.book().orders.get_mut(&number).expect("a known order").open_cancels -= 1;
    }

    /// The broker knows nothing of an order: only right if it may be over.
    pub(crate) fn not_found(&self, number: u64) {
        let book = self.book();
        let order = &book.orders[&number];
        let may_be_over =
            order.ack_asked || order.cancelled || order.open_cancels > 0 || order.confirmed_due_at.is_none();
        assert!(may_be_over, "order {number} was confirmed and is not known any more");
    }

    /// The broker is about to be killed: what is open now may come again.
    pub(crate) fn note_kill(&self) {
        let mut book = self.book();
        book.open_at_kills += book.open.len();
    }

    /// The broker has run empty: every confirmed order must have ended in a way that somebody asked for.
    pub(crate) fn settle_accounts(&self, stats: &TopicStats, kills: u64) {
        let book = self.book();
        for (number, order) in &book.orders {
            let ended = order.ack_asked || order.cancelled || order.open_cancels > 0;
            assert!(order.confirmed_due_at.is_none() || ended, "order {number} was confirmed and is lost");
        }
        let confirmed = book.orders.values().filter(|order| order.confirmed_due_at.is_some()).count() as u64;
        let acked = book.orders.values().filter(|order| order.acked).count() as u64;
        let duplicates = book.duplicates;
        println!(
            "{kills} kills, {confirmed} of {} produces confirmed, {acked} acks confirmed, {duplicates} duplicates, {} in flight at the kills",
            book.next, book.open_at_kills
        );
        let produced = stats.produced;
        assert!(
            (confirmed..=book.next).contains(&produced),
            "{produced} produced, {confirmed} confirmed of {}",
            book.next
        );
        assert_eq!(produced, stats.acked + stats.cancelled + stats.dead, "messages are not conserved: {stats:?}");
        assert!(stats.acked >= acked, "the broker counts {} acks, its clients {acked}", stats.acked);
        assert!(duplicates <= book.open_at_kills, "{duplicates} duplicates, {} in flight", book.open_at_kills);
        assert!(confirmed > 100 * kills, "hardly any load: {confirmed} produces");
    }
}
