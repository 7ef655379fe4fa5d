//! A broker whose time stands still and whose journal is memory that can be held back and fail.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod serving;

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::Poll;

use bytes::Bytes;

use duewheel::clock::{Clock, ManualTime, StepPolicy};
use duewheel::engine::{
    CommitFailure, Commits, Consumer, EngineHandle, EngineSettings, Fetch, Folded, Folds, NoPages, Parts, StartError,
    Status, Window, start,
};
use duewheel::queue::change::{Change, Restored};
use duewheel::queue::command::{Command, Delivery, Due, KeyPolicy, Produce, Produced, Reply};
use duewheel::queue::far::Carried;
use duewheel::queue::limits::Limits;
use duewheel::queue::receipt::ReceiptKey;
use duewheel::queue::settings::TopicSettings;
use duewheel::queue::time::Timestamp;
use duewheel::queue::values::{ConsumerName, Headers, TopicName};
use duewheel::queue::{Effects, Restore};
use duewheel::store::{self, OpenError, StoreOptions};

/// When every test begins.
pub(crate) const START_MS: u64 = 1_700_000_000_000;

/// A store that folds often.
pub(crate) fn small_store() -> StoreOptions {
    StoreOptions {
        segment_bytes: 256 << 10,
        spare_segments: 1,
        generation_bytes: 32 << 10,
        carry_horizon_ms: 1_000,
        min_free_bytes: 0,
        ..StoreOptions::default()
    }
}

/// Starts an engine on the store of a directory.
pub(crate) fn start_on(
    directory: &Path,
    options: StoreOptions,
    limits: Limits,
    time: &ManualTime,
) -> Result<EngineHandle, OpenError> {
    let clock = time.clock(StepPolicy::Report);
    let mut restore = Restore::new(limits);
    let opened = store::open(directory, options, &mut |restored| restore.record(restored))?;
    let parts = Parts::on_store(opened, restore, &clock);
    Ok(start(EngineSettings::default(), parts, clock).expect("it starts"))
}

/// A journal in memory. Clones are the same journal.
#[derive(Clone, Default)]
pub(crate) struct Journal(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch that a test sets")]
struct State {
    changes: Vec<Change>,
    commits: usize,
    is_held: bool,
    is_failing: bool,
    is_committing: bool,
    pressure: f64,
    fold_wanted: bool,
    fold_held: bool,
    fold_failing: bool,
    fold_panicking: bool,
    folds_noted: usize,
    /// Commits there had been when the last fold was noted.
    commits_at_fold: usize,
    /// Changes there were when the generation ended.
    changes_frozen: usize,
}

impl Journal {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().expect("no test panics with the lock")
    }

    fn set(&self, set: impl FnOnce(&mut State)) {
        set(&mut self.state());
        self.0.1.notify_all();
    }

    fn wait_while(&self, condition: impl Fn(&mut State) -> bool) -> MutexGuard<'_, State> {
        self.0.1.wait_while(self.state(), condition).expect("no test panics with the lock")
    }

    /// From now on commits do not return.
    pub(crate) fn hold(&self) {
        self.set(|state| state.is_held = true);
    }

    /// Lets commits return.
    pub(crate) fn release(&self) {
        self.set(|state| state.is_held = false);
    }

    /// From now on commits fail, also the one that is held.
    pub(crate) fn fail(&self) {
        self.set(|state| (state.is_failing, state.is_held) = (true, false));
    }

    /// From the next commit on the journal is that full.
    pub(crate) fn press(&self, pressure: f64) {
        self.set(|state| state.pressure = pressure);
    }

    /// Waits until a commit is under way.
    pub(crate) fn wait_for_commit(&self) {
        drop(self.wait_while(|state| !state.is_committing));
    }

    pub(crate) fn want_fold(&self) {
        self.set(|state| state.fold_wanted = true);
    }

    pub(crate) fn hold_fold(&self) {
        self.set(|state| state.fold_held = true);
    }

    pub(crate) fn release_fold(&self) {
        self.set(|state| state.fold_held = false);
    }

    pub(crate) fn fail_fold(&self) {
        self.set(|state| state.fold_failing = true);
    }

    pub(crate) fn panic_in_fold(&self) {
        self.set(|state| state.fold_panicking = true);
    }

    pub(crate) fn folds_noted(&self) -> usize {
        self.state().folds_noted
    }

    pub(crate) fn commits_at_fold(&self) -> usize {
        self.state().commits_at_fold
    }

    pub(crate) fn commits(&self) -> usize {
        self.state().commits
    }

    pub(crate) fn changes(&self) -> Vec<Change> {
        self.state().changes.clone()
    }
}

