//! Power cuts at every moment: what is restored is what was answered, and perhaps the one commit in flight.

use crate::queue::change::Change;
use crate::queue::message::TopicId;
use crate::store::StoreOptions;

use super::TINY;
use super::run::{Run, Seen, fork};
use super::samples::START;

#[test]
fn random_histories_with_power_cuts_lose_nothing_and_invent_nothing() {
    let mut seen = Seen::default();
    for seed in 0..300 {
        let mut run = Run::new(seed, TINY, if seed.is_multiple_of(5) { 12_000 } else { 300 });
        run.seen = seen;
        run.samples.deletes = seed % 2 == 0;
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
                    run.freeze();
                    true
                }
                _ => {
                    run.freeze_if_full();
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
        (seen.old_reads, 1_000),
        (seen.overtaken, 1_000),
        (seen.compactions, 100),
        (seen.failed_compactions, 10),
        (seen.given_back, 100),
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
        run.freeze_if_full();
        assert!(run.fold());
    }
    for _ in 0..12 {
        assert!(run.step());
    }
    run.freeze();
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
            run.freeze();
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
            run.freeze();
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
                run.freeze_if_full();
            } else if run.samples.below(3) == 0 {
                assert!(run.fold());
            }
            let mut copy = Run { media: run.media.copy(), ..fork(&run) };
            copy.restart();
        }
        assert!(run.folds > 0);
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
                    run.freeze();
                    assert!(run.job.is_some() || run.step());
                }
                assert!(run.fold());
            }
            chunks_seen += run.check_garbage();
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
            run.freeze();
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
        let produced = run.samples.produce(TopicId(1), START, 200);
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
