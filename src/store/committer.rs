//! The commit side of the store: changes in, durable when `commit` returns.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::crash::crash_point;
use crate::queue::change::{Change, Totals};
use crate::queue::far::Carried;
use crate::queue::message::{HistoryEntry, Message, Place, TopicId};
use crate::queue::time::Timestamp;

use super::directory::DirectoryDelta;
use super::generation::{Entry, Generation, Ledger, carry_before};
use super::home::HomeLock;
use super::journal::{FoldMark, HeaderFacts, Journal};
use super::logged::{
    log_arrivals, log_carried, log_closed, log_dedup, log_finished, log_folded, log_moved, log_opened, log_produced,
    log_progressed, log_quarantined, log_topic, log_topic_deleted,
};
use super::options::StoreOptions;
use super::quarantine::SetAside;
use super::segment::RECORD_HEADER_BYTES;

/// A commit did not become durable, or may not have.
///
/// It is final: no later commit is tried, since after a failed sync the medium may have dropped the data
/// while a second sync reports success.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CommitError {
    /// The write or sync of this commit failed; whether it survives is unknown.
    #[error("the journal cannot be written: {0}")]
    Io(Arc<std::io::Error>),
    /// An earlier commit failed; this one was not tried.
    #[error("an earlier commit failed: {0}")]
    Failed(Arc<std::io::Error>),
    /// The changes of this commit together are too large; nothing was written.
    #[error("a commit of {bytes} bytes; at most {MAX_COMMIT_BYTES}")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
}

/// The largest commit, bytes. The engine bounds rounds far below.
pub const MAX_COMMIT_BYTES: usize = 1 << 30;

/// Items of a retired table that a commit frees.
const SHED_PER_COMMIT: usize = 4_096;

/// Makes changes durable: one append and one sync for each commit.
pub struct Committer {
    journal: Journal,
    ledger: Ledger,
    mark: FoldMark,
    frozen: Option<Frozen>,
    /// A table that nobody needs any more, freed bit by bit.
    retired: Option<Generation>,
    options: StoreOptions,
    record: Vec<u8>,
    failed: Option<Arc<std::io::Error>>,
    _lock: Option<Arc<HomeLock>>,
}

/// A generation that is being folded.
struct Frozen {
    table: Arc<Generation>,
    mark: FoldMark,
    /// Live messages due before this instant go over into the new generation.
    carry_before: Timestamp,
    /// Entries before this one have been looked at.
    cursor: usize,
    /// The pages have the fold; what is left is to carry the rest and to note the fold in the journal.
    is_folded: bool,
}

/// A fold that the pages have and that the journal does not know of yet.
pub(super) struct UnmarkedFold {
    pub(super) table: Generation,
    pub(super) carry_before: Timestamp,
}

impl UnmarkedFold {
    /// What the fold left to the journal.
    pub(super) fn to_carry(&self) -> impl Iterator<Item = &Message> {
        let entries = self.table.entries.iter().filter(|entry| self.table.is_carried(entry, self.carry_before));
        entries.filter_map(|entry| entry.state.as_ref())
    }
}

/// The work of one fold: everything of a frozen generation.
pub struct FoldJob {
    pub(super) mark: FoldMark,
    pub(super) table: Arc<Generation>,
    pub(super) carry_before: Timestamp,
    pub(super) now: Timestamp,
    pub(super) totals: Vec<(TopicId, Totals)>,
    pub(super) arrivals: u64,
    pub(super) epoch: u32,
    pub(super) last_topic: TopicId,
}

/// A fold that is durable in the pages.
#[derive(Debug)]
pub struct FoldDone {
    /// Number of the fold.
    pub fold: u64,
    /// The messages of the frozen generation that stay in the journal: those due soon, and all that are to be
    /// cancelled when their lease ends.
    pub carried: Vec<Carried>,
    /// What readers are to follow.
    pub delta: Arc<DirectoryDelta>,
    /// Messages written to the pages.
    pub messages: u64,
    /// Pages written.
    pub pages: u64,
    /// Messages that left the pages.
    pub left: u64,
    /// Damaged parts of the pages that were set aside.
    pub set_aside: Vec<SetAside>,
}

