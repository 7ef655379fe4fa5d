//! Compaction: runs of a slot of which much is dead, or of which there are very many, are written again as one.
//!
//! It uses the steps of a fold: data under a run number of its own, durable, then one batch that makes it count.
//! What is rewritten is what lives, so a compaction changes no answer. One step does a bounded amount of work,
//! since no fold can run meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::crash::crash_point;

use super::codec::Malformed;
use super::directory::DirectoryDelta;
use super::folder::{FoldError, Folder};
use super::keys::{Level, SlotKey};
use super::kv::Batch;
use super::page::{Packer, PagesError, Put, read_page};
use super::slot::{Run, Slot};
use super::state::PagesState;
use super::tombstones::{Graves, Tombstone, TombstoneCache, put_tombstones};
use super::walk::{NONE_AVOIDED, Step, Stock, Walk};
use super::writer::RunWriter;

/// Pages that one step rewrites at most, unless a single run has more.
const MAX_PAGES: usize = 2_000;
/// More runs than this are rewritten as one if their pages are few.
const MAX_RUNS: usize = 64;

impl Folder {
    /// Removes a bounded part of what pages hold of deleted topics, or else rewrites a bounded part of the pages if much
    /// of it is dead; `None`: there is nothing to do, or a backup is reading the pages. To be called
    /// again until then, between folds. What it gives is for readers to follow.
    ///
    /// # Errors
    /// [`FoldError`]; the folder is of no use any more.
    pub fn compact(&mut self) -> Result<Option<Arc<DirectoryDelta>>, FoldError> {
        let fold = self.state.mark.fold;
        // What a backup reads must stay, also of topics that were deleted since.
        if self.is_held().map_err(|problem| FoldError { fold, problem })? {
            return Ok(None);
        }
        if let Some(delta) = self.give_back().map_err(|problem| FoldError { fold, problem })? {
            return Ok(Some(Arc::new(delta)));
        }
        let plan = self.plan();
        if plan.is_empty() {
            return Ok(None);
        }
        crash_point!("compaction.begins");
        let delta = self.rewrite(&plan).map_err(|problem| FoldError { fold, problem })?;
        crash_point!("compaction.complete");
        // There may be more to do in the same slots.
        self.worn.extend(plan.into_keys());
        Ok(Some(Arc::new(delta)))
    }

    /// The runs to be rewritten in one step, by slot.
    fn plan(&mut self) -> BTreeMap<SlotKey, Vec<u64>> {
        let mut plan = BTreeMap::new();
        let mut pages = 0;
        while let Some(key) = self.worn.pop_first() {
            let Some(slot) = self.directory.slot(&key).filter(|_| !self.doomed.contains_key(&key.topic)) else {
                continue;
            };
            let runs = self.worn_runs(&key, slot);
            // What is damaged stays where it is until a fold sets it aside.
            if runs.is_empty() || !self.is_readable(&key, slot, &runs) {
                continue;
            }
            pages += runs.iter().map(|run| pages_to_read(&slot.runs[*run])).sum::<usize>();
            if pages > MAX_PAGES && !plan.is_empty() {
                self.worn.insert(key);
                break;
            }
            plan.insert(key, runs);
        }
        plan
    }

    /// The runs of a slot that are to be rewritten together.
    fn worn_runs(&self, key: &SlotKey, slot: &Slot) -> Vec<u64> {
        // What is due already is usually gone soon, so that rewriting it would be for nothing.
        let is_due = key.level != Level::Dead && key.start < self.state.carry_before.as_millis();
        let is_worn = |run: &Run| if is_due { run.live() * 8 < run.count } else { run.dead * 2 > run.count };
        let mut pages = 0;
        let mut worn = Vec::new();
        for (&number, run) in slot.runs.iter().filter(|(_, run)| is_worn(run)) {
            pages += pages_to_read(run);
            if pages > MAX_PAGES && !worn.is_empty() {
                break;
            }
            worn.push(number);
        }
        let with_pages = || slot.runs.iter().filter(|(_, run)| !run.pages.is_empty());
        let is_tiny = || with_pages().map(|(_, run)| run.pages.len()).sum::<usize>() < MAX_PAGES;
        if worn.is_empty() && with_pages().count() > MAX_RUNS && is_tiny() {
            return with_pages().map(|(&run, _)| run).collect();
        }
        worn
    }

