//! A round: what one turn of the owner changed, and what may be let out once that is durable.

use std::sync::mpsc::Sender;

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::input::{Fetched, Input, Results, Show};
use crate::queue::change::Change;
use crate::queue::command::Delivery;
use crate::queue::receipt::Receipt;
use crate::store::Snapshot;

/// Takes a snapshot to whoever waits for it.
pub(super) type SnapshotReply = oneshot::Sender<Snapshot>;

/// The work of one turn.
#[derive(Default)]
pub(super) struct Round {
    /// To be made durable, atomically and in order.
    pub(super) changes: Vec<Change>,
    /// To be let out afterwards, in order.
    pub(super) releases: Vec<Release>,
    /// Nothing comes after it.
    pub(super) is_last: bool,
    /// The journal's generation ends with it.
    pub(super) is_freeze: bool,
    /// A snapshot is wanted of the moment at which that generation ends.
    pub(super) snapshot: Option<SnapshotReply>,
}

impl Round {
    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.releases.is_empty() && !self.is_last && !self.is_freeze
    }
}

/// Something that waits for a commit. Dropping it tells its receiver that there is no answer.
pub(super) enum Release {
    /// Answers of a request, with the permit that admitted it.
    Results(oneshot::Sender<Results>, Results, OwnedSemaphorePermit),
    /// Deliveries to a stream.
    Batch(mpsc::UnboundedSender<Vec<Delivery>>, Vec<Delivery>),
    /// The answer to a fetch.
    Fetched(oneshot::Sender<Fetched>, Fetched),
    /// An answer to something that only looked.
    Show(Show, Option<OwnedSemaphorePermit>),
}

impl Release {
    /// Lets it out. Deliveries that nobody takes any more go back to the owner.
    pub(super) fn let_go(self, owner: &Sender<Input>) {
        match self {
            // A caller that does not wait any more does not want to know.
            Self::Results(reply, results, permit) => {
                let _unwanted = reply.send(results);
                drop(permit);
            }
            Self::Batch(stream, deliveries) => {
                if let Err(error) = stream.send(deliveries) {
                    give_back(owner, &error.0);
                }
            }
            Self::Fetched(reply, fetched) => {
                if let Err(Ok(deliveries)) = reply.send(fetched) {
                    give_back(owner, &deliveries);
                }
            }
            Self::Show(show, permit) => {
                show();
                drop(permit);
            }
        }
    }
}

/// Tells the owner that these deliveries were not handed over. After its end nobody needs to know: a lease
/// that was written down stays valid until it expires.
pub(super) fn give_back(owner: &Sender<Input>, deliveries: &[Delivery]) {
    if !deliveries.is_empty() {
        let _ended = owner.send(Input::Return(receipts(deliveries)));
    }
}

pub(super) fn receipts(deliveries: &[Delivery]) -> Vec<Receipt> {
    deliveries.iter().map(|delivery| delivery.receipt).collect()
}
