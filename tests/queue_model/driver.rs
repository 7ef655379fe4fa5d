//! Drives the queue and the model side by side through one history, and compares them after every step.
//!
//! A history is a function of its seed. Commands are chosen from the current state (settle one of the live leases,
//! redrive one of the dead, reuse a key that is taken) and time jumps to the instants that matter, to the
//! millisecond before them and after them; commands drawn blindly would hardly ever meet anything.

use std::collections::BTreeSet;

use duewheel::queue::change::Change;
use duewheel::queue::command::{Command, ConsumerId, Rejection, Reply};
use duewheel::queue::limits::{DAY_MS, Limits, Nearness};
use duewheel::queue::message::{DeliveryOutcome, MessageId, TopicId};
use duewheel::queue::receipt::Receipt;
use duewheel::queue::time::Timestamp;
use duewheel::queue::values::TopicName;
use duewheel::queue::{Effects, Queue, Restore};
use fastrand::Rng;

use crate::compare;
use crate::coverage::{Coverage, kind};
use crate::model::{Did, Model};
use crate::parts::{Entry, State};
use crate::store::Store;

pub(crate) const LIMITS: Limits =
    Limits { max_delay_ms: 400 * DAY_MS, max_body_bytes: 64, max_topics: 3, near: NEARNESS };
/// Hardly anything stays in memory, and it comes back in small pieces.
const NEARNESS: Nearness = Nearness { span_ms: 500, max_ready: 2, load_ahead_ms: 100, load_below: 1_000, load_max: 2 };

/// Messages touched by one call of `advance` at most; small, so that the bound is met.
const ADVANCE_LIMITS: [usize; 4] = [1, 2, 3, 1_000];

pub(crate) struct Run {
    pub(crate) rng: Rng,
    pub(crate) now: Timestamp,
    pub(crate) queue: Queue,
    pub(crate) model: Model,
    pub(crate) store: Store,
    pub(crate) coverage: Coverage,
    /// Every receipt ever issued, live and stale.
    pub(crate) receipts: Vec<Receipt>,
    /// Every id ever issued.
    pub(crate) ids: Vec<MessageId>,
    issued: BTreeSet<(MessageId, u32, u32)>,
    trace: Trace,
}

/// What has happened, printed if the history fails.
struct Trace {
    seed: u64,
    events: Vec<String>,
    keep: bool,
}

impl Drop for Trace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The first three open the store and create the topics.
            let tail = self.events.len().saturating_sub(60).max(3);
            let (start, end) = (self.events.iter().take(3), self.events.iter().skip(tail));
            for event in start.chain(end) {
                eprintln!("{event}");
            }
            eprintln!("failed: run it again with DUEWHEEL_SEED={} DUEWHEEL_HISTORIES=1", self.seed);
        }
    }
}

impl Run {
    pub(crate) fn new(seed: u64) -> Self {
        let now = Timestamp::from_millis(1_700_000_000_000 + seed % 100_000);
        let mut effects = Effects::default();
        let queue = Restore::new(LIMITS).finish(now, &mut effects);
        let mut store = Store::default();
        store.commit(&effects.changes);
        let model = Model::new(LIMITS, store.records.epoch, now);
        Self {
            rng: Rng::with_seed(seed),
            now,
            queue,
            model,
            store,
            coverage: Coverage::default(),
            receipts: Vec::new(),
            ids: Vec::new(),
            issued: BTreeSet::new(),
            trace: Trace { seed, events: Vec::new(), keep: true },
        }
    }

    /// Runs a history and returns what it has reached.
    pub(crate) fn history(seed: u64, steps: usize) -> Coverage {
        let mut run = Self::new(seed);
        run.play(steps);
        run.coverage
    }

    /// Runs a history and returns everything that came out of the queue.
    pub(crate) fn log(seed: u64, steps: usize) -> Vec<String> {
        let mut run = Self::new(seed);
        run.play(steps);
        std::mem::take(&mut run.trace.events)
    }

    fn play(&mut self, steps: usize) {
        self.create_topics();
        for _ in 0..steps {
            self.step();
        }
    }

    fn step(&mut self) {
        match self.rng.u32(0..100) {
            0..=12 => self.pass_time(),
            13 => self.restart(),
            14 => self.lose_a_round(),
            15 => self.grant_grace(),
            16..=20 => (0..3).for_each(|_| self.fold()),
            21..=23 => self.advance_a_little(),
            24..=25 => self.load_slowly(),
            26..=43 => {
                self.advance();
                let request = self.choose_lease();
                self.apply(&request);
            }
            _ => {
                let command = self.choose_command();
                self.apply(&command);
            }
        }
        // Now and then settlements come in late: the clock has moved on and nothing has been advanced.
        if self.rng.u32(0..10) < 8 {
            self.advance();
            compare::everything(self);
        }
    }

