//! The fold: a frozen generation becomes pages. It runs on a thread of its own; nothing else writes to the
//! page store.
//!
//! The order makes every moment safe. First pages, chunks, tombstones and runs under keys that carry the run's
//! number, which nothing refers to yet, each batch with the intent that names its keys, so that a fold that does
//! not finish leaves no garbage for ever; durable. Then one batch with everything that makes them count:
//! directory, totals, topics, lists and the fold's own number; durable. Only after that may the journal forget, and
//! is removed what is of no use any more.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::crash::crash_point;
use crate::queue::change::{DedupRecord, Finished, TopicRecord, Totals};
use crate::queue::far::Carried;
use crate::queue::message::{Message, Place, TopicId};

use super::codec::seal;
use super::committer::{FoldDone, FoldJob};
use super::directory::{Directory, DirectoryDelta};
use super::generation::Entry;
use super::give_back::Doomed;
use super::hold::Held;
use super::home::HomeLock;
use super::index::{Found, Index, IndexRecord, TopicIndex, write_index_run};
use super::keys::{DELETED, Level, STATE, SlotKey, TOPIC, TOTALS, chunk_prefix, parse_chunk_key, topic_key};
use super::kv::{Batch, Kv, KvRead};
use super::listing::Listing;
use super::page::{Packer, PageEntry, PagesError, Put, sort_time};
use super::quarantine::{PageName, Quarantine};
use super::reader::Reader;
use super::records::{put_topic, put_totals};
use super::removals::Removals;
use super::runs::{Remembered, RunEntry, RunIndex, put_entry, remove_run, useless_dedup, useless_ended, write_run};
use super::segment::StoreId;
use super::state::PagesState;
use super::writer::{RunWriter, Useless};

/// A fold failed. The journal still holds everything; the process is to end, and a restart folds again.
#[derive(Clone, Debug, thiserror::Error)]
#[error("fold {fold} failed: {problem}")]
pub struct FoldError {
    /// Number of the fold, or of the last one before a compaction.
    pub fold: u64,
    pub(super) problem: PagesError,
}

