//! A disk that runs full, and one that fails.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use support::{Broker, arg, duewheel, file, until};
use tempfile::TempDir;

/// A small file system of its own; unmounted when dropped.
struct SmallDisk(Arc<TempDir>);

impl SmallDisk {
    /// `None` where mounting is not allowed.
    fn mount(size: &str) -> Option<Self> {
        let directory = Arc::new(tempfile::tempdir().expect("a temporary directory"));
        let options = format!("size={size}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(directory.path()).stderr(Stdio::null());
        let is_mounted = mount.status().is_ok_and(|status| status.success());
        if !is_mounted {
            println!("a file system cannot be mounted here: the real one is not tested, the injected one is");
        }
        is_mounted.then_some(Self(directory))
    }

    /// Fills the disk up to so many free bytes.
    fn fill(&self, leave: u64) -> PathBuf {
        let space = rustix::fs::statvfs(self.0.path()).expect("it is mounted");
        let free = space.f_bavail * space.f_frsize;
        let ballast = self.0.path().join("ballast");
        let bytes = vec![1; usize::try_from(free - leave).expect("it is small")];
        fs::write(&ballast, bytes).expect("there is room");
        ballast
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn start(disk: &SmallDisk, reserve: &str) -> Broker {
    let flags = ["--disk-reserve", reserve, "--journal-generation", "1MiB"];
    Broker::start_in(Arc::clone(&disk.0), ([127, 0, 0, 1], 0).into(), &flags)
}

#[test]
fn a_nearly_full_disk_refuses_produce_only_and_recovers_by_itself() {
    let Some(disk) = SmallDisk::mount("200m") else { return };
    let broker = start(&disk, "40MiB");
    broker.ok(&["topic", "create", "orders", "--lease", "1h"]);
    broker.ok(&["produce", "orders", "before", "--delay", "0s"]);
    broker.ok(&["produce", "orders", "later", "--key", "k", "--delay", "1h"]);
    assert_eq!(broker.json(&["stats"])["broker"]["produce_refused"], false);
    let ballast = disk.fill(30 << 20);
    until("produce is refused", || broker.json(&["stats"])["broker"]["produce_refused"] == true);
    let refused = broker.run(&["produce", "orders", "x"]);
    assert_eq!(refused.code, 75, "{refused:?}");
    assert!(refused.stderr.contains("DISK_RESERVE") && refused.stderr.contains("not done"), "{refused:?}");
    // All else works, and health does not suffer.
    assert!(broker.ok(&["consume", "orders", "--max", "1"]).contains("before"));
    assert_eq!(broker.count("orders", "acked"), 1);
    broker.ok(&["message", "reschedule", "orders", "--key", "k", "--delay", "2h"]);
    broker.ok(&["message", "cancel", "orders", "--key", "k"]);
    assert_eq!(broker.ok(&["health"]), "status  SERVING\n");

    fs::remove_file(ballast).expect("it is there");
    until("produce is accepted", || broker.run(&["produce", "orders", "again", "--delay", "1h"]).code == 0);
    let told = |text: &str| broker.log().lines().filter(|line| line.contains(text)).count();
    assert_eq!((told("produce is refused; acks"), told("produce is accepted")), (1, 1), "{}", broker.log());
}

#[test]
fn a_full_disk_ends_the_broker_loudly_and_loses_nothing_that_was_answered() {
    let Some(disk) = SmallDisk::mount("96m") else { return };
    let mut broker = start(&disk, "0");
    broker.ok(&["topic", "create", "orders"]);
    disk.fill(64 << 10);
    let elsewhere = TempDir::new().expect("a temporary directory");
    let lines = file(&elsewhere, "lines.txt", &format!("{{\"body\":\"{}\"}}\n", "w".repeat(2_000)).repeat(40_000));
    let ran = broker.run(&["produce", "orders", "--from", arg(&lines), "--delay", "1h"]);
    assert_ne!(ran.code, 0, "{ran:?}");
    assert_eq!(broker.wait().code(), Some(1), "{}", broker.log());
    assert!(broker.log().contains("No space left") || broker.log().contains("os error 28"), "{}", broker.log());
    fs::remove_file(disk.0.path().join("ballast")).expect("it is there");
    let again = start(&disk, "0");
    let produced = again.count("orders", "produced");
    println!("{produced} messages before the disk was full");
    assert!(produced > 0 && produced == again.count("orders", "scheduled"));
}

#[test]
fn a_sync_that_fails_ends_the_broker_and_callers_hear_that_the_outcome_is_unknown() {
    if Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_err() {
        println!("there is no strace here: a failing sync of the real program is not tested, that of the double is");
        return;
    }
    for call in ["fdatasync:error=EIO:when=40+", "pwrite64:error=EIO:when=80+"] {
        let directory = TempDir::new().expect("a temporary directory");
        run_with_fault(directory.path(), call);
    }
}

fn run_with_fault(directory: &Path, fault: &str) {
    let log = directory.join("log");
    let program = duewheel();
    let mut traced = Command::new("strace");
    traced
        .args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,pwrite64", "-e"])
        .arg(format!("inject={fault}"));
    traced.arg(program.get_program());
    traced.args(["serve", "--log-format", "json", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]);
    traced.arg("--data-dir").arg(directory.join("data"));
    let mut child = traced.stderr(fs::File::create(&log).expect("it can be made")).spawn().expect("strace runs");
    let read = || fs::read_to_string(&log).expect("it is text");
    until("it serves or has ended", || read().contains("\"serving\"") || read().contains("error"));
    let address = read()
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find_map(|line| line["grpc_address"].as_str().map(str::to_owned))
        .expect("it listens");
    let endpoint = format!("http://{address}");
    let call = |args: &[&str]| duewheel().args(args).args(["--endpoint", &endpoint]).output().expect("it runs");
    call(&["topic", "create", "orders"]);
    let mut unknown = None;
    for _ in 0..200 {
        let output = call(&["produce", "orders", "x", "--delay", "1h"]);
        if !output.status.success() {
            unknown = Some(String::from_utf8_lossy(&output.stderr).into_owned());
            break;
        }
    }
    let unknown = unknown.unwrap_or_else(|| panic!("{fault}: every call succeeded\n{}", read()));
    assert!(unknown.contains("unknown"), "{fault}: {unknown}");
    assert_eq!(support::wait(&mut child).code(), Some(1), "{fault}: {}", read());
    assert!(read().contains("os error 5"), "{fault}: {}", read());
}
