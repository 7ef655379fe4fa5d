//! What the broker's log tells an operator: a start that reads as healthy, and one line for each administrative act.

mod support;

use std::process::Stdio;

use duewheel::pb;
use duewheel::pb::admin_service_client::AdminServiceClient;
use rustix::process::Signal;
use serde_json::Value;
use support::{Broker, arg, send_signal, until};

/// The lines of the log with this value of a field.
fn lines(broker: &Broker, field: &str, value: &str) -> Vec<Value> {
    let log = broker.log();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line of the log is JSON"));
    lines.filter(|line| line[field] == value).collect()
}

/// The one line of the log about an act, once it is there.
fn act(broker: &Broker, name: &str) -> Value {
    until(&format!("{name} is in the log"), || !lines(broker, "act", name).is_empty());
    let found = lines(broker, "act", name);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&found[0]["level"], &found[0]["target"]), (&"INFO".into(), &"duewheel::audit".into()), "{found:?}");
    found[0].clone()
}

fn assert_fields(line: &Value, fields: &[(&str, Value)]) {
    for (name, want) in fields {
        assert_eq!(&line[name], want, "{name}: {line}");
    }
}

#[test]
fn a_start_tells_the_disk_reserve_and_the_room_that_there_is() {
    let broker = Broker::start_with(&["--disk-reserve", "4096"]);
    let told = lines(&broker, "message", "disk reserve");
    assert_eq!(told.len(), 1, "{}", broker.log());
    assert_eq!(told[0]["reserve_bytes"], 4_096);
    assert!(told[0]["free_bytes"].as_u64().is_some_and(|free| free > 0), "{told:?}");
    assert!(!broker.log().contains("refused"), "nothing is: {}", broker.log());
}

#[test]
fn acts_on_a_topic_are_in_the_log_with_what_they_changed() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders", "--lease", "20s"]);
    let created = act(&broker, "create_topic");
    assert_fields(&created, &[("topic", "orders".into()), ("settings", "lease = 20s".into())]);

    broker.ok(&["topic", "update", "orders", "--lease", "25s"]);
    let updated = act(&broker, "update_topic");
    assert_fields(&updated, &[("topic", "orders".into()), ("changes", "lease: 20s -> 25s".into())]);

    broker.ok(&["topic", "pause", "orders"]);
    assert_fields(&act(&broker, "pause_topic"), &[("topic", "orders".into())]);
    broker.ok(&["topic", "resume", "orders"]);
    assert_fields(&act(&broker, "resume_topic"), &[("topic", "orders".into())]);

    broker.ok(&["produce", "orders", "x", "--delay", "1h"]);
    broker.ok(&["topic", "delete", "orders", "--purge", "--yes"]);
    let fields = [("topic", "orders".into()), ("purge", true.into()), ("messages", 1.into())];
    assert_fields(&act(&broker, "delete_topic"), &fields);

    // A refusal is no act.
    assert_ne!(broker.run(&["topic", "pause", "orders"]).code, 0);
    act(&broker, "pause_topic");
}

#[test]
fn jobs_over_dead_letters_are_in_the_log_with_their_counts_and_without_what_is_in_the_messages() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders", "--max-attempts", "1"]);
    for key in ["secret-key-1", "secret-key-2"] {
        broker.ok(&["produce", "orders", "secret body", "--key", key, "--delay", "0s", "--header", "h=secret-header"]);
    }
    broker.run(&["consume", "orders", "--max", "2", "--exec", "exit 75"]);
    assert_eq!(broker.count("orders", "dead"), 2);

    broker.ok(&["dead", "redrive", "orders", "--all", "--dry-run"]);
    broker.ok(&["dead", "redrive", "orders", "--key", "secret-key-1", "--yes"]);
    let redriven = act(&broker, "redrive_dead_letters");
    let fields = [("topic", "orders".into()), ("matched", 1.into()), ("done", 1.into()), ("end", "complete".into())];
    assert_fields(&redriven, &fields);

    let id = broker.json(&["message", "show", "orders", "--key", "secret-key-2"])["id"].clone();
    let id = id.as_str().expect("an id");
    broker.ok(&["dead", "purge", "orders", "--id", id, "--yes"]);
    let fields = [("selected", format!("ids: {id}").into()), ("done", 1.into()), ("end", "complete".into())];
    assert_fields(&act(&broker, "purge_dead_letters"), &fields);
    assert!(!broker.log().contains("secret"), "{}", broker.log());
}

#[test]
fn a_backup_is_in_the_log_when_it_begins_and_with_its_size_when_it_ends() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders"]);
    broker.ok(&["produce", "orders", "x", "--delay", "1h"]);
    let file = broker.data_dir.path().join("backup");
    broker.ok(&["backup", arg(&file)]);
    assert_fields(&act(&broker, "begin_backup"), &[("topics", 1.into()), ("live_messages", 1.into())]);
    let size = std::fs::metadata(&file).expect("the backup").len();
    assert_fields(&act(&broker, "end_backup"), &[("bytes", size.into()), ("end", "complete".into())]);
}

#[tokio::test]
async fn adopting_the_clock_is_in_the_log() {
    let broker = Broker::start();
    let mut admin = AdminServiceClient::connect(broker.endpoint()).await.expect("the broker serves");
    admin.adopt_clock(pb::AdoptClockRequest::default()).await.expect("it is in step");
    assert!(act(&broker, "adopt_clock")["offset_ms"].is_i64(), "{}", broker.log());
}

#[test]
fn a_job_whose_client_goes_away_is_in_the_log_with_what_it_had_done() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders", "--max-attempts", "1"]);
    for _ in 0..3 {
        broker.ok(&["produce", "orders", "x", "--delay", "0s"]);
    }
    broker.run(&["consume", "orders", "--max", "3", "--exec", "exit 75"]);
    assert_eq!(broker.count("orders", "dead"), 3);
    // One a second: it is far from its end when its client goes away.
    let mut purge = broker.command(&["dead", "purge", "orders", "--all", "--yes", "--rate", "1/s"]);
    let mut purge = purge.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program runs");
    until("the first is purged", || broker.count("orders", "dead") < 3);
    send_signal(&purge, Signal::KILL);
    purge.wait().expect("it ends");
    let purged = act(&broker, "purge_dead_letters");
    let done = 3 - broker.count("orders", "dead");
    assert_fields(&purged, &[("done", done.into()), ("end", "its client is gone".into())]);
}
