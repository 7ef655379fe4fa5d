//! The look thread: reads pages for questions, so that neither the queue nor a load of what is due waits for them.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use super::input::Input;
use super::pages::{Reads, tell_damage};
use crate::queue::quarantine::DamagedPart;
use crate::store::DirectoryDelta;

/// Reads what it wants, and tells its asker.
pub(super) type Question = Box<dyn FnOnce(&mut dyn Reads) + Send>;

/// What the look thread can be told.
pub(super) enum LookInput {
    /// The pages have changed.
    Delta(Arc<DirectoryDelta>),
    /// That is damaged.
    Avoid(DamagedPart),
    /// Answer this. Its asker holds a permit until then.
    Question(Question),
}

/// The look thread.
pub(super) struct Looking {
    pub(super) pages: Box<dyn Reads>,
    pub(super) inbox: Receiver<LookInput>,
    pub(super) owner: Sender<Input>,
}

impl Looking {
    /// Answers until nobody can ask any more.
    pub(super) fn run(mut self) {
        while let Ok(input) = self.inbox.recv()
            && self.step(input).is_continue()
        {}
    }

    /// Does what it is told. Breaks if nobody wants to know.
    pub(super) fn step(&mut self, input: LookInput) -> ControlFlow<()> {
        match input {
            LookInput::Delta(delta) => self.pages.apply(&delta),
            LookInput::Avoid(part) => self.pages.avoid(&part),
            LookInput::Question(question) => {
                question(&mut *self.pages);
                return tell_damage(&mut *self.pages, &self.owner);
            }
        }
        ControlFlow::Continue(())
    }
}
