//! What outlives a broker: the simulated media. And what is put between the broker and them: a recorder that tells
//! which commits have returned, and faults.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use duewheel::engine::{CommitFailure, Commits, Folded, Folds, Journal, Reads};
use duewheel::queue::change::Change;
use duewheel::queue::dead::StoredDead;
use duewheel::queue::due::FirstInPages;
use duewheel::queue::far::{Load, Loaded, Missing};
use duewheel::queue::message::{Message, TopicId};
use duewheel::queue::quarantine::DamagedPart;
use duewheel::queue::time::Timestamp;
use duewheel::store::doubles::{Chance, LossyKv, LossyLog};
use duewheel::store::{Batch, DirectoryDelta, FoldDone, FoldJob, Folder, Kv, KvError, KvRead, ReadError, SegmentFile};
use duewheel::store::{SegmentLog, Visit};

use crate::fault::Fault;

/// The kind of the key of a page.
pub(crate) const PAGE: u8 = 5;

/// The levels of pages.
const LEVELS: [&str; 5] =
    ["pages of seconds", "pages of minutes", "pages of hours", "pages of days", "pages of dead letters"];

/// The media. Clones are the same media.
#[derive(Clone, Default)]
pub(crate) struct Media {
    pub(crate) log: LossyLog,
    pub(crate) kv: LossyKv,
}

impl Media {
    /// Cuts the power.
    pub(crate) fn crash(&self, chance: &mut Chance) {
        self.log.crash(chance);
        self.kv.crash(chance);
    }

    /// Lets writes and syncs fail after so many.
    pub(crate) fn fail_after(&self, log: Option<u64>, kv: Option<u64>) {
        self.log.fail_after(log);
        self.kv.fail_after(kv);
    }

    /// The doubles to open a store on, with the fault between.
    pub(crate) fn doubles(&self, fault: Fault) -> (Box<dyn SegmentLog>, Box<dyn Kv>) {
        let log: Box<dyn SegmentLog> = match fault {
            Fault::LogForgetsSynced => Box::new(LyingLog(self.log.clone())),
            _ => Box::new(self.log.clone()),
        };
        let kv: Box<dyn Kv> = match fault {
            Fault::KvBarrierDoesNothing => Box::new(LyingKv(self.kv.clone())),
            _ => Box::new(self.kv.clone()),
        };
        (log, kv)
    }
}

/// What the recorder has seen since it was last read.
#[derive(Default)]
pub(crate) struct Book {
    /// Commits that have returned.
    pub(crate) commits: Vec<Vec<Change>>,
    /// The one that has failed: it may be durable or not.
    pub(crate) in_doubt: Option<Vec<Change>>,
    /// The pages before the last fold that is durable.
    pub(crate) before_fold: Option<LossyKv>,
    /// What has happened, to be counted.
    pub(crate) marks: Vec<&'static str>,
}

/// The book is read by the world while the broker writes to it.
pub(crate) type SharedBook = Arc<Mutex<Book>>;

pub(crate) fn open(book: &SharedBook) -> MutexGuard<'_, Book> {
    book.lock().expect("no holder of this lock panics")
}

/// The real journal, recorded.
pub(crate) struct Recorder {
    pub(crate) journal: Journal,
    pub(crate) book: SharedBook,
    pub(crate) fault: Fault,
    /// With that fault: what was answered and is still to be committed.
    pub(crate) owed: Vec<Change>,
}

impl Recorder {
    fn record(&mut self, changes: &[Change]) -> Result<(), CommitFailure> {
        let mut changes = changes.to_vec();
        if self.fault == Fault::SkipsAttempt {
            changes.iter_mut().for_each(skip_attempt);
        }
        let committed = self.journal.commit(&changes);
        let mut book = open(&self.book);
        match committed {
            Ok(()) => book.commits.push(changes),
            Err(_) => book.in_doubt = Some(changes),
        }
        committed
    }
}

impl Commits for Recorder {
    type Folds = FoldRecorder;

    fn commit(&mut self, changes: &[Change]) -> Result<(), CommitFailure> {
        if self.fault != Fault::AnswersBeforeCommit {
            return self.record(changes);
        }
        let owed = std::mem::replace(&mut self.owed, changes.to_vec());
        self.record(&owed)
    }

    fn is_full(&self) -> bool {
        self.journal.is_full()
    }

    fn freeze(&mut self) -> Option<FoldJob> {
        self.journal.freeze()
    }

    fn folded(&mut self, done: FoldDone) -> Result<Folded, CommitFailure> {
        let folded = self.journal.folded(done)?;
        open(&self.book).marks.push("fold noted");
        Ok(folded)
    }

    fn journal_bytes(&self) -> u64 {
        self.journal.journal_bytes()
    }

    fn pressure(&self) -> f64 {
        self.journal.pressure()
    }
}

