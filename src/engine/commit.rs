//! The commit thread: it makes rounds durable, as many at once as are waiting, and then lets out what depended
//! on them. And the fold thread, which moves what has grown old out of the journal's way.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError};
use std::time::Duration;

use super::input::Input;
use super::round::{Release, Round, SnapshotReply};
use super::signals::Signals;
use crate::clock::Clock;
use crate::crash::crash_point;
use crate::queue::change::Change;
use crate::queue::far::Carried;
use crate::store::{DirectoryDelta, SetAside, Snapshot};

/// How often a clean-up that a backup holds up looks whether it may go on.
const HELD_UP_PAUSE: Duration = Duration::from_secs(1);

/// Why something could not be made durable.
pub type CommitFailure = Box<dyn Error + Send + Sync>;

/// The durable side, as the commit thread needs it.
pub trait Commits: Send + 'static {
    /// Its folding side.
    type Folds: Folds;

    /// Makes the changes durable, atomically and in order.
    ///
    /// # Errors
    /// If that is not certain; nothing is committed after that.
    fn commit(&mut self, changes: &[Change]) -> Result<(), CommitFailure>;

    /// True if the journal holds enough for a fold.
    fn is_full(&self) -> bool;

    /// Ends the generation: what was committed so far is to be folded. `None` if there is nothing to fold. Not called
    /// again before the job is done and noted.
    fn freeze(&mut self) -> Option<<Self::Folds as Folds>::Job>;

    /// Takes note of a finished fold.
    ///
    /// # Errors
    /// As [`Commits::commit`].
    fn folded(&mut self, done: <Self::Folds as Folds>::Done) -> Result<Folded, CommitFailure>;

    /// Bytes of the journal on disk.
    fn journal_bytes(&self) -> u64;

    /// How full the journal is: 1.0 is a full generation that is not being folded yet, 2.0 one full and another
    /// being folded. Produce is slowed down from 1.5 on.
    fn pressure(&self) -> f64;
}

/// A fold that is durable and noted.
#[derive(Debug)]
pub struct Folded {
    /// Its number.
    pub fold: u64,
    /// The messages that were left to the journal.
    pub carried: Vec<Carried>,
    /// What it changed in the pages.
    pub delta: Option<Arc<DirectoryDelta>>,
    /// Damaged parts of the pages that it set aside.
    pub set_aside: Vec<SetAside>,
}

/// The folding side, which works beside the commits.
pub trait Folds: Send + 'static {
    /// What is to be folded.
    type Job: Send + 'static;
    /// What was folded.
    type Done: Send + 'static;

    /// Folds.
    ///
    /// # Errors
    /// If the result is not certain to be durable; the engine fails.
    fn run(&mut self, job: Self::Job) -> Result<Self::Done, CommitFailure>;

    /// As [`Folds::run`], and takes a snapshot of what was stored when the job was made; `None` if there are none.
    ///
    /// # Errors
    /// As [`Folds::run`].
    fn run_and_snapshot(&mut self, job: Self::Job) -> Result<(Self::Done, Option<Snapshot>), CommitFailure> {
        Ok((self.run(job)?, None))
    }

    /// True if a clean-up was under way when the store was opened that is to go on at once.
    fn is_cleaning_up(&self) -> bool {
        false
    }

    /// True if what there is to clean up has to wait, since a backup reads it.
    fn is_held_up(&self) -> bool {
        false
    }

    /// Does a part of what there is to clean up, and tells what it changed in the pages; `None` if nothing is left.
    ///
    /// # Errors
    /// As [`Folds::run`].
    fn compact(&mut self) -> Result<Option<Arc<DirectoryDelta>>, CommitFailure> {
        Ok(None)
    }
}

/// What the fold thread is to do.
pub(super) struct FoldTask<Job> {
    job: Job,
    /// Somebody waits for a snapshot.
    snapshot: Option<SnapshotReply>,
}

/// What the commit thread can be told.
pub(super) enum CommitInput<Done> {
    /// Commit this.
    Round(Round),
    /// The fold that was under way has ended.
    Folded(Result<Done, CommitFailure>),
    /// Something was cleaned up in the pages.
    Compacted(Result<Arc<DirectoryDelta>, CommitFailure>),
    /// End when what came before it is done.
    End,
}

/// The owner's way to the commit thread: bounded, and ends that thread when it is dropped.
pub(super) struct CommitLane<Done> {
    pub(super) sender: SyncSender<CommitInput<Done>>,
}

impl<Done> CommitLane<Done> {
    /// Returns false if the commit thread has ended. Waits while too many rounds are on their way.
    pub(super) fn send(&self, round: Round) -> bool {
        self.sender.send(CommitInput::Round(round)).is_ok()
    }
}

impl<Done> Drop for CommitLane<Done> {
    fn drop(&mut self) {
        let _ended = self.sender.send(CommitInput::End);
    }
}

