//! w1: far-off messages as fast as they are confirmed.

use std::time::Duration;

use clap::Args;

use super::load::{Load, LoadArgs, Loaded};
use super::messages::Due;
use super::report::{Report, per_second, rounded};
use super::run::Bench;
use crate::cli::exit::Failure;
use crate::clock::wall_now;

/// The messages are due after this many milliseconds: nothing of them is delivered in the run.
pub(super) const FAR_MS: u64 = 3_600_000;

/// Arguments of `bench w1`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Each connection sends --batch messages, and the next as soon as these are confirmed; with a smaller --frame it sends \
the next frame as soon as one is confirmed, so that --batch are always in flight.

Examples:
  duewheel bench w1 --conns 8 --batch 500
  duewheel bench w1 --conns 64 --batch 1 --unary --json
  duewheel bench w1 --conns 1 --batch 1 --data-dir ./duewheel-data")]
pub(super) struct W1Args {
    #[command(flatten)]
    load: LoadArgs,
    /// How long to produce, seconds
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    secs: u64,
    /// Stop after this many messages
    #[arg(long, value_name = "N")]
    n: Option<u64>,
}

/// Runs w1.
pub(super) async fn run(bench: &Bench, args: &W1Args) -> Result<Report, Failure> {
    let topic = bench.create_topic("w1").await?;
    let due = Due::At(wall_now().as_millis() + FAR_MS);
    let load = Load::new(&args.load, &topic, args.n.unwrap_or(u64::MAX >> 1), due, Duration::from_secs(args.secs));
    let cpu = bench.place.cpu_s();
    let loaded = load.run(bench, &bench.phase("produced", args.n)).await?;
    let mut report = Report::default();
    report.put("conns", args.load.conns);
    report.put("batch", args.load.batch);
    report.put("unary", args.load.unary);
    put_loaded(&mut report, &loaded);
    report.put("server_cpu_s", bench.place.cpu_since(cpu));
    report.put("pending", bench.pending(&topic).await?);
    Ok(report)
}

/// The figures that every load has.
fn put_loaded(report: &mut Report, loaded: &Loaded) {
    let seconds = loaded.took.as_secs_f64();
    report.put("sent", loaded.sent);
    report.put("secs", rounded(seconds));
    report.put("msg_s", per_second(loaded.sent, seconds));
    report.put("confirm", loaded.confirm.to_json());
    report.put("refused", loaded.refused);
}
