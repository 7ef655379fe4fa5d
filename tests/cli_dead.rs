//! Dead letters and the deletion of topics from the command line.

mod support;

use std::fs;
use std::process::Stdio;

use rustix::process::Signal;

use support::{Broker, arg, send_signal, until};

/// A topic with dead letters of these keys; every text of a nack is the exit of a command.
fn with_dead(keys: &[&str]) -> Broker {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders", "--schedule", "1ms", "--max-attempts", "1"]);
    for key in keys {
        broker.ok(&[
            "produce",
            "orders",
            &format!("body, of \"{key}\""),
            "--key",
            key,
            "--delay",
            "0s",
            "--header",
            "a=b",
        ]);
    }
    let count = keys.len().to_string();
    broker.ok(&["consume", "orders", "--exec", "exit 75", "--max", &count]);
    until("they are dead", || broker.count("orders", "dead") == keys.len() as u64);
    broker
}

#[test]
fn dead_letters_are_shown_listed_by_filter_and_purged_after_a_question() {
    let broker = with_dead(&["a", "b", "c"]);
    let list = broker.json(&["dead", "list", "orders", "--key", "b"]);
    assert_eq!(list.as_array().map(Vec::len), Some(1));
    let id = list[0]["id"].as_str().expect("an id");
    let shown = broker.json(&["dead", "show", "orders", id]);
    assert_eq!((&shown["body"], &shown["headers"]["a"]), (&"body, of \"b\"".into(), &"b".into()));
    assert_eq!(shown["history"].as_array().map(Vec::len), Some(1));
    assert_eq!(broker.json(&["dead", "list", "orders", "--reason", "consumer"]).as_array().map(Vec::len), Some(0));

    let unasked = broker.run(&["dead", "purge", "orders", "--all"]);
    assert_eq!(unasked.code, 2, "{unasked:?}");
    assert!(unasked.stderr.contains("3 dead letters") && unasked.stderr.contains("--yes"), "{unasked:?}");
    let unasked = broker.run(&["dead", "purge", "orders", "--id", id]);
    assert!(unasked.code == 2 && unasked.stderr.contains("1 dead letters"), "{unasked:?}");
    let dry = broker.json(&["dead", "purge", "orders", "--reason", "max-attempts", "--dry-run"]);
    assert_eq!(dry[0]["count"], 3);
    assert_eq!(broker.count("orders", "dead"), 3);

    let one = broker.json(&["dead", "purge", "orders", "--id", id, "--yes"]);
    assert_eq!((&one[0]["status"], &one[0]["count"]), (&"PURGED".into(), &1.into()));
    let gone = broker.run(&["dead", "show", "orders", id]);
    assert!(gone.code == 1 && gone.stderr.contains("no dead letter"), "{gone:?}");
    let rest = broker.json(&["dead", "purge", "orders", "--all", "--yes"]);
    assert_eq!(rest[0]["count"], 2);
    assert_eq!((broker.count("orders", "dead"), broker.count("orders", "purged")), (0, 3));
    let none = broker.run(&["dead", "redrive", "orders", "--all", "--yes"]);
    assert_eq!((none.code, none.stdout.as_str()), (0, ""), "{none:?}");
    assert!(none.stderr.contains("no dead letters of 'orders' match"), "{none:?}");
    assert_eq!(broker.json(&["dead", "purge", "orders", "--all", "--yes"]), serde_json::json!([]));
    for args in [&["--all", "--key", "a"][..], &[], &["--all", "--rate", "1/m"], &["--id", "x", "--all"]] {
        let ran = broker.run(&[&["dead", "purge", "orders", "--yes"], args].concat());
        assert_eq!(ran.code, 2, "{ran:?}");
    }
}

#[test]
fn an_unset_variable_in_a_filter_selects_nothing() {
    let broker = with_dead(&["a", "b"]);
    for (command, option) in
        [("purge", "--key"), ("purge", "--error"), ("redrive", "--key"), ("purge", "--id"), ("redrive", "--id")]
    {
        let ran = broker.run(&["dead", command, "orders", option, "", "--yes"]);
        assert!(ran.code == 2 && ran.stderr.contains("was a variable not set?"), "{ran:?}");
    }
    assert_eq!(broker.count("orders", "dead"), 2);
}

#[test]
fn a_listing_that_its_limit_cuts_short_says_so() {
    let broker = with_dead(&["a", "b", "c"]);
    for key in ["d", "e", "f"] {
        broker.ok(&["produce", "orders", "x", "--key", key, "--delay", "1h"]);
    }
    for list in [["dead", "list", "orders", "--limit"], ["message", "list", "orders", "--limit"]] {
        for (limit, cut) in [("2", true), ("3", false), ("4", false)] {
            for format in ["table", "json", "jsonl"] {
                let ran = broker.run(&[&list[..], &[limit, "-o", format]].concat());
                assert_eq!(ran.code, 0, "{ran:?}");
                let said =
                    if cut { "the first 2 are shown; there are more: --limit N shows the first N\n" } else { "" };
                assert_eq!(ran.stderr, said, "{ran:?}");
            }
        }
    }
}

