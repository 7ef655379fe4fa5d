//! Redriving and purging many dead letters: a job that works at a bounded rate and tells how far it is.
//!
//! A job is a task that ends with its stream. It first counts what the filter selects, then walks over the same dead
//! letters and does a tenth of a second's worth at a time; each is named with its time of death, so that one which lived
//! and died again meanwhile is left alone. What it tells is durable. Nobody is held up by a client that does not
//! read: the job waits, and nothing else does.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::audit;
use super::dead_letters::{MOVING_TRIES, MOVING_WAIT, Selection, look, snapshot};
use super::errors::Fault;
use crate::clock::Stopwatch;
use crate::engine::EngineHandle;
use crate::queue::command::{Command, DeadLetter, FindRejection, PurgeReply, RedriveReply, Rejection, Reply, Target};
use crate::queue::dead::{DeadFilter, DeadQuery};
use crate::queue::limits::{MAX_BATCH, MAX_DEAD_RATE};
use crate::queue::message::MessageId;
use crate::queue::values::TopicName;
use crate::queue::view::{LiveView, MessageView, StateView};

/// Answers that wait for the connection.
const WAITING_ANSWERS: usize = 2;
/// Time between two answers, results of ids apart.
const ANSWER_EVERY: Duration = Duration::from_secs(1);
/// What is done at once is this long's worth of the rate.
const STEP_MS: u64 = 100;

/// A job, ready to run.
pub(super) struct Job<R> {
    pub(super) engine: EngineHandle,
    pub(super) topic: TopicName,
    pub(super) selection: Selection,
    /// Dead letters a second.
    pub(super) rate: u32,
    pub(super) dry_run: bool,
    /// What is done to each.
    pub(super) doing: Doing,
    /// Its fates and numbers as the answer of the call.
    pub(super) answer: fn(&Tally, &[Fate]) -> R,
}

/// What a job does to dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Redrive,
    Purge,
}

impl Doing {
    fn command(self, letter: DeadLetter) -> Command {
        match self {
            Self::Redrive => Command::Redrive(letter),
            Self::Purge => Command::Purge(letter),
        }
    }
}

/// What became of a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Done,
    KeyInUse,
    NotDead,
    NotFound,
}

/// Numbers of a job.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) matched: u64,
    pub(super) done: u64,
    pub(super) key_in_use: u64,
    pub(super) not_dead: u64,
    pub(super) not_found: u64,
    pub(super) remaining: u64,
}

impl Tally {
    fn count(&mut self, fate: Fate) {
        *match fate {
            Fate::Done => &mut self.done,
            Fate::KeyInUse => &mut self.key_in_use,
            Fate::NotDead => &mut self.not_dead,
            Fate::NotFound => &mut self.not_found,
        } += 1;
        self.remaining = self.remaining.saturating_sub(1);
    }
}

/// The rate of a request: 0 means `default`.
pub(super) fn rate(requested: u32, default: u32) -> Result<u32, Fault> {
    match requested {
        0 => Ok(default),
        1..=MAX_DEAD_RATE => Ok(requested),
        other => Err(Fault::invalid("rate_per_second", format!("{other}; must be 1 to {MAX_DEAD_RATE}"))),
    }
}

/// Starts the job; it stops when nobody reads its answers any more.
pub(super) fn start<R: Send + 'static>(job: Job<R>) -> ReceiverStream<Result<R, Status>> {
    let (answers, received) = mpsc::channel(WAITING_ANSWERS);
    tokio::spawn(async move {
        let (step, pause) = pacing(job.rate);
        let mut pace = interval(pause);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut run = Run { job, answers, tally: Tally::default(), since_answer: Stopwatch::start(), step, pace };
        let ended = match run.job.selection.clone() {
            Selection::Ids(ids) => run.ids(&ids).await,
            Selection::Filter(filter, limit) => run.filter(filter, limit).await,
        };
        run.tell(&ended);
        if let Err(End::Failed(fault)) = ended {
            // The client may be gone before it hears why its job ended.
            let _ = run.answers.send(Err(fault.into())).await;
        }
    });
    ReceiverStream::new(received)
}

