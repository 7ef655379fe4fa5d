//! Starting the engine: the run is written down, then the threads begin.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use tokio::sync::Semaphore;

use super::RESTART_GRACE_MS;
use super::commit::{CommitFailure, CommitLane, Commits, Committing, Folds, fold};
use super::damage::Damage;
use super::handle::{EngineHandle, Shared};
use super::input::Input;
use super::look::{LookInput, look};
use super::owner::Owner;
use super::pages::{LoadInput, Reads, load};
use super::service::Service;
use super::signals::{Sentinel, Signals};
use super::stats::Tally;
use super::throttle::Throttle;
use crate::clock::Clock;
use crate::queue::Queue;
use crate::queue::change::Change;
use crate::queue::receipt::ReceiptKey;

/// Most rounds on their way to the commit thread. Enough to keep it busy; more would only be older.
const ROUNDS_UNDER_WAY: usize = 8;

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
pub fn start<C: Commits>(
    settings: EngineSettings,
    mut parts: Parts<C>,
    clock: Clock,
) -> Result<EngineHandle, StartError> {
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
        receipt_key: parts.receipt_key.clone(),
        bounds: settings,
        waiters: Arc::new(Semaphore::new(settings.max_waiters)),
        streams: Arc::new(Semaphore::new(settings.max_streams)),
        backups: Arc::new(Semaphore::new(1)),
        next_id: AtomicU64::new(1),
        throttle: Throttle::new(),
    };
    parts.queue.grant_grace(clock.now(), RESTART_GRACE_MS);
    let [pages, far_pages, seen_pages] = parts.pages;
    let threads = Threads::spawn(parts.commits, parts.folds, [far_pages, seen_pages], &clock, &signals, &owner_sender)?;
    let owner = Owner {
        started_at: clock.now(),
        last_round_at: clock.now(),
        queue: parts.queue,
        clock,
        inbox,
        commits: threads.lane,
        pages: RefCell::new(pages),
        loads: threads.loads,
        looks: threads.looks,
        damage: Damage::default(),
        snapshot: None,
        is_folding: false,
        signals: Arc::clone(&signals),
        service: Service::default(),
        tally: Tally::default(),
        is_draining: false,
        is_stuck: false,
    };
    let sentinel = Sentinel { signals: Arc::clone(&signals), owner: owner_sender };
    spawn("duewheel-engine", move || {
        let _sentinel = sentinel;
        owner.run();
        for thread in threads.handles {
            // A panic has made the engine fail already.
            let _panicked = thread.join();
        }
        signals.stop();
    })?;
    Ok(EngineHandle::new(Arc::new(shared)))
}

/// The threads beside the owner.
struct Threads<Done> {
    /// Dropping it ends them.
    lane: CommitLane<Done>,
    /// Dropping it ends the load thread.
    loads: mpsc::Sender<LoadInput>,
    /// Dropping it ends the look thread.
    looks: mpsc::Sender<LookInput>,
    handles: [JoinHandle<()>; 4],
}

impl<Done: Send + 'static> Threads<Done> {
    fn spawn<C>(
        commits: C,
        folds: C::Folds,
        [far_pages, seen_pages]: [Box<dyn Reads>; 2],
        clock: &Clock,
        signals: &Arc<Signals>,
        owner: &mpsc::Sender<Input>,
    ) -> Result<Self, StartError>
    where
        C: Commits,
        C::Folds: Folds<Done = Done>,
    {
        let sentinel = || Sentinel { signals: Arc::clone(signals), owner: owner.clone() };
        let (rounds, inbox) = mpsc::sync_channel(ROUNDS_UNDER_WAY);
        let (jobs, job_inbox) = mpsc::channel();
        let lane = CommitLane { sender: rounds.clone() };
        let committing = Committing {
            commits,
            inbox,
            jobs,
            owner: owner.clone(),
            signals: Arc::clone(signals),
            clock: clock.clone(),
            is_folding: false,
        };
        let commit_sentinel = sentinel();
        let commit_thread = spawn("duewheel-commit", move || {
            let _sentinel = commit_sentinel;
            committing.run();
        })?;
        let fold_sentinel = sentinel();
        let fold_thread = spawn("duewheel-fold", move || {
            let _sentinel = fold_sentinel;
            fold(folds, &job_inbox, &rounds);
        })?;
        let (loads, load_inbox) = mpsc::channel();
        let (load_sentinel, load_owner, load_signals) = (sentinel(), owner.clone(), Arc::clone(signals));
        let load_thread = spawn("duewheel-load", move || {
            let _sentinel = load_sentinel;
            if let Err(failed) = load(far_pages, &load_inbox, &load_owner) {
                load_signals.fail(&failed.to_string());
                let _ended = load_owner.send(Input::Stop);
            }
        })?;
        let (looks, look_inbox) = mpsc::channel();
        let (look_sentinel, look_owner) = (sentinel(), owner.clone());
        let look_thread = spawn("duewheel-look", move || {
            let _sentinel = look_sentinel;
            look(seen_pages, &look_inbox, &look_owner);
        })?;
        Ok(Self { lane, loads, looks, handles: [commit_thread, fold_thread, load_thread, look_thread] })
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StartError> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map_err(StartError::Thread)
}
