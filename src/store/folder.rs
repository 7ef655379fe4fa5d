//! The fold: a frozen generation becomes pages. It runs on a thread of its own; nothing else writes to the
//! page store.
//!
//! The order makes every moment safe. First the intent: the keys that are about to be written, so that a fold
//! that does not finish leaves no garbage for ever. Then pages, chunks and runs under keys that carry the
//! fold's number, which nothing refers to yet; durable. Then one batch with everything that makes them count:
//! directory, tombstones, totals, topics, indexes and the fold's own number; durable. Only after that may the
//! journal forget.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::queue::change::{DedupRecord, Finished, TopicRecord};
use crate::queue::message::{Message, Place, TopicId};
use crate::queue::time::Timestamp;

use super::codec::{Malformed, Reader, put_bytes, put_u32, put_u64, seal, unseal};
use super::committer::{FoldDone, FoldJob, is_carried};
use super::directory::{Directory, FoldOfDirectory};
use super::home::HomeLock;
use super::journal::FoldMark;
use super::keys::{
    INTENT, Level, MAX_VALUE_BYTES, STATE, SlotKey, TOPIC, TOTALS, chunk_prefix, intent_key, parse_chunk_key, topic_key,
};
use super::kv::{Batch, Kv};
use super::listing::Listing;
use super::page::{PagesError, pack, sort_time};
use super::records::{put_time, put_topic, put_totals, time};
use super::runs::{Remembered, RunIndex, put_entry, remove_run, useless_dedup, useless_ended, write_run};

/// A fold failed. The journal still holds everything; the process is to end, and a restart folds again.
#[derive(Clone, Debug, thiserror::Error)]
#[error("fold {fold} failed: {problem}")]
pub struct FoldError {
    /// Number of the fold.
    pub fold: u64,
    problem: PagesError,
}

/// Folds generations into pages.
pub struct Folder {
    pub(super) kv: Box<dyn Kv>,
    pub(super) directory: Directory,
    pub(super) ended: RunIndex,
    pub(super) dedup: RunIndex,
    pub(super) topics: BTreeMap<TopicId, TopicRecord>,
    pub(super) listing: Listing,
    pub(super) mark: FoldMark,
    pub(super) _lock: Option<Arc<HomeLock>>,
}

/// About this many bytes are applied at once before the last batch.
const WRITE_BYTES: usize = 512 << 10;

impl Folder {
    /// Runs a fold; when it returns, the fold is durable.
    ///
    /// # Errors
    /// [`FoldError`]; the folder is of no use any more.
    #[expect(clippy::needless_pass_by_value, reason = "a fold runs once, and its table is let go with it")]
    pub fn run(&mut self, job: FoldJob) -> Result<FoldDone, FoldError> {
        let fold = job.mark.fold;
        self.fold(&job).map_err(|problem| FoldError { fold, problem })
    }

    /// Bytes of the page store on disk, as far as known.
    pub fn disk_bytes(&self) -> u64 {
        self.kv.disk_bytes()
    }

    /// Pages that are listed.
    pub fn pages(&self) -> usize {
        self.directory.pages()
    }

    fn fold(&mut self, job: &FoldJob) -> Result<FoldDone, PagesError> {
        let run = job.mark.fold;
        assert_eq!(run, self.mark.fold + 1, "folds run in order");
        self.topics.extend(job.table.topics.iter().map(|(&id, topic)| (id, topic.clone())));
        let written = self.write_run_data(job)?;
        let mut last = Batch::default();
        let mut changes = FoldOfDirectory::new(&*self.kv, &self.directory, run);
        let left = remove_copies(&mut changes, &*self.kv, job, &mut last)?;
        let pages = written.pages.values().map(Vec::len).sum::<usize>() as u64;
        let messages = written.pages.values().flatten().map(|page| u64::from(page.count)).sum();
        for (slot, pages) in written.pages {
            changes.add(slot, pages);
        }
        let directory = changes.finish(&mut last)?;
        let ended = index_runs::<Finished>(&self.ended, written.ended, run, &mut last, |topic, runs| {
            let topic = self.topics.get(&topic);
            topic.map_or_else(Vec::new, |topic| useless_ended(runs, topic, job.now))
        });
        let dedup = index_runs::<DedupRecord>(&self.dedup, written.dedup, run, &mut last, |_, runs| {
            useless_dedup(runs, job.now)
        });
        put_facts(job, &mut last);
        for part in 0..written.intent_parts {
            last.remove(intent_key(run, part));
        }
        self.listing.follow(&last);
        let state = PagesState {
            mark: job.mark,
            arrivals: job.arrivals,
            epoch: job.epoch,
            listing: self.listing.digest,
            carry_before: job.carry_before,
        };
        last.put(vec![STATE], seal(&[STATE], &state.encode()));
        self.kv.apply(last)?;
        self.kv.make_durable()?;
        self.directory.apply(directory);
        (self.ended, self.dedup, self.mark) = (ended, dedup, job.mark);
        Ok(FoldDone { fold: run, messages, pages, left })
    }

