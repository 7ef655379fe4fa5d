//! The handle: what the adapters call.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use super::OVERTAKEN_WAIT_MS;
use super::admission::{VIEW_BYTES, admit, cost};
use super::consumer::{Consumer, FetchWait};
use super::input::{FetchId, Input, Results};
use super::pages::Reads;
use super::reserve;
use super::sight::{Sight, StatsSeen, unreadable};
use super::signals::{Signals, Status};
use super::start::EngineSettings;
use super::stats::{Audience, BrokerView, Stats, StatsOf};
use super::throttle::{Throttle, is_produce};
use crate::clock::{AdoptError, Adoption, Clock};
use crate::queue::change::TopicRecord;
use crate::queue::command::{Command, ConsumerId, Delivery, FindRejection, Rejection, Reply, Target};
use crate::queue::dead::{DeadPage, DeadQuery, DeadSnapshot};
use crate::queue::limits::Limits;
use crate::queue::receipt::ReceiptKey;
use crate::queue::time::Timestamp;
use crate::queue::values::{ConsumerName, TopicName};
use crate::queue::view::MessageView;
use crate::store::{FORMAT_VERSION, ReadError};

/// How often a question to the pages is asked at most, because they have changed meanwhile. With the wait below it is
/// enough for a fold whose last sync takes two seconds.
pub(super) const MAX_LOOKS: usize = 200;

/// Wait before it is asked again while word of a fold is on its way.
pub(super) const OVERTAKEN_WAIT: Duration = Duration::from_millis(OVERTAKEN_WAIT_MS);

/// The way to the engine. Clones are the same engine. Dropping the last one, and the last [`Consumer`], ends
/// the engine as a crash would; [`EngineHandle::shutdown`] ends it well.
#[derive(Clone)]
pub struct EngineHandle {
    pub(super) shared: Arc<Shared>,
}

/// What all handles share.
pub(super) struct Shared {
    pub(super) owner: Sender<Input>,
    pub(super) signals: Arc<Signals>,
    pub(super) clock: Clock,
    pub(super) limits: Limits,
    pub(super) receipt_key: ReceiptKey,
    pub(super) bounds: EngineSettings,
    pub(super) waiters: Arc<Semaphore>,
    pub(super) streams: Arc<Semaphore>,
    /// The permit of the one backup that may run.
    pub(super) backups: Arc<Semaphore>,
    pub(super) next_id: AtomicU64,
    pub(super) throttle: Throttle,
}

/// Why the engine gives no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// A commit failed: it may be done or not.
    #[error("the broker has failed; whether this was done is not known")]
    OutcomeUnknown,
    /// The broker is shutting down: it was not done.
    #[error("the broker is shutting down; this was not done")]
    Draining,
    /// Produce is refused while the disk has too little room: it was not done.
    #[error("the disk has {free} bytes free, less than the reserve of {reserve}; this was not done")]
    DiskReserve {
        /// Free bytes.
        free: u64,
        /// Bytes that produce leaves free.
        reserve: u64,
    },
    /// It was not done.
    #[error("another backup is being taken")]
    BackupRunning,
    /// It was not done.
    #[error("{max} fetches are waiting, the most that this broker allows")]
    TooManyWaiters {
        /// The maximum.
        max: usize,
    },
    /// It was not done.
    #[error("{max} consume streams are open, the most that this broker allows")]
    TooManyStreams {
        /// The maximum.
        max: usize,
    },
}

/// A long poll.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// The topic.
    pub topic: TopicName,
    /// Who asks, for people.
    pub consumer_name: ConsumerName,
    /// At most so many deliveries, 1 to [`MAX_BATCH`](crate::queue::limits::MAX_BATCH); fewer if their content
    /// reaches [`MAX_LEASE_BYTES`](crate::queue::limits::MAX_LEASE_BYTES).
    pub max: usize,
    /// How long to wait for the first one, milliseconds of the broker's clock, at most
    /// [`MAX_FETCH_WAIT_MS`](crate::queue::limits::MAX_FETCH_WAIT_MS).
    pub wait_ms: u64,
    /// Lease time, milliseconds; `None`: the topic's.
    pub lease_ms: Option<u64>,
}

/// How many messages of a topic a stream may hold at once.
#[derive(Clone, Debug)]
pub struct Window {
    /// The topic; once per stream.
    pub topic: TopicName,
    /// 1 to [`MAX_WINDOW`](crate::queue::limits::MAX_WINDOW) messages.
    pub window: u32,
    /// Lease time, milliseconds; `None`: the topic's.
    pub lease_ms: Option<u64>,
}

/// A message as it was seen.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The message.
    pub view: MessageView,
    /// Who takes messages of its topic.
    pub audience: Audience,
    /// When it was seen.
    pub now: Timestamp,
}