impl Commits for Journal {
    type Folds = Self;

    fn commit(&mut self, changes: &[Change]) -> Result<(), CommitFailure> {
        self.set(|state| state.is_committing = true);
        let mut state = self.wait_while(|state| state.is_held);
        state.is_committing = false;
        if state.is_failing {
            return Err("the disk is broken".into());
        }
        state.changes.extend_from_slice(changes);
        state.commits += 1;
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.state().fold_wanted
    }

    fn freeze(&mut self) -> Option<()> {
        let mut state = self.state();
        state.changes_frozen = state.changes.len();
        std::mem::take(&mut state.fold_wanted).then_some(())
    }

    fn folded(&mut self, (): ()) -> Result<Folded, CommitFailure> {
        self.set(|state| {
            state.folds_noted += 1;
            state.commits_at_fold = state.commits;
        });
        // Nothing is in pages: the whole generation was carried.
        let state = self.state();
        let mut live = BTreeMap::new();
        for change in &state.changes[..state.changes_frozen] {
            match change {
                Change::Produced(message) | Change::Moved { message, .. } => {
                    let (topic, arrival) = (message.id.topic, message.id.arrival);
                    live.insert(arrival, Carried { topic, arrival, place: message.place() });
                }
                Change::Finished(finished) => drop(live.remove(&finished.id.arrival)),
                _ => {}
            }
        }
        let carried = live.into_values().collect();
        Ok(Folded { fold: state.folds_noted as u64, carried, delta: None, set_aside: Vec::new() })
    }

    fn journal_bytes(&self) -> u64 {
        self.state().changes.len() as u64
    }

    fn pressure(&self) -> f64 {
        self.state().pressure
    }
}

impl Folds for Journal {
    type Job = ();
    type Done = ();

    fn run(&mut self, (): ()) -> Result<(), CommitFailure> {
        let state = self.wait_while(|state| state.fold_held);
        if state.fold_panicking {
            drop(state);
            panic!("the test wants a panic in the fold");
        }
        if state.fold_failing { Err("the fold is broken".into()) } else { Ok(()) }
    }
}

/// A broker under test.
pub(crate) struct Broker {
    pub(crate) engine: EngineHandle,
    pub(crate) time: ManualTime,
    pub(crate) journal: Journal,
}

impl Broker {
    /// A fresh broker.
    pub(crate) fn start() -> Self {
        Self::restart(ManualTime::new(Timestamp::from_millis(START_MS)), Journal::default(), EngineSettings::default())
    }

    pub(crate) fn start_with(settings: EngineSettings) -> Self {
        Self::restart(ManualTime::new(Timestamp::from_millis(START_MS)), Journal::default(), settings)
    }

    /// A broker over what the journal holds.
    pub(crate) fn restart(time: ManualTime, journal: Journal, settings: EngineSettings) -> Self {
        let clock = time.clock(StepPolicy::Report);
        let engine = open(&journal, clock, settings);
        Self { engine, time, journal }
    }

    /// Lets time pass in steps that are no long pause, and waits until the engine has done what is due.
    pub(crate) async fn pass_ms(&self, ms: u64) {
        let mut left = ms;
        while left > 0 {
            let step = left.min(500);
            self.jump_ms(step);
            self.settle().await;
            left -= step;
        }
    }

    /// Lets time pass at once, as if the broker had been stopped meanwhile, and the engine notice.
    pub(crate) fn jump_ms(&self, ms: u64) {
        self.time.advance_ms(ms);
        self.engine.wake();
    }

    pub(crate) async fn create_topic(&self, name: &str, settings: TopicSettings) {
        let command = Command::CreateTopic { name: topic(name), settings };
        self.engine.apply(command).await.expect("the engine serves").expect("the topic is new");
    }

