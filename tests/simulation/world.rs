//! The simulated world: one broker on media that lose power, its clients, and time. One step after another is chosen
//! by a seeded generator; after each the promises are checked.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use duewheel::clock::{Clock, ManualTime};
use duewheel::engine::{EngineHandle, Status, Stepped, Thread};
use duewheel::queue::change::Change;
use duewheel::queue::command::Delivery;
use duewheel::queue::limits::{DAY_MS, Limits, Nearness};
use duewheel::queue::receipt::Receipt;
use duewheel::queue::time::Timestamp;
use duewheel::store::StoreOptions;
use duewheel::store::doubles::{Chance, LossyLog};
use fastrand::Rng;

use crate::asked::Asked;
use crate::caps::Caps;
use crate::clients::{Call, Connection, Fetching};
use crate::compare;
use crate::coverage::Coverage;
use crate::fault::Fault;
use crate::media::{Media, PAGE, Recorder, SharedBook, open};
use crate::questions::Question;
use crate::shadow::{Shadow, Violation};

/// Hardly anything stays in memory, and it comes back in small pieces.
pub(crate) const LIMITS: Limits =
    Limits { max_delay_ms: 400 * DAY_MS, max_body_bytes: 8_000, max_topics: 3, near: NEAR };
const NEAR: Nearness = Nearness { span_ms: 3_000, max_ready: 6, load_ahead_ms: 700, load_below: 4, load_max: 3 };

/// Sizes so small that every boundary is met in a few commits.
pub(crate) const TINY: StoreOptions = StoreOptions {
    segment_bytes: 4_096,
    spare_segments: 1,
    generation_bytes: 5_000,
    carry_horizon_ms: 2_000,
    carry_bytes_per_commit: 300,
    cache_bytes: 1 << 20,
    min_free_bytes: 0,
};

/// The last level of the wheel that a delay reaches begins at this instant: some histories begin just before it.
const FAR_BOUNDARY_MS: u64 = 1 << 42;
const USUAL_START_MS: u64 = 1_700_000_000_000;

/// A future of a client.
pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = T>>>;

/// Polls a future once.
pub(crate) fn poll<T>(future: &mut Boxed<T>) -> Option<T> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// A running broker.
pub(crate) struct Broker {
    pub(crate) stepped: Stepped<Recorder>,
    pub(crate) handle: EngineHandle,
    pub(crate) clock: Clock,
    /// The clock by which clients judge: the same, unless it is broken on purpose.
    pub(crate) truth: Clock,
    pub(crate) closing: Option<Boxed<()>>,
}

/// Everything there is.
pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) chance: Chance,
    pub(crate) fault: Fault,
    pub(crate) time: ManualTime,
    pub(crate) media: Media,
    pub(crate) book: SharedBook,
    pub(crate) broker: Option<Broker>,
    pub(crate) shadow: Shadow,
    /// A commit that failed: it may be durable or not.
    pub(crate) in_doubt: Option<Vec<Change>>,
    pub(crate) asked: Asked,
    pub(crate) caps: Caps,
    pub(crate) calls: Vec<Call>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) fetches: Vec<Fetching>,
    pub(crate) questions: Vec<Question>,
    /// Deliveries that were read and are not settled, as far as their consumers know.
    pub(crate) held: Vec<Delivery>,
    /// Receipts of all times.
    pub(crate) receipts: Vec<Receipt>,
    pub(crate) receipts_seen: BTreeSet<(u64, u32, u32)>,
    /// Bodies of produces that were answered as not done.
    pub(crate) not_done: BTreeSet<bytes::Bytes>,
    /// Confirmed messages.
    pub(crate) confirmed: BTreeMap<u64, bytes::Bytes>,
    pub(crate) repeats: Vec<duewheel::queue::command::Produce>,
    pub(crate) names: u64,
    /// The latest instant that any run has seen.
    pub(crate) latest: Timestamp,
    /// The last run before which the clock was set back: what it finds scheduled again may have been delivered before, and
    /// since a delivery writes nothing it cannot know.
    pub(crate) set_back_epoch: u32,
    /// The last run before which leases became void.
    pub(crate) voided_epoch: u32,
    pub(crate) coverage: Coverage,
    pub(crate) log: Vec<String>,
    is_page_lost: bool,
    /// With that fault: the log as it was before the last step of a commit.
    older_log: Option<LossyLog>,
    /// A fold is durable of which the journal does not know yet.
    is_fold_unnoted: bool,
    /// There were commits since memory was compared with them.
    is_changed: bool,
    /// Times that nothing was left to commit.
    rests: u64,
}

