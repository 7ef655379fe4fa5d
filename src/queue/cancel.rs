//! Cancelling, rescheduling and redriving messages by name.

use super::change::Outcome;
use super::command::{CancelReply, DeadLetter, Due, Ending, FindRejection, RedriveReply, RescheduleReply, Target};
use super::entry::{Entry, State};
use super::message::TopicId;
use super::state::{Effects, Found, Queue};
use super::time::Timestamp;
use super::values::{Key, TopicName};

impl Queue {
    pub(super) fn cancel(
        &mut self,
        now: Timestamp,
        topic: &TopicName,
        target: &Target,
        when_lease_ends: bool,
        effects: &mut Effects,
    ) -> Result<CancelReply, FindRejection> {
        let topic = self.existing(topic)?;
        let index = match self.find(topic, target, now) {
            Found::Nothing => return Ok(CancelReply::NotFound),
            Found::Gone(finished) if finished.outcome == Outcome::Cancelled => {
                return Ok(CancelReply::Cancelled(finished.id));
            }
            Found::Gone(finished) => return Ok(CancelReply::AlreadyDone(finished.id, Ending::Gone(finished.outcome))),
            Found::Live(index) => index,
        };
        let Entry { message, state, .. } = &self.entries[index as usize];
        let (id, mut progress) = (message.id, message.progress);
        match state {
            State::Dead => Ok(CancelReply::AlreadyDone(id, Ending::Dead)),
            State::Leased(_) => {
                if when_lease_ends && !progress.cancel_on_lease_end {
                    progress.cancel_on_lease_end = true;
                    self.mark(index, progress, effects);
                }
                Ok(CancelReply::InFlight(id))
            }
            State::Scheduled(_) | State::Ready => {
                self.cancel_waiting(now, index, effects);
                Ok(CancelReply::Cancelled(id))
            }
        }
    }

    pub(super) fn reschedule(
        &mut self,
        now: Timestamp,
        topic: &TopicName,
        target: &Target,
        due: Due,
        effects: &mut Effects,
    ) -> Result<RescheduleReply, FindRejection> {
        let topic = self.existing(topic)?;
        self.check_due(now, due)?;
        let index = match self.find(topic, target, now) {
            Found::Nothing => return Ok(RescheduleReply::NotFound),
            Found::Gone(finished) => {
                return Ok(RescheduleReply::AlreadyDone(finished.id, Ending::Gone(finished.outcome)));
            }
            Found::Live(index) => index,
        };
        let Entry { message, state, .. } = &self.entries[index as usize];
        let (id, mut progress) = (message.id, message.progress);
        match state {
            State::Dead => Ok(RescheduleReply::AlreadyDone(id, Ending::Dead)),
            State::Leased(_) => Ok(RescheduleReply::InFlight(id)),
            State::Scheduled(_) | State::Ready => {
                progress.due_at = match due {
                    Due::After(ms) => now.plus(ms),
                    Due::At(at) => at.max(now),
                };
                self.lift(index, effects);
                self.settle_at(now, index, progress, None, effects);
                Ok(RescheduleReply::Rescheduled(id, progress.due_at))
            }
        }
    }

    pub(super) fn redrive(
        &mut self,
        now: Timestamp,
        letter: &DeadLetter,
        effects: &mut Effects,
    ) -> Result<RedriveReply, FindRejection> {
        let topic = self.existing(&letter.topic)?;
        let Found::Live(index) = self.find(topic, &Target::Id(letter.id), now) else {
            return Ok(RedriveReply::NotFound);
        };
        if !self.is_that_letter(index, letter) {
            return Ok(RedriveReply::NotDead);
        }
        let message = self.message(index);
        if message.content.key.as_ref().is_some_and(|key| self.is_held_by_another(topic, key, index)) {
            return Ok(RedriveReply::KeyInUse);
        }
        let mut progress = message.progress;
        progress.due_at = now;
        progress.attempts = 0;
        progress.failures = 0;
        progress.returns = 0;
        progress.redrives += 1;
        progress.deliveries_before_redrive = progress.deliveries;
        progress.holds_key = true;
        progress.dead = None;
        self.lift(index, effects);
        self.settle_at(now, index, progress, None, effects);
        Ok(RedriveReply::Redriven)
    }

    /// True if another message of the topic holds `key`. On disk the key's hash decides: two keys of one hash among
    /// the live messages of a topic are not to be expected in the life of a broker, and cost a skipped redrive.
    fn is_held_by_another(&self, topic: TopicId, key: &Key, index: u32) -> bool {
        let state = &self.topics[&topic];
        state.keys.get(key).is_some_and(|&holder| holder != index) || state.stored.holders_of(key).next().is_some()
    }

    pub(super) fn existing(&self, topic: &TopicName) -> Result<TopicId, FindRejection> {
        self.topic_id(topic).ok_or_else(|| FindRejection::TopicNotFound(topic.clone()))
    }
}
