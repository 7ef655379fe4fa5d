//! The whole broker in one thread: the real queue, engine, journal, folds and pages over media that lose what was not
//! synced, with a simulated clock and clients that do everything wrong. See `docs/architecture.md`.
//!
//! ```text
//! DUEWHEEL_SIM_HISTORIES=10000 cargo test --release --test simulation fresh -- --nocapture
//! DUEWHEEL_SIM_SEED=n cargo test --test simulation fresh -- --nocapture
//! ```

#[path = "simulation/asked.rs"]
mod asked;
#[path = "simulation/caps.rs"]
mod caps;
#[path = "simulation/choose.rs"]
mod choose;
#[path = "simulation/clients.rs"]
mod clients;
#[path = "simulation/compare.rs"]
mod compare;
#[path = "queue_model/coverage.rs"]
mod coverage;
#[path = "simulation/drain.rs"]
mod drain;
#[path = "simulation/fault.rs"]
mod fault;
#[path = "simulation/ledger.rs"]
mod ledger;
#[path = "simulation/media.rs"]
mod media;
#[path = "simulation/questions.rs"]
mod questions;
#[path = "simulation/reached.rs"]
mod reached;
#[path = "simulation/recovery.rs"]
mod recovery;
#[path = "simulation/rules.rs"]
mod rules;
#[path = "simulation/shadow.rs"]
mod shadow;
#[path = "simulation/world.rs"]
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use duewheel::queue::command::Command;
use duewheel::queue::values::{DedupId, Key};

use coverage::Coverage;
use fault::Fault;
use reached::REACHED;
use world::World;

const STEPS: usize = 1_000;
const HISTORIES: u64 = 200;
const FRESH_HISTORIES: u64 = 60;
const FIXED_SEED: u64 = 20_240_229;

/// A history that has found something.
struct Failure {
    problem: String,
    log: Vec<String>,
}

/// One line about a command.
fn describe(command: &Command) -> String {
    match command {
        Command::Produce(produce) => {
            let name = String::from_utf8_lossy(&produce.body[..produce.body.len().min(8)]).into_owned();
            let (key, dedup) = (produce.key.as_ref().map(Key::as_str), produce.dedup_id.as_ref().map(DedupId::as_str));
            format!("produce {name:?} to {} due {:?} key {key:?} dedup {dedup:?}", produce.topic.as_str(), produce.due)
        }
        command => format!("{command:?}"),
    }
}

fn history(seed: u64, steps: usize, fault: Fault) -> Result<(Coverage, Vec<String>), Failure> {
    let mut world = World::new(seed, fault);
    let played = catch_unwind(AssertUnwindSafe(|| world.play(steps)));
    let log = std::mem::take(&mut world.log);
    let problem = match played {
        Ok(Ok(())) => return Ok((std::mem::take(&mut world.coverage), log)),
        Ok(Err(violation)) => violation,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            format!("a panic: {}", text.or_else(|| panic.downcast_ref().copied()).unwrap_or("without words"))
        }
    };
    Err(Failure { problem, log })
}

fn histories(seed: u64, count: u64) -> Coverage {
    let mut coverage = Coverage::default();
    for seed in (0..count).map(|history| seed.wrapping_add(history)) {
        match history(seed, STEPS, Fault::None) {
            Ok((reached, _)) => coverage.add(reached),
            Err(Failure { problem, log }) => {
                let tail = setting("DUEWHEEL_SIM_LOG").map_or(log.len().saturating_sub(80), |_| 0);
                log[tail..].iter().for_each(|line| eprintln!("{line}"));
                panic!("{problem}\nfailed: run it again with DUEWHEEL_SIM_SEED={seed} DUEWHEEL_SIM_HISTORIES=1");
            }
        }
    }
    coverage
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn the_broker_keeps_its_promises_over_crashes_and_every_state_is_reached() {
    println!("seed {FIXED_SEED}");
    let coverage = histories(FIXED_SEED, HISTORIES);
    println!("{coverage}");
    coverage.assert_at_least(REACHED);
}

#[test]
fn the_broker_keeps_its_promises_over_crashes_on_fresh_seeds() {
    let seed = setting("DUEWHEEL_SIM_SEED");
    let count = setting("DUEWHEEL_SIM_HISTORIES").unwrap_or(if seed.is_some() { 1 } else { FRESH_HISTORIES });
    let seed = seed.unwrap_or_else(|| fastrand::u64(..1 << 40));
    println!("DUEWHEEL_SIM_SEED={seed}");
    let coverage = histories(seed, count);
    if count > FRESH_HISTORIES {
        println!("{coverage}");
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let log =
        |seed| history(seed, STEPS, Fault::None).map_or_else(|failure| panic!("{}", failure.problem), |(_, log)| log);
    for seed in FIXED_SEED..FIXED_SEED + 4 {
        let (once, twice) = (log(seed), log(seed));
        assert!(once.len() > STEPS, "a history has events");
        let difference = once.iter().zip(&twice).position(|(once, twice)| once != twice);
        assert_eq!(difference, None, "seed {seed}: {:?}", difference.map(|at| (&once[at], &twice[at])));
        assert_eq!(once.len(), twice.len(), "seed {seed}");
    }
    assert_ne!(log(1), log(2), "seeds differ");
}

/// Plays histories until the fault is reported, which must be soon and in one of these words.
fn assert_reported(fault: Fault, words: &[&str]) {
    for seed in 0..60 {
        if let Err(Failure { problem, .. }) = history(seed, STEPS, fault) {
            println!("{fault:?}, seed {seed}: {problem:.300}");
            assert!(
                words.iter().any(|word| problem.contains(word)),
                "{fault:?} is reported as something else: {problem}"
            );
            return;
        }
    }
    panic!("{fault:?} is not reported");
}

#[test]
fn a_log_that_loses_what_was_synced_is_reported() {
    assert_reported(Fault::LogForgetsSynced, &["after a start", "does not open"]);
}

#[test]
fn a_lost_commit_that_the_store_cannot_notice_is_reported() {
    assert_reported(Fault::LogLosesTail, &["after a start: "]);
}

#[test]
fn a_store_whose_barrier_does_nothing_is_reported() {
    assert_reported(Fault::KvBarrierDoesNothing, &["after a start", "does not open"]);
}

#[test]
fn a_store_that_loses_a_page_is_reported() {
    assert_reported(Fault::KvForgetsPage, &["damage", "does not open", "is lost", "cannot be read"]);
}

#[test]
fn an_answer_before_its_commit_is_reported() {
    assert_reported(Fault::AnswersBeforeCommit, &["durable"]);
}

#[test]
fn a_load_that_leaves_out_a_message_is_reported() {
    assert_reported(
        Fault::LoadForgetsMessage,
        &["are counted", "never delivered", "an invariant of the queue", "a panic"],
    );
}

#[test]
fn a_clock_that_is_ahead_is_reported() {
    assert_reported(Fault::ClockAhead, &["before the time"]);
}

#[test]
fn a_skipped_attempt_is_reported() {
    assert_reported(Fault::SkipsAttempt, &["not as the schedule says"]);
}
