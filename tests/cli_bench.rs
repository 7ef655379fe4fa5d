//! `duewheel bench`: a tiny run of every workload against a broker process. Counts are checked, times are not.

mod support;

use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{Broker, KillHolder, Ran, arg, program, send_signal, until};

/// Runs a workload that must succeed; its line of JSON.
fn bench(broker: &Broker, args: &[&str]) -> Value {
    let data_dir = broker.data_dir.path().join("data");
    let args = [&["bench"], args, &["--json", "--data-dir", arg(&data_dir)]].concat();
    // The log of the brokers that are started goes there.
    let output = broker.command(&args).env("TMPDIR", broker.data_dir.path()).output().expect("the program runs");
    let ran = Ran::of(output, &args);
    assert_eq!(ran.code, 0, "{ran:?}");
    let text = ran.stdout;
    assert_eq!(text.lines().count(), 1, "{text}");
    let report: Value = serde_json::from_str(&text).expect("a line of JSON");
    assert_eq!(report["workload"], args[1]);
    assert_eq!((&report["peer"], &report["interrupted"]), (&"duewheel".into(), &false.into()));
    for name in ["fsync_probe_ms", "raw_append_sync_s", "server_cpu_s"] {
        assert!(report[name].is_number(), "{name}: {report}");
    }
    report
}

/// The shell command that starts the broker again, on the same address and directory.
fn start_command(broker: &Broker) -> String {
    let data_dir = broker.data_dir.path().join("data");
    let (program, listen) = (program(), broker.grpc);
    format!(
        "exec {} serve --listen {listen} --http-listen 127.0.0.1:0 --data-dir {}",
        program.display(),
        data_dir.display()
    )
}

/// The broker that such a command has started is told to end.
fn end_successor(data_dir: &Path) -> Pid {
    let pid = std::fs::read_to_string(data_dir.join("LOCK")).expect("the broker holds it");
    let pid = Pid::from_raw(pid.trim().parse().expect("a process id")).expect("a process");
    kill_process(pid, Signal::TERM).expect("the broker that was started runs");
    pid
}

/// The topics that there are.
fn topics(broker: &Broker) -> Vec<String> {
    let listed = broker.json(&["topic", "list"]);
    let name = |topic: &Value| topic["name"].as_str().expect("a name").to_owned();
    listed.as_array().expect("a list").iter().map(name).collect()
}

fn number(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or_else(|| panic!("no {name} in {report}"))
}

#[test]
fn w1_confirms_what_it_sends_over_streams_and_by_calls() {
    let broker = Broker::start();
    for args in [&["--batch", "100"][..], &["--batch", "100", "--frame", "30"], &["--batch", "1", "--unary"]] {
        let all = [&["w1", "--conns", "2", "--n", "500", "--secs", "60"], args].concat();
        let report = bench(&broker, &all);
        for name in ["sent", "pending"] {
            assert_eq!(number(&report, name), 500, "{report}");
        }
        assert!(report["confirm"]["p99_ms"].is_number() && report["msg_s"].is_number(), "{report}");
    }
    assert_eq!(topics(&broker), [""; 0], "each run has deleted its topic");
}

#[test]
fn w2_and_lateness_receive_every_message_once_and_none_early() {
    let broker = Broker::start();
    let report = bench(&broker, &["w2", "--n", "200", "--span", "1"]);
    let others =
        ["lateness", "--n", "100", "--span", "1", "--pending", "1000", "--load", "--conns", "1", "--batch", "10"];
    for (report, count) in [(report, 200), (bench(&broker, &others), 100)] {
        for (name, want) in [("sent", count), ("acked", count), ("early", 0), ("duplicates", 0), ("refused", 0)] {
            assert_eq!(number(&report, name), want, "{name}: {report}");
        }
        assert!(report["late"]["p50_ms"].is_number(), "{report}");
    }
    let table = broker.ok(&["bench", "w2", "--n", "10", "--span", "1"]);
    assert!(table.lines().any(|line| line.starts_with("late ") && line.contains("p99")), "{table}");
}

#[test]
fn w3_nacks_each_message_once_and_w5_acks_each_at_once() {
    let broker = Broker::start();
    for (workload, deliveries_each) in [("w3", 2), ("w5", 1)] {
        let report = bench(&broker, &[workload, "--n", "1500", "--conns", "2", "--batch", "200", "--keep"]);
        for (name, want) in [("sent", 1_500), ("acked", 1_500), ("early", 0), ("duplicates", 0), ("refused", 0)] {
            assert_eq!(number(&report, name), want, "{name}: {report}");
        }
        assert_eq!(report["sent_before_due"], true);
        let stats = broker.json(&["stats"]);
        let topics = stats["topics"].as_array().expect("topics").iter();
        let prefix = format!("bench-{workload}-");
        let of_run = |topic: &&Value| topic["topic"].as_str().is_some_and(|name| name.starts_with(&prefix));
        let deliveries: u64 = topics.filter(of_run).map(|topic| number(topic, "deliveries")).sum();
        // The messages that warm up are delivered once.
        assert_eq!(deliveries, 1_500 * deliveries_each + 1_500);
    }
}

