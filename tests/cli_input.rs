//! Bad values on the command line: each is refused with exit code 2, by the name of its option and with what it takes,
//! and usage lines show what is required and nothing else.

mod support;

use support::{Broker, Ran, arg, duewheel, file};

/// Runs a command that needs no broker, because it is refused before.
fn run(args: &[&str]) -> Ran {
    Ran::of(duewheel().args(args).output().expect("the program runs"), args)
}

#[test]
fn a_negative_or_nonsensical_value_reaches_the_parser_of_its_option_which_says_what_it_takes() {
    let cases: &[(&[&str], &str, &str)] = &[
        (&["produce", "t", "x", "--delay", "-5s"], "--delay", "0 or longer"),
        (&["produce", "t", "x", "--delay", "NaN"], "--delay", "30s"),
        (&["produce", "t", "x", "--delay", "inf"], "--delay", "30s"),
        (&["produce", "t", "x", "--delay", "1e9s"], "--delay", "30s"),
        (&["produce", "t", "x", "--delay", "18446744073709551616ms"], "--delay", "30s"),
        (&["produce", "t", "x", "--at", "-1"], "--at", "2026-12-01T09:30:00Z"),
        (&["produce", "t", "x", "--at", "2026-13-01T00:00:00Z"], "--at", "2026-12-01T09:30:00Z"),
        (&["produce", "t", "x", "--schedule", "-1s,2s"], "--schedule", "0 or longer"),
        (&["produce", "t", "x", "--schedule", "1s,,2s"], "--schedule", "30s"),
        (&["produce", "t", "x", "--schedule", "65x1s"], "--schedule", "1 to 64"),
        (&["produce", "t", "x", "--delay", "30s1m"], "--delay", "the largest first"),
        (&["topic", "create", "t", "--schedule", "5s5s"], "--schedule", "a comma stands between two delays"),
        (&["serve", "--disk-reserve", "100K", "--print-config"], "--disk-reserve", "KiB, MiB, GiB or TiB"),
        (&["produce", "t", "x", "--max-attempts", "-1"], "--max-attempts", "0..=10000"),
        (&["consume", "t", "--max", "-1"], "--max", "at least 1"),
        (&["consume", "t", "--max", "0"], "--max", "at least 1"),
        (&["consume", "t", "--lease", "-30s"], "--lease", "0 or longer"),
        (&["consume", "t", "--window", "-1"], "--window", "1..=10000"),
        (&["consume", "t", "--concurrency", "-1"], "--concurrency", "1..=1000"),
        (&["topic", "create", "t", "--lease", "-30s"], "--lease", "0 or longer"),
        (&["topic", "create", "t", "--rate", "-1/s"], "--rate", "20/s"),
        (&["topic", "create", "t", "--concurrency", "-1"], "--concurrency", "at least 1"),
        (&["topic", "create", "t", "--jitter", "-1"], "--jitter", "0..=100"),
        (&["topic", "update", "t", "--history-age", "-1d"], "--history-age", "0 or longer"),
        (&["message", "reschedule", "t", "--key", "k", "--delay", "-5s"], "--delay", "0 or longer"),
        (&["message", "list", "t", "--limit", "-1"], "--limit", "at least 1"),
        (&["message", "list", "t", "--due-from", "-1h"], "--due-from", "2026-12-01T09:30:00Z"),
        (&["dead", "redrive", "t", "--all", "--rate", "-5/s"], "--rate", "20/s"),
        (&["dead", "purge", "t", "--all", "--limit", "-5"], "--limit", "at least 1"),
        (&["dead", "list", "t", "--limit", "-5"], "--limit", "at least 1"),
        (&["dead", "list", "t", "--died-from", "-1h"], "--died-from", "2026-12-01T09:30:00Z"),
        (&["serve", "--disk-reserve", "-1", "--print-config"], "--disk-reserve", "64KiB"),
        (&["serve", "--drain-timeout", "-1s", "--print-config"], "--drain-timeout", "0 or longer"),
        (&["serve", "--max-topics", "-1", "--print-config"], "--max-topics", "1 to"),
    ];
    for (args, option, takes) in cases {
        let ran = run(args);
        let config = args[0] == "serve";
        assert_eq!(ran.code, if config { 78 } else { 2 }, "{ran:?}");
        assert!(ran.stderr.contains(option) && ran.stderr.contains(takes), "{ran:?}");
        assert!(!ran.stderr.contains("unexpected argument"), "{ran:?}");
    }
}

