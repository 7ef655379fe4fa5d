//! The owner thread: it owns the queue and does all work on it, in rounds.

use std::cell::RefCell;
use std::mem;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use super::commit::{CommitLane, Folded};
use super::damage::Damage;
use super::input::{Input, View};
use super::look::LookInput;
use super::pages::{LoadInput, Reads};
use super::round::{Release, Round, SnapshotReply};
use super::serve::Serving;
use super::service::Service;
use super::sight::Sight;
use super::signals::Signals;
use super::stats::Tally;
use super::{GRACE_MS, LONG_PAUSE_MS, OVERTAKEN_WAIT_MS};
use crate::clock::Clock;
use crate::queue::command::{Command, Rejection, Reply};
use crate::queue::far::{Load, Loaded};
use crate::queue::quarantine::DamagedPart;
use crate::queue::receipt::Receipt;
use crate::queue::time::Timestamp;
use crate::queue::values::TopicName;
use crate::queue::{Effects, Queue};
use crate::store::{DirectoryDelta, ReadError};

/// A round takes no further input from this cost on (see [`cost`](super::admission::cost)).
const ROUND_BYTES: usize = 2 * 1024 * 1024;

/// What an input that was not admitted by its cost is reckoned to cost.
const INPUT_BYTES: usize = 1024;

/// Most due messages and lease ends of one round.
const ROUND_TIMERS: usize = 4_096;

/// Messages in memory that one round looks at after a fold, to see whether they are far.
const ROUND_SWEEP: usize = 4_096;

/// The state of the owner thread.
pub(super) struct Owner<Done> {
    pub(super) queue: Queue,
    pub(super) clock: Clock,
    pub(super) inbox: Receiver<Input>,
    pub(super) commits: CommitLane<Done>,
    /// Finds what memory does not hold, for commands and questions.
    pub(super) pages: RefCell<Box<dyn Reads>>,
    /// The load thread's inbox.
    pub(super) loads: Sender<LoadInput>,
    /// The look thread's inbox.
    pub(super) looks: Sender<LookInput>,
    /// Damage of the pages.
    pub(super) damage: Damage,
    /// Somebody waits for a snapshot of the end of a generation.
    pub(super) snapshot: Option<SnapshotReply>,
    /// A generation has ended and is not in pages yet.
    pub(super) is_folding: bool,
    pub(super) signals: Arc<Signals>,
    pub(super) started_at: Timestamp,
    pub(super) service: Service,
    pub(super) tally: Tally,
    pub(super) is_draining: bool,
    /// When the last round was.
    pub(super) last_round_at: Timestamp,
    /// A commit was stuck; timed work and serving wait for its end, and then live leases get their grace.
    pub(super) is_stuck: bool,
}

/// A round in the making.
struct Turn {
    now: Timestamp,
    effects: Effects,
    releases: Vec<Release>,
    /// Questions, answered at the end of the round: they see all that is true at its instant.
    views: Vec<(View, OwnedSemaphorePermit)>,
}

impl Turn {
    fn at(now: Timestamp) -> Self {
        Self { now, effects: Effects::default(), releases: Vec::new(), views: Vec::new() }
    }
}

impl<Done> Owner<Done> {
    /// Works until it is told to end or nothing can be committed any more.
    pub(super) fn run(mut self) {
        let mut is_more = false;
        while let ControlFlow::Continue(more) = self.round(is_more) {
            is_more = more;
        }
    }

    /// One round, which waits for something to do unless there is more. Breaks at the end; otherwise returns true if
    /// there is more to do at this instant.
    pub(super) fn round(&mut self, is_more: bool) -> ControlFlow<(), bool> {
        let inputs = self.take_inputs(if is_more { Duration::ZERO } else { self.sleep() });
        let mut turn = Turn::at(self.clock.now());
        self.note_pause(turn.now);
        for input in inputs {
            match input {
                Input::Stop => return ControlFlow::Break(()),
                Input::Close => {
                    self.queue.close(turn.now, &mut turn.effects);
                    self.hand_over(turn, true)?;
                    return ControlFlow::Break(());
                }
                input => self.apply(input, &mut turn),
            }
        }
        let damaged = self.pages.get_mut().take_damaged();
        self.damaged(damaged, &mut turn);
        let is_more = !self.is_stuck && self.pass_time(&mut turn);
        let is_more = self.queue.sweep(ROUND_SWEEP) || is_more;
        self.ask_for_loads(turn.now);
        self.hand_over(turn, false)?;
        ControlFlow::Continue(is_more)
    }