impl World {
    pub(crate) fn new(seed: u64, fault: Fault) -> Self {
        let mut rng = Rng::with_seed(seed);
        let start = match rng.u32(0..4) {
            0 => FAR_BOUNDARY_MS - rng.u64(1..400 * DAY_MS),
            _ => USUAL_START_MS + rng.u64(0..DAY_MS),
        };
        Self {
            chance: Chance::new(rng.u64(..)),
            rng,
            fault,
            time: ManualTime::new(Timestamp::from_millis(start)),
            media: Media::default(),
            book: SharedBook::default(),
            broker: None,
            shadow: Shadow::default(),
            in_doubt: None,
            asked: Asked::default(),
            caps: Caps::default(),
            calls: Vec::new(),
            connections: Vec::new(),
            fetches: Vec::new(),
            questions: Vec::new(),
            held: Vec::new(),
            receipts: Vec::new(),
            receipts_seen: BTreeSet::new(),
            not_done: BTreeSet::new(),
            confirmed: BTreeMap::new(),
            repeats: Vec::new(),
            names: 0,
            latest: Timestamp::ZERO,
            set_back_epoch: 0,
            voided_epoch: 0,
            coverage: Coverage::default(),
            log: Vec::new(),
            is_page_lost: false,
            older_log: None,
            is_fold_unnoted: false,
            is_changed: false,
            rests: 0,
        }
    }

    /// One history.
    pub(crate) fn play(&mut self, steps: usize) -> Result<(), Violation> {
        self.recover()?;
        self.create_topics()?;
        for _ in 0..steps {
            self.step()?;
        }
        self.drain()
    }

    fn step(&mut self) -> Result<(), Violation> {
        match self.rng.u32(0..1_000) {
            0..=179 => self.thread(Thread::Owner),
            180..=319 => self.thread(Thread::Commit),
            320..=379 => self.fold(),
            380..=429 => self.thread(Thread::Load),
            430..=439 => self.thread(Thread::Look),
            440..=569 => self.read_answer(),
            570..=904 => self.act(),
            905..=979 => {
                self.pass_time();
                Ok(())
            }
            980..=983 => self.crash(),
            984..=986 => self.close(),
            987..=989 => self.count(),
            _ => self.turn(),
        }
    }

    pub(crate) fn say(&mut self, text: impl Into<String>) {
        self.log.push(text.into());
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.broker.as_ref().map_or(self.latest, |broker| broker.truth.now())
    }

    /// A step of one of the five.
    pub(crate) fn thread(&mut self, thread: Thread) -> Result<(), Violation> {
        self.thread_did(thread).map(|_| ())
    }

    pub(crate) fn thread_did(&mut self, thread: Thread) -> Result<bool, Violation> {
        if thread == Thread::Commit && self.fault == Fault::LogLosesTail {
            self.older_log = Some(self.media.log.copy());
        }
        let Some(broker) = &mut self.broker else { return Ok(false) };
        let did = broker.stepped.step(thread);
        if did {
            let now = broker.clock.now();
            self.log.push(format!("{now} {thread:?}"));
        }
        self.absorb()?;
        let Some(broker) = &self.broker else { return Ok(did) };
        let (now, Some(queue)) = (broker.clock.now(), broker.stepped.queue()) else { return Ok(did) };
        if thread == Thread::Owner {
            queue.check(now).map_err(|problem| format!("an invariant of the queue: {problem}"))?;
        }
        // Nothing is on its way to the journal: memory and store must be the same.
        let is_at_rest = thread == Thread::Commit && !did;
        let is_failed = matches!(*broker.handle.status().borrow(), Status::Failed(_));
        self.rests += u64::from(is_at_rest);
        let is_wanted = self.is_changed || self.rests.is_multiple_of(8);
        if is_at_rest && is_wanted && !is_failed && self.fault != Fault::AnswersBeforeCommit {
            compare::memory(queue, &self.shadow, now)?;
            self.is_changed = false;
            self.coverage.mark("compared at rest");
        }
        if self.fault == Fault::KvForgetsPage {
            self.forget_page();
        }
        Ok(did)
    }

