//! w4: very many far-off messages: loading, memory, disk, what it costs to wait, and a restart after `kill -9`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::load::{Load, LoadArgs};
use super::messages::Due;
use super::report::{Report, per_second, rounded};
use super::restart;
use super::run::Bench;
use super::w1::FAR_MS;
use crate::cli::args::duration_ms;
use crate::cli::exit::{Exit, Failure};
use crate::clock::{Stopwatch, wall_now};

/// Between the end of loading and the first look at memory and disk.
const SETTLE: Duration = Duration::from_secs(2);

/// Arguments of `bench w4`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
With --data-dir the disk is measured, and the process that holds the directory is the broker. With --start-cmd too, \
the broker is killed (kill -9) and started again by that command; the time until it answers is taken, and what it \
holds is counted. The broker that the command started goes on running.

Examples:
  duewheel bench w4 --n 1000000 --data-dir ./duewheel-data
  duewheel bench w4 --n 1000000 --keyed --load-only
  duewheel bench w4 --data-dir ./duewheel-data --json \\
      --start-cmd 'duewheel serve'")]
pub(super) struct W4Args {
    /// Messages
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    n: u64,
    /// Span over which they are due, from an hour from now on
    #[arg(long, value_name = "SPAN", default_value = "7d", value_parser = duration_ms)]
    spread: u64,
    /// Each message has a business key of its own
    #[arg(long)]
    keyed: bool,
    /// Loading ends after this many seconds, finished or not
    #[arg(long, value_name = "S", default_value_t = 1_800, value_parser = clap::value_parser!(u64).range(1..=36_000))]
    secs: u64,
    /// Load, measure nothing else, and leave the topic with all messages
    #[arg(long)]
    pub(super) load_only: bool,
    /// Measure the CPU time of the idle broker for this many seconds
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    idle_secs: u64,
    /// Shell command that starts the broker again after kill -9, on the same address and directory
    #[arg(long, value_name = "COMMAND", conflicts_with = "load_only")]
    start_cmd: Option<String>,
    #[command(flatten)]
    load: LoadArgs,
}

/// Runs w4.
pub(super) async fn run(bench: &mut Bench, args: &W4Args) -> Result<Report, Failure> {
    let data_dir = check(bench, args)?;
    let topic = bench.create_topic("w4").await?;
    let mut report = Report::default();
    let due = Due::Scattered { from_ms: wall_now().as_millis() + FAR_MS, span_ms: args.spread };
    let mut load = Load::new(&args.load, &topic, args.n, due, Duration::from_secs(args.secs));
    load.keyed = args.keyed;
    let disk = bench.place.disk_bytes();
    let cpu = bench.place.cpu_s();
    let loaded = load.run(bench, &bench.phase("loaded", Some(args.n))).await?;
    let pending = bench.pending(&topic).await?;
    report.put("n", args.n);
    report.put("had", 0);
    report.put("keyed", args.keyed);
    report.put("sent", loaded.sent);
    report.put("refused", loaded.refused);
    report.put("load_s", rounded(loaded.took.as_secs_f64()));
    report.put("load_msg_s", per_second(loaded.sent, loaded.took.as_secs_f64()));
    report.put("confirm", loaded.confirm.to_json());
    report.put("server_cpu_s", bench.place.cpu_since(cpu));
    report.put("pending", pending);
    if args.load_only || bench.stop().is_requested() {
        return Ok(report);
    }
    waiting(bench, args, &mut report).await?;
    let grown = bench.place.disk_bytes().zip(disk).map(|(now, before)| now.saturating_sub(before));
    report.put("disk_mb", bench.place.disk_bytes().map(|bytes| bytes >> 20));
    report.put("disk_bytes_per_message", grown.map(|bytes| bytes / loaded.sent.max(1)));
    if let (Some(command), Some(data_dir)) = (&args.start_cmd, data_dir)
        && !bench.stop().is_requested()
    {
        restart::run(bench, &topic, pending, &data_dir, command, &mut report).await?;
    }
    Ok(report)
}

/// What is needed for a restart, before an hour is spent on loading.
fn check(bench: &Bench, args: &W4Args) -> Result<Option<PathBuf>, Failure> {
    let data_dir = bench.place.data_dir.clone();
    let usage = |text: &str| Err(Failure::new(Exit::Usage, text));
    match (&args.start_cmd, &data_dir, bench.place.process) {
        (Some(_), None, _) => usage("--start-cmd needs --data-dir: the process that holds it is killed"),
        (Some(_), Some(_), None) => usage("no process holds the data directory; is --data-dir that of the broker?"),
        _ => Ok(data_dir),
    }
}

/// What it costs to have them pending.
async fn waiting(bench: &Bench, args: &W4Args, report: &mut Report) -> Result<(), Failure> {
    bench.phase("waiting until the broker is idle", None);
    bench.pause(SETTLE).await;
    report.put("mem_mb", bench.place.memory_mb());
    let watch = Stopwatch::start();
    let answered = bench.client().stats(None).await;
    answered.map_err(|error| Failure::call("read the statistics", &error))?;
    report.put("stats_ms", rounded(watch.elapsed().as_secs_f64() * 1_000.0));
    if args.idle_secs > 0 {
        let (cpu, watch) = (bench.place.cpu_s(), Stopwatch::start());
        bench.phase("measuring the idle broker", None);
        bench.pause(Duration::from_secs(args.idle_secs)).await;
        let seconds = watch.elapsed().as_secs_f64();
        let percent = bench.place.cpu_since(cpu).map(|used| rounded(used / seconds * 100.0));
        report.put("idle_cpu_percent", percent);
        report.put("idle_mem_mb", bench.place.memory_mb());
    }
    Ok(())
}
