//! `duewheel backup` of a broker under load, and `duewheel restore` of what it wrote.

mod support;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::thread;

use rustix::process::Signal;
use serde_json::Value;
use support::{Broker, Ran, arg, duewheel, file, send_signal, until, wait};
use tempfile::TempDir;

/// Confirmed before the backup begins.
const BEFORE: u64 = 2_000;
/// Produced while it runs, as far as they get.
const DURING: u64 = 20_000;

fn run(args: &[&str]) -> Ran {
    Ran::of(duewheel().args(args).output().expect("the program runs"), args)
}

fn json(ran: &Ran) -> Value {
    assert_eq!(ran.code, 0, "{ran:?}");
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

fn restore(file: &Path, data: &Path) -> Ran {
    run(&["restore", arg(file), "--data-dir", arg(data), "-o", "json"])
}

fn lines(prefix: &str, count: u64, body: usize) -> String {
    let line = |n| format!("{{\"key\":\"{prefix}-{n}\",\"body\":\"{}\"}}\n", "y".repeat(body));
    (0..count).map(line).collect::<Vec<_>>().concat()
}

/// A broker with far messages in pages and in the journal.
fn filled(messages: u64, body: usize) -> Broker {
    let broker = Broker::start_with(&["--journal-generation", "1MiB"]);
    broker.ok(&["topic", "create", "orders", "--schedule", "10ms"]);
    let lines = file(&broker.data_dir, "before.jsonl", &lines("before", messages, body));
    broker.ok(&["produce", "orders", "--from", arg(&lines), "--delay", "9h"]);
    broker
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<_> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_backup_under_load_holds_all_that_was_confirmed_before_it_and_nothing_that_was_not_produced() {
    let broker = filled(BEFORE, 300);
    broker.ok(&["message", "cancel", "orders", "--key", "before-7"]);
    broker.ok(&["produce", "orders", "never answered", "--key", "dead", "--delay", "0s", "--max-attempts", "1"]);
    broker.ok(&["consume", "orders", "--max", "1", "--exec", "exit 75"]);
    let load = file(&broker.data_dir, "during.jsonl", &lines("during", DURING, 300));
    let mut load = broker.command(&["produce", "orders", "--from", arg(&load), "--delay", "9h"]);
    let mut load = load.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program runs");
    until("the load has begun", || broker.count("orders", "produced") > BEFORE + 1);

    let backup = broker.data_dir.path().join("backup");
    let taken = broker.json(&["backup", arg(&backup)]);
    assert_eq!(taken["dead"], 1, "{taken}");
    let live = taken["waiting"].as_u64().expect("a count");
    assert!((BEFORE - 1..BEFORE + DURING).contains(&live), "{taken}");
    let checked = json(&run(&["restore", arg(&backup), "--check", "-o", "json"]));
    assert_eq!(checked, taken, "a check reads what the backup told");
    assert!(wait(&mut load).success(), "the broker went on");

    let elsewhere = Arc::new(TempDir::new().expect("a temporary directory"));
    let data = elsewhere.path().join("data");
    assert_eq!(json(&restore(&backup, &data)), taken);
    let report = json(&run(&["check", "--data-dir", arg(&data), "-o", "json"]));
    assert_eq!((&report["clean"], &report["topics"][0]["live"]), (&true.into(), &(live + 1).into()), "{report}");

    let restored = Broker::start_in(elsewhere, ([127, 0, 0, 1], 0).into(), &[]);
    let stats = restored.json(&["stats", "orders"])["topics"][0].clone();
    assert_eq!((&stats["scheduled"], &stats["dead"]), (&live.into(), &1.into()), "{stats}");
    assert_eq!(stats["cancelled"], 1, "{stats}");
    for n in (0..BEFORE).step_by(97) {
        let found = restored.json(&["message", "show", "orders", "--key", &format!("before-{n}")]);
        assert_eq!(found["body"].as_str().map(str::len), Some(300), "{found}");
    }
    let dead = restored.json(&["dead", "list", "orders"]);
    assert_eq!(dead[0]["key"], "dead", "{dead}");
    // Those in between are there up to one of the load, and none after it.
    let during = live - (BEFORE - 1);
    let found = |n: u64| restored.run(&["message", "show", "orders", "--key", &format!("during-{n}")]).code == 0;
    assert!(during == 0 || found(during - 1), "{during} of the load are in it");
    assert!(!found(during), "{during} of the load are in it");
}

#[test]
fn a_backup_is_not_written_over_anything_and_a_bad_one_is_not_restored() {
    let broker = filled(200, 100);
    let directory = broker.data_dir.path();
    let backup = directory.join("backup");
    broker.ok(&["backup", arg(&backup)]);
    let bytes = fs::read(&backup).expect("it is there");
    let again = broker.run(&["backup", arg(&backup)]);
    assert_eq!(again.code, 2, "{again:?}");
    assert!(again.stderr.contains("--force"), "{again:?}");
    broker.ok(&["backup", "--force", arg(&backup)]);
    let piped = broker.command(&["backup", "-"]).output().expect("the program runs");
    assert_eq!(piped.stdout.len(), bytes.len(), "stdout gets the same");
    assert!(!names(directory).contains(&"backup.partial".to_owned()));

    let data = directory.join("restored");
    let bad = directory.join("bad");
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 1;
    for changed in [&flipped[..], &bytes[..bytes.len() - 9], &bytes[..10], b"no backup at all, but long enough"] {
        fs::write(&bad, changed).expect("there is room");
        for ran in [restore(&bad, &data), run(&["restore", arg(&bad), "--check"])] {
            assert_eq!(ran.code, 78, "{ran:?}");
            assert!(ran.stderr.contains("offset "), "{ran:?}");
        }
        assert!(!data.exists(), "nothing is made of a bad backup");
    }
    let missing = restore(&directory.join("nowhere"), &data);
    assert_eq!(missing.code, 1, "{missing:?}");

    let used = restore(&backup, &directory.join("data"));
    assert_eq!(used.code, 78, "{used:?}");
    assert!(used.stderr.contains("not empty"), "{used:?}");
}

#[test]
fn a_backup_takes_the_place_of_a_file_only() {
    let broker = filled(20, 100);
    let directory = TempDir::new().expect("a temporary directory");
    let path = |name: &str| directory.path().join(name);
    fs::write(path("kept"), "years of work").expect("a writable directory");
    std::os::unix::fs::symlink(path("kept"), path("link")).expect("a writable directory");
    fs::create_dir(path("directory")).expect("a writable directory");
    rustix::fs::mkfifoat(rustix::fs::CWD, path("pipe"), rustix::fs::Mode::RUSR).expect("a writable directory");
    // The name that the file has until it is whole is no way around that.
    std::os::unix::fs::symlink(path("kept"), path("other.partial")).expect("a writable directory");
    let kinds = || {
        let kind = |name: &String| (name.clone(), fs::symlink_metadata(path(name)).expect("it is there").file_type());
        names(directory.path()).iter().map(kind).collect::<Vec<_>>()
    };
    let before = kinds();
    for (name, kind) in [("link", "a link"), ("directory", "a directory"), ("pipe", "a pipe"), ("other", "a link")] {
        let ran = broker.run(&["backup", "--force", arg(&path(name))]);
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.stderr.contains(kind) && ran.stderr.contains("next: give the name"), "{ran:?}");
    }
    let device = broker.run(&["backup", "--force", "/dev/full"]);
    assert!(device.code == 2 && device.stderr.contains("a device"), "{device:?}");
    assert_eq!(kinds(), before);
    assert_eq!(fs::read_to_string(path("kept")).expect("it is there"), "years of work");
    broker.ok(&["backup", "--force", arg(&path("kept"))]);
}

#[test]
fn a_backup_that_comes_through_a_pipe_is_restored_and_a_packed_one_is_told() {
    let broker = filled(200, 100);
    let directory = TempDir::new().expect("a temporary directory");
    let backup = directory.path().join("backup");
    let taken = broker.json(&["backup", arg(&backup)]);
    let bytes = fs::read(&backup).expect("it is there");
    let piped = |bytes: &[u8], args: &[&str]| {
        let mut command = duewheel();
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program runs");
        // A refusal may come before all is read.
        let _refused = child.stdin.take().expect("piped").write_all(bytes);
        Ran::of(child.wait_with_output().expect("it ends"), args)
    };
    let data = directory.path().join("data");
    let restore = ["restore", "-", "--data-dir", arg(&data), "-o", "json"];
    assert_eq!(json(&piped(&bytes, &["restore", "-", "--check", "-o", "json"])), taken);
    let packed = [&b"\x28\xb5\x2f\xfd"[..], &bytes].concat();
    for (bad, said) in [
        (&bytes[..bytes.len() - 9], "cannot restore stdin: it is not a whole backup: offset "),
        (
            &packed[..],
            "cannot restore stdin: it is packed with zstd; unpack it on the way, as in zstd -dc FILE | duewheel restore -",
        ),
    ] {
        let ran = piped(bad, &restore);
        assert!(ran.code == 78 && ran.stderr.contains(said), "{ran:?}");
        assert!(!data.exists(), "nothing is made of a bad backup");
    }
    assert_eq!(json(&piped(&bytes, &restore)), taken);
    assert_eq!(names(&data), ["FORMAT", "LOCK", "journal", "pages"]);
    assert_eq!(run(&["check", "--data-dir", arg(&data)]).code, 0);
    let again = piped(&bytes, &restore);
    assert!(again.code == 78 && again.stderr.contains("not empty"), "{again:?}");
}

#[test]
fn an_interrupted_restore_is_not_served_and_is_made_anew_by_the_next() {
    let broker = filled(200, 100);
    let backup = broker.data_dir.path().join("backup");
    broker.ok(&["backup", arg(&backup)]);
    let elsewhere = TempDir::new().expect("a temporary directory");
    let data = elsewhere.path().join("data");
    assert_eq!(restore(&backup, &data).code, 0);
    // What a restore leaves that is killed near its end.
    fs::write(data.join("RESTORING"), "").expect("it can be written");
    let serve = ["serve", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--data-dir", arg(&data)];
    let refused = run(&serve);
    assert_eq!(refused.code, 78, "{refused:?}");
    assert!(refused.stderr.contains("restore"), "{refused:?}");
    assert_eq!(run(&["check", "--data-dir", arg(&data)]).code, 78);
    assert_eq!(restore(&backup, &data).code, 0);
    assert_eq!(run(&["check", "--data-dir", arg(&data)]).code, 0);
    assert_eq!(names(&data), ["FORMAT", "LOCK", "journal", "pages"]);
}

/// A way to the broker that lets so many bytes of its answers through and then no more.
fn narrow_way(to: SocketAddr, bytes: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        let (client, _) = listener.accept().expect("the command connects");
        let broker = TcpStream::connect(to).expect("the broker listens");
        let (mut from, mut into) = (client.try_clone().expect("a socket"), broker.try_clone().expect("a socket"));
        thread::spawn(move || {
            let _broken = std::io::copy(&mut from, &mut into);
            into.shutdown(Shutdown::Both)
        });
        let (mut answers, mut out, mut buffer, mut left) = (broker, client, [0; 4096], bytes);
        while left > 0 {
            let Ok(read) = answers.read(&mut buffer) else { return };
            if read == 0 || out.write_all(&buffer[..read]).is_err() {
                return;
            }
            left = left.saturating_sub(read);
        }
        // The client hears nothing more, and the broker only that the client has gone.
        loop {
            thread::park();
        }
    });
    address
}

