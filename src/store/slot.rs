//! A slot of the directory: the runs that hold its messages, and how they are listed.

use std::ops::Index;
use std::sync::Arc;

use super::codec::{Malformed, put_u32, put_u64, seal};
use super::keys::{DIRECTORY, MAX_VALUE_BYTES, PAGE, SlotKey, TOMBSTONES, TOMBSTONES_LIST};
use super::kv::Batch;
use super::page::PageEntry;
use super::tombstones::Graves;

/// What one fold or compaction added to a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) pages: Arc<[PageEntry]>,
    /// Parts of the list of its pages.
    pub(super) listed_in: u32,
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
    pub(super) runs: Runs,
    /// Messages in its pages that are not dead.
    pub(super) live: u64,
}

/// Runs by their number, ascending. Most slots have one or two, and there may be very many slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Runs(Vec<(u64, Run)>);

impl Runs {
    fn position(&self, number: u64) -> Result<usize, usize> {
        self.0.binary_search_by_key(&number, |&(number, _)| number)
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (&u64, &Run)> {
        self.0.iter().map(|(number, run)| (number, run))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Run> {
        self.0.iter().map(|(_, run)| run)
    }

    fn values_mut(&mut self) -> impl Iterator<Item = &mut Run> {
        self.0.iter_mut().map(|(_, run)| run)
    }

    /// The runs with a higher number.
    pub(super) fn after(&self, number: u64) -> impl Iterator<Item = (&u64, &Run)> {
        let first = self.0.partition_point(|&(other, _)| other <= number);
        self.0[first..].iter().map(|(number, run)| (number, run))
    }

    pub(super) fn get(&self, number: u64) -> Option<&Run> {
        self.position(number).ok().map(|at| &self.0[at].1)
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut Run> {
        self.position(number).ok().map(|at| &mut self.0[at].1)
    }

    /// Enters a run, whose number is higher than all before.
    pub(super) fn add(&mut self, number: u64, run: Run) {
        assert!(self.0.last().is_none_or(|&(last, _)| last < number), "run numbers ascend");
        self.0.push((number, run));
    }

    fn remove(&mut self, number: u64) -> Option<Run> {
        self.position(number).ok().map(|at| self.0.remove(at).1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Index<u64> for Runs {
    type Output = Run;

    fn index(&self, number: u64) -> &Run {
        &self.0[self.position(number).expect("a run that was seen in the slot is there")].1
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
                let run = self.runs.get_mut(killed).filter(|_| killed < by);
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
        run.listed_in = list_pages(key, number, &run.pages, batch);
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
                    put_u64(out, killed);
                    put_u32(out, count);
                });
            }
            graves.listed_in = list.finish();
        }
        self.runs.add(number, run);
    }

    /// Sets a page of a run aside, of whose messages tombstones kill `dead`.
    pub(super) fn set_aside(&mut self, key: &SlotKey, (number, page): (u64, usize), dead: u16, batch: &mut Batch) {
        let run = self.runs.get_mut(number).expect("a page that is listed has a run");
        let mut pages = run.pages.to_vec();
        let lost = u64::from(pages[page].count - dead);
        pages[page] = pages[page].in_quarantine(dead);
        run.pages = pages.into();
        run.count -= lost;
        self.live -= lost;
        let listed_in = list_pages(key, number, &run.pages, batch);
        for part in listed_in..run.listed_in {
            batch.remove(key.key(DIRECTORY, number, part));
        }
        run.listed_in = listed_in;
    }

    /// Removes a run with its pages and tombstones.
    pub(super) fn drop_run(&mut self, key: &SlotKey, number: u64, batch: &mut Batch) {
        self.drop_graves(key, number, batch);
        let Some(run) = self.runs.remove(number) else { return };
        for (n, _) in run.pages.iter().enumerate().filter(|(_, page)| !page.is_in_quarantine()) {
            batch.remove(key.key(PAGE, number, u32::try_from(n).expect("a run has few pages")));
        }
        remove_parts(key, number, DIRECTORY, run.listed_in as usize, batch);
    }

    /// Removes the tombstones of a run, and the run if it has no pages.
    pub(super) fn drop_graves(&mut self, key: &SlotKey, number: u64, batch: &mut Batch) {
        let Some(run) = self.runs.get_mut(number) else { return };
        if let Some(graves) = run.graves.take() {
            remove_parts(key, number, TOMBSTONES, graves.parts.len(), batch);
            remove_parts(key, number, TOMBSTONES_LIST, graves.listed_in as usize, batch);
        }
        if run.pages.is_empty() {
            self.runs.remove(number);
        }
    }

    /// Removes everything of a slot in which nothing lives, without reading it.
    pub(super) fn drop_all(mut self, key: &SlotKey, batch: &mut Batch) {
        let runs: Vec<u64> = self.runs.iter().map(|(&run, _)| run).collect();
        for run in runs {
            self.drop_run(key, run, batch);
        }
    }
}

/// Puts the list of the pages of a run into `batch`; gives the number of its parts.
fn list_pages(key: &SlotKey, run: u64, pages: &[PageEntry], batch: &mut Batch) -> u32 {
    let mut list = List { key, run, kind: DIRECTORY, payload: Vec::new(), parts: 0, batch };
    for page in pages {
        list.item(|out| page.put(out));
    }
    list.finish()
}

fn remove_parts(key: &SlotKey, run: u64, kind: u8, parts: usize, batch: &mut Batch) {
    for part in 0..u32::try_from(parts).expect("a run has few parts") {
        batch.remove(key.key(kind, run, part));
    }
}

pub(super) const PART_ITEM: u8 = 1;
pub(super) const KILLS_ITEM: u8 = 2;

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