impl Committer {
    pub(super) fn new(
        journal: Journal,
        ledger: Ledger,
        mark: FoldMark,
        options: StoreOptions,
        unmarked: Option<UnmarkedFold>,
        lock: Option<Arc<HomeLock>>,
    ) -> Self {
        let mut committer = Self {
            journal,
            ledger,
            mark,
            frozen: None,
            retired: None,
            options,
            record: Vec::new(),
            failed: None,
            _lock: lock,
        };
        if let Some(UnmarkedFold { table, carry_before }) = unmarked {
            let table = Arc::new(table);
            committer.frozen = Some(Frozen { table, mark, carry_before, cursor: 0, is_folded: true });
            // To the journal it is the fold before, until the note is written.
            committer.mark = FoldMark { fold: mark.fold - 1, through: mark.previous_through, previous_through: 0 };
        }
        committer
    }

    /// Makes the changes durable, in order and as a whole.
    ///
    /// # Errors
    /// [`CommitError`]; every later commit fails too.
    pub fn commit(&mut self, changes: &[Change]) -> Result<(), CommitError> {
        self.commit_rounds(&[changes])
    }

    /// Makes the changes of several rounds durable with one append and one sync.
    ///
    /// # Errors
    /// [`CommitError`]; every later commit fails too.
    pub fn commit_rounds(&mut self, rounds: &[&[Change]]) -> Result<(), CommitError> {
        if rounds.iter().all(|round| round.is_empty()) {
            return Ok(());
        }
        self.begin()?;
        for change in rounds.iter().copied().flatten() {
            self.write(change);
        }
        self.append_with_fold(self.options.carry_bytes_per_commit)
    }

    /// If the generation is full, freezes it and starts the next one. The job is to be run by the folder, on
    /// its own thread; commits go on meanwhile. `None` while another fold runs.
    pub fn fold_due(&mut self, now: Timestamp) -> Option<FoldJob> {
        if self.is_generation_full() { self.freeze(now) } else { None }
    }

    /// True if the present generation is full and can be frozen: no fold runs, and no stop or failure came first.
    pub fn is_generation_full(&self) -> bool {
        // Restarts use up segments too, a few bytes at a time. A fold leaves some in use however small the generation
        // is, so fewer than these never call for one.
        let segments = self.journal.used_segments() as u64 * self.options.segment_bytes;
        let most_segments = self.options.generation_bytes.max(self.options.segment_bytes).saturating_mul(4);
        // What is damaged is set aside soon, and the room of deleted topics given back.
        let is_full = !self.ledger.young.damaged.is_empty()
            || self.ledger.young.is_deletion_in_pages
            || self.ledger.young.bytes >= self.options.generation_bytes
            || segments >= most_segments;
        is_full && self.can_freeze()
    }

    fn can_freeze(&self) -> bool {
        let is_idle = self.journal.last_commit() == self.mark.through;
        // A clean stop must stay the last change of the journal.
        self.frozen.is_none() && self.failed.is_none() && !self.ledger.closed && !is_idle
    }

    /// Freezes the present generation, however little it holds, and starts the next one. `None` while another fold
    /// runs, after a clean stop, and if there is nothing to fold.
    pub fn freeze(&mut self, now: Timestamp) -> Option<FoldJob> {
        // A start may have left one whose note is still to be written.
        if self.frozen.as_ref().is_some_and(|frozen| frozen.is_folded) {
            self.note_fold().ok()?;
        }
        if !self.can_freeze() {
            return None;
        }
        let through = self.journal.last_commit();
        let next = Generation::sized_like(&self.ledger.young);
        let table = Arc::new(std::mem::replace(&mut self.ledger.young, next));
        let budget = self.options.generation_bytes / 4;
        let carry_before = carry_before(&table, now, self.options.carry_horizon_ms, budget);
        let mark = FoldMark { fold: self.mark.fold + 1, through, previous_through: self.mark.through };
        let totals = table.counted.iter().map(|&topic| (topic, self.ledger.totals[&topic])).collect();
        let job = FoldJob {
            mark,
            table: Arc::clone(&table),
            carry_before,
            now,
            totals,
            arrivals: self.ledger.arrivals,
            epoch: self.ledger.epoch,
            last_topic: self.ledger.last_topic,
        };
        self.frozen = Some(Frozen { table, mark, carry_before, cursor: 0, is_folded: false });
        crash_point!("fold.frozen");
        Some(job)
    }