    /// How long nothing will be to do unless something comes in.
    pub(super) fn sleep(&self) -> Duration {
        if self.is_stuck {
            return self.clock.sleep_until(None);
        }
        let next = self.queue.next_wakeup().into_iter().chain(self.service.next_deadline()).min();
        self.clock.sleep_until(next)
    }

    /// Waits for input and takes what is there, within the round's bound. After an end nothing counts.
    fn take_inputs(&self, wait: Duration) -> Vec<Input> {
        let mut inputs = Vec::new();
        let mut bytes = 0;
        let mut next = self.inbox.recv_timeout(wait).ok();
        while let Some(input) = next {
            bytes += match &input {
                Input::Commands { permit, .. } | Input::View { permit, .. } => permit.num_permits(),
                _ => INPUT_BYTES,
            };
            let is_full = bytes >= ROUND_BYTES || matches!(input, Input::Stop | Input::Close);
            inputs.push(input);
            next = if is_full { None } else { self.inbox.try_recv().ok() };
        }
        inputs
    }

    /// After a long pause, or when a commit that was stuck has ended, settlements may be under way that were
    /// made in time: live leases get a grace.
    fn note_pause(&mut self, now: Timestamp) {
        let paused_ms = now.since(mem::replace(&mut self.last_round_at, now));
        let was_stuck = mem::replace(&mut self.is_stuck, self.signals.is_stuck(now));
        if !self.is_stuck && (was_stuck || paused_ms > LONG_PAUSE_MS) {
            self.queue.grant_grace(now, GRACE_MS);
            tracing::warn!(paused_ms, was_stuck, "the broker was held up; live leases get a grace");
        }
    }

    fn apply(&mut self, input: Input, turn: &mut Turn) {
        let now = turn.now;
        match input {
            Input::Commands { commands, reply, permit } => {
                let results = commands.into_iter().map(|command| self.apply_command(command, turn)).collect();
                turn.releases.push(Release::Results(reply, results, permit));
            }
            Input::View { view, permit } => turn.views.push((view, permit)),
            // If that thread has panicked the engine has failed.
            Input::Look(question) => drop(self.looks.send(LookInput::Question(question))),
            Input::Fetch { reply, .. } if self.is_draining => turn.releases.push(Release::Fetched(reply, Ok(vec![]))),
            Input::Fetch { id, fetch, reply } => {
                turn.releases.extend(self.service.fetch(now, &self.queue, id, fetch, reply));
            }
            Input::FetchDropped(id) => drop(self.service.end_fetch(id)),
            // The dropped reply says that there is no stream.
            Input::Attach { .. } if self.is_draining => {}
            Input::Attach { consumer, name, windows, delivered, reply } => {
                let attached = self.service.attach(&self.queue, consumer, name, windows, delivered);
                turn.releases.push(Release::Show(Box::new(move || drop(reply.send(attached))), None));
            }
            Input::CaughtUp(consumer) => self.service.caught_up(consumer),
            Input::Detach { unread, .. } if self.is_draining => self.give_back(unread, turn),
            Input::Detach { consumer, .. } => {
                drop(self.service.detach(consumer));
                let returned = self.queue.apply(now, Command::ReturnAll(consumer), None, &mut turn.effects);
                returned.expect("returning all leases of a stream is never refused");
            }
            Input::Return(receipts) => self.give_back(receipts, turn),
            Input::Drain => {
                self.is_draining = true;
                turn.releases.extend(self.service.end());
            }
            Input::Snapshot(reply) => self.snapshot = Some(reply),
            Input::Folded(folded) => self.folded(now, folded),
            Input::Compacted(delta) => self.follow(delta),
            Input::Damaged(parts) => self.damaged(parts, turn),
            Input::Loaded(load, result) => self.loaded(now, load, result),
            Input::Wake => {}
            Input::Close | Input::Stop => unreachable!("the round ends with these"),
        }
    }

