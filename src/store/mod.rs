//! The store: what the queue has promised, on disk.
//!
//! A *journal* in front takes every change: one append and one `fdatasync` per commit, however many changes it
//! holds. What the journal has taken since the last fold is the young *generation*, of which a table in memory
//! knows the latest state. When a generation is full, a *fold* sorts its survivors into *slot pages* by due
//! time, in a key-value store (sled), and the journal's segments are used again. So the expensive store sees
//! only what lives long, in bulk, and never stands between a client and its answer.
//!
//! Invariants:
//! - [`Committer::commit`] returns `Ok` only when the changes would survive a power cut. After an error it never
//!   returns `Ok` again.
//! - A generation is complete over the pages of the fold before it: pages plus journal is the whole state, at
//!   every commit boundary and between any two steps of a fold.
//! - The slot directory is the only truth about pages: what it does not list does not exist.
//! - Damage is never silent: every stored byte is under a checksum, commit numbers have no gaps, and the number
//!   of live messages found must be the number counted. The one thing that leaves without a word is the torn
//!   end of a commit that was never answered.
//! - The page store cannot notice its own rollback, so the journal remembers the last fold, and keeps the
//!   segments that repeat it.
//!
//! What it is not: it knows no clock (callers pass `now`), no lease, no retry rule, and it starts no thread.
//! The files are in `docs/storage.md`, byte by byte.

mod backup_file;
mod chain;
mod check;
mod check_slot;
mod codec;
mod committer;
mod compact;
mod counts;
mod directory;
pub mod doubles;
#[cfg(target_os = "linux")]
mod durable_ranges;
mod folder;
mod generation;
mod give_back;
mod hold;
mod home;
mod index;
mod journal;
mod keys;
mod kv;
mod listing;
mod log;
mod logged;
mod open_error;
mod options;
mod page;
mod pages_sled;
mod quarantine;
mod reader;
mod rebuild;
mod records;
mod recover;
mod removals;
mod restore;
mod runs;
mod segment;
#[cfg(target_os = "linux")]
mod shared_sync;
mod slot;
mod snapshot;
mod state;
#[cfg(test)]
mod tests;
mod tombstones;
mod walk;
mod writer;

use std::path::Path;
use std::sync::Arc;

use crate::queue::change::Restored;

pub use backup_file::{BACKUP_VERSION, BackupCounts, BackupFileError, BackupHeader, BackupSink};
pub use check::{CheckReport, CheckedTopic, Finding, InQuarantine, Watch, check, set_aside};
pub use committer::{CommitError, Committer, FoldDone, FoldJob, MAX_COMMIT_BYTES};
pub use directory::DirectoryDelta;
pub use folder::{FoldError, Folder};
pub use home::{FORMAT_VERSION, Identity, free_bytes, total_bytes, user_of};
pub use kv::{Batch, Kv, KvError, KvRead, Visit};
pub use log::{FileLog, SegmentFile, SegmentLog};
pub use open_error::OpenError;
pub use options::StoreOptions;
pub use pages_sled::{DEFAULT_CACHE_BYTES, SledOpenError, SledPages};
pub use quarantine::{MAX_KNOWN, SetAside};
pub use reader::{ReadError, Reader};
pub use rebuild::{Compacted, compact};
pub use recover::{Opened, open_with};
pub use restore::{
    ARRIVALS_SKIPPED, BackupContents, BackupTopic, RestoreError, Restored as RestoredBackup, read_backup, restore,
    restore_spool,
};
pub use segment::StoreId;
pub use snapshot::{BackupError, Snapshot};

/// Opens the store in `directory`, making it if it is missing or empty, and gives what it holds to `sink` in
/// the order of [`Restored`].
///
/// # Errors
/// [`OpenError`]; nothing that the directory holds is deleted.
pub fn open(directory: &Path, options: StoreOptions, sink: &mut dyn FnMut(Restored)) -> Result<Opened, OpenError> {
    let home = home::Home::open(directory, options.min_free_bytes)?;
    let mut opened = open_home(&home, options, sink)?;
    home.finish()?;
    // Of two copies of a store, neither is likely to go on with an epoch that the other one uses.
    opened.epoch = home::random_epoch_above(opened.epoch - 1)?;
    Ok(opened)
}

/// Opens the store of a directory that is locked.
fn open_home(home: &home::Home, options: StoreOptions, sink: &mut dyn FnMut(Restored)) -> Result<Opened, OpenError> {
    let pages = SledPages::open(&home.pages, options.cache_bytes).map_err(|error| match error {
        SledOpenError::Io { path, source } => OpenError::io(path.display().to_string())(source),
        SledOpenError::Refused(problem) => OpenError::PagesRefused { path: home.pages.clone(), problem },
    })?;
    let reading = OpenError::io(format!("{} cannot be read", home.journal.display()));
    let log = FileLog::open(&home.journal).map_err(reading)?;
    let (identity, lock) = (home.identity.clone(), Some(Arc::clone(&home.lock)));
    recover::open_locked(Box::new(log), Box::new(pages), identity, options, lock, sink)
}
