//! A broker that will not end well, its clients, and the ledger of what these were answered, by which it is judged
//! afterwards.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod ledger;
pub(crate) mod load;
pub(crate) mod process;
pub(crate) mod verify;

/// The topic of all orders.
pub(crate) const TOPIC: &str = "orders";
