//! How the broker process starts, refuses to start, and ends; and what clients say when there is no broker.

mod support;

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;

use rustix::process::Signal;
use support::{Broker, Ran, arg, duewheel, file, send_signal, until, wait};

fn run(args: &[&str]) -> Ran {
    Ran::of(duewheel().args(args).output().expect("the program runs"), args)
}

#[test]
fn a_client_without_a_broker_ends_with_69_and_says_that_nothing_was_done() {
    // A port that was free a moment ago and that nobody listens on.
    let port = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("bound").port();
    let endpoint = format!("http://127.0.0.1:{port}");
    for args in [
        &["health"][..],
        &["topic", "list"],
        &["produce", "orders", "x"],
        &["consume", "orders"],
        &["message", "show", "orders", "--key", "k"],
        &["dead", "list", "orders"],
        &["stats"],
    ] {
        let mut args = args.to_vec();
        args.extend(["--endpoint", &endpoint]);
        let ran = run(&args);
        assert_eq!(ran.code, 69, "{ran:?}");
        assert!(ran.stderr.contains("duewheel serve"), "{ran:?}");
        // To read is nothing that could have been done or not.
        let changes = ["produce", "consume"].contains(&args[0]);
        assert_eq!(ran.stderr.contains("not done"), changes, "{ran:?}");
        assert_eq!(ran.stdout, "");
    }
}

#[test]
fn a_client_at_the_http_port_is_told_where_grpc_is() {
    let broker = Broker::start();
    let ran = run(&["topic", "list", "--endpoint", &format!("http://{}", broker.http)]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("gRPC port") && ran.stderr.contains("7383"), "{ran:?}");
    let health = run(&["health", "--endpoint", &format!("http://{}", broker.http)]);
    assert!(health.code == 69 && health.stderr.contains("gRPC port"), "what answers there is no broker: {health:?}");
}

#[test]
fn wrong_usage_ends_with_2() {
    for args in [
        &["produce"][..],
        &["produce", "orders", "x", "--delay", "soon"],
        &["produce", "orders", "x", "--delay", "1s", "--at", "2026-12-01T00:00:00Z"],
        &["produce", "orders", "x", "--at", "tomorrow"],
        &["produce", "orders", "--from", "x", "--key", "k"],
        &["message", "cancel", "orders"],
        &["message", "cancel", "orders", "--id", "a", "--key", "b"],
        &["message", "reschedule", "orders", "--key", "k"],
        &["dead", "redrive", "orders"],
        &["topic", "create", "orders", "--rate", "fast"],
        &["topic", "list", "--endpoint", "here"],
        &["consume", "orders", "--max", "0"],
        &["no-such-command"],
        &[],
    ] {
        let ran = run(args);
        assert_eq!(ran.code, 2, "{ran:?}");
        assert_eq!(ran.stdout, "", "{ran:?}");
        assert_ne!(ran.stderr, "", "{ran:?}");
    }
    assert_eq!(run(&["--version"]).code, 0);
    assert_eq!(run(&["produce", "--help"]).code, 0);
}

#[test]
fn a_wrong_configuration_ends_with_78_and_names_the_place() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let data = directory.path().join("data");
    let unknown = file(&directory, "unknown.toml", "lisen = '127.0.0.1:0'\n");
    let wrong = file(&directory, "wrong.toml", "max_body = '9MiB'\n");
    let foreign = directory.path().join("foreign");
    std::fs::create_dir(&foreign).expect("a writable directory");
    std::fs::write(foreign.join("thesis.txt"), "years of work").expect("a writable directory");
    for (args, said) in [
        (&["--config", arg(&unknown)][..], "lisen"),
        (&["--config", arg(&wrong)], "max_body"),
        (&["--config", "/nowhere/duewheel.toml"], "/nowhere/duewheel.toml"),
        (&["--listen", "here"], "--listen"),
        (&["--drain-timeout", "soon"], "--drain-timeout"),
        (&["--log-format", "xml"], "--log-format"),
        (&["--listen", "0.0.0.0:0"], "--insecure"),
        (&["--data-dir", arg(&foreign)], "foreign"),
    ] {
        let mut command = duewheel();
        command.args(["serve", "--http-listen", "127.0.0.1:0"]);
        if !args.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        if !args.contains(&"--data-dir") {
            command.arg("--data-dir").arg(&data);
        }
        let ran = Ran::of(command.args(args).output().expect("the program runs"), args);
        assert_eq!(ran.code, 78, "{ran:?}");
        assert!(ran.stderr.contains(said), "{said}: {ran:?}");
    }
    assert!(!data.exists(), "a refused start leaves nothing behind");
    let variable = duewheel().arg("serve").env("DUEWHEEL_LISTEN", "here").output().expect("the program runs");
    assert_eq!(variable.status.code(), Some(78));
    assert!(String::from_utf8_lossy(&variable.stderr).contains("DUEWHEEL_LISTEN"));
}