#[test]
fn an_export_is_a_whole_file_or_none() {
    let broker = with_dead(&["a", "b"]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let files = || fs::read_dir(directory.path()).expect("it can be read").count();
    let csv = directory.path().join("dead.csv");
    let ran = broker.run(&["dead", "export", "orders", "-o", "csv", "--to", arg(&csv)]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "{ran:?}");
    let text = fs::read_to_string(&csv).expect("it is there");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].starts_with("id,key,dead_reason,ended_at,"), "{text}");
    assert!(lines[1].contains(",a,MAX_ATTEMPTS,") && lines[1].contains("\"body, of \"\"a\"\"\""), "{text}");
    assert!(lines[1].contains("\"\"outcome\"\":\"\"NOT_YET\"\""), "the history is there: {text}");
    assert_eq!(files(), 1, "nothing else is left");

    let printed = broker.ok(&["dead", "export", "orders", "--key", "b"]);
    let letter: serde_json::Value = serde_json::from_str(printed.trim_end()).expect("one line of JSON");
    assert_eq!((&letter["key"], &letter["body"]), (&"b".into(), &"body, of \"b\"".into()));
    let nowhere = directory.path().join("missing").join("dead.csv");
    let ran = broker.run(&["dead", "export", "orders", "--to", arg(&nowhere)]);
    assert!(ran.code == 1 && ran.stderr.contains("cannot write"), "{ran:?}");
    let ran = broker.run(&["dead", "export", "missing", "--to", arg(&directory.path().join("x"))]);
    assert!(ran.code == 1 && files() == 1, "{ran:?}");
    let ran = broker.run(&["dead", "export", "orders", "-o", "json"]);
    assert!(ran.code == 2 && ran.stderr.contains("jsonl, csv"), "{ran:?}");
    let ran = broker.run(&["-o", "json", "dead", "export", "orders"]);
    assert!(ran.code == 2 && ran.stderr.contains("-o csv, or -o jsonl"), "{ran:?}");
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&csv, &link).expect("a writable directory");
    let ran = broker.run(&["dead", "export", "orders", "--to", arg(&link)]);
    assert!(ran.code == 2 && ran.stderr.contains("is a link"), "{ran:?}");
    assert!(fs::symlink_metadata(&link).is_ok_and(|found| found.is_symlink()), "it is still one");
}

#[test]
fn an_interrupted_redrive_stops_and_says_what_is_left() {
    let broker = with_dead(&["a", "b", "c", "d", "e"]);
    let args = ["dead", "redrive", "orders", "--all", "--rate", "1/s", "--yes"];
    let mut command = broker.command(&args);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program runs");
    until("some are redriven", || broker.count("orders", "dead") <= 3);
    send_signal(&child, Signal::INT);
    let output = child.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("interrupted"), "{errors}");
    assert!(broker.count("orders", "dead") >= 1, "the job has stopped with its command");
}

#[test]
fn a_topic_is_deleted_after_a_question_and_with_its_messages_only_if_that_is_asked_for() {
    let broker = with_dead(&["a", "b"]);
    broker.ok(&["topic", "create", "empty"]);
    let unasked = broker.run(&["topic", "delete", "empty"]);
    assert!(unasked.code == 2 && unasked.stderr.contains("--yes"), "{unasked:?}");
    assert_eq!(broker.json(&["topic", "delete", "empty", "--yes"])["messages"], 0);
    let full = broker.run(&["topic", "delete", "orders", "--yes"]);
    assert!(
        full.code == 1 && full.stderr.contains("2 are dead letters") && full.stderr.contains("--purge"),
        "{full:?}"
    );
    let unasked = broker.run(&["topic", "delete", "orders", "--purge"]);
    assert!(unasked.code == 2 && unasked.stderr.contains("all its 2 messages"), "{unasked:?}");
    let deleted = broker.json(&["topic", "delete", "orders", "--purge", "--yes"]);
    assert_eq!((&deleted["topic"], &deleted["messages"]), (&"orders".into(), &2.into()));
    let missing = broker.run(&["topic", "delete", "orders", "--purge", "--yes"]);
    assert!(missing.code == 1 && missing.stderr.contains("TOPIC_NOT_FOUND"), "{missing:?}");
    broker.ok(&["topic", "create", "orders"]);
    assert_eq!(broker.count("orders", "dead"), 0);
}
