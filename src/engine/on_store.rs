//! The engine's durable side on the real store.

use std::sync::Arc;

use super::commit::{CommitFailure, Commits, Folded, Folds};
use super::pages::Reads;
use super::start::Parts;
use crate::clock::Clock;
use crate::queue::change::Change;
use crate::queue::receipt::ReceiptKey;
use crate::queue::{Effects, Restore};
use crate::store::{Committer, DirectoryDelta, FoldDone, FoldJob, Folder, Opened, Snapshot};

/// The committer with the clock that its folds need.
pub struct Journal {
    committer: Committer,
    clock: Clock,
}

impl Parts<Journal> {
    /// The parts of an engine on an opened store, whose contents went to `restore`.
    pub fn on_store(opened: Opened, mut restore: Restore, clock: &Clock) -> Self {
        let mut effects = Effects::default();
        restore.set_epoch(opened.epoch);
        let queue = restore.finish(clock.now(), &mut effects);
        Self {
            queue,
            opening: effects.changes,
            pages: [(); 3].map(|()| Box::new(opened.folder.reader()) as Box<dyn Reads>),
            commits: Journal { committer: opened.committer, clock: clock.clone() },
            folds: opened.folder,
            receipt_key: ReceiptKey::new(opened.identity.secret),
        }
    }
}

impl Commits for Journal {
    type Folds = Folder;

    fn commit(&mut self, changes: &[Change]) -> Result<(), CommitFailure> {
        Ok(self.committer.commit(changes)?)
    }

    fn is_full(&self) -> bool {
        self.committer.is_generation_full()
    }

    fn freeze(&mut self) -> Option<FoldJob> {
        self.committer.freeze(self.clock.now())
    }

    fn folded(&mut self, done: FoldDone) -> Result<Folded, CommitFailure> {
        let (delta, set_aside) = (Some(done.delta.clone()), done.set_aside.clone());
        let folded = Folded { fold: done.fold, carried: done.carried.clone(), delta, set_aside };
        self.committer.folded(done)?;
        Ok(folded)
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

    fn run_and_snapshot(&mut self, job: FoldJob) -> Result<(FoldDone, Option<Snapshot>), CommitFailure> {
        let (done, snapshot) = Folder::run_and_snapshot(self, job)?;
        Ok((done, Some(snapshot)))
    }

    fn is_cleaning_up(&self) -> bool {
        self.is_giving_back()
    }

    fn is_held_up(&self) -> bool {
        Folder::is_held_up(self)
    }

    fn compact(&mut self) -> Result<Option<Arc<DirectoryDelta>>, CommitFailure> {
        Ok(Folder::compact(self)?)
    }
}
