//! What the pages still hold of a deleted topic.

use super::handle::{EngineError, EngineHandle};
use crate::queue::command::DeletedTopic;

/// How far the room of a deleted topic is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reclaiming {
    /// Pages of it that are left.
    pub pages: u64,
    /// The fold is done that takes them out of use; before it there may be more to come.
    pub is_folded: bool,
}

impl Reclaiming {
    /// Nothing is left.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.is_folded && self.pages == 0
    }
}

impl EngineHandle {
    /// How far the room of a deleted topic is given back.
    ///
    /// # Errors
    /// [`EngineError::Draining`] or [`EngineError::OutcomeUnknown`].
    pub async fn reclaiming(&self, deleted: DeletedTopic) -> Result<Reclaiming, EngineError> {
        self.ask(move |sight| sight.reclaiming(&deleted)).await
    }
}