/// Folds generations into pages.
pub struct Folder {
    pub(super) kv: Box<dyn Kv>,
    pub(super) directory: Directory,
    pub(super) index: Index,
    pub(super) ended: RunIndex,
    pub(super) dedup: RunIndex,
    pub(super) topics: BTreeMap<TopicId, TopicRecord>,
    pub(super) listing: Listing,
    pub(super) state: PagesState,
    /// Slots that may be worth a compaction.
    pub(super) worn: BTreeSet<SlotKey>,
    /// Pages that are to be set aside: readers avoid them.
    pub(super) avoided: BTreeSet<PageName>,
    /// Deleted topics of which pages hold something.
    pub(super) doomed: Doomed,
    /// What a backup that is under way reads.
    pub(super) held: Held,
    /// Most removals that a backup may put off.
    pub(super) max_withheld: usize,
    pub(super) store: StoreId,
    pub(super) lock: Option<Arc<HomeLock>>,
}

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

    /// Makes a reader of the pages as they are now. It is to be told of everything that changes from then on.
    pub fn reader(&self) -> Reader {
        let avoided = self.avoided.clone();
        Reader::new(self.kv.reader(), self.directory.clone(), self.state, avoided, self.lock.clone())
    }

    /// Bytes of the page store on disk, as far as known.
    pub fn disk_bytes(&self) -> u64 {
        self.kv.disk_bytes()
    }

    /// Pages that are listed.
    pub fn pages(&self) -> usize {
        self.directory.pages()
    }

    pub(super) fn fold(&mut self, job: &FoldJob) -> Result<FoldDone, PagesError> {
        assert_eq!(job.mark.fold, self.state.mark.fold + 1, "folds run in order");
        crash_point!("fold.begins");
        let run = self.state.run + 1;
        self.topics.extend(job.table.topics.iter().map(|(&id, topic)| (id, topic.clone())));
        self.topics.retain(|id, _| !job.table.deleted.contains(id));
        let kv = self.kv.reader();
        let mut last = Batch::default();
        let mut writer = RunWriter::new(&mut *self.kv, run);
        let put: Put<'_> = &mut |key, value| writer.put(key, value);
        let new_pages = write_pages(job, run, put)?;
        let pages = new_pages.values().map(Vec::len).sum::<usize>() as u64;
        let messages = new_pages.values().flatten().map(|page| u64::from(page.count)).sum();
        let mut removals = Removals::new(&*kv, &self.directory);
        let left = remove_copies(&mut removals, &*kv, job, run, &mut last)?;
        let mut quarantine = Quarantine::plan(job, &mut removals);
        let slots = removals.finish(run, &mut quarantine, new_pages, put, &mut last)?;
        let named = quarantine.name(&self.index, &mut removals, job);
        let index = write_index(&*kv, &self.index, (job, named), run, put, &mut last)?;
        let (ended, dedup) = write_remembered(job, run, &self.topics, put)?;
        let ended = list_runs::<Finished>(&self.ended, ended, run, &mut last, |topic, runs| {
            let topic = self.topics.get(&topic);
            topic.map_or_else(Vec::new, |topic| useless_ended(runs, topic, job.now))
        });
        let dedup = list_runs::<DedupRecord>(&self.dedup, dedup, run, &mut last, |topic, runs| {
            // Those of deleted topics are removed step by step.
            if self.doomed.contains_key(&topic) { Vec::new() } else { useless_dedup(runs, job.now) }
        });
        writer.finish(&mut last)?;
        crash_point!("fold.pages_durable");
        put_facts(job, &quarantine.counts(), &mut last);
        let FoldJob { arrivals, epoch, carry_before, last_topic, .. } = *job;
        let state = PagesState { mark: job.mark, run, arrivals, epoch, carry_before, last_topic, ..self.state };
        let delta = DirectoryDelta { fold: job.mark.fold, run, slots };
        self.complete(last, state, &delta)?;
        crash_point!("fold.complete");
        self.worn.extend(delta.slots.keys());
        (self.ended, self.dedup, self.index) = (ended, dedup, index);
        self.doomed.extend(job.table.deleted.iter().map(|&topic| (topic, 0)));
        let carried = job.table.entries.iter().filter(|entry| job.table.is_carried(entry, job.carry_before));
        let carried = carried.filter_map(|entry| {
            let place = entry.state.as_ref()?.place();
            Some(Carried { topic: entry.topic, arrival: entry.arrival, place })
        });
        let carried = carried.collect();
        let set_aside = quarantine.done();
        Ok(FoldDone { fold: job.mark.fold, carried, delta: Arc::new(delta), messages, pages, left, set_aside })
    }

    /// Makes the last batch durable and follows it; then removes what it has made useless, unless a backup reads that.
    pub(super) fn complete(
        &mut self,
        mut last: Batch,
        mut state: PagesState,
        delta: &DirectoryDelta,
    ) -> Result<(), PagesError> {
        let useless = Useless::of(&mut last, state.run);
        self.listing.follow(&*self.kv, &last)?;
        state.listing = self.listing.digest;
        last.put(vec![STATE], seal(&[STATE], &state.encode()));
        crash_point!("complete.before_batch");
        self.kv.apply(last)?;
        crash_point!("complete.applied");
        self.kv.make_durable()?;
        crash_point!("complete.durable");
        self.directory.apply(delta);
        self.state = state;
        self.remove_useless(useless)
    }
}

/// Writes the live messages of the generation that go to the pages, slot by slot.
fn write_pages(job: &FoldJob, run: u64, put: Put<'_>) -> Result<BTreeMap<SlotKey, Vec<PageEntry>>, PagesError> {
    let mut slots: BTreeMap<SlotKey, Vec<&Message>> = BTreeMap::new();
    for entry in job.table.kept() {
        let Some(message) = goes_to_pages(entry, job) else { continue };
        let level = match message.place() {
            // What is overdue is spread over wider slots too, since a backlog may reach back far.
            Place::Due(due) => Level::at_distance(due.as_millis().abs_diff(job.now.as_millis())),
            Place::Dead(_) => Level::Dead,
        };
        let slot = SlotKey::holding(entry.topic, level, sort_time(message.place()));
        slots.entry(slot).or_default().push(message);
    }
    let mut pages = BTreeMap::new();
    for (slot, mut messages) in slots {
        messages.sort_unstable_by_key(|message| (sort_time(message.place()), message.id.arrival));
        let mut packer = Packer::new(slot, run);
        for message in messages {
            packer.add_message(message, put)?;
        }
        pages.insert(slot, packer.finish(put)?);
    }
    Ok(pages)
}

fn goes_to_pages<'a>(entry: &'a Entry, job: &FoldJob) -> Option<&'a Message> {
    entry.state.as_ref().filter(|_| !job.table.is_carried(entry, job.carry_before))
}

