//! Reading messages from the pages while the folder writes: what memory has let go comes back through here.
//!
//! A reader sees the pages as of one fold and follows with [`Reader::apply`]. Pages never change and their keys
//! are never used twice, so as long as what the reader knows exists, what it reads is of that fold.

use std::sync::Arc;

use crate::queue::far::{Load, Loaded, Missing};
use crate::queue::message::{Message, Place, TopicId};
use crate::queue::time::Timestamp;

use super::directory::{Directory, DirectoryDelta};
use super::home::HomeLock;
use super::kv::KvRead;
use super::page::PagesError;

/// A part of the pages cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// A fold or a compaction that this reader was not told of has removed what it knows: apply what was
    /// changed, and ask again.
    #[error("the pages have changed")]
    Overtaken,
    /// What is stored there is damaged.
    #[error("the pages are damaged: {what}")]
    Damaged {
        /// What and where.
        what: String,
    },
}

/// Reads messages from the pages, on any thread.
pub struct Reader {
    kv: Box<dyn KvRead>,
    directory: Directory,
    fold: u64,
    _lock: Option<Arc<HomeLock>>,
}

impl Reader {
    pub(super) fn new(kv: Box<dyn KvRead>, directory: Directory, fold: u64, lock: Option<Arc<HomeLock>>) -> Self {
        Self { kv, directory, fold, _lock: lock }
    }

    /// The fold whose pages it reads.
    pub fn fold(&self) -> u64 {
        self.fold
    }

    /// Follows a fold or a compaction. Every one is to be applied, in order.
    pub fn apply(&mut self, delta: &DirectoryDelta) {
        self.directory.apply(delta);
        self.fold = delta.fold();
    }

    /// The waiting messages of a topic in their order, from a place in it on. One call reads a bounded number of
    /// pages, so it may give fewer messages than asked for and less than there are; the frontier is then how far
    /// it came.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn load(&mut self, load: Load) -> Result<Loaded, ReadError> {
        let order = |message: &Message| (message.progress.due_at, message.id.arrival);
        let mut messages = self.all(load.topic)?;
        messages.retain(|message| message.progress.dead.is_none() && order(message) >= load.from);
        messages.sort_by_key(order);
        let frontier = messages.get(load.max).map(order);
        messages.truncate(load.max);
        Ok(Loaded { load, messages, frontier })
    }

    /// The message that a command names. `None`: there is none.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn find(&mut self, missing: &Missing) -> Result<Option<Message>, ReadError> {
        let mut messages = self.all(missing.topic)?;
        messages.retain(|message| {
            missing.candidates.contains(&(message.id.arrival, message.place()))
                && missing.key.as_ref().is_none_or(|key| message.content.key.as_ref() == Some(key))
        });
        Ok(messages.into_iter().next())
    }

    /// Up to `limit` dead letters of a topic, by time of death and arrival number, from after `after` on.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn dead(
        &mut self,
        topic: TopicId,
        after: Option<(Timestamp, u64)>,
        limit: usize,
    ) -> Result<Vec<Message>, ReadError> {
        let order = |message: &Message| (message.progress.dead.map(|(_, at)| at), message.id.arrival);
        let mut messages = self.all(topic)?;
        messages.retain(|message| {
            matches!(message.place(), Place::Dead(at) if after.is_none_or(|after| (at, message.id.arrival) > after))
        });
        messages.sort_by_key(order);
        messages.truncate(limit);
        Ok(messages)
    }

    /// How many waiting messages of a topic are at or after `from` in its order and due before `until`, exactly.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn due_counts(&mut self, topic: TopicId, from: (Timestamp, u64), until: Timestamp) -> Result<u64, ReadError> {
        let mut messages = self.all(topic)?;
        messages.retain(|message| {
            let due = message.progress.due_at;
            message.progress.dead.is_none() && (due, message.id.arrival) >= from && due < until
        });
        Ok(messages.len() as u64)
    }

    /// How many waiting messages of a topic fall due in each span of `bucket_ms` from `from` on, over `buckets`
    /// spans, by the directory alone: within a page the messages are taken to be spread evenly. All of the topic
    /// together is exact.
    pub fn timeline(&self, topic: TopicId, from: Timestamp, bucket_ms: u64, buckets: usize) -> Vec<u64> {
        let mut counts = vec![0; buckets];
        for message in self.all(topic).unwrap_or_default() {
            let due = message.progress.due_at;
            let bucket = usize::try_from(due.since(from) / bucket_ms).unwrap_or(usize::MAX);
            if let Some(count) = counts.get_mut(bucket).filter(|_| message.progress.dead.is_none() && due >= from) {
                *count += 1;
            }
        }
        counts
    }

    fn all(&self, topic: TopicId) -> Result<Vec<Message>, ReadError> {
        let mut messages = Vec::new();
        let read = self.directory.each_message(&*self.kv, &mut |message| {
            if message.id.topic == topic {
                messages.push(message);
            }
        });
        read.map_err(|error: PagesError| ReadError::Damaged { what: error.to_string() })?;
        Ok(messages)
    }
}
