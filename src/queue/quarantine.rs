//! Messages whose stored form is damaged: they are set aside and counted, and everything else goes on.
//!
//! What is damaged is known by its place in the store only, since nobody can read which messages it holds. Those
//! of them that memory holds all the same are *rescued*: written to the journal again as they are. The store then
//! sets the rest aside with its next fold, which also finds how many they were; from then on they count as
//! quarantined.

use std::fmt;

use super::change::Change;
use super::entry::Entry;
use super::message::{Place, TopicId};
use super::state::{Effects, Queue};
use super::time::Timestamp;

/// A page that cannot be read, or one message of a page that can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DamagedPart {
    /// The topic.
    pub topic: TopicId,
    /// The level of the slot, by its number in the store.
    pub level: u8,
    /// The first instant of the slot, milliseconds.
    pub slot_start: u64,
    /// The run that wrote the page.
    pub run: u64,
    /// Number of the page in its run.
    pub page: u32,
    /// All of the page is damaged; else only the message at `first`, which is `last`.
    pub is_whole: bool,
    /// The place of its first message: due time or time of death, and arrival number.
    pub first: (Timestamp, u64),
    /// The place of its last message.
    pub last: (Timestamp, u64),
}

/// The level of dead letters in the store.
const DEAD_LEVEL: u8 = 4;

impl DamagedPart {
    /// Its messages are dead letters, and their places times of death.
    pub fn is_of_dead(&self) -> bool {
        self.level == DEAD_LEVEL
    }

    /// True if a message at that place may be in it.
    pub fn may_hold(&self, topic: TopicId, place: Place, arrival: u64) -> bool {
        let (at, is_dead) = match place {
            Place::Due(at) => (at, false),
            Place::Dead(at) => (at, true),
        };
        topic == self.topic && is_dead == self.is_of_dead() && (self.first..=self.last).contains(&(at, arrival))
    }
}

impl fmt::Display for DamagedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { topic, level, slot_start, run, page, first, .. } = self;
        if !self.is_whole {
            write!(f, "message {} in ", first.1)?;
        }
        write!(f, "page {page} of run {run}, level {level} slot {slot_start}, topic {}, file pages/db", topic.0)
    }
}

impl Queue {
    /// Sets a damaged part aside, and rescues what memory holds of it.
    pub fn set_aside(&mut self, part: DamagedPart, effects: &mut Effects) {
        // The pages of a deleted topic are given back unread.
        if !self.topics.contains_key(&part.topic) {
            return;
        }
        let folded = self.folded_generation;
        let rescued = self.entries.iter().filter(|(_, entry)| {
            let id = entry.message.id;
            entry.changed <= folded && part.may_hold(id.topic, entry.message.place(), id.arrival)
        });
        let mut rescued: Vec<usize> = rescued.map(|(index, _)| index).collect();
        rescued.sort_unstable_by_key(|&index| self.entries[index].message.id.arrival);
        for index in rescued {
            let Entry { message, changed, .. } = &mut self.entries[index];
            *changed = self.generation;
            let change = Change::Moved { message: message.clone(), previous: message.place(), entry: None };
            effects.changes.push(change);
        }
        effects.changes.push(Change::Quarantined(part));
    }

    /// Follows a fold that set messages of a topic aside: so many that waited, and so many dead letters.
    pub fn quarantined(&mut self, topic: TopicId, waiting: u64, dead: u64) {
        let Some(topic) = self.topics.get_mut(&topic) else { return };
        topic.totals.quarantined += waiting + dead;
        topic.stored.waiting -= waiting;
        topic.stored.dead -= dead;
    }

    /// A part of the topic is being read from disk.
    pub fn is_loading(&self, topic: TopicId) -> bool {
        self.topics.get(&topic).is_some_and(|topic| topic.loading)
    }
}
