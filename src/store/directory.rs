//! The slot directory: which pages and tombstones are valid. It is the only truth about the pages; what it
//! does not list is garbage. It is kept in memory and stored as one entry per (slot, run), in parts.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;

use crate::queue::message::{Message, Place, TopicId};
use crate::queue::time::Timestamp;

use super::codec::{Malformed, Reader, put_u32, put_u64, seal, seal_of, unseal};
use super::keys::{DIRECTORY, Level, MAX_VALUE_BYTES, PAGE, SlotKey, TOMBSTONES};
use super::kv::{Batch, Kv};
use super::page::{PageEntry, PagesError, page_name, read_page, sort_time};

/// A part of a run of tombstones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TombstonesEntry {
    count: u32,
    sum: u32,
}

/// What one fold added to a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Run {
    pages: Vec<PageEntry>,
    /// They kill copies in older runs only.
    tombstones: Vec<TombstonesEntry>,
    /// Parts of its directory entry.
    parts: u32,
}

/// A slot: its runs, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Slot {
    runs: BTreeMap<u64, Run>,
    /// Messages in its pages less tombstones.
    live: u64,
}

/// All slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Directory {
    slots: BTreeMap<SlotKey, Slot>,
}

/// Where the pages hold a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Located {
    pub(super) slot: SlotKey,
    pub(super) run: u64,
    pub(super) page: usize,
    /// The page has messages in chunks.
    pub(super) may_be_chunked: bool,
}

const PAGE_ITEM: u8 = 1;
const TOMBSTONES_ITEM: u8 = 2;

impl Directory {
    /// Reads the directory.
    pub(super) fn load(kv: &dyn Kv) -> Result<Self, PagesError> {
        let mut directory = Self::default();
        let mut problem = None;
        kv.scan(&[DIRECTORY], &mut |key, value| match directory.load_part(key, value) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                problem = Some(PagesError::damaged(format!("directory entry {key:02x?}"))(error));
                ControlFlow::Break(())
            }
        })?;
        if let Some(problem) = problem {
            return Err(problem);
        }
        for (key, slot) in &mut directory.slots {
            let (mut pages, mut tombstones) = (0_u64, 0_u64);
            for run in slot.runs.values() {
                pages += run.pages.iter().map(|page| u64::from(page.count)).sum::<u64>();
                tombstones += run.tombstones.iter().map(|part| u64::from(part.count)).sum::<u64>();
            }
            let live = pages.checked_sub(tombstones).ok_or(Malformed("more tombstones than messages"));
            slot.live = live.map_err(PagesError::damaged(format!("slot {key:?}")))?;
        }
        Ok(directory)
    }

    fn load_part(&mut self, key: &[u8], value: &[u8]) -> Result<(), Malformed> {
        let (slot, run, part) = SlotKey::parse_directory(key).ok_or(Malformed("not a directory key"))?;
        let run = self.slots.entry(slot).or_default().runs.entry(run).or_default();
        if run.parts != part {
            return Err(Malformed("an earlier part is missing"));
        }
        run.parts += 1;
        let mut input = Reader::new(unseal(key, value)?);
        while !input.is_empty() {
            match input.u8()? {
                PAGE_ITEM => run.pages.push(PageEntry::read(&mut input)?),
                TOMBSTONES_ITEM => {
                    run.tombstones.push(TombstonesEntry { count: input.u32()?, sum: input.u32()? });
                }
                _ => return Err(Malformed("an unknown kind of item")),
            }
        }
        Ok(())
    }

    /// Live messages in the pages, by topic.
    pub(super) fn live(&self) -> BTreeMap<TopicId, u64> {
        let mut live = BTreeMap::new();
        for (key, slot) in &self.slots {
            *live.entry(key.topic).or_default() += slot.live;
        }
        live
    }

    /// Number of pages listed.
    pub(super) fn pages(&self) -> usize {
        self.slots.values().flat_map(|slot| slot.runs.values()).map(|run| run.pages.len()).sum()
    }

    /// Gives every live message to `sink`, slot by slot.
    pub(super) fn each_message(&self, kv: &dyn Kv, sink: &mut dyn FnMut(Message)) -> Result<(), PagesError> {
        for (key, slot) in &self.slots {
            let mut killed_by: HashMap<u64, u64> = HashMap::new();
            for &run in slot.runs.keys() {
                // Runs ascend, so the last one to name an arrival number kills the most.
                killed_by.extend(read_tombstones(kv, key, slot, run)?.into_iter().map(|arrival| (arrival, run)));
            }
            let mut live = 0;
            for (&run, pages) in slot.runs.iter().map(|(run, listed)| (run, &listed.pages)) {
                for (n, entry) in pages.iter().enumerate() {
                    for record in read_page(kv, key, run, n, entry)? {
                        if killed_by.get(&record.arrival).is_some_and(|&by| by > run) {
                            continue;
                        }
                        sink(record.message(kv, key.topic, run)?);
                        live += 1;
                    }
                }
            }
            if live != slot.live {
                let problem = Malformed("its tombstones do not match its pages");
                return Err(PagesError::damaged(format!("slot {key:?}"))(problem));
            }
        }
        Ok(())
    }
}