    /// Completes a fold: carries what is left, notes the fold in the journal, and frees the segments that not
    /// even a rollback by one fold would need. After a clean stop it does nothing: the next start does it.
    ///
    /// # Errors
    /// [`CommitError`]; every later commit fails too.
    #[expect(clippy::needless_pass_by_value, reason = "a fold is completed once")]
    pub fn folded(&mut self, done: FoldDone) -> Result<(), CommitError> {
        let frozen = self.frozen.as_mut().expect("a fold that is done was begun");
        assert_eq!(frozen.mark.fold, done.fold, "the fold that is done is the one that was begun");
        frozen.is_folded = true;
        crash_point!("fold.before_note");
        for aside in &done.set_aside {
            self.ledger.set_aside(aside.part.topic, aside.messages);
        }
        self.note_fold()
    }

    /// Counts as a backup did, from the next fold on. Pages and journal must hold what it counts.
    pub(super) fn set_totals(&mut self, totals: BTreeMap<TopicId, Totals>) {
        self.ledger.live = totals.values().map(Totals::live).sum();
        self.ledger.young.counted.extend(totals.keys());
        self.ledger.totals = totals;
    }

    /// Numbers of topics go on above this one, from the next fold on.
    pub(super) fn set_last_topic(&mut self, last_topic: TopicId) {
        self.ledger.last_topic = self.ledger.last_topic.max(last_topic);
    }

    /// The number that the last commit has; 0 before the first.
    pub fn commits(&self) -> u64 {
        self.journal.last_commit()
    }

    /// Folds that are durable.
    pub fn folds(&self) -> u64 {
        self.mark.fold
    }

    /// Bytes of all journal segments on disk.
    pub fn journal_bytes(&self) -> u64 {
        self.journal.disk_bytes()
    }

    /// How full the journal is: 1.0 is a full generation that is not being folded yet, 2.0 one full and
    /// another being folded. Produce should slow down smoothly from 1.5 on.
    #[expect(clippy::cast_precision_loss, reason = "a ratio of sizes far below 2^52")]
    pub fn pressure(&self) -> f64 {
        let folding = self.frozen.as_ref().map_or(0, |frozen| frozen.table.bytes);
        (self.ledger.young.bytes + folding) as f64 / self.options.generation_bytes as f64
    }

    /// The totals of a topic.
    pub fn totals(&self, topic: TopicId) -> Totals {
        self.ledger.totals.get(&topic).copied().unwrap_or_default()
    }

