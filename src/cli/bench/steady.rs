//! steady: whole lives at full speed: produce, deliver when due, ack, all over streams, for a while.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;

use super::consumers::{Consumers, Nacks, Plan};
use super::lateness::put_late;
use super::load::{Load, LoadArgs};
use super::machine::Peak;
use super::messages::Due;
use super::report::{Report, per_second, rounded};
use super::run::{Bench, HaltOnDrop};
use crate::cli::args::duration_ms;
use crate::cli::exit::Failure;
use crate::clock::Stopwatch;

/// How long the rest may take after the last produce.
const REST_LIMIT: Duration = Duration::from_secs(30);

/// Arguments of `bench steady`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The rate is that of acked messages from one second after the first due time to the end of producing. Producers wait \
while more than --ahead messages are produced and not acked.

Examples:
  duewheel bench steady --secs 60
  duewheel bench steady --conns 8 --consumers 4 --delay 2s --json")]
pub(super) struct SteadyArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// How long to produce, seconds
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    secs: u64,
    /// First wait of each message
    #[arg(long, value_name = "SPAN", default_value = "1s", value_parser = duration_ms)]
    delay: u64,
    /// Consumers, each a stream of its own connection
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    consumers: u32,
    /// Messages that a consumer holds at once
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    window: u32,
    /// Most messages that are produced and not acked
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1..))]
    ahead: u64,
}

/// Runs the steady workload.
pub(super) async fn run(bench: &Bench, args: &SteadyArgs) -> Result<Report, Failure> {
    let topic = bench.create_topic("steady").await?;
    let plan = Plan { consumers: args.consumers, window: args.window, count: 0, nacks: Nacks::Never };
    let consumers = Consumers::start(bench, &topic, plan).await?;
    let acked = Arc::clone(consumers.acked());
    let limit = Duration::from_secs(args.secs);
    let mut load = Load::new(&args.load, &topic, u64::MAX >> 1, Due::After(args.delay), limit);
    load.ahead = Some((Arc::clone(&acked), args.ahead));
    let halt = HaltOnDrop(Arc::clone(&load.halt));
    let (cpu, peak) = (bench.place.cpu_s(), Peak::watch(&bench.place));
    let sending = bench.phase("produced", None);
    let warm_up = Duration::from_millis(args.delay + 1_000).min(limit / 2);
    let measured = async {
        bench.pause(warm_up).await;
        let (before, watch) = (acked.load(Ordering::Relaxed), Stopwatch::start());
        bench.pause(limit.saturating_sub(warm_up)).await;
        let acked = acked.load(Ordering::Relaxed) - before;
        drop(halt);
        (acked, watch.elapsed().as_secs_f64())
    };
    let (loaded, (acked_in_time, seconds)) = tokio::join!(load.run(bench, &sending), measured);
    let loaded = loaded?;
    bench.phase("waiting for the rest", None);
    let rest = REST_LIMIT + Duration::from_millis(args.delay);
    let tally = consumers.finish(bench, loaded.sent, rest).await?;
    let mut report = Report::default();
    report.put("conns", args.load.conns);
    report.put("batch", args.load.batch);
    report.put("consumers", args.consumers);
    report.put("sent", loaded.sent);
    report.put("acked", tally.acked);
    report.put("secs", rounded(seconds));
    report.put("msg_s", per_second(acked_in_time, seconds));
    report.put("produce_msg_s", per_second(loaded.sent, loaded.took.as_secs_f64()));
    report.put("confirm", loaded.confirm.to_json());
    put_late(&mut report, &tally);
    report.put("peak_mem_mb", peak.end());
    report.put("server_cpu_s", bench.place.cpu_since(cpu));
    Ok(report)
}
