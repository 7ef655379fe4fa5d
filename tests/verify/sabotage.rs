//! The promises that the proxy breaks on purpose.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use duewheel::pb::{self, settlement_result};
use fastrand::Rng;

/// What the proxy does to what passes through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// Nothing.
    None,
    /// Nothing, but some produces stay on the way for a second.
    Slow,
    /// Some produces are answered as stored and are not.
    DropProduce,
    /// Some answers to a produce lack a result.
    DropResult,
    /// Messages are due 100 ms before their time.
    ShortenDelay,
    /// Nacked messages are due after 1 ms.
    ShortenNack,
    /// Some acks are answered and not passed on.
    DropAck,
    /// Some nacks are answered as the death of the message and not passed on.
    DropNackAsDead,
    /// Extends are answered and not passed on.
    DropExtend,
    /// Some cancels are answered and not passed on.
    DropCancel,
    /// Reschedules of messages that are far away are answered and not passed on.
    DropReschedule,
    /// Some deliveries come twice in a row.
    RepeatDelivery,
    /// Every delivery comes twice in a row, the second one flagged.
    RepeatFlagged,
    /// Deliveries come again after their nack was answered, flagged.
    RepeatSettled,
    /// Some attempt numbers are too high by two.
    RaiseAttempt,
    /// Some nacks let the message die at once.
    KillAtNack,
    /// Messages are given more attempts than their topic allows.
    RaiseCap,
    /// Some bodies are changed.
    ChangeBody,
    /// The counts show an ack too many.
    CountAck,
    /// The keys of messages that are over are held.
    KeepKeys,
}

/// Breaks promises at chosen moments.
pub(crate) struct Saboteur {
    sabotage: Sabotage,
    random: Mutex<Rng>,
}

/// What becomes of a frame of settlements.
pub(crate) enum Plan {
    Forward(pb::Settlements),
    Answer(settlement_result::Result),
}

impl Saboteur {
    pub(crate) fn new(sabotage: Sabotage, seed: u64) -> Self {
        Self { sabotage, random: Mutex::new(Rng::with_seed(seed)) }
    }

    /// True in one of so many cases, if this is the sabotage.
    fn strikes(&self, sabotage: Sabotage, one_of: u32) -> bool {
        self.sabotage == sabotage && self.random.lock().expect("no holder panics").u32(0..one_of) == 0
    }

    /// How long a produce stays on the way.
    pub(crate) fn delay(&self) -> Duration {
        if self.strikes(Sabotage::Slow, 5) { Duration::from_secs(1) } else { Duration::ZERO }
    }

    /// True if a message is to be answered as stored and left out; otherwise it may be changed.
    pub(crate) fn drops(&self, message: &mut pb::NewMessage) -> bool {
        if self.strikes(Sabotage::ShortenDelay, 1)
            && let Some(pb::new_message::FirstWait::Delay(delay)) = &mut message.first_wait
        {
            delay.nanos = (delay.nanos - 100_000_000).max(0);
        }
        if self.strikes(Sabotage::RaiseCap, 1) {
            message.max_attempts = 12;
        }
        self.strikes(Sabotage::DropProduce, 40)
    }

    /// True if this message, whose key is used again, is to be told that the key is held.
    pub(crate) fn keeps_key(&self, message: &pb::NewMessage) -> bool {
        self.strikes(Sabotage::KeepKeys, 1) && message.body.is_empty()
    }

    pub(crate) fn results(&self, results: &mut Vec<pb::ProduceResult>) {
        if self.strikes(Sabotage::DropResult, 20) {
            results.pop();
        }
    }

    /// True if a cancel is to be answered as done. One of a message that is far away would leave it there for ever.
    pub(crate) fn drops_cancel(&self, request: &pb::CancelRequest) -> bool {
        !request.when_lease_ends && !is_far(request.message.as_ref()) && self.strikes(Sabotage::DropCancel, 2)
    }

    pub(crate) fn drops_reschedule(&self, request: &pb::RescheduleRequest) -> bool {
        is_far(request.message.as_ref()) && self.strikes(Sabotage::DropReschedule, 1)
    }

