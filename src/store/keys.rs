//! The keys of the page store. The first byte is the kind and its number is permanent; numbers are big
//! endian, so that the order of the bytes is the order of the values.
//!
//! | kind | key after the kind byte | value |
//! |---|---|---|
//! | 1 state | | fold numbers, arrival reservation, epoch |
//! | 2 topic | topic | the topic |
//! | 3 totals | topic | its totals at the fold |
//! | 4 directory | topic, level, slot start, run, part | pages of that run in the slot |
//! | 5 page | topic, level, slot start, run, page | messages |
//! | 6 tombstones | topic, level, slot start, run, part | places of messages that are gone, with their runs |
//! | 7 chunk | topic, arrival, run, chunk | a piece of a record too large for a page |
//! | 8 ended | topic, run, part | ended messages |
//! | 9 ended index | topic, run | parts, count and age of a run of ended messages |
//! | 10 dedup | topic, run, part | dedup ids |
//! | 11 dedup index | topic, run | parts, count and age of a run of dedup ids |
//! | 12 intent | run, part | keys that nothing lists: not yet, or not any more |
//! | 13 tombstones list | topic, level, slot start, run, part | tombstones of that run in the slot |
//! | 14 index | topic, run, part | where messages in pages are that have a key or have moved |
//! | 15 index list | topic, run | parts and counts of a run of the index |
//! | 16 quarantine | topic, level, slot start, run, page | a damaged page as it was found, not sealed |
//! | 17 deleted | topic | nothing: what is listed of the topic is on its way out |
//!
//! Folds and compactions count their runs together; a run number is never used twice.

use crate::queue::message::TopicId;
use crate::queue::time::Timestamp;

pub(super) const STATE: u8 = 1;
pub(super) const TOPIC: u8 = 2;
pub(super) const TOTALS: u8 = 3;
pub(super) const DIRECTORY: u8 = 4;
pub(super) const PAGE: u8 = 5;
pub(super) const TOMBSTONES: u8 = 6;
pub(super) const CHUNK: u8 = 7;
pub(super) const ENDED: u8 = 8;
pub(super) const DEDUP: u8 = 10;
pub(super) const INTENT: u8 = 12;
pub(super) const TOMBSTONES_LIST: u8 = 13;
pub(super) const INDEX: u8 = 14;
pub(super) const INDEX_LIST: u8 = 15;
pub(super) const QUARANTINE: u8 = 16;
pub(super) const DELETED: u8 = 17;

/// Data that counts only as far as a list names it.
pub(super) const DATA: [u8; 6] = [PAGE, TOMBSTONES, CHUNK, ENDED, DEDUP, INDEX];

/// Largest value, bytes. sled splits a leaf of more than sixteen values, but not at once, and moves one of more than
/// 128 KiB to a file of its own: twenty of these stay below.
pub(super) const MAX_VALUE_BYTES: usize = 6 * 1024;

/// Slot widths. A message is put into the level that its distance from the fold selects and stays there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Level {
    /// Slots of one second.
    Second,
    /// Slots of one minute.
    Minute,
    /// Slots of one hour.
    Hour,
    /// Slots of one day.
    Day,
    /// Dead letters by time of death, slots of one hour.
    Dead,
}

impl Level {
    pub(super) const DUE: [Self; 4] = [Self::Second, Self::Minute, Self::Hour, Self::Day];

    /// The level of a message that is due `distance_ms` after or before the fold.
    pub(super) fn at_distance(distance_ms: u64) -> Self {
        match distance_ms {
            0..120_000 => Self::Second,
            120_000..7_200_000 => Self::Minute,
            7_200_000..172_800_000 => Self::Hour,
            _ => Self::Day,
        }
    }

    pub(super) fn width_ms(self) -> u64 {
        match self {
            Self::Second => 1_000,
            Self::Minute => 60_000,
            Self::Hour | Self::Dead => 3_600_000,
            Self::Day => 86_400_000,
        }
    }

    pub(super) fn number(self) -> u8 {
        match self {
            Self::Second => 0,
            Self::Minute => 1,
            Self::Hour => 2,
            Self::Day => 3,
            Self::Dead => 4,
        }
    }

