//! Every client command of the program against a broker process: what it prints, and its exit code.

mod support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;
use std::sync::Arc;

use rustix::process::Signal;
use serde_json::Value;
use support::{Broker, Ran, arg, file, send_signal, until};

#[test]
fn a_topic_is_created_shown_changed_paused_and_listed() {
    let broker = Broker::start();
    let created = broker.json(&["topic", "create", "orders", "--schedule", "1s,2s,5x3s", "--rate", "1/3s"]);
    assert_eq!(created["schedule"], "1s,2s,5x3s");
    assert_eq!(created["rate"], "1/3s");
    assert_eq!(created["lease"], "30s");

    let again = broker.run(&["topic", "create", "orders"]);
    assert_eq!(again.code, 1, "{again:?}");
    assert!(again.stderr.contains("TOPIC_EXISTS") && again.stderr.contains("not done"), "{again:?}");

    let updated = broker.json(&["topic", "update", "orders", "--rate", "none", "--concurrency", "7", "--jitter", "5"]);
    assert_eq!((&updated["rate"], &updated["concurrency"]), (&Value::Null, &7.into()));
    assert_eq!(updated["schedule"], "1s,2s,5x3s", "what was not named stays");
    assert_eq!(broker.run(&["topic", "update", "orders"]).code, 2);

    assert_eq!(broker.json(&["topic", "pause", "orders"])["paused"], true);
    assert_eq!(broker.json(&["topic", "resume", "orders"])["paused"], false);
    assert_eq!(broker.json(&["topic", "show", "orders"])["jitter_percent"], 5);
    broker.ok(&["topic", "create", "bills"]);
    let table = broker.ok(&["topic", "list"]);
    let names: Vec<&str> = table.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["NAME", "bills", "orders"]);
    assert_eq!(broker.ok(&["topic", "list", "-o", "jsonl"]).lines().count(), 2);
    for args in [&["topic", "show", "nothing"][..], &["consume", "nothing"], &["consume", "nothing", "--max", "1"]] {
        let missing = broker.run(args);
        assert_eq!(missing.code, 1, "{missing:?}");
        assert!(missing.stderr.contains("TOPIC_NOT_FOUND") && missing.stderr.contains("next:"), "{missing:?}");
    }
}

#[test]
fn a_misspelt_topic_is_answered_with_the_one_that_was_meant() {
    let broker = Broker::start();
    let missing = broker.run(&["produce", "dropped-ordres", "x"]);
    assert_eq!(missing.code, 1, "{missing:?}");
    assert!(missing.stderr.contains("next: there is no topic yet; create it: duewheel topic create dropped-ordres"));
    let missing = broker.run(&["topic", "show", "dropped-ordres"]);
    assert!(missing.stderr.ends_with("next: there is no topic yet\n"), "{missing:?}");

    broker.ok(&["topic", "create", "dropped-orders"]);
    broker.ok(&["topic", "create", "bills"]);
    let create = "did you mean 'dropped-orders'? Otherwise: duewheel topic create dropped-ordres";
    let look = "did you mean 'dropped-orders'? All there are: duewheel topic list";
    let list = "next: see which topics there are: duewheel topic list";
    for (args, said) in [
        (&["produce", "dropped-ordres", "x"][..], create),
        (&["consume", "dropped-ordres", "--max", "1"], create),
        (&["topic", "show", "dropped-ordres"], look),
        (&["topic", "pause", "dropped-ordres"], look),
        (&["message", "show", "dropped-ordres", "--key", "k"], look),
        (&["dead", "list", "dropped-ordres"], look),
        (&["stats", "dropped-ordres"], look),
        // What deletes does not suggest what else could be deleted.
        (&["topic", "delete", "dropped-ordres", "--yes"], list),
        (&["dead", "purge", "dropped-ordres", "--all", "--yes"], list),
    ] {
        let missing = broker.run(args);
        assert_eq!(missing.code, 1, "{missing:?}");
        assert!(missing.stderr.contains(said), "{missing:?}");
        let only_reads = matches!(args[1], "show" | "list") || args[0] == "stats";
        assert_eq!(missing.stderr.contains("outcome: not done"), !only_reads, "{missing:?}");
    }
    let other = broker.run(&["topic", "show", "refunds"]);
    assert!(!other.stderr.contains("did you mean") && other.stderr.contains("duewheel topic list"), "{other:?}");
    let other = broker.run(&["produce", "refunds", "x"]);
    assert!(other.stderr.contains("create it: duewheel topic create refunds"), "{other:?}");
}

