//! What the owner thread can be told.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::commit::Folded;
use super::consumer::Delivered;
use super::handle::{Fetch, Window};
use super::look::Question;
use super::round::SnapshotReply;
use super::sight::Sight;
use crate::queue::command::{Command, ConsumerId, Delivery, FindRejection, Rejection, Reply};
use crate::queue::far::{Load, Loaded};
use crate::queue::quarantine::DamagedPart;
use crate::queue::receipt::Receipt;
use crate::queue::values::ConsumerName;
use crate::store::{DirectoryDelta, ReadError};

/// Names a waiting fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FetchId(pub(super) u64);

/// Answers to the commands of one request, in order.
pub(super) type Results = Vec<Result<Reply, Rejection>>;

/// Answer to a fetch.
pub(super) type Fetched = Result<Vec<Delivery>, FindRejection>;

/// Looks at the queue and returns what shows the answer, once that may be shown.
pub(super) type View = Box<dyn FnOnce(&Sight<'_>) -> Show + Send>;

/// Shows an answer.
pub(super) type Show = Box<dyn FnOnce() + Send>;

/// One thing told to the owner. What is bounded by the permit of a semaphore says so.
pub(super) enum Input {
    /// Apply commands; bounded by `permit`.
    Commands { commands: Vec<Command>, reply: oneshot::Sender<Results>, permit: OwnedSemaphorePermit },
    /// Look at something; bounded by `permit`.
    View { view: View, permit: OwnedSemaphorePermit },
    /// Pass it to the look thread; bounded by the asker's permit.
    Look(Question),
    /// Wait for messages; bounded by the number of waiters.
    Fetch { id: FetchId, fetch: Fetch, reply: oneshot::Sender<Fetched> },
    /// A fetch was given up.
    FetchDropped(FetchId),
    /// A consume stream begins; bounded by the number of streams.
    Attach {
        consumer: ConsumerId,
        name: ConsumerName,
        windows: Vec<Window>,
        delivered: Delivered,
        reply: oneshot::Sender<Result<(), FindRejection>>,
    },
    /// A stream that was behind has read what it had.
    CaughtUp(ConsumerId),
    /// A consume stream ended; these receipts were never read.
    Detach { consumer: ConsumerId, unread: Vec<Receipt> },
    /// These deliveries could not be handed over.
    Return(Vec<Receipt>),
    /// End the generation as soon as no other is being folded, and take a snapshot of that moment; one at a time.
    Snapshot(SnapshotReply),
    /// A fold is durable and noted.
    Folded(Folded),
    /// The pages were cleaned up.
    Compacted(Arc<DirectoryDelta>),
    /// A load has ended.
    Loaded(Load, Result<Loaded, ReadError>),
    /// The load thread or a backup has found damage.
    Damaged(Vec<DamagedPart>),
    /// Do a round now.
    Wake,
    /// End streams and fetches and lease nothing more.
    Drain,
    /// Make the last commit and end. Nothing is admitted any more and everything admitted is answered.
    Close,
    /// End at once, as a crash would.
    Stop,
}