    /// Ends leases that never reached their consumer. Those that have ended meanwhile need nothing.
    fn give_back(&mut self, receipts: Vec<Receipt>, turn: &mut Turn) {
        for receipt in receipts {
            drop(self.apply_command(Command::Return(receipt), turn));
        }
    }

    /// Applies a command, with the stored record of its message if memory does not hold it.
    fn apply_command(&mut self, command: Command, turn: &mut Turn) -> Result<Reply, Rejection> {
        let missing = self.queue.missing(&command);
        let found = match missing.map(|missing| self.pages.borrow_mut().find(&missing)).transpose() {
            Ok(found) => found.flatten(),
            Err(error) => return Err(unreadable(&error)),
        };
        match command {
            Command::DeleteTopic { name, purge } => self.delete_topic(&name, purge, turn),
            command => self.queue.apply(turn.now, command, found, &mut turn.effects),
        }
    }

    /// Deletes a topic; whoever waits for its messages hears of it when that is durable.
    fn delete_topic(&mut self, name: &TopicName, purge: bool, turn: &mut Turn) -> Result<Reply, Rejection> {
        // What has ended is in pages too, and without a fold of its own an idle broker would keep it there.
        let record = self.queue.topic(name);
        let pages_hold_some = record.is_some_and(|record| self.pages.borrow().pages_of(record.id) > 0);
        let deleted = self.queue.delete_topic(name, purge, pages_hold_some, &mut turn.effects)?;
        let (releases, consumers) = self.service.topic_deleted(deleted.id, name);
        turn.releases.extend(releases);
        for consumer in consumers {
            let returned = self.queue.apply(turn.now, Command::ReturnAll(consumer), None, &mut turn.effects);
            returned.expect("returning all leases of a stream is never refused");
        }
        self.tally.forget(deleted.id);
        Ok(Reply::TopicDeleted(deleted))
    }

    /// A fold is in pages: what is far may leave memory.
    fn folded(&mut self, now: Timestamp, folded: Folded) {
        self.is_folding = false;
        self.damage.folded(&mut self.queue, &folded.set_aside);
        self.queue.folded(now, folded.fold, &folded.carried);
        if let Some(delta) = folded.delta {
            self.follow(delta);
        }
    }

    /// The pages have changed: all readers are to know.
    fn follow(&mut self, delta: Arc<DirectoryDelta>) {
        self.pages.get_mut().apply(&delta);
        self.queue.retry_loads();
        // It fails only if the load thread has panicked; then the engine has failed.
        let _ended = self.loads.send(LoadInput::Delta(Arc::clone(&delta)));
        let _ended = self.looks.send(LookInput::Delta(delta));
    }

    fn ask_for_loads(&mut self, now: Timestamp) {
        while let Some(load) = self.queue.next_load(now) {
            let _ended = self.loads.send(LoadInput::Load(load));
        }
    }

    /// Damage that was found for the first time is to be set aside by the next fold.
    fn damaged(&mut self, parts: Vec<DamagedPart>, turn: &mut Turn) {
        for part in parts {
            if self.damage.is_new(part, &self.queue) {
                self.queue.set_aside(part, &mut turn.effects);
                self.pages.get_mut().avoid(&part);
                let _ended = self.loads.send(LoadInput::Avoid(part));
                let _ended = self.looks.send(LookInput::Avoid(part));
            }
        }
    }

    fn loaded(&mut self, now: Timestamp, load: Load, result: Result<Loaded, ReadError>) {
        match result {
            Ok(_) if self.damage.is_before(load.topic) => self.queue.load_failed(load, now),
            Ok(loaded) => self.queue.loaded(now, loaded),
            Err(ReadError::Overtaken) => self.queue.load_failed(load, now.plus(OVERTAKEN_WAIT_MS)),
            // A second try would end in the same way, and at once; it is made when the pages have changed.
            Err(error) => self.damage.block(load, &error),
        }
    }

