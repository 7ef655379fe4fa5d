//! w2: how late messages come that are due at random moments; also with many others pending, and under load.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use clap::Args;

use super::consumers::{Consumers, Nacks, Plan, Tally};
use super::load::{Load, LoadArgs, Loaded};
use super::messages::Due;
use super::report::{Report, per_second, rounded};
use super::run::{Bench, HaltOnDrop};
use super::w1::FAR_MS;
use crate::cli::exit::{Exit, Failure};
use crate::clock::wall_now;
use crate::queue::limits::DAY_MS;

/// From the start to the first due time, milliseconds: all are to be sent before it.
const LEAD_MS: u64 = 3_000;
/// How long after the last due time the run goes on, milliseconds.
const TAIL_MS: u64 = 8_000;
/// Messages that the one consumer holds at once.
const WINDOW: u32 = 1_000;
/// The other messages are spread over this span, milliseconds.
const PENDING_SPAN_MS: u64 = 7 * DAY_MS;
/// Loading the other messages ends after this time.
const PENDING_LIMIT: Duration = Duration::from_mins(30);

/// What is measured.
#[derive(Clone, Debug, Args)]
pub(super) struct Measured {
    /// Messages
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    n: u64,
    /// Seconds over which they are due
    #[arg(long, value_name = "S", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    span: u64,
}

/// Arguments of `bench w2`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Lateness is the time of receiving minus the due time; one consumer receives, acks and records.

Examples:
  duewheel bench w2
  duewheel bench w2 --n 1000 --span 5 --json")]
pub(super) struct W2Args {
    #[command(flatten)]
    measured: Measured,
}

/// Arguments of `bench lateness`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The same as w2, while --pending other messages wait that are due over the next 7 days, and, with --load, while \
further far-off messages are produced at full speed by --conns connections with --batch in flight each.

Examples:
  duewheel bench lateness --pending 1000000
  duewheel bench lateness --pending 1000000 --load --conns 8 --batch 500 --json")]
pub(super) struct LatenessArgs {
    #[command(flatten)]
    measured: Measured,
    /// Other messages that are loaded first and stay pending
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100_000_000))]
    pending: u64,
    /// Produce at full speed meanwhile
    #[arg(long)]
    load: bool,
    #[command(flatten)]
    load_args: LoadArgs,
}

/// Runs w2.
pub(super) async fn run_w2(bench: &Bench, args: &W2Args) -> Result<Report, Failure> {
    measure(bench, &args.measured).await
}

/// Runs the lateness workload.
pub(super) async fn run(bench: &Bench, args: &LatenessArgs) -> Result<Report, Failure> {
    if args.pending > 0 {
        let topic = bench.create_topic("pending").await?;
        let due = Due::Scattered { from_ms: wall_now().as_millis() + FAR_MS, span_ms: PENDING_SPAN_MS };
        let load = Load::new(&args.load_args, &topic, args.pending, due, PENDING_LIMIT);
        load.run(bench, &bench.phase("loaded", Some(args.pending))).await?;
    }
    let background = if args.load { Some(background(bench, &args.load_args).await?) } else { None };
    let (mut report, loaded) = match background {
        None => (measure(bench, &args.measured).await?, None),
        Some(load) => {
            let halt = HaltOnDrop(Arc::clone(&load.halt));
            let measured = async {
                let report = measure(bench, &args.measured).await;
                drop(halt);
                report
            };
            let loading = Arc::new(AtomicU64::new(0));
            let (report, loaded) = tokio::join!(measured, load.run(bench, &loading));
            (report?, Some(loaded?))
        }
    };
    report.put("others_pending", args.pending);
    if let Some(Loaded { sent, took, confirm, .. }) = loaded {
        report.put("load_msg_s", per_second(sent, took.as_secs_f64()));
        report.put("confirm", confirm.to_json());
    }
    let stats = bench.client().stats(None).await.map_err(|error| Failure::call("read the statistics", &error))?;
    let pending: u64 = stats.topics.iter().map(|topic| topic.scheduled).sum();
    report.put("pending", pending);
    Ok(report)
}

async fn background(bench: &Bench, args: &LoadArgs) -> Result<Load, Failure> {
    let topic = bench.create_topic("load").await?;
    let due = Due::Scattered { from_ms: wall_now().as_millis() + FAR_MS, span_ms: PENDING_SPAN_MS };
    Ok(Load::new(args, &topic, u64::MAX >> 1, due, PENDING_LIMIT))
}

async fn measure(bench: &Bench, measured: &Measured) -> Result<Report, Failure> {
    let topic = bench.create_topic("w2").await?;
    let plan = Plan { consumers: 1, window: WINDOW, count: measured.n, nacks: Nacks::Never };
    let consumers = Consumers::start(bench, &topic, plan).await?;
    let from_ms = wall_now().as_millis() + LEAD_MS;
    let span_ms = measured.span * 1_000;
    let cpu = bench.place.cpu_s();
    let one = LoadArgs { conns: 1, batch: 500, frame: None, unary: false };
    let due = Due::Scattered { from_ms, span_ms };
    let load = Load::new(&one, &topic, measured.n, due, Duration::from_millis(span_ms));
    let loaded = load.run(bench, &bench.phase("sent", Some(measured.n))).await?;
    let in_time = wall_now().as_millis() < from_ms;
    let limit = (from_ms + span_ms + TAIL_MS).saturating_sub(wall_now().as_millis());
    bench.phase("waiting until all are delivered", None);
    let tally = consumers.finish(bench, loaded.sent, Duration::from_millis(limit)).await?;
    if tally.late.to_json().is_null() && !bench.stop().is_requested() {
        return Err(Failure::new(Exit::Failed, "nothing was delivered in time"));
    }
    let mut report = Report::default();
    report.put("n", measured.n);
    report.put("sent", loaded.sent);
    report.put("acked", tally.acked);
    report.put("sent_before_first_due", in_time);
    put_late(&mut report, &tally);
    report.put("server_cpu_s", bench.place.cpu_since(cpu).map(rounded));
    Ok(report)
}

/// The figures that every run with consumers has.
pub(super) fn put_late(report: &mut Report, tally: &Tally) {
    report.put("early", tally.late.early());
    report.put("late", tally.late.to_json());
    report.put("duplicates", tally.duplicates);
    report.put("refused", tally.refused);
}
