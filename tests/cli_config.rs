//! The configuration of a broker process: where values come from, what a reload changes, and the topics of the file.

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::Signal;
use serde_json::Value;
use support::{Broker, Ran, arg, duewheel, file, until};
use tempfile::TempDir;

/// A broker with a configuration file in a directory of its own.
struct Configured {
    broker: Broker,
    directory: Arc<TempDir>,
    file: PathBuf,
}

impl Configured {
    fn start(text: &str) -> Self {
        let directory = Arc::new(tempfile::tempdir().expect("a temporary directory"));
        let file = file(&directory, "duewheel.toml", text);
        let broker = start(&directory, &file);
        Self { broker, directory, file }
    }

    /// Stops the broker in order, and starts it again with another file.
    fn restart(mut self, text: &str) -> Self {
        self.broker.signal(Signal::TERM);
        assert_eq!(self.broker.wait().code(), Some(0), "{}", self.broker.log());
        std::fs::write(&self.file, text).expect("a writable directory");
        let broker = start(&self.directory, &self.file);
        Self { broker, ..self }
    }

    /// Writes another file, sends SIGHUP and waits until the log says `said`; the log since then.
    fn reload(&self, text: &str, said: &str) -> String {
        std::fs::write(&self.file, text).expect("a writable directory");
        let before = self.broker.log().len();
        self.broker.signal(Signal::HUP);
        until(&format!("the log says '{said}'"), || self.broker.log()[before..].contains(said));
        self.broker.log()[before..].to_owned()
    }
}

fn start(directory: &Arc<TempDir>, file: &Path) -> Broker {
    Broker::start_in(Arc::clone(directory), ([127, 0, 0, 1], 0).into(), &["--config", arg(file)])
}

/// The events of a log in JSON with that message.
fn events(log: &str, message: &str) -> Vec<Value> {
    let events = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"));
    events.filter(|event| event["message"].as_str().is_some_and(|text| text.contains(message))).collect()
}

#[test]
fn print_config_shows_each_value_with_its_source_and_touches_nothing() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let data = directory.path().join("data");
    let text =
        format!("# mine\ndata_dir = '{}'\nmax_body = '1KiB'\n\n[topics.'pay.wechat']\nlease = '9s'\n", data.display());
    let config = file(&directory, "duewheel.toml", &text);
    let args = ["serve", "--config", arg(&config), "--print-config", "--log-level", "warn"];
    let print = |args: &[&str]| {
        let output = duewheel().args(args).env("DUEWHEEL_MAX_DELAY", "30d").output().expect("the program runs");
        Ran::of(output, args)
    };
    let ran = print(&args);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
    for line in [
        format!("data_dir = \"{}\" # {}:2", data.display(), config.display()),
        format!("max_body = \"1KiB\" # {}:3", config.display()),
        "max_delay = \"30d\" # environment DUEWHEEL_MAX_DELAY".to_owned(),
        "log_level = \"warn\" # --log-level".to_owned(),
        "insecure = false # default".to_owned(),
        format!("lease = \"9s\" # {}:6", config.display()),
    ] {
        assert!(ran.stdout.lines().any(|printed| printed == line), "{line} is not in\n{}", ran.stdout);
    }
    assert!(!data.exists(), "the store was opened");

    let printed = file(&directory, "printed.toml", &ran.stdout);
    let again = print(&["serve", "--config", arg(&printed), "--print-config"]);
    assert_eq!(again.code, 0, "{again:?}");
    let values = |text: &str| -> Vec<String> {
        text.lines().filter_map(|line| line.split(" # ").next()).map(str::to_owned).collect()
    };
    assert_eq!(values(&again.stdout)[1..], values(&ran.stdout)[1..], "the printed file gives the same configuration");

    let ran = print(&["serve", "--print-config", "--listen", "0.0.0.0:0"]);
    assert_eq!(ran.code, 78, "what does not start is no good configuration: {ran:?}");
    assert!(ran.stderr.contains("--insecure"), "{ran:?}");
}