#[test]
fn an_option_with_an_empty_text_is_refused_because_a_variable_was_probably_not_set() {
    for (args, option) in [
        (&["produce", "t", "x", "--key", ""][..], "--key"),
        (&["produce", "t", "x", "--dedup-id", ""], "--dedup-id"),
        // An empty command would ack every message.
        (&["consume", "t", "--exec", ""], "--exec"),
        (&["message", "cancel", "t", "--key", ""], "--key"),
        (&["message", "show", "t", "--id="], "--id"),
        (&["message", "list", "t", "--key", ""], "--key"),
        (&["dead", "list", "t", "--error", ""], "--error"),
    ] {
        let ran = run(args);
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.stderr.contains(option) && ran.stderr.contains("was a variable not set?"), "{ran:?}");
    }
}

#[test]
fn a_header_that_is_given_twice_is_refused() {
    let ran = run(&["produce", "t", "x", "--header", "a=1", "--header", "b=1", "--header", "a=2"]);
    assert!(ran.code == 2 && ran.stderr.contains("--header a= is given twice"), "{ran:?}");
}

#[test]
fn a_size_may_be_given_in_any_of_the_units() {
    for (size, printed) in [("10TiB", "\"10TiB\""), ("1024GiB", "\"1TiB\""), ("65536", "\"64KiB\""), ("17", "17")] {
        let ran = run(&["serve", "--disk-reserve", size, "--print-config"]);
        assert!(ran.code == 0 && ran.stdout.contains(&format!("disk_reserve = {printed} #")), "{ran:?}");
    }
}

#[test]
fn only_an_object_is_a_line_of_a_file_and_all_other_lines_are_named() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders"]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let lines = [
        r#"["posbody",null,"pk"]"#,
        "[1]",
        "7",
        r#"{"headers":{"a":"1","a":"2"}}"#,
        r#"{"key":""}"#,
        r#"{"body":"good","key":"k","delay":"1h"}"#,
    ];
    let path = file(&directory, "lines.jsonl", &lines.join("\n"));
    let ran = broker.run(&["produce", "orders", "--from", arg(&path)]);
    assert_eq!(ran.code, 1, "{ran:?}");
    for (line, said) in [
        (1, "a JSON object is expected, not an array (not done)"),
        (2, "a JSON object is expected, not an array (not done)"),
        (3, "a JSON object is expected, not a number (not done)"),
        (4, "duplicate header 'a'"),
        (5, "key is empty; leave it out (not done)"),
    ] {
        assert!(ran.stderr.contains(&format!("lines.jsonl:{line}: {said}")), "{said}: {ran:?}");
    }
    assert_eq!(broker.count("orders", "produced"), 1);
}

#[test]
fn a_span_in_the_place_of_a_topic_is_told_where_it_belongs() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders"]);
    let ran = broker.run(&["stats", "--watch", "5s"]);
    assert!(ran.code == 2 && ran.stderr.contains("--watch=5s"), "{ran:?}");
    let ran = broker.run(&["stats", "5s"]);
    assert!(ran.code == 1 && !ran.stderr.contains("--watch"), "{ran:?}");
}

#[test]
fn the_help_of_an_update_tells_no_defaults() {
    let (create, update) = (run(&["topic", "create", "--help"]), run(&["topic", "update", "--help"]));
    assert!(create.stdout.contains("Lease time, 100ms to 12h [default: 30s]"), "{create:?}");
    assert!(update.stdout.contains("Lease time, 100ms to 12h\n"), "{update:?}");
    let (settings, _) = update.stdout.split_once("Everywhere:").expect("the options of all commands");
    assert!(!settings.contains("[default"), "{update:?}");
}

