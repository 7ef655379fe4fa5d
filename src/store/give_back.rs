//! Giving back what pages hold of deleted topics: unread, in bounded steps between folds.
//!
//! The fold that takes a topic out of use removes its record and its totals, and marks it as deleted (kind 17): from then
//! on nobody reads what the page store lists of it, and it counts for nothing. Each step removes some of that in one
//! batch, at last the mark. After a crash the mark is still there, and the next run goes on.
//!
//! The order is chunks and set-aside pages, which can be found by their keys only, then pages, a run at a time, then
//! the parts of what is indexed and remembered, then the lists of these.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::crash::crash_point;
use crate::queue::change::{DedupRecord, Finished};
use crate::queue::message::TopicId;

use super::codec::{Malformed, unseal};
use super::directory::DirectoryDelta;
use super::folder::Folder;
use super::keys::{CHUNK, DELETED, INDEX, INDEX_LIST, QUARANTINE, SlotKey, run_key, run_part_key, topic_key};
use super::kv::{Batch, KvRead};
use super::page::PagesError;
use super::runs::Remembered;
use super::slot::Slot;
use super::state::PagesState;

/// Keys that one step removes; a single run may have more pages.
const MAX_KEYS: usize = 4_000;

/// Deleted topics of which the pages hold something, each with how many parts of its lists are removed.
pub(super) type Doomed = BTreeMap<TopicId, usize>;

/// Reads the marks of deleted topics.
pub(super) fn load_doomed(kv: &dyn KvRead) -> Result<Doomed, PagesError> {
    let (mut doomed, mut problem) = (Doomed::new(), None);
    kv.scan(&[DELETED], &mut |key, value| {
        let topic = key[1..].try_into().map_err(|_| Malformed("not a topic's key"));
        match topic.and_then(|topic| unseal(key, value).map(|_| TopicId(u32::from_be_bytes(topic)))) {
            Ok(topic) => drop(doomed.insert(topic, 0)),
            Err(error) => problem = Some(PagesError::damaged("the mark of a deleted topic")(error)),
        }
        ControlFlow::Continue(())
    })?;
    problem.map_or(Ok(doomed), Err)
}

/// What one step removes.
#[derive(Default)]
struct Removed {
    last: Batch,
    slots: BTreeMap<SlotKey, Option<Arc<Slot>>>,
    /// Topics of which nothing is left after it.
    done: Vec<TopicId>,
    /// The topic of which something is left, and how many parts of its lists are removed then.
    left: Option<(TopicId, usize)>,
}

impl Removed {
    fn has_room(&self) -> bool {
        self.last.items().len() < MAX_KEYS
    }
}

impl Folder {
    /// True if pages hold something of deleted topics, for [`Folder::compact`] to remove.
    pub fn is_giving_back(&self) -> bool {
        !self.doomed.is_empty()
    }

    /// Removes a bounded part of what pages hold of deleted topics; `None`: nothing is left.
    pub(super) fn give_back(&mut self) -> Result<Option<DirectoryDelta>, PagesError> {
        if self.doomed.is_empty() {
            return Ok(None);
        }
        crash_point!("give_back.begins");
        let mut removed = Removed::default();
        for (&topic, &parts) in &self.doomed {
            if !self.remove_topic(topic, parts, &mut removed)? {
                break;
            }
            removed.done.push(topic);
        }
        let Removed { last, slots, done, left } = removed;
        let run = self.state.run + 1;
        let delta = DirectoryDelta { fold: self.state.mark.fold, run, slots };
        self.complete(last, PagesState { run, ..self.state }, &delta)?;
        crash_point!("give_back.complete");
        self.doomed.extend(left);
        for topic in done {
            self.doomed.remove(&topic);
            self.index.remove(&topic);
            self.ended.remove(&topic);
            self.dedup.remove(&topic);
        }
        Ok(Some(delta))
    }

    /// Removes what there is of a topic, as far as the step has room; true if that was all.
    fn remove_topic(&self, topic: TopicId, parts: usize, removed: &mut Removed) -> Result<bool, PagesError> {
        removed.left = Some((topic, parts));
        self.remove_unlisted(topic, removed);
        if removed.has_room() {
            self.remove_slots(topic, removed)?;
        }
        if removed.has_room() {
            self.remove_lists(topic, parts, removed);
        }
        if removed.has_room() {
            removed.last.remove(topic_key(DELETED, topic));
            removed.left = None;
            return Ok(true);
        }
        Ok(false)
    }

    /// Chunks, and damaged pages that were set aside. What cannot be found, because the medium is damaged there, stays
    /// behind: nothing lists it.
    fn remove_unlisted(&self, topic: TopicId, removed: &mut Removed) {
        for kind in [CHUNK, QUARANTINE] {
            if !removed.has_room() {
                return;
            }
            let _damaged = self.kv.scan(&topic_key(kind, topic), &mut |key, _| {
                removed.last.remove(key.to_vec());
                if removed.has_room() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
        }
    }

    /// Whole runs, those of a slot from the last one on, since tombstones kill messages of earlier runs only.
    fn remove_slots(&self, topic: TopicId, removed: &mut Removed) -> Result<(), PagesError> {
        for (&key, slot) in self.directory.slots_of(topic) {
            if !removed.has_room() {
                break;
            }
            let mut slot = Slot::clone(slot);
            let runs: Vec<u64> = slot.runs.iter().rev().map(|(&run, _)| run).collect();
            for run in runs {
                if removed.has_room() {
                    slot.drop_run(&key, run, &mut removed.last);
                }
            }
            slot.count().map_err(PagesError::damaged(format!("slot {key:?}")))?;
            removed.slots.insert(key, (!slot.runs.is_empty()).then(|| Arc::new(slot)));
        }
        Ok(())
    }

    /// The index and what is remembered: first the parts, of which some are removed already, then the lists.
    fn remove_lists(&self, topic: TopicId, parts: usize, removed: &mut Removed) {
        let index = self.index.get(&topic).into_iter().flatten();
        let index = index.map(|(&run, entry)| (INDEX, INDEX_LIST, run, entry.parts));
        let ended = self.ended.get(&topic).into_iter().flatten();
        let ended = ended.map(|(&run, entry)| (Finished::DATA_KIND, Finished::INDEX_KIND, run, entry.parts));
        let dedup = self.dedup.get(&topic).into_iter().flatten();
        let dedup = dedup.map(|(&run, entry)| (DedupRecord::DATA_KIND, DedupRecord::INDEX_KIND, run, entry.parts));
        let runs: Vec<(u8, u8, u64, u32)> = index.chain(ended).chain(dedup).collect();
        let keys = runs.iter().flat_map(|&(kind, _, run, parts)| (0..parts).map(move |part| (kind, run, part)));
        let mut count = parts;
        for (kind, run, part) in keys.skip(parts) {
            if !removed.has_room() {
                removed.left = Some((topic, count));
                return;
            }
            removed.last.remove(run_part_key(kind, topic, run, part));
            count += 1;
        }
        // The lists are few: a fold merges or drops them.
        for (_, list, run, _) in runs {
            removed.last.remove(run_key(list, topic, run));
        }
        removed.left = Some((topic, count));
    }
}
