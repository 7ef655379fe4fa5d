//! The end of a history: everything works, and everything that was confirmed comes to its end.

use duewheel::engine::Window;
use duewheel::queue::change::Outcome;
use duewheel::queue::command::{Command, Target};
use duewheel::queue::settings::TopicSettings;
use duewheel::queue::time::Timestamp;
use duewheel::queue::view::{MessageView, StateView};

use crate::shadow::{Violation, ensure};
use crate::world::World;

/// Rounds until everything that is due must have been delivered.
const MOST_ROUNDS: usize = 2_000;

/// Until a load is tried again for which the pages had moved.
const OVERTAKEN_WAIT_MS: u64 = 10;

impl World {
    pub(crate) fn drain(&mut self) -> Result<(), Violation> {
        self.say("the end begins");
        self.settle_down()?;
        self.make_simple()?;
        for _ in 0..MOST_ROUNDS {
            self.turn()?;
            if !self.read_and_ack()? {
                let waits = self.shadow.live.values().any(|message| message.progress.dead.is_none());
                if !waits && self.calls.is_empty() {
                    return self.judge_end_of_all();
                }
                self.judge_wakeup(true)?;
                self.pass_to_next();
            }
        }
        let left = self.shadow.live.values().find(|message| message.progress.dead.is_none());
        let views = self.shadow.live.values().filter_map(|message| {
            let queue = self.broker.as_ref()?.stepped.queue()?;
            let topic = &self.shadow.topics[&message.id.topic].name;
            let view = queue.look_up(self.now(), topic, &Target::Id(message.id), None);
            let MessageView::Live(view) = view.ok()?? else { return None };
            Some(format!("{} {:?}\n", message.id.arrival, view.state))
        });
        Err(format!("never delivered: {left:?}\n{}", views.collect::<String>()))
    }

    /// The broker serves, and nobody holds anything.
    fn settle_down(&mut self) -> Result<(), Violation> {
        self.media.fail_after(None, None);
        for _ in 0..20 {
            self.turn()?;
            self.go_on_closing()?;
            if self.broker.as_ref().is_some_and(|broker| broker.closing.is_none()) {
                break;
            }
        }
        while !self.connections.is_empty() {
            self.disconnect(0);
        }
        while !self.fetches.is_empty() {
            self.drop_fetch(0);
        }
        Ok(())
    }

    fn make_simple(&mut self) -> Result<(), Violation> {
        let topics: Vec<_> = self.shadow.topics.values().map(|record| record.name.clone()).collect();
        let mut commands = Vec::new();
        for name in &topics {
            let settings = TopicSettings { lease_ms: 1_000, ..TopicSettings::default() };
            commands.push(Command::UpdateTopic { name: name.clone(), settings });
            commands.push(Command::SetPaused { name: name.clone(), paused: false });
        }
        self.send(commands)?;
        if !topics.is_empty() {
            let windows = topics.into_iter().map(|topic| Window { topic, window: 20, lease_ms: None });
            self.connect(windows.collect());
        }
        Ok(())
    }

    /// True if something has come.
    fn read_and_ack(&mut self) -> Result<bool, Violation> {
        let mut has_come = false;
        self.held.clear();
        for index in (0..self.connections.len()).rev() {
            while index < self.connections.len() && self.read_stream(index)? {
                has_come = true;
            }
        }
        let acks: Vec<_> = self.held.drain(..).map(|delivery| Command::Ack(delivery.receipt)).collect();
        if !acks.is_empty() {
            self.send(acks)?;
        }
        for index in (0..self.calls.len()).rev() {
            let before = self.calls.len();
            self.read_answer_of(index)?;
            has_come |= self.calls.len() < before;
        }
        Ok(has_come)
    }

    /// All five rest: the owner wakes up for what comes next. With `is_served` consumers have room for everything, so
    /// that what is due has been delivered too, and what is on disk is loaded in time.
    pub(crate) fn judge_wakeup(&self, is_served: bool) -> Result<(), Violation> {
        let Some(queue) = self.broker.as_ref().and_then(|broker| broker.stepped.queue()) else { return Ok(()) };
        let (now, wakeup) = (self.now(), queue.next_wakeup().unwrap_or(Timestamp::MAX));
        for message in self.shadow.live.values().filter(|message| message.progress.dead.is_none()) {
            let topic = &self.shadow.topics[&message.id.topic].name;
            // What is not found without its page is on disk only.
            let view = queue.look_up(now, topic, &Target::Id(message.id), None);
            let next = match view {
                Ok(Some(MessageView::Live(view))) => match view.state {
                    StateView::Leased { deadline, .. } => deadline,
                    StateView::Ready { .. } if !is_served => continue,
                    _ => message.progress.due_at,
                },
                _ if is_served => message.progress.due_at,
                _ => continue,
            };
            // A load that a fold has overtaken is tried again after a while.
            let next = next.max(now.plus(OVERTAKEN_WAIT_MS));
            ensure!(wakeup <= next, "at {now} the next wake-up is at {wakeup}, too late for {message:?}");
        }
        Ok(())
    }

    fn pass_to_next(&mut self) {
        let Some(queue) = self.broker.as_ref().and_then(|broker| broker.stepped.queue()) else { return };
        let now = self.now();
        let ms = queue.next_wakeup().map_or(500, |at| at.since(now));
        let leased: u64 = queue.topics(None).filter_map(|topic| queue.counts(now, &topic.name)).map(|c| c.leased).sum();
        // A long pause would give the leases another grace, each time.
        self.time.advance_ms(if leased > 0 { ms.clamp(1, 500) } else { ms.max(1) });
    }

    /// Every confirmed message was acked by a consumer, or ended in a way that somebody asked for.
    fn judge_end_of_all(&mut self) -> Result<(), Violation> {
        for (arrival, body) in &self.confirmed {
            let born = self.shadow.born.get(arrival).ok_or_else(|| format!("{arrival} was confirmed and is lost"))?;
            ensure!(born.content.body == *body, "{arrival} has become another message");
            let is_dead = self.shadow.live.contains_key(arrival);
            let end = self.shadow.ends.get(arrival).map(|end| end.finished.outcome);
            ensure!(is_dead || end.is_some() || self.shadow.is_deleted(born.id), "{} is lost", born.id);
            if end == Some(Outcome::Acked) {
                let receipts = (*arrival, 0, 0)..=(*arrival, u32::MAX, u32::MAX);
                ensure!(self.receipts_seen.range(receipts).next().is_some(), "{} was never delivered", born.id);
            }
        }
        for message in self.shadow.born.values() {
            let body = &message.content.body;
            let is_denied = self.not_done.contains(body) && self.asked.bodies[body] == 1;
            ensure!(!is_denied, "{} was answered as not done", message.id);
        }
        self.coverage.mark("drained");
        Ok(())
    }
}
