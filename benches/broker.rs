//! A real broker process, measured from outside over gRPC on loopback: every answer after its fdatasync.
//!
//! `cargo bench --bench broker` runs each measure several times (`DUEWHEEL_RUNS`, default 3) and prints the median,
//! smallest and largest of each. `DUEWHEEL_BENCH_DIR` names the directory of the data (default: the system's
//! temporary directory); it decides which disk is measured. Load generator and broker share the machine.

#[path = "broker/load.rs"]
mod load;
#[path = "broker/process.rs"]
mod process;
#[path = "broker/raw.rs"]
mod raw;

use std::collections::BTreeMap;

use process::Broker;

/// Figures of one run, by name.
type Figures = Vec<(&'static str, f64)>;

fn main() {
    // Only `cargo bench` passes this flag; `cargo test --bench broker` makes one short run to show that it works.
    let is_test = !std::env::args().any(|argument| argument == "--bench");
    let runs = match std::env::var("DUEWHEEL_RUNS") {
        Ok(text) => text.parse().expect("DUEWHEEL_RUNS is a number"),
        Err(_) if is_test => 1,
        Err(_) => 3,
    };
    let size = if is_test { load::Size::smoke() } else { load::Size::full() };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime for the clients");
    let mut table: BTreeMap<usize, (&'static str, Vec<f64>)> = BTreeMap::new();
    for run in 0..runs {
        eprintln!("run {} of {runs}", run + 1);
        for (row, (name, value)) in one_run(&runtime, size).into_iter().enumerate() {
            table.entry(row).or_insert((name, Vec::new())).1.push(value);
        }
    }
    println!("{:<58} {:>12} {:>12} {:>12}", "256 B bodies; median, min, max", "median", "min", "max");
    for (name, mut values) in table.into_values() {
        values.sort_by(f64::total_cmp);
        let (median, min, max) = (values[values.len() / 2], values[0], values[values.len() - 1]);
        println!("{name:<58} {median:>12.2} {min:>12.2} {max:>12.2}");
    }
}

fn one_run(runtime: &tokio::runtime::Runtime, size: load::Size) -> Figures {
    let mut figures = raw::append_and_sync(size.seconds);
    let broker = Broker::start();
    let endpoint = broker.endpoint();
    runtime.block_on(async {
        figures.extend(load::lateness(&endpoint, size).await);
        figures.push(("produce, 1 connection x 1 message, msg/s", load::produce(&endpoint, 1, 1, size).await));
        figures.push(("produce, 8 connections x 1 message, msg/s", load::produce(&endpoint, 8, 1, size).await));
        figures.push(("produce, 8 connections x 100 messages, msg/s", load::produce(&endpoint, 8, 100, size).await));
        figures.push(("produce, deliver, ack over streams, msg/s", load::lifecycles(&endpoint, size).await));
    });
    figures
}
