//! Crash points: moments around every durable step at which a test lets the process die.
//!
//! [`crash_point!`] names a moment. Without the feature `crash-points` it is nothing, not even its name is in the program. With
//! it, the variable `DUEWHEEL_TEST_CRASH` tells where the process aborts: `fold.pages_durable` when that point is reached,
//! `run.after_batch:3` when it is reached for the third time, and `compaction.begins,run.after_batch:2` at the second time
//! after the first point was reached. `tests/crash_matrix.rs` builds a program with the feature and dies at every point.
//!
//! It depends on nothing, so that every layer may name its moments; it decides nothing but when to die.

/// Names a moment at which a test may let the process die.
#[cfg(not(feature = "crash-points"))]
macro_rules! crash_point {
    ($name:literal) => {};
}

/// Names a moment at which a test may let the process die.
#[cfg(feature = "crash-points")]
macro_rules! crash_point {
    ($name:literal) => {
        $crate::crash::reached($name)
    };
}

pub(crate) use crash_point;

/// A point was reached: the process aborts if it is to die here.
#[cfg(feature = "crash-points")]
pub(crate) fn reached(name: &str) {
    use std::sync::{LazyLock, Mutex};

    static PLAN: LazyLock<Mutex<Vec<(String, u64)>>> = LazyLock::new(|| {
        let text = std::env::var("DUEWHEEL_TEST_CRASH").unwrap_or_default();
        let steps = text.split(',').filter(|step| !step.is_empty()).map(|step| match step.split_once(':') {
            Some((name, count)) => (name.to_owned(), count.parse().expect("a count of how often a point is reached")),
            None => (step.to_owned(), 1),
        });
        // The first one to be reached is the last.
        Mutex::new(steps.rev().collect())
    });
    let mut plan = PLAN.lock().expect("nobody panics with the plan");
    let Some((_, left)) = plan.last_mut().filter(|(next, _)| next == name) else { return };
    *left -= 1;
    if *left > 0 {
        return;
    }
    if plan.len() > 1 {
        plan.pop();
        return;
    }
    eprintln!("crash point {name} reached");
    std::process::abort();
}
