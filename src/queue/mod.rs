//! The queue: the pure state machine of all topics.
//!
//! It does no I/O, reads no clock, starts no thread, logs nothing and draws no random number. Callers pass
//! `now` in and get changes out: [changes](change::Change) that must be durable before the reply or the delivery that
//! depends on them is let go. The same inputs give the same outputs, so whole histories can be replayed.
//!
//! A message is in exactly one of *scheduled*, *ready*, *leased* and *dead*. Scheduled, ready and dead are
//! durable; a lease is not (delivery writes nothing), so the durable form of a leased message is the ready
//! message it was. All timed work happens in one bounded function, `advance`, and `next_wakeup` tells when to
//! call it again.
//!
//! What this layer is not: it does not know files, sockets, consumers' windows or group commit.

mod cancel;
pub mod change;
pub mod check;
pub mod command;
pub mod dead;
mod dedup;
mod deleted;
pub mod due;
mod ended;
mod entry;
pub mod far;
pub mod fields;
mod inspect;
mod lease;
mod levels;
pub mod limits;
pub mod list;
pub mod message;
mod pacer;
mod place_table;
mod produce;
pub mod quarantine;
pub mod receipt;
pub mod restore;
pub mod schedule;
pub mod settings;
mod settle;
mod state;
mod stored;
pub mod time;
mod topic;
mod topics;
mod transition;
pub mod values;
pub mod view;
pub mod wheel;

pub use restore::Restore;
pub use state::{Effects, Queue};
pub use stored::key_hash;
