//! The orders table. An order leaves the state `Paying` once; every other update finds it settled and does
//! nothing, so that a message that is delivered twice, or a notification that races a query, cannot do harm.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::payment::Answer;

/// Where an order is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderState {
    /// The channel has not said how the payment ended.
    Paying,
    /// It has.
    Settled(Answer),
}

/// The table, in memory.
#[derive(Default)]
pub(crate) struct Orders(Mutex<HashMap<String, OrderState>>);

impl Orders {
    /// A new order, being paid.
    pub(crate) fn open(&self, order: &str) {
        self.0.lock().expect("no holder panics").insert(order.to_owned(), OrderState::Paying);
    }

    /// `UPDATE orders SET state = answer WHERE id = order AND state = 'paying'`: whether a row was changed.
    pub(crate) fn settle(&self, order: &str, answer: Answer) -> bool {
        let mut orders = self.0.lock().expect("no holder panics");
        match orders.get_mut(order) {
            Some(state @ OrderState::Paying) => {
                *state = OrderState::Settled(answer);
                true
            }
            _ => false,
        }
    }

    /// Orders so far, and those of them that are settled.
    pub(crate) fn progress(&self) -> (usize, usize) {
        let orders = self.0.lock().expect("no holder panics");
        (orders.len(), orders.values().filter(|state| matches!(state, OrderState::Settled(_))).count())
    }

    /// The state of an order, if there is such an order.
    pub(crate) fn state(&self, order: &str) -> Option<OrderState> {
        self.0.lock().expect("no holder panics").get(order).copied()
    }
}
