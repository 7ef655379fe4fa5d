//! The slot directory: which pages and tombstones are valid. It is the only truth about the pages; what it
//! does not list is garbage. It is kept in memory and stored per slot and run: a list of pages and a list of
//! tombstones, each in parts.
//!
//! Slots are shared between copies of the directory, so that a reader's own copy costs little.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::queue::message::{Place, TopicId};

use super::codec::{Malformed, Reader, unseal};
use super::keys::{DIRECTORY, Level, SlotKey, TOMBSTONES_LIST};
use super::kv::KvRead;
use super::page::{Order, PageEntry, PagesError, sort_time};
use super::slot::{KILLS_ITEM, PART_ITEM, Run, Slot};
use super::tombstones::{Graves, TombstonesEntry};

/// Where the pages may hold a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Located {
    pub(super) slot: SlotKey,
    pub(super) run: u64,
    pub(super) page: usize,
    /// The page has messages in chunks.
    pub(super) may_be_chunked: bool,
}

/// All slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Directory {
    slots: BTreeMap<SlotKey, Arc<Slot>>,
}

/// What a fold or a compaction changed in the directory; readers follow it.
#[derive(Debug)]
pub struct DirectoryDelta {
    /// The last fold that the pages have after it.
    pub(super) fold: u64,
    /// Number of the run that it wrote.
    pub(super) run: u64,
    /// The slots that it touched; `None`: the slot is gone.
    pub(super) slots: BTreeMap<SlotKey, Option<Arc<Slot>>>,
}

impl Directory {
    /// Reads the directory.
    pub(super) fn load(kv: &dyn KvRead) -> Result<Self, PagesError> {
        let mut loading: BTreeMap<SlotKey, BTreeMap<u64, LoadingRun>> = BTreeMap::new();
        let mut problem = None;
        for kind in [DIRECTORY, TOMBSTONES_LIST] {
            kv.scan(&[kind], &mut |key, value| match load_part(&mut loading, kind, key, value) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    problem = Some(PagesError::damaged(format!("directory entry {key:02x?}"))(error));
                    ControlFlow::Break(())
                }
            })?;
        }
        if let Some(problem) = problem {
            return Err(problem);
        }
        let mut directory = Self::default();
        for (key, runs) in loading {
            let mut slot = Slot::default();
            for (number, LoadingRun { pages, listed_in, graves }) in runs {
                let mut run = Run::new(pages, (!graves.parts.is_empty()).then_some(graves));
                run.listed_in = listed_in;
                slot.runs.add(number, run);
            }
            slot.count().map_err(PagesError::damaged(format!("slot {key:?}")))?;
            directory.slots.insert(key, Arc::new(slot));
        }
        Ok(directory)
    }

    pub(super) fn slot(&self, key: &SlotKey) -> Option<&Arc<Slot>> {
        self.slots.get(key)
    }

    /// All slots, by topic, level and time.
    pub(super) fn slots(&self) -> impl Iterator<Item = (&SlotKey, &Arc<Slot>)> {
        self.slots.iter()
    }

    /// The slots of a level of a topic that may hold something at or after an instant, in order.
    pub(super) fn slots_from(&self, first: SlotKey) -> impl Iterator<Item = (&SlotKey, &Arc<Slot>)> {
        self.slots.range(first..=SlotKey { start: u64::MAX, ..first })
    }

    /// The slots of a topic.
    pub(super) fn slots_of(&self, topic: TopicId) -> impl Iterator<Item = (&SlotKey, &Arc<Slot>)> {
        let first = SlotKey { topic, level: Level::Second, start: 0 };
        self.slots.range(first..=SlotKey { topic, level: Level::Dead, start: u64::MAX })
    }

    /// Live messages in the pages, by topic: waiting, and dead letters.
    pub(super) fn live(&self) -> BTreeMap<TopicId, (u64, u64)> {
        let mut live: BTreeMap<TopicId, (u64, u64)> = BTreeMap::new();
        for (key, slot) in &self.slots {
            let (waiting, dead) = live.entry(key.topic).or_default();
            *(if key.level == Level::Dead { dead } else { waiting }) += slot.live;
        }
        live
    }

    /// The place of the first waiting message of a topic, or of a copy of one that is gone.
    pub(super) fn first_waiting(&self, topic: TopicId) -> Option<Order> {
        let slots = Level::DUE.iter().filter_map(|&level| self.slots_from(SlotKey { topic, level, start: 0 }).next());
        let pages = slots.flat_map(|(key, slot)| {
            slot.runs
                .values()
                .filter(|run| run.live() > 0)
                .filter_map(|run| run.pages.first())
                .map(|page| page.first(key))
        });
        pages.min()
    }

    /// Number of pages listed.
    pub(super) fn pages(&self) -> usize {
        self.slots.values().flat_map(|slot| slot.runs.values()).map(|run| run.pages.len()).sum()
    }

    /// The pages that may hold a message, by the directory; nearly always one.
    pub(super) fn candidates(&self, topic: TopicId, place: Place, arrival: u64) -> Vec<Located> {
        let at = (sort_time(place), arrival);
        let levels: &[Level] = match place {
            Place::Due(_) => &Level::DUE,
            Place::Dead(_) => &[Level::Dead],
        };
        let mut candidates = Vec::new();
        for &level in levels {
            let key = SlotKey::holding(topic, level, at.0);
            let Some(slot) = self.slots.get(&key) else { continue };
            for (&run, listed) in slot.runs.iter() {
                let page = listed.pages.partition_point(|page| page.last(&key) < at);
                if let Some(entry) = listed.pages.get(page).filter(|entry| entry.may_hold(&key, at)) {
                    candidates.push(Located { slot: key, run, page, may_be_chunked: entry.chunked > 0 });
                }
            }
        }
        candidates
    }

    /// Follows a fold or a compaction that is durable.
    pub(super) fn apply(&mut self, delta: &DirectoryDelta) {
        for (&key, slot) in &delta.slots {
            match slot {
                Some(slot) => self.slots.insert(key, Arc::clone(slot)),
                None => self.slots.remove(&key),
            };
        }
    }
}

#[derive(Default)]
struct LoadingRun {
    pages: Vec<PageEntry>,
    listed_in: u32,
    graves: Graves,
}

fn load_part(
    slots: &mut BTreeMap<SlotKey, BTreeMap<u64, LoadingRun>>,
    kind: u8,
    key: &[u8],
    value: &[u8],
) -> Result<(), Malformed> {
    let (slot, run, part) = SlotKey::parse(key).ok_or(Malformed("not a directory key"))?;
    let run = slots.entry(slot).or_default().entry(run).or_default();
    let parts = if kind == DIRECTORY { &mut run.listed_in } else { &mut run.graves.listed_in };
    if *parts != part {
        return Err(Malformed("an earlier part is missing"));
    }
    *parts += 1;
    let mut input = Reader::new(unseal(key, value)?);
    while !input.is_empty() {
        if kind == DIRECTORY {
            run.pages.push(PageEntry::read(&mut input)?);
            continue;
        }
        match input.u8()? {
            PART_ITEM => run.graves.parts.push(TombstonesEntry::read(&mut input)?),
            KILLS_ITEM => run.graves.kills.push((input.u64()?, input.u32()?)),
            _ => return Err(Malformed("an unknown kind of item")),
        }
    }
    Ok(())
}
