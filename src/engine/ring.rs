//! Turns: the consumers that have room for messages of a topic, in the order in which they are served.

use std::collections::BTreeMap;

use super::input::FetchId;
use crate::queue::command::ConsumerId;
use crate::queue::values::TopicName;

/// Somebody who waits for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiter {
    /// A stream, with room in its window of the topic.
    Stream(ConsumerId),
    /// A fetch.
    Fetch(FetchId),
}

/// A place in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn(u64);

/// Those who wait for messages of one topic.
pub(super) struct Ring {
    /// The topic.
    pub(super) name: TopicName,
    /// Streams with a window on the topic, with room in it or not.
    pub(super) streams: usize,
    /// Fetches on the topic.
    pub(super) fetches: usize,
    /// Those with room.
    waiting: BTreeMap<Turn, Waiter>,
    next_turn: u64,
}

impl Ring {
    pub(super) fn new(name: TopicName) -> Self {
        Self { name, streams: 0, fetches: 0, waiting: BTreeMap::new(), next_turn: 0 }
    }

    /// Queues up a waiter behind all others.
    pub(super) fn join(&mut self, waiter: Waiter) -> Turn {
        let turn = Turn(self.next_turn);
        self.next_turn += 1;
        self.waiting.insert(turn, waiter);
        turn
    }

    /// The waiter whose turn it is leaves the queue.
    pub(super) fn take_first(&mut self) -> Option<Waiter> {
        self.waiting.pop_first().map(|(_, waiter)| waiter)
    }

    /// A waiter leaves the queue before its turn.
    pub(super) fn leave(&mut self, turn: Turn) {
        self.waiting.remove(&turn);
    }

    /// True if somebody has room.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// True if nobody is interested in the topic.
    pub(super) fn is_deserted(&self) -> bool {
        self.streams == 0 && self.fetches == 0
    }
}