#[test]
fn w4_kills_the_broker_and_finds_everything_after_its_restart() {
    let mut broker = Broker::start();
    let data_dir = broker.data_dir.path().join("data");
    let keyed = bench(&broker, &["w4", "--n", "2000", "--keyed", "--load-only"]);
    assert_eq!((number(&keyed, "sent"), number(&keyed, "pending")), (2_000, 2_000));
    assert!(keyed.get("mem_mb").is_none(), "{keyed}");
    assert_eq!(topics(&broker).len(), 1, "what was only loaded stays");

    let start = start_command(&broker);
    let _successor = KillHolder(data_dir.clone());
    let report = bench(&broker, &["w4", "--n", "3000", "--start-cmd", &start]);
    for name in ["sent", "pending", "after_kill9"] {
        assert_eq!(number(&report, name), 3_000, "{name}: {report}");
    }
    for name in ["load_s", "mem_mb", "disk_mb", "stats_ms", "restart_s", "mem_after_restart_mb"] {
        assert!(report[name].is_number(), "{name}: {report}");
    }
    broker.wait();
    let pid = end_successor(&data_dir);
    // It has nobody who waits for it, so it may stay in the table of processes as a zombie.
    let state = format!("/proc/{}/stat", pid.as_raw_nonzero());
    until("the broker has ended", || std::fs::read_to_string(&state).map_or(true, |text| text.contains(") Z ")));

    let no_directory = broker.run(&["bench", "w4", "--n", "1", "--start-cmd", "true"]);
    assert_eq!(no_directory.code, 69, "the broker has ended: {no_directory:?}");
}

#[test]
fn w6_and_steady_end_what_they_produce() {
    let broker = Broker::start();
    let timers = bench(&broker, &["w6", "--secs", "1", "--conns", "2", "--workers", "2", "--pool", "100"]);
    assert_eq!(number(&timers, "unexpected"), 0, "{timers}");
    assert_eq!(number(&timers, "fired"), number(&timers, "acked"), "{timers}");
    let ended = number(&timers, "cancelled") + number(&timers, "fired");
    assert!(ended > 0);
    assert_eq!(number(&timers, "pending"), number(&timers, "pool") + number(&timers, "sent") - ended, "{timers}");

    let steady = ["steady", "--secs", "1", "--delay", "100ms", "--conns", "1", "--batch", "50", "--ahead", "500"];
    let steady = bench(&broker, &steady);
    assert_eq!(number(&steady, "sent"), number(&steady, "acked"), "{steady}");
    assert_eq!((number(&steady, "early"), number(&steady, "refused")), (0, 0), "{steady}");
}

#[test]
fn churn_keeps_its_number_alive_and_ends_all_but_the_one_that_stays() {
    let broker = Broker::start();
    let churn = ["churn", "--n", "300", "--span", "200ms", "--nacks", "2", "--secs", "2", "--samples", "2"];
    let report = bench(&broker, &[&churn[..], &["--conns", "1", "--batch", "50", "--keep"]].concat());
    assert_eq!(number(&report, "sent"), number(&report, "acked"), "{report}");
    assert!(number(&report, "sent") > 300, "{report}");
    for (name, want) in [("early", 0), ("refused", 0), ("pending", 1)] {
        assert_eq!(number(&report, name), want, "{name}: {report}");
    }
    let samples = report["samples"].as_array().expect("samples");
    assert_eq!(samples.len(), 2);
    for sample in samples {
        assert!(sample["disk_mb"].is_number() && sample["mem_mb"].is_number(), "{report}");
        assert!(sample["late"]["p99_ms"].is_number(), "{report}");
        assert!((1..=351).contains(&number(sample, "live")), "{report}");
    }
    let stats = broker.json(&["stats"]);
    let deliveries: u64 =
        stats["topics"].as_array().expect("topics").iter().map(|topic| number(topic, "deliveries")).sum();
    assert_eq!(deliveries, 3 * number(&report, "sent"));
}

#[test]
fn overdue_messages_are_held_without_a_consumer_and_come_in_due_order() {
    let mut broker = Broker::start();
    let data_dir = broker.data_dir.path().join("data");
    let start = start_command(&broker);
    let _successor = KillHolder(data_dir.clone());
    let overdue = ["overdue", "--n", "3000", "--overdue", "1000", "--span", "100ms", "--start-cmd", &start];
    let report = bench(&broker, &overdue);
    for (name, want) in [("sent", 3_000), ("pending", 3_000), ("delivered", 1_000), ("out_of_order", 0)] {
        assert_eq!(number(&report, name), want, "{name}: {report}");
    }
    for name in ["restart_s", "mem_without_consumer_mb", "first_delivery_s", "peak_mem_mb"] {
        assert!(report[name].is_number(), "{name}: {report}");
    }
    broker.wait();
    end_successor(&data_dir);
}

#[test]
fn ctrl_c_ends_a_run_with_what_was_measured_so_far() {
    let broker = Broker::start();
    let mut run = broker.command(&["bench", "w1", "--secs", "600", "--conns", "1", "--batch", "10", "--json"]);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program runs");
    let has_messages = || {
        let stats = broker.json(&["stats"]);
        stats["topics"].as_array().is_some_and(|topics| topics.iter().any(|topic| number(topic, "scheduled") > 0))
    };
    until("messages are produced", has_messages);
    send_signal(&run, Signal::INT);
    let ran = Ran::of(run.wait_with_output().expect("it ends"), &["bench", "w1"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    let report: Value = serde_json::from_str(&ran.stdout).expect("a line of JSON");
    assert_eq!(report["interrupted"], true);
    assert!(number(&report, "sent") > 0);
    assert_eq!(number(&report, "sent"), number(&report, "pending"), "{report}");
    assert_eq!(topics(&broker), [""; 0], "the topic is deleted also then");

    let nobody = support::duewheel().args(["bench", "w1", "--endpoint", "http://127.0.0.1:1"]).output();
    assert_eq!(Ran::of(nobody.expect("the program runs"), &[]).code, 69);
}
