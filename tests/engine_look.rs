//! What an operator sees of the engine on the real store, compared with a recount of everything that was done: counts
//! by due time and listings, over folds, restarts and changes of what is on disk.

mod engine_support;

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use duewheel::clock::{ManualTime, StepPolicy};
use duewheel::engine::{EngineHandle, EngineSettings, Status};
use duewheel::queue::command::{Command, Due, FindRejection, Rejection, Reply, RescheduleReply, Target};
use duewheel::queue::limits::{Limits, Nearness};
use duewheel::queue::list::{ListQuery, WaitingState};
use duewheel::queue::message::MessageId;
use duewheel::queue::settings::TopicSettings;
use duewheel::queue::time::Timestamp;
use duewheel::queue::view::StateView;
use duewheel::store::StoreOptions;

use engine_support::{START_MS, fetch, produce, start_on, topic};

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;
/// How often a command is tried while a fold moves its message.
const MOVING_TRIES: usize = 500;

/// A broker, and what was done to it in the simplest form.
struct World {
    directory: TempDir,
    time: ManualTime,
    engine: EngineHandle,
    random: fastrand::Rng,
    seed: u64,
    /// Waiting and leased messages by due time and arrival number.
    messages: BTreeMap<(Timestamp, u64), MessageId>,
    /// Of these, the leased.
    leased: BTreeMap<(Timestamp, u64), MessageId>,
    listed: usize,
    folds: u64,
}

/// Keeps little in memory, and folds often.
fn open(directory: &Path, time: &ManualTime) -> EngineHandle {
    let near = Nearness { span_ms: 2_000, max_ready: 20, load_ahead_ms: 500, load_below: 10, load_max: 7 };
    let options = StoreOptions {
        segment_bytes: 64 << 10,
        spare_segments: 1,
        generation_bytes: 2 << 10,
        carry_horizon_ms: 1_000,
        min_free_bytes: 0,
        ..StoreOptions::default()
    };
    start_on(directory, options, Limits { near, ..Limits::default() }, time).expect("it opens")
}

impl World {
    async fn new(seed: u64) -> Self {
        let directory = TempDir::new().expect("there is room");
        let time = ManualTime::new(Timestamp::from_millis(START_MS));
        let engine = open(directory.path(), &time);
        let create = Command::CreateTopic { name: topic("t"), settings: TopicSettings::default() };
        engine.apply(create).await.expect("the engine serves").expect("the topic is new");
        let random = fastrand::Rng::with_seed(seed);
        let (messages, leased) = (BTreeMap::new(), BTreeMap::new());
        Self { directory, time, engine, random, seed, messages, leased, listed: 0, folds: 0 }
    }

    fn now(&self) -> Timestamp {
        self.engine.now()
    }

    fn delay_ms(&mut self) -> u64 {
        let most = [0, 5_000, 10 * MINUTE_MS, 3 * HOUR_MS, 3 * DAY_MS, 60 * DAY_MS][self.random.usize(0..6)];
        self.random.u64(0..=most)
    }

    async fn apply(&self, commands: Vec<Command>) -> Vec<Reply> {
        let results = self.engine.apply_all(commands.clone()).await.expect("the engine serves");
        let mut replies = Vec::new();
        for (mut result, command) in results.into_iter().zip(commands) {
            // A fold was moving the message; the next try succeeds once it is noted.
            for _ in 0..MOVING_TRIES {
                if !matches!(result, Err(Rejection::PagesMoving)) {
                    break;
                }
                thread::sleep(Duration::from_millis(5));
                result = self.engine.apply(command.clone()).await.expect("the engine serves");
            }
            replies.push(result.expect("it is accepted"));
        }
        replies
    }

    async fn produce(&mut self, count: usize) {
        let commands = (0..count).map(|_| produce("t", self.delay_ms())).collect();
        for reply in self.apply(commands).await {
            let Reply::Produced(produced) = reply else { panic!("{reply:?}") };
            self.messages.insert((produced.due_at, produced.id.arrival), produced.id);
        }
    }

    /// Some that are not leased.
    fn choose(&mut self, count: usize) -> Vec<((Timestamp, u64), MessageId)> {
        let free = self.messages.iter().filter(|(at, _)| !self.leased.contains_key(at));
        let free: Vec<_> = free.map(|(&at, &id)| (at, id)).collect();
        self.random.choose_multiple(free, count)
    }