#[test]
fn a_message_is_produced_from_argument_file_and_stdin_and_consumed() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders"]);
    let produce = ["produce", "orders", "one", "--key", "k1", "--header", "lang=en", "--delay", "0s"];
    let produced = broker.json(&produce);
    assert_eq!(produced["existing"], false);

    let taken = broker.run(&produce);
    assert_eq!(taken.code, 1);
    assert!(taken.stderr.contains("KEY_IN_USE"), "{taken:?}");
    let kept = broker.json(&["produce", "orders", "x", "--key", "k1", "--key-policy", "keep"]);
    assert_eq!((&kept["id"], &kept["existing"]), (&produced["id"], &true.into()));

    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = file(&directory, "body", "two");
    broker.ok(&["produce", "orders", "--file", arg(&path), "--at", "2026-01-01T00:00:00+01:00"]);
    let mut piped = broker.command(&["produce", "orders", "--delay", "0"]);
    let mut piped = piped.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("the program runs");
    piped.stdin.take().expect("piped").write_all(b"three").expect("it reads");
    assert!(piped.wait().expect("it ends").success());

    let text = broker.ok(&["consume", "orders", "--max", "3", "-o", "jsonl"]);
    let consumed: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect();
    let bodies: Vec<&str> = consumed.iter().filter_map(|message| message["body"].as_str()).collect();
    assert_eq!(bodies, ["one", "two", "three"], "in the order of (due, arrival)");
    assert_eq!(consumed[0]["headers"]["lang"], "en");
    assert_eq!((&consumed[0]["key"], &consumed[0]["attempt"]), (&"k1".into(), &1.into()));
    assert_eq!(broker.count("orders", "acked"), 3);
}

#[test]
fn a_repeated_dedup_id_gets_the_first_answer() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders"]);
    let args = ["produce", "orders", "one", "--dedup-id", "d1", "--delay", "1h"];
    let (first, second) = (broker.json(&args), broker.json(&args));
    assert_eq!(first["id"], second["id"]);
    assert_eq!(second["existing"], true);
    let other = broker.run(&["produce", "orders", "other", "--dedup-id", "d1", "--delay", "1h"]);
    assert_eq!(other.code, 1);
    assert!(other.stderr.contains("DEDUP_ID_REUSED"), "{other:?}");
}

