//! What is on disk only: found when a command names it, loaded before it is due, on a thread of its own.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use super::input::Input;
use super::signals::Signals;
use crate::queue::dead::StoredDead;
use crate::queue::due::FirstInPages;
use crate::queue::far::{Load, Loaded, Missing};
use crate::queue::message::{Message, TopicId};
use crate::queue::quarantine::DamagedPart;
use crate::queue::time::Timestamp;
use crate::store::{DirectoryDelta, ReadError, Reader};

/// Reads messages that memory does not hold.
pub trait Reads: Send + 'static {
    /// Follows a fold.
    fn apply(&mut self, delta: &DirectoryDelta);

    /// Waiting messages of a topic in their order.
    ///
    /// # Errors
    /// [`ReadError`].
    fn load(&mut self, load: Load) -> Result<Loaded, ReadError>;

    /// The message that a command names.
    ///
    /// # Errors
    /// [`ReadError`].
    fn find(&mut self, missing: &Missing) -> Result<Option<Message>, ReadError>;

    /// Dead letters of a topic after (time of death, arrival number), in that order; a bounded number of pages is read.
    ///
    /// # Errors
    /// [`ReadError`].
    fn dead(&mut self, topic: TopicId, after: Option<(Timestamp, u64)>, limit: usize) -> Result<StoredDead, ReadError>;

    /// How many waiting messages of a topic fall due in each of the spans between `edges`.
    ///
    /// # Errors
    /// [`ReadError`].
    fn due(&mut self, topic: TopicId, edges: &[Timestamp]) -> Result<Vec<u64>, ReadError>;

    /// Due times of the first waiting messages of a topic from a place in its order on.
    ///
    /// # Errors
    /// [`ReadError`].
    fn first_due(&mut self, topic: TopicId, from: (Timestamp, u64)) -> Result<FirstInPages, ReadError>;

    /// The last change of the pages that it follows.
    fn run(&self) -> u64;

    /// Pages that are listed of a topic.
    fn pages_of(&self, topic: TopicId) -> u64 {
        let _ = topic;
        0
    }

    /// What was found damaged, and left out, since the last call.
    fn take_damaged(&mut self) -> Vec<DamagedPart> {
        Vec::new()
    }

    /// Another reader has found that.
    fn avoid(&mut self, part: &DamagedPart) {
        let _ = part;
    }
}

impl Reads for Reader {
    fn apply(&mut self, delta: &DirectoryDelta) {
        Reader::apply(self, delta);
    }

    fn load(&mut self, load: Load) -> Result<Loaded, ReadError> {
        Reader::load(self, load)
    }

    fn find(&mut self, missing: &Missing) -> Result<Option<Message>, ReadError> {
        Reader::find(self, missing)
    }

    fn dead(&mut self, topic: TopicId, after: Option<(Timestamp, u64)>, limit: usize) -> Result<StoredDead, ReadError> {
        Reader::dead(self, topic, after, limit)
    }

    fn due(&mut self, topic: TopicId, edges: &[Timestamp]) -> Result<Vec<u64>, ReadError> {
        Reader::due(self, topic, edges)
    }

    fn first_due(&mut self, topic: TopicId, from: (Timestamp, u64)) -> Result<FirstInPages, ReadError> {
        Reader::first_due(self, topic, from)
    }

    fn run(&self) -> u64 {
        Reader::run(self)
    }

    fn pages_of(&self, topic: TopicId) -> u64 {
        Reader::pages_of(self, topic)
    }

    fn take_damaged(&mut self) -> Vec<DamagedPart> {
        Reader::take_damaged(self)
    }

    fn avoid(&mut self, part: &DamagedPart) {
        Reader::avoid(self, part);
    }
}

/// Nothing is on disk: for engines whose store never folds.
#[derive(Clone, Copy, Debug)]
pub struct NoPages;

impl Reads for NoPages {
    fn apply(&mut self, _: &DirectoryDelta) {}

    fn load(&mut self, load: Load) -> Result<Loaded, ReadError> {
        Ok(Loaded { load, messages: Vec::new(), frontier: None })
    }

    fn find(&mut self, _: &Missing) -> Result<Option<Message>, ReadError> {
        Ok(None)
    }

    fn dead(&mut self, _: TopicId, _: Option<(Timestamp, u64)>, _: usize) -> Result<StoredDead, ReadError> {
        Ok(StoredDead::default())
    }

    fn due(&mut self, _: TopicId, edges: &[Timestamp]) -> Result<Vec<u64>, ReadError> {
        Ok(vec![0; edges.len().saturating_sub(1)])
    }

    fn first_due(&mut self, _: TopicId, _: (Timestamp, u64)) -> Result<FirstInPages, ReadError> {
        Ok(FirstInPages { due: Vec::new(), is_all: true })
    }

    fn run(&self) -> u64 {
        0
    }
}

/// What the load thread can be told.
pub(super) enum LoadInput {
    /// The pages have changed.
    Delta(Arc<DirectoryDelta>),
    /// Read this.
    Load(Load),
    /// That is damaged.
    Avoid(DamagedPart),
}

/// The load thread.
pub(super) struct Loading {
    pub(super) pages: Box<dyn Reads>,
    pub(super) inbox: Receiver<LoadInput>,
    pub(super) owner: Sender<Input>,
    pub(super) signals: Arc<Signals>,
}

impl Loading {
    /// Reads what is asked for until nobody can ask any more.
    pub(super) fn run(mut self) {
        while let Ok(input) = self.inbox.recv()
            && self.step(input).is_continue()
        {}
    }

    /// Does what it is told. Breaks if nobody wants to know, and when the page store has failed: then so has the engine.
    pub(super) fn step(&mut self, input: LoadInput) -> ControlFlow<()> {
        match input {
            LoadInput::Delta(delta) => self.pages.apply(&delta),
            LoadInput::Avoid(part) => self.pages.avoid(&part),
            LoadInput::Load(load) => {
                let result = self.pages.load(load);
                if let Err(failed @ ReadError::Failed { .. }) = result {
                    self.signals.fail(&failed.to_string());
                    let _ended = self.owner.send(Input::Stop);
                    return ControlFlow::Break(());
                }
                tell_damage(&mut *self.pages, &self.owner)?;
                return tell(&self.owner, Input::Loaded(load, result));
            }
        }
        ControlFlow::Continue(())
    }
}

/// Tells the owner what was found damaged. Breaks if it has ended.
pub(super) fn tell_damage(pages: &mut dyn Reads, owner: &Sender<Input>) -> ControlFlow<()> {
    let damaged = pages.take_damaged();
    if damaged.is_empty() { ControlFlow::Continue(()) } else { tell(owner, Input::Damaged(damaged)) }
}

fn tell(owner: &Sender<Input>, input: Input) -> ControlFlow<()> {
    if owner.send(input).is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}