    async fn cancel(&mut self, count: usize) {
        for (at, id) in self.choose(count) {
            let target = Target::Id(id);
            self.apply(vec![Command::Cancel { topic: topic("t"), target, when_lease_ends: false }]).await;
            self.messages.remove(&at);
        }
    }

    async fn reschedule(&mut self, count: usize) {
        for (at, id) in self.choose(count) {
            let due = Due::After(self.delay_ms());
            let command = Command::Reschedule { topic: topic("t"), target: Target::Id(id), due };
            let Some(Reply::Reschedule(RescheduleReply::Rescheduled(_, due_at))) =
                self.apply(vec![command]).await.pop()
            else {
                panic!("seed {}: {id} was not leased", self.seed)
            };
            self.messages.remove(&at);
            self.messages.insert((due_at, id.arrival), id);
        }
    }

    /// Leases some, and acks most of them.
    async fn consume(&mut self, count: usize) {
        let leased = self.engine.fetch(fetch("t", count, 0)).await.expect("it serves").expect("the topic exists");
        for delivery in leased {
            let id = delivery.message.id;
            let at = (delivery.message.progress.due_at, id.arrival);
            if self.random.u8(0..4) == 0 {
                self.leased.insert(at, id);
            } else {
                self.apply(vec![Command::Ack(delivery.receipt)]).await;
                self.messages.remove(&at);
            }
        }
    }

    async fn pass_time(&mut self) {
        let most = [900, 30_000, 20 * MINUTE_MS, 5 * HOUR_MS][self.random.usize(0..4)];
        // Leases do not end: those that there are were given back before.
        self.end_leases().await;
        self.time.advance_ms(self.random.u64(0..most));
        self.engine.wake();
    }

    /// Leased messages become ready again, or are gone, as a restart would have it.
    async fn end_leases(&mut self) {
        for (at, id) in std::mem::take(&mut self.leased) {
            let command = Command::Cancel { topic: topic("t"), target: Target::Id(id), when_lease_ends: true };
            self.apply(vec![command]).await;
            self.messages.remove(&at);
        }
        self.restart(false).await;
    }

    async fn restart(&mut self, clean: bool) {
        let counted = self.engine.stats(None).await.expect("it serves").expect("no topic was named");
        self.folds += counted.broker.folds;
        if clean {
            self.engine.shutdown().await;
        }
        let mut status = self.engine.status();
        let stopped = std::mem::replace(&mut self.engine, dead_handle(&self.time));
        drop(stopped);
        let over = |status: &Status| matches!(status, Status::Stopped | Status::Failed(_));
        let _over = status.wait_for(over).await.is_ok();
        self.engine = open(self.directory.path(), &self.time);
        if !clean {
            self.leased.clear();
        }
    }

    async fn check(&mut self) {
        self.check_counts().await;
        let states = [None, Some(WaitingState::Scheduled), Some(WaitingState::Ready), Some(WaitingState::Leased)];
        for state in states {
            self.check_list(state).await;
        }
    }

    async fn check_counts(&mut self) {
        let (seed, now) = (self.seed, self.now());
        let stats = self.engine.stats_with_timeline(topic("t")).await.expect("it serves").expect("the topic exists");
        let stats = &stats.topics[0];
        let timeline = stats.timeline.as_ref().expect("it was asked for");
        assert_eq!((timeline[0].from, timeline[timeline.len() - 1].until), (now.plus(1), Timestamp::MAX));
        assert!(timeline.windows(2).all(|pair| pair[0].until == pair[1].from), "seed {seed}: there is a gap");
        for span in timeline {
            let due = self.messages.range((span.from, 0)..(span.until, 0)).count() as u64;
            assert_eq!(span.count, due, "seed {seed}: due from {} until {} at {now}", span.from, span.until);
        }
        let due = self.messages.range(..(now.plus(1), 0)).filter(|(at, _)| !self.leased.contains_key(at));
        let oldest = due.clone().next().map(|(at, _)| at.0);
        let want =
            (self.messages.range((now.plus(1), 0)..).count() as u64, due.count() as u64, self.leased.len() as u64);
        assert_eq!((stats.counts.scheduled, stats.counts.ready, stats.counts.leased), want, "seed {seed}");
        assert_eq!(stats.counts.oldest_ready_due_at, oldest, "seed {seed}: the oldest that is overdue");
        let plain = self.engine.stats(None).await.expect("it serves").expect("no topic was named");
        let counts = &plain.topics[0].counts;
        assert_eq!((counts.scheduled, counts.ready, counts.leased), want, "seed {seed}: without a timeline");
        assert_eq!(counts.oldest_ready_due_at, oldest, "seed {seed}: without a timeline");
    }