    /// Ends the journal's generation with this round if it is full, or if a snapshot is wanted, and no other is being
    /// folded.
    fn freeze(&mut self) -> bool {
        let is_wanted = self.snapshot.is_some() || self.signals.is_journal_full.load(Ordering::Relaxed);
        let is_freeze = !self.is_folding && is_wanted;
        if is_freeze {
            self.is_folding = true;
            self.queue.freeze();
        }
        is_freeze
    }

    /// Timed work, then serving. True if there is more of either at this instant.
    fn pass_time(&mut self, turn: &mut Turn) -> bool {
        let is_more = self.queue.advance(turn.now, ROUND_TIMERS, &mut turn.effects);
        for (consumer, topic) in turn.effects.ended_leases.drain(..) {
            self.service.lease_ended(consumer, topic);
        }
        let Turn { now, effects, releases, .. } = turn;
        let serving = Serving { now: *now, queue: &mut self.queue, effects, tally: &mut self.tally, releases };
        self.service.serve(serving) || is_more
    }

    /// Hands the round to the commit thread. Breaks if that has ended.
    fn hand_over(&mut self, turn: Turn, is_last: bool) -> ControlFlow<()> {
        let Turn { now, effects, mut releases, views } = turn;
        for (consumer, topic) in effects.ended_leases {
            self.service.lease_ended(consumer, topic);
        }
        let show = |(view, permit): (View, _)| Release::Show(view(&self.sight(now)), Some(permit));
        releases.extend(views.into_iter().map(show));
        let is_freeze = !is_last && self.freeze();
        let snapshot = self.snapshot.take_if(|_| is_freeze);
        let round = Round { changes: effects.changes, releases, is_last, is_freeze, snapshot };
        if round.is_empty() || self.commits.send(round) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn sight(&self, now: Timestamp) -> Sight<'_> {
        Sight {
            now,
            queue: &self.queue,
            pages: &self.pages,
            service: &self.service,
            tally: &self.tally,
            signals: &self.signals,
            clock: &self.clock,
            started_at: self.started_at,
        }
    }
}