    pub(super) fn from_number(number: u8) -> Option<Self> {
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Dead].into_iter().find(|l| l.number() == number)
    }
}

/// A slot of one topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SlotKey {
    pub(super) topic: TopicId,
    pub(super) level: Level,
    /// The first instant of the slot, ms.
    pub(super) start: u64,
}

impl SlotKey {
    /// The slot of `level` that holds `at`.
    pub(super) fn holding(topic: TopicId, level: Level, at: Timestamp) -> Self {
        let start = at.as_millis() / level.width_ms() * level.width_ms();
        Self { topic, level, start }
    }

    fn prefix(&self, kind: u8) -> Vec<u8> {
        let mut key = topic_key(kind, self.topic);
        key.push(self.level.number());
        key.extend_from_slice(&self.start.to_be_bytes());
        key
    }

    /// The key of `kind` (directory, page, tombstones or their list) of a run and its n-th part.
    pub(super) fn key(&self, kind: u8, run: u64, part: u32) -> Vec<u8> {
        let mut key = self.prefix(kind);
        key.extend_from_slice(&run.to_be_bytes());
        key.extend_from_slice(&part.to_be_bytes());
        key
    }

    /// Reads such a key.
    pub(super) fn parse(key: &[u8]) -> Option<(Self, u64, u32)> {
        let key: &[u8; 26] = key.try_into().ok()?;
        let slot = Self {
            topic: TopicId(u32::from_be_bytes(std::array::from_fn(|i| key[1 + i]))),
            level: Level::from_number(key[5])?,
            start: u64::from_be_bytes(std::array::from_fn(|i| key[6 + i])),
        };
        let run = u64::from_be_bytes(std::array::from_fn(|i| key[14 + i]));
        Some((slot, run, u32::from_be_bytes(std::array::from_fn(|i| key[22 + i]))))
    }
}

pub(super) fn topic_key(kind: u8, topic: TopicId) -> Vec<u8> {
    let mut key = Vec::with_capacity(26);
    key.push(kind);
    key.extend_from_slice(&topic.0.to_be_bytes());
    key
}

/// Of an index of runs.
pub(super) fn run_key(kind: u8, topic: TopicId, run: u64) -> Vec<u8> {
    let mut key = topic_key(kind, topic);
    key.extend_from_slice(&run.to_be_bytes());
    key
}

/// Of a part of a run.
pub(super) fn run_part_key(kind: u8, topic: TopicId, run: u64, part: u32) -> Vec<u8> {
    let mut key = run_key(kind, topic, run);
    key.extend_from_slice(&part.to_be_bytes());
    key
}

/// The topic and run of an index key.
pub(super) fn parse_run_key(key: &[u8]) -> Option<(TopicId, u64)> {
    let key: &[u8; 13] = key.try_into().ok()?;
    let topic = TopicId(u32::from_be_bytes(std::array::from_fn(|i| key[1 + i])));
    Some((topic, u64::from_be_bytes(std::array::from_fn(|i| key[5 + i]))))
}

/// What all chunks of a message start with.
pub(super) fn chunk_prefix(topic: TopicId, arrival: u64) -> Vec<u8> {
    let mut key = topic_key(CHUNK, topic);
    key.extend_from_slice(&arrival.to_be_bytes());
    key
}

pub(super) fn chunk_key(topic: TopicId, arrival: u64, run: u64, chunk: u32) -> Vec<u8> {
    let mut key = chunk_prefix(topic, arrival);
    key.extend_from_slice(&run.to_be_bytes());
    key.extend_from_slice(&chunk.to_be_bytes());
    key
}

/// The message's arrival number and the run of a chunk key.
pub(super) fn parse_chunk_key(key: &[u8]) -> Option<(u64, u64)> {
    let key: &[u8; 25] = key.try_into().ok()?;
    let word = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| key[at + i]));
    Some((word(5), word(13)))
}

pub(super) fn intent_key(run: u64, part: u32) -> Vec<u8> {
    let mut key = vec![INTENT];
    key.extend_from_slice(&run.to_be_bytes());
    key.extend_from_slice(&part.to_be_bytes());
    key
}
