//! Joins store and engine: restores the queue from the data directory and starts the engine on it.

use crate::clock::Clock;
use crate::engine::{CommitFailure, Commits, EngineHandle, Folds, Parts, start};
use crate::queue::change::Change;
use crate::queue::receipt::ReceiptKey;
use crate::queue::{Effects, Restore};
use crate::store::{self, Committer, FoldDone, FoldJob, Folder, OpenError};

use super::error::OpenFailure;
use super::settings::Settings;

/// Opens the store of `settings` and starts the engine on what it holds. Blocks while the store is read.
pub(super) fn open(settings: &Settings) -> Result<EngineHandle, OpenFailure> {
    let clock = Clock::system(settings.step_policy);
    let mut restore = Restore::new(settings.limits);
    let opened =
        store::open(&settings.data_dir, settings.store, &mut |restored| restore.record(restored)).map_err(refused)?;
    if let Some((segment, offset)) = &opened.torn {
        tracing::warn!(%segment, offset, "the journal ended in a commit that was never answered; it was dropped");
    }
    let mut effects = Effects::default();
    let queue = restore.finish(clock.now(), &mut effects);
    let commits = Journal { committer: opened.committer, clock: clock.clone() };
    let receipt_key = ReceiptKey::new(opened.identity.secret);
    let parts = Parts { queue, opening: effects.changes, commits, folds: opened.folder, receipt_key };
    start(settings.engine, parts, clock).map_err(|error| OpenFailure::Failed(Box::new(error)))
}

/// Which refusals an operator has to act on before another start can succeed.
fn refused(error: OpenError) -> OpenFailure {
    match error {
        OpenError::NotWritable { .. }
        | OpenError::Locked { .. }
        | OpenError::Foreign { .. }
        | OpenError::NotADirectory { .. }
        | OpenError::UnknownFormat { .. }
        | OpenError::NewerFormat { .. } => OpenFailure::Configuration(Box::new(error)),
        _ => OpenFailure::Failed(Box::new(error)),
    }
}

/// The committer with the clock that its folds need.
struct Journal {
    committer: Committer,
    clock: Clock,
}

impl Commits for Journal {
    type Folds = Folder;

    fn commit(&mut self, changes: &[Change]) -> Result<(), CommitFailure> {
        Ok(self.committer.commit(changes)?)
    }

    fn fold_due(&mut self) -> Option<FoldJob> {
        self.committer.fold_due(self.clock.now())
    }

    fn folded(&mut self, done: FoldDone) -> Result<(), CommitFailure> {
        Ok(self.committer.folded(done)?)
    }

    fn journal_bytes(&self) -> u64 {
        self.committer.journal_bytes()
    }

    fn pressure(&self) -> f64 {
        self.committer.pressure()
    }
}

impl Folds for Folder {
    type Job = FoldJob;
    type Done = FoldDone;

    fn run(&mut self, job: FoldJob) -> Result<FoldDone, CommitFailure> {
        Ok(Folder::run(self, job)?)
    }
}
