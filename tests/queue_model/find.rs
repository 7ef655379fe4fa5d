//! The model's half of finding: cancel, reschedule, redrive, and what can be seen.

use duewheel::queue::change::{Outcome, Totals};
use duewheel::queue::command::{
    CancelReply, DeadLetter, Due, Ending, FindRejection, PurgeReply, RedriveReply, RescheduleReply, Target,
};
use duewheel::queue::message::{MessageId, TopicId};
use duewheel::queue::time::Timestamp;
use duewheel::queue::values::{Invalid, TopicName};

use crate::model::{Model, find_topic};
use crate::parts::{Entry, State};

impl Model {
    pub(crate) fn cancel(
        &mut self,
        now: Timestamp,
        topic: &TopicName,
        target: &Target,
        when_lease_ends: bool,
    ) -> Result<CancelReply, FindRejection> {
        let topic = find_topic(self, topic)?;
        let Some(entry) = self.live(topic, target) else {
            return Ok(match self.gone(topic, target) {
                Some(finished) if finished.outcome == Outcome::Cancelled => CancelReply::Cancelled(finished.id),
                Some(finished) => CancelReply::AlreadyDone(finished.id, Ending::Gone(finished.outcome)),
                None => CancelReply::NotFound,
            });
        };
        let id = entry.id;
        match entry.state(self.advanced_to) {
            State::Dead => Ok(CancelReply::AlreadyDone(id, Ending::Dead)),
            State::Leased => {
                let entry = self.entries.get_mut(&id.arrival).expect("found above");
                entry.progress.cancel_on_lease_end |= when_lease_ends;
                Ok(CancelReply::InFlight(id))
            }
            State::Scheduled | State::Ready => {
                self.finish(now, id.arrival, Outcome::Cancelled, None);
                Ok(CancelReply::Cancelled(id))
            }
        }
    }

    pub(crate) fn reschedule(
        &mut self,
        now: Timestamp,
        topic: &TopicName,
        target: &Target,
        due: Due,
    ) -> Result<RescheduleReply, FindRejection> {
        let topic = find_topic(self, topic)?;
        let max = self.limits.max_delay_ms;
        let due_at = match due {
            Due::After(ms) if ms > max => return Err(Invalid::new("delay", "out of range").into()),
            Due::At(at) if at.since(now) > max => return Err(Invalid::new("due_at", "out of range").into()),
            Due::After(ms) => now.plus(ms),
            Due::At(at) => at.max(now),
        };
        let Some(entry) = self.live(topic, target) else {
            return Ok(match self.gone(topic, target) {
                Some(finished) => RescheduleReply::AlreadyDone(finished.id, Ending::Gone(finished.outcome)),
                None => RescheduleReply::NotFound,
            });
        };
        let id = entry.id;
        Ok(match entry.state(self.advanced_to) {
            State::Dead => RescheduleReply::AlreadyDone(id, Ending::Dead),
            State::Leased => RescheduleReply::InFlight(id),
            State::Scheduled | State::Ready => {
                self.entries.get_mut(&id.arrival).expect("found above").progress.due_at = due_at;
                RescheduleReply::Rescheduled(id, due_at)
            }
        })
    }

    pub(crate) fn redrive(&mut self, now: Timestamp, letter: &DeadLetter) -> Result<RedriveReply, FindRejection> {
        let (topic, id) = (find_topic(self, &letter.topic)?, letter.id);
        let Some(entry) = self.live(topic, &Target::Id(id)) else { return Ok(RedriveReply::NotFound) };
        if !is_that_letter(entry, letter) {
            return Ok(RedriveReply::NotDead);
        }
        let key = entry.content.key.as_ref();
        if key.is_some_and(|key| self.holder(topic, key).is_some_and(|holder| holder.id != id)) {
            return Ok(RedriveReply::KeyInUse);
        }
        let progress = &mut self.entries.get_mut(&id.arrival).expect("found above").progress;
        progress.dead = None;
        (progress.attempts, progress.failures, progress.returns) = (0, 0, 0);
        progress.deliveries_before_redrive = progress.deliveries;
        progress.redrives += 1;
        progress.due_at = now;
        progress.holds_key = true;
        Ok(RedriveReply::Redriven)
    }

    pub(crate) fn purge(&mut self, now: Timestamp, letter: &DeadLetter) -> Result<PurgeReply, FindRejection> {
        let (topic, id) = (find_topic(self, &letter.topic)?, letter.id);
        let Some(entry) = self.live(topic, &Target::Id(id)) else { return Ok(PurgeReply::NotFound) };
        if !is_that_letter(entry, letter) {
            return Ok(PurgeReply::NotDead);
        }
        self.finish(now, id.arrival, Outcome::Purged, None);
        Ok(PurgeReply::Purged)
    }

    /// Dead letters of a topic, by time of death.
    pub(crate) fn dead_letters(&self, topic: TopicId, is_meant: impl Fn(&Entry) -> bool) -> Vec<MessageId> {
        let died = |entry: &Entry| entry.progress.dead.map(|(_, at)| (at, entry.id.arrival, entry.id));
        let mut dead: Vec<_> = self.in_topic(topic).filter(|entry| is_meant(entry)).filter_map(died).collect();
        dead.sort_unstable();
        dead.into_iter().map(|(_, _, id)| id).collect()
    }

    /// The conservation law: what was produced is somewhere.
    pub(crate) fn assert_conserved(&self, topic: TopicId, totals: &Totals) {
        let states = [State::Scheduled, State::Ready, State::Leased, State::Dead];
        let live: usize = states.iter().map(|&state| self.count(topic, state)).sum();
        assert_eq!(totals.live(), live as u64, "produced = live + ended");
    }
}

/// Dead, and since when the letter says.
fn is_that_letter(entry: &Entry, letter: &DeadLetter) -> bool {
    entry.progress.dead.is_some_and(|(_, at)| letter.died_at.is_none_or(|wanted| wanted == at))
}
