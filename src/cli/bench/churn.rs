//! churn: so many messages that come and go for a long time, beside one that stays: what disk, memory and lateness
//! do over time.
//!
//! Each message is produced, nacked a few times with a random delay, and acked; the next one takes its place. One
//! message is due in 30 days. A store that cannot give room back grows without end here.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::consumers::{Consumers, Nacks, Plan};
use super::lateness::put_late;
use super::load::{Load, LoadArgs};
use super::machine::Peak;
use super::messages::{BODY_BYTES, Due, WARM_UP};
use super::report::{Report, per_second, rounded};
use super::run::{Bench, HaltOnDrop};
use crate::cli::args::duration_ms;
use crate::cli::exit::Failure;
use crate::clock::Stopwatch;
use crate::queue::limits::DAY_MS;

/// How long the rest may take after the last produce, beside its delays.
const REST_LIMIT: Duration = Duration::from_secs(30);
/// The message that stays is due after this time.
const STAYS_MS: u64 = 30 * DAY_MS;

/// Arguments of `bench churn`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
--samples of disk, memory and lateness are taken in equal steps; each is printed in the report. The disk is compared \
with the bytes of the bodies of the live messages.

Examples:
  duewheel bench churn --secs 1800 --data-dir ./duewheel-data
  duewheel bench churn --n 10000 --span 5s --nacks 4 --secs 60 --json")]
pub(super) struct ChurnArgs {
    /// Messages that are live at once
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    n: u64,
    /// Longest first wait, and longest delay of a nack
    #[arg(long, value_name = "SPAN", default_value = "1m", value_parser = duration_ms)]
    span: u64,
    /// Nacks of a message before it is acked
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=100))]
    nacks: u32,
    /// How long it goes on, seconds
    #[arg(long, value_name = "S", default_value_t = 1_800, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    secs: u64,
    /// Looks at disk, memory and lateness
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    samples: u32,
    /// Consumers, each a stream of its own connection
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    consumers: u32,
    #[command(flatten)]
    load: LoadArgs,
}

/// Runs the churn.
pub(super) async fn run(bench: &Bench, args: &ChurnArgs) -> Result<Report, Failure> {
    let topic = bench.create_topic("churn").await?;
    let nacks = Nacks::Cycle { times: args.nacks, span_ms: args.span };
    let plan = Plan { consumers: args.consumers, window: 2_000, count: 0, nacks };
    let consumers = Consumers::start(bench, &topic, plan).await?;
    let stays = Load::new(&args.load, &topic, 1, Due::After(STAYS_MS), REST_LIMIT);
    Load { first: WARM_UP, ..stays }.run(bench, &bench.phase("the one that stays", Some(1))).await?;
    let limit = Duration::from_secs(args.secs);
    let mut load = Load::new(&args.load, &topic, u64::MAX >> 1, Due::Within(args.span), limit);
    load.ahead = Some((Arc::clone(consumers.acked()), args.n));
    let halt = HaltOnDrop(Arc::clone(&load.halt));
    let (cpu, peak) = (bench.place.cpu_s(), Peak::watch(&bench.place));
    let producing = bench.phase("produced", None);
    let looking = async {
        let samples = sample(bench, args, &topic, &consumers).await;
        drop(halt);
        samples
    };
    let (loaded, seen) = tokio::join!(load.run(bench, &producing), looking);
    let (loaded, seen) = (loaded?, seen?);
    bench.phase("waiting for the rest", None);
    let rest = REST_LIMIT + Duration::from_millis(args.span * u64::from(args.nacks + 1));
    let tally = consumers.finish(bench, loaded.sent, rest).await?;
    let mut report = Report::default();
    report.put("n", args.n);
    report.put("nacks", args.nacks);
    report.put("span_ms", args.span);
    report.put("secs", rounded(loaded.took.as_secs_f64()));
    report.put("sent", loaded.sent);
    report.put("acked", tally.acked);
    report.put("msg_s", per_second(loaded.sent, loaded.took.as_secs_f64()));
    report.put("live_mb", (args.n * BODY_BYTES as u64) >> 20);
    report.put("samples", seen);
    put_late(&mut report, &tally);
    report.put("pending", bench.pending(&topic).await?);
    report.put("peak_mem_mb", peak.end());
    report.put("server_cpu_s", bench.place.cpu_since(cpu));
    Ok(report)
}

/// Looks at the broker in equal steps of the time.
async fn sample(bench: &Bench, args: &ChurnArgs, topic: &str, consumers: &Consumers) -> Result<Vec<Value>, Failure> {
    let watch = Stopwatch::start();
    let step = Duration::from_secs(args.secs) / args.samples;
    let mut samples = Vec::new();
    for nth in 1..=args.samples {
        bench.pause((step * nth).saturating_sub(watch.elapsed())).await;
        if bench.stop().is_requested() {
            break;
        }
        samples.push(json!({
            "at_s": watch.elapsed().as_secs(),
            "disk_mb": bench.place.disk_bytes().map(|bytes| bytes >> 20),
            "mem_mb": bench.place.memory_mb(),
            "live": bench.pending(topic).await?,
            "late": consumers.recent().to_json(),
        }));
    }
    Ok(samples)
}