    pub(crate) fn plan(&self, mut settlements: pb::Settlements) -> Plan {
        let pb::Settlements { acks, nacks, extends } = &mut settlements;
        match (acks.as_slice(), nacks.as_mut_slice(), extends.as_slice()) {
            ([_], [], []) if self.strikes(Sabotage::DropAck, 10) => {
                return Plan::Answer(settlement_result::Result::Acked(pb::Acked::default()));
            }
            ([], [_], []) if self.strikes(Sabotage::DropNackAsDead, 10) => {
                let dead = pb::Nacked { dead: true, ..pb::Nacked::default() };
                return Plan::Answer(settlement_result::Result::Nacked(dead));
            }
            ([], [], [_]) if self.strikes(Sabotage::DropExtend, 1) => {
                return Plan::Answer(settlement_result::Result::Extended(pb::Extended::default()));
            }
            ([], [nack], []) if self.strikes(Sabotage::ShortenNack, 1) => {
                nack.delay = Some(prost_types::Duration { seconds: 0, nanos: 1_000_000 });
            }
            ([], [nack], []) if self.strikes(Sabotage::KillAtNack, 10) => {
                nack.reason = pb::NackReason::Dead.into();
            }
            _ => {}
        }
        Plan::Forward(settlements)
    }

    pub(crate) fn deliveries(&self, deliveries: Vec<pb::Delivery>) -> Vec<pb::Delivery> {
        let mut passed = Vec::with_capacity(deliveries.len());
        for mut delivery in deliveries {
            if (3..=5).contains(&delivery.attempt) && self.strikes(Sabotage::RaiseAttempt, 3) {
                delivery.attempt += 2;
            }
            if self.strikes(Sabotage::ChangeBody, 20) {
                delivery.body = [&*delivery.body, b"?"].concat().into();
            }
            passed.push(delivery.clone());
            if self.strikes(Sabotage::RepeatDelivery, 20) {
                passed.push(delivery);
            } else if self.strikes(Sabotage::RepeatFlagged, 1) {
                passed.push(pb::Delivery { redelivered: true, ..delivery });
            }
        }
        passed
    }

    pub(crate) fn stats(&self, stats: &mut pb::GetStatsResponse) {
        if self.strikes(Sabotage::CountAck, 1) {
            stats.topics.iter_mut().for_each(|topic| topic.acked += 1);
        }
    }

    /// The deliveries of a stream, kept to come again.
    pub(crate) fn hoard(&self) -> Option<Hoard> {
        (self.sabotage == Sabotage::RepeatSettled).then(Hoard::default)
    }
}

/// Deliveries of one stream by their receipts.
#[derive(Default)]
pub(crate) struct Hoard(HashMap<Bytes, pb::Delivery>);

impl Hoard {
    pub(crate) fn keep(&mut self, deliveries: &[pb::Delivery]) {
        self.0.extend(deliveries.iter().map(|delivery| (delivery.receipt.clone(), delivery.clone())));
    }

    /// The delivery that was nacked and waits now, to be sent again.
    pub(crate) fn settled(&mut self, receipt: &Bytes, result: Option<&pb::SettlementResult>) -> Option<pb::Delivery> {
        let delivery = self.0.remove(receipt)?;
        match result?.result.as_ref()? {
            settlement_result::Result::Nacked(nacked) if !nacked.dead && !nacked.cancelled => {
                Some(pb::Delivery { redelivered: true, ..delivery })
            }
            _ => None,
        }
    }
}

/// The orders that `verify` lets wait for an hour.
fn is_far(message: Option<&pb::MessageRef>) -> bool {
    match message.and_then(|message| message.r#ref.as_ref()) {
        Some(pb::message_ref::Ref::Key(key)) => {
            let number: Option<u64> = key.strip_prefix("order-").and_then(|number| number.parse().ok());
            number.is_some_and(|number| number.is_multiple_of(4))
        }
        _ => false,
    }
}
