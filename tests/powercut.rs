//! Power cuts, as near as one machine can come to them: the broker's data is on a file system in a loop image, whose
//! power is cut while the broker works, so that what had not reached the device is gone. Then it is mounted again and
//! the next broker opens it. It must always open, and everything that was confirmed before a cut must hold after it.
//!
//! A disk lives through a few *rounds*. Each has one cut under load, and then up to three while the broker recovers
//! from the cut before, some of them within the first milliseconds. The cuts under load take turns: at any moment, in
//! the middle of a fold, in the middle of a compaction. The log of the broker tells where a cut fell: a fold that began before it and never
//! ended was cut. After each round the broker is asked for every order that was changed in it and for some of the
//! others, after the last one for all of them, and `duewheel check` reads the whole store.
//!
//! A control whose `fdatasync` does nothing must lose, or the test proves nothing.
//!
//! It needs root, loop devices and mkfs, so it belongs to the full tier; how to run it is in `docs/architecture.md`. In
//! the gate the store's own power cuts over lossy doubles stand for it (`src/store/tests`).

mod durability;
#[path = "powercut/image.rs"]
mod image;
#[path = "powercut/pages.rs"]
mod pages;
mod support;
#[path = "powercut/tally.rs"]
mod tally;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use duewheel::clock::Stopwatch;
use durability::TOPIC;
use durability::ledger::{Ledger, Wrongs};
use durability::load::Load;
use durability::process::{Process, Work};
use durability::verify::{take_what_is_due, verify};
use fastrand::Rng;
use image::{Image, Mounted};
use support::{duewheel, preload};
use tally::{Phase, Tally};

/// Rounds of one disk: a disk that has been through cuts, and one that is not so full that to verify it takes long.
const ROUNDS_PER_DISK: u64 = 5;
/// Some moments of recovery are so early that hardly anything has been done.
const EARLY: Duration = Duration::from_millis(25);
/// How long to wait for a fold or compaction to cut.
const PATIENCE: Duration = Duration::from_secs(4);
/// The load of the control, which must be over before the system writes back by itself.
const CONTROL_LOAD: Duration = Duration::from_millis(1_500);

#[test]
fn what_was_confirmed_before_a_power_cut_is_there_after_it() {
    let Some((rounds, mut random)) = asked_for() else { return };
    for file_system in file_systems() {
        let mut tally = Tally::default();
        for first in (0..rounds).step_by(usize::try_from(ROUNDS_PER_DISK).expect("small")) {
            let rounds = first..rounds.min(first + ROUNDS_PER_DISK);
            live_through(file_system, rounds, &mut random, &mut tally);
        }
        println!("{file_system}: {tally}");
        tally.must_be_right(rounds);
        let control = control(file_system);
        println!("{file_system}, without any sync: {control}");
        assert!(control.lost > 0, "without syncs nothing was lost: the cut cuts nothing");
    }
}

#[test]
fn the_page_store_comes_back_with_its_last_durable_fold_or_a_later_one() {
    let Some((cuts, mut random)) = asked_for() else { return };
    for file_system in file_systems() {
        let in_folds = pages::survive(file_system, cuts, &mut random);
        println!("{file_system}, pages: {cuts} cuts, {in_folds} in folds, 0 lost");
        assert!(in_folds >= cuts / 4, "{in_folds} of {cuts} cuts fell into a fold: too few");
        let lost = pages::control(file_system).expect("without syncs nothing was lost: the cut cuts nothing");
        println!("{file_system}, pages, without any sync: {lost}");
    }
}

/// Not a test of its own: what the one before runs as another process.
#[test]
fn folds_are_written_until_the_power_is_cut() {
    pages::write_if_asked();
}

/// How many rounds are wanted, and the source of their moments.
fn asked_for() -> Option<(u64, Rng)> {
    let Some(rounds) = number_from_env("DUEWHEEL_POWERCUTS") else {
        println!("not asked for: set DUEWHEEL_POWERCUTS to the number of rounds per file system");
        return None;
    };
    let seed = number_from_env("DUEWHEEL_SEED").unwrap_or_else(|| fastrand::u64(0..1 << 40));
    println!("DUEWHEEL_SEED={seed}");
    Some((rounds, Rng::with_seed(seed)))
}

fn file_systems() -> impl Iterator<Item = &'static str> {
    let only = std::env::var("DUEWHEEL_POWERCUT_FS").ok();
    ["ext4", "xfs"].into_iter().filter(move |&name| only.as_deref().is_none_or(|only| only == name))
}