    fn is_readable(&self, key: &SlotKey, slot: &Slot, runs: &[u64]) -> bool {
        let read = |run: u64| {
            let listed = &slot.runs[run];
            let is_read = pages_to_read(listed) > 0;
            let mut pages = listed.pages.iter().enumerate().filter(|_| is_read);
            pages.all(|(n, entry)| read_page(&*self.kv, key, run, n, entry).is_ok())
        };
        runs.iter().all(|&run| read(run))
    }

    fn rewrite(&mut self, plan: &BTreeMap<SlotKey, Vec<u64>>) -> Result<DirectoryDelta, PagesError> {
        let run = self.state.run + 1;
        let kv = self.kv.reader();
        let mut tombstones = TombstoneCache::default();
        let mut last = Batch::default();
        let mut writer = RunWriter::new(&mut *self.kv, run);
        let put: Put<'_> = &mut |key, value| writer.put(key, value);
        let directory = &self.directory;
        let mut stock = Stock { kv: &*kv, directory, tombstones: &mut tombstones, avoided: &NONE_AVOIDED };
        let mut slots = BTreeMap::new();
        for (&key, runs) in plan {
            let slot = rewrite_slot(&mut stock, (key, runs), run, put, &mut last)?;
            slots.insert(key, slot);
        }
        writer.finish(&mut last)?;
        let delta = DirectoryDelta { fold: self.state.mark.fold, run, slots };
        self.complete(last, PagesState { run, ..self.state }, &delta)?;
        Ok(delta)
    }
}

/// A run in which nothing lives is not read.
fn pages_to_read(run: &Run) -> usize {
    if run.live() == 0 { 0 } else { run.pages.len() }
}

/// Writes what lives in some runs of a slot as run `run`; gives the slot as it is after the batch.
fn rewrite_slot(
    stock: &mut Stock<'_>,
    (key, runs): (SlotKey, &[u64]),
    run: u64,
    put: Put<'_>,
    last: &mut Batch,
) -> Result<Option<Arc<Slot>>, PagesError> {
    let before = Arc::clone(stock.directory.slot(&key).expect("a plan names slots that are there"));
    let mut packer = Packer::new(key, run);
    let mut walk = Walk::of_runs(key, &before, runs);
    let (mut count, mut budget) = (0, usize::MAX);
    loop {
        match walk.step(stock, &mut budget)? {
            Step::Record(_, record) => packer.add_record(&record, put)?,
            Step::Damaged(_, problem) => return Err(problem),
            Step::Exhausted | Step::End => break,
        }
        count += 1;
    }
    let pages = packer.finish(put)?;
    let damaged = |problem| PagesError::damaged(format!("slot {key:?}"))(problem);
    if count != runs.iter().map(|run| before.runs[*run].live()).sum::<u64>() {
        return Err(damaged(Malformed("its tombstones do not match its pages")));
    }
    let (writers, remaining) = remaining_tombstones(stock, &key, &before, runs)?;
    let graves = if remaining.is_empty() { Graves::default() } else { put_tombstones(&key, run, &remaining, put)? };
    let mut slot = Slot::clone(&before);
    for by in writers {
        slot.drop_graves(&key, by, last);
    }
    for &run in runs {
        slot.drop_run(&key, run, last);
    }
    if !pages.is_empty() || !graves.parts.is_empty() {
        slot.list(&key, run, pages, graves, last);
    }
    slot.count().map_err(damaged)?;
    Ok((!slot.runs.is_empty()).then(|| Arc::new(slot)))
}

/// The runs whose tombstones are affected when `runs` go, and those of their tombstones that are still needed.
fn remaining_tombstones(
    stock: &mut Stock<'_>,
    key: &SlotKey,
    slot: &Slot,
    runs: &[u64],
) -> Result<(Vec<u64>, Vec<Tombstone>), PagesError> {
    let (mut writers, mut remaining) = (Vec::new(), Vec::new());
    for (&by, graves) in slot.runs.iter().filter_map(|(by, run)| Some((by, run.graves.as_ref()?))) {
        if !runs.contains(&by) && !runs.iter().any(|&run| graves.kills_in(run)) {
            continue;
        }
        writers.push(by);
        for (n, part) in graves.parts.iter().enumerate() {
            let tombstones = stock.tombstones.part(stock.kv, (*key, by, n), part)?;
            remaining.extend(tombstones.iter().copied().filter(|(_, killed)| !runs.contains(killed)));
        }
    }
    remaining.sort_unstable();
    Ok((writers, remaining))
}
