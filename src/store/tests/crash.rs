//! Power cuts at every moment: what is restored is what was answered, and perhaps the one commit in flight.

use std::collections::{BTreeMap, BTreeSet};

use crate::queue::change::Change;
use crate::queue::time::Timestamp;
use crate::store::{Committer, FoldJob, Folder, StoreOptions, keys};

use super::model::Model;
use super::samples::{START, Samples};
use super::{Media, TINY};

/// A store in use, with what it must remember.
struct Run {
    seed: u64,
    media: Media,
    samples: Samples,
    now: Timestamp,
    committer: Committer,
    folder: Folder,
    job: Option<FoldJob>,
    /// All commits that were answered.
    durable: Model,
    /// And the one that was not.
    in_flight: Option<Model>,
    options: StoreOptions,
    body: u64,
    folds: u64,
    seen: Seen,
}

/// States that the random histories must reach.
#[derive(Default, Debug)]
struct Seen {
    restarts: u64,
    restarts_in_fold: u64,
    commits_in_fold: u64,
    folds: u64,
    failed_commits: u64,
    failed_folds: u64,
    failed_opens: u64,
    in_flight_survived: u64,
    torn: u64,
    clean: u64,
    left_pages: u64,
}

impl Run {
    fn new(seed: u64, options: StoreOptions, body: u64) -> Self {
        let media = Media::default();
        let (opened, _) = media.open(options).expect("a new store opens");
        let mut run = Self {
            seed,
            media,
            samples: Samples::new(seed),
            now: START,
            committer: opened.committer,
            folder: opened.folder,
            job: None,
            durable: Model::default(),
            in_flight: None,
            options,
            body,
            folds: 0,
            seen: Seen::default(),
        };
        assert!(run.commit(&[Change::Opened { epoch: opened.epoch, at: START }]));
        run
    }

    fn commit(&mut self, changes: &[Change]) -> bool {
        let mut after = self.durable.clone();
        for change in changes {
            after.apply(change);
        }
        if self.committer.commit(changes).is_ok() {
            self.durable = after;
            true
        } else {
            self.in_flight = Some(after);
            self.seen.failed_commits += 1;
            assert!(self.committer.commit(changes).is_err(), "seed {}: a failure is final", self.seed);
            false
        }
    }

    /// A commit of a few random changes.
    fn step(&mut self) -> bool {
        self.now = self.now.plus(self.samples.below(4_000));
        let mut after = self.durable.clone();
        let mut changes = Vec::new();
        for _ in 0..=self.samples.below(5) {
            let change = self.samples.change(&after, self.now, self.body);
            after.apply(&change);
            changes.push(change);
        }
        self.seen.commits_in_fold += u64::from(self.job.is_some());
        self.commit(&changes)
    }

    fn fold(&mut self) -> bool {
        let Some(job) = self.job.take() else { return true };
        let Ok(done) = self.folder.run(job) else {
            self.seen.failed_folds += 1;
            return false;
        };
        self.seen.left_pages += done.left;
        let folded = self.committer.folded(done).is_ok();
        self.seen.folds += u64::from(folded);
        self.folds += u64::from(folded);
        folded
    }

    /// Cuts the power, starts again and compares.
    fn restart(&mut self) {
        self.seen.restarts += 1;
        self.seen.restarts_in_fold += u64::from(self.job.is_some());
        self.crash();
        // The power may fail again while the store opens.
        while self.samples.below(4) == 0 {
            let calls = self.samples.below(5);
            self.media.log.fail_after(Some(calls));
            self.media.kv.fail_after(Some(calls));
            self.seen.failed_opens += u64::from(self.media.open(self.options).is_err());
            self.crash();
        }
        self.reopen();
    }

    fn crash(&mut self) {
        self.media.log.crash(&mut self.samples.chance);
        self.media.kv.crash(&mut self.samples.chance);
    }

    fn reopen(&mut self) {
        let seed = self.seed;
        self.job = None;
        let (opened, restored) =
            self.media.open(self.options).unwrap_or_else(|error| panic!("seed {seed}: does not open: {error}"));
        self.seen.torn += u64::from(opened.torn.is_some());
        self.seen.clean += u64::from(opened.clean);
        assert_eq!(opened.clean, restored.closed.is_some(), "seed {seed}");
        let in_flight = self.in_flight.take();
        match self.durable.difference(&restored, self.now) {
            None => {}
            Some(difference) => match in_flight {
                Some(in_flight) if in_flight.difference(&restored, self.now).is_none() => {
                    self.seen.in_flight_survived += 1;
                    self.durable = in_flight;
                }
                _ => panic!("seed {seed}: {difference}"),
            },
        }
        for (&topic, totals) in &self.durable.totals {
            assert_eq!(opened.committer.totals(topic), *totals, "seed {seed}");
            let live = self.durable.messages.values().filter(|message| message.id.topic == topic).count();
            assert_eq!(totals.live(), live as u64, "seed {seed}");
        }
        // History and dedup ids may be forgotten as time goes by; what is gone stays gone.
        self.durable.ended = restored.ended;
        self.durable.dedup = restored.dedup;
        assert!(opened.epoch > self.durable.epoch, "seed {seed}: an epoch is never used twice");
        self.committer = opened.committer;
        self.folder = opened.folder;
        assert!(self.commit(&[Change::Opened { epoch: opened.epoch, at: self.now }]), "seed {seed}");
    }

