//! Questions to the broker: where a message is, and how many there are.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use duewheel::engine::{EngineError, Seen, Stats, Thread};
use duewheel::queue::command::{FindRejection, Target};
use duewheel::queue::dead::DeadQuery;
use duewheel::queue::message::TopicId;
use duewheel::queue::values::TopicName;
use duewheel::queue::view::{MessageView, StateView};

use crate::shadow::{Violation, ensure};
use crate::world::{Boxed, World, poll};

type Looked = Result<Result<Option<Seen>, FindRejection>, EngineError>;

/// A question about a message that waits for its answer.
pub(crate) struct Question {
    target: Target,
    answer: Boxed<Looked>,
}

impl World {
    /// Asks where a message is.
    pub(crate) fn ask(&mut self, topic: TopicName, target: Target) {
        let Some(handle) = self.broker.as_ref().map(|broker| broker.handle.clone()) else { return };
        let asked = target.clone();
        let mut answer: Boxed<Looked> = Box::pin(async move { handle.message(topic, asked).await });
        if poll(&mut answer).is_none() {
            self.questions.push(Question { target, answer });
        }
    }

    pub(crate) fn read_question(&mut self, index: usize) -> Result<(), Violation> {
        let Some(answer) = poll(&mut self.questions[index].answer) else { return Ok(()) };
        let Question { target, .. } = self.questions.swap_remove(index);
        match answer {
            Ok(Ok(seen)) => self.judge_seen(&target, seen),
            Ok(Err(FindRejection::TopicNotFound(_))) | Err(_) => Ok(()),
            Ok(Err(FindRejection::PagesMoving)) => {
                self.coverage.mark("a question while pages move");
                Ok(())
            }
            Ok(Err(rejection)) => Err(format!("a question about {target:?}: {rejection}")),
        }
    }

    /// What is shown must be durable.
    fn judge_seen(&mut self, target: &Target, seen: Option<Seen>) -> Result<(), Violation> {
        match seen.map(|seen| seen.view) {
            Some(MessageView::Live(view)) => {
                let message = &view.message;
                let states = self.shadow.states.get(&message.id.arrival);
                let is_durable = states.is_some_and(|states| states.contains(&message.progress));
                ensure!(is_durable, "shown before it is durable: {message:?}");
                let place = match view.state {
                    StateView::Scheduled => "scheduled",
                    StateView::Ready { .. } => "ready",
                    StateView::Leased { .. } => "leased",
                    StateView::Dead => "dead",
                };
                self.coverage.mark(format!("seen {place}"));
            }
            Some(MessageView::Gone(finished)) => {
                let end = self.shadow.ends.get(&finished.id.arrival).map(|end| &end.finished);
                ensure!(end == Some(&finished), "shown as gone: {finished:?}, but committed was {end:?}");
                self.coverage.mark("seen gone");
            }
            None => {
                let Target::Id(id) = target else { return Ok(()) };
                let is_there = self.shadow.live.contains_key(&id.arrival);
                ensure!(!is_there, "{id} is not found, and it is there");
                self.coverage.mark("seen nothing");
            }
        }
        Ok(())
    }

    /// Asks for counts, the timeline and the dead letters of a topic while nothing else happens: they must be exact.
    pub(crate) fn count(&mut self) -> Result<(), Violation> {
        self.turn()?;
        let is_closing = self.broker.as_ref().is_none_or(|broker| broker.closing.is_some());
        let topics: Vec<_> = self.shadow.topics.values().map(|record| (record.id, record.name.clone())).collect();
        if is_closing || topics.is_empty() || self.in_doubt.is_some() {
            return Ok(());
        }
        self.judge_wakeup(false)?;
        let (id, name) = self.pick(&topics);
        let Some(handle) = self.broker.as_ref().map(|broker| broker.handle.clone()) else { return Ok(()) };
        let (topic, with_timeline) = (name.clone(), self.rng.bool());
        let counting = async move {
            if with_timeline { handle.stats_with_timeline(topic).await } else { handle.stats(Some(topic)).await }
        };
        if let Some(Ok(Ok(stats))) = self.wait_for(counting)? {
            self.judge_counts(id, &stats)?;
        }
        self.judge_dead_letters(id, name)
    }

    /// Waits for an answer for which no page changes.
    fn wait_for<T>(&mut self, question: impl Future<Output = T>) -> Result<Option<T>, Violation> {
        let mut question = pin!(question);
        for _ in 0..8 {
            if let Poll::Ready(answer) = question.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return Ok(Some(answer));
            }
            for thread in [Thread::Owner, Thread::Commit, Thread::Look] {
                self.thread(thread)?;
            }
        }
        let is_serving = self.broker.as_ref().is_some_and(|broker| broker.stepped.queue().is_some());
        ensure!(!is_serving, "a question is not answered");
        Ok(None)
    }

    fn judge_counts(&mut self, topic: TopicId, stats: &Stats) -> Result<(), Violation> {
        let counts = &stats.topics[0].counts;
        let now = stats.broker.now;
        let live = || self.shadow.live.values().filter(|message| message.id.topic == topic);
        let dead = live().filter(|message| message.progress.dead.is_some()).count() as u64;
        let waiting = live().count() as u64 - dead;
        let counted = counts.scheduled + counts.ready + counts.leased;
        ensure!(counted == waiting && counts.dead == dead, "{waiting} wait and {dead} are dead, but {counts:?}");
        let is_late = |due: &u64| *due > now.as_millis();
        let later = live().filter(|message| message.progress.dead.is_none());
        let later = later.map(|message| message.progress.due_at.as_millis()).filter(is_late).count() as u64;
        // A lease that outlived a clean stop may be of a message that is due later, if the clock was set back.
        let is_scheduled = (later.saturating_sub(counts.leased)..=later).contains(&counts.scheduled);
        ensure!(is_scheduled && (counts.scheduled == later || self.set_back_epoch > 0), "{later} later: {counts:?}");
        self.coverage.mark("counted");
        if let Some(timeline) = &stats.topics[0].timeline {
            let sum = timeline.iter().map(|span| span.count).sum::<u64>();
            ensure!(sum == counts.scheduled, "{sum} on the timeline, {} scheduled", counts.scheduled);
            self.coverage.mark("timeline");
        }
        Ok(())
    }

    fn judge_dead_letters(&mut self, topic: TopicId, name: TopicName) -> Result<(), Violation> {
        let Some(handle) = self.broker.as_ref().map(|broker| broker.handle.clone()) else { return Ok(()) };
        let query = DeadQuery { limit: 1_000, ..DeadQuery::default() };
        let Some(Ok(Ok(page))) = self.wait_for(async move { handle.dead_letters(name, query).await })? else {
            return Ok(());
        };
        // There are few: one look reads them all.
        let mut listed: Vec<u64> = page.letters.iter().map(|view| view.message.id.arrival).collect();
        listed.sort_unstable();
        let dead = self.shadow.live.values().filter(|m| m.id.topic == topic && m.progress.dead.is_some());
        let dead: Vec<u64> = dead.map(|message| message.id.arrival).collect();
        ensure!(listed == dead, "dead letters {listed:?} are listed, {dead:?} there are");
        if !dead.is_empty() {
            self.coverage.mark("dead letters listed");
        }
        Ok(())
    }
}