/// How many at once, and how long between, so that the rate is never exceeded.
fn pacing(rate: u32) -> (usize, Duration) {
    let step = (u64::from(rate) * STEP_MS / 1_000).clamp(1, MAX_BATCH as u64);
    let pause = Duration::from_nanos((step * 1_000_000_000).div_ceil(rate.into()));
    (usize::try_from(step).expect("at most a batch"), pause)
}

/// Why a job ends before its end.
enum End {
    /// Nobody reads its answers.
    Gone,
    Failed(Fault),
}

impl<E: Into<Fault>> From<E> for End {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// A job under way.
struct Run<R> {
    job: Job<R>,
    answers: mpsc::Sender<Result<R, Status>>,
    tally: Tally,
    since_answer: Stopwatch,
    /// At most so many at once.
    step: usize,
    pace: Interval,
}

impl<R> Run<R> {
    /// Tells what the job has done, unless it only looked.
    fn tell(&self, ended: &Result<(), End>) {
        let Job { topic, selection, doing, dry_run, .. } = &self.job;
        let end = match ended {
            Ok(()) => "complete",
            Err(End::Gone) => "its client is gone",
            Err(End::Failed(fault)) => fault.reason(),
        };
        if !dry_run {
            audit::dead_letters(*doing, topic, selection, &self.tally, end);
        }
    }

    async fn ids(&mut self, ids: &[MessageId]) -> Result<(), End> {
        self.tally.matched = ids.len() as u64;
        self.tally.remaining = ids.len() as u64;
        if self.job.dry_run {
            let mut fates = Vec::with_capacity(ids.len());
            for &id in ids {
                fates.push(self.foresee(id).await?);
            }
            return self.answer(&fates).await;
        }
        for ids in ids.chunks(self.step) {
            self.wait().await?;
            let letter = |&id: &MessageId| DeadLetter { topic: self.job.topic.clone(), id, died_at: None };
            let fates = self.settle(ids.iter().map(letter).collect()).await?;
            self.answer(&fates).await?;
        }
        Ok(())
    }

    async fn filter(&mut self, filter: DeadFilter, limit: u64) -> Result<(), End> {
        let snapshot = snapshot(&self.job.engine, &self.job.topic).await?;
        let mut query = DeadQuery { after: None, filter, snapshot: Some(snapshot), limit: MAX_BATCH };
        self.count(query.clone(), limit).await?;
        self.tally.remaining = self.tally.matched;
        if self.job.dry_run {
            return self.answer(&[]).await;
        }
        while self.tally.remaining > 0 {
            query.limit = self.step.min(usize::try_from(self.tally.remaining).unwrap_or(usize::MAX));
            let page = look(&self.job.engine, &self.job.topic, &query).await?;
            if !page.letters.is_empty() {
                self.wait().await?;
                let letters = page.letters.iter().map(|view| letter(&self.job.topic, view)).collect();
                self.settle(letters).await?;
            }
            self.answer_now_and_then().await?;
            query.after = page.next;
            if page.next.is_none() {
                break;
            }
        }
        // What was counted and is not there any more was settled by somebody else.
        self.tally.not_dead += std::mem::take(&mut self.tally.remaining);
        self.answer(&[]).await
    }

    /// Counts what the query selects. All of a topic need not be looked at.
    async fn count(&mut self, mut query: DeadQuery, limit: u64) -> Result<(), End> {
        if query.filter.is_all() {
            self.tally.matched = query.snapshot.as_ref().map_or(0, |snapshot| snapshot.count).min(limit);
            return Ok(());
        }
        loop {
            let page = look(&self.job.engine, &self.job.topic, &query).await?;
            self.tally.matched = (self.tally.matched + page.letters.len() as u64).min(limit);
            query.after = page.next;
            if page.next.is_none() || self.tally.matched == limit {
                return Ok(());
            }
            if self.answers.is_closed() {
                return Err(End::Gone);
            }
            self.answer_now_and_then().await?;
        }
    }

    /// Waits for the next step's turn.
    async fn wait(&mut self) -> Result<(), End> {
        tokio::select! {
            biased;
            () = self.answers.closed() => Err(End::Gone),
            _ = self.pace.tick() => Ok(()),
        }
    }

