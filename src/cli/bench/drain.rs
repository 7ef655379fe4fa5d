//! w3 and w5: very many messages due at one instant; each is acked, in w3 after it was nacked once.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;

use super::consumers::{Consumers, Nacks, Plan, Tally};
use super::lateness::put_late;
use super::load::{Load, LoadArgs, Loaded};
use super::machine::Peak;
use super::messages::{Due, WARM_UP};
use super::report::{Report, per_second, rounded};
use super::run::Bench;
use crate::cli::exit::Failure;
use crate::clock::wall_now;

/// Messages whose rate tells how far off the instant must be.
const WARM_UP_COUNT: u64 = 4_000;
/// Their due time, milliseconds from now.
const WARM_UP_MS: u64 = 100;
/// Producing ends after this time, finished or not.
const SEND_LIMIT: Duration = Duration::from_secs(50);
/// So does delivering.
const DRAIN_LIMIT: Duration = Duration::from_secs(45);

/// Arguments of `bench w3` and `bench w5`.
#[derive(Debug, Args)]
pub(super) struct DrainArgs {
    /// Messages [default: w3 50,000, w5 100,000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    n: Option<u64>,
    /// Consumers, each a stream of its own connection
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    consumers: u32,
    /// Messages that a consumer holds at once
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    window: u32,
    #[command(flatten)]
    load: LoadArgs,
}

/// Runs w3 (`nack_first`) or w5.
pub(super) async fn run(bench: &Bench, args: &DrainArgs, nack_first: bool) -> Result<Report, Failure> {
    let n = args.n.unwrap_or(if nack_first { 50_000 } else { 100_000 });
    let topic = bench.create_topic(if nack_first { "w3" } else { "w5" }).await?;
    let nacks = if nack_first { Nacks::Once } else { Nacks::Never };
    let plan = Plan { consumers: args.consumers, window: args.window, count: n, nacks };
    let consumers = Consumers::start(bench, &topic, plan).await?;
    let due_ms = wall_now().as_millis() + lead_ms(bench, args, &topic, n).await?;
    let peak = Peak::watch(&bench.place);
    let load = Load::new(&args.load, &topic, n, Due::At(due_ms), SEND_LIMIT);
    let loaded = load.run(bench, &bench.phase("sent", Some(n))).await?;
    let in_time = wall_now().as_millis() < due_ms;
    bench.phase("waiting for the instant", None);
    bench.pause(Duration::from_millis(due_ms.saturating_sub(wall_now().as_millis()))).await;
    let cpu = bench.place.cpu_s();
    bench.phase("draining", None);
    let tally = consumers.finish(bench, loaded.sent, DRAIN_LIMIT).await?;
    let mut report = Report::default();
    report.put("n", n);
    report.put("sent", loaded.sent);
    report.put("sent_before_due", in_time);
    put_drained(&mut report, &loaded, &tally, due_ms);
    report.put("peak_mem_mb", peak.end());
    report.put("server_cpu_s", bench.place.cpu_since(cpu));
    Ok(report)
}

/// How far off the instant must be so that all is sent before it, milliseconds.
async fn lead_ms(bench: &Bench, args: &DrainArgs, topic: &str, n: u64) -> Result<u64, Failure> {
    let warm_up = Load {
        first: WARM_UP,
        halt: Arc::new(AtomicBool::new(false)),
        ..Load::new(
            &args.load,
            topic,
            WARM_UP_COUNT.min(n),
            Due::At(wall_now().as_millis() + WARM_UP_MS),
            Duration::from_secs(3),
        )
    };
    let loaded = warm_up.run(bench, &bench.phase("warming up", None)).await?;
    let took_ms = u64::try_from(loaded.took.as_millis()).unwrap_or(u64::MAX).max(1);
    bench.pause(Duration::from_millis(300)).await;
    Ok(n.saturating_mul(took_ms) / loaded.sent.max(1) * 9 / 5 + 2_000)
}

fn put_drained(report: &mut Report, loaded: &Loaded, tally: &Tally, due_ms: u64) {
    let since = |at_us: u64| Duration::from_micros(at_us.saturating_sub(due_ms * 1_000)).as_secs_f64();
    let done_s = since(tally.done_us);
    report.put("acked", tally.acked);
    report.put("produce_msg_s", per_second(loaded.sent, loaded.took.as_secs_f64()));
    report.put("all_delivered_s", rounded(since(tally.last_first_us)));
    report.put("all_acked_s", rounded(done_s));
    report.put("per_s", per_second(tally.acked, done_s));
    put_late(report, tally);
}