/// Answers that are not there yet, to commands that are admitted.
#[derive(Debug)]
pub struct Pending {
    reply: oneshot::Receiver<Results>,
}

impl Future for Pending {
    type Output = Result<Vec<Result<Reply, Rejection>>, EngineError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let results = ready!(Pin::new(&mut self.reply).poll(context));
        Poll::Ready(results.map_err(|_| EngineError::OutcomeUnknown))
    }
}

impl EngineHandle {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Does one command.
    ///
    /// # Errors
    /// [`EngineError::Draining`] or [`EngineError::OutcomeUnknown`].
    pub async fn apply(&self, command: Command) -> Result<Result<Reply, Rejection>, EngineError> {
        let mut results = self.apply_all(vec![command]).await?;
        Ok(results.pop().expect("each command has a result"))
    }

    /// Does commands in order; the results come in the same order, each for itself.
    ///
    /// # Errors
    /// [`EngineError::Draining`]: none was done. [`EngineError::OutcomeUnknown`]: each may be done or not.
    pub async fn apply_all(&self, commands: Vec<Command>) -> Result<Vec<Result<Reply, Rejection>>, EngineError> {
        self.submit(commands).await?.await
    }

    /// As [`EngineHandle::apply_all`] in two steps, for pipelines: when this resolves, the commands are admitted
    /// and their place in the order is fixed; what it resolves to is the future of the answer.
    ///
    /// # Errors
    /// [`EngineError::Draining`] or [`EngineError::DiskReserve`]: none was done. [`EngineError::OutcomeUnknown`]: the
    /// broker has failed.
    pub async fn submit(&self, commands: Vec<Command>) -> Result<Pending, EngineError> {
        if commands.iter().any(is_produce) {
            self.shared.signals.disk.admit_produce()?;
        }
        self.shared.throttle.pass(&commands, &self.shared.signals).await;
        let permit = self.admit(cost(&commands)).await?;
        let (reply, answer) = oneshot::channel();
        self.shared.tell(Input::Commands { commands, reply, permit });
        Ok(Pending { reply: answer })
    }

    /// Waits for messages: resolves when there is at least one delivery, or with none when the wait is over. If
    /// the future is dropped, what was leased for it is given back.
    ///
    /// # Errors
    /// [`EngineError::TooManyWaiters`], [`EngineError::Draining`] or [`EngineError::OutcomeUnknown`].
    pub async fn fetch(&self, fetch: Fetch) -> Result<Result<Vec<Delivery>, FindRejection>, EngineError> {
        self.refuse_if_ending()?;
        let permit = Arc::clone(&self.shared.waiters).try_acquire_owned();
        let permit = permit.map_err(|_| EngineError::TooManyWaiters { max: self.shared.bounds.max_waiters })?;
        let id = FetchId(self.shared.next_id.fetch_add(1, Ordering::Relaxed));
        let (reply, answer) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        let mut wait = FetchWait { id, shared, reply: answer, is_answered: false, _permit: permit };
        self.shared.tell(Input::Fetch { id, fetch, reply });
        wait.answer().await.ok_or_else(|| self.ended())
    }

    /// Opens a consume stream.
    ///
    /// # Errors
    /// [`EngineError::TooManyStreams`], [`EngineError::Draining`] or [`EngineError::OutcomeUnknown`].
    pub async fn consume(
        &self,
        consumer_name: ConsumerName,
        windows: Vec<Window>,
    ) -> Result<Result<Consumer, FindRejection>, EngineError> {
        self.refuse_if_ending()?;
        let permit = Arc::clone(&self.shared.streams).try_acquire_owned();
        let permit = permit.map_err(|_| EngineError::TooManyStreams { max: self.shared.bounds.max_streams })?;
        let id = ConsumerId(self.shared.next_id.fetch_add(1, Ordering::Relaxed));
        let (consumer, delivered) = Consumer::open(id, Arc::clone(&self.shared), permit);
        let (reply, answer) = oneshot::channel();
        self.shared.tell(Input::Attach { consumer: id, name: consumer_name, windows, delivered, reply });
        let attached = answer.await.map_err(|_| self.ended())?;
        Ok(attached.map(|()| consumer))
    }

    /// Everything known about a message; `None` if nothing by that id or key is live or remembered.
    ///
    /// # Errors
    /// [`EngineError::Draining`] or [`EngineError::OutcomeUnknown`].
    pub async fn message(
        &self,
        topic: TopicName,
        target: Target,
    ) -> Result<Result<Option<Seen>, FindRejection>, EngineError> {
        self.ask(move |sight| sight.message(&topic, &target)).await
    }

