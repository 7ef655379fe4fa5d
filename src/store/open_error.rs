//! Why a store does not open. Every variant is a refusal: nothing was changed and nothing is deleted, except that sled, while it
//! opens, cuts its file off where it finds damage.

use std::io;
use std::path::PathBuf;

use crate::queue::message::TopicId;

use super::page::PagesError;

/// What an operator can do when data is damaged.
const STEPS: &str = "The journal was not changed; the page store may have cut its own file where it is damaged. Keep a copy \
                     of the data directory and check the disk. 'duewheel check' tells all that is damaged, and with \
                     --quarantine sets damaged pages aside. Anything else needs a backup, or the directory moved away \
                     for an empty one";

/// A store does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory or a file in it cannot be written.
    #[error("the data directory cannot be used: {} is not writable: {source}", path.display())]
    NotWritable {
        /// What could not be written.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Another broker uses the directory.
    #[error("the data directory {} is in use by another broker, {}", path.display(), holder(*pid))]
    Locked {
        /// The directory.
        path: PathBuf,
        /// Its process id, if it could be read.
        pid: Option<u32>,
    },
    /// The directory holds something else.
    #[error("{} is not a duewheel data directory and not empty (it has '{found}'); choose another", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// A file in it that does not belong there.
        found: String,
    },
    /// A restore into the directory was not finished.
    #[error(
        "{} holds a restore that was not finished; repeat 'duewheel restore' into it, or remove the directory",
        path.display()
    )]
    Unrestored {
        /// The directory.
        path: PathBuf,
    },
    /// A backup is restored into an empty directory only.
    #[error(
        "{} is not empty (it has '{found}'); a backup is restored into an empty or a new directory",
        path.display()
    )]
    NotEmpty {
        /// The directory.
        path: PathBuf,
        /// Something in it.
        found: String,
    },
    /// There is no store to work on.
    #[error("{} {problem}; give the directory that the broker is started with", path.display())]
    Absent {
        /// The directory.
        path: PathBuf,
        /// What is there instead.
        problem: &'static str,
    },
    /// The path is not a directory.
    #[error("{} is not a directory", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// The format file cannot be understood.
    #[error("{} is damaged or of an unknown kind: {problem}. {STEPS}", path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The directory was written by a newer version.
    #[error("{} has format {found}; this version reads up to {supported}: use a newer version", path.display())]
    NewerFormat {
        /// The directory or file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest format that this version reads.
        supported: u32,
    },
    /// A part of the store is not there.
    #[error("{} is missing from the data directory. {STEPS}", path.display())]
    Incomplete {
        /// What is missing.
        path: PathBuf,
    },
    /// Too little space to open without risk.
    #[error("{} has {free} bytes free; at least {needed} are needed to open it", path.display())]
    DiskFull {
        /// The directory.
        path: PathBuf,
        /// Free bytes.
        free: u64,
        /// Bytes that must be free.
        needed: u64,
    },
    /// Too little space to compact.
    #[error("{} has {free} bytes free; the copy needs up to {needed}. Nothing was changed", path.display())]
    NoRoom {
        /// The directory.
        path: PathBuf,
        /// Free bytes.
        free: u64,
        /// Bytes that the copy may need.
        needed: u64,
    },
    /// A journal segment is damaged.
    #[error("the journal is damaged: {file} at offset {offset}: {problem}. {STEPS}")]
    JournalDamaged {
        /// The segment.
        file: String,
        /// Where in it, bytes.
        offset: usize,
        /// What is wrong.
        problem: &'static str,
    },
    /// Commits that the pages do not cover are not in the journal.
    #[error("the journal lacks commits: it should go on at commit {expected} and starts at {found:?}. {STEPS}")]
    JournalGap {
        /// The first commit that is needed.
        expected: u64,
        /// The first commit that is there, if any.
        found: Option<u64>,
    },
    /// A journal segment belongs to another store.
    #[error("the journal segment {file} belongs to another store: was it copied here? {STEPS}")]
    ForeignSegment {
        /// The segment.
        file: String,
    },
    /// The pages went back to an earlier fold, and the journal does not reach back as far.
    #[error("the pages are at fold {pages} and the journal at fold {journal}: the page store has lost data. {STEPS}")]
    PagesRolledBack {
        /// The fold of the pages.
        pages: u64,
        /// The fold that the journal knows of.
        journal: u64,
    },
    /// The pages are ahead of the journal.
    #[error("the pages are at fold {pages} and the journal at fold {journal}: the journal has lost data. {STEPS}")]
    JournalBehind {
        /// The fold of the pages.
        pages: u64,
        /// The fold that the journal knows of.
        journal: u64,
    },
    /// A stored value of the pages is damaged.
    #[error("the pages are damaged: {what}. {STEPS}")]
    PagesDamaged {
        /// What and where.
        what: String,
    },
    /// The page store gives an error of its own.
    #[error("the page store cannot be read: {problem}. {STEPS}")]
    PagesFailed {
        /// What it says.
        problem: String,
    },
    /// The messages found are not as many as counted.
    #[error("topic {} should have {counted} live messages and has {found}: data is lost. {STEPS}", topic.0)]
    CountMismatch {
        /// The topic.
        topic: TopicId,
        /// By its totals.
        counted: u64,
        /// In pages and journal.
        found: u64,
    },
    /// The page store does not open.
    #[error("the page store in {} does not open: {problem}. {STEPS}", path.display())]
    PagesRefused {
        /// Its directory.
        path: PathBuf,
        /// What it says.
        problem: String,
    },
    /// The new store of a backup cannot be written.
    #[error("the backup was not restored: {problem}")]
    NotRestored {
        /// Why not.
        problem: String,
    },
    /// A call of the file system failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl OpenError {
    /// What is wrong, without what to do about it.
    #[must_use]
    pub fn problem(&self) -> String {
        self.to_string().replace(&format!(". {STEPS}"), "").replace(&format!("? {STEPS}"), "?")
    }

    pub(super) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        |source| Self::Io { what, source }
    }
}

impl From<PagesError> for OpenError {
    fn from(error: PagesError) -> Self {
        match error {
            PagesError::Kv(error) => Self::PagesFailed { problem: error.to_string() },
            PagesError::Damaged { .. } => Self::PagesDamaged { what: error.to_string() },
        }
    }
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "whose process id is unknown".to_owned(), |pid| format!("process {pid}"))
}