#[test]
fn an_interrupted_backup_leaves_nothing_behind_and_the_broker_takes_the_next() {
    let broker = filled(6_000, 2_000);
    let directory = TempDir::new().expect("a temporary directory");
    let backup = directory.path().join("backup");
    let endpoint = format!("http://{}", narrow_way(broker.grpc, 1 << 20));
    let mut command = broker.command(&["backup", arg(&backup), "--endpoint", &endpoint]);
    let mut first = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program runs");
    let partial = directory.path().join("backup.partial");
    until("a part is written", || fs::metadata(&partial).is_ok_and(|part| part.len() > 700_000));

    let second = broker.run(&["backup", arg(&directory.path().join("second"))]);
    assert_eq!(second.code, 75, "{second:?}");
    assert!(second.stderr.contains("BACKUP_RUNNING"), "{second:?}");
    assert_eq!(names(directory.path()), ["backup.partial"], "a refusal leaves nothing");

    send_signal(&first, Signal::INT);
    assert_eq!(wait(&mut first).code(), Some(1));
    assert_eq!(names(directory.path()), [""; 0], "nothing is left of it");
    until("the broker has noticed", || broker.run(&["backup", "--force", arg(&backup)]).code == 0);
}

#[test]
fn a_broker_that_shuts_down_does_not_wait_for_a_backup_that_nobody_reads() {
    let mut broker = filled(6_000, 2_000);
    let directory = TempDir::new().expect("a temporary directory");
    let backup = directory.path().join("backup");
    let endpoint = format!("http://{}", narrow_way(broker.grpc, 1 << 20));
    let mut command = broker.command(&["backup", arg(&backup), "--endpoint", &endpoint]);
    let mut first = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program runs");
    let partial = directory.path().join("backup.partial");
    until("a part is written", || fs::metadata(&partial).is_ok_and(|part| part.len() > 700_000));
    broker.signal(Signal::TERM);
    assert_eq!(broker.wait().code(), Some(0));
    send_signal(&first, Signal::INT);
    assert_eq!(wait(&mut first).code(), Some(1));
    assert_eq!(names(directory.path()), [""; 0]);
}