    fn close(&mut self) {
        let leases = vec![self.samples.lease()];
        assert!(self.commit(&[Change::Closed { at: self.now, leases }]));
        assert!(self.committer.freeze(self.now).is_none(), "a close stays the last change");
    }
}

#[test]
fn random_histories_with_power_cuts_lose_nothing_and_invent_nothing() {
    let mut seen = Seen::default();
    for seed in 0..300 {
        let mut run = Run::new(seed, TINY, if seed.is_multiple_of(5) { 12_000 } else { 300 });
        run.seen = seen;
        for _ in 0..120 {
            let went_well = match run.samples.below(40) {
                0 => {
                    run.restart();
                    true
                }
                1 => {
                    let calls = run.samples.below(8);
                    run.media.log.fail_after(Some(calls));
                    true
                }
                2 => {
                    let calls = run.samples.below(10);
                    run.media.kv.fail_after(Some(calls));
                    true
                }
                3 => {
                    run.media.log.fail_after(None);
                    run.close();
                    run.reopen();
                    true
                }
                4..10 => run.fold(),
                10 if run.job.is_none() => {
                    run.job = run.committer.freeze(run.now);
                    true
                }
                _ => {
                    if run.job.is_none() {
                        run.job = run.committer.fold_due(run.now);
                    }
                    run.step()
                }
            };
            if !went_well {
                run.restart();
            }
        }
        run.restart();
        seen = run.seen;
    }
    println!("{seen:?}");
    let enough = [
        (seen.restarts, 900),
        (seen.restarts_in_fold, 200),
        (seen.commits_in_fold, 3_000),
        (seen.folds, 1_000),
        (seen.failed_commits, 300),
        (seen.failed_folds, 150),
        (seen.failed_opens, 100),
        (seen.in_flight_survived, 20),
        (seen.torn, 20),
        (seen.clean, 300),
        (seen.left_pages, 2_000),
    ];
    for (n, (count, least)) in enough.into_iter().enumerate() {
        assert!(count >= least, "state {n} was reached {count} times, not {least}: {seen:?}");
    }
}

/// A store with two folds behind it and a third that is ready to run.
fn before_third_fold(seed: u64) -> Run {
    let mut run = Run::new(seed, TINY, if seed.is_multiple_of(2) { 9_000 } else { 200 });
    while run.folds < 2 {
        assert!(run.step());
        run.job = run.committer.fold_due(run.now);
        assert!(run.fold());
    }
    for _ in 0..12 {
        assert!(run.step());
    }
    run.job = run.committer.freeze(run.now);
    for _ in 0..3 {
        assert!(run.step());
    }
    assert!(run.job.is_some());
    run
}

#[test]
fn a_power_cut_between_any_two_steps_of_a_fold_loses_nothing() {
    for seed in 0..40 {
        for calls in 0.. {
            let mut run = before_third_fold(seed);
            run.media.kv.fail_after(Some(calls));
            let finished = run.fold();
            run.restart();
            // The interrupted fold is repeated over whatever it left behind.
            run.job = run.committer.freeze(run.now);
            assert!(run.fold(), "seed {seed}");
            run.restart();
            if finished {
                assert!(calls >= 4, "seed {seed}: a fold has at least intent, pages, barrier, last batch, barrier");
                break;
            }
        }
    }
}

#[test]
fn a_power_cut_at_any_write_of_completing_a_fold_loses_nothing() {
    for seed in 0..40 {
        for calls in 0.. {
            let mut run = before_third_fold(seed);
            run.media.log.fail_after(Some(calls));
            let finished = run.fold();
            run.restart();
            run.job = run.committer.freeze(run.now);
            assert!(run.fold(), "seed {seed}");
            run.restart();
            if finished {
                break;
            }
        }
    }
}

#[test]
fn a_power_cut_after_every_commit_restores_exactly_the_commits_before() {
    for seed in 0..10 {
        let mut run = Run::new(seed, TINY, 200);
        for _ in 0..60 {
            assert!(run.step());
            if run.job.is_none() {
                run.job = run.committer.fold_due(run.now);
            } else if run.samples.below(3) == 0 {
                assert!(run.fold());
            }
            let mut copy = Run { media: run.media.copy(), ..fork(&run) };
            copy.restart();
        }
        assert!(run.folds > 0);
    }
}