    /// Does one step, durably.
    async fn settle(&mut self, letters: Vec<DeadLetter>) -> Result<Vec<Fate>, End> {
        let commands = letters.iter().cloned().map(|letter| self.job.doing.command(letter)).collect();
        let mut fates = Vec::with_capacity(letters.len());
        for (result, letter) in self.job.engine.apply_all(commands).await?.into_iter().zip(letters) {
            let fate = match fate(result)? {
                Some(fate) => fate,
                None => self.try_again(letter).await?,
            };
            self.tally.count(fate);
            fates.push(fate);
        }
        Ok(fates)
    }

    /// A dead letter that a fold was moving.
    async fn try_again(&self, letter: DeadLetter) -> Result<Fate, End> {
        for _ in 0..MOVING_TRIES {
            tokio::time::sleep(MOVING_WAIT).await;
            if let Some(fate) = fate(self.job.engine.apply(self.job.doing.command(letter.clone())).await?)? {
                return Ok(fate);
            }
        }
        Err(Rejection::PagesMoving.into())
    }

    /// What would become of a message now.
    async fn foresee(&self, id: MessageId) -> Result<Fate, End> {
        let (engine, topic) = (&self.job.engine, &self.job.topic);
        let Some(seen) = engine.message(topic.clone(), Target::Id(id)).await?? else { return Ok(Fate::NotFound) };
        let MessageView::Live(view) = seen.view else { return Ok(Fate::NotFound) };
        if view.state != StateView::Dead {
            return Ok(Fate::NotDead);
        }
        let is_redrive = self.job.doing == Doing::Redrive;
        if let Some(key) = view.message.content.key.clone().filter(|_| is_redrive) {
            let holder = engine.message(topic.clone(), Target::Key(key)).await??;
            if holder.is_some_and(|holder| matches!(holder.view, MessageView::Live(held) if held.message.id != id)) {
                return Ok(Fate::KeyInUse);
            }
        }
        Ok(Fate::Done)
    }

    async fn answer(&mut self, fates: &[Fate]) -> Result<(), End> {
        self.since_answer = Stopwatch::start();
        let answer = (self.job.answer)(&self.tally, fates);
        self.answers.send(Ok(answer)).await.map_err(|_| End::Gone)
    }

    async fn answer_now_and_then(&mut self) -> Result<(), End> {
        if self.since_answer.elapsed() >= ANSWER_EVERY { self.answer(&[]).await } else { Ok(()) }
    }
}

fn letter(topic: &TopicName, view: &LiveView) -> DeadLetter {
    let died_at = view.message.progress.dead.map(|(_, at)| at);
    DeadLetter { topic: topic.clone(), id: view.message.id, died_at }
}

/// What became of a dead letter; `None`: a fold is moving it.
fn fate(result: Result<Reply, Rejection>) -> Result<Option<Fate>, Fault> {
    Ok(Some(match result {
        Ok(Reply::Redrive(RedriveReply::Redriven) | Reply::Purge(PurgeReply::Purged)) => Fate::Done,
        Ok(Reply::Redrive(RedriveReply::KeyInUse)) => Fate::KeyInUse,
        Ok(Reply::Redrive(RedriveReply::NotDead) | Reply::Purge(PurgeReply::NotDead)) => Fate::NotDead,
        // A damaged one is set aside and counted as quarantined; the others go on.
        Ok(Reply::Redrive(RedriveReply::NotFound) | Reply::Purge(PurgeReply::NotFound))
        | Err(Rejection::Damaged(_) | Rejection::Find(FindRejection::Damaged(_))) => Fate::NotFound,
        Ok(other) => unreachable!("a redrive or purge is not answered by {other:?}"),
        Err(Rejection::PagesMoving | Rejection::Find(FindRejection::PagesMoving)) => return Ok(None),
        Err(rejection) => return Err(rejection.into()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pacing_keeps_the_rate_in_steps_of_a_tenth_of_a_second() {
        for (rate, step, pause_ms) in [(100, 10, 100), (1, 1, 1_000), (25, 2, 80), (10_000, 1_000, 100)] {
            assert_eq!(pacing(rate), (step, Duration::from_millis(pause_ms)), "{rate}/s");
        }
    }
}
