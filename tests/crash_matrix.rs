//! The crash matrix: the process dies at every named moment around a durable step, is started again, and must have lost,
//! shifted, repeated and resurrected nothing.
//!
//! The moments are the crash points of the sources (`src/crash.rs`). They are read from there, so a new one is in the matrix
//! without being entered; each must be reached, by the scenario that its name asks for: a broker under load, one that makes its
//! directory, one that recovers from an earlier death, one that stops, or one of the commands on a store. Clients keep a
//! ledger of what was answered; afterwards the broker is asked for all of it, gives out what is due, and `duewheel check` reads
//! the whole store.
//!
//! The gate takes a few cells of the matrix, others every time. `DUEWHEEL_CRASHES` sets their number, or takes `all`;
//! `DUEWHEEL_CRASH_CELL` names one; `DUEWHEEL_SEED` repeats the choice.

#[path = "crash_matrix/cells.rs"]
mod cells;
mod durability;
#[path = "crash_matrix/scenario.rs"]
mod scenario;
#[path = "crash_matrix/side.rs"]
mod side;
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex};
use std::thread;

use cells::{Cell, crash_points};
use duewheel::clock::Stopwatch;
use fastrand::Rng;
use support::program;

/// Cells of the gate.
const CELLS: usize = 8;
/// Brokers at a time.
const WORKERS: usize = 2;

/// The program with its crash points. The libraries it is made of are those of the tests.
static CRASHING: LazyLock<PathBuf> = LazyLock::new(|| {
    let directory = program().parent().expect("a program lies in a directory");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args(["build", "--quiet", "--offline", "--features", "crash-points", "--example", "crash_points"]);
    cargo.arg("--target-dir").arg(directory.parent().expect("a profile lies in the target directory"));
    if directory.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().expect("cargo runs").success(), "the program with crash points cannot be built");
    directory.join("examples/crash_points")
});

#[test]
fn the_shipped_program_has_no_crash_point_and_the_one_of_this_test_has_all() {
    let points = crash_points();
    assert!(points.len() > 50, "only {} points in the sources", points.len());
    let found = |program: &Path| {
        let bytes = std::fs::read(program).expect("it is built");
        points.iter().filter(|point| is_in(&bytes, point.as_bytes())).cloned().collect::<Vec<_>>()
    };
    assert_eq!(found(program()), Vec::<String>::new());
    assert_eq!(found(&CRASHING), points);
}

fn is_in(bytes: &[u8], wanted: &[u8]) -> bool {
    let first = wanted[0];
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|&byte| byte == first) {
        if rest[at..].starts_with(wanted) {
            return true;
        }
        rest = &rest[at + 1..];
    }
    false
}

#[test]
fn nothing_is_lost_wherever_the_process_dies() {
    let seed = std::env::var("DUEWHEEL_SEED")
        .map_or_else(|_| fastrand::u64(0..1 << 40), |seed| seed.parse().expect("a number"));
    println!("DUEWHEEL_SEED={seed}");
    let mut random = Rng::with_seed(seed);
    let chosen = chosen(&mut random);
    let count = chosen.len();
    let waiting = Mutex::new(chosen);
    let failed = Mutex::new(Vec::new());
    assert!(CRASHING.is_file());
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let Some((cell, seed)) = waiting.lock().expect("no holder panics").pop() else { return };
                    let took = Stopwatch::start();
                    let survived = catch_unwind(AssertUnwindSafe(|| scenario::survive(&CRASHING, &cell, seed)));
                    let outcome = survived.as_ref().map_or("FAILED", |outcome| outcome);
                    println!("{cell}: {outcome}, {} ms", took.elapsed_ms());
                    if survived.is_err() {
                        failed.lock().expect("no holder panics").push(cell.to_string());
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no holder panics");
    assert!(failed.is_empty(), "{} of {count} cells failed (their output is above): {failed:#?}", failed.len());
    println!("{count} cells, nothing lost, early, shifted or resurrected");
}

/// The cells to go through, each with a seed of its own.
fn chosen(random: &mut Rng) -> Vec<(Cell, u64)> {
    let mut all = Cell::all(random);
    if let Ok(name) = std::env::var("DUEWHEEL_CRASH_CELL") {
        all.retain(|cell| cell.to_string().contains(&name));
        assert!(!all.is_empty(), "there is no such cell");
    } else {
        random.shuffle(&mut all);
        match std::env::var("DUEWHEEL_CRASHES") {
            Ok(text) if text == "all" => {}
            Ok(text) => all.truncate(text.parse().expect("a number of cells, or 'all'")),
            Err(_) => all.truncate(CELLS),
        }
    }
    all.into_iter().map(|cell| (cell, random.u64(..))).collect()
}