#[test]
fn a_file_is_produced_line_by_line_and_each_bad_line_is_named() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders"]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let good: Vec<String> = (0..250).map(|n| format!("{{\"body\":{{\"n\":{n}}},\"key\":\"k{n}\"}}")).collect();
    let path = file(&directory, "good.jsonl", &good.join("\n"));
    let summary = broker.ok(&["produce", "orders", "--from", arg(&path), "--delay", "1h"]);
    assert!(summary.contains("produced  250"), "{summary}");
    assert_eq!(broker.count("orders", "scheduled"), 250);

    let bad = "{\"key\":\"new\"}\n\n{\"key\":\"k7\"}\nnot json\n{\"delay\":\"soon\"}\n{\"delay\":\"500d\"}\n";
    let path = file(&directory, "bad.jsonl", bad);
    let ran = broker.run(&["produce", "orders", "--from", arg(&path), "-o", "jsonl"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    for (line, problem) in [(3, "KEY_IN_USE"), (4, "not JSON"), (5, "not a duration"), (6, ":6: delay: 500d")] {
        let place = format!("bad.jsonl:{line}: ");
        let said = ran.stderr.lines().find(|text| text.contains(&place));
        assert!(said.is_some_and(|text| text.contains(problem)), "{place}{problem}: {ran:?}");
    }
    let answers: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(answers.iter().filter(|answer| answer["id"].is_string()).count(), 1);
    assert_eq!(answers.len(), 5, "every line that is not empty has an answer");
}

#[test]
fn a_command_gets_body_and_environment_and_its_exit_code_settles() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders", "--schedule", "1h", "--error-schedule", "1h"]);
    for key in ["acked", "not-yet", "broken"] {
        broker.ok(&["produce", "orders", key, "--key", key, "--header", "trace-id=t1", "--delay", "0s"]);
    }
    let command = "read body; echo \"$body $DUEWHEEL_KEY $DUEWHEEL_ATTEMPT $DUEWHEEL_HEADER_TRACE_ID\"
        case $DUEWHEEL_KEY in acked) exit 0;; not-yet) echo asking >&2; echo no answer >&2; exit 75;; *) exit 3;; esac";
    let ran = broker.run(&["consume", "orders", "--exec", command, "--max", "3", "--name", "tester"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(ran.stdout, "acked acked 1 t1\nnot-yet not-yet 1 t1\nbroken broken 1 t1\n");
    assert!(ran.stderr.starts_with("asking\nno answer\n"), "what the command says is shown: {ran:?}");
    assert!(ran.stderr.contains("1 acked, 1 not yet, 1 failed, 0 lost"), "{ran:?}");

    assert_eq!(broker.json(&["message", "show", "orders", "--key", "acked"])["outcome"], "ACKED");
    let waiting = broker.json(&["message", "show", "orders", "--key", "not-yet"]);
    assert_eq!((&waiting["state"], &waiting["attempts"]), (&"SCHEDULED".into(), &1.into()));
    assert_eq!(
        (&waiting["history"][0]["consumer"], &waiting["history"][0]["text"]),
        (&"tester".into(), &"no answer".into())
    );
    let failed = broker.json(&["message", "show", "orders", "--key", "broken"]);
    assert_eq!((&failed["attempts"], &failed["failures"]), (&0.into(), &1.into()));
    assert_eq!(failed["history"][0]["text"], "exit status: 3");
}

#[test]
fn the_lease_is_extended_while_a_command_runs_and_ctrl_c_finishes_it() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders", "--lease", "300ms"]);
    broker.ok(&["produce", "orders", "slow", "--key", "slow", "--delay", "0s"]);
    broker.ok(&["produce", "orders", "never", "--key", "later", "--delay", "1h"]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let gate = directory.path().join("go");
    let command = format!("while [ ! -e {} ]; do sleep 0.02; done; echo done", gate.display());
    let mut consume = broker.command(&["consume", "orders", "--exec", &command]);
    let child = consume.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program runs");
    until("the command runs", || broker.count("orders", "leased") == 1);
    let deadline = |broker: &Broker| {
        let info = broker.json(&["message", "show", "orders", "--key", "slow"]);
        info["lease_deadline"].as_str().expect("it is leased").to_owned()
    };
    let first = deadline(&broker);
    // Instants in this form are in the order of their text.
    until("the lease has been extended twice over", || deadline(&broker) > first && deadline(&broker) != first);

    send_signal(&child, Signal::INT);
    std::fs::write(&gate, "").expect("a writable directory");
    let ran = Ran::of(child.wait_with_output().expect("it ends"), &["consume"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "done\n"), "{ran:?}");
    assert!(ran.stderr.contains("1 acked"), "{ran:?}");
    assert_eq!(broker.count("orders", "deliveries"), 1);
}

#[test]
fn a_consumer_goes_on_when_somebody_else_has_acked_its_message_after_a_crash() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders"]);
    broker.ok(&["produce", "orders", "first", "--delay", "0s"]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (begun, gate) = (directory.path().join("begun"), directory.path().join("go"));
    let command = format!("cat; touch {}; while [ ! -e {} ]; do sleep 0.02; done", begun.display(), gate.display());
    let mut consume = broker.command(&["consume", "orders", "--max", "1", "--exec", &command]);
    let child = consume.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program runs");
    until("the command runs", || begun.exists());
    let broker = broker.kill_and_restart();
    broker.ok(&["consume", "orders", "--max", "1"]);
    broker.ok(&["produce", "orders", "second", "--delay", "0s"]);
    std::fs::write(&gate, "").expect("a writable directory");
    let ran = Ran::of(child.wait_with_output().expect("it ends"), &["consume"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "firstsecond"), "{ran:?}");
    assert!(ran.stderr.contains("MESSAGE_GONE") && ran.stderr.contains("1 acked"), "{ran:?}");
    assert!(ran.stderr.contains("1 lost their lease") && ran.stderr.contains("does not come again"), "{ran:?}");
}

#[test]
fn a_second_signal_kills_the_command_and_gives_the_lease_back() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders", "--lease", "1h", "--min-redelivery-gap", "1h"]);
    broker.ok(&["produce", "orders", "x", "--key", "k", "--delay", "0s"]);
    let mut consume = broker.command(&["consume", "orders", "--exec", "exec sleep 3600"]);
    let child = consume.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program runs");
    until("the command runs", || broker.count("orders", "leased") == 1);
    send_signal(&child, Signal::TERM);
    send_signal(&child, Signal::INT);
    let ran = Ran::of(child.wait_with_output().expect("it ends"), &["consume"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    until("the lease is given back", || broker.count("orders", "scheduled") == 1);
    let returned = broker.json(&["message", "show", "orders", "--key", "k"]);
    assert_eq!((&returned["attempts"], &returned["history"][0]["outcome"]), (&0.into(), &"RETURNED".into()));
}

#[test]
fn cancel_and_reschedule_print_the_definite_answer() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders"]);
    let answer = |args: &[&str]| {
        let ran = broker.run(args);
        (ran.stdout.split_whitespace().next().unwrap_or_default().to_owned(), ran.code)
    };
    let id = broker.json(&["produce", "orders", "x", "--key", "a", "--delay", "1h"])["id"].clone();
    let id = id.as_str().expect("an id");
    assert_eq!(answer(&["message", "reschedule", "orders", "--key", "a", "--delay", "2h"]), ("RESCHEDULED".into(), 0));
    assert_eq!(answer(&["message", "cancel", "orders", "--key", "a"]), ("CANCELLED".into(), 0));
    assert_eq!(answer(&["message", "cancel", "orders", "--id", id]), ("CANCELLED".into(), 0));
    let late = broker.run(&["message", "reschedule", "orders", "--id", id, "--now"]);
    assert_eq!(late.code, 1);
    assert!(late.stdout.starts_with("ALREADY_DONE  CANCELLED"), "{late:?}");
    assert_eq!(answer(&["message", "cancel", "orders", "--key", "nobody"]), ("NOT_FOUND".into(), 1));

    broker.ok(&["produce", "orders", "x", "--key", "b", "--delay", "1h"]);
    assert_eq!(answer(&["message", "reschedule", "orders", "--key", "b", "--now"]), ("RESCHEDULED".into(), 0));
    let mut consume = broker.command(&["consume", "orders", "--exec", "read go < /dev/null; sleep 3600"]);
    let mut child = consume.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program runs");
    until("it is leased", || broker.count("orders", "leased") == 1);
    assert_eq!(answer(&["message", "cancel", "orders", "--key", "b"]), ("IN_FLIGHT".into(), 75));
    assert_eq!(answer(&["message", "reschedule", "orders", "--key", "b", "--now"]), ("IN_FLIGHT".into(), 75));
    assert_eq!(answer(&["message", "cancel", "orders", "--key", "b", "--when-lease-ends"]), ("IN_FLIGHT".into(), 0));
    // Two of a kind could be seen as one.
    send_signal(&child, Signal::TERM);
    send_signal(&child, Signal::INT);
    child.wait().expect("it ends");
    until("it is cancelled with the end of the lease", || broker.count("orders", "cancelled") == 2);
}

#[test]
fn dead_letters_are_listed_and_redriven() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders", "--schedule", "1ms", "--max-attempts", "1"]);
    for key in ["a", "b", "c"] {
        broker.ok(&["produce", "orders", key, "--key", key, "--delay", "0s"]);
    }
    broker.ok(&["consume", "orders", "--exec", "exit 75", "--max", "3"]);
    let dead = broker.json(&["dead", "list", "orders"]);
    let keys: Vec<&str> = dead.as_array().expect("an array").iter().filter_map(|d| d["key"].as_str()).collect();
    assert_eq!(keys, ["a", "b", "c"]);
    assert_eq!(dead[0]["dead_reason"], "MAX_ATTEMPTS");
    assert_eq!(broker.json(&["dead", "list", "orders", "--limit", "1"]).as_array().map(Vec::len), Some(1));

    let unasked = broker.run(&["dead", "redrive", "orders", "--all"]);
    assert_eq!(unasked.code, 2, "{unasked:?}");
    assert!(unasked.stderr.contains("--yes"), "{unasked:?}");
    let dry = broker.json(&["dead", "redrive", "orders", "--all", "--dry-run"]);
    assert_eq!((&dry[0]["status"], &dry[0]["count"]), (&"MATCHED".into(), &3.into()));
    assert_eq!(broker.count("orders", "dead"), 3);

    let id = dead[0]["id"].as_str().expect("an id");
    let one = broker.json(&["dead", "redrive", "orders", "--id", id]);
    assert_eq!((&one[0]["status"], &one[0]["count"]), (&"REDRIVEN".into(), &1.into()));
    let again = broker.run(&["dead", "redrive", "orders", "--id", id]);
    assert_eq!(again.code, 1, "{again:?}");
    assert!(again.stdout.contains("NOT_DEAD"), "{again:?}");
    let rest = broker.json(&["dead", "redrive", "orders", "--all", "--yes", "--rate", "1000/s"]);
    assert_eq!(rest[0]["count"], 2);
    assert_eq!((broker.count("orders", "dead"), broker.count("orders", "ready")), (0, 3));
}

