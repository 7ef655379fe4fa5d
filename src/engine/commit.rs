//! The commit thread: it makes rounds durable, as many at once as are waiting, and then lets out what depended
//! on them. And the fold thread, which moves what has grown old out of the journal's way.

use std::error::Error;
use std::mem;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError, Sender, SyncSender, TryRecvError};
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
    pub(super) group: Group,
}

/// Rounds that share a commit, the next one.
#[derive(Default)]
pub(super) struct Group {
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
        while let Ok(input) = self.inbox.recv() {
            if self.step(input).is_break() {
                return;
            }
        }
        if self.group.is_last {
            self.fail(&*CommitFailure::from("the fold thread has ended in the middle of a fold"));
        }
    }

    /// Takes an input and all others that wait, makes durable what they bring and lets out what depended on it. Breaks
    /// after the last round, when it is told to end, and if something fails.
    pub(super) fn step(&mut self, first: CommitInput<<C::Folds as Folds>::Done>) -> ControlFlow<()> {
        match self.fill(first).and_then(|()| self.complete()) {
            Ok(flow) => flow,
            Err(failure) => {
                // First the status, then the dropped replies: who misses an answer finds out why.
                self.fail(&*failure);
                ControlFlow::Break(())
            }
        }
    }

    fn fail(&self, failure: &(dyn Error + 'static)) {
        self.signals.fail(&describe(failure));
        let _ended = self.owner.send(Input::Stop);
    }

    fn fill(&mut self, first: CommitInput<<C::Folds as Folds>::Done>) -> Result<(), CommitFailure> {
        let mut next = Some(first);
        while let Some(input) = next {
            match input {
                CommitInput::Round(round) => self.group.add(round),
                CommitInput::Folded(result) => self.folded(result)?,
                CommitInput::Compacted(result) => self.compacted(result?),
                CommitInput::End => self.group.is_end = true,
            }
            let is_full = self.group.is_last || self.group.is_freeze || self.group.is_end;
            next = if is_full { None } else { self.inbox.try_recv().ok() };
        }
        Ok(())
    }

    /// Commits the group and lets it go. The last round, after which nobody sends another, waits for the fold that is
    /// under way.
    fn complete(&mut self) -> Result<ControlFlow<()>, CommitFailure> {
        if self.group.is_last {
            crash_point!("stop.begins");
            if self.is_folding {
                return Ok(ControlFlow::Continue(()));
            }
            crash_point!("stop.fold_finished");
        }
        self.commit()?;
        let group = mem::take(&mut self.group);
        for release in group.releases {
            release.let_go(&self.owner);
        }
        crash_point!("round.answered");
        if group.is_last || group.is_end {
            crash_point!("stop.durable");
            return Ok(ControlFlow::Break(()));
        }
        if group.is_freeze {
            self.begin_fold(group.snapshot)?;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn commit(&mut self) -> Result<(), CommitFailure> {
        let changes = &self.group.changes;
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

/// The fold thread. Its debug log tells what it does at any moment.
pub(super) struct Folding<F: Folds> {
    pub(super) folds: F,
    pub(super) jobs: Receiver<FoldTask<F::Job>>,
    pub(super) done: SyncSender<CommitInput<F::Done>>,
    pub(super) leisure: Leisure,
}

/// What the fold thread does while no task waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leisure {
    /// Clean up.
    CleanUp,
    /// A backup holds the clean-up up: look again after a while.
    HeldUp,
    /// Nothing.
    Rest,
}

impl<F: Folds> Folding<F> {
    /// Runs tasks until nobody can send another or wants to know, and compacts while none waits.
    pub(super) fn run(mut self) {
        while let Ok(task) = self.wait()
            && self.step(task).is_continue()
        {}
    }

    /// Waits for a task for as long as there is nothing else to do. Fails if no other can come.
    fn wait(&self) -> Result<Option<FoldTask<F::Job>>, RecvError> {
        match self.leisure {
            Leisure::CleanUp => self.next(),
            Leisure::HeldUp => match self.jobs.recv_timeout(HELD_UP_PAUSE) {
                Err(RecvTimeoutError::Timeout) => Ok(None),
                task => task.map(Some).map_err(|_| RecvError),
            },
            Leisure::Rest => self.jobs.recv().map(Some),
        }
    }

    /// The task that waits, if one does. Fails if no other can come.
    pub(super) fn next(&self) -> Result<Option<FoldTask<F::Job>>, RecvError> {
        match self.jobs.try_recv() {
            Err(TryRecvError::Empty) => Ok(None),
            task => task.map(Some).map_err(|_| RecvError),
        }
    }

    /// Runs the task; without one, cleans up a part. Breaks if nobody wants to know.
    pub(super) fn step(&mut self, task: Option<FoldTask<F::Job>>) -> ControlFlow<()> {
        let Some(task) = task else { return self.clean_up() };
        tracing::debug!("a fold begins");
        let folded = run(&mut self.folds, task);
        tracing::debug!(is_durable = folded.is_ok(), "a fold has ended");
        self.leisure = Leisure::CleanUp;
        self.tell(CommitInput::Folded(folded))
    }

    fn clean_up(&mut self) -> ControlFlow<()> {
        tracing::debug!("a compaction begins");
        let compacted = self.folds.compact().transpose();
        let (is_durable, changed) = (!matches!(compacted, Some(Err(_))), compacted.is_some());
        tracing::debug!(is_durable, changed, "a compaction has ended");
        let Some(compacted) = compacted else {
            self.leisure = if self.folds.is_held_up() { Leisure::HeldUp } else { Leisure::Rest };
            return ControlFlow::Continue(());
        };
        self.leisure = Leisure::CleanUp;
        self.tell(CommitInput::Compacted(compacted))
    }

    fn tell(&self, input: CommitInput<F::Done>) -> ControlFlow<()> {
        if self.done.send(input).is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
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
        let (signals_too, group) = (Arc::clone(&signals), Group::default());
        Committing { commits, inbox, jobs, owner, signals: signals_too, clock, is_folding: false, group }.run();

        let committed = Deed::Committed(vec![change(1), change(2), change(3)]);
        let expected = [committed, Deed::LetGo(0), Deed::LetGo(1), Deed::LetGo(2)];
        assert_eq!(deeds.try_iter().collect::<Vec<_>>(), expected);
        assert_eq!(signals.commits.load(Ordering::Relaxed), 1);
    }
}