    pub(crate) async fn produce(&self, name: &str, delay_ms: u64) -> Produced {
        match self.engine.apply(produce(name, delay_ms)).await.expect("the engine serves") {
            Ok(Reply::Produced(produced)) => produced,
            other => panic!("produce: {other:?}"),
        }
    }

    pub(crate) async fn produce_many(&self, name: &str, delay_ms: u64, count: usize) {
        let commands = (0..count).map(|_| produce(name, delay_ms)).collect();
        let results = self.engine.apply_all(commands).await.expect("the engine serves");
        assert!(results.iter().all(Result::is_ok));
    }

    pub(crate) async fn consume(&self, windows: &[(&str, u32)]) -> Consumer {
        let windows = windows.iter().map(|&(name, size)| window(name, size)).collect();
        self.engine.consume(consumer_name("c"), windows).await.expect("the engine serves").expect("the topics exist")
    }

    pub(crate) async fn ack(&self, delivery: &Delivery) {
        let reply = self.engine.apply(Command::Ack(delivery.receipt)).await.expect("the engine serves");
        assert_eq!(reply, Ok(Reply::Acked { repeated: false }));
    }

    /// Waits until the engine has done everything told to it before.
    pub(crate) async fn settle(&self) {
        self.engine.stats(None).await.expect("the engine serves").expect("no topic was named");
    }

    /// Counts of a topic: scheduled, ready, leased.
    pub(crate) async fn places(&self, name: &str) -> (u64, u64, u64) {
        let stats = self.engine.stats(Some(topic(name))).await.expect("the engine serves").expect("the topic exists");
        let counts = &stats.topics[0].counts;
        (counts.scheduled, counts.ready, counts.leased)
    }

    pub(crate) async fn wait_for(&self, wanted: fn(&Status) -> bool) -> Status {
        self.engine.status().wait_for(wanted).await.expect("the engine lives").clone()
    }
}

/// An engine over what the journal holds.
pub(crate) fn open(journal: &Journal, clock: Clock, settings: EngineSettings) -> EngineHandle {
    try_open(journal, clock, settings).expect("the journal is in order")
}

pub(crate) fn try_open(journal: &Journal, clock: Clock, settings: EngineSettings) -> Result<EngineHandle, StartError> {
    let mut restore = Restore::new(Limits::default());
    journal.changes().into_iter().for_each(|change| restore.record(Restored::Change(change)));
    let mut effects = Effects::default();
    let queue = restore.finish(clock.now(), &mut effects);
    let parts = Parts {
        queue,
        opening: effects.changes,
        commits: journal.clone(),
        folds: journal.clone(),
        pages: [Box::new(NoPages), Box::new(NoPages), Box::new(NoPages)],
        receipt_key: ReceiptKey::new([7; 16]),
    };
    start(settings, parts, clock)
}

pub(crate) fn topic(name: &str) -> TopicName {
    TopicName::parse(name).expect("a good name")
}

pub(crate) fn consumer_name(name: &str) -> ConsumerName {
    ConsumerName::parse(name).expect("a good name")
}

pub(crate) fn window(name: &str, size: u32) -> Window {
    Window { topic: topic(name), window: size, lease_ms: None }
}

pub(crate) fn fetch(name: &str, max: usize, wait_ms: u64) -> Fetch {
    Fetch { topic: topic(name), consumer_name: consumer_name("f"), max, wait_ms, lease_ms: None }
}

pub(crate) fn produce(name: &str, delay_ms: u64) -> Command {
    Command::Produce(Produce {
        topic: topic(name),
        key: None,
        headers: Headers::default(),
        body: Bytes::from_static(b"body"),
        due: Some(Due::After(delay_ms)),
        schedule: None,
        max_attempts: None,
        key_policy: KeyPolicy::Reject,
        dedup_id: None,
    })
}

/// The deliveries that have been let out to a stream so far; call it when the engine has settled.
pub(crate) async fn arrived(consumer: &mut Consumer) -> Vec<Delivery> {
    let mut all = Vec::new();
    while let Some(Some(batch)) = poll_once(pin!(consumer.next())).await {
        all.extend(batch);
    }
    all
}

/// Polls a future once.
pub(crate) async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

/// Asserts that a future has no output yet.
pub(crate) async fn assert_pending<F: Future>(future: Pin<&mut F>) {
    assert!(poll_once(future).await.is_none(), "this must not have resolved yet");
}