#[test]
fn a_bad_file_refuses_the_start_with_78_and_names_every_line_and_column() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let data = directory.path().join("data");
    let text = "max_body = '2MiB'\nlisen = '127.0.0.1:0'\n[topics.'pay.wechat']\nlease = '1ms'\nconcurency = 4\n";
    let config = file(&directory, "duewheel.toml", text);
    for more in [&[][..], &["--print-config"]] {
        let mut args = vec!["serve", "--config", arg(&config), "--data-dir", arg(&data), "--listen", "127.0.0.1:0"];
        args.extend(more);
        let ran = Ran::of(duewheel().args(&args).output().expect("the program runs"), &args);
        assert_eq!((ran.code, ran.stdout.as_str()), (78, ""), "{ran:?}");
        for said in [
            "duewheel.toml:1:12: max_body: '2MiB' is out of range; 1 to 1MiB",
            "duewheel.toml:2:1: lisen: there is no such setting; did you mean 'listen'?",
            "duewheel.toml:4:9: topics.\"pay.wechat\".lease: 1ms; must be 100ms to 12h",
            "duewheel.toml:5:1: topics.\"pay.wechat\".concurency: there is no such setting of a topic; did you mean 'concurrency'?",
            "next: ",
        ] {
            assert!(ran.stderr.contains(said), "{said}: {ran:?}");
        }
    }
    assert!(!data.exists(), "a refused start leaves nothing behind");
}

#[test]
fn topics_of_the_file_are_created_and_brought_to_what_it_says_and_others_are_left_alone() {
    let configured =
        Configured::start("[topics.'pay.wechat']\nschedule = '1s,2s,5s'\nrate = '20/s'\n\n[topics.plain]\n");
    let broker = &configured.broker;
    let topic = broker.json(&["topic", "show", "pay.wechat"]);
    assert_eq!(
        (&topic["schedule"], &topic["rate"], &topic["lease"]),
        (&"1s,2s,5s".into(), &"20/s".into(), &"30s".into())
    );
    assert_eq!(broker.json(&["topic", "show", "plain"])["schedule"], "1s,2s,5s,10s,20s,40s,1m40s");
    assert_eq!(events(&broker.log(), "topic created").len(), 2, "{}", broker.log());

    // Somebody sets what the file does not name, pauses, and has a topic of his own.
    broker.ok(&["topic", "update", "pay.wechat", "--lease", "7s", "--rate", "5/s"]);
    broker.ok(&["topic", "pause", "pay.wechat"]);
    broker.ok(&["topic", "create", "mine", "--lease", "8s"]);

    let configured = configured.restart("[topics.'pay.wechat']\nschedule = '3s'\nrate = '20/s'\n");
    let broker = &configured.broker;
    let topic = broker.json(&["topic", "show", "pay.wechat"]);
    assert_eq!((&topic["schedule"], &topic["rate"]), (&"3s".into(), &"20/s".into()), "the file wins where it speaks");
    assert_eq!(
        (&topic["lease"], &topic["paused"]),
        (&"7s".into(), &true.into()),
        "it leaves alone what it does not name"
    );
    assert_eq!(broker.json(&["topic", "show", "mine"])["lease"], "8s");
    assert_eq!(broker.json(&["topic", "list"]).as_array().map(Vec::len), Some(3), "plain is still there");
    let log = broker.log();
    let changes: Vec<String> = events(&log, "topic changed")
        .iter()
        .map(|event| format!("{} {}: {} -> {}", event["topic"], event["setting"], event["old"], event["new"]))
        .collect();
    let want = [
        r#""pay.wechat" "rate": "5/s" -> "20/s""#.to_owned(),
        r#""pay.wechat" "schedule": "1s,2s,5s" -> "3s""#.to_owned(),
    ];
    assert_eq!(changes, want, "{log}");

    let configured = configured.restart("[topics.'pay.wechat']\nschedule = '3s'\nrate = '20/s'\n");
    assert!(events(&configured.broker.log(), "topic changed").is_empty(), "nothing differs any more");
}

#[test]
fn a_topic_that_the_broker_cannot_take_refuses_the_start_with_78_and_is_named() {
    let mut configured = Configured::start("[topics.a]\n[topics.b]\n");
    configured.broker.signal(Signal::TERM);
    assert_eq!(configured.broker.wait().code(), Some(0));
    let config = file(&configured.directory, "more.toml", "max_topics = 2\n[topics.third]\n");
    let data = configured.directory.path().join("data");
    let args = [
        "serve",
        "--config",
        arg(&config),
        "--data-dir",
        arg(&data),
        "--listen",
        "127.0.0.1:0",
        "--http-listen",
        "127.0.0.1:0",
    ];
    let ran = Ran::of(duewheel().args(args).output().expect("the program runs"), &args);
    assert_eq!(ran.code, 78, "{ran:?}");
    assert!(ran.stderr.contains("topics.\"third\"") && ran.stderr.contains("2 topics"), "{ran:?}");
    let configured = Configured { broker: start(&configured.directory, &configured.file), ..configured };
    assert_eq!(configured.broker.json(&["topic", "list"]).as_array().map(Vec::len), Some(2));
}

