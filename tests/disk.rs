//! A disk that runs full. One that fails is in `tests/disk_faults.rs`.

mod support;

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use duewheel::client::{Client, Fetch, Nack, Nacked, Options};
use support::small_disk::SmallDisk;
use support::{Broker, Ran, arg, duewheel, file, until};
use tempfile::TempDir;

fn start(disk: &SmallDisk, reserve: &str) -> Broker {
    let flags = ["--disk-reserve", reserve, "--journal-generation", "1MiB"];
    Broker::start_in(Arc::clone(&disk.0), ([127, 0, 0, 1], 0).into(), &flags)
}

#[test]
fn a_nearly_full_disk_refuses_produce_only_and_recovers_by_itself() {
    let Some(disk) = SmallDisk::mount("200m") else { return };
    let broker = start(&disk, "40MiB");
    broker.ok(&["topic", "create", "orders", "--lease", "1h"]);
    broker.ok(&["produce", "orders", "before", "--delay", "0s"]);
    broker.ok(&["produce", "orders", "later", "--key", "k", "--delay", "1h"]);
    broker.ok(&["topic", "create", "tried"]);
    broker.ok(&["produce", "tried", "again", "--delay", "0s"]);
    assert_eq!(broker.json(&["stats"])["broker"]["produce_refused"], false);
    let ballast = disk.fill(30 << 20);
    until("produce is refused", || broker.json(&["stats"])["broker"]["produce_refused"] == true);
    let refused = broker.run(&["produce", "orders", "x"]);
    assert_eq!(refused.code, 75, "{refused:?}");
    assert!(refused.stderr.contains("DISK_RESERVE") && refused.stderr.contains("not done"), "{refused:?}");
    // All else works, and health does not suffer.
    assert!(broker.ok(&["consume", "orders", "--max", "1"]).contains("before"));
    assert_eq!(broker.count("orders", "acked"), 1);
    extend_and_nack(&broker);
    broker.ok(&["message", "reschedule", "orders", "--key", "k", "--delay", "2h"]);
    broker.ok(&["message", "cancel", "orders", "--key", "k"]);
    assert_eq!(broker.ok(&["health"]), "status  SERVING\n");

    fs::remove_file(ballast).expect("it is there");
    until("produce is accepted", || broker.run(&["produce", "orders", "again", "--delay", "1h"]).code == 0);
    let told = |text: &str| broker.log().lines().filter(|line| line.contains(text)).count();
    assert_eq!((told("produce is refused; acks"), told("produce is accepted")), (1, 1), "{}", broker.log());
}

#[test]
fn a_full_disk_ends_the_broker_loudly_and_loses_nothing_that_was_answered() {
    let Some(disk) = SmallDisk::mount("96m") else { return };
    let mut broker = start(&disk, "0");
    broker.ok(&["topic", "create", "orders"]);
    disk.fill(64 << 10);
    let elsewhere = TempDir::new().expect("a temporary directory");
    let lines = file(&elsewhere, "lines.txt", &format!("{{\"body\":\"{}\"}}\n", "w".repeat(2_000)).repeat(40_000));
    let ran = broker.run(&["produce", "orders", "--from", arg(&lines), "--delay", "1h"]);
    assert_ne!(ran.code, 0, "{ran:?}");
    assert_eq!(broker.wait().code(), Some(1), "{}", broker.log());
    assert!(broker.log().contains("No space left") || broker.log().contains("os error 28"), "{}", broker.log());
    let data = disk.0.path().join("data");
    for _ in 0..3 {
        let args = ["serve", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--data-dir", arg(&data)];
        let refused = Ran::of(duewheel().args(args).output().expect("the program runs"), &args);
        assert!(refused.code == 1 && refused.stderr.contains("are needed to open it"), "{refused:?}");
    }
    // A check says the same, and does not take it for damage.
    let args = ["check", "--data-dir", arg(&data)];
    let checked = Ran::of(duewheel().args(args).output().expect("the program runs"), &args);
    assert!(checked.code == 1 && checked.stderr.contains("are needed to open it"), "{checked:?}");
    fs::remove_file(disk.0.path().join("ballast")).expect("it is there");
    let mut again = start(&disk, "0");
    let produced = again.count("orders", "produced");
    println!("{produced} messages before the disk was full");
    assert!(produced > 0 && produced == again.count("orders", "scheduled"));
    // And after some deaths on a disk that is nearly full.
    for _ in 0..3 {
        let spare = 65 << 20;
        again.kill();
        if disk.free() > spare {
            disk.fill(spare);
        }
        again = start(&disk, "0");
        assert_eq!(again.count("orders", "scheduled"), produced);
    }
}

/// A lease is extended, and the message nacked.
fn extend_and_nack(broker: &Broker) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = Client::connect(Options::new(broker.endpoint())).await.expect("it serves");
        let (topic, consumer, wait) = ("tried".to_owned(), "tester".to_owned(), Duration::ZERO);
        let leased = client.fetch(Fetch { topic, max_messages: 1, wait, lease: None, consumer }).await;
        let delivery = leased.expect("a call").pop().expect("it is ready");
        delivery.extend(None).await.expect("extended");
        let nacked = delivery.nack(Nack::not_yet().delay(Duration::from_hours(1))).await;
        assert!(matches!(nacked, Ok(Nacked::Waiting(_))), "{nacked:?}");
    });
}