    /// All five do what there is to do, until all rest.
    pub(crate) fn turn(&mut self) -> Result<(), Violation> {
        for _ in 0..50 {
            let did_round = self.thread_did(Thread::Owner)?;
            // If it could not, the commits must make room first.
            let is_there = self.broker.as_ref().is_some_and(|broker| broker.stepped.queue().is_some());
            let mut is_busy = !did_round && is_there;
            for thread in [Thread::Commit, Thread::Fold, Thread::Load, Thread::Look] {
                while self.thread_did(thread)? {
                    is_busy = true;
                }
            }
            if !is_busy {
                break;
            }
        }
        Ok(())
    }

    /// Takes in what the recorder has seen.
    pub(crate) fn absorb(&mut self) -> Result<(), Violation> {
        let now = self.broker.as_ref().map_or(self.latest, |broker| broker.clock.now());
        self.latest = self.latest.max(now);
        let mut book = open(&self.book);
        let (commits, marks, in_doubt) =
            (std::mem::take(&mut book.commits), std::mem::take(&mut book.marks), book.in_doubt.take());
        drop(book);
        for mark in marks {
            match mark {
                "fold" | "fold with what has left the pages" => self.is_fold_unnoted = true,
                "fold noted" => self.is_fold_unnoted = false,
                _ => {}
            }
            self.coverage.mark(mark);
        }
        self.is_changed |= !commits.is_empty();
        for changes in commits {
            self.shadow.commit(&changes, &self.asked, self.latest, &mut self.coverage)?;
            self.note_levels(&changes, now);
            for change in &changes {
                if let Change::TopicPut(record) = change {
                    self.caps.put(record, now);
                }
            }
        }
        if let Some(changes) = in_doubt {
            self.say("a commit fails");
            self.coverage.mark("commit failed");
            self.in_doubt = Some(changes);
        }
        Ok(())
    }

    /// Counts the levels of the wheel that waiting messages enter.
    fn note_levels(&mut self, changes: &[Change], now: Timestamp) {
        for change in changes {
            let (Change::Produced(message) | Change::Moved { message, .. }) = change else { continue };
            let (due, now) = (message.progress.due_at.as_millis(), now.as_millis());
            if message.progress.dead.is_none() && due > now {
                let level = ((due ^ now) | 63).ilog2() / 6;
                self.coverage.mark(format!("wheel level {level}"));
            }
        }
    }

    fn pass_time(&mut self) {
        let sleep = self.broker.as_ref().and_then(|broker| broker.stepped.sleep());
        let next = self.broker.as_ref().and_then(|broker| broker.stepped.queue()?.next_wakeup());
        let to_next = next.map_or(1_000, |at| at.since(self.now()));
        match self.rng.u32(0..100) {
            0..=34 => self.time.advance(sleep.unwrap_or_default()),
            35..=54 => self.time.advance_ms(self.rng.u64(0..20)),
            55..=69 => self.time.advance_ms(self.rng.u64(0..1_500)),
            70..=84 => {
                let ms = (to_next + self.rng.u64(0..3)).saturating_sub(1);
                self.time.advance_ms(ms);
                self.coverage.mark("time to the next wake-up");
            }
            85..=89 => {
                self.time.advance_ms(self.rng.u64(1_500..600_000));
                self.coverage.mark("suspend");
            }
            90..=94 => {
                self.time.step_wall_ms(self.rng.i64(-1_900..1_900));
                self.coverage.mark("drift");
            }
            95 => {
                self.time.step_wall_ms(self.rng.i64(2_100..100_000_000));
                self.coverage.mark("wall clock stepped forward");
            }
            96 => {
                self.time.step_wall_ms(-self.rng.i64(2_100..10_000_000));
                self.coverage.mark("wall clock stepped back");
            }
            97 => {
                if let Some(broker) = &self.broker {
                    let adopted = broker.clock.adopt(None).is_ok();
                    self.coverage.mark(format!("clock adopted={adopted}"));
                }
            }
            _ => self.time.advance_ms(self.rng.u64(0..DAY_MS)),
        }
        let now = self.now();
        self.say(format!("{now} it is"));
    }

