//! Each answer is judged when it reaches its client: what it says must be durable already.

use duewheel::queue::change::Outcome;
use duewheel::queue::command::{
    CancelReply, Command, Ending, Nacked, ProduceRejection, Produced, PurgeReply, RedriveReply, Rejection, Reply,
    RescheduleReply,
};
use duewheel::queue::message::MessageId;
use duewheel::queue::receipt::Receipt;
use duewheel::queue::time::Timestamp;

use crate::shadow::{Violation, ensure};
use crate::world::World;

impl World {
    pub(crate) fn judge(&mut self, command: &Command, result: &Result<Reply, Rejection>) -> Result<(), Violation> {
        match (command, result) {
            (Command::Produce(produce), Ok(Reply::Produced(produced))) => {
                self.judge_produced(produced)?;
                let born = &self.shadow.born[&produced.id.arrival];
                if !produced.existing {
                    ensure!(born.content.body == produce.body, "another message was produced");
                    self.confirmed.insert(produced.id.arrival, produce.body.clone());
                } else if produce.dedup_id.is_some() && produce.key.is_none() {
                    ensure!(born.content.body == produce.body, "a dedup id answered with another message");
                    self.confirmed.insert(produced.id.arrival, produce.body.clone());
                    self.coverage.mark("a repeated produce got the first answer");
                }
                Ok(())
            }
            (Command::Produce(produce), Err(Rejection::Produce(rejection))) => {
                // What a dedup id has answered once it answers again: a refusal of its repetition would be another one.
                if let ProduceRejection::DedupIdReused { first } = rejection {
                    let born = &self.shadow.born[&first.arrival];
                    let is_same = produce.key.is_none() && born.content.body == produce.body;
                    ensure!(!is_same, "the same content is called another");
                }
                Ok(())
            }
            (Command::Ack(receipt), Ok(Reply::Acked { .. })) => self.judge_acked(receipt),
            (Command::Nack(nack), Ok(Reply::Nacked(nacked))) => self.judge_nacked(&nack.receipt, *nacked),
            (Command::Extend { receipt, .. }, Ok(Reply::Extended(until))) => {
                self.judge_extended(receipt, *until);
                Ok(())
            }
            (Command::Cancel { .. }, Ok(Reply::Cancel(reply))) => self.judge_cancel(command, reply),
            (_, Ok(Reply::Reschedule(RescheduleReply::Rescheduled(id, due_at)))) => {
                let states = self.shadow.states.get(&id.arrival).ok_or("what was rescheduled was never there")?;
                let is_there = states.iter().any(|progress| progress.due_at == *due_at);
                ensure!(is_there, "the new due time is not durable");
                Ok(())
            }
            (_, Ok(Reply::Reschedule(RescheduleReply::AlreadyDone(id, ending)))) => self.judge_ending(*id, *ending),
            (Command::Redrive(letter), Ok(Reply::Redrive(RedriveReply::Redriven))) => {
                let states = self.shadow.states.get(&letter.id.arrival).ok_or("what was redriven was never there")?;
                ensure!(states.iter().any(|progress| progress.redrives > 0), "the redrive is not durable");
                Ok(())
            }
            (Command::Purge(letter), Ok(Reply::Purge(PurgeReply::Purged))) => {
                self.judge_ending(letter.id, Ending::Gone(Outcome::Purged))
            }
            (_, Ok(Reply::Topic(record))) => {
                ensure!(self.shadow.puts.contains(record), "the topic is not durable");
                Ok(())
            }
            (_, Ok(Reply::TopicDeleted(deleted))) => {
                ensure!(self.shadow.deleted.contains(&deleted.id), "the deletion is not durable");
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn judge_produced(&self, produced: &Produced) -> Result<(), Violation> {
        let born = self.shadow.born.get(&produced.id.arrival);
        let born = born.ok_or("the message is not durable")?;
        ensure!(born.id == produced.id, "it has another id: {}", born.id);
        ensure!(produced.existing || born.id.birth_due == produced.due_at, "another due time was answered");
        Ok(())
    }

    fn judge_acked(&self, receipt: &Receipt) -> Result<(), Violation> {
        let end = self.shadow.ends.get(&receipt.id.arrival).ok_or("the ack is not durable")?;
        let acked_by = (receipt.delivery, receipt.epoch);
        ensure!(end.finished.receipt == Some(acked_by), "it was ended by another: {end:?}");
        Ok(())
    }

    fn judge_nacked(&self, receipt: &Receipt, nacked: Nacked) -> Result<(), Violation> {
        let arrival = receipt.id.arrival;
        if nacked == Nacked::Cancelled {
            return self.judge_ending(receipt.id, Ending::Gone(Outcome::Cancelled));
        }
        let next = self.shadow.ended.get(&(arrival, receipt.delivery)).ok_or("the nack is not durable")?;
        match nacked {
            Nacked::Waits(until) => ensure!(*next == Some(until), "it waits until {next:?}"),
            Nacked::Dead | Nacked::Cancelled => ensure!(next.is_none(), "it waits until {next:?}"),
        }
        Ok(())
    }

    fn judge_extended(&mut self, receipt: &Receipt, until: Timestamp) {
        let is_other =
            |command: &Command| matches!(command, Command::Extend { receipt: other, .. } if other == receipt);
        let is_last = !self.calls.iter().flat_map(|call| &call.commands).any(is_other);
        if is_last && receipt.epoch == self.shadow.epoch && self.extends_once(receipt) {
            self.asked.deadlines.insert((receipt.id.arrival, receipt.delivery), until);
        }
    }

    /// Several extensions of one lease may have been answered out of order.
    fn extends_once(&mut self, receipt: &Receipt) -> bool {
        self.asked.extensions.get(&(receipt.id.arrival, receipt.delivery, receipt.epoch)) == Some(&1)
    }

    fn judge_cancel(&self, command: &Command, reply: &CancelReply) -> Result<(), Violation> {
        let Command::Cancel { when_lease_ends, .. } = command else { unreachable!("the caller has seen it") };
        match *reply {
            CancelReply::Cancelled(id) => self.judge_ending(id, Ending::Gone(Outcome::Cancelled)),
            CancelReply::AlreadyDone(id, ending) => self.judge_ending(id, ending),
            CancelReply::InFlight(id) if *when_lease_ends => {
                let states = self.shadow.states.get(&id.arrival).ok_or("it was never there")?;
                ensure!(states.iter().any(|progress| progress.cancel_on_lease_end), "the mark is not durable");
                Ok(())
            }
            CancelReply::InFlight(_) | CancelReply::NotFound => Ok(()),
        }
    }

    fn judge_ending(&self, id: MessageId, ending: Ending) -> Result<(), Violation> {
        match ending {
            Ending::Gone(outcome) => {
                let end = self.shadow.ends.get(&id.arrival).ok_or("its end is not durable")?;
                ensure!(end.finished.outcome == outcome, "it ended otherwise: {end:?}");
            }
            Ending::Dead => {
                let states = self.shadow.states.get(&id.arrival).ok_or("it was never there")?;
                ensure!(states.iter().any(|progress| progress.dead.is_some()), "its death is not durable");
            }
        }
        Ok(())
    }
}