    /// The first half: everything under keys of this run, durable and not yet listed.
    fn write_run_data(&mut self, job: &FoldJob) -> Result<Written, PagesError> {
        let run = job.mark.fold;
        let mut data = Vec::new();
        let mut written = Written::default();
        let mut put = |key, value| {
            data.push((key, value));
            Ok(())
        };
        for (slot, mut messages) in survivors(job) {
            messages.sort_unstable_by_key(|message| (sort_time(message.place()), message.id.arrival));
            let pages = pack(&slot, run, messages.into_iter(), &mut put)?;
            written.pages.insert(slot, pages);
        }
        for (topic, ended) in by_topic(&job.table.ended) {
            let max = self.topics.get(&topic).map_or(usize::MAX, |topic| topic.settings.history_count as usize);
            let newest = &ended[ended.len().saturating_sub(max)..];
            let newest = newest.iter().copied();
            written.ended.push((topic, write_run(topic, run, newest, &mut put)?));
        }
        for (topic, ids) in by_topic(&job.table.dedup) {
            let valid = ids.iter().copied().filter(|id| id.expires_at > job.now);
            written.dedup.push((topic, write_run(topic, run, valid, &mut put)?));
        }
        written.intent_parts = self.write_intent(run, data.iter().map(|(key, _)| key))?;
        let mut batch = Batch::default();
        for (key, value) in data {
            batch.put(key, value);
            if batch.bytes() >= WRITE_BYTES {
                self.kv.apply(std::mem::take(&mut batch))?;
            }
        }
        if !batch.is_empty() {
            self.kv.apply(batch)?;
        }
        self.kv.make_durable()?;
        Ok(written)
    }

    fn write_intent<'a>(&mut self, run: u64, keys: impl Iterator<Item = &'a Vec<u8>>) -> Result<u32, PagesError> {
        let (mut batch, mut payload, mut parts) = (Batch::default(), Vec::new(), 0);
        let mut close = |payload: &mut Vec<u8>, batch: &mut Batch| {
            let key = intent_key(run, parts);
            let value = seal(&key, payload);
            batch.put(key, value);
            payload.clear();
            parts += 1;
        };
        for key in keys {
            put_bytes(&mut payload, key);
            if payload.len() > MAX_VALUE_BYTES - 64 {
                close(&mut payload, &mut batch);
            }
        }
        if !payload.is_empty() {
            close(&mut payload, &mut batch);
        }
        if !batch.is_empty() {
            self.kv.apply(batch)?;
        }
        Ok(parts)
    }
}

/// What the first half of a fold wrote.
#[derive(Default)]
struct Written {
    pages: BTreeMap<SlotKey, Vec<super::page::PageEntry>>,
    ended: Vec<(TopicId, super::runs::RunEntry)>,
    dedup: Vec<(TopicId, super::runs::RunEntry)>,
    intent_parts: u32,
}

/// The live messages of the generation that go to the pages, by slot.
fn survivors(job: &FoldJob) -> BTreeMap<SlotKey, Vec<&Message>> {
    let mut slots: BTreeMap<SlotKey, Vec<&Message>> = BTreeMap::new();
    for entry in &job.table.entries {
        let Some(message) = &entry.state else { continue };
        if is_carried(entry, job.carry_before) {
            continue;
        }
        let level = match message.place() {
            Place::Due(due) => Level::at_distance(due.since(job.now)),
            Place::Dead(_) => Level::Dead,
        };
        let slot = SlotKey::holding(entry.topic, level, sort_time(message.place()));
        slots.entry(slot).or_default().push(message);
    }
    slots
}

fn by_topic<R: Remembered>(records: &[R]) -> BTreeMap<TopicId, Vec<&R>> {
    let mut topics: BTreeMap<TopicId, Vec<&R>> = BTreeMap::new();
    for record in records {
        topics.entry(record.topic()).or_default().push(record);
    }
    topics
}

