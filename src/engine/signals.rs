//! What the threads of the engine tell everybody: the status, and a few numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::thread;

use tokio::sync::{Semaphore, watch};

use super::LONG_PAUSE_MS;
use super::commit::Commits;
use super::input::Input;
use super::reserve::Disk;
use crate::queue::time::Timestamp;

/// What the engine is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Its work.
    Serving,
    /// Finishing what it has admitted; new work is refused.
    Draining,
    /// Nothing any more: a commit failed or a thread panicked. What was unanswered has an unknown outcome.
    Failed(String),
    /// Nothing any more: it was shut down and everything is durable.
    Stopped,
}

/// Shared by the threads and the handles; the numbers are written by one thread each.
pub(super) struct Signals {
    status: watch::Sender<Status>,
    /// Permits for work that is admitted and not answered; closed when nothing is admitted any more.
    pub(super) admission: Arc<Semaphore>,
    /// Commits since the start.
    pub(super) commits: AtomicU64,
    /// How long reading the store took, milliseconds.
    pub(super) opening_ms: AtomicU64,
    /// Folds since the start.
    pub(super) folds: AtomicU64,
    /// Size of the journal.
    pub(super) journal_bytes: AtomicU64,
    /// The journal holds enough for a fold.
    pub(super) is_journal_full: AtomicBool,
    /// Bits of [`Commits::pressure`].
    pressure: AtomicU64,
    /// The room on the disk.
    pub(super) disk: Disk,
    /// When the running commit began, milliseconds of the broker's clock; 0 while there is none.
    committing_since_ms: AtomicU64,
}

impl Signals {
    pub(super) fn new(admission_bytes: usize) -> Self {
        Self {
            status: watch::Sender::new(Status::Serving),
            admission: Arc::new(Semaphore::new(admission_bytes)),
            commits: AtomicU64::new(0),
            opening_ms: AtomicU64::new(0),
            folds: AtomicU64::new(0),
            journal_bytes: AtomicU64::new(0),
            is_journal_full: AtomicBool::new(false),
            pressure: AtomicU64::new(0.0_f64.to_bits()),
            disk: Disk::default(),
            committing_since_ms: AtomicU64::new(0),
        }
    }

    pub(super) fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    pub(super) fn is_serving(&self) -> bool {
        *self.status.borrow() == Status::Serving
    }

    pub(super) fn has_failed(&self) -> bool {
        matches!(*self.status.borrow(), Status::Failed(_))
    }

    /// Returns false if it was not serving.
    pub(super) fn drain(&self) -> bool {
        self.status.send_if_modified(|status| {
            let serving = *status == Status::Serving;
            if serving {
                *status = Status::Draining;
            }
            serving
        })
    }

    /// The first failure stays.
    pub(super) fn fail(&self, cause: &str) {
        let first = self.status.send_if_modified(|status| {
            let first = !matches!(status, Status::Failed(_));
            if first {
                *status = Status::Failed(cause.to_owned());
            }
            first
        });
        if first {
            tracing::error!(cause, "the engine has failed; the outcome of unanswered requests is unknown");
        }
        self.admission.close();
    }

    pub(super) fn stop(&self) {
        self.status.send_if_modified(|status| {
            let failed = matches!(status, Status::Failed(_));
            if !failed {
                *status = Status::Stopped;
            }
            !failed
        });
        self.admission.close();
    }

    pub(super) fn note_journal(&self, journal: &impl Commits) {
        let bytes = journal.journal_bytes();
        if self.journal_bytes.swap(bytes, Ordering::Relaxed) < bytes {
            self.disk.look_soon();
        }
        self.pressure.store(journal.pressure().to_bits(), Ordering::Relaxed);
        self.is_journal_full.store(journal.is_full(), Ordering::Relaxed);
    }

    pub(super) fn pressure(&self) -> f64 {
        f64::from_bits(self.pressure.load(Ordering::Relaxed))
    }

    pub(super) fn commit_begins(&self, now: Timestamp) {
        self.committing_since_ms.store(now.as_millis().max(1), Ordering::SeqCst);
    }

    /// Returns true if the commit was so slow that the owner must know.
    pub(super) fn commit_ends(&self, now: Timestamp) -> bool {
        let slow = self.is_stuck(now);
        self.committing_since_ms.store(0, Ordering::SeqCst);
        slow
    }

    /// True while a commit takes unusually long.
    pub(super) fn is_stuck(&self, now: Timestamp) -> bool {
        let since = self.committing_since_ms.load(Ordering::SeqCst);
        since != 0 && now.since(Timestamp::from_millis(since)) > LONG_PAUSE_MS
    }
}

/// Held by each thread: if the thread panics, the engine fails and the owner ends.
pub(super) struct Sentinel {
    pub(super) signals: Arc<Signals>,
    pub(super) owner: Sender<Input>,
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        if thread::panicking() {
            let name = thread::current().name().unwrap_or("a thread").to_owned();
            self.signals.fail(&format!("{name} has panicked"));
            // It fails only if the owner has ended.
            let _ended = self.owner.send(Input::Stop);
        }
    }
}