/// The record that a command needs cannot be read.
fn unreadable(error: &ReadError) -> Rejection {
    match error {
        // A page store that has failed ends the broker: it is to be asked again after that.
        ReadError::Overtaken | ReadError::Failed { .. } => Rejection::PagesMoving,
        ReadError::Damaged { .. } => {
            // The damage itself is told once, as an error.
            tracing::debug!(%error, "a message cannot be read");
            Rejection::Damaged(error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use bytes::Bytes;
    use tokio::sync::{Semaphore, oneshot};

    use super::*;
    use crate::clock::{ManualTime, StepPolicy};
    use crate::engine::NoPages;
    use crate::engine::commit::CommitInput;
    use crate::engine::input::Results;
    use crate::queue::Restore;
    use crate::queue::change::{Restored, TopicRecord};
    use crate::queue::command::{ConsumerId, Due, FindRejection, KeyPolicy, LeaseRequest, Produce, Reply, Target};
    use crate::queue::dead::{DeadQuery, StoredDead};
    use crate::queue::due::FirstInPages;
    use crate::queue::far::Missing;
    use crate::queue::limits::Limits;
    use crate::queue::message::{Message, MessageId, TopicId};
    use crate::queue::settings::TopicSettings;
    use crate::queue::values::{ConsumerName, Headers};
    use crate::store::DirectoryDelta;

    /// An owner whose rounds are done by hand.
    struct ByHand {
        owner: Owner<()>,
        time: ManualTime,
        inbox: Sender<Input>,
        rounds: Receiver<CommitInput<()>>,
        permits: Arc<Semaphore>,
    }

    impl ByHand {
        fn new() -> Self {
            let time = ManualTime::new(Timestamp::from_millis(1_700_000_000_000));
            let clock = time.clock(StepPolicy::Report);
            let (inbox, inputs) = mpsc::channel();
            let (sender, rounds) = mpsc::sync_channel(100);
            let owner = Owner {
                queue: Restore::new(Limits::default()).finish(clock.now(), &mut Effects::default()),
                started_at: clock.now(),
                last_round_at: clock.now(),
                clock,
                inbox: inputs,
                commits: CommitLane { sender },
                pages: RefCell::new(Box::new(NoPages)),
                loads: mpsc::channel().0,
                looks: mpsc::channel().0,
                damage: Damage::default(),
                snapshot: None,
                is_folding: false,
                signals: Arc::new(Signals::new(1)),
                service: Service::default(),
                tally: Tally::default(),
                is_draining: false,
                is_stuck: false,
            };
            Self { owner, time, inbox, rounds, permits: Arc::new(Semaphore::new(1 << 30)) }
        }

        fn tell(&self, commands: Vec<Command>, cost: u32) -> oneshot::Receiver<Results> {
            let (reply, answer) = oneshot::channel();
            let permit = Arc::clone(&self.permits).try_acquire_many_owned(cost).expect("there are plenty");
            self.inbox.send(Input::Commands { commands, reply, permit }).expect("the owner is here");
            answer
        }

        /// Does a round and lets out what it handed over.
        fn round(&mut self) -> bool {
            let more = self.owner.round(true);
            while let Ok(CommitInput::Round(round)) = self.rounds.try_recv() {
                round.releases.into_iter().for_each(|release| release.let_go(&self.inbox));
            }
            more == ControlFlow::Continue(true)
        }

        fn apply(&mut self, command: Command) -> Reply {
            let mut answer = self.tell(vec![command], 1);
            self.round();
            let result = answer.try_recv().expect("it was answered").pop().expect("one result");
            result.expect("it was accepted")
        }
    }

    fn topic() -> TopicName {
        TopicName::parse("t").expect("a good name")
    }

    fn produce() -> Command {
        Command::Produce(Produce {
            topic: topic(),
            key: None,
            headers: Headers::default(),
            body: Bytes::new(),
            due: Some(Due::After(0)),
            schedule: None,
            max_attempts: None,
            key_policy: KeyPolicy::Reject,
            dedup_id: None,
        })
    }

    #[test]
    fn a_settlement_that_waits_when_its_lease_ends_is_in_time() {
        let mut hand = ByHand::new();
        hand.apply(Command::CreateTopic {
            name: topic(),
            settings: TopicSettings { lease_ms: 900, ..TopicSettings::default() },
        });
        hand.apply(produce());
        hand.apply(produce());
        let Reply::Leased(leased) = hand.apply(Command::Lease(LeaseRequest {
            topic: topic(),
            consumer: ConsumerId::NONE,
            consumer_name: ConsumerName::parse("c").expect("a good name"),
            max: 2,
            lease_ms: None,
        })) else {
            panic!("a lease is answered by deliveries")
        };
        hand.time.advance_ms(900);
        assert_eq!(hand.apply(Command::Ack(leased[0].receipt)), Reply::Acked { repeated: false });
        let mut late = hand.tell(vec![Command::Ack(leased[1].receipt)], 1);
        hand.round();
        let results = late.try_recv().expect("it was answered");
        assert!(results[0].is_err(), "its lease has ended in the round before: {results:?}");
    }

    /// A queue with a topic of which one message is on disk only, due at `due_at`.
    fn one_stored(due_at: Timestamp, limits: Limits) -> Queue {
        let (id, settings) = (TopicId(1), TopicSettings::default());
        let mut restore = Restore::new(limits);
        let record = TopicRecord { id, name: topic(), settings, paused: false, created_at: due_at };
        restore.record(Restored::Topic(record));
        restore.record(Restored::Stored { topic: id, waiting: 1, dead: 0, first: Some((due_at, 0)) });
        restore.finish(due_at, &mut Effects::default())
    }

    #[test]
    fn a_load_that_a_fold_has_overtaken_is_asked_for_again_after_a_while_and_not_in_a_loop() {
        let mut hand = ByHand::new();
        hand.owner.queue = one_stored(hand.owner.clock.now(), Limits::default());
        let (sender, loads) = mpsc::channel();
        hand.owner.loads = sender;
        hand.round();
        let Ok(LoadInput::Load(load)) = loads.try_recv() else { panic!("what is due is asked for") };
        hand.inbox.send(Input::Loaded(load, Err(ReadError::Overtaken))).expect("the owner is here");
        hand.round();
        hand.time.advance_ms(OVERTAKEN_WAIT_MS - 1);
        hand.round();
        assert!(loads.try_recv().is_err(), "it was asked for too soon");
        assert_eq!(hand.owner.queue.next_wakeup(), Some(hand.owner.clock.now().plus(1)));
        hand.time.advance_ms(1);
        hand.round();
        assert!(loads.try_recv().is_ok(), "it is asked for again");
    }

    #[test]
    fn the_owner_wakes_up_for_a_load_to_be_repeated_although_much_is_ready_that_comes_after_it() {
        let mut hand = ByHand::new();
        let mut limits = Limits::default();
        limits.near.load_below = 1;
        hand.owner.queue = one_stored(hand.owner.clock.now(), limits);
        let (sender, loads) = mpsc::channel();
        hand.owner.loads = sender;
        hand.time.advance_ms(1);
        (0..3).for_each(|_| drop(hand.apply(produce())));
        let Ok(LoadInput::Load(load)) = loads.try_recv() else { panic!("what is due is asked for") };
        hand.inbox.send(Input::Loaded(load, Err(ReadError::Overtaken))).expect("the owner is here");
        hand.round();
        let again_at = hand.owner.clock.now().plus(OVERTAKEN_WAIT_MS);
        assert_eq!(hand.owner.queue.next_wakeup(), Some(again_at));
        hand.time.advance_ms(OVERTAKEN_WAIT_MS);
        hand.round();
        assert!(loads.try_recv().is_ok(), "it is asked for again");
    }

    /// Pages that a fold is changing.
    struct Moving;

    impl Reads for Moving {
        fn apply(&mut self, _: &DirectoryDelta) {}

        fn load(&mut self, _: Load) -> Result<Loaded, ReadError> {
            Err(ReadError::Overtaken)
        }

        fn find(&mut self, _: &Missing) -> Result<Option<Message>, ReadError> {
            Err(ReadError::Overtaken)
        }

        fn dead(&mut self, _: TopicId, _: Option<(Timestamp, u64)>, _: usize) -> Result<StoredDead, ReadError> {
            Err(ReadError::Overtaken)
        }

        fn due(&mut self, _: TopicId, _: &[Timestamp]) -> Result<Vec<u64>, ReadError> {
            Err(ReadError::Overtaken)
        }

        fn first_due(&mut self, _: TopicId, _: (Timestamp, u64)) -> Result<FirstInPages, ReadError> {
            Err(ReadError::Overtaken)
        }

        fn run(&self) -> u64 {
            1
        }
    }

    #[test]
    fn a_question_during_a_fold_is_to_be_repeated_and_finds_no_damage() {
        let mut hand = ByHand::new();
        let now = hand.owner.clock.now();
        hand.owner.queue = one_stored(now, Limits::default());
        hand.owner.pages = RefCell::new(Box::new(Moving));
        let target = Target::Id(MessageId { topic: TopicId(1), birth_due: now, arrival: 0 });
        let sight = hand.owner.sight(now);
        let found = sight.message(&topic(), &target).map(|_| ());
        let query = DeadQuery { limit: 10, ..DeadQuery::default() };
        let listed = sight.dead_letters(&topic(), &query).map(|_| ());
        assert_eq!((found, listed), (Err(FindRejection::PagesMoving), Err(FindRejection::PagesMoving)));
    }

    #[test]
    fn a_round_takes_a_bounded_part_of_a_full_inbox() {
        let mut hand = ByHand::new();
        let half = u32::try_from(ROUND_BYTES / 2).expect("a round is small");
        let mut answers: Vec<_> = (0..5).map(|_| hand.tell(vec![produce()], half)).collect();
        for answered in [2, 4, 5] {
            hand.round();
            let got = answers.iter_mut().filter(|answer| !answer.is_empty() || answer.is_terminated()).count();
            assert_eq!(got, answered);
        }
    }
}