    /// Does a command on both sides and makes it durable.
    pub(crate) fn apply(&mut self, command: &Command) {
        let changes = self.apply_undurably(command);
        self.store.commit(&changes);
    }

    fn apply_undurably(&mut self, command: &Command) -> Vec<Change> {
        let mut effects = Effects::default();
        self.mark_before(command);
        let answer = self.apply_with_disk(command.clone(), &mut effects);
        self.note(|| format!("{command:?} -> {answer:?} {effects:?}"));
        let did = Did { answer: Some(&answer), changes: &effects.changes };
        let held = self.held();
        let expected = self.model.apply(self.now, command, &did);
        self.coverage.mark(kind(&answer));
        compare::answers(&self.model, command, &answer, &expected);
        compare::ended_leases(&held, &self.held(), &effects.ended_leases, command);
        if answer.is_err() {
            assert!(effects.changes.is_empty(), "a rejection changes nothing");
            assert!(effects.ended_leases.is_empty(), "a rejection ends no lease");
        }
        match &answer {
            Ok(Reply::Leased(deliveries)) => {
                assert!(effects.changes.is_empty(), "delivery writes nothing");
                for delivery in deliveries {
                    let receipt = delivery.receipt;
                    assert!(delivery.message.progress.due_at <= self.now, "leased before it was due");
                    let fresh = self.issued.insert((receipt.id, receipt.delivery, receipt.epoch));
                    assert!(fresh, "a receipt was issued twice: {receipt:?}");
                    self.receipts.push(receipt);
                    self.mark_delivery(delivery);
                }
            }
            Ok(Reply::Produced(produced)) if !produced.existing => {
                assert!(!self.ids.contains(&produced.id), "an id was issued twice");
                self.ids.push(produced.id);
            }
            _ => {}
        }
        self.mark_changes(&effects.changes);
        effects.changes
    }

    /// All timed work of this instant, on both sides.
    pub(crate) fn advance(&mut self) {
        let limit = ADVANCE_LIMITS[self.rng.usize(0..ADVANCE_LIMITS.len())];
        let mut effects = Effects::default();
        let bound = 10 * (self.model.entries.len() + 10);
        let mut calls = 0;
        self.load();
        while self.queue.advance(self.now, limit, &mut effects) {
            calls += 1;
            assert!(calls < bound, "advance does not come to an end");
        }
        if calls > 0 {
            self.coverage.mark("advance in pieces");
        }
        self.note(|| format!("advance by {limit} {effects:?}"));
        let held = self.held();
        self.model.advance(self.now, false, &Did { answer: None, changes: &effects.changes });
        compare::ended_leases(&held, &self.held(), &effects.ended_leases, &Command::ReturnAll(ConsumerId::NONE));
        self.mark_changes(&effects.changes);
        self.store.commit(&effects.changes);
    }

    /// A busy broker: a bounded piece of the timed work, then commands.
    fn advance_a_little(&mut self) {
        self.now = self.choose_instant();
        let mut effects = Effects::default();
        let interrupted = self.queue.advance(self.now, self.rng.usize(1..4), &mut effects);
        self.note(|| format!("advance a little, more={interrupted} {effects:?}"));
        let held = self.held();
        self.model.advance(self.now, interrupted, &Did { answer: None, changes: &effects.changes });
        compare::ended_leases(&held, &self.held(), &effects.ended_leases, &Command::ReturnAll(ConsumerId::NONE));
        self.mark_changes(&effects.changes);
        self.store.commit(&effects.changes);
        if interrupted {
            self.coverage.mark("advance interrupted");
            for _ in 0..3 {
                let command = if self.rng.bool() { self.choose_lease() } else { self.choose_command() };
                self.apply(&command);
            }
        }
    }

    /// One step of a fold: it begins, becomes durable, or what is far leaves memory.
    fn fold(&mut self) {
        match self.rng.u32(0..3) {
            0 if self.store.freeze() => {
                self.queue.freeze();
                self.note(|| "freeze".to_owned());
            }
            1 => {
                let often = self.rng.bool();
                let rng = &mut self.rng;
                let Some((fold, carried)) = self.store.complete(|| often && rng.bool()) else { return };
                self.queue.folded(self.now, fold, &carried);
                self.note(|| format!("fold {fold} carried {carried:?}"));
                self.coverage.mark("fold");
            }
            _ => {
                let limit = self.rng.usize(1..200);
                let more = self.queue.sweep(limit);
                self.note(|| format!("sweep {limit} {more}"));
            }
        }
    }

