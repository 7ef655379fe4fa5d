//! sled as the ordered key-value store, used only in the ways that its 0.34 line keeps its word in.
//!
//! `flush` starts the write-back of its log but waits for neither the device nor the file's length; so every
//! flush is followed by an `fdatasync` of the file `db` through our own descriptor. `flush_async` is never
//! used (it can deadlock). One tree holds everything, because a batch is atomic within one tree only.
//! sled's own flusher stays on: segments are cleaned only there.

use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::crash::crash_point;

use super::kv::{Batch, Kv, KvError, KvRead, Visit};

/// sled with its file opened a second time, for syncing.
pub struct SledPages {
    db: SledReads,
    file: File,
    /// Bytes that were applied since the last flush.
    unwritten: usize,
}

/// sled does not open.
#[derive(Debug, thiserror::Error)]
pub enum SledOpenError {
    /// A call of the file system failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was being read or written.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// sled refused or panicked.
    #[error("{0}")]
    Refused(String),
}

/// Cache of sled, bytes; the broker's own memory holds what is near due.
pub const DEFAULT_CACHE_BYTES: u64 = 32 << 20;
const FLUSH_EVERY_MS: u64 = 300;
/// What is applied waits in buffers of sled until the disk has taken it, as much as there is; together with
/// what sled writes again of the leaves around, several times these bytes. A fold that is faster than the disk waits.
const MAX_UNWRITTEN_BYTES: usize = 2 << 20;
/// How often sled's own lock is waited for, and how long each time: a second in all.
const LOCK_TRIES: u32 = 50;
const LOCK_WAIT: Duration = Duration::from_millis(20);

impl SledPages {
    /// Opens or creates the pages in `directory`, which exists.
    ///
    /// # Errors
    /// [`SledOpenError`]; nothing is deleted.
    pub fn open(directory: &Path, cache_bytes: u64) -> Result<Self, SledOpenError> {
        let io_error = |path: &Path| {
            let path = path.to_owned();
            move |source| SledOpenError::Io { path, source }
        };
        remove_unfinished_snapshots(directory).map_err(io_error(directory))?;
        let config = sled::Config::new()
            .path(directory)
            .cache_capacity(cache_bytes)
            .flush_every_ms(Some(FLUSH_EVERY_MS))
            .use_compression(false)
            .print_profile_on_drop(false);
        crash_point!("pages.cleaned");
        let path = directory.join("db");
        // A failed sync is told to each descriptor that was open then: also to this one, if a thread of sled meets it.
        let earlier = File::open(&path);
        let db = open_database(&config)?;
        crash_point!("pages.opened");
        let file = earlier.or_else(|_| File::open(&path)).map_err(io_error(&path))?;
        file.sync_all().map_err(io_error(&path))?;
        // Names and lengths of files that sled has just made: once, since later syncs cover data only.
        for entry in fs::read_dir(directory).map_err(io_error(directory))? {
            let path = entry.map_err(io_error(directory))?.path();
            File::open(&path).and_then(|file| file.sync_all()).map_err(io_error(&path))?;
        }
        File::open(directory).and_then(|handle| handle.sync_all()).map_err(io_error(directory))?;
        Ok(Self { db: SledReads(db), file, unwritten: 0 })
    }
}

/// Opens the database. The directory is locked by whoever opens it, so nobody else can hold sled's own lock but a thread
/// of sled in this process that has not let go of its file yet, although the last handle is dropped.
pub(super) fn open_database(config: &sled::Config) -> Result<sled::Db, SledOpenError> {
    let open = || match catch_unwind(AssertUnwindSafe(|| config.open())) {
        Ok(opened) => opened.map_err(|error| error.to_string()),
        Err(panic) => Err(panic_text(panic.as_ref())),
    };
    for _ in 0..LOCK_TRIES {
        match open() {
            Err(problem) if problem.contains("could not acquire lock") => thread::sleep(LOCK_WAIT),
            opened => return opened.map_err(SledOpenError::Refused),
        }
    }
    open().map_err(SledOpenError::Refused)
}

/// A disk that was full once leaves an empty snapshot behind, with which sled never opens again.
fn remove_unfinished_snapshots(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("snap.") && name.ends_with(".generating") {
            fs::remove_file(entry.path())?;
            crash_point!("pages.snapshot_removed");
        }
    }
    Ok(())
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".to_owned())
}

/// Runs a call of sled, which panics on some kinds of damage, and makes one error of all that can go wrong.
fn guarded<T, E: std::fmt::Display>(call: impl FnOnce() -> Result<T, E>) -> Result<T, KvError> {
    catch_unwind(AssertUnwindSafe(call))
        .map_err(|panic| KvError::Refused(panic_text(panic.as_ref())))?
        .map_err(|error| KvError::Refused(error.to_string()))
}

/// Reads of sled, which may come from any thread.
struct SledReads(sled::Db);

impl SledReads {
    /// After a write has failed sled fails in everything, reads included, though nothing is wrong with what they read. It
    /// tells so when it is to write what waits, and only then.
    fn explain(&self, error: KvError) -> KvError {
        if guarded(|| self.0.flush()).is_ok() { error } else { KvError::Failed(error.to_string()) }
    }
}

impl KvRead for SledReads {
    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        let value = guarded(|| self.0.get(key)).map_err(|error| self.explain(error))?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn scan(&self, prefix: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        let mut items = self.0.scan_prefix(prefix);
        while let Some((key, value)) = guarded(|| items.next().transpose()).map_err(|error| self.explain(error))? {
            if visit(&key, &value) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }
}

impl SledPages {
    /// Waits until sled has written everything; that is not durable yet.
    fn flush(&mut self) -> Result<(), KvError> {
        self.unwritten = 0;
        guarded(|| self.db.0.flush()).map(|_| ())
    }
}

impl KvRead for SledPages {
    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        self.db.value(key)
    }

    fn scan(&self, prefix: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        self.db.scan(prefix, visit)
    }
}

impl Kv for SledPages {
    fn reader(&self) -> Box<dyn KvRead> {
        Box::new(SledReads(self.db.0.clone()))
    }

    fn apply(&mut self, batch: Batch) -> Result<(), KvError> {
        self.unwritten += batch.bytes();
        let mut sled_batch = sled::Batch::default();
        for (key, value) in batch.into_items() {
            match value {
                Some(value) => sled_batch.insert(key, value),
                None => sled_batch.remove(key),
            }
        }
        guarded(|| self.db.0.apply_batch(sled_batch))?;
        if self.unwritten > MAX_UNWRITTEN_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn make_durable(&mut self) -> Result<(), KvError> {
        self.flush()?;
        crash_point!("pages.flushed");
        guarded(|| self.file.sync_data())
    }

    fn disk_bytes(&self) -> u64 {
        self.db.0.size_on_disk().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_database_whose_last_user_lets_go_late_is_waited_for() {
        let directory = TempDir::new().expect("a directory");
        let first = SledPages::open(directory.path(), 1 << 20).expect("it opens");
        let late = thread::spawn(move || {
            thread::sleep(3 * LOCK_WAIT);
            drop(first);
        });
        assert!(SledPages::open(directory.path(), 1 << 20).is_ok());
        late.join().expect("it only waits");
    }
}