    /// Page by page, a listing is all messages in that state and range, in order, each once.
    async fn check_list(&mut self, state: Option<WaitingState>) {
        let (seed, now) = (self.seed, self.now());
        let ends = [Timestamp::ZERO, now, now.plus(self.delay_ms()), now.plus(self.delay_ms()), Timestamp::MAX];
        let (a, b) = (ends[self.random.usize(0..5)], ends[self.random.usize(0..5)]);
        let (from, until) = if self.random.bool() { (Timestamp::ZERO, Timestamp::MAX) } else { (a.min(b), a.max(b)) };
        let limit = [7, 50, 1_000][self.random.usize(0..3)];
        let mut query = ListQuery { topic: topic("t"), state, from: (from, 0), until, limit };
        let mut listed = Vec::new();
        for pages in 0.. {
            assert!(pages < 5_000, "seed {seed}: it goes on and on");
            let part = self.engine.list(query.clone()).await.expect("it serves").expect("the topic exists").listed;
            assert!(part.views.len() <= limit);
            for view in part.views {
                let at = (view.message.progress.due_at, view.message.id.arrival);
                let place = match view.state {
                    StateView::Scheduled => WaitingState::Scheduled,
                    StateView::Ready { .. } => WaitingState::Ready,
                    StateView::Leased { .. } => WaitingState::Leased,
                    StateView::Dead => panic!("seed {seed}: {at:?} is dead"),
                };
                assert!(state.is_none_or(|state| state == place), "seed {seed}: {at:?} is {place:?}");
                assert_eq!(place == WaitingState::Leased, self.leased.contains_key(&at), "seed {seed}: {at:?}");
                assert_eq!(place == WaitingState::Scheduled, at.0 > now, "seed {seed}: {at:?}");
                listed.push((at, view.message.id));
            }
            match part.next {
                Some(next) => query.from = next,
                None => break,
            }
        }
        let is_wanted = |at: &(Timestamp, u64)| match state {
            None => true,
            Some(WaitingState::Leased) => self.leased.contains_key(at),
            Some(WaitingState::Scheduled) => at.0 > now,
            Some(WaitingState::Ready) => at.0 <= now && !self.leased.contains_key(at),
        };
        let in_range = if from < until { Some(self.messages.range((from, 0)..(until, 0))) } else { None };
        let in_range = in_range.into_iter().flatten();
        let want: Vec<_> = in_range.filter(|(at, _)| is_wanted(at)).map(|(&at, &id)| (at, id)).collect();
        assert_eq!(listed, want, "seed {seed}: {state:?} from {from} until {until}, {limit} a page");
        self.listed += listed.len();
    }
}

/// Stands in the place of an engine while there is none.
fn dead_handle(time: &ManualTime) -> EngineHandle {
    engine_support::open(&engine_support::Journal::default(), time.clock(StepPolicy::Report), EngineSettings::default())
}

#[tokio::test]
async fn counts_by_due_time_and_listings_are_a_recount_over_folds_restarts_and_changes_on_disk() {
    let (mut folds, mut listed) = (0, 0);
    for seed in [1, 2, fastrand::u64(..)] {
        println!("seed {seed}");
        let mut world = World::new(seed).await;
        for step in 0..40 {
            match world.random.u8(0..10) {
                0..4 => world.produce(60).await,
                4 => world.cancel(15).await,
                5 => world.reschedule(15).await,
                6 => world.consume(12).await,
                7 => world.pass_time().await,
                8 => world.restart(true).await,
                _ => world.restart(false).await,
            }
            if step % 3 == 0 {
                world.check().await;
            }
        }
        world.check().await;
        folds += world.folds;
        listed += world.listed;
    }
    println!("{folds} folds, {listed} listed");
    assert!(folds > 10 && listed > 1_000, "{folds} folds, {listed} listed");
}

#[tokio::test]
async fn a_topic_that_does_not_exist_is_named() {
    let world = World::new(0).await;
    let missing = FindRejection::TopicNotFound(topic("x"));
    let stats = world.engine.stats_with_timeline(topic("x")).await.expect("it serves");
    assert_eq!(stats.map(|_| ()), Err(missing.clone()));
    let from = (Timestamp::ZERO, 0);
    let query = ListQuery { topic: topic("x"), state: None, from, until: Timestamp::MAX, limit: 1 };
    assert_eq!(world.engine.list(query).await.expect("it serves").map(|_| ()), Err(missing));
}
