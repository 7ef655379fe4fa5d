//! The handle: what the adapters call.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::task::{Context, Poll, ready};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use super::admission::{VIEW_BYTES, admit, cost};
use super::backup::Backup;
use super::consumer::{Consumer, FetchWait};
use super::input::{FetchId, Input, Results};
use super::reserve;
use super::sight::Sight;
use super::signals::{Signals, Status};
use super::stats::Stats;
use super::throttle::{Throttle, is_produce};
use crate::clock::Clock;
use crate::queue::change::TopicRecord;
use crate::queue::command::{Command, ConsumerId, Delivery, FindRejection, Rejection, Reply, Target};
use crate::queue::limits::Limits;
use crate::queue::receipt::ReceiptKey;
use crate::queue::time::Timestamp;
use crate::queue::values::{ConsumerName, TopicName};
use crate::queue::view::{LiveView, MessageView};

/// The way to the engine. Clones are the same engine. Dropping the last one, and the last [`Consumer`], ends
/// the engine as a crash would; [`EngineHandle::shutdown`] ends it well.
#[derive(Clone)]
pub struct EngineHandle {
    shared: Arc<Shared>,
}

/// What all handles share.
pub(super) struct Shared {
    pub(super) owner: Sender<Input>,
    pub(super) signals: Arc<Signals>,
    pub(super) clock: Clock,
    pub(super) limits: Limits,
    pub(super) receipt_key: ReceiptKey,
    pub(super) admission_bytes: u32,
    pub(super) max_waiters: usize,
    pub(super) waiters: Arc<Semaphore>,
    pub(super) max_streams: usize,
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
    /// Streams with a window and fetches on its topic.
    pub consumers: usize,
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
        let permit = permit.map_err(|_| EngineError::TooManyWaiters { max: self.shared.max_waiters })?;
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
        let permit = permit.map_err(|_| EngineError::TooManyStreams { max: self.shared.max_streams })?;
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
        self.ask(move |sight| sight.stats(topic)).await
    }

    /// Dead letters of a topic by (time of death, arrival number), from the one after `after` on, at most `limit`.
    ///
    /// # Errors
    /// [`EngineError::Draining`] or [`EngineError::OutcomeUnknown`].
    pub async fn dead_letters(
        &self,
        topic: TopicName,
        after: Option<(Timestamp, u64)>,
        limit: usize,
    ) -> Result<Result<Vec<LiveView>, FindRejection>, EngineError> {
        self.ask(move |sight| sight.dead_letters(&topic, after, limit)).await
    }

    /// Begins a backup: a snapshot of everything that was confirmed before this call. Only one runs at a time.
    ///
    /// # Errors
    /// [`EngineError::BackupRunning`], [`EngineError::Draining`] or [`EngineError::OutcomeUnknown`].
    pub async fn backup(&self) -> Result<Backup, EngineError> {
        self.refuse_if_ending()?;
        let permit = Arc::clone(&self.shared.backups).try_acquire_owned();
        let permit = permit.map_err(|_| EngineError::BackupRunning)?;
        let (reply, answer) = oneshot::channel();
        self.shared.tell(Input::Snapshot(reply));
        let snapshot = answer.await.map_err(|_| self.ended())?;
        Ok(Backup { snapshot, shared: Arc::clone(&self.shared), _permit: permit })
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
        if let Some(all) = admit(&signals.admission, usize::MAX, self.shared.admission_bytes).await {
            signals.admission.close();
            self.shared.tell(Input::Close);
            drop(all);
        }
        let is_over = |status: &Status| matches!(status, Status::Stopped | Status::Failed(_));
        // The sender lives in `self`.
        let _over = signals.status().wait_for(is_over).await.is_ok();
    }

    /// Has `look` look at the queue; what it saw is shown when nothing can take it back.
    async fn ask<T: Send + 'static>(
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

    async fn admit(&self, bytes: usize) -> Result<OwnedSemaphorePermit, EngineError> {
        self.refuse_if_ending()?;
        let permit = admit(&self.shared.signals.admission, bytes, self.shared.admission_bytes).await;
        let permit = permit.ok_or_else(|| self.ended())?;
        self.refuse_if_ending()?;
        Ok(permit)
    }

    fn refuse_if_ending(&self) -> Result<(), EngineError> {
        if self.shared.signals.is_serving() { Ok(()) } else { Err(self.ended()) }
    }

    fn ended(&self) -> EngineError {
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
