//! An engine without threads, for simulations: its holder decides which of the five does its next step.
//!
//! Each step is the one that the thread of that name does with its next input, on the same code. A step that would
//! have to wait is not done. So the same steps over the same time and store give the same history.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use super::commit::{Commits, Committing, Folding, Folds, Leisure};
use super::handle::EngineHandle;
use super::look::Looking;
use super::owner::Owner;
use super::pages::Loading;
use super::signals::Signals;
use super::start::{Crew, EngineSettings, Parts, ROUNDS_UNDER_WAY, StartError};
use crate::clock::Clock;
use crate::queue::Queue;

/// Inputs that wait for the commit thread at most: with the owner's end there is room for one more.
const MOST_UNDER_WAY: usize = ROUNDS_UNDER_WAY - 1;

/// Who may do a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// A round.
    Owner,
    /// A commit of all rounds that wait.
    Commit,
    /// A fold, or a part of a compaction.
    Fold,
    /// A load.
    Load,
    /// A question.
    Look,
}

/// The five that work in an engine. Dropping it ends the engine as a crash would.
pub struct Stepped<C: Commits> {
    // Who receives goes before who sends: a full channel then holds nobody up.
    committing: Option<Committing<C>>,
    folding: Option<Folding<C::Folds>>,
    loading: Option<Loading>,
    looking: Option<Looking>,
    owner: Option<Owner<<C::Folds as Folds>::Done>>,
    signals: Arc<Signals>,
    /// No more inputs than that wait for the commit thread.
    under_way: usize,
}

/// As [`start()`](super::start()), without threads.
///
/// # Errors
/// [`StartError::Commit`].
pub fn stepped<C: Commits>(
    settings: EngineSettings,
    parts: Parts<C>,
    clock: Clock,
) -> Result<(EngineHandle, Stepped<C>), StartError> {
    let Crew { handle, owner, committing, folding, loading, looking } = Crew::assemble(settings, parts, clock)?;
    let stepped = Stepped {
        committing: Some(committing),
        folding: Some(folding),
        loading: Some(loading),
        looking: Some(looking),
        owner: Some(owner),
        signals: Arc::clone(&handle.shared.signals),
        under_way: 0,
    };
    Ok((handle, stepped))
}

impl<C: Commits> Stepped<C> {
    /// Lets it do its next step. False if there was nothing to do, if it would have to wait for another, and after its
    /// end. The owner always has something to do: a round, if only to look at the clock.
    pub fn step(&mut self, thread: Thread) -> bool {
        match thread {
            Thread::Owner => self.owner(),
            Thread::Commit => self.commit(),
            Thread::Fold => self.fold(),
            Thread::Load => done(&mut self.loading, |loading| Some(loading.inbox.try_recv().map(|i| loading.step(i)))),
            Thread::Look => done(&mut self.looking, |looking| Some(looking.inbox.try_recv().map(|i| looking.step(i)))),
        }
    }

    /// The queue between two rounds; `None` after the owner's end.
    pub fn queue(&self) -> Option<&Queue> {
        self.owner.as_ref().map(|owner| &owner.queue)
    }

    /// How long the owner would sleep now if nothing came in; `None` after its end.
    pub fn sleep(&self) -> Option<Duration> {
        self.owner.as_ref().map(Owner::sleep)
    }

    /// As [`Commits::pressure`]; from 1.5 on, produces wait a while in real time.
    pub fn pressure(&self) -> f64 {
        self.signals.pressure()
    }

    fn owner(&mut self) -> bool {
        if self.under_way == MOST_UNDER_WAY {
            return false;
        }
        let Some(owner) = &mut self.owner else { return false };
        self.under_way += 1;
        if owner.round(true).is_break() {
            // Its end ends the others.
            self.owner = None;
            self.note_end();
        }
        true
    }

    fn commit(&mut self) -> bool {
        let is_done = done(&mut self.committing, |committing| {
            Some(committing.inbox.try_recv().map(|input| committing.step(input)))
        });
        if !is_done {
            self.under_way = 0;
        }
        self.note_end();
        is_done
    }

    fn fold(&mut self) -> bool {
        if self.under_way == MOST_UNDER_WAY {
            return false;
        }
        let is_done = done(&mut self.folding, |folding| match folding.next() {
            Ok(None) if folding.leisure == Leisure::Rest => None,
            Ok(task) => Some(Ok(folding.step(task))),
            Err(_) => Some(Err(TryRecvError::Disconnected)),
        });
        self.under_way += usize::from(is_done);
        self.note_end();
        is_done
    }

    /// When all have ended, everybody hears of it.
    fn note_end(&mut self) {
        if self.owner.is_none() && self.committing.is_none() && self.folding.is_none() {
            (self.loading, self.looking) = (None, None);
            self.signals.stop();
        }
    }
}

/// Lets somebody who has not ended do a step; `step` gives `None` or `Empty` if there is nothing to do.
fn done<T>(
    someone: &mut Option<T>,
    step: impl FnOnce(&mut T) -> Option<Result<ControlFlow<()>, TryRecvError>>,
) -> bool {
    match someone.as_mut().and_then(step) {
        Some(Ok(ControlFlow::Continue(()))) => true,
        Some(Ok(ControlFlow::Break(()))) => {
            *someone = None;
            true
        }
        Some(Err(TryRecvError::Disconnected)) => {
            *someone = None;
            false
        }
        Some(Err(TryRecvError::Empty)) | None => false,
    }
}