#[test]
fn a_directory_in_use_is_refused_with_the_process_that_uses_it() {
    let broker = Broker::start();
    let data = broker.data_dir.path().join("data");
    let args = ["serve", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--data-dir", arg(&data)];
    let ran = run(&args);
    assert_eq!(ran.code, 78, "{ran:?}");
    assert!(ran.stderr.contains(&format!("process {}", broker.process_id())), "{ran:?}");
    assert_eq!(broker.ok(&["health"]), "status  SERVING\n");
}

#[test]
fn a_port_in_use_is_told_and_ends_with_1() {
    let broker = Broker::start();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (data, listen) = (directory.path().join("data"), broker.grpc.to_string());
    let ran = run(&["serve", "--listen", &listen, "--http-listen", "127.0.0.1:0", "--data-dir", arg(&data)]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains(&format!("{listen} (listen, from --listen)")), "{ran:?}");
    assert!(ran.stderr.contains("next: see what listens there"), "{ran:?}");

    // The variable overrules the file, and so is to blame.
    let config = file(&directory, "duewheel.toml", "listen = '127.0.0.1:0'\nhttp_listen = '127.0.0.1:0'\n");
    let args = ["serve", "--config", arg(&config), "--data-dir", arg(&data)];
    let mut command = duewheel();
    let ran = Ran::of(command.args(args).env("DUEWHEEL_LISTEN", &listen).output().expect("the program runs"), &args);
    assert!(ran.code == 1 && ran.stderr.contains("listen, from environment DUEWHEEL_LISTEN"), "{ran:?}");

    let same = broker.data_dir.path().join("data");
    let ran = run(&["serve", "--listen", &listen, "--http-listen", "127.0.0.1:0", "--data-dir", arg(&same)]);
    assert_eq!(ran.code, 1, "{ran:?}");
    let running = format!("process {} is a broker on {} already", broker.process_id(), arg(&same));
    assert!(ran.stderr.contains(&running), "{ran:?}");
    let ran = run(&["serve", "--listen", "127.0.0.1:0", "--http-listen", &listen, "--data-dir", arg(&data)]);
    assert!(ran.stderr.contains("(http_listen, from --http-listen)"), "{ran:?}");
}

#[test]
fn the_file_and_the_environment_configure_the_broker() {
    let directory = Arc::new(tempfile::tempdir().expect("a temporary directory"));
    let config = file(&directory, "duewheel.toml", "max_body = 8\nmax_delay = '1h'\n");
    let broker = Broker::start_in(Arc::clone(&directory), ([127, 0, 0, 1], 0).into(), &["--config", arg(&config)]);
    broker.ok(&["topic", "create", "orders"]);
    broker.ok(&["produce", "orders", "12345678", "--delay", "1h"]);
    for (args, said) in [
        (["produce", "orders", "123456789", "--delay", "1h"], "body"),
        (["produce", "orders", "1", "--delay", "2h"], "at most 1h"),
    ] {
        let ran = broker.run(&args);
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.stderr.contains(said) && ran.stderr.contains("not done"), "{ran:?}");
    }
}

#[test]
fn sigterm_drains_with_exit_code_0_and_everything_is_there_after_a_restart() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut broker = Broker::start();
        broker.ok(&["topic", "create", "orders"]);
        broker.ok(&["produce", "orders", "x", "--key", "k", "--delay", "1h"]);
        broker.signal(signal);
        assert_eq!(broker.wait().code(), Some(0), "{}", broker.log());
        let broker = Broker::start_in(Arc::clone(&broker.data_dir), broker.grpc, &[]);
        assert_eq!(broker.json(&["message", "show", "orders", "--key", "k"])["state"], "SCHEDULED");
    }
}

#[test]
fn a_broker_goes_on_when_nobody_reads_its_log_any_more() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let data = directory.path().join("data");
    let args = ["serve", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--data-dir", arg(&data)];
    let mut child = duewheel().args(args).stderr(Stdio::piped()).spawn().expect("the program runs");
    let mut first = String::new();
    // The pipe is closed after the first line, as by `duewheel serve 2>&1 | head -1`.
    BufReader::new(child.stderr.take().expect("stderr is piped")).read_line(&mut first).expect("the log is text");
    let first: serde_json::Value = serde_json::from_str(&first).expect("a line of the log is JSON");
    let endpoint = format!("http://{}", first["grpc_address"].as_str().expect("it says where it listens"));
    until("the broker serves or has ended", || {
        run(&["health", "--endpoint", &endpoint]).code == 0 || child.try_wait().expect("a child").is_some()
    });
    assert_eq!(child.try_wait().expect("a child"), None, "it has ended");
    send_signal(&child, Signal::TERM);
    assert_eq!(wait(&mut child).code(), Some(0));
}

#[test]
fn a_second_signal_ends_a_drain_that_takes_long() {
    let directory = Arc::new(tempfile::tempdir().expect("a temporary directory"));
    let mut broker = Broker::start_in(directory, ([127, 0, 0, 1], 0).into(), &["--drain-timeout", "1h"]);
    // A connection that says nothing holds the drain up. The broker speaks first, once it has accepted it.
    let mut silent = TcpStream::connect(broker.grpc).expect("the broker listens");
    silent.read_exact(&mut [0; 9]).expect("the header of the settings frame");
    broker.signal(Signal::TERM);
    until("the broker drains", || broker.log().contains("draining"));
    // The same signal in the same moment would be the same request.
    broker.signal(Signal::INT);
    assert_eq!(broker.wait().code(), Some(1), "{}", broker.log());
    assert!(broker.log().contains("second signal"), "{}", broker.log());
    drop(silent);
}

#[test]
fn what_was_answered_survives_sigkill() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders", "--lease", "20s"]);
    broker.ok(&["produce", "orders", "x", "--key", "k", "--delay", "1h"]);
    broker.ok(&["message", "cancel", "orders", "--key", "k"]);
    broker.ok(&["produce", "orders", "y", "--key", "kept", "--delay", "1h"]);
    let epoch = |broker: &Broker| broker.json(&["stats"])["broker"]["epoch"].as_u64().expect("a number");
    let before = epoch(&broker);
    let broker = broker.kill_and_restart();
    assert_eq!(broker.json(&["topic", "show", "orders"])["lease"], "20s");
    assert_eq!(broker.json(&["message", "show", "orders", "--key", "k"])["outcome"], "CANCELLED");
    assert_eq!(broker.json(&["message", "show", "orders", "--key", "kept"])["state"], "SCHEDULED");
    assert!(epoch(&broker) > before, "each start has an epoch of its own");
}
