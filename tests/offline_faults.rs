//! Operations under faults: `check`, `compact`, `backup` and `restore` killed at any moment, on a full disk, on a damaged store
//! and on one of a later version. The store is never worse than before. Deaths at each of their steps are in
//! `tests/crash_matrix.rs`.
//!
//! `DUEWHEEL_COMMAND_KILLS` sets the number of kills for each command (default 4), `DUEWHEEL_SEED` their moments.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;

use duewheel::clock::Stopwatch;
use fastrand::Rng;
use rustix::process::Signal;
use support::page_store::damage_page;
use support::small_disk::SmallDisk;
use support::{Broker, Ran, arg, duewheel};
use tempfile::TempDir;

const MESSAGES: u64 = 4_000;

fn run(args: &[&str]) -> Ran {
    Ran::of(duewheel().args(args).output().expect("the program runs"), args)
}

fn ok(args: &[&str]) -> Ran {
    let ran = run(args);
    assert_eq!(ran.code, 0, "{ran:?}");
    ran
}

/// A broker with far messages in pages, some of them ended.
fn filled() -> (Broker, PathBuf) {
    let (broker, data) = Broker::with_pages(MESSAGES);
    broker.ok(&["message", "cancel", "orders", "--key", "order-7"]);
    (broker, data)
}

fn stop(broker: &mut Broker) {
    broker.signal(Signal::TERM);
    assert_eq!(broker.wait().code(), Some(0));
}

/// All that was confirmed is there.
fn is_whole(data: &Path, live: u64) {
    let report: serde_json::Value =
        serde_json::from_str(&ok(&["check", "--data-dir", arg(data), "-o", "json"]).stdout).expect("JSON");
    assert_eq!(report["topics"][0]["live"].as_u64(), Some(live), "{report}");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("there is room");
    for entry in fs::read_dir(from).expect("it can be read") {
        let entry = entry.expect("it can be read");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() { copy(&entry.path(), &target) } else { drop(fs::copy(entry.path(), target)) }
    }
}

/// Every file with its bytes, apart from the lock.
fn contents(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).expect("it can be read") {
        let path = entry.expect("it can be read").path();
        if path.is_dir() {
            all.extend(contents(&path));
        } else if !path.ends_with("LOCK") {
            all.push((path.clone(), fs::read(path).expect("it can be read")));
        }
    }
    all.sort();
    all
}

struct Kills {
    count: u64,
    random: Rng,
}

impl Kills {
    fn asked_for() -> Self {
        let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
        let seed = number("DUEWHEEL_SEED").unwrap_or_else(|| fastrand::u64(0..1 << 40));
        println!("DUEWHEEL_SEED={seed}");
        Self { count: number("DUEWHEEL_COMMAND_KILLS").unwrap_or(4), random: Rng::with_seed(seed) }
    }