fn skip_attempt(change: &mut Change) {
    if let Change::Moved { message, entry: Some(_), .. } = change {
        message.progress.attempts += 1;
    }
}

/// The real folder, recorded.
pub(crate) struct FoldRecorder {
    pub(crate) folder: Folder,
    pub(crate) kv: LossyKv,
    pub(crate) book: SharedBook,
}

impl Folds for FoldRecorder {
    type Job = FoldJob;
    type Done = FoldDone;

    fn run(&mut self, job: FoldJob) -> Result<FoldDone, CommitFailure> {
        let before = self.kv.copy();
        let done = Folds::run(&mut self.folder, job);
        let mut book = open(&self.book);
        match &done {
            Ok(done) => {
                book.before_fold = Some(before);
                // A page's key is its kind, topic, level, and more.
                let keys = self.kv.keys();
                let levels: BTreeSet<u8> = keys.iter().filter(|key| key[0] == PAGE).map(|key| key[5]).collect();
                book.marks.extend(levels.iter().map(|&level| LEVELS[usize::from(level)]));
                book.marks.push(if done.left > 0 { "fold with what has left the pages" } else { "fold" });
            }
            Err(_) => book.marks.push("fold failed"),
        }
        done
    }

    fn is_cleaning_up(&self) -> bool {
        self.folder.is_cleaning_up()
    }

    fn is_held_up(&self) -> bool {
        Folds::is_held_up(&self.folder)
    }

    fn compact(&mut self) -> Result<Option<Arc<DirectoryDelta>>, CommitFailure> {
        let compacted = Folds::compact(&mut self.folder);
        match &compacted {
            Ok(Some(_)) => open(&self.book).marks.push("compaction"),
            Ok(None) => {}
            Err(_) => open(&self.book).marks.push("compaction failed"),
        }
        compacted
    }
}

/// A log whose sync does nothing: it loses what it has said to be durable.
struct LyingLog(LossyLog);

impl SegmentLog for LyingLog {
    fn list(&self) -> Vec<(SegmentFile, u64)> {
        self.0.list()
    }

    fn create(&mut self, bytes: u64) -> io::Result<SegmentFile> {
        self.0.create(bytes)
    }

    fn read(&self, file: SegmentFile) -> io::Result<Vec<u8>> {
        self.0.read(file)
    }

    fn write(&mut self, file: SegmentFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write(file, offset, bytes)
    }

    fn sync(&mut self, _: SegmentFile) -> io::Result<()> {
        Ok(())
    }

    fn remove(&mut self, file: SegmentFile) -> io::Result<()> {
        self.0.remove(file)
    }

    fn name(&self, file: SegmentFile) -> String {
        self.0.name(file)
    }
}

/// A key-value store whose barrier does nothing.
struct LyingKv(LossyKv);

impl KvRead for LyingKv {
    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        self.0.value(key)
    }

    fn scan(&self, prefix: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        self.0.scan(prefix, visit)
    }
}

impl Kv for LyingKv {
    fn reader(&self) -> Box<dyn KvRead> {
        self.0.reader()
    }

    fn apply(&mut self, batch: Batch) -> Result<(), KvError> {
        self.0.apply(batch)
    }

    fn make_durable(&mut self) -> Result<(), KvError> {
        Ok(())
    }
}

/// A reader that forgets the last message of each load.
pub(crate) struct Forgetful(pub(crate) Box<dyn Reads>);

impl Reads for Forgetful {
    fn apply(&mut self, delta: &DirectoryDelta) {
        self.0.apply(delta);
    }

    fn load(&mut self, load: Load) -> Result<Loaded, ReadError> {
        let mut loaded = self.0.load(load)?;
        loaded.messages.pop();
        Ok(loaded)
    }

    fn find(&mut self, missing: &Missing) -> Result<Option<Message>, ReadError> {
        self.0.find(missing)
    }

    fn dead(&mut self, topic: TopicId, after: Option<(Timestamp, u64)>, limit: usize) -> Result<StoredDead, ReadError> {
        self.0.dead(topic, after, limit)
    }

    fn due(&mut self, topic: TopicId, edges: &[Timestamp]) -> Result<Vec<u64>, ReadError> {
        self.0.due(topic, edges)
    }

    fn first_due(&mut self, topic: TopicId, from: (Timestamp, u64)) -> Result<FirstInPages, ReadError> {
        self.0.first_due(topic, from)
    }

    fn run(&self) -> u64 {
        self.0.run()
    }

    fn pages_of(&self, topic: TopicId) -> u64 {
        self.0.pages_of(topic)
    }

    fn take_damaged(&mut self) -> Vec<DamagedPart> {
        self.0.take_damaged()
    }

    fn avoid(&mut self, part: &DamagedPart) {
        self.0.avoid(part);
    }
}