#[test]
fn a_hangup_reloads_what_can_change_and_names_what_cannot() {
    let configured = Configured::start("max_body = 100\n");
    let broker = &configured.broker;
    let done = "configuration reloaded";
    assert_eq!(events(&configured.reload("max_body = 100\n", done), done)[0]["changed"], 0);

    let log = configured.reload(
        "max_body = 200\ndrain_timeout = '7s'\ndisk_reserve = '1048576GiB'\n[topics.orders]\nlease = '9s'\n",
        done,
    );
    let restart = events(&log, "needs a restart");
    assert_eq!(restart.len(), 1, "{log}");
    assert_eq!(
        (&restart[0]["setting"], &restart[0]["running"], &restart[0]["new"]),
        (&"max_body".into(), &"100".into(), &"200".into())
    );
    let changed: Vec<Value> =
        events(&log, "setting changed").into_iter().map(|event| event["setting"].clone()).collect();
    assert_eq!(changed, ["disk_reserve", "drain_timeout"], "{log}");
    assert_eq!(broker.json(&["topic", "show", "orders"])["lease"], "9s");
    let produce = ["produce", "orders", "x", "--delay", "1h"];
    until("the disk is short of the new reserve", || broker.run(&produce).stderr.contains("DISK_RESERVE"));

    let log = configured.reload("max_body = 200\ndisk_reserve = 0\n[topics.orders]\nlease = '10s'\n", done);
    assert_eq!(events(&log, "needs a restart").len(), 1, "it is named until a restart brings it: {log}");
    let change = &events(&log, "topic changed")[0];
    assert_eq!((&change["old"], &change["new"]), (&"9s".into(), &"10s".into()), "{log}");
    until("the new reserve is in force", || broker.run(&produce).code == 0);
    let body = "x".repeat(150);
    assert_eq!(broker.run(&["produce", "orders", &body, "--delay", "1h"]).code, 2, "max_body needs a restart");

    let log = configured.reload("log_level = 'error'\n", done);
    assert_eq!(events(&log, "setting changed").last().expect("a change")["setting"], "log_level");
    let before = broker.log().len();
    broker.ok(&["topic", "create", "quiet"]);
    let mut broker = configured.broker;
    broker.signal(Signal::TERM);
    assert_eq!(broker.wait().code(), Some(0));
    assert!(!broker.log()[before..].contains("draining"), "it logs errors only: {}", broker.log());
}

#[test]
fn a_hangup_with_a_bad_file_changes_nothing_and_names_the_line_and_column() {
    let configured = Configured::start("[topics.orders]\nlease = '9s'\n");
    let not = "not reloaded";
    for (bad, place) in [
        ("[topics.orders]\nlease = '10s'\nmax_returns = 0\n", "duewheel.toml:3:15: topics.\\\"orders\\\".max_returns"),
        ("drain_timeout = '1s'\nlog_levle = 'debug'\n", "duewheel.toml:2:1: log_levle"),
        ("drain_timeout = \n", "duewheel.toml:1:"),
    ] {
        let log = configured.reload(bad, not);
        assert!(log.contains(place), "{place}: {log}");
        assert_eq!(events(&log, not)[0]["level"], "ERROR");
        assert_eq!(configured.broker.json(&["topic", "show", "orders"])["lease"], "9s");
    }
    std::fs::remove_file(&configured.file).expect("the file is there");
    configured.broker.signal(Signal::HUP);
    until("the missing file is told", || configured.broker.log().contains("cannot be read"));
    let log = configured.reload("[topics.orders]\nlease = '11s'\n", "configuration reloaded");
    assert_eq!(events(&log, "configuration reloaded")[0]["changed"], 0, "the old values stayed in force: {log}");
    assert_eq!(configured.broker.json(&["topic", "show", "orders"])["lease"], "11s");
}

#[test]
fn a_hangup_does_not_end_a_broker_without_a_file() {
    let broker = Broker::start();
    broker.signal(Signal::HUP);
    until("the hangup is told", || broker.log().contains("configuration reloaded"));
    assert_eq!(broker.ok(&["health"]), "status  SERVING\n");
}

#[test]
fn a_misspelt_variable_is_told() {
    let directory = Arc::new(tempfile::tempdir().expect("a temporary directory"));
    let mut program = duewheel();
    program.env("DUEWHEEL_MAXBODY", "1");
    let broker = Broker::start_by(program, directory, ([127, 0, 0, 1], 0).into(), &[]);
    assert!(broker.log().contains("DUEWHEEL_MAXBODY is not read; did you mean DUEWHEEL_MAX_BODY?"), "{}", broker.log());
}
