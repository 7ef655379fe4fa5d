//! Consuming by push: a stream with windows, settled over the same stream, opened again when it breaks.
//!
//! One task owns the stream. It queues what the broker delivers, gathers the settlements that are waiting into
//! one frame, and hands each answer to its caller.
//!
//! When a stream breaks, its leases go back to the broker, so deliveries that the program has not seen yet are
//! thrown away: settling them could only fail. When the broker *drains* (it is shut down in order), the leases
//! stay valid, and these deliveries are kept. Settlements without an answer are sent again on the next stream:
//! a repeated ack is answered as the first, and a receipt that is void by then is answered `LEASE_LOST`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::convert::span_of;
use super::deliver::Delivery;
use super::stream::Driver;
use super::{Client, Error};
use crate::pb;

/// Settlements that may wait for the task of the stream; more make their callers wait.
const SETTLEMENTS_WAITING: usize = 4096;

/// How many messages of a topic a consumer holds at once.
#[derive(Clone, Debug)]
pub struct Window {
    topic: String,
    messages: u32,
    lease: Option<Duration>,
}

impl Window {
    /// At most `messages` of `topic` at once, 1 to 10,000.
    pub fn new(topic: impl Into<String>, messages: u32) -> Self {
        Self { topic: topic.into(), messages, lease: None }
    }

    /// A lease time other than the topic's.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        Self { lease: Some(lease), ..self }
    }

    fn into_wire(self) -> pb::TopicWindow {
        pb::TopicWindow { topic: self.topic, window: self.messages, lease: self.lease.map(span_of) }
    }
}

/// A consume stream that opens itself again. Several tasks may settle its deliveries at once.
///
/// Dropping it ends the stream once the deliveries it handed out are dropped too; the leases of what it had not
/// handed out go back to the broker.
#[derive(Debug)]
pub struct Consumer {
    deliveries: mpsc::UnboundedReceiver<Arrived>,
    settlements: mpsc::Sender<Pending>,
    void_before: Arc<AtomicU64>,
    ended: oneshot::Receiver<()>,
    timeout: Duration,
}

/// What the task of the stream hands to the consumer. The windows bound how many can be waiting.
#[derive(Debug)]
pub(super) enum Arrived {
    /// A delivery of the stream with this number.
    Delivery(u64, Box<pb::Delivery>),
    /// The stream cannot be opened again.
    Failed(Error),
}

/// One settlement to be sent.
#[derive(Clone, Debug)]
pub(super) enum Settlement {
    Ack(Bytes),
    Nack(pb::NackItem),
    Extend(pb::ExtendItem),
}

/// A settlement and the caller that waits for its answer.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) settlement: Settlement,
    pub(super) reply: oneshot::Sender<pb::SettlementResult>,
}

/// How the deliveries of a consumer or a fetch are settled.
#[derive(Clone, Debug)]
pub(super) enum Settler {
    /// Over the stream; the caller waits at most this long.
    Stream(mpsc::Sender<Pending>, Duration),
    /// By calls of their own.
    Calls(Client),
}

impl Client {
    /// Opens a consume stream. `consumer` is a name for people, shown in the attempt history.
    ///
    /// # Errors
    /// The stream could not be opened the first time: a topic does not exist, a bad window, no connection.
    pub async fn consume(&self, consumer: &str, windows: impl IntoIterator<Item = Window>) -> Result<Consumer, Error> {
        let topics = windows.into_iter().map(Window::into_wire).collect();
        let start = pb::ConsumeStart { consumer: consumer.to_owned(), topics };
        let (arrived, deliveries) = mpsc::unbounded_channel();
        let (settlements, waiting) = mpsc::channel(SETTLEMENTS_WAITING);
        let (alive, ended) = oneshot::channel();
        let void_before = Arc::new(AtomicU64::new(0));
        let mut driver = Driver::new(self.clone(), start, arrived, waiting, Arc::clone(&void_before));
        let first = driver.open().await?;
        tokio::spawn(async move {
            driver.run(first).await;
            drop(alive);
        });
        Ok(Consumer { deliveries, settlements, void_before, ended, timeout: self.options().request_timeout })
    }
}

impl Consumer {
    /// The next delivery; waits through broken streams and restarts of the broker. Cancel safe.
    ///
    /// # Errors
    /// The stream cannot be opened again, for a reason that waiting does not mend (the topic is gone). The
    /// consumer has ended then.
    pub async fn next(&mut self) -> Result<Delivery, Error> {
        loop {
            match self.deliveries.recv().await {
                Some(Arrived::Delivery(stream, wire)) => {
                    if stream >= self.void_before.load(Ordering::Acquire) {
                        return Ok(Delivery::new(*wire, Settler::Stream(self.settlements.clone(), self.timeout)));
                    }
                }
                Some(Arrived::Failed(error)) => return Err(error),
                None => return Err(Error::ended("the consumer has ended")),
            }
        }
    }

