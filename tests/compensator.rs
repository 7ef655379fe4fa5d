//! The example that the project is for, against a broker process that is killed twice while it runs: every payment
//! must end as it should, and none may be lost.

mod support;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use support::{Broker, Ran, program, until};

/// Payments played; spread evenly over the data file.
const PAYMENTS: u64 = 300;

#[test]
fn payments_are_conserved_although_the_broker_is_killed_twice() {
    let example = build_example();
    let mut broker = Broker::start();
    let mut command = Command::new(example);
    command
        .args(["--endpoint", &broker.endpoint(), "--time-scale", "500"])
        .args(["--limit", &PAYMENTS.to_string()])
        // Far from the checkout, with the payments that are built in.
        .current_dir(broker.data_dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().expect("the example runs");

    let has = |broker: &Broker, name: &str, count: u64| {
        let stats = broker.json(&["stats"]);
        stats["topics"][0][name].as_u64().is_some_and(|found| found >= count)
    };
    until("payments are being made", || has(&broker, "produced", PAYMENTS / 4));
    broker = broker.kill_and_restart();
    until("payments are being settled", || has(&broker, "acked", PAYMENTS / 10));
    let open = ["scheduled", "ready", "leased"].map(|name| broker.count("dropped-orders", name));
    assert!(open.iter().sum::<u64>() > 0, "the second kill comes too late");
    broker = broker.kill_and_restart();

    let ran = Ran::of(child.wait_with_output().expect("it ends"), &["payment_compensator"]);
    assert_eq!(ran.code, 0, "{}\n{}", ran.stderr, ran.stdout);
    assert!(ran.stdout.contains(&format!("conservation holds: {PAYMENTS} produced")), "{}", ran.stdout);
    assert_eq!(broker.count("dropped-orders", "produced"), PAYMENTS);
    let ended = ["acked", "cancelled", "dead"].map(|name| broker.count("dropped-orders", name));
    assert_eq!(ended.iter().sum::<u64>(), PAYMENTS, "{ended:?}");
    assert!(ended.iter().all(|&count| count > 0), "the payments end in every way: {ended:?}");
}

/// Builds the example beside the program, as `cargo test` does only when it is not asked for a single test.
fn build_example() -> PathBuf {
    let directory = program().parent().expect("the program is in a directory");
    let target = directory.parent().expect("the profile's directory is in the target directory");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--example", "payment_compensator"]);
    build.arg("--manifest-path").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    build.arg("--target-dir").arg(target);
    if directory.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo runs").success(), "the example does not build");
    directory.join("examples/payment_compensator")
}
