//! Starting the engine: the run is written down, then the threads begin.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use tokio::sync::Semaphore;

use super::RESTART_GRACE_MS;
use super::commit::{CommitFailure, CommitLane, Commits, Committing, Folding, Folds, Group, Leisure};
use super::damage::Damage;
use super::handle::{EngineHandle, Shared};
use super::look::Looking;
use super::owner::Owner;
use super::pages::{Loading, Reads};
use super::service::Service;
use super::signals::{Sentinel, Signals};
use super::stats::Tally;
use super::throttle::Throttle;
use crate::clock::Clock;
use crate::queue::Queue;
use crate::queue::change::Change;
use crate::queue::receipt::ReceiptKey;

/// Most rounds on their way to the commit thread. Enough to keep it busy; more would only be older.
pub(super) const ROUNDS_UNDER_WAY: usize = 8;

/// Bounds of the engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineSettings {
    /// Memory of the requests that are admitted and not answered, bytes. Default 64 MiB.
    pub admission_bytes: u32,
    /// Most fetches that wait at once. Default 10,000.
    pub max_waiters: usize,
    /// Most consume streams at once. Default 1,000.
    pub max_streams: usize,
}

impl EngineSettings {
    /// Least memory of requests, bytes: room for one of the largest requests and for others beside it.
    pub const MIN_ADMISSION_BYTES: u32 = 32 << 20;
    /// Most memory of requests, bytes.
    pub const MAX_ADMISSION_BYTES: u32 = 2 << 30;
    /// No configuration may let more fetches wait.
    pub const LARGEST_MAX_WAITERS: usize = 1_000_000;
    /// No configuration may allow more consume streams.
    pub const LARGEST_MAX_STREAMS: usize = 100_000;
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self { admission_bytes: 64 * 1024 * 1024, max_waiters: 10_000, max_streams: 1_000 }
    }
}

/// What the engine runs on.
pub struct Parts<C: Commits> {
    /// The restored queue.
    pub queue: Queue,
    /// The changes that open this run, with the number of the run; nothing was committed after the restore.
    pub opening: Vec<Change>,
    /// The durable side.
    pub commits: C,
    /// Its folding side.
    pub folds: C::Folds,
    /// Readers of what it folds: for the owner, the load thread and the look thread.
    pub pages: [Box<dyn Reads>; 3],
    /// Seals receipts.
    pub receipt_key: ReceiptKey,
}

/// Why the engine does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The start of the run could not be written down.
    #[error("the start could not be written to the journal: {0}")]
    Commit(#[source] CommitFailure),
    /// The system gives no thread.
    #[error("a thread could not be started: {0}")]
    Thread(#[source] io::Error),
}

/// Makes the opening changes durable and starts the threads.
///
/// # Errors
/// [`StartError`]; the engine is not running.
pub fn start<C: Commits>(settings: EngineSettings, parts: Parts<C>, clock: Clock) -> Result<EngineHandle, StartError> {
    let Crew { handle, owner, committing, folding, loading, looking } = Crew::assemble(settings, parts, clock)?;
    let signals = Arc::clone(&handle.shared.signals);
    let sentinel = || Sentinel { signals: Arc::clone(&signals), owner: handle.shared.owner.clone() };
    let others = [
        spawn("duewheel-commit", sentinel(), move || committing.run())?,
        spawn("duewheel-fold", sentinel(), move || folding.run())?,
        spawn("duewheel-load", sentinel(), move || loading.run())?,
        spawn("duewheel-look", sentinel(), move || looking.run())?,
    ];
    let all_signals = Arc::clone(&signals);
    spawn("duewheel-engine", sentinel(), move || {
        // Its end ends the others.
        owner.run();
        for thread in others {
            // A panic has made the engine fail already.
            let _panicked = thread.join();
        }
        all_signals.stop();
    })?;
    Ok(handle)
}

/// All that works in an engine, each with the ends of its channels, and the way to it.
pub(super) struct Crew<C: Commits> {
    pub(super) handle: EngineHandle,
    /// Dropping it ends the others.
    pub(super) owner: Owner<<C::Folds as Folds>::Done>,
    pub(super) committing: Committing<C>,
    pub(super) folding: Folding<C::Folds>,
    pub(super) loading: Loading,
    pub(super) looking: Looking,
}

impl<C: Commits> Crew<C> {
    /// Makes the opening changes durable and puts everything in its place.
    pub(super) fn assemble(settings: EngineSettings, mut parts: Parts<C>, clock: Clock) -> Result<Self, StartError> {
        parts.commits.commit(&parts.opening).map_err(StartError::Commit)?;
        let signals = Arc::new(Signals::new(settings.admission_bytes as usize));
        signals.commits.store(1, Ordering::Relaxed);
        signals.note_journal(&parts.commits);
        let (owner_sender, inbox) = mpsc::channel();
        let shared = Shared {
            owner: owner_sender.clone(),
            signals: Arc::clone(&signals),
            clock: clock.clone(),
            limits: *parts.queue.limits(),
            receipt_key: parts.receipt_key,
            bounds: settings,
            waiters: Arc::new(Semaphore::new(settings.max_waiters)),
            streams: Arc::new(Semaphore::new(settings.max_streams)),
            backups: Arc::new(Semaphore::new(1)),
            next_id: AtomicU64::new(1),
            throttle: Throttle::new(),
        };
        parts.queue.grant_grace(clock.now(), RESTART_GRACE_MS);
        let [pages, far_pages, seen_pages] = parts.pages;
        let (rounds, round_inbox) = mpsc::sync_channel(ROUNDS_UNDER_WAY);
        let (jobs, job_inbox) = mpsc::channel();
        let (loads, load_inbox) = mpsc::channel();
        let (looks, look_inbox) = mpsc::channel();
        let leisure = if parts.folds.is_cleaning_up() { Leisure::CleanUp } else { Leisure::Rest };
        let committing = Committing {
            commits: parts.commits,
            inbox: round_inbox,
            jobs,
            owner: owner_sender.clone(),
            signals: Arc::clone(&signals),
            clock: clock.clone(),
            is_folding: false,
            group: Group::default(),
        };
        let owner = Owner {
            started_at: clock.now(),
            last_round_at: clock.now(),
            queue: parts.queue,
            clock,
            inbox,
            commits: CommitLane { sender: rounds.clone() },
            pages: RefCell::new(pages),
            loads,
            looks,
            damage: Damage::default(),
            snapshot: None,
            is_folding: false,
            signals: Arc::clone(&signals),
            service: Service::default(),
            tally: Tally::default(),
            is_draining: false,
            is_stuck: false,
        };
        Ok(Self {
            handle: EngineHandle::new(Arc::new(shared)),
            owner,
            committing,
            folding: Folding { folds: parts.folds, jobs: job_inbox, done: rounds, leisure },
            loading: Loading { pages: far_pages, inbox: load_inbox, owner: owner_sender.clone(), signals },
            looking: Looking { pages: seen_pages, inbox: look_inbox, owner: owner_sender },
        })
    }
}

fn spawn(name: &str, sentinel: Sentinel, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StartError> {
    let work = move || {
        let _sentinel = sentinel;
        work();
    };
    thread::Builder::new().name(name.to_owned()).spawn(work).map_err(StartError::Thread)
}