/// A directory with the changes that one fold is about to make.
pub(super) struct FoldOfDirectory<'a> {
    kv: &'a dyn Kv,
    directory: &'a Directory,
    run: u64,
    new_pages: BTreeMap<SlotKey, Vec<PageEntry>>,
    dead: BTreeMap<SlotKey, Vec<u64>>,
    /// Positions in pages and tombstones of earlier runs that were read to tell copies apart.
    read_pages: HashMap<(SlotKey, u64, usize), HashSet<(Timestamp, u64)>>,
    read_tombstones: HashMap<(SlotKey, u64), HashSet<u64>>,
}

impl<'a> FoldOfDirectory<'a> {
    pub(super) fn new(kv: &'a dyn Kv, directory: &'a Directory, run: u64) -> Self {
        Self {
            kv,
            directory,
            run,
            new_pages: BTreeMap::new(),
            dead: BTreeMap::new(),
            read_pages: HashMap::new(),
            read_tombstones: HashMap::new(),
        }
    }

    /// Lists the pages that this fold wrote for a slot.
    pub(super) fn add(&mut self, slot: SlotKey, pages: Vec<PageEntry>) {
        self.new_pages.insert(slot, pages);
    }

    /// Marks the copy of a message in the pages as gone.
    pub(super) fn remove(&mut self, topic: TopicId, place: Place, arrival: u64) -> Result<Located, PagesError> {
        let located = self.locate(topic, place, arrival)?;
        self.dead.entry(located.slot).or_default().push(arrival);
        Ok(located)
    }

    /// Finds a message in the pages. The directory's ranges leave one page in the usual case; only if there
    /// are more candidates are they read.
    fn locate(&mut self, topic: TopicId, place: Place, arrival: u64) -> Result<Located, PagesError> {
        let at = (sort_time(place), arrival);
        let levels: &[Level] = match place {
            Place::Due(_) => &Level::DUE,
            Place::Dead(_) => &[Level::Dead],
        };
        let mut candidates = Vec::new();
        for &level in levels {
            let key = SlotKey::holding(topic, level, at.0);
            let Some(slot) = self.directory.slots.get(&key) else { continue };
            for (&run, listed) in &slot.runs {
                let page = listed.pages.partition_point(|page| page.last < at);
                if let Some(entry) = listed.pages.get(page).filter(|entry| entry.first <= at) {
                    candidates.push(Located { slot: key, run, page, may_be_chunked: entry.chunked > 0 });
                }
            }
        }
        if candidates.len() > 1 {
            let mut holding = Vec::new();
            for candidate in candidates {
                if self.holds(&candidate, at)? {
                    holding.push(candidate);
                }
            }
            candidates = holding;
        }
        match candidates[..] {
            [located] => Ok(located),
            _ => Err(PagesError::Damaged {
                what: format!("message {arrival} of topic {} at {place:?}", topic.0),
                problem: "the pages do not hold exactly one copy",
            }),
        }
    }

    /// True if the page holds a copy there that no later tombstone killed.
    fn holds(&mut self, candidate: &Located, at: (Timestamp, u64)) -> Result<bool, PagesError> {
        let Located { slot: key, run, page, .. } = *candidate;
        let slot = &self.directory.slots[&key];
        // Removals come in the order of the pages, so dropping old positions costs few repeated reads.
        if self.read_pages.len() > 4096 {
            self.read_pages.clear();
        }
        let positions = match self.read_pages.entry((key, run, page)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let records = read_page(self.kv, &key, run, page, &slot.runs[&run].pages[page])?;
                entry.insert(records.iter().map(|record| (record.time, record.arrival)).collect())
            }
        };
        if !positions.contains(&at) {
            return Ok(false);
        }
        for &later in slot.runs.range(run + 1..).map(|(later, _)| later) {
            let killed = match self.read_tombstones.entry((key, later)) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => {
                    entry.insert(read_tombstones(self.kv, &key, slot, later)?.into_iter().collect())
                }
            };
            if killed.contains(&at.1) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the changes into `batch`; the directory is to follow when the batch is durable.
    pub(super) fn finish(self, batch: &mut Batch) -> Result<DirectoryChange, PagesError> {
        let Self { directory, run, mut new_pages, mut dead, .. } = self;
        let touched: BTreeSet<SlotKey> = new_pages.keys().chain(dead.keys()).copied().collect();
        let mut change = BTreeMap::new();
        for key in touched {
            let pages = new_pages.remove(&key).unwrap_or_default();
            let mut dead = dead.remove(&key).unwrap_or_default();
            let mut slot = directory.slots.get(&key).cloned().unwrap_or_default();
            let added: u64 = pages.iter().map(|page| u64::from(page.count)).sum();
            let live = (slot.live + added).checked_sub(dead.len() as u64);
            let live = live.ok_or(Malformed("more messages left it than it held"));
            slot.live = live.map_err(PagesError::damaged(format!("slot {key:?}")))?;
            if slot.live == 0 {
                drop_slot(&key, &slot, batch);
                change.insert(key, None);
                continue;
            }
            dead.sort_unstable();
            let tombstones = put_tombstones(&key, run, &dead, batch);
            let mut added = Run { pages, tombstones, parts: 0 };
            put_run(&key, run, &mut added, batch);
            slot.runs.insert(run, added);
            change.insert(key, Some(slot));
        }
        Ok(DirectoryChange(change))
    }
}

