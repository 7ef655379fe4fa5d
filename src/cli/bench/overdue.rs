//! overdue: a broker that was away while very many messages fell due, and starts with all of them at once.
//!
//! First without a consumer: how long until it serves, and what it costs to hold them. Then with one: how long until
//! the first delivery, whether they come in due order, and what memory takes meanwhile.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::link::ConsumeLink;
use super::load::{Load, LoadArgs};
use super::machine::Peak;
use super::messages::Due;
use super::report::{Report, per_second, rounded};
use super::restart;
use super::run::Bench;
use super::w1::FAR_MS;
use crate::cli::args::duration_ms;
use crate::cli::exit::{Exit, Failure};
use crate::clock::{Stopwatch, wall_now};
use crate::pb;
use crate::queue::limits::{DAY_MS, MAX_BATCH};

/// Loading ends after this time, finished or not.
const LOAD_LIMIT: Duration = Duration::from_mins(30);
/// How long the broker waits without a consumer before its memory is read.
const SETTLE: Duration = Duration::from_secs(10);
/// Messages that the consumer holds at once.
const WINDOW: u32 = 5_000;

/// Arguments of `bench overdue`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The broker is killed (kill -9) twice and started by the command; the broker that was started last goes on running.

Examples:
  duewheel bench overdue --n 20000000 --overdue 3000000 \\
      --data-dir ./duewheel-data --start-cmd 'duewheel serve'")]
pub(super) struct OverdueArgs {
    /// Messages in all
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    n: u64,
    /// How many of them fall due while the broker is away
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    overdue: u64,
    /// Span over which these are due
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = duration_ms)]
    span: u64,
    /// Shell command that starts the broker again after kill -9, on the same address and directory
    #[arg(long, value_name = "COMMAND")]
    start_cmd: String,
    #[command(flatten)]
    load: LoadArgs,
}

/// Runs the workload.
pub(super) async fn run(bench: &mut Bench, args: &OverdueArgs) -> Result<Report, Failure> {
    let data_dir = check(bench, args)?;
    let topic = bench.create_topic("overdue").await?;
    let far = Due::Scattered { from_ms: wall_now().as_millis() + 24 * FAR_MS, span_ms: 7 * DAY_MS };
    let mut report = Report::default();
    let overdue = args.overdue.min(args.n);
    let load = Load::new(&args.load, &topic, args.n - overdue, far, LOAD_LIMIT);
    let loaded = load.run(bench, &bench.phase("loaded", Some(args.n - overdue))).await?;
    // At 30,000 per second all are produced before the first is due.
    let from_ms = wall_now().as_millis() + 2_000 + args.overdue / 30;
    let due = Due::Scattered { from_ms, span_ms: args.span };
    let load = Load { first: args.n, ..Load::new(&args.load, &topic, overdue, due, LOAD_LIMIT) };
    let soon = load.run(bench, &bench.phase("loaded", Some(overdue))).await?;
    let is_before = wall_now().as_millis() < from_ms;
    report.put("n", args.n);
    report.put("sent", loaded.sent + soon.sent);
    report.put("overdue", soon.sent);
    report.put("sent_before_due", is_before);
    restart::kill(bench).await?;
    bench.phase("waiting until they are overdue", None);
    let over_ms = from_ms + args.span + 1_000;
    bench.pause(Duration::from_millis(over_ms.saturating_sub(wall_now().as_millis()))).await;
    restart::start_and_wait(bench, &topic, &data_dir, &args.start_cmd, &mut report).await?;
    bench.phase("without a consumer", None);
    bench.pause(SETTLE).await;
    report.put("mem_without_consumer_mb", bench.place.memory_mb());
    report.put("pending", bench.pending(&topic).await?);
    restart::kill(bench).await?;
    drain(bench, args, (&topic, soon.sent), &data_dir, &mut report).await?;
    Ok(report)
}

fn check(bench: &Bench, args: &OverdueArgs) -> Result<PathBuf, Failure> {
    let usage = |text: &str| Err(Failure::new(Exit::Usage, text));
    match (&bench.place.data_dir, bench.place.process) {
        _ if args.overdue > args.n => usage("--overdue is more than --n"),
        (None, _) => usage("--data-dir is needed: the process that holds it is killed"),
        (_, None) => usage("no process holds the data directory; is --data-dir that of the broker?"),
        (Some(data_dir), Some(_)) => Ok(data_dir.clone()),
    }
}

/// Starts the broker and takes all that is overdue.
async fn drain(
    bench: &mut Bench,
    args: &OverdueArgs,
    (topic, count): (&str, u64),
    data_dir: &std::path::Path,
    report: &mut Report,
) -> Result<(), Failure> {
    bench.phase("waiting for the first delivery", None);
    let watch = Stopwatch::start();
    let mut served = Report::default();
    restart::start_and_wait(bench, topic, data_dir, &args.start_cmd, &mut served).await?;
    let (cpu, peak) = (bench.place.cpu_s(), Peak::watch(&bench.place));
    let failed = |error| Failure::call(format!("consume '{topic}'"), &error);
    let mut link = ConsumeLink::ask(bench.endpoint(), topic, WINDOW).await.map_err(failed)?;
    let (mut seen, mut out_of_order, mut latest, mut first_s) = (0, 0_u64, 0, None);
    let mut taken = bench.phase("taken", Some(count));
    while seen < count {
        let frame = tokio::select! {
            frame = link.receive() => frame.map_err(failed)?,
            () = bench.stop().requested() => break,
        };
        if first_s.is_none() && !frame.deliveries.is_empty() {
            first_s = Some(rounded(watch.elapsed().as_secs_f64()));
            taken = bench.phase("taken", Some(count));
        }
        for delivery in &frame.deliveries {
            let due = delivery.due_at.map_or(0, |at| at.seconds * 1_000 + i64::from(at.nanos) / 1_000_000);
            out_of_order += u64::from(due < latest);
            latest = latest.max(due);
        }
        seen += frame.deliveries.len() as u64;
        taken.store(seen, std::sync::atomic::Ordering::Relaxed);
        let acks: Vec<_> = frame.deliveries.into_iter().map(|delivery| delivery.receipt).collect();
        for acks in acks.chunks(MAX_BATCH) {
            link.settle(pb::Settlements { acks: acks.to_vec(), ..pb::Settlements::default() }).map_err(failed)?;
        }
    }
    let seconds = watch.elapsed().as_secs_f64();
    report.put("first_delivery_s", first_s);
    report.put("delivered", seen);
    report.put("out_of_order", out_of_order);
    report.put("all_delivered_s", rounded(seconds));
    report.put("per_s", per_second(seen, seconds));
    report.put("peak_mem_mb", peak.end());
    report.put("server_cpu_s", bench.place.cpu_since(cpu));
    Ok(())
}
