//! Reading messages from the pages while the folder writes: what memory has let go comes back through here.
//!
//! A reader sees the pages as of one fold and follows with [`Reader::apply`]. Pages never change and their keys
//! are never used twice, so as long as what the reader knows exists, what it reads is of that fold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::queue::dead::StoredDead;
use crate::queue::due::FirstInPages;
use crate::queue::far::{Load, Loaded, Missing};
use crate::queue::message::{Message, Place, TopicId};
use crate::queue::quarantine::DamagedPart;
use crate::queue::time::Timestamp;

use super::codec::Malformed;
use super::counts::CutCache;
use super::directory::{Directory, DirectoryDelta};
use super::home::HomeLock;
use super::keys::Level;
use super::kv::{KvError, KvRead};
use super::page::{Order, PagesError, read_page, sort_time};
use super::quarantine::PageName;
use super::state::PagesState;
use super::tombstones::TombstoneCache;
use super::walk::{Step, Stock, Walk};

/// A part of the pages cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// A fold or a compaction that this reader was not told of has removed what it knows: apply what was
    /// changed, and ask again.
    #[error("the pages have changed")]
    Overtaken,
    /// What is stored there is damaged.
    #[error("the pages are damaged: {what}")]
    Damaged {
        /// What and where.
        what: String,
    },
    /// The page store has failed as a whole. Nothing is known to be damaged, and nothing can be read before a restart.
    #[error("the page store has failed: {what}")]
    Failed {
        /// What it says.
        what: String,
    },
}

/// Reads messages from the pages, on any thread.
pub struct Reader {
    kv: Box<dyn KvRead>,
    directory: Directory,
    state: PagesState,
    tombstones: TombstoneCache,
    /// What was counted before instants.
    cuts: CutCache,
    cursors: BTreeMap<TopicId, Cursor>,
    /// Counts loads, to tell which cursor was used last.
    loads: u64,
    /// Pages that were found damaged, whether a second reading would succeed or not.
    avoided: BTreeSet<PageName>,
    /// What was found damaged and not told yet.
    damaged: Vec<DamagedPart>,
    _lock: Option<Arc<HomeLock>>,
}

/// A load that may go on.
struct Cursor {
    walk: Walk,
    /// Where it goes on.
    next: Order,
    /// The load that used it last.
    used: u64,
}

/// Pages, or chunks of messages, that one load reads at most.
const MAX_READS: usize = 200;
/// The same for a look at dead letters, which the owner of the queue waits for.
const MAX_DEAD_READS: usize = 32;
/// Messages that are read to find the first due times.
const MAX_FIRST: usize = 256;
/// Pages that all cursors together hold, each with its records about 9 KB.
const MAX_LOADED: usize = 2_048;

impl Reader {
    pub(super) fn new(
        kv: Box<dyn KvRead>,
        directory: Directory,
        state: PagesState,
        avoided: BTreeSet<PageName>,
        lock: Option<Arc<HomeLock>>,
    ) -> Self {
        Self {
            kv,
            directory,
            state,
            tombstones: TombstoneCache::default(),
            cuts: CutCache::default(),
            cursors: BTreeMap::new(),
            loads: 0,
            avoided,
            damaged: Vec::new(),
            _lock: lock,
        }
    }

    /// The fold whose pages it reads.
    pub fn fold(&self) -> u64 {
        self.state.mark.fold
    }

    /// Number of the last fold or compaction that it follows.
    pub fn run(&self) -> u64 {
        self.state.run
    }

    /// Follows a fold or a compaction. Every one is to be applied, in order.
    pub fn apply(&mut self, delta: &DirectoryDelta) {
        assert_eq!(delta.run, self.state.run + 1, "a reader follows every change of the pages");
        self.directory.apply(delta);
        (self.state.mark.fold, self.state.run) = (delta.fold, delta.run);
        for slot in delta.slots.keys() {
            self.cursors.remove(&slot.topic);
        }
    }

    /// Does not read a damaged page any more, even if another reader has found it.
    pub fn avoid(&mut self, part: &DamagedPart) {
        self.avoided.extend(PageName::of_whole(part));
        self.cursors.remove(&part.topic);
    }

    /// What was found damaged since the last call. It was left out of what was read.
    pub fn take_damaged(&mut self) -> Vec<DamagedPart> {
        std::mem::take(&mut self.damaged)
    }

