//! The queue against a naive model, over many histories of commands chosen from the current state.
//!
//! `DUEWHEEL_HISTORIES` sets how many histories are run, `DUEWHEEL_SEED` the seed of the first; a failure prints
//! both the seed and the end of its history.

#[path = "queue_model/choose.rs"]
mod choose;
#[path = "queue_model/compare.rs"]
mod compare;
#[path = "queue_model/coverage.rs"]
mod coverage;
#[path = "queue_model/driver.rs"]
mod driver;
#[path = "queue_model/find.rs"]
mod find;
#[path = "queue_model/model.rs"]
mod model;
#[path = "queue_model/settle.rs"]
mod settle;
#[path = "queue_model/store.rs"]
mod store;

use coverage::Coverage;
use driver::Run;

const STEPS: usize = 200;
const HISTORIES: u64 = 150;
const FIXED_SEED: u64 = 20_240_229;

fn histories(seed: u64, count: u64) -> Coverage {
    let mut coverage = Coverage::default();
    for history in 0..count {
        coverage.add(Run::history(seed.wrapping_add(history), STEPS));
    }
    coverage
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn the_queue_does_what_the_model_does_and_every_interesting_state_is_reached() {
    let coverage = histories(FIXED_SEED, HISTORIES);
    println!("{coverage}");
    coverage.assert_at_least(&[]);
}

#[test]
fn the_queue_does_what_the_model_does_on_fresh_seeds() {
    let seed = setting("DUEWHEEL_SEED").unwrap_or_else(|| fastrand::u64(..1 << 40));
    println!("DUEWHEEL_SEED={seed}");
    histories(seed, setting("DUEWHEEL_HISTORIES").unwrap_or(HISTORIES));
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..5 {
        let (once, twice) = (Run::log(seed, STEPS), Run::log(seed, STEPS));
        assert!(once.len() > STEPS / 2, "a history has events");
        assert_eq!(once, twice, "seed {seed}");
    }
    assert_ne!(Run::log(1, STEPS), Run::log(2, STEPS), "seeds differ");
}