/// The same store opened from the same media, for looking at.
fn fork(run: &Run) -> Run {
    let media = run.media.copy();
    let (opened, _) = media.open(run.options).expect("opens");
    Run {
        seed: run.seed,
        media,
        samples: Samples::new(run.seed),
        now: run.now,
        committer: opened.committer,
        folder: opened.folder,
        job: None,
        durable: run.durable.clone(),
        in_flight: None,
        options: run.options,
        body: run.body,
        folds: run.folds,
        seen: Seen::default(),
    }
}

#[test]
fn a_fold_leaves_no_garbage_behind_even_after_one_that_was_interrupted() {
    let (mut chunks_seen, mut interrupted) = (0, 0);
    for seed in 0..20 {
        for calls in 0..8 {
            let mut run = before_third_fold(seed);
            run.media.kv.fail_after(Some(calls));
            interrupted += u64::from(!run.fold());
            run.restart();
            // Twice, since the first may only be the completion of the interrupted one.
            for _ in 0..2 {
                while run.job.is_none() {
                    run.job = run.committer.freeze(run.now);
                    assert!(run.job.is_some() || run.step());
                }
                assert!(run.fold());
            }
            let keys = run.media.kv.keys();
            let of_kind = |kind: u8| keys.iter().filter(move |key| key[0] == kind);
            assert_eq!(of_kind(keys::PAGE).count(), run.folder.pages(), "seed {seed}: pages that are not listed");
            assert_eq!(of_kind(keys::INTENT).count(), 0, "seed {seed}");
            let mut runs: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
            for key in of_kind(keys::CHUNK) {
                let (arrival, number) = keys::parse_chunk_key(key).expect("a chunk key");
                runs.entry(arrival).or_default().insert(number);
                chunks_seen += 1;
            }
            for (arrival, runs) in runs {
                assert!(run.durable.messages.contains_key(&arrival), "seed {seed}: chunks of a message that is gone");
                assert_eq!(runs.len(), 1, "seed {seed}: chunks of an old copy");
            }
        }
    }
    assert!(chunks_seen > 250 && interrupted > 50, "{chunks_seen} chunks, {interrupted} interrupted folds");
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let keys = |_| {
        let mut run = before_third_fold(4);
        assert!(run.fold());
        (run.media.kv.keys(), run.media.log.calls(), run.media.kv.calls())
    };
    assert_eq!(keys(1), keys(2));
}

#[test]
fn every_commit_is_one_write_and_one_sync() {
    let roomy = StoreOptions { segment_bytes: 1 << 20, ..TINY };
    let mut run = Run::new(1, roomy, 200);
    for n in 0..50 {
        if n == 25 {
            run.job = run.committer.freeze(run.now);
        }
        let before = run.media.log.calls();
        assert!(run.step());
        let after = run.media.log.calls();
        assert_eq!((after.writes - before.writes, after.syncs - before.syncs), (1, 1), "commit {n}");
        assert_eq!(run.media.kv.calls().writes, 0, "a commit does not touch the pages");
    }
    // An empty round needs nothing.
    let before = run.media.log.calls();
    run.committer.commit(&[]).expect("nothing to do");
    assert_eq!(run.media.log.calls(), before);
}

#[test]
fn a_move_that_is_more_than_a_difference_is_written_whole() {
    for seed in 0..50 {
        let mut run = Run::new(seed, TINY, 200);
        let produced = run.samples.produce(crate::queue::message::TopicId(1), START, 200);
        let Change::Produced(before) = produced.clone() else { unreachable!("a produce") };
        assert!(run.commit(&[produced]));
        let mut message = before.clone();
        match seed % 3 {
            // Two entries at once, of which the change names one.
            0 => (0..2).for_each(|_| message.record(run.samples.entry())),
            1 => message.record(run.samples.entry()),
            _ => {}
        }
        let last = message.history.as_ref().and_then(|history| history.iter().last()).cloned();
        let entry = last.filter(|_| seed % 3 == 0);
        assert!(run.commit(&[Change::Moved { message, previous: before.place(), entry }]));
        run.restart();
    }
}

#[test]
fn a_nack_is_a_small_write_however_large_the_body() {
    let roomy = StoreOptions { segment_bytes: 1 << 20, ..TINY };
    let mut run = Run::new(3, roomy, 0);
    let mut produced = loop {
        if let Change::Produced(message) = run.samples.change(&run.durable, START, 0) {
            break message;
        }
    };
    let content = crate::queue::message::Content { body: vec![1; 100_000].into(), ..(*produced.content).clone() };
    produced.content = content.into();
    assert!(run.commit(&[Change::Produced(produced.clone())]));
    let before = run.committer.pressure();
    let mut moved = produced.clone();
    moved.progress.attempts += 1;
    moved.progress.due_at = START.plus(1_000);
    moved.record(run.samples.entry());
    let entry = moved.history.as_ref().and_then(|history| history.iter().last()).cloned();
    assert!(run.commit(&[Change::Moved { message: moved, previous: produced.place(), entry }]));
    let bytes = (run.committer.pressure() - before) * TINY.generation_bytes as f64;
    assert!(bytes < 400.0, "a nack took {bytes} bytes");
    run.restart();
}