/// Writes what is remembered of the generation's ended messages and dedup ids.
#[expect(clippy::type_complexity, reason = "two lists of the same kind")]
fn write_remembered(
    job: &FoldJob,
    run: u64,
    topics: &BTreeMap<TopicId, TopicRecord>,
    put: Put<'_>,
) -> Result<(Vec<(TopicId, RunEntry)>, Vec<(TopicId, RunEntry)>), PagesError> {
    let (mut ended_runs, mut dedup_runs) = (Vec::new(), Vec::new());
    let is_kept = |topic: &TopicId| !job.table.deleted.contains(topic);
    for (topic, ended) in by_topic(&job.table.ended).into_iter().filter(|(topic, _)| is_kept(topic)) {
        let max = topics.get(&topic).map_or(usize::MAX, |topic| topic.settings.history_count as usize);
        let newest = ended[ended.len().saturating_sub(max)..].iter().copied();
        ended_runs.push((topic, write_run(topic, run, newest, put)?));
    }
    for (topic, ids) in by_topic(&job.table.dedup).into_iter().filter(|(topic, _)| is_kept(topic)) {
        let valid = ids.iter().copied().filter(|id| id.expires_at > job.now);
        dedup_runs.push((topic, write_run(topic, run, valid, put)?));
    }
    Ok((ended_runs, dedup_runs))
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
    removals: &mut Removals<'_>,
    kv: &dyn KvRead,
    job: &FoldJob,
    run: u64,
    last: &mut Batch,
) -> Result<u64, PagesError> {
    let touched = job.table.kept().filter_map(|entry| Some((entry.topic, entry.in_pages?, entry.arrival)));
    let mut leaving: Vec<_> = touched.collect();
    leaving.sort_unstable();
    for &(topic, place, arrival) in &leaving {
        let located = removals.remove(topic, place, arrival)?;
        if located.may_be_chunked {
            kv.scan(&chunk_prefix(topic, arrival), &mut |key, _| {
                // The same message may have been written again by this run.
                if parse_chunk_key(key).is_some_and(|(_, of)| of < run) {
                    last.remove(key.to_vec());
                }
                ControlFlow::Continue(())
            })?;
        }
    }
    Ok(leaving.len() as u64)
}

/// Writes what the generation changes in the index, and removes the `named` messages from it; gives the index as it
/// is after the batch.
fn write_index(
    kv: &dyn KvRead,
    index: &Index,
    (job, named): (&FoldJob, BTreeMap<TopicId, BTreeSet<u64>>),
    run: u64,
    put: Put<'_>,
    last: &mut Batch,
) -> Result<Index, PagesError> {
    let found = |entry: &Entry| goes_to_pages(entry, job).and_then(Found::of);
    let mut topics: BTreeMap<TopicId, Vec<IndexRecord>> = BTreeMap::new();
    for entry in job.table.kept().filter(|entry| entry.was_indexed || found(entry).is_some()) {
        let record = IndexRecord { arrival: entry.arrival, found: found(entry) };
        topics.entry(entry.topic).or_default().push(record);
    }
    for (topic, arrivals) in named.into_iter().filter(|(_, arrivals)| !arrivals.is_empty()) {
        let removals = arrivals.into_iter().map(|arrival| IndexRecord { arrival, found: None });
        topics.entry(topic).or_default().extend(removals);
    }
    let mut after = index.clone();
    for (topic, mut new) in topics {
        new.sort_unstable_by_key(|record| record.arrival);
        let new = new.into_iter();
        let runs: TopicIndex = after.remove(&topic).unwrap_or_default();
        let runs = write_index_run(kv, (topic, run), &runs, new, put, last)?;
        if !runs.is_empty() {
            after.insert(topic, runs);
        }
    }
    Ok(after)
}

/// Enters the new runs and removes useless ones; gives the list as it is after the batch.
fn list_runs<R: Remembered>(
    index: &RunIndex,
    new: Vec<(TopicId, RunEntry)>,
    run: u64,
    last: &mut Batch,
    useless: impl Fn(TopicId, &BTreeMap<u64, RunEntry>) -> Vec<u64>,
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

fn put_facts(job: &FoldJob, set_aside: &BTreeMap<TopicId, u64>, last: &mut Batch) {
    let mut put = |key: Vec<u8>, payload: &[u8]| {
        let value = seal(&key, payload);
        last.put(key, value);
    };
    for &topic in &job.table.deleted {
        put(topic_key(DELETED, topic), &[]);
    }
    for (&id, topic) in &job.table.topics {
        let mut payload = Vec::new();
        put_topic(&mut payload, topic);
        put(topic_key(TOPIC, id), &payload);
    }
    for (topic, totals) in &job.totals {
        let mut payload = Vec::new();
        let quarantined = totals.quarantined + set_aside.get(topic).copied().unwrap_or(0);
        put_totals(&mut payload, &Totals { quarantined, ..*totals });
        put(topic_key(TOTALS, *topic), &payload);
    }
    for &topic in &job.table.deleted {
        last.remove(topic_key(TOPIC, topic));
        last.remove(topic_key(TOTALS, topic));
    }
}