#[test]
fn stats_and_health_tell_how_the_broker_is() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders"]);
    broker.ok(&["produce", "orders", "x", "--delay", "1h"]);
    assert_eq!(broker.ok(&["health"]), "status  SERVING\n");
    let stats = broker.json(&["stats"]);
    assert_eq!(stats["topics"][0]["scheduled"], 1);
    assert_eq!(stats["broker"]["version"], env!("CARGO_PKG_VERSION"));
    let table = broker.ok(&["stats"]);
    assert!(table.starts_with("TOPIC") && table.contains("orders"), "{table}");

    let mut watch = broker.command(&["stats", "orders", "--watch=100ms", "-o", "jsonl"]);
    let mut child = watch.stdout(Stdio::piped()).spawn().expect("the program runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    for _ in 0..3 {
        assert!(lines.next().expect("another line").expect("text").contains("\"orders\""));
    }
    send_signal(&child, Signal::INT);
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn what_is_printed_has_no_colours_and_help_names_a_similar_command() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders"]);
    for args in [["topic", "list"], ["topic", "lst"]] {
        let ran = broker.run(&args);
        assert!(!format!("{}{}", ran.stdout, ran.stderr).contains('\x1b'), "{ran:?}");
    }
    let misspelt = broker.run(&["topic", "lst"]);
    assert_eq!(misspelt.code, 2);
    assert!(misspelt.stderr.contains("'list'"), "{misspelt:?}");
}