    /// The topic of that name.
    ///
    /// # Errors
    /// [`EngineError::Draining`] or [`EngineError::OutcomeUnknown`].
    pub async fn topic(&self, name: TopicName) -> Result<Option<TopicRecord>, EngineError> {
        self.ask(move |sight| sight.queue.topic(&name).cloned()).await
    }

    /// Topics by name, from the one after `after` on, at most `limit`.
    ///
    /// # Errors
    /// [`EngineError::Draining`] or [`EngineError::OutcomeUnknown`].
    pub async fn topics(&self, after: Option<TopicName>, limit: usize) -> Result<Vec<TopicRecord>, EngineError> {
        self.ask(move |sight| sight.queue.topics(after.as_ref()).take(limit).cloned().collect()).await
    }

    /// Counts and lateness of one topic or of all, by name, and of the broker.
    ///
    /// # Errors
    /// [`EngineError::Draining`] or [`EngineError::OutcomeUnknown`].
    pub async fn stats(&self, topic: Option<TopicName>) -> Result<Result<Stats, FindRejection>, EngineError> {
        let of = topic.map_or(StatsOf::Topics(None, usize::MAX), StatsOf::Topic);
        self.count(of, false).await
    }

    /// As [`EngineHandle::stats`] of at most `limit` topics by name, from the one after `after` on.
    ///
    /// # Errors
    /// [`EngineError::Draining`] or [`EngineError::OutcomeUnknown`].
    pub async fn stats_after(
        &self,
        after: Option<TopicName>,
        limit: usize,
    ) -> Result<Result<Stats, FindRejection>, EngineError> {
        self.count(StatsOf::Topics(after, limit), false).await
    }

    /// As [`EngineHandle::stats`] of one topic, with its timeline. The first one of a topic with very much on disk may
    /// have to read thousands of pages, on a thread of its own; later ones read a few.
    ///
    /// # Errors
    /// [`EngineError::Draining`] or [`EngineError::OutcomeUnknown`].
    pub async fn stats_with_timeline(&self, topic: TopicName) -> Result<Result<Stats, FindRejection>, EngineError> {
        self.count(StatsOf::Topic(topic), true).await
    }

    async fn count(&self, of: StatsOf, with_timeline: bool) -> Result<Result<Stats, FindRejection>, EngineError> {
        let mut in_pages = None;
        for _ in 0..MAX_LOOKS {
            let (of, counted) = (of.clone(), in_pages.take());
            let seen = self.ask(move |sight| sight.stats(&of, with_timeline, counted.as_ref())).await?;
            let question = match seen {
                Ok(StatsSeen::Whole(stats)) => return Ok(Ok(*stats)),
                Ok(StatsSeen::Needs(question)) => question,
                Err(rejection) => return Ok(Err(rejection)),
            };
            match self.look(move |pages| question.answer(pages)).await? {
                Ok(counted) => in_pages = Some(counted),
                Err(ReadError::Overtaken) => tokio::time::sleep(OVERTAKEN_WAIT).await,
                Err(error) => return Ok(Err(unreadable(&error))),
            }
        }
        Ok(Err(FindRejection::PagesMoving))
    }

    /// A look at dead letters of a topic, in the order of (time of death, arrival number). One look reads a bounded part
    /// of them: go on from where the page says.
    ///
    /// # Errors
    /// [`EngineError::Draining`] or [`EngineError::OutcomeUnknown`].
    pub async fn dead_letters(
        &self,
        topic: TopicName,
        query: DeadQuery,
    ) -> Result<Result<DeadPage, FindRejection>, EngineError> {
        self.ask(move |sight| sight.dead_letters(&topic, &query)).await
    }

    /// The dead letters of a topic at this instant.
    ///
    /// # Errors
    /// [`EngineError::Draining`] or [`EngineError::OutcomeUnknown`].
    pub async fn dead_snapshot(&self, topic: TopicName) -> Result<Result<DeadSnapshot, FindRejection>, EngineError> {
        self.ask(move |sight| sight.queue.dead_snapshot(sight.now, &topic)).await
    }