    /// Loads what memory needs, as the engine does between rounds.
    fn load(&mut self) {
        while let Some(load) = self.queue.next_load(self.now) {
            let loaded = self.store.load(load);
            self.note(|| format!("{loaded:?}"));
            self.coverage.mark("load");
            self.queue.loaded(self.now, loaded);
        }
    }

    /// A slow disk: commands, and steps of a fold, come between the question and the answer.
    fn load_slowly(&mut self) {
        (0..6).for_each(|_| self.fold());
        self.now = self.choose_instant();
        let Some(load) = self.queue.next_load(self.now) else { return };
        let loaded = self.store.load(load);
        self.note(|| format!("loading {loaded:?}"));
        for _ in 0..self.rng.usize(1..5) {
            match self.rng.u32(0..4) {
                0 => self.fold(),
                1 => {
                    let command = self.choose_lease();
                    // What is on its way cannot be leased, nor what comes after it.
                    self.model.interrupted = true;
                    self.apply(&command);
                }
                _ => {
                    let command = self.choose_command();
                    self.model.interrupted = true;
                    self.apply(&command);
                }
            }
        }
        self.note(|| "loaded at last".to_owned());
        self.coverage.mark("loaded late");
        self.queue.loaded(self.now, loaded);
        self.advance();
    }

    /// Does a command with the stored record of its message, if memory does not know it.
    fn apply_with_disk(&mut self, command: Command, effects: &mut Effects) -> Answer {
        if matches!(command, Command::Lease(_)) {
            self.load();
        }
        let found = self.queue.missing(&command).and_then(|missing| self.store.find(&missing));
        if found.is_some() {
            self.coverage.mark("command on a message on disk");
        }
        self.queue.apply(self.now, command, found, effects)
    }

    fn pass_time(&mut self) {
        let target = self.choose_instant();
        if self.rng.bool() {
            self.note(|| format!("sleep until {target}"));
            self.now = target;
            return;
        }
        // As the engine does it: wake at each wake-up on the way.
        self.advance();
        let mut idle = 0;
        while let Some(wake) = self.queue.next_wakeup().filter(|&wake| wake <= target) {
            assert!(wake > self.now, "a wake-up that is already past: the engine would spin");
            let before = self.model.next_event();
            assert!(before.is_none_or(|event| wake <= event), "slept over {before:?} until {wake}");
            idle = if before == Some(wake) { 0 } else { idle + 1 };
            assert!(idle < 20, "wakes up again and again for nothing");
            self.now = wake;
            self.advance();
        }
        self.now = target;
        self.note(|| format!("walk until {target}"));
    }

    fn restart(&mut self) {
        let clean = self.rng.bool();
        if self.rng.bool() {
            // A fold that became durable and that the queue has not heard of.
            if self.store.freeze() {
                self.queue.freeze();
            }
            let carried = self.store.complete(|| self.rng.bool()).map(|fold| fold.1.len());
            self.note(|| format!("fold with {carried:?} carried, unheard"));
        }
        self.stop_and_start(clean);
    }

    /// The broker dies between a round and its commit: nobody has heard of the round, and it never was.
    fn lose_a_round(&mut self) {
        let (model, receipts, ids, issued) =
            (self.model.clone(), self.receipts.clone(), self.ids.clone(), self.issued.clone());
        for _ in 0..3 {
            let command = self.choose_command();
            self.apply_undurably(&command);
        }
        self.note(|| "the last three were lost".to_owned());
        self.coverage.mark("restart with a lost round");
        (self.model, self.receipts, self.ids, self.issued) = (model, receipts, ids, issued);
        self.stop_and_start(false);
    }

