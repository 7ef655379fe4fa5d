//! The compensator: takes dropped orders when they are due, asks the channel, settles by the answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use duewheel::client::{Consumer, Delivery, Error, Nack};
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use crate::Shop;
use crate::orders::OrderState;

/// What the compensator saw, for the report.
pub(crate) struct Tally {
    /// By attempt, from 1.
    pub(crate) tiers: Vec<Tier>,
    /// Milliseconds from the due time to the delivery.
    pub(crate) lateness_ms: Histogram<u64>,
    /// Leases that a restart of the broker made void, so that their messages were delivered once more.
    pub(crate) redelivered: u64,
    /// The last delivery number of each order: a void lease leaves its number to the next one.
    numbers: HashMap<String, u32>,
    /// Settlements that found their lease lost, or were not answered.
    pub(crate) unsettled: u64,
}

/// Deliveries of one attempt.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tier {
    /// All of them.
    pub(crate) delivered: u64,
    /// The channel gave a definite answer.
    pub(crate) answered: u64,
    /// It said "processing".
    pub(crate) not_yet: u64,
    /// The query broke.
    pub(crate) failed: u64,
    /// The order was settled already; nothing was asked.
    pub(crate) settled_before: u64,
}

impl Tally {
    pub(crate) fn new() -> Self {
        let lateness_ms = Histogram::new(3).expect("three digits are within the range");
        Self { tiers: Vec::new(), lateness_ms, redelivered: 0, numbers: HashMap::new(), unsettled: 0 }
    }

    fn tier(&mut self, attempt: u32) -> &mut Tier {
        let index = attempt.max(1) as usize - 1;
        if self.tiers.len() <= index {
            self.tiers.resize(index + 1, Tier::default());
        }
        &mut self.tiers[index]
    }
}

/// Consumes until the task is dropped. Each delivery has a task of its own; the window bounds them.
pub(crate) async fn run(shop: Arc<Shop>, mut consumer: Consumer) -> Result<(), Error> {
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            delivery = consumer.next() => {
                tasks.spawn(compensate(Arc::clone(&shop), delivery?));
            }
            Some(_) = tasks.join_next() => {}
        }
    }
}

async fn compensate(shop: Arc<Shop>, delivery: Delivery) {
    {
        let mut tally = locked(&shop.tally);
        // A lateness beyond the histogram does not exist: it grows as needed.
        let _ = tally.lateness_ms.record(delivery.lateness_ms());
        tally.tier(delivery.attempt).delivered += 1;
        let before = tally.numbers.insert(delivery.key.clone().unwrap_or_default(), delivery.delivery);
        tally.redelivered += u64::from(before.is_some_and(|number| number >= delivery.delivery));
    }
    let settled = match handle(&shop, &delivery).await {
        Verdict::Done => delivery.ack().await.map(drop),
        Verdict::Again(nack) => delivery.nack(nack).await.map(drop),
    };
    if settled.is_err() {
        // The message comes again if the settlement did not get through; settling the order twice does nothing.
        locked(&shop.tally).unsettled += 1;
    }
}

enum Verdict {
    Done,
    Again(Nack),
}

async fn handle(shop: &Shop, delivery: &Delivery) -> Verdict {
    let order = delivery.key.as_deref().unwrap_or_default();
    let count = |update: fn(&mut Tier)| update(locked(&shop.tally).tier(delivery.attempt));
    match shop.orders.state(order) {
        None => return Verdict::Again(Nack::not_yet().text("an order of another run")),
        Some(OrderState::Settled(_)) => {
            count(|tier| tier.settled_before += 1);
            return Verdict::Done;
        }
        Some(OrderState::Paying) => {}
    }
    match shop.channels.query(order).await {
        Ok(Some(answer)) => {
            shop.orders.settle(order, answer);
            count(|tier| tier.answered += 1);
            Verdict::Done
        }
        Ok(None) => {
            count(|tier| tier.not_yet += 1);
            Verdict::Again(Nack::not_yet().text("still processing"))
        }
        Err(error) => {
            count(|tier| tier.failed += 1);
            Verdict::Again(Nack::failed().text(error.to_string()))
        }
    }
}

pub(crate) fn locked(tally: &Mutex<Tally>) -> std::sync::MutexGuard<'_, Tally> {
    tally.lock().expect("no holder panics")
}