#[test]
fn the_timeline_is_shown_as_a_chart_and_given_as_json() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders"]);
    for delay in ["10m", "10m", "3d", "300d"] {
        broker.ok(&["produce", "orders", "x", "--delay", delay]);
    }
    let stats = broker.json(&["stats", "orders", "--timeline"]);
    let timeline = stats["topics"][0]["timeline"].as_array().expect("a timeline");
    let counts: Vec<u64> = timeline.iter().filter_map(|span| span["count"].as_u64()).collect();
    assert_eq!((counts.len(), counts.iter().sum::<u64>()), (144, 4));
    assert_eq!(timeline[143]["until"], Value::Null);
    assert_eq!(counts[143], 1);
    let chart = broker.ok(&["stats", "orders", "--timeline"]);
    assert!(chart.contains("DUE FROM") && chart.contains("later") && chart.contains("####"), "{chart}");
    assert!(broker.json(&["stats", "orders"])["topics"][0]["timeline"].is_null());
    assert_eq!(broker.run(&["stats", "--timeline"]).code, 2, "it needs a topic");
}

#[test]
fn messages_are_listed_by_state_time_and_key() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders"]);
    for (key, delay) in [("a", "0s"), ("b", "1h"), ("c", "2d")] {
        broker.ok(&["produce", "orders", "x", "--key", key, "--delay", delay]);
    }
    let keys = |args: &[&str]| -> Vec<String> {
        let all = broker.json(&[&["message", "list", "orders"][..], args].concat());
        let keys = all.as_array().expect("an array").iter().map(|info| info["key"].as_str().expect("a key").to_owned());
        keys.collect()
    };
    assert_eq!(keys(&[]), ["a", "b", "c"]);
    assert_eq!(keys(&["--limit", "2"]), ["a", "b"]);
    assert_eq!(keys(&["--state", "ready"]), ["a"]);
    assert_eq!(keys(&["--state", "scheduled"]), ["b", "c"]);
    assert_eq!(keys(&["--key", "b"]), ["b"]);
    assert_eq!(keys(&["--state", "dead"]), Vec::<String>::new());
    let due = broker.json(&["message", "show", "orders", "--key", "b"])["due_at"].as_str().expect("due").to_owned();
    assert_eq!(keys(&["--due-from", &due]), ["b", "c"]);
    assert_eq!(keys(&["--due-to", &due]), ["a"]);
    let table = broker.ok(&["message", "list", "orders"]);
    assert!(table.starts_with("ID") && table.contains("SCHEDULED") && table.contains("READY"), "{table}");
    let refused = broker.run(&["message", "list", "orders", "--due-from", &due, "--due-to", &due]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("due_until"), "{refused:?}");
}

