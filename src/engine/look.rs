//! The look thread: reads pages for questions, so that neither the queue nor a load of what is due waits for them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use super::input::Input;
use super::pages::Reads;
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

/// Answers until nobody can ask any more.
pub(super) fn look(mut pages: Box<dyn Reads>, inbox: &Receiver<LookInput>, owner: &Sender<Input>) {
    for input in inbox {
        match input {
            LookInput::Delta(delta) => pages.apply(&delta),
            LookInput::Avoid(part) => pages.avoid(&part),
            LookInput::Question(question) => {
                question(&mut *pages);
                let damaged = pages.take_damaged();
                if !damaged.is_empty() && owner.send(Input::Damaged(damaged)).is_err() {
                    return;
                }
            }
        }
    }
}
