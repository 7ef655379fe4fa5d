//! What a topic has on disk only: how much, from which instant on, and where to find a message by key or id.
//!
//! Memory holds every waiting message before the topic's *frontier*; those at or beyond it may be on disk. The
//! tables here cost about 32 bytes per keyed message on disk, and as much per message whose due time is not the
//! one it was born with; a message that has neither costs nothing.

use std::collections::BTreeMap;
use std::hash::Hasher;

use rustc_hash::FxHashMap;
use siphasher::sip::SipHasher13;

use super::message::{Message, MessageId, Place};
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
    by_key: FxHashMap<u64, (u64, PackedPlace)>,
    /// Further holders whose key has the hash of another's.
    collided: BTreeMap<(u64, u64), PackedPlace>,
    /// Places that the id does not tell.
    moved: FxHashMap<u64, PackedPlace>,
}

impl Stored {
    /// Nothing is on disk only.
    pub(super) fn nothing() -> Self {
        Self {
            waiting: 0,
            dead: 0,
            frontier: NO_FRONTIER,
            by_key: FxHashMap::default(),
            collided: BTreeMap::new(),
            moved: FxHashMap::default(),
        }
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
        self.moved.remove(&id.arrival);
        let Some(hash) = key.map(key_hash) else { return };
        if self.by_key.get(&hash).is_some_and(|holder| holder.0 == id.arrival) {
            self.by_key.remove(&hash);
        } else {
            self.collided.remove(&(hash, id.arrival));
        }
    }

    /// Notes where a message on disk is found.
    pub(super) fn index(&mut self, id: MessageId, place: Place, key_hash: Option<u64>) {
        let packed = PackedPlace::from(place);
        if place != Place::Due(id.birth_due) {
            self.moved.insert(id.arrival, packed);
        }
        let Some(hash) = key_hash else { return };
        let holder = *self.by_key.entry(hash).or_insert((id.arrival, packed));
        if holder.0 == id.arrival {
            self.by_key.insert(hash, (id.arrival, packed));
        } else {
            self.collided.insert((hash, id.arrival), packed);
        }
    }

    /// Where a message of that id would be.
    pub(super) fn place_of(&self, id: MessageId) -> Place {
        self.moved.get(&id.arrival).map_or(Place::Due(id.birth_due), |&packed| packed.into())
    }

    /// Arrival numbers and places of the messages that may hold `key`; nearly always none or one.
    pub(super) fn holders_of(&self, key: &Key) -> impl Iterator<Item = (u64, Place)> {
        let hash = key_hash(key);
        let first = self.by_key.get(&hash).copied();
        let further =
            self.collided.range((hash, 0)..=(hash, u64::MAX)).map(|(&(_, arrival), &packed)| (arrival, packed));
        first.into_iter().chain(further).map(|(arrival, packed)| (arrival, packed.into()))
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

/// A place in eight bytes: the instant, and whether it is a death in the highest bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PackedPlace(u64);

const DEATH: u64 = 1 << 63;

impl From<Place> for PackedPlace {
    fn from(place: Place) -> Self {
        match place {
            Place::Due(at) => Self(at.as_millis() & !DEATH),
            Place::Dead(at) => Self(at.as_millis() | DEATH),
        }
    }
}

impl From<PackedPlace> for Place {
    fn from(packed: PackedPlace) -> Self {
        let at = Timestamp::from_millis(packed.0 & !DEATH);
        if packed.0 & DEATH == 0 { Self::Due(at) } else { Self::Dead(at) }
    }
}
