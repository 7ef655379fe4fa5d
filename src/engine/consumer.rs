//! The caller's side of a consume stream and of a fetch: what happens when they are dropped.
//!
//! Deliveries must not get lost on the way: what was leased and never handed to the caller is given back, whether
//! it is still in a channel or in a commit.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::handle::Shared;
use super::input::{FetchId, Fetched, Input};
use super::round::{give_back, receipts};
use crate::queue::command::{ConsumerId, Delivery};
use crate::queue::values::TopicName;

/// An open consume stream. Dropping it ends the stream: its leases are given back, unless the broker is
/// draining; then those that were read stay valid, also over the restart.
pub struct Consumer {
    id: ConsumerId,
    shared: Arc<Shared>,
    batches: mpsc::UnboundedReceiver<Vec<Delivery>>,
    flow: Arc<Flow>,
    _permit: OwnedSemaphorePermit,
}

/// What reader and owner tell each other about a stream.
#[derive(Default)]
pub(super) struct Flow {
    /// Deliveries that were leased and not read.
    unread: AtomicUsize,
    /// The owner gives nothing more until the reader says that it has caught up.
    behind: AtomicBool,
    /// The stream has ended because that topic was deleted.
    deleted: OnceLock<TopicName>,
}

/// The owner's end of a stream.
pub(super) struct Delivered {
    pub(super) batches: mpsc::UnboundedSender<Vec<Delivery>>,
    flow: Arc<Flow>,
}

impl Delivered {
    /// How many more may be unread, of `most`. If none, the stream is behind from now on.
    pub(super) fn room(&self, most: usize) -> usize {
        let room = || most.saturating_sub(self.flow.unread.load(Ordering::SeqCst));
        if room() == 0 {
            // Said first and looked again: a reader that caught up in between either sees it or is seen.
            self.flow.behind.store(true, Ordering::SeqCst);
        }
        room()
    }

    /// The stream ends, because a topic of it was deleted.
    pub(super) fn end(self, topic: TopicName) {
        // A second topic of the stream changes nothing: the stream is gone.
        let _first = self.flow.deleted.set(topic);
    }

    /// So many were leased.
    pub(super) fn leased(&self, count: usize) {
        self.flow.unread.fetch_add(count, Ordering::SeqCst);
    }
}

impl Consumer {
    /// The two ends of a stream that is not attached yet.
    pub(super) fn open(id: ConsumerId, shared: Arc<Shared>, permit: OwnedSemaphorePermit) -> (Self, Delivered) {
        let (sender, batches) = mpsc::unbounded_channel();
        let flow = Arc::new(Flow::default());
        let consumer = Self { id, shared, batches, flow: Arc::clone(&flow), _permit: permit };
        (consumer, Delivered { batches: sender, flow })
    }

    /// The deliveries of one round. `None`: the stream has ended, because a topic of it was deleted, or the broker is
    /// draining or has failed.
    pub async fn next(&mut self) -> Option<Vec<Delivery>> {
        let batch = self.batches.recv().await?;
        self.flow.unread.fetch_sub(batch.len(), Ordering::SeqCst);
        if self.flow.behind.swap(false, Ordering::SeqCst) {
            self.shared.tell(Input::CaughtUp(self.id));
        }
        Some(batch)
    }

    /// The topic whose deletion has ended the stream.
    #[must_use]
    pub fn deleted_topic(&self) -> Option<&TopicName> {
        self.flow.deleted.get()
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.batches.close();
        let mut unread = Vec::new();
        while let Ok(batch) = self.batches.try_recv() {
            unread.extend(receipts(&batch));
        }
        self.shared.tell(Input::Detach { consumer: self.id, unread });
    }
}

/// A fetch that waits for its answer.
pub(super) struct FetchWait {
    pub(super) id: FetchId,
    pub(super) shared: Arc<Shared>,
    pub(super) reply: oneshot::Receiver<Fetched>,
    pub(super) is_answered: bool,
    pub(super) _permit: OwnedSemaphorePermit,
}

impl FetchWait {
    /// The answer; `None` if the engine has ended without one.
    pub(super) async fn answer(&mut self) -> Option<Fetched> {
        let answer = (&mut self.reply).await.ok();
        self.is_answered = true;
        answer
    }
}

impl Drop for FetchWait {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        self.reply.close();
        match self.reply.try_recv() {
            Ok(Ok(deliveries)) => give_back(&self.shared.owner, &deliveries),
            Ok(Err(_)) => {}
            Err(_) => self.shared.tell(Input::FetchDropped(self.id)),
        }
    }
}
