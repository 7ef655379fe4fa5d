//! `duewheel check` and `duewheel compact` on the directory of a broker that has stopped.

mod support;

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;
use support::page_store::damage_page;
use support::{Broker, Ran, arg, duewheel, file};

const MESSAGES: u64 = 3_000;

fn run(args: &[&str]) -> Ran {
    Ran::of(duewheel().args(args).output().expect("the program runs"), args)
}

fn check(data: &Path, more: &[&str]) -> Ran {
    let mut args = vec!["check", "--data-dir", arg(data)];
    args.extend(more);
    run(&args)
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

fn stop(broker: &mut Broker) {
    broker.signal(Signal::TERM);
    assert_eq!(broker.wait().code(), Some(0));
}

#[test]
fn damage_is_found_named_set_aside_and_the_rest_is_served() {
    let (mut broker, data) = Broker::with_pages(MESSAGES);
    let busy = check(&data, &[]);
    assert_eq!(busy.code, 78, "{busy:?}");
    assert!(busy.stderr.contains(&format!("process {}", broker.process_id())), "{busy:?}");
    stop(&mut broker);

    let clean = check(&data, &["-o", "json"]);
    assert_eq!(clean.code, 0, "{clean:?}");
    let report = json(&clean);
    assert_eq!((&report["clean"], &report["topics"][0]["live"]), (&true.into(), &MESSAGES.into()));
    assert!(report["pages"].as_u64() > Some(20) && report["commits"].as_u64() > Some(0), "{report}");
    assert!(check(&data, &[]).stdout.contains("nothing is wrong"));

    damage_page(&data, 7);
    let found = check(&data, &["-o", "json"]);
    assert_eq!(found.code, 1, "{found:?}");
    let report = json(&found);
    let finding = &report["findings"][0];
    assert_eq!(report["findings"].as_array().map(Vec::len), Some(1), "{report}");
    assert_eq!((finding["file"].as_str(), finding["topic"].as_str()), (Some("pages/db"), Some("orders")));
    let lost = finding["messages"].as_u64().expect("it is counted");
    assert!(lost > 5 && finding["run"].is_u64() && finding["page"].is_u64(), "{finding}");
    assert!(finding["slot"].as_str().is_some_and(|slot| slot.starts_with("hour ")), "{finding}");
    let told = check(&data, &[]);
    assert!(told.stdout.contains("topic orders") && told.stdout.contains("page"), "{told:?}");
    assert!(told.stderr.contains("--quarantine"), "{told:?}");
    let unasked = check(&data, &["--quarantine"]);
    assert_eq!(unasked.code, 2, "nobody can be asked: {unasked:?}");

    let aside = check(&data, &["--quarantine", "--yes", "-o", "json"]);
    assert_eq!(aside.code, 0, "{aside:?}");
    assert!(aside.stderr.contains(&format!("{lost} messages were set aside")), "{aside:?}");
    let after = json(&check(&data, &["-o", "json"]));
    assert_eq!(after["clean"], true, "{after}");
    assert_eq!(after["quarantine"].as_array().map(Vec::len), Some(1), "{after}");
    assert_eq!(after["topics"][0]["quarantined"].as_u64(), Some(lost));

    let broker = Broker::start_in(broker.data_dir.clone(), broker.grpc, &[]);
    let stats = &broker.json(&["stats", "orders"])["topics"][0];
    assert_eq!(stats["quarantined"].as_u64(), Some(lost), "{stats}");
    assert_eq!(stats["scheduled"].as_u64(), Some(MESSAGES - lost), "{stats}");
}

#[test]
fn a_directory_that_is_no_store_is_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| directory.path().join(name);
    for (name, file) in [("empty", None), ("foreign", Some("thesis.txt")), ("damaged", Some("pages"))] {
        fs::create_dir(path(name)).expect("a writable directory");
        if let Some(file) = file {
            fs::write(path(name).join(file), "years of work").expect("a writable directory");
        }
    }
    let file = file(&directory, "duewheel.toml", "");
    for command in ["check", "compact"] {
        for (name, said) in [
            ("nowhere", "nowhere does not exist; give the directory"),
            ("empty", "empty is empty, no duewheel data directory"),
            ("foreign", "foreign is not a duewheel data directory and not empty (it has 'thesis.txt')"),
            ("duewheel.toml", "duewheel.toml is not a directory"),
            ("damaged", "FORMAT is missing from the data directory\n  next: keep a copy of the directory"),
        ] {
            let ran = run(&[command, "--data-dir", arg(&path(name))]);
            assert_eq!(ran.code, 78, "{ran:?}");
            assert!(ran.stderr.contains(said) && !ran.stderr.contains("duewheel check"), "{said}: {ran:?}");
            // Only what may be a store that has lost a part is a case for its backup.
            assert_eq!(ran.stderr.contains("backup"), name == "damaged", "{ran:?}");
        }
        assert!(!path("nowhere").exists() && file.is_file(), "nothing is made");
        assert_eq!(fs::read_dir(path("empty")).expect("it can be read").count(), 0, "nothing is made");
    }
}

#[test]
fn compaction_loses_nothing_and_clears_away_what_it_leaves() {
    let (broker, data) = Broker::with_pages(MESSAGES);
    for n in 0..3 {
        let line = |line| format!("{{\"body\":\"{n} {line:05} {}\"}}\n", "z".repeat(300));
        let lines = (0..MESSAGES).map(line).collect::<Vec<_>>().concat();
        let lines = file(&broker.data_dir, "more.txt", &lines);
        broker.ok(&["topic", "create", &format!("more-{n}")]);
        broker.ok(&["produce", &format!("more-{n}"), "--from", arg(&lines), "--delay", "30m"]);
    }
    let mut broker = broker;
    stop(&mut broker);
    let before = json(&check(&data, &["-o", "json"]));
    let ran = run(&["compact", "--data-dir", arg(&data), "-o", "json"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let sizes = json(&ran);
    println!("{sizes}");
    assert_eq!(sizes["messages"], before["messages"]);
    assert!(!data.join("pages.new").exists());
    let after = check(&data, &["-o", "json"]);
    assert_eq!(after.code, 0, "{after:?}");
    assert_eq!(json(&after)["topics"], before["topics"]);

    // What an interrupted compaction leaves is of no use and is removed.
    fs::create_dir(data.join("pages.new")).expect("it can be made");
    fs::write(data.join("pages.new/db"), "half a copy").expect("it can be written");
    let mut broker = Broker::start_in(broker.data_dir.clone(), broker.grpc, &[]);
    assert!(!data.join("pages.new").exists());
    assert_eq!(broker.count("orders", "scheduled"), MESSAGES);
    let busy = run(&["compact", "--data-dir", arg(&data)]);
    assert_eq!(busy.code, 78, "{busy:?}");
    // And the journal goes on over the new database.
    broker.ok(&["produce", "orders", "one more", "--delay", "10h"]);
    stop(&mut broker);
    assert_eq!(json(&check(&data, &["-o", "json"]))["topics"][0]["live"].as_u64(), Some(MESSAGES + 1));
}