    fn stop_and_start(&mut self, clean: bool) {
        let leases = self.model.entries.values().filter(|entry| entry.lease.is_some()).count();
        let marked = self.model.entries.values().filter(|entry| entry.progress.cancel_on_lease_end).count();
        let kind = if clean { "clean" } else { "crash" };
        self.coverage.mark(format!("restart {kind} leases={}", leases > 0));
        if marked > 0 {
            self.coverage.mark(format!("restart {kind} with a lease to be cancelled"));
        }
        if clean {
            let mut effects = Effects::default();
            self.queue.close(self.now, &mut effects);
            self.store.commit(&effects.changes);
            assert!(self.store.is_clean(), "closing ends with Closed");
        }
        match self.rng.u32(0..6) {
            0..=2 => self.now = self.choose_instant(),
            // The wall clock was set back while the broker was down.
            3 => {
                let back = [1, 1_000, 60_000, 3_600_000];
                self.now = self.now.minus(back[self.rng.usize(0..back.len())]);
                self.coverage.mark("restart with the clock set back");
            }
            _ => {}
        }
        self.store.lose_unfinished_fold();
        let mut restore = Restore::new(LIMITS);
        for restored in self.store.restored() {
            restore.record(restored);
        }
        let mut effects = Effects::default();
        self.queue = restore.finish(self.now, &mut effects);
        self.note(|| format!("restart clean={clean} {effects:?}"));
        let (epoch, reserved) = (self.store.records.epoch + 1, self.store.records.reserved);
        let did = Did { answer: None, changes: &effects.changes };
        self.model.restart(self.now, clean, epoch, reserved, &did);
        self.store.commit(&effects.changes);
        assert_eq!(self.store.records.epoch, epoch, "each start has its own epoch");
        if self.rng.bool() {
            // A settlement may come in before anything is advanced.
            let command = self.choose_command();
            self.apply(&command);
        }
        self.advance();
        compare::everything(self);
    }

    fn grant_grace(&mut self) {
        let grace_ms = self.rng.u64(0..2_000);
        self.note(|| format!("grace {grace_ms}"));
        self.queue.grant_grace(self.now, grace_ms);
        self.model.grant_grace(self.now, grace_ms);
    }

    fn held(&self) -> Vec<(ConsumerId, TopicId, Receipt)> {
        let lease = |entry: &Entry| entry.lease.as_ref().map(|lease| (lease.consumer, entry.id.topic, lease.receipt));
        self.model.entries.values().filter_map(lease).collect()
    }

    fn note(&mut self, event: impl FnOnce() -> String) {
        if self.trace.keep {
            let event = format!("{} {}", self.now, event());
            self.trace.events.push(event);
        }
    }

    /// Counts the situations that a command meets.
    fn mark_before(&mut self, command: &Command) {
        let now = self.now;
        let lease = |receipt: &Receipt| {
            let entry = self.model.entries.get(&receipt.id.arrival)?;
            entry.lease.as_ref().filter(|lease| lease.receipt == *receipt)
        };
        let receipt = match command {
            Command::Ack(receipt) | Command::Extend { receipt, .. } => receipt,
            Command::Nack(nack) => &nack.receipt,
            Command::Lease(request) => {
                self.mark_hindrance(&request.topic);
                return;
            }
            _ => return,
        };
        if let Some(lease) = lease(receipt) {
            let old = lease.receipt.epoch != self.model.epoch;
            if lease.deadline <= now {
                self.coverage.mark("settled after the deadline, before expiry");
            }
            if old {
                self.coverage.mark("settled with a receipt of an earlier run");
            }
        }
    }

    fn mark_hindrance(&mut self, name: &TopicName) {
        let Some(topic) = self.model.topic(name) else { return };
        let (id, paused, cap) = (topic.record.id, topic.record.paused, topic.record.settings.concurrency);
        if self.model.ready(id).is_empty() {
            return;
        }
        if paused {
            self.coverage.mark("ready but paused");
        }
        if cap.is_some_and(|cap| self.model.count(id, State::Leased) >= cap as usize) {
            self.coverage.mark("ready but at the concurrency cap");
        }
    }

    fn mark_delivery(&mut self, delivery: &duewheel::queue::command::Delivery) {
        let progress = &delivery.message.progress;
        if delivery.redelivered && progress.deliveries == 0 {
            self.coverage.mark("redelivered after a crash");
        }
        if progress.redrives > 0 {
            self.coverage.mark("delivered after a redrive");
        }
        if delivery.message.history.as_ref().is_some_and(|history| history.omitted() > 0) {
            self.coverage.mark("delivered with omitted history");
        }
    }

    fn mark_changes(&mut self, changes: &[Change]) {
        for change in changes {
            let Change::Moved { message, entry, .. } = change else { continue };
            let progress = &message.progress;
            if let Some(entry) = entry {
                self.coverage.mark(format!("ended by {:?}", entry.outcome));
                let spent = progress.attempts >= entry.attempt;
                if entry.outcome == DeliveryOutcome::Failed {
                    self.coverage.mark(format!("failed spent={spent}"));
                }
                if entry.outcome == DeliveryOutcome::Returned {
                    self.coverage.mark(format!("returned spent={spent}"));
                }
            }
            if let Some((reason, _)) = progress.dead.filter(|_| entry.is_some()) {
                self.coverage.mark(format!("dead {reason:?} redriven={}", progress.redrives > 0));
            }
        }
    }
}

/// The answer of a command, for [`compare`].
pub(crate) type Answer = Result<Reply, Rejection>;