    /// Lets a command run to its end once, on `whole`, and then kills it at random moments of that time, each time followed by
    /// `after`. Tells how often it was killed before its end.
    fn at_random(&mut self, args: &[&str], whole: impl FnOnce(), mut after: impl FnMut()) {
        let took = Stopwatch::start();
        ok(args);
        let usual = took.elapsed();
        whole();
        let mut killed = 0;
        for _ in 0..self.count {
            let mut child = duewheel().args(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
            // The moment is what is random here.
            thread::sleep(usual.mul_f64(self.random.f64()));
            // It may have ended before.
            let _ended = child.kill();
            killed += u64::from(child.wait().expect("it can be waited for").code().is_none());
            after();
        }
        println!("{}: {killed} of {} killed before the end, {} ms", args[0], self.count, usual.as_millis());
    }
}

#[test]
fn a_command_that_is_killed_at_any_moment_leaves_all_as_it_was_or_is_done() {
    let mut kills = Kills::asked_for();
    let (mut broker, data) = filled();
    let scratch = TempDir::new().expect("there is room");
    let backup = scratch.path().join("backup");
    let endpoint = broker.endpoint();
    let args = ["backup", arg(&backup), "--endpoint", &endpoint];
    let forget = || fs::remove_file(&backup).expect("it is there");
    kills.at_random(&args, forget, || {
        if backup.exists() {
            ok(&["restore", "--check", arg(&backup)]);
            fs::remove_file(&backup).expect("it is there");
        }
    });
    ok(&args);
    stop(&mut broker);
    let live = MESSAGES - 1;

    kills.at_random(&["check", "--data-dir", arg(&data)], || {}, || is_whole(&data, live));
    kills.at_random(&["compact", "--data-dir", arg(&data)], || is_whole(&data, live), || is_whole(&data, live));

    let restored = scratch.path().join("restored");
    let args = ["restore", arg(&backup), "--data-dir", arg(&restored)];
    let forget = || fs::remove_dir_all(&restored).expect("it is there");
    kills.at_random(&args, forget, || {
        let again = run(&args);
        assert!(again.code == 0 || again.stderr.contains("not empty"), "{again:?}");
        is_whole(&restored, live);
        fs::remove_dir_all(&restored).expect("it is there");
    });

    damage_page(&data, 5);
    let damaged = scratch.path().join("damaged");
    copy(&data, &damaged);
    let args = ["check", "--quarantine", "--yes", "--data-dir", arg(&damaged)];
    let again = || {
        let ran = run(&args);
        assert!(ran.code == 0 || ran.code == 1, "{ran:?}");
        ok(&["check", "--data-dir", arg(&damaged)]);
        fs::remove_dir_all(&damaged).expect("it is there");
        copy(&data, &damaged);
    };
    kills.at_random(&args, again, again);
}

#[test]
fn on_a_full_disk_every_command_fails_without_harm_or_works() {
    let Some(disk) = SmallDisk::mount("160m") else { return };
    let (mut broker, made) = filled();
    let data = disk.0.path().join("data");
    let elsewhere = TempDir::new().expect("there is room");
    let backup = elsewhere.path().join("backup");
    let endpoint = broker.endpoint();
    ok(&["backup", arg(&backup), "--endpoint", &endpoint]);

    // A backup for which there is no room.
    let ballast = disk.fill(64 << 10);
    let target = disk.0.path().join("backup");
    let failed = run(&["backup", arg(&target), "--endpoint", &endpoint]);
    assert!(failed.code == 1 && failed.stderr.contains("No space left"), "{failed:?}");
    assert_eq!(fs::read_dir(disk.0.path()).expect("it can be read").count(), 1, "only the ballast is there");
    stop(&mut broker);

    // A restore for which there is no room, and one that finds too little on its way.
    let args = ["restore", arg(&backup), "--data-dir", arg(&data)];
    for leave in [64 << 10, 66 << 20] {
        fs::remove_file(&ballast).expect("it is there");
        disk.fill(leave);
        let ran = run(&args);
        if ran.code == 0 {
            fs::remove_dir_all(&data).expect("it is there");
            continue;
        }
        assert!(ran.code == 1 || ran.code == 78, "{ran:?}");
        let left = |name: &str| data.join(name).exists();
        assert!(!left("FORMAT") || left("RESTORING"), "half a restore is taken for a store");
    }
    fs::remove_file(&ballast).expect("it is there");
    ok(&args);
    is_whole(&data, MESSAGES - 1);

    // What works on the store itself.
    fs::remove_dir_all(&data).expect("it is there");
    copy(&made, &data);
    disk.fill(0);
    // A full disk is not taken for damage, and nothing is begun.
    let before = contents(&data);
    for command in [&["compact"][..], &["check"], &["check", "--quarantine", "--yes"]] {
        let ran = run(&[command, &["--data-dir", arg(&data)]].concat());
        assert!(ran.code == 1 && ran.stderr.contains("bytes free"), "{ran:?}");
    }
    assert!(contents(&data) == before, "a refusal has changed a file");
    fs::remove_file(&ballast).expect("it is there");
    is_whole(&data, MESSAGES - 1);
    damage_page(&made, 5);
    fs::remove_dir_all(&data).expect("it is there");
    copy(&made, &data);
    disk.fill(85 << 20);
    // With as much as is asked for, damage is set aside.
    let args = ["check", "--quarantine", "--yes", "--data-dir", arg(&data)];
    ok(&args);
    ok(&["check", "--data-dir", arg(&data)]);
}

#[test]
fn a_store_of_a_later_version_is_refused_by_every_command_and_not_touched() {
    let (mut broker, data) = filled();
    stop(&mut broker);
    let format = data.join("FORMAT");
    let text = fs::read_to_string(&format).expect("it is text");
    let newer = text.replace("format 2", "format 7\nsomething new");
    assert_ne!(newer, text);
    fs::write(&format, newer).expect("it can be written");
    let before = contents(&data);
    let listen = ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"];
    let commands: [&[&str]; 4] = [
        &["serve", listen[0], listen[1], listen[2], listen[3]],
        &["check"],
        &["check", "--quarantine", "--yes"],
        &["compact"],
    ];
    for command in commands {
        let ran = run(&[command, &["--data-dir", arg(&data)]].concat());
        let names_both = ran.stderr.contains("format 7") && ran.stderr.contains("up to 2");
        assert!(ran.code == 78 && names_both, "{ran:?}");
    }
    assert!(contents(&data) == before, "a refusal has changed a file");
    fs::write(&format, text).expect("it can be written");
    is_whole(&data, MESSAGES - 1);
}
