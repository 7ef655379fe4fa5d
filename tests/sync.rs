//! The real program, with every `fdatasync` that it asks the system for counted on the way: a commit without one would
//! be an answer that a power cut takes back, and no test that only looks at answers could see it.

#![cfg(target_os = "linux")]

mod support;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use support::{Broker, arg, duewheel, file};

/// Adds a byte to the file that `SYNC_COUNT` names for each call, and passes the call on.
const COUNTER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int fdatasync(int fd) {
    int (*passed_on)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    int result = passed_on(fd);
    int count = open(getenv("SYNC_COUNT"), O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (count < 0 || write(count, ".", 1) != 1) abort();
    close(count);
    return result;
}
"#;

#[test]
fn every_commit_ends_in_an_fdatasync_of_the_system() {
    let directory = Arc::new(tempfile::tempdir().expect("a temporary directory"));
    let source = file(&directory, "counter.c", COUNTER);
    let (library, counted) = (directory.path().join("counter.so"), directory.path().join("counted"));
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o", arg(&library), arg(&source), "-ldl"]);
    assert!(compiler.status().expect("a C compiler").success(), "the counter does not compile");

    let mut command = duewheel();
    command.env("LD_PRELOAD", &library).env("SYNC_COUNT", &counted);
    let broker = Broker::start_as(command, Arc::clone(&directory), ([127, 0, 0, 1], 0).into(), &[]);
    let (commits, syncs) = (commits(&broker), size(&counted));
    assert!(syncs >= commits, "{commits} commits at the start, {syncs} syncs");
    broker.ok(&["topic", "create", "orders", "--schedule", "1h"]);
    for key in ["acked", "nacked", "cancelled", "moved"] {
        broker.ok(&["produce", "orders", "x", "--key", key, "--delay", "0s"]);
    }
    broker.ok(&["message", "cancel", "orders", "--key", "cancelled"]);
    broker.ok(&["message", "reschedule", "orders", "--key", "moved", "--delay", "1h"]);
    broker.ok(&["consume", "orders", "--max", "1"]);
    broker.ok(&["consume", "orders", "--max", "1", "--exec", "exit 75"]);
    let (done, synced) = (self::commits(&broker) - commits, size(&counted) - syncs);
    assert_eq!((done, synced), (9, 9), "nine changes, one after the other: commits and syncs");
}

fn commits(broker: &Broker) -> u64 {
    broker.json(&["stats"])["broker"]["commits"].as_u64().expect("a count")
}

fn size(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}