    /// The power is cut: between two steps, or in the middle of writing.
    pub(crate) fn crash(&mut self) -> Result<(), Violation> {
        if self.rng.bool() {
            let calls = self.rng.u64(0..8);
            let (log, kv) = if self.rng.bool() { (Some(calls), None) } else { (None, Some(calls)) };
            self.media.fail_after(log, kv);
            self.say(format!("writes fail after {calls}"));
            for _ in 0..self.rng.u32(3..25) {
                if self.rng.u32(0..4) == 0 {
                    let produce = self.choose_produce();
                    self.send(vec![produce])?;
                }
                let thread = match self.rng.u32(0..8) {
                    0..=2 => Thread::Owner,
                    3..=5 => Thread::Commit,
                    _ => Thread::Fold,
                };
                self.thread(thread)?;
            }
        }
        self.say("the power is cut");
        self.coverage.mark(if self.broker.as_ref().is_some_and(|broker| broker.closing.is_some()) {
            "crash while closing"
        } else {
            "crash"
        });
        self.absorb()?;
        self.forget_broker();
        self.asked.deadlines.clear();
        self.media.crash(&mut self.chance);
        self.media.log = self.older_log.take().unwrap_or_else(|| self.media.log.clone());
        if std::mem::take(&mut self.is_fold_unnoted) {
            self.coverage.mark("crash between a fold and its note");
        }
        self.roll_back();
        self.recover()
    }

    /// The page store may go back by one fold.
    fn roll_back(&mut self) {
        let before = open(&self.book).before_fold.take();
        if let Some(before) = before
            && self.rng.u32(0..5) == 0
        {
            self.media.kv = before;
            self.say("the pages go back by one fold");
            self.coverage.mark("pages rolled back");
        }
    }

    /// The broker and every connection to it are gone.
    pub(crate) fn forget_broker(&mut self) {
        self.broker = None;
        self.calls.clear();
        self.connections.clear();
        self.fetches.clear();
        self.questions.clear();
    }

    /// A clean stop begins.
    fn close(&mut self) -> Result<(), Violation> {
        if let Some(broker) = &mut self.broker
            && broker.closing.is_none()
        {
            let handle = broker.handle.clone();
            broker.closing = Some(Box::pin(async move { handle.shutdown().await }));
            self.say("a clean stop begins");
        }
        self.go_on_closing()
    }

    /// A clean stop goes on, and when it has come to its end the broker starts again.
    pub(crate) fn go_on_closing(&mut self) -> Result<(), Violation> {
        let closing = self.broker.as_mut().and_then(|broker| broker.closing.as_mut());
        let Some(closing) = closing else { return Ok(()) };
        if poll(closing).is_none() {
            return Ok(());
        }
        self.absorb()?;
        self.say("the broker has stopped");
        let is_clean = self.in_doubt.is_none();
        if is_clean && self.shadow.closing.is_none() {
            return Err("a clean stop is not the last change".to_owned());
        }
        self.coverage.mark(format!("stopped clean={is_clean}"));
        self.forget_broker();
        if self.rng.bool() {
            // A machine that is switched off after a clean stop.
            self.media.crash(&mut self.chance);
        }
        self.time.advance_ms(self.rng.u64(0..20_000));
        self.recover()
    }

    fn forget_page(&mut self) {
        let keys = self.media.kv.keys();
        if self.is_page_lost {
            return;
        }
        if let Some(key) = keys.iter().find(|key| key[0] == PAGE) {
            self.media.kv.lose(key);
            self.is_page_lost = true;
            self.say("a page is lost");
        }
    }
}