/// The commit thread.
pub(super) struct Committing<C: Commits> {
    pub(super) commits: C,
    pub(super) inbox: Receiver<CommitInput<<C::Folds as Folds>::Done>>,
    pub(super) jobs: Sender<FoldTask<<C::Folds as Folds>::Job>>,
    pub(super) owner: Sender<Input>,
    pub(super) signals: Arc<Signals>,
    pub(super) clock: Clock,
    pub(super) is_folding: bool,
}

/// Rounds that share a commit.
#[derive(Default)]
struct Group {
    changes: Vec<Change>,
    releases: Vec<Release>,
    is_last: bool,
    /// The generation ends with this group.
    is_freeze: bool,
    /// A snapshot is wanted of that moment.
    snapshot: Option<SnapshotReply>,
    is_end: bool,
}

impl<C: Commits> Committing<C> {
    /// Runs until the last round is durable, it is told to end, or something fails.
    pub(super) fn run(mut self) {
        loop {
            let mut group = Group::default();
            if let Err(failure) = self.fill(&mut group).and_then(|()| self.make_durable(&group)) {
                // First the status, then the dropped replies: who misses an answer finds out why.
                return self.fail(&*failure);
            }
            for release in group.releases {
                release.let_go(&self.owner);
            }
            crash_point!("round.answered");
            if group.is_last || group.is_end {
                crash_point!("stop.durable");
                return;
            }
            if group.is_freeze
                && let Err(failure) = self.begin_fold(group.snapshot)
            {
                return self.fail(&*failure);
            }
        }
    }

