//! A live message in memory, and where it is.

use super::command::ConsumerId;
use super::message::Message;
use super::time::Timestamp;
use super::values::ConsumerName;
use super::wheel::Timer;

/// A live message.
#[derive(Debug)]
pub(super) struct Entry {
    /// Its durable form.
    pub(super) message: Message,
    pub(super) state: State,
    /// It may have been delivered by an earlier run of the broker.
    pub(super) maybe_delivered: bool,
    /// The generation in which it was produced; 0 if it came from disk.
    pub(super) born: u32,
    /// The generation of its last change; 0 if its copy on disk is as it is here.
    pub(super) changed: u32,
}

/// Where a live message is: in exactly one of four places.
#[derive(Debug)]
pub(super) enum State {
    /// In the wheel until it is due.
    Scheduled(Timer),
    /// In the ready index of its topic.
    Ready,
    /// With a consumer; its deadline is in the wheel.
    Leased(Box<Lease>),
    /// In the dead index of its topic.
    Dead,
}

/// The right of a consumer to work on a message; not durable.
#[derive(Debug)]
pub(super) struct Lease {
    /// The delivery number.
    pub(super) delivery: u32,
    /// The run of the broker that issued the receipt.
    pub(super) epoch: u32,
    pub(super) consumer: ConsumerId,
    pub(super) consumer_name: ConsumerName,
    pub(super) delivered_at: Timestamp,
    pub(super) deadline: Timestamp,
    /// In the wheel until it fires.
    pub(super) timer: Option<Timer>,
}

impl State {
    /// The glossary's word for the state.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Scheduled(_) => "scheduled",
            Self::Ready => "ready",
            Self::Leased(_) => "leased",
            Self::Dead => "dead",
        }
    }
}