    /// Refuses produce while fewer than `reserve` bytes are free, which `free_bytes` tells when it is asked, several
    /// times a second on a thread of its own.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn watch_disk(
        &self,
        reserve: u64,
        free_bytes: impl FnMut() -> io::Result<u64> + Send + 'static,
    ) -> io::Result<()> {
        reserve::watch(&self.shared.signals, reserve, free_bytes)
    }

    /// Another reserve for [`EngineHandle::watch_disk`], in force within a fraction of a second.
    pub fn set_disk_reserve(&self, reserve: u64) {
        self.shared.signals.disk.set_reserve(reserve);
    }

    /// Tells how long it took to read the store, for whoever asks about the broker.
    pub fn note_opening(&self, opening_ms: u64) {
        self.shared.signals.opening_ms.store(opening_ms, Ordering::Relaxed);
    }

    /// The broker and what it runs by.
    ///
    /// # Errors
    /// [`EngineError::Draining`] or [`EngineError::OutcomeUnknown`].
    pub async fn broker(&self) -> Result<BrokerView, EngineError> {
        let (limits, bounds) = (self.shared.limits, self.shared.bounds);
        let view = move |sight: &Sight<'_>| BrokerView {
            stats: sight.broker_stats(),
            data_format: FORMAT_VERSION,
            opening_ms: sight.signals.opening_ms.load(Ordering::Relaxed),
            clock: sight.clock.state(),
            limits,
            bounds,
        };
        self.ask(view).await
    }

    /// Follows the wall clock, as [`Clock::adopt`]. What falls due by that does so in due order, and live leases get the
    /// grace of a long pause; the first of this has been done when it returns.
    ///
    /// # Errors
    /// [`EngineError::Draining`] or [`EngineError::OutcomeUnknown`]; the clock may have been set.
    pub async fn adopt_clock(
        &self,
        expected_offset_ms: Option<i64>,
    ) -> Result<Result<Adoption, AdoptError>, EngineError> {
        self.refuse_if_ending()?;
        let adopted = self.shared.clock.adopt(expected_offset_ms);
        self.ask(|_| ()).await?;
        Ok(adopted)
    }

    /// The key that seals receipts.
    pub fn receipt_key(&self) -> &ReceiptKey {
        &self.shared.receipt_key
    }

    /// The limits in force.
    pub fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// The present instant of the broker's clock.
    pub fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// What the engine is doing; watch it to hear of a failure.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.shared.signals.status()
    }

    /// Lets the engine look at the clock now rather than within half a second: after the clock was set.
    pub fn wake(&self) {
        self.shared.tell(Input::Wake);
    }

    /// Refuses new work, ends streams and fetches, finishes what is admitted, writes the open leases down and
    /// ends the threads. May be called again and by several; each returns when that is done, or has failed.
    pub async fn shutdown(&self) {
        let signals = &self.shared.signals;
        if signals.drain() {
            self.shared.tell(Input::Drain);
        }
        // With every permit in hand nothing admitted is unanswered. It fails if another call was first.
        if let Some(all) = admit(&signals.admission, usize::MAX, self.shared.bounds.admission_bytes).await {
            signals.admission.close();
            self.shared.tell(Input::Close);
            drop(all);
        }
        let is_over = |status: &Status| matches!(status, Status::Stopped | Status::Failed(_));
        // The sender lives in `self`.
        let _over = signals.status().wait_for(is_over).await.is_ok();
    }

    /// Has `look` look at the queue; what it saw is shown when nothing can take it back.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Sight<'_>) -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        let permit = self.admit(VIEW_BYTES).await?;
        let (reply, answer) = oneshot::channel();
        let view = Box::new(move |sight: &Sight<'_>| {
            let seen = look(sight);
            // An asker that does not wait any more does not want to know.
            Box::new(move || drop(reply.send(seen))) as Box<dyn FnOnce() + Send>
        });
        self.shared.tell(Input::View { view, permit });
        answer.await.map_err(|_| self.ended())
    }

    /// Has `look` read pages on the look thread.
    pub(super) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut dyn Reads) -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        let permit = self.admit(VIEW_BYTES).await?;
        let (reply, answer) = oneshot::channel();
        self.shared.tell(Input::Look(Box::new(move |pages: &mut dyn Reads| {
            // An asker that does not wait any more does not want to know.
            if !reply.is_closed() {
                let _unwanted = reply.send(look(pages));
            }
            drop(permit);
        })));
        answer.await.map_err(|_| self.ended())
    }

    async fn admit(&self, bytes: usize) -> Result<OwnedSemaphorePermit, EngineError> {
        self.refuse_if_ending()?;
        let permit = admit(&self.shared.signals.admission, bytes, self.shared.bounds.admission_bytes).await;
        let permit = permit.ok_or_else(|| self.ended())?;
        self.refuse_if_ending()?;
        Ok(permit)
    }

    pub(super) fn refuse_if_ending(&self) -> Result<(), EngineError> {
        if self.shared.signals.is_serving() { Ok(()) } else { Err(self.ended()) }
    }

    pub(super) fn ended(&self) -> EngineError {
        if self.shared.signals.has_failed() { EngineError::OutcomeUnknown } else { EngineError::Draining }
    }
}

impl Shared {
    /// Tells the owner. If the owner has ended, what was told is dropped, and so whoever waits for it hears.
    pub(super) fn tell(&self, input: Input) {
        let _ended = self.owner.send(input);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.tell(Input::Stop);
    }
}