/// What a fold changes in the directory.
pub(super) struct DirectoryChange(BTreeMap<SlotKey, Option<Slot>>);

impl Directory {
    /// Follows a fold that is durable.
    pub(super) fn apply(&mut self, change: DirectoryChange) {
        for (key, slot) in change.0 {
            match slot {
                Some(slot) => self.slots.insert(key, slot),
                None => self.slots.remove(&key),
            };
        }
    }
}

/// Removes everything of a slot in which nothing lives, without reading it.
fn drop_slot(key: &SlotKey, slot: &Slot, batch: &mut Batch) {
    for (&run, listed) in &slot.runs {
        let of =
            [(PAGE, listed.pages.len()), (TOMBSTONES, listed.tombstones.len()), (DIRECTORY, listed.parts as usize)];
        for (kind, parts) in of {
            for part in 0..u32::try_from(parts).expect("a run has few parts") {
                batch.remove(key.key(kind, run, part));
            }
        }
    }
}

fn put_run(key: &SlotKey, number: u64, run: &mut Run, batch: &mut Batch) {
    let mut payload = Vec::new();
    let mut close = |payload: &mut Vec<u8>, parts: &mut u32| {
        let part_key = key.key(DIRECTORY, number, *parts);
        let value = seal(&part_key, payload);
        batch.put(part_key, value);
        payload.clear();
        *parts += 1;
    };
    for page in &run.pages {
        payload.push(PAGE_ITEM);
        page.put(&mut payload);
        if payload.len() > MAX_VALUE_BYTES - 128 {
            close(&mut payload, &mut run.parts);
        }
    }
    for part in &run.tombstones {
        payload.push(TOMBSTONES_ITEM);
        put_u32(&mut payload, part.count);
        put_u32(&mut payload, part.sum);
        if payload.len() > MAX_VALUE_BYTES - 128 {
            close(&mut payload, &mut run.parts);
        }
    }
    if !payload.is_empty() {
        close(&mut payload, &mut run.parts);
    }
}

/// Tombstones are ascending arrival numbers, each as the difference to the one before.
fn put_tombstones(key: &SlotKey, run: u64, arrivals: &[u64], batch: &mut Batch) -> Vec<TombstonesEntry> {
    let mut parts = Vec::new();
    // A difference takes at most 10 bytes.
    for (n, part) in arrivals.chunks(MAX_VALUE_BYTES / 10 - 2).enumerate() {
        let mut payload = Vec::new();
        let mut before = 0;
        put_u64(&mut payload, part.len() as u64);
        for &arrival in part {
            put_u64(&mut payload, arrival - before);
            before = arrival;
        }
        let part_key = key.key(TOMBSTONES, run, u32::try_from(n).expect("a run has few parts"));
        let value = seal(&part_key, &payload);
        let count = u32::try_from(part.len()).expect("a part is small");
        parts.push(TombstonesEntry { count, sum: seal_of(&value) });
        batch.put(part_key, value);
    }
    parts
}

fn read_tombstones(kv: &dyn Kv, key: &SlotKey, slot: &Slot, run: u64) -> Result<Vec<u64>, PagesError> {
    let mut arrivals = Vec::new();
    let Some(listed) = slot.runs.get(&run) else { return Ok(arrivals) };
    for (n, entry) in listed.tombstones.iter().enumerate() {
        let what = || page_name(key, run, n).replace("page", "tombstones");
        let part_key = key.key(TOMBSTONES, run, u32::try_from(n).expect("a run has few parts"));
        let value = kv.value(&part_key)?.ok_or(Malformed("missing")).map_err(PagesError::damaged(what()))?;
        let mut read = || {
            let mut input = Reader::new(unseal(&part_key, &value)?);
            if seal_of(&value) != entry.sum || input.count()? != entry.count as usize {
                return Err(Malformed("not the part that the directory lists"));
            }
            let mut arrival = 0_u64;
            for _ in 0..entry.count {
                arrival = arrival.checked_add(input.u64()?).ok_or(Malformed("an arrival over 64 bits"))?;
                arrivals.push(arrival);
            }
            input.finish()
        };
        read().map_err(PagesError::damaged(what()))?;
    }
    Ok(arrivals)
}