    /// The waiting messages of a topic in their order, from a place in it on; what is damaged is left out. One call reads a bounded number of
    /// pages, so it may give fewer messages than asked for and than there are; the frontier is then how far it
    /// came. Going on from the frontier costs no page twice.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn load(&mut self, load: Load) -> Result<Loaded, ReadError> {
        let Load { topic, from, max, .. } = load;
        let cursor = self.cursors.remove(&topic).filter(|cursor| cursor.next == from);
        let mut walk =
            cursor.map_or_else(|| Walk::of_topic(&self.directory, topic, &Level::DUE, from), |cursor| cursor.walk);
        let messages = self.walk_on(&mut walk, max, MAX_READS)?;
        let frontier = walk.frontier();
        if let Some(next) = frontier {
            self.loads += 1;
            self.cursors.insert(topic, Cursor { walk, next, used: self.loads });
            self.forget_cursors();
        }
        Ok(Loaded { load, messages, frontier })
    }

    /// The message that a command names. `None`: there is none.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn find(&mut self, missing: &Missing) -> Result<Option<Message>, ReadError> {
        for &(arrival, place) in &missing.candidates {
            let found = self.message_at(missing.topic, place, arrival)?;
            let has_key =
                |message: &Message| missing.key.is_none() || message.content.key.as_ref() == missing.key.as_ref();
            if let Some(message) = found.filter(has_key) {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// Up to `limit` dead letters of a topic, by time of death and arrival number, after the place `after`. One call
    /// reads a bounded number of pages, as [`Reader::load`] does.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn dead(&mut self, topic: TopicId, after: Option<Order>, limit: usize) -> Result<StoredDead, ReadError> {
        let from = match after {
            None => (Timestamp::ZERO, 0),
            Some((at, u64::MAX)) => (at.plus(1), 0),
            Some((at, arrival)) => (at, arrival + 1),
        };
        let mut walk = Walk::of_topic(&self.directory, topic, &[Level::Dead], from);
        let messages = self.walk_on(&mut walk, limit, MAX_DEAD_READS)?;
        Ok(StoredDead { messages, frontier: walk.frontier() })
    }

    /// Pages of a topic that are listed. Those of a deleted one are being removed.
    pub fn pages_of(&self, topic: TopicId) -> u64 {
        let runs = self.directory.slots_of(topic).flat_map(|(_, slot)| slot.runs.values());
        runs.map(|run| run.pages.len() as u64).sum()
    }

    /// How many waiting messages of a topic fall due in each of the spans between `edges`, which ascend; a span ends
    /// before its upper edge. Exact, apart from pages that are found damaged. Reads at most one page and one part of
    /// tombstones for each run and edge, and none that it has read for the same edge of the last call.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn due(&mut self, topic: TopicId, edges: &[Timestamp]) -> Result<Vec<u64>, ReadError> {
        let (kv, directory, avoided) = (&*self.kv, &self.directory, &self.avoided);
        let stock = Stock { kv, directory, tombstones: &mut self.tombstones, avoided };
        let mut damaged = Vec::new();
        let counts = self.cuts.due(stock, topic, edges, &mut damaged);
        let counts = counts.map_err(|error| self.explain(&error))?;
        self.note_all(damaged)?;
        Ok(counts)
    }

    /// Due times of the first waiting messages of a topic from a place in its order on, with how many messages wait
    /// for each; of a bounded number of messages and pages.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn first_due(&mut self, topic: TopicId, from: Order) -> Result<FirstInPages, ReadError> {
        let mut walk = Walk::of_topic(&self.directory, topic, &Level::DUE, from);
        let messages = self.walk_on(&mut walk, MAX_FIRST, MAX_READS)?;
        let mut first = FirstInPages { due: Vec::new(), is_all: walk.frontier().is_none() };
        for message in messages {
            match first.due.last_mut() {
                Some((at, count)) if *at == message.progress.due_at => *count += 1,
                _ => first.due.push((message.progress.due_at, 1)),
            }
        }
        Ok(first)
    }

    fn walk_on(&mut self, walk: &mut Walk, max: usize, mut budget: usize) -> Result<Vec<Message>, ReadError> {
        let (mut messages, mut damaged) = (Vec::new(), Vec::new());
        let mut walk_on = || {
            let (kv, directory, avoided) = (&*self.kv, &self.directory, &self.avoided);
            let mut stock = Stock { kv, directory, tombstones: &mut self.tombstones, avoided };
            while messages.len() < max {
                match walk.step(&mut stock, &mut budget)? {
                    Step::Record(name, record) => {
                        match record.message(kv, &name.slot) {
                            Ok(message) => messages.push(message),
                            Err(problem) => damaged.push((name.message(record.order), problem)),
                        }
                        // Chunks count as pages, but a message is never left half read.
                        budget = budget.saturating_sub(record.chunks());
                    }
                    Step::Damaged(part, problem) => damaged.push((part, problem)),
                    Step::Exhausted | Step::End => break,
                }
                if budget == 0 {
                    break;
                }
            }
            Ok(())
        };
        walk_on().map_err(|error| self.explain(&error))?;
        self.note_all(damaged)?;
        Ok(messages)
    }

    /// Notes what cannot be read, unless the pages have moved on.
    fn note_all(&mut self, damaged: Vec<(DamagedPart, PagesError)>) -> Result<(), ReadError> {
        for (part, problem) in damaged {
            match self.explain(&problem) {
                ReadError::Damaged { .. } => self.note(part),
                other => return Err(other),
            }
        }
        Ok(())
    }

    fn message_at(&mut self, topic: TopicId, place: Place, arrival: u64) -> Result<Option<Message>, ReadError> {
        let at = (sort_time(place), arrival);
        let mut failed = None;
        for located in self.directory.candidates(topic, place, arrival) {
            let name = PageName { slot: located.slot, run: located.run, page: located.page };
            match self.message_in(&name, at) {
                Ok(None) => {}
                Ok(Some(message)) => return Ok(Some(message)),
                // Another page may hold it.
                Err((part, problem)) => match self.explain(&problem) {
                    damaged @ ReadError::Damaged { .. } => {
                        if let Some(part) = part {
                            self.note(part);
                        }
                        failed = Some(damaged);
                    }
                    other => return Err(other),
                },
            }
        }
        failed.map_or(Ok(None), Err)
    }

    /// The message at a place, if it is in that page; else what is damaged, if the pages are.
    fn message_in(&mut self, name: &PageName, at: Order) -> Result<Option<Message>, (Option<DamagedPart>, PagesError)> {
        let PageName { slot: key, run, page } = *name;
        let slot = self.directory.slot(&key).expect("candidates are listed");
        let entry = &slot.runs[run].pages[page];
        let whole = |problem| (Some(name.whole(entry)), problem);
        if self.avoided.contains(name) {
            return Err(whole(PagesError::damaged(name.to_string())(Malformed("it was found damaged before"))));
        }
        let records = read_page(&*self.kv, &key, run, page, entry).map_err(whole)?;
        let Some(record) = records.iter().find(|record| record.order == at) else { return Ok(None) };
        let dead = self.tombstones.dead_between(&*self.kv, (&key, slot), run, (at, at));
        if !dead.map_err(|problem| (None, problem))?.is_empty() {
            return Ok(None);
        }
        record.message(&*self.kv, &key).map(Some).map_err(|problem| (Some(name.message(at)), problem))
    }

    fn note(&mut self, part: DamagedPart) {
        self.avoided.extend(PageName::of_whole(&part));
        if !self.damaged.contains(&part) {
            self.damaged.push(part);
        }
    }

    /// What cannot be read is damaged, unless the pages have moved on, or the page store has failed.
    fn explain(&self, error: &PagesError) -> ReadError {
        let what = error.to_string();
        match (error, PagesState::load(&*self.kv)) {
            (PagesError::Kv(KvError::Failed(_)), _) | (_, Err(PagesError::Kv(KvError::Failed(_)))) => {
                ReadError::Failed { what }
            }
            (_, Ok(now)) if now.run != self.state.run => ReadError::Overtaken,
            _ => ReadError::Damaged { what },
        }
    }

    /// Lets go of the cursors that were not used for the longest time while all together hold too much.
    fn forget_cursors(&mut self) {
        let mut loaded: usize = self.cursors.values().map(|cursor| cursor.walk.loaded).sum();
        while loaded > MAX_LOADED && self.cursors.len() > 1 {
            let oldest = self.cursors.iter().min_by_key(|(_, cursor)| cursor.used).map(|(&topic, _)| topic);
            let cursor = self.cursors.remove(&oldest.expect("there are two")).expect("it was just seen");
            loaded -= cursor.walk.loaded;
        }
    }
}
