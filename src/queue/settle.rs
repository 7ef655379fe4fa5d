//! Settling deliveries: ack, nack, and expiry of the lease. Exactly one of them wins.

use super::change::Outcome;
use super::command::{Nack, NackReason, Nacked, Reply, SettleRejection};
use super::entry::{Entry, State};
use super::limits::Limits;
use super::message::HistoryEntry;
use super::receipt::Receipt;
use super::settings::too_long;
use super::state::{Effects, Queue};
use super::time::Timestamp;
use super::transition::{self, LeaseEnd, Verdict, attempt};
use super::values::{Invalid, NackText};

impl Queue {
    pub(super) fn ack(
        &mut self,
        now: Timestamp,
        receipt: &Receipt,
        effects: &mut Effects,
    ) -> Result<Reply, SettleRejection> {
        if self.acked_before(now, receipt) {
            return Ok(Reply::Acked { repeated: true });
        }
        let index = self.leased(now, receipt)?;
        self.lift(index, effects);
        self.finish(now, index, Outcome::Acked, Some((receipt.delivery, receipt.epoch)), effects);
        Ok(Reply::Acked { repeated: false })
    }

    pub(super) fn nack(
        &mut self,
        now: Timestamp,
        nack: Nack,
        effects: &mut Effects,
    ) -> Result<Nacked, SettleRejection> {
        let end = match nack.reason {
            NackReason::NotYet(wait) => LeaseEnd::NotYet(check_wait(wait, &self.limits)?),
            NackReason::Failed(wait) => LeaseEnd::Failed(check_wait(wait, &self.limits)?),
            NackReason::Dead => LeaseEnd::Dead,
        };
        let index = self.leased(now, &nack.receipt)?;
        Ok(self.end_lease(now, index, end, Some(nack.text), effects))
    }

    /// The deadline of a lease has come.
    pub(super) fn expire(&mut self, now: Timestamp, index: u32, effects: &mut Effects) {
        if let State::Leased(lease) = &mut self.entries[index as usize].state {
            lease.timer = None;
        }
        self.end_lease(now, index, LeaseEnd::Expired, None, effects);
    }

    /// Ends the lease of a message otherwise than by ack, and puts the message where its transition says.
    pub(super) fn end_lease(
        &mut self,
        now: Timestamp,
        index: u32,
        end: LeaseEnd,
        text: Option<NackText>,
        effects: &mut Effects,
    ) -> Nacked {
        let message = self.message(index);
        let settings = &self.topics[&message.id.topic].record.settings;
        let (progress, verdict) = transition::end_lease(message, settings, now, end);
        let lease = self.held_lease(index);
        let entry = HistoryEntry {
            delivery: lease.delivery,
            attempt: attempt(message),
            delivered_at: lease.delivered_at,
            ended_at: now,
            consumer: lease.consumer_name.clone(),
            outcome: transition::outcome(end),
            text: text.unwrap_or_else(NackText::none),
            next_due_at: (verdict == Verdict::Wait).then_some(progress.due_at),
        };
        self.lift(index, effects);
        match verdict {
            Verdict::Cancelled => {
                self.finish(now, index, Outcome::Cancelled, None, effects);
                Nacked::Cancelled
            }
            Verdict::Dead => {
                self.settle_at(now, index, progress, Some(entry), effects);
                Nacked::Dead
            }
            Verdict::Wait => {
                self.settle_at(now, index, progress, Some(entry), effects);
                Nacked::Waits(progress.due_at)
            }
        }
    }

    /// The leased message that `receipt` gives the right to settle.
    pub(super) fn leased(&self, now: Timestamp, receipt: &Receipt) -> Result<u32, SettleRejection> {
        let id = receipt.id;
        let topic = self.topics.get(&id.topic).ok_or(SettleRejection::NotFound)?;
        let Some(&index) = self.by_arrival.get(&id.arrival) else {
            let gone = topic.ended.by_arrival(id.arrival, &topic.record.settings, now);
            return Err(gone.map_or(SettleRejection::NotFound, |finished| SettleRejection::Gone(finished.outcome)));
        };
        let Entry { message, state, .. } = &self.entries[index as usize];
        match state {
            State::Leased(lease) if (lease.delivery, lease.epoch) == (receipt.delivery, receipt.epoch) => Ok(index),
            _ if message.id != id => Err(SettleRejection::NotFound),
            state => Err(SettleRejection::LeaseLost { state: state.name() }),
        }
    }

    fn acked_before(&self, now: Timestamp, receipt: &Receipt) -> bool {
        self.topics.get(&receipt.id.topic).is_some_and(|topic| {
            let ended = topic.ended.by_arrival(receipt.id.arrival, &topic.record.settings, now);
            ended.is_some_and(|finished| finished.receipt == Some((receipt.delivery, receipt.epoch)))
        })
    }
}

fn check_wait(wait: Option<u64>, limits: &Limits) -> Result<Option<u64>, Invalid> {
    match wait {
        Some(ms) if ms > limits.max_delay_ms => Err(too_long("delay", ms, limits)),
        wait => Ok(wait),
    }
}