/// Every message that the generation touched leaves the page it was in. Gives how many did.
fn remove_copies(
    changes: &mut FoldOfDirectory<'_>,
    kv: &dyn Kv,
    job: &FoldJob,
    last: &mut Batch,
) -> Result<u64, PagesError> {
    let touched = job.table.entries.iter().filter_map(|entry| Some((entry.topic, entry.in_pages?, entry.arrival)));
    let mut leaving: Vec<_> = touched.collect();
    leaving.sort_unstable();
    for &(topic, place, arrival) in &leaving {
        let located = changes.remove(topic, place, arrival)?;
        if located.may_be_chunked {
            kv.scan(&chunk_prefix(topic, arrival), &mut |key, _| {
                // The same message may have been written again by this run.
                if parse_chunk_key(key).is_some_and(|(_, run)| run < job.mark.fold) {
                    last.remove(key.to_vec());
                }
                ControlFlow::Continue(())
            })?;
        }
    }
    Ok(leaving.len() as u64)
}

/// Enters the new runs and removes useless ones; gives the index as it is after the batch.
fn index_runs<R: Remembered>(
    index: &RunIndex,
    new: Vec<(TopicId, super::runs::RunEntry)>,
    run: u64,
    last: &mut Batch,
    useless: impl Fn(TopicId, &BTreeMap<u64, super::runs::RunEntry>) -> Vec<u64>,
) -> RunIndex {
    let mut after = index.clone();
    let mut entered = BTreeSet::new();
    for (topic, entry) in new {
        if entry.count > 0 {
            after.entry(topic).or_default().insert(run, entry);
            entered.insert(topic);
        }
    }
    for (&topic, runs) in &mut after {
        for number in useless(topic, runs) {
            let entry = runs.remove(&number).expect("it is in the index");
            remove_run::<R>(topic, number, &entry, last);
            if number == run {
                entered.remove(&topic);
            }
        }
        if entered.contains(&topic) {
            put_entry::<R>(topic, run, &runs[&run], last);
        }
    }
    after.retain(|_, runs| !runs.is_empty());
    after
}

fn put_facts(job: &FoldJob, last: &mut Batch) {
    let mut put = |key: Vec<u8>, payload: &[u8]| {
        let value = seal(&key, payload);
        last.put(key, value);
    };
    for (&id, topic) in &job.table.topics {
        let mut payload = Vec::new();
        put_topic(&mut payload, topic);
        put(topic_key(TOPIC, id), &payload);
    }
    for (topic, totals) in &job.totals {
        let mut payload = Vec::new();
        put_totals(&mut payload, totals);
        put(topic_key(TOTALS, *topic), &payload);
    }
}

/// What the pages know about the whole store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PagesState {
    pub(super) mark: FoldMark,
    pub(super) arrivals: u64,
    pub(super) epoch: u32,
    /// Digest of everything that lists and counts.
    pub(super) listing: u64,
    /// What fell due before this instant was left to the journal by the last fold.
    pub(super) carry_before: Timestamp,
}

impl PagesState {
    fn encode(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        put_u64(&mut payload, self.mark.fold);
        put_u64(&mut payload, self.mark.through);
        put_u64(&mut payload, self.mark.previous_through);
        put_u64(&mut payload, self.arrivals);
        put_u32(&mut payload, self.epoch);
        put_u64(&mut payload, self.listing);
        put_time(&mut payload, self.carry_before);
        payload
    }

    pub(super) fn load(kv: &dyn Kv) -> Result<Self, PagesError> {
        let key = [STATE];
        let Some(value) = kv.value(&key)? else { return Ok(Self::default()) };
        let read = || {
            let mut input = Reader::new(unseal(&key, &value)?);
            let mark = FoldMark { fold: input.u64()?, through: input.u64()?, previous_through: input.u64()? };
            let state = Self {
                mark,
                arrivals: input.u64()?,
                epoch: input.u32()?,
                listing: input.u64()?,
                carry_before: time(&mut input)?,
            };
            input.finish()?;
            Ok(state)
        };
        read().map_err(PagesError::damaged("the state of the pages"))
    }
}

/// Removes what a fold that did not finish has written.
pub(super) fn remove_unfinished(kv: &mut dyn Kv) -> Result<(), PagesError> {
    let mut batch = Batch::default();
    let mut problem: Option<Malformed> = None;
    kv.scan(&[INTENT], &mut |key, value| {
        batch.remove(key.to_vec());
        let read = || -> Result<Vec<Vec<u8>>, Malformed> {
            let mut input = Reader::new(unseal(key, value)?);
            let mut keys = Vec::new();
            while !input.is_empty() {
                keys.push(input.bytes()?.to_vec());
            }
            Ok(keys)
        };
        match read() {
            Ok(keys) => keys.into_iter().for_each(|key| batch.remove(key)),
            Err(error) => problem = Some(error),
        }
        ControlFlow::Continue(())
    })?;
    if let Some(problem) = problem {
        return Err(PagesError::damaged("the intent of a fold")(problem));
    }
    if !batch.is_empty() {
        kv.apply(batch)?;
    }
    Ok(())
}
