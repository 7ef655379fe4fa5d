//! The whole broker in one thread: the real queue, engine, journal, folds and pages over media that lose what was not
//! synced, with a simulated clock and clients that do everything wrong. See `docs/architecture.md`.
//!
//! ```text
//! DUEWHEEL_SIM_HISTORIES=10000 cargo test --release --test simulation fresh -- --nocapture
//! DUEWHEEL_SIM_SEED=n cargo test --test simulation fresh -- --nocapture
//! ```

#[path = "simulation/asked.rs"]
mod asked;
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

use coverage::Coverage;
use fault::Fault;
use world::World;

const STEPS: usize = 600;
const HISTORIES: u64 = 40;
const FRESH_HISTORIES: u64 = 20;
const FIXED_SEED: u64 = 20_240_229;

/// What the histories of the fixed seed must have met.
const REACHED: &[(&str, u64)] = &[];

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
            let (key, dedup) = (produce.key.as_ref().map(|k| k.as_str()), produce.dedup_id.as_ref().map(|d| d.as_str()));
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
    histories(seed, count);
}
