//! Deliveries and how they are settled: one by one over their stream, or many in one call.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::consume::{Settlement, Settler};
use super::convert::{span_of, timestamp, timestamp_or_zero};
use super::{Client, Error};
use crate::pb;
use crate::queue::time::Timestamp;

/// One message, leased to this consumer until it is settled or the lease ends.
///
/// Dropping it settles nothing: the lease runs until its deadline, or until the consumer's stream ends.
#[derive(Debug)]
pub struct Delivery {
    /// The topic.
    pub topic: String,
    /// The message id.
    pub id: String,
    /// The token of this lease; needed only for [`Client::ack`] and its like.
    pub receipt: Bytes,
    /// The business key.
    pub key: Option<String>,
    /// The body.
    pub body: Bytes,
    /// The headers.
    pub headers: BTreeMap<String, String>,
    /// The attempt that this delivery belongs to, 1-based since produce or redrive.
    pub attempt: u32,
    /// Attempts after which the message is dead.
    pub max_attempts: u32,
    /// How many times the message has been leased, this time included.
    pub delivery: u32,
    /// When it was due.
    pub due_at: Timestamp,
    /// When the broker leased it, never before `due_at`. The difference is the lateness.
    pub delivered_at: Timestamp,
    /// When the lease ends unless it is settled or extended.
    pub lease_deadline: Timestamp,
    /// The message may have been delivered before.
    pub redelivered: bool,
    /// When it was produced.
    pub produced_at: Timestamp,
    settler: Settler,
}

/// The ack won: the message is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acked {
    /// This receipt had acked it before.
    pub repeated: bool,
}

/// The nack was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nacked {
    /// It is due again then.
    Waiting(Timestamp),
    /// It is dead: to be reconciled.
    Dead,
    /// It had been cancelled while it was leased, and is gone.
    Cancelled,
}

/// Why a delivery is not done, and when to try again.
#[derive(Clone, Debug)]
pub struct Nack(pb::NackItem);

impl Nack {
    /// No definite answer yet: the attempt is spent, the next delay tier follows.
    #[must_use]
    pub fn not_yet() -> Self {
        Self::because(pb::NackReason::NotYet)
    }

    /// The check itself broke: retried within the attempt, along the topic's error schedule.
    #[must_use]
    pub fn failed() -> Self {
        Self::because(pb::NackReason::Failed)
    }

    /// Give up at once: the message is dead, to be reconciled.
    #[must_use]
    pub fn dead() -> Self {
        Self::because(pb::NackReason::Dead)
    }

    /// A text for people, kept in the attempt history; at most 256 bytes.
    #[must_use]
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.0.text = text.into();
        self
    }

    /// Waits this long instead of the tier, once.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.0.delay = Some(span_of(delay));
        self
    }

    fn because(reason: pb::NackReason) -> Self {
        Self(pb::NackItem { reason: reason.into(), ..pb::NackItem::default() })
    }

    fn of(self, receipt: Bytes) -> pb::NackItem {
        pb::NackItem { receipt, ..self.0 }
    }
}

impl Delivery {
    pub(super) fn new(wire: pb::Delivery, settler: Settler) -> Self {
        Self {
            due_at: timestamp_or_zero(wire.due_at.as_ref()),
            delivered_at: timestamp_or_zero(wire.delivered_at.as_ref()),
            lease_deadline: timestamp_or_zero(wire.lease_deadline.as_ref()),
            produced_at: timestamp_or_zero(wire.produced_at.as_ref()),
            topic: wire.topic,
            id: wire.id,
            receipt: wire.receipt,
            key: (!wire.key.is_empty()).then_some(wire.key),
            body: wire.body,
            headers: wire.headers.into_iter().collect(),
            attempt: wire.attempt,
            max_attempts: wire.max_attempts,
            delivery: wire.delivery,
            redelivered: wire.redelivered,
            settler,
        }
    }

    /// Milliseconds from the due time to the delivery.
    #[must_use]
    pub fn lateness_ms(&self) -> u64 {
        self.delivered_at.since(self.due_at)
    }

    /// How long the lease lasted when it was given.
    #[must_use]
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_deadline.since(self.delivered_at))
    }

    /// Done: the message is gone once this answers.
    ///
    /// # Errors
    /// `LEASE_LOST` when the lease had ended, or an answer that never came; an ack may be repeated.
    pub async fn ack(&self) -> Result<Acked, Error> {
        acked(self.settler.settle(Settlement::Ack(self.receipt.clone())).await?)
    }

    /// Not done: the message waits, or is dead, once this answers.
    ///
    /// # Errors
    /// `LEASE_LOST` when the lease had ended (also when a repeated nack had won before), a bad field, or an
    /// answer that never came.
    pub async fn nack(&self, nack: Nack) -> Result<Nacked, Error> {
        nacked(self.settler.settle(Settlement::Nack(nack.of(self.receipt.clone()))).await?)
    }

    /// Makes the lease last `lease` from now, or the topic's lease time; answers the new deadline.
    ///
    /// # Errors
    /// As for [`Delivery::ack`].
    pub async fn extend(&self, lease: Option<Duration>) -> Result<Timestamp, Error> {
        extended(self.settler.settle(Settlement::Extend(extension(self.receipt.clone(), lease))).await?)
    }
}