#[test]
fn the_broker_tells_what_it_is_and_its_clock_is_in_step() {
    let broker = Broker::start_with(&["--clock-policy", "adopt", "--max-body", "9KiB"]);
    let info = broker.json(&["broker"]);
    assert_eq!(info["version"], env!("CARGO_PKG_VERSION"));
    assert!(info["epoch"].as_u64().is_some_and(|epoch| epoch > 0), "{info}");
    assert_eq!((&info["limits"]["max_body_bytes"], &info["limits"]["max_delay"]), (&9_216.into(), &"400d".into()));
    assert_eq!(info["clock"]["policy"], "adopt");
    assert!(info["disk_reserve_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{info}");
    let text = broker.ok(&["broker"]);
    assert!(text.contains("max_key_bytes") && text.contains("opening took"), "{text}");

    let clock = broker.json(&["clock", "show"]);
    assert_eq!((&clock["stepped"], &clock["hold_ms"]), (&false.into(), &0.into()));
    for args in [&["clock", "adopt"][..], &["clock", "adopt", "--yes"]] {
        let in_step = broker.ok(args);
        assert!(in_step.starts_with("nothing to do: the wall clock is "), "{in_step}");
    }
    let adopted = broker.json(&["clock", "adopt", "--yes"]);
    assert!(adopted["before"]["now"].as_str() <= adopted["after"]["now"].as_str(), "{adopted}");
    assert!(broker.ok(&["clock", "show"]).contains("adopt"));
    let refused = broker.run(&["serve", "--clock-policy", "follow"]);
    assert_eq!(refused.code, 78, "{refused:?}");
}

#[test]
fn a_message_that_was_handled_while_the_broker_was_away_is_acked_when_it_is_back() {
    let mut broker = Broker::start();
    broker.ok(&["topic", "create", "orders"]);
    broker.ok(&["produce", "orders", "x", "--delay", "0"]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (begun, go) = (directory.path().join("begun"), directory.path().join("go"));
    let handle = format!("echo begun >> {0}; until [ -e {1} ]; do sleep 0.01; done", arg(&begun), arg(&go));
    let mut consume = broker.command(&["consume", "orders", "--max", "1", "--exec", &handle]);
    let mut consume = consume.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program runs");
    until("the command runs", || begun.exists());
    broker.signal(Signal::TERM);
    assert!(broker.wait().success());
    std::fs::write(&go, "").expect("a writable directory");
    let mut said = BufReader::new(consume.stderr.take().expect("stderr is piped")).lines().map_while(Result::ok);
    let first = said.next().expect("the first try fails");
    assert!(first.contains("the ack failed") && first.contains("trying again until the lease ends"), "{first}");

    let broker = Broker::start_in(Arc::clone(&broker.data_dir), broker.grpc, &[]);
    let rest: Vec<String> = said.collect();
    assert_eq!(rest, ["1 acked, 0 not yet, 0 failed, 0 lost their lease"]);
    assert!(consume.wait().expect("a child can be waited for").success());
    assert_eq!((broker.count("orders", "acked"), broker.count("orders", "produced")), (1, 1));
    assert_eq!(std::fs::read_to_string(begun).expect("a file").lines().count(), 1, "it was handled once");
}