#[test]
fn a_usage_line_shows_what_is_required_whatever_the_environment_says() {
    for (args, usage) in [
        (&["produce"][..], "Usage: duewheel produce <TOPIC> [BODY]\n"),
        (&["message", "cancel", "t"], "Usage: duewheel message cancel <--id <ID>|--key <KEY>> <TOPIC>\n"),
        (&["restore"], "Usage: duewheel restore <FILE>\n"),
    ] {
        let mut command = duewheel();
        command.args(args).env("DUEWHEEL_ENDPOINT", "http://127.0.0.1:7383").env("DUEWHEEL_DATA_DIR", "elsewhere");
        let ran = Ran::of(command.output().expect("the program runs"), args);
        assert!(ran.code == 2 && ran.stderr.contains(usage), "{ran:?}");
    }
    let help = run(&["produce", "--help"]).stdout;
    assert!(help.contains("[env: DUEWHEEL_ENDPOINT] [default: http://127.0.0.1:7383]"), "{help}");
}

#[test]
fn a_command_that_asks_no_broker_has_no_endpoint_and_says_so() {
    for command in ["serve", "check", "compact", "restore", "completions", "man"] {
        let help = run(&[command, "--help"]);
        assert!(help.code == 0 && !help.stdout.contains("--endpoint"), "{help:?}");
        let refused = run(&[command, "--endpoint", "http://127.0.0.1:1"]);
        assert!(refused.code == 2 && refused.stderr.contains("asks no broker"), "{refused:?}");
    }
    // Before the command they are refused too, and so is a format where only text is printed.
    for args in [
        &["--endpoint", "http://127.0.0.1:1", "check"][..],
        &["--endpoint", "http://127.0.0.1:1", "serve", "--print-config"],
    ] {
        let refused = run(args);
        assert!(refused.code == 2 && refused.stderr.contains("asks no broker"), "{refused:?}");
    }
    for args in [&["serve", "--print-config", "-o", "json"][..], &["-o", "json", "serve", "--print-config"]] {
        let refused = run(args);
        assert!(refused.code == 2 && refused.stderr.contains("prints text only"), "{refused:?}");
    }
    assert_eq!(run(&["serve", "--print-config"]).code, 0);
    let help = run(&["topic", "list", "--help"]).stdout;
    assert!(help.contains("--endpoint") && help.contains("--output"), "{help}");
}

#[test]
fn a_delay_and_a_due_time_exclude_each_other_and_nothing_is_stored() {
    let broker = Broker::start();
    broker.ok(&["topic", "create", "orders"]);
    let both = broker.run(&["produce", "orders", "x", "--delay", "5s", "--at", "2030-01-01T00:00:00Z"]);
    assert!(both.code == 2 && both.stderr.contains("--delay") && both.stderr.contains("--at"), "{both:?}");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let lines = r#"{"body": "x", "delay": "5s", "due_at": "2030-01-01T00:00:00Z"}"#;
    let both = broker.run(&["produce", "orders", "--from", arg(&file(&directory, "both.jsonl", lines))]);
    assert!(both.code != 0 && both.stderr.contains("delay") && both.stderr.contains("due_at"), "{both:?}");
    assert_eq!(broker.count("orders", "produced"), 0);
    // Zero is a delay, and the past a due time: now.
    broker.ok(&["produce", "orders", "x", "--delay", "0"]);
    broker.ok(&["produce", "orders", "x", "--at", "2001-01-01T00:00:00Z"]);
    assert_eq!(broker.count("orders", "ready"), 2);
}

#[test]
fn more_topics_than_allowed_are_refused_by_the_limit() {
    let broker = Broker::start_with(&["--max-topics", "2"]);
    broker.ok(&["topic", "create", "one"]);
    broker.ok(&["topic", "create", "two"]);
    let third = broker.run(&["topic", "create", "three"]);
    assert!(third.stderr.contains("TOO_MANY_TOPICS") && third.stderr.contains('2'), "{third:?}");
    assert!(third.code == 1 && third.stderr.contains("not done"), "{third:?}");
    assert!(third.stderr.contains("max_topics") && !third.stderr.contains("try again"), "{third:?}");
    assert_eq!(broker.ok(&["topic", "list", "-o", "jsonl"]).lines().count(), 2);
}