    /// Carries what is left of a fold that the pages have, and notes it.
    fn note_fold(&mut self) -> Result<(), CommitError> {
        while self.frozen.is_some() && !self.ledger.closed {
            self.begin()?;
            self.append_with_fold(self.options.carry_bytes_per_commit.max(1 << 20))?;
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<(), CommitError> {
        if let Some(error) = &self.failed {
            return Err(CommitError::Failed(Arc::clone(error)));
        }
        self.record.clear();
        self.record.resize(RECORD_HEADER_BYTES, 0);
        Ok(())
    }

    /// Appends the record, with some of what a running fold has left to carry and with the fold's note if
    /// that was all. A clean stop stays the last item of its record.
    fn append_with_fold(&mut self, budget: usize) -> Result<(), CommitError> {
        let mut completed = None;
        if !self.ledger.closed && self.carry_some(budget) {
            completed = self.frozen.take_if(|frozen| frozen.is_folded);
        }
        if let Some(frozen) = &completed {
            log_folded(&mut self.record, frozen.mark.fold, frozen.mark.through);
        }
        if self.record.len() > RECORD_HEADER_BYTES {
            self.append()?;
        }
        // Not before: the append may begin a segment, whose header must not name a fold that is not noted yet.
        if let Some(frozen) = completed {
            crash_point!("fold.noted");
            self.mark = frozen.mark;
            self.retired = Arc::into_inner(frozen.table);
            self.journal.recycle(self.mark.previous_through).map_err(|error| self.fail(error))?;
            crash_point!("fold.recycled");
        }
        self.retired.take_if(|table| table.shed(SHED_PER_COMMIT));
        Ok(())
    }

    fn append(&mut self) -> Result<(), CommitError> {
        let bytes = self.record.len() - RECORD_HEADER_BYTES;
        if bytes > MAX_COMMIT_BYTES {
            self.failed = Some(Arc::new(std::io::ErrorKind::FileTooLarge.into()));
            return Err(CommitError::TooLarge { bytes });
        }
        let facts = HeaderFacts { epoch: self.ledger.epoch, mark: self.mark, live: self.ledger.live };
        let appended = self.journal.append(&mut self.record, facts);
        appended.map_err(|error| self.fail(error))?;
        self.ledger.young.bytes += self.record.len() as u64;
        Ok(())
    }

    fn fail(&mut self, error: std::io::Error) -> CommitError {
        let error = Arc::new(error);
        self.failed = Some(Arc::clone(&error));
        CommitError::Io(error)
    }

    fn write(&mut self, change: &Change) {
        self.ledger.closed = matches!(change, Change::Closed(_));
        let start = self.record.len();
        match change {
            Change::TopicPut(topic) => {
                log_topic(&mut self.record, topic);
                self.ledger.topic(topic);
            }
            Change::TopicDeleted { topic, in_pages } => {
                log_topic_deleted(&mut self.record, *topic, *in_pages);
                self.ledger.topic_deleted(*topic, *in_pages);
            }
            Change::Produced(message) => {
                log_produced(&mut self.record, message);
                self.ledger.produced(message, self.record.len() - start);
            }
            Change::Moved { message, previous, entry } => self.write_move(message, *previous, entry.as_ref()),
            Change::Finished(finished) => {
                self.carry_now(finished.id.arrival);
                log_finished(&mut self.record, finished);
                self.ledger.finished(finished);
            }
            Change::DedupPut(dedup) => {
                log_dedup(&mut self.record, dedup);
                self.ledger.dedup(dedup);
            }
            Change::Quarantined(part) => {
                log_quarantined(&mut self.record, part);
                self.ledger.quarantined(part);
            }
            Change::ArrivalsReserved(through) => {
                log_arrivals(&mut self.record, *through);
                self.ledger.arrivals = self.ledger.arrivals.max(*through);
            }
            Change::Opened { epoch, at } => {
                log_opened(&mut self.record, *epoch, *at);
                self.ledger.epoch = self.ledger.epoch.max(*epoch);
            }
            Change::Closed(closing) => log_closed(&mut self.record, closing),
        }
    }

    /// The first change of a message in a generation is written whole, so that a generation needs nothing
    /// but the pages before it; later ones as differences.
    fn write_move(&mut self, message: &Message, previous: Place, entry: Option<&HistoryEntry>) {
        self.carry_now(message.id.arrival);
        let start = self.record.len();
        match self.ledger.young.message(message.id.arrival) {
            Some(before) if is_difference(before, message, entry) => log_progressed(&mut self.record, message, entry),
            _ => log_moved(&mut self.record, message, previous, entry),
        }
        self.ledger.moved(message, previous, self.record.len() - start);
    }

    /// A message that the running fold leaves to the journal is carried before its first change.
    fn carry_now(&mut self, arrival: u64) {
        let Some(frozen) = &self.frozen else { return };
        if let Some(entry) = frozen.table.entry(arrival) {
            carry(&mut self.record, &mut self.ledger, frozen, entry);
        }
    }

    /// Carries messages of the running fold until the record has grown by `budget` bytes; true when none is left.
    fn carry_some(&mut self, budget: usize) -> bool {
        let Some(frozen) = &mut self.frozen else { return true };
        let limit = self.record.len() + budget;
        let last = frozen.table.entries.len().min(frozen.cursor + budget / 16 + 1);
        while frozen.cursor < last && self.record.len() < limit {
            let entry = &frozen.table.entries[frozen.cursor];
            carry(&mut self.record, &mut self.ledger, frozen, entry);
            frozen.cursor += 1;
        }
        frozen.cursor == frozen.table.entries.len()
    }
}

fn carry(record: &mut Vec<u8>, ledger: &mut Ledger, frozen: &Frozen, entry: &Entry) {
    let is_gone = ledger.young.deleted.contains(&entry.topic) || ledger.young.entry(entry.arrival).is_some();
    if is_gone || !frozen.table.is_carried(entry, frozen.carry_before) {
        return;
    }
    let message = entry.state.as_ref().expect("what is carried is live");
    let start = record.len();
    log_carried(record, frozen.mark.fold, message);
    ledger.carried(message, record.len() - start);
}

/// True if `after` is `before` with other progress and `entry` appended to its history.
fn is_difference(before: &Message, after: &Message, entry: Option<&HistoryEntry>) -> bool {
    let same_content = Arc::ptr_eq(&before.content, &after.content) || before.content == after.content;
    let ended = |message: &Message| {
        message.history.as_ref().map_or(0, |history| history.len() as u64 + u64::from(history.omitted()))
    };
    before.id == after.id && same_content && ended(before) + u64::from(entry.is_some()) == ended(after)
}
