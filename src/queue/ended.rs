//! The memory of messages that are gone, of one topic: bounded by count and age, searched by arrival and key.

use std::collections::{HashMap, VecDeque};

use rustc_hash::FxHashMap;

use super::change::Finished;
use super::settings::TopicSettings;
use super::time::Timestamp;
use super::values::Key;

/// Ended messages, oldest first.
#[derive(Debug, Default)]
pub(super) struct Ended {
    entries: VecDeque<Finished>,
    /// Number of the first entry; each entry's number is one more than that of the entry before.
    first: u64,
    by_arrival: FxHashMap<u64, u64>,
    by_key: HashMap<Key, u64>,
}

impl Ended {
    /// Remembers an ended message and forgets what is over the topic's count or age.
    pub(super) fn push(&mut self, finished: Finished, settings: &TopicSettings) {
        let now = finished.at;
        let number = self.first + self.entries.len() as u64;
        self.by_arrival.insert(finished.id.arrival, number);
        if let Some(key) = &finished.key {
            self.by_key.insert(key.clone(), number);
        }
        self.entries.push_back(finished);
        let is_over = |ended: &Self| {
            ended.entries.len() > settings.history_count as usize
                || ended.entries.front().is_some_and(|oldest| !remembered(oldest, settings, now))
        };
        while is_over(self) {
            self.forget_oldest();
        }
    }

    /// The ended message with that arrival number.
    pub(super) fn by_arrival(&self, arrival: u64, settings: &TopicSettings, now: Timestamp) -> Option<&Finished> {
        self.entry(*self.by_arrival.get(&arrival)?, settings, now)
    }

    /// The message that ended last under that key.
    pub(super) fn by_key(&self, key: &Key, settings: &TopicSettings, now: Timestamp) -> Option<&Finished> {
        self.entry(*self.by_key.get(key)?, settings, now)
    }

    /// True if that message is known to be gone, whatever its age.
    pub(super) fn remembers(&self, arrival: u64) -> bool {
        self.by_arrival.contains_key(&arrival)
    }

    /// All that is remembered, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Finished> {
        self.entries.iter()
    }

    fn entry(&self, number: u64, settings: &TopicSettings, now: Timestamp) -> Option<&Finished> {
        let index = usize::try_from(number - self.first).expect("the indexes name kept entries");
        Some(&self.entries[index]).filter(|finished| remembered(finished, settings, now))
    }

    fn forget_oldest(&mut self) {
        let oldest = self.entries.pop_front().expect("only called while there is an entry");
        let number = self.first;
        self.first += 1;
        self.by_arrival.remove(&oldest.id.arrival);
        if let Some(key) = oldest.key
            && self.by_key.get(&key) == Some(&number)
        {
            self.by_key.remove(&key);
        }
    }
}

fn remembered(finished: &Finished, settings: &TopicSettings, now: Timestamp) -> bool {
    now.since(finished.at) <= settings.history_age_ms
}