    /// Takes no more deliveries, waits until those handed out are settled and dropped, and ends the stream.
    pub async fn close(self) {
        let Self { deliveries, settlements, ended, .. } = self;
        drop(deliveries);
        drop(settlements);
        // The sender is never used, only dropped when the task ends.
        let _ = ended.await;
    }
}

impl Settler {
    pub(super) async fn settle(&self, settlement: Settlement) -> Result<pb::SettlementResult, Error> {
        match self {
            Self::Calls(client) => client.settle(settlement).await,
            Self::Stream(settlements, timeout) => {
                let (reply, answer) = oneshot::channel();
                settlements
                    .send(Pending { settlement, reply })
                    .await
                    .map_err(|_| Error::ended("the consumer has ended"))?;
                match tokio::time::timeout(*timeout, answer).await {
                    Ok(Ok(result)) => Ok(result),
                    Ok(Err(_)) => Err(Error::unanswered("the consumer ended before the settlement was answered")),
                    Err(_) => Err(Error::unanswered("the settlement was not answered in time")),
                }
            }
        }
    }
}

/// Settlements in the order in which a frame carries them and its answer lists their results.
pub(super) fn in_frame_order(pending: Vec<Pending>) -> Vec<Pending> {
    let rank = |pending: &Pending| match pending.settlement {
        Settlement::Ack(_) => 0,
        Settlement::Nack(_) => 1,
        Settlement::Extend(_) => 2,
    };
    let mut ordered = pending;
    ordered.sort_by_key(rank);
    ordered
}

/// The frame that carries `pending`, which is in frame order.
pub(super) fn frame(pending: &[Pending]) -> pb::Settlements {
    let mut frame = pb::Settlements::default();
    for Pending { settlement, .. } in pending {
        match settlement.clone() {
            Settlement::Ack(receipt) => frame.acks.push(receipt),
            Settlement::Nack(nack) => frame.nacks.push(nack),
            Settlement::Extend(extend) => frame.extends.push(extend),
        }
    }
    frame
}

/// Hands the results of a frame to those who wait for them; `false` if they do not fit together.
pub(super) fn answer(pending: Vec<Pending>, results: Vec<pb::SettlementResult>) -> bool {
    let fits = pending.len() == results.len();
    for (pending, result) in pending.into_iter().zip(results) {
        // A caller that stopped waiting does not take its answer.
        let _ = pending.reply.send(result);
    }
    fits
}

/// Frames that were sent and not answered, oldest first.
pub(super) type Unanswered = VecDeque<Vec<Pending>>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::settlement_result::Result as Wire;

    #[test]
    fn a_frame_lists_acks_then_nacks_then_extends_and_answers_reach_their_callers() {
        let make = |settlement| {
            let (reply, answer) = oneshot::channel();
            (Pending { settlement, reply }, answer)
        };
        let (extend, mut extend_answer) = make(Settlement::Extend(pb::ExtendItem::default()));
        let (nack, mut nack_answer) = make(Settlement::Nack(pb::NackItem::default()));
        let (ack, mut ack_answer) = make(Settlement::Ack(Bytes::from_static(b"r")));
        let pending = in_frame_order(vec![extend, nack, ack]);
        let sent = frame(&pending);
        assert_eq!((sent.acks.len(), sent.nacks.len(), sent.extends.len()), (1, 1, 1));

        let result = |result| pb::SettlementResult { result: Some(result) };
        let results = vec![
            result(Wire::Acked(pb::Acked { repeated: true })),
            result(Wire::Nacked(pb::Nacked { dead: true, ..pb::Nacked::default() })),
            result(Wire::Extended(pb::Extended::default())),
        ];
        assert!(answer(pending, results));
        let answers = [ack_answer.try_recv(), nack_answer.try_recv(), extend_answer.try_recv()];
        let [Ok(acked), Ok(nacked), Ok(extended)] = answers else { panic!("{answers:?}") };
        assert!(matches!(acked.result, Some(Wire::Acked(pb::Acked { repeated: true }))));
        assert!(matches!(nacked.result, Some(Wire::Nacked(_))));
        assert!(matches!(extended.result, Some(Wire::Extended(_))));
    }
}