/// What a long poll asks for.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// The topic.
    pub topic: String,
    /// Most messages, 1 to 1,000.
    pub max_messages: u32,
    /// How long to wait for the first, at most 60 s.
    pub wait: Duration,
    /// Lease time; `None`: the topic's.
    pub lease: Option<Duration>,
    /// A name for people, shown in the attempt history.
    pub consumer: String,
}

impl Client {
    /// Leases messages that are ready, waiting for the first; empty when nothing became ready in time.
    ///
    /// # Errors
    /// The topic does not exist, a bad field, or a call that broke.
    pub async fn fetch(&self, fetch: Fetch) -> Result<Vec<Delivery>, Error> {
        let wait = fetch.wait;
        let request = pb::FetchRequest {
            topic: fetch.topic,
            max_messages: fetch.max_messages,
            wait: Some(span_of(wait)),
            lease: fetch.lease.map(span_of),
            consumer: fetch.consumer,
        };
        let response = self.queue().fetch(self.request_lasting(request, wait)).await?.into_inner();
        let settler = Settler::Calls(self.clone());
        Ok(response.deliveries.into_iter().map(|wire| Delivery::new(wire, settler.clone())).collect())
    }

    /// Acks 1 to 1,000 receipts in one call; the results are in their order.
    ///
    /// # Errors
    /// The call as a whole failed.
    pub async fn ack(&self, receipts: Vec<Bytes>) -> Result<Vec<Result<Acked, Error>>, Error> {
        let request = self.request(pb::AckRequest { receipts });
        let results = self.queue().ack(request).await?.into_inner().results;
        Ok(results.into_iter().map(acked).collect())
    }

    /// Nacks 1 to 1,000 receipts in one call; the results are in their order.
    ///
    /// # Errors
    /// The call as a whole failed.
    pub async fn nack(&self, nacks: Vec<(Bytes, Nack)>) -> Result<Vec<Result<Nacked, Error>>, Error> {
        let nacks = nacks.into_iter().map(|(receipt, nack)| nack.of(receipt)).collect();
        let results = self.queue().nack(self.request(pb::NackRequest { nacks })).await?.into_inner().results;
        Ok(results.into_iter().map(nacked).collect())
    }

    /// Extends 1 to 1,000 leases in one call, to `lease` from now each, or to the topic's lease time; answers the
    /// new deadlines in their order.
    ///
    /// # Errors
    /// The call as a whole failed.
    pub async fn extend(
        &self,
        receipts: Vec<Bytes>,
        lease: Option<Duration>,
    ) -> Result<Vec<Result<Timestamp, Error>>, Error> {
        let extends = receipts.into_iter().map(|receipt| extension(receipt, lease)).collect();
        let results = self.queue().extend(self.request(pb::ExtendRequest { extends })).await?.into_inner().results;
        Ok(results.into_iter().map(extended).collect())
    }

    /// Settles one lease by a call of its own.
    pub(super) async fn settle(&self, settlement: Settlement) -> Result<pb::SettlementResult, Error> {
        let mut queue = self.queue();
        let results = match settlement {
            Settlement::Ack(receipt) => {
                queue.ack(self.request(pb::AckRequest { receipts: vec![receipt] })).await?.into_inner().results
            }
            Settlement::Nack(nack) => {
                queue.nack(self.request(pb::NackRequest { nacks: vec![nack] })).await?.into_inner().results
            }
            Settlement::Extend(extend) => {
                queue.extend(self.request(pb::ExtendRequest { extends: vec![extend] })).await?.into_inner().results
            }
        };
        results.into_iter().next().ok_or_else(|| Error::protocol("an answer without a result"))
    }
}

fn extension(receipt: Bytes, lease: Option<Duration>) -> pb::ExtendItem {
    pb::ExtendItem { receipt, lease: lease.map(span_of) }
}

fn acked(result: pb::SettlementResult) -> Result<Acked, Error> {
    match result.result {
        Some(pb::settlement_result::Result::Acked(acked)) => Ok(Acked { repeated: acked.repeated }),
        other => Err(refused(other)),
    }
}

fn nacked(result: pb::SettlementResult) -> Result<Nacked, Error> {
    match result.result {
        Some(pb::settlement_result::Result::Nacked(nacked)) if nacked.dead => Ok(Nacked::Dead),
        Some(pb::settlement_result::Result::Nacked(nacked)) if nacked.cancelled => Ok(Nacked::Cancelled),
        Some(pb::settlement_result::Result::Nacked(nacked)) => {
            Ok(Nacked::Waiting(timestamp_or_zero(nacked.due_at.as_ref())))
        }
        other => Err(refused(other)),
    }
}

fn extended(result: pb::SettlementResult) -> Result<Timestamp, Error> {
    match result.result {
        Some(pb::settlement_result::Result::Extended(pb::Extended { lease_deadline: Some(at) })) => Ok(timestamp(&at)),
        other => Err(refused(other)),
    }
}

fn refused(result: Option<pb::settlement_result::Result>) -> Error {
    match result {
        Some(pb::settlement_result::Result::Error(status)) => status.into(),
        _ => Error::protocol("a settlement was answered with the result of another"),
    }
}
