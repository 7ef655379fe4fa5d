//! What a topic has on disk only: how much, from which instant on, and where to find a message by key or id.
//!
//! Memory holds every waiting message before the topic's *frontier*; those at or beyond it may be on disk. The
//! tables here cost about 25 bytes per keyed message on disk, and as much per message that is not where it was born
//! to be: on a retry tier, rescheduled, or dead. A message that has neither costs nothing.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use super::message::{Message, MessageId, Place};
use super::place_table::PlaceTable;
use super::time::Timestamp;
use super::topic::Order;
use super::values::Key;

/// Beyond every message.
pub(super) const NO_FRONTIER: Order = (Timestamp::MAX, u64::MAX);

/// The messages of a topic that are on disk only.
#[derive(Debug)]
pub(super) struct Stored {
    /// Waiting for their due time or for a consumer.
    pub(super) waiting: u64,
    /// Dead letters.
    pub(super) dead: u64,
    /// Every waiting message before it is in memory; nothing at or beyond it is leased.
    pub(super) frontier: Order,
    /// Holders of a key, by the key's hash.
    by_key: PlaceTable,
    /// Messages whose place the id does not tell, by a hash of their arrival number.
    moved: PlaceTable,
}

impl Stored {
    /// Nothing is on disk only.
    pub(super) fn nothing() -> Self {
        Self { waiting: 0, dead: 0, frontier: NO_FRONTIER, by_key: PlaceTable::default(), moved: PlaceTable::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0 && self.dead == 0
    }

    /// A message leaves memory.
    pub(super) fn put(&mut self, message: &Message) {
        match message.place() {
            Place::Due(due_at) => {
                self.waiting += 1;
                self.frontier = self.frontier.min((due_at, message.id.arrival));
            }
            Place::Dead(_) => self.dead += 1,
        }
        self.index(message.id, message.place(), held_key(message).map(key_hash));
    }

    /// A message comes into memory, or is gone from disk.
    pub(super) fn take(&mut self, id: MessageId, place: Place, key: Option<&Key>) {
        match place {
            Place::Due(_) => self.waiting -= 1,
            Place::Dead(_) => self.dead -= 1,
        }
        self.moved.remove(arrival_hash(id.arrival), id.arrival);
        if let Some(key) = key {
            self.by_key.remove(key_hash(key), id.arrival);
        }
    }

    /// Notes where a message on disk is found; it is noted once only.
    pub(super) fn index(&mut self, id: MessageId, place: Place, key_hash: Option<u64>) {
        if place != Place::Due(id.birth_due) {
            self.moved.insert(arrival_hash(id.arrival), id.arrival, place);
        }
        if let Some(hash) = key_hash {
            self.by_key.insert(hash, id.arrival, place);
        }
    }

    /// Makes room for so many entries of the index at once, instead of little by little.
    pub(super) fn make_room(&mut self, entries: usize) {
        self.by_key.make_room(entries);
        self.moved.make_room(entries);
    }

    /// Messages that are indexed in ascending order of this go near each other in memory.
    pub(super) fn place_in_memory(&self, key_hash: Option<u64>) -> u32 {
        key_hash.map_or(0, |hash| self.by_key.place_in_memory(hash))
    }

    /// Where a message of that id would be.
    pub(super) fn place_of(&self, id: MessageId) -> Place {
        let mut moved = self.moved.holders(arrival_hash(id.arrival));
        moved.find(|&(arrival, _)| arrival == id.arrival).map_or(Place::Due(id.birth_due), |(_, place)| place)
    }

    /// Arrival numbers and places of the messages that may hold `key`; nearly always none or one.
    pub(super) fn holders_of(&self, key: &Key) -> impl Iterator<Item = (u64, Place)> {
        self.by_key.holders(key_hash(key))
    }

    /// Messages that are found by their key, and messages that are not where they were born to be.
    pub(super) fn indexed(&self) -> (usize, usize) {
        (self.by_key.len(), self.moved.len())
    }
}

/// The key that a message holds.
pub(super) fn held_key(message: &Message) -> Option<&Key> {
    message.content.key.as_ref().filter(|_| message.progress.holds_key)
}

/// The hash by which keys on disk are found; part of the store format.
pub fn key_hash(key: &Key) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(key.as_str().as_bytes());
    hasher.finish()
}

/// Spreads arrival numbers, which are nearly consecutive.
fn arrival_hash(arrival: u64) -> u64 {
    let mixed = arrival.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 32)
}