fn number_from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// One disk and its rounds.
fn live_through(file_system: &str, rounds: std::ops::Range<u64>, random: &mut Rng, tally: &mut Tally) {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let image = Image::make(scratch.path(), file_system);
    let ledger = Arc::new(Ledger::default());
    let last = rounds.end - 1;
    // The first start makes the store, and is cut as well.
    let mut usual = Duration::from_millis(200);
    cut_while_it_starts(&image, random, tally, (Phase::Creation, &mut usual));
    for round in rounds {
        let target = [Work::Nothing, Work::Fold, Work::Compaction][usize::try_from(round % 3).expect("small")];
        let took = Stopwatch::start();
        let phase = cut_under_load(&image, random, &ledger, target);
        tally.cut(phase);
        cut_while_it_starts(&image, random, tally, (Phase::Recovery, &mut usual));
        let mounted = image.mount();
        let mut broker = Process::start(duewheel(), &data(&mounted));
        let (address, time) = broker.serves().unwrap_or_else(|log| panic!("it does not open after a cut:\n{log}"));
        usual = time;
        verify(address, &ledger, &ledger.to_verify(random, round == last));
        if round == last {
            take_what_is_due(address, &ledger);
        }
        broker.kill();
        if round == last {
            check(&data(&mounted));
        }
        let confirmed = ledger.confirmed();
        println!("{file_system} {round}: cut in {phase}, {confirmed} confirmed, {} ms", took.elapsed_ms());
    }
    tally.add(ledger.confirmed(), ledger.wrongs());
}

fn data(mounted: &Mounted<'_>) -> PathBuf {
    mounted.path().join("data")
}

/// Cuts the power under load; where the cut fell.
fn cut_under_load(image: &Image, random: &mut Rng, ledger: &Arc<Ledger>, target: Work) -> Phase {
    let mut mounted = image.mount();
    let mut broker = Process::start(duewheel(), &data(&mounted));
    let (address, _) = broker.serves().unwrap_or_else(|log| panic!("it does not open:\n{log}"));
    create_topic(&format!("http://{address}"));
    let load = Load::start(address, ledger);
    // The moment of the cut is what is random here.
    thread::sleep(Duration::from_millis(random.u64(300..2_000)));
    if target != Work::Nothing {
        wait_into(&broker, target, random.f64());
    }
    load.is_over();
    let before = broker.moment();
    mounted.cut_power();
    broker.kill();
    load.join();
    match before.work {
        // Work that began before and ended after was not cut, nor was other work that began later.
        _ if broker.moment() != before => Phase::Load,
        Work::Nothing => Phase::Load,
        Work::Fold => Phase::Fold,
        Work::Compaction => Phase::Compaction,
    }
}

/// Waits until the broker is somewhere in the middle of such work.
fn wait_into(broker: &Process, target: Work, part: f64) {
    let waited = Stopwatch::start();
    while let Some(lasts) = broker.reaches(target, PATIENCE.saturating_sub(waited.elapsed())) {
        let begun = broker.moment();
        // Most of what lasts long ends early: the rest is for the call that cuts.
        thread::sleep(lasts.mul_f64(part * 0.8));
        if begun.work == target && broker.moment() == begun {
            return;
        }
    }
}

/// Cuts the power a few times while the broker comes up, each time on what the cut before has left.
fn cut_while_it_starts(image: &Image, random: &mut Rng, tally: &mut Tally, (phase, usual): (Phase, &mut Duration)) {
    for _ in 0..random.u64(0..=3) {
        let longest = if random.bool() { *usual } else { EARLY };
        let mut mounted = image.mount();
        let mut broker = Process::start(duewheel(), &data(&mounted));
        let is_recovering = broker.is_recovering_after(longest.mul_f64(random.f64()));
        mounted.cut_power();
        broker.kill();
        tally.cut(if is_recovering { phase } else { Phase::Load });
    }
}

fn create_topic(endpoint: &str) {
    let output = duewheel().args(["topic", "create", TOPIC]).env("DUEWHEEL_ENDPOINT", endpoint).output();
    let output = output.expect("the program runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() || text.contains("TOPIC_EXISTS"), "{text}");
}

/// Reads the whole store.
fn check(data: &Path) {
    let output = duewheel().arg("check").arg("--data-dir").arg(data).output().expect("the program runs");
    assert!(output.status.success(), "{output:?}");
}

/// What a broker loses whose `fdatasync` does nothing.
fn control(file_system: &str) -> Wrongs {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let image = Image::make(scratch.path(), file_system);
    let ledger = Arc::new(Ledger::default());
    ledger.be_quiet();
    {
        let mut mounted = image.mount();
        let mut program = duewheel();
        program
            .env("LD_PRELOAD", preload::compile("tests/fdatasync/count.c", scratch.path()))
            .env("DUEWHEEL_TEST_LOSE", "1");
        let mut broker = Process::start(program, &data(&mounted));
        let (address, _) = broker.serves().unwrap_or_else(|log| panic!("it does not open:\n{log}"));
        create_topic(&format!("http://{address}"));
        let load = Load::start(address, &ledger);
        thread::sleep(CONTROL_LOAD);
        load.is_over();
        mounted.cut_power();
        broker.kill();
        load.join();
    }
    let mounted = image.mount();
    let broker = Process::start(duewheel(), &data(&mounted));
    match broker.serves() {
        Ok((address, _)) => verify(address, &ledger, &ledger.to_verify(&mut Rng::with_seed(0), true)),
        Err(log) => {
            println!("{file_system}, without any sync, it does not open: {}", log.lines().last().unwrap_or_default());
            ledger.lost_all();
        }
    }
    ledger.wrongs()
}