    fn fail(&self, failure: &(dyn Error + 'static)) {
        self.signals.fail(&describe(failure));
        let _ended = self.owner.send(Input::Stop);
    }

    /// Waits for a round, and takes with it all others that wait.
    fn fill(&mut self, group: &mut Group) -> Result<(), CommitFailure> {
        let mut next = self.inbox.recv().ok();
        while let Some(input) = next {
            match input {
                CommitInput::Round(round) => group.add(round),
                CommitInput::Folded(result) => self.folded(result)?,
                CommitInput::Compacted(result) => self.compacted(result?),
                CommitInput::End => group.is_end = true,
            }
            next = if group.is_last || group.is_freeze || group.is_end { None } else { self.inbox.try_recv().ok() };
        }
        Ok(())
    }

    fn make_durable(&mut self, group: &Group) -> Result<(), CommitFailure> {
        if group.is_last {
            crash_point!("stop.begins");
            self.finish_fold()?;
            crash_point!("stop.fold_finished");
        }
        self.commit(&group.changes)
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), CommitFailure> {
        if changes.is_empty() {
            return Ok(());
        }
        self.signals.commit_begins(self.clock.now());
        self.commits.commit(changes)?;
        crash_point!("round.durable");
        self.signals.commits.fetch_add(1, Ordering::Relaxed);
        self.signals.note_journal(&self.commits);
        if self.signals.commit_ends(self.clock.now()) {
            tracing::warn!(changes = changes.len(), "a commit took more than a second: the disk is slow");
            let _ended = self.owner.send(Input::Wake);
        }
        Ok(())
    }

    fn begin_fold(&mut self, snapshot: Option<SnapshotReply>) -> Result<(), CommitFailure> {
        // The owner's queue counts on the fold that it has asked for.
        let job = self.commits.freeze().ok_or("there is nothing to fold where a generation ends")?;
        // It fails only if the fold thread has panicked; then the engine has failed.
        self.is_folding = self.jobs.send(FoldTask { job, snapshot }).is_ok();
        Ok(())
    }

    fn folded(&mut self, result: Result<<C::Folds as Folds>::Done, CommitFailure>) -> Result<(), CommitFailure> {
        self.is_folding = false;
        let folded = self.commits.folded(result?)?;
        self.signals.folds.fetch_add(1, Ordering::Relaxed);
        self.signals.note_journal(&self.commits);
        // After the owner's end nobody needs to know.
        let _ended = self.owner.send(Input::Folded(folded));
        Ok(())
    }

    fn compacted(&self, delta: Arc<DirectoryDelta>) {
        // After the owner's end nobody needs to know.
        let _ended = self.owner.send(Input::Compacted(delta));
    }

    /// Waits for the fold that is under way. Only before the last round, after which nobody sends another.
    fn finish_fold(&mut self) -> Result<(), CommitFailure> {
        while self.is_folding {
            match self.inbox.recv() {
                Ok(CommitInput::Folded(result)) => self.folded(result)?,
                Ok(CommitInput::Compacted(result)) => self.compacted(result?),
                Ok(CommitInput::Round(_) | CommitInput::End) => {}
                Err(_) => return Err("the fold thread has ended in the middle of a fold".into()),
            }
        }
        Ok(())
    }
}

impl Group {
    fn add(&mut self, mut round: Round) {
        if self.changes.is_empty() {
            self.changes = round.changes;
        } else {
            self.changes.append(&mut round.changes);
        }
        self.releases.append(&mut round.releases);
        self.is_last = round.is_last;
        self.is_freeze = round.is_freeze;
        self.snapshot = round.snapshot;
    }
}

/// The fold thread: runs jobs until nobody can send another, and compacts while none waits. Its debug log tells what
/// it does at any moment.
pub(super) fn fold<F: Folds>(mut folds: F, jobs: &Receiver<FoldTask<F::Job>>, done: &SyncSender<CommitInput<F::Done>>) {
    let mut next = if folds.is_cleaning_up() { clean_up(&mut folds, jobs, done) } else { jobs.recv().ok() };
    while let Some(task) = next {
        tracing::debug!("a fold begins");
        let folded = run(&mut folds, task);
        tracing::debug!(is_durable = folded.is_ok(), "a fold has ended");
        if done.send(CommitInput::Folded(folded)).is_err() {
            return;
        }
        next = clean_up(&mut folds, jobs, done);
    }
}

/// Compacts until a task comes; `None`: no other can come, or nobody wants to know.
fn clean_up<F: Folds>(
    folds: &mut F,
    jobs: &Receiver<FoldTask<F::Job>>,
    done: &SyncSender<CommitInput<F::Done>>,
) -> Option<FoldTask<F::Job>> {
    loop {
        match jobs.try_recv() {
            Ok(task) => return Some(task),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => {}
        }
        tracing::debug!("a compaction begins");
        let compacted = folds.compact().transpose();
        let (is_durable, changed) = (!matches!(compacted, Some(Err(_))), compacted.is_some());
        tracing::debug!(is_durable, changed, "a compaction has ended");
        match compacted {
            Some(compacted) => done.send(CommitInput::Compacted(compacted)).ok()?,
            None if folds.is_held_up() => match jobs.recv_timeout(HELD_UP_PAUSE) {
                Err(RecvTimeoutError::Timeout) => {}
                next => return next.ok(),
            },
            None => return jobs.recv().ok(),
        }
    }
}

/// Folds, and hands the snapshot out if one is wanted. Who does not wait for it any more drops it.
fn run<F: Folds>(folds: &mut F, task: FoldTask<F::Job>) -> Result<F::Done, CommitFailure> {
    let Some(reply) = task.snapshot else { return folds.run(task.job) };
    let (done, snapshot) = folds.run_and_snapshot(task.job)?;
    if let Some(snapshot) = snapshot {
        let _unwanted = reply.send(snapshot);
    }
    Ok(done)
}

/// An error and its causes in one line.
fn describe(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{channel, sync_channel};

    use super::*;
    use crate::clock::{ManualTime, StepPolicy};
    use crate::queue::time::Timestamp;

    /// What the commit thread does, in order.
    #[derive(Debug, PartialEq, Eq)]
    enum Deed {
        Committed(Vec<Change>),
        LetGo(usize),
    }

    /// Tells each commit to a channel.
    impl Commits for Sender<Deed> {
        type Folds = Never;

        fn commit(&mut self, changes: &[Change]) -> Result<(), CommitFailure> {
            self.send(Deed::Committed(changes.to_vec())).expect("the test listens");
            Ok(())
        }

        fn is_full(&self) -> bool {
            false
        }

        fn freeze(&mut self) -> Option<()> {
            None
        }

        fn folded(&mut self, (): ()) -> Result<Folded, CommitFailure> {
            Err("nothing is folded".into())
        }

        fn journal_bytes(&self) -> u64 {
            0
        }

        fn pressure(&self) -> f64 {
            0.0
        }
    }

    struct Never;

    impl Folds for Never {
        type Job = ();
        type Done = ();

        fn run(&mut self, (): ()) -> Result<(), CommitFailure> {
            Err("nothing is folded".into())
        }
    }

    #[test]
    fn rounds_that_wait_share_one_commit_in_their_order_and_are_let_go_after_it() {
        let (sender, inbox) = sync_channel(10);
        let (commits, deeds) = channel();
        let change = Change::ArrivalsReserved;
        for (number, changes) in [vec![change(1), change(2)], vec![], vec![change(3)]].into_iter().enumerate() {
            let deeds = commits.clone();
            let show = Box::new(move || deeds.send(Deed::LetGo(number)).expect("the test listens"));
            let round = Round { changes, releases: vec![Release::Show(show, None)], ..Round::default() };
            sender.send(CommitInput::Round(round)).expect("there is room");
        }
        sender.send(CommitInput::End).expect("there is room");
        let clock = ManualTime::new(Timestamp::from_millis(1_700_000_000_000)).clock(StepPolicy::Report);
        let signals = Arc::new(Signals::new(1));
        let (jobs, owner) = (channel().0, channel().0);
        Committing { commits, inbox, jobs, owner, signals: Arc::clone(&signals), clock, is_folding: false }.run();

        let committed = Deed::Committed(vec![change(1), change(2), change(3)]);
        let expected = [committed, Deed::LetGo(0), Deed::LetGo(1), Deed::LetGo(2)];
        assert_eq!(deeds.try_iter().collect::<Vec<_>>(), expected);
        assert_eq!(signals.commits.load(Ordering::Relaxed), 1);
    }
}
