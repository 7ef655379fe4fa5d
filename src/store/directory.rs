//! The slot directory: which pages and tombstones are valid. It is the only truth about the pages; what it
//! does not list is garbage. It is kept in memory and stored per slot and run: a list of pages and a list of
//! tombstones, each in parts.
//!
//! Slots are shared between copies of the directory, so that a reader's own copy costs little.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::queue::message::{Place, TopicId};

use super::codec::{Malformed, Reader, seal, unseal};
use super::keys::{DIRECTORY, Level, MAX_VALUE_BYTES, PAGE, SlotKey, TOMBSTONES, TOMBSTONES_LIST};
use super::kv::{Batch, KvRead};
use super::page::{Order, PageEntry, PagesError, sort_time};
use super::tombstones::{Graves, TombstonesEntry};

/// What one fold or compaction added to a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) pages: Arc<[PageEntry]>,
    /// Parts of the list of its pages.
    listed_in: u32,
    /// Messages in its pages.
    pub(super) count: u64,
    /// Those that tombstones of later runs kill.
    pub(super) dead: u64,
    /// Its own tombstones, for messages of earlier runs.
    pub(super) graves: Option<Arc<Graves>>,
}

/// A slot: its runs, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) runs: BTreeMap<u64, Run>,
    /// Messages in its pages that are not dead.
    pub(super) live: u64,
}

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
                slot.runs.insert(number, run);
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
            for (&run, listed) in &slot.runs {
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

impl Run {
    pub(super) fn new(pages: Vec<PageEntry>, graves: Option<Graves>) -> Self {
        let count = pages.iter().map(|page| u64::from(page.count)).sum();
        Self { pages: pages.into(), listed_in: 0, count, dead: 0, graves: graves.map(Arc::new) }
    }

    pub(super) fn live(&self) -> u64 {
        self.count - self.dead
    }
}

impl Slot {
    /// Counts what is dead and what lives.
    pub(super) fn count(&mut self) -> Result<(), Malformed> {
        for run in self.runs.values_mut() {
            run.dead = 0;
        }
        let graves: Vec<_> = self.runs.iter().filter_map(|(&by, run)| Some((by, run.graves.clone()?))).collect();
        for (by, graves) in graves {
            if graves.count() != graves.kills.iter().map(|&(_, count)| u64::from(count)).sum::<u64>() {
                return Err(Malformed("the tombstones of a run are not as many as counted"));
            }
            for &(killed, count) in &graves.kills {
                let run = self.runs.get_mut(&killed).filter(|_| killed < by);
                let run = run.ok_or(Malformed("tombstones for a run that is not there"))?;
                run.dead += u64::from(count);
                if run.dead > run.count {
                    return Err(Malformed("more tombstones than messages"));
                }
            }
        }
        self.live = self.runs.values().map(Run::live).sum();
        Ok(())
    }

    /// Lists a run: puts its lists into `batch`, and the run into the slot.
    pub(super) fn list(
        &mut self,
        key: &SlotKey,
        number: u64,
        pages: Vec<PageEntry>,
        graves: Graves,
        batch: &mut Batch,
    ) {
        let graves = (!graves.parts.is_empty()).then_some(graves);
        let mut run = Run::new(pages, graves);
        let mut list = List { key, run: number, kind: DIRECTORY, payload: Vec::new(), parts: 0, batch };
        for page in run.pages.iter() {
            list.item(|out| page.put(out));
        }
        run.listed_in = list.finish();
        if let Some(graves) = run.graves.as_mut().and_then(Arc::get_mut) {
            let mut list = List { key, run: number, kind: TOMBSTONES_LIST, payload: Vec::new(), parts: 0, batch };
            for part in &graves.parts {
                list.item(|out| {
                    out.push(PART_ITEM);
                    part.put(out);
                });
            }
            for &(killed, count) in &graves.kills {
                list.item(|out| {
                    out.push(KILLS_ITEM);
                    super::codec::put_u64(out, killed);
                    super::codec::put_u32(out, count);
                });
            }
            graves.listed_in = list.finish();
        }
        self.runs.insert(number, run);
    }

    /// Removes a run with its pages and tombstones.
    pub(super) fn drop_run(&mut self, key: &SlotKey, number: u64, batch: &mut Batch) {
        self.drop_graves(key, number, batch);
        let Some(run) = self.runs.remove(&number) else { return };
        remove_parts(key, number, PAGE, run.pages.len(), batch);
        remove_parts(key, number, DIRECTORY, run.listed_in as usize, batch);
    }

    /// Removes the tombstones of a run, and the run if it has no pages.
    pub(super) fn drop_graves(&mut self, key: &SlotKey, number: u64, batch: &mut Batch) {
        let Some(run) = self.runs.get_mut(&number) else { return };
        if let Some(graves) = run.graves.take() {
            remove_parts(key, number, TOMBSTONES, graves.parts.len(), batch);
            remove_parts(key, number, TOMBSTONES_LIST, graves.listed_in as usize, batch);
        }
        if run.pages.is_empty() {
            self.runs.remove(&number);
        }
    }

    /// Removes everything of a slot in which nothing lives, without reading it.
    pub(super) fn drop_all(mut self, key: &SlotKey, batch: &mut Batch) {
        let runs: Vec<u64> = self.runs.keys().copied().collect();
        for run in runs {
            self.drop_run(key, run, batch);
        }
    }
}

fn remove_parts(key: &SlotKey, run: u64, kind: u8, parts: usize, batch: &mut Batch) {
    for part in 0..u32::try_from(parts).expect("a run has few parts") {
        batch.remove(key.key(kind, run, part));
    }
}

const PART_ITEM: u8 = 1;
const KILLS_ITEM: u8 = 2;

/// A list being written, in parts of bounded size.
struct List<'a> {
    key: &'a SlotKey,
    run: u64,
    kind: u8,
    payload: Vec<u8>,
    parts: u32,
    batch: &'a mut Batch,
}

impl List<'_> {
    fn item(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        put(&mut self.payload);
        if self.payload.len() > MAX_VALUE_BYTES - 128 {
            self.close();
        }
    }

    fn close(&mut self) {
        let part_key = self.key.key(self.kind, self.run, self.parts);
        let value = seal(&part_key, &self.payload);
        self.batch.put(part_key, value);
        self.payload.clear();
        self.parts += 1;
    }

    /// The number of parts.
    fn finish(mut self) -> u32 {
        if !self.payload.is_empty() {
            self.close();
        }
        self.parts
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
