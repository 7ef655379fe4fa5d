//! `duewheel bench`: defined workloads against a running broker, measured from outside over gRPC.
//!
//! Load generator and broker are two processes that share a machine, so every figure includes the cost of both.
//! Nothing is subtracted and nothing is modelled: a rate counts what was answered, a time runs on the wall clock
//! or from a call to its answer. Each run works in topics of its own and deletes them in the end; the load is heavy
//! all the same, so measure a scratch broker and not one that somebody relies on.
//!
//! The workloads w1 to w5, and the names of their figures, are those by which other queues are measured too, so
//! that their results can be put side by side.

mod backlog;
mod churn;
mod consumers;
mod drain;
mod lateness;
mod link;
mod load;
mod machine;
mod messages;
mod overdue;
mod report;
mod restart;
mod run;
mod steady;
mod timers;
mod w1;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use self::machine::Place;
use self::report::Report;
use self::run::Bench;
use super::exit::{Exit, Failure};
use super::output::{Format, print_sheet};
use super::scratch_topic;
use super::session::Session;
use super::signals::Stop;

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Each run creates topics named bench-... and deletes them with all that is in them when it has printed its report, also \
after Ctrl-C; --keep leaves them. Use a scratch broker. Ctrl-C ends a run and prints what was measured so far (exit code \
1).

Examples:
  duewheel bench w1 --conns 8 --batch 500
  duewheel bench w2 --json >> results.jsonl
  duewheel bench w3 --data-dir ./duewheel-data
  duewheel bench w4 --n 1000000 --data-dir ./duewheel-data
  duewheel bench lateness --pending 1000000")]
pub(super) struct BenchArgs {
    #[command(subcommand)]
    workload: Workload,
    /// Print one line of JSON (the same as -o jsonl)
    #[arg(long, global = true)]
    json: bool,
    /// Leave the topics of the run, with what is pending in them
    #[arg(long, global = true)]
    keep: bool,
    /// Number of the run, for the report
    #[arg(long, global = true, value_name = "N", default_value_t = 1)]
    run: u32,
    /// Data directory of the broker, if it is on this machine: measures its disk and finds its process
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Process id of the broker, if it is on this machine: measures its memory and CPU time
    #[arg(long, global = true, value_name = "PID")]
    pid: Option<u32>,
}

#[derive(Debug, Subcommand)]
enum Workload {
    /// Far-off messages as fast as they are confirmed
    W1(w1::W1Args),
    /// Lateness of messages that are due at random moments, sent in no order
    W2(lateness::W2Args),
    /// Many messages due at one instant, each delivered, nacked for 1 s, delivered again, acked
    #[command(after_long_help = "Examples:\n  duewheel bench w3\n  duewheel bench w3 --n 20000 --consumers 8 --json")]
    W3(drain::DrainArgs),
    /// A backlog of far-off messages: load, memory, disk, kill -9, restart
    W4(backlog::W4Args),
    /// Many messages due in one millisecond, each delivered and acked
    #[command(after_long_help = "Examples:\n  duewheel bench w5\n  duewheel bench w5 --n 1000000 --window 10000")]
    W5(drain::DrainArgs),
    /// Order-close timers: keyed, 30 minutes, 95 of 100 cancelled by key
    W6(timers::W6Args),
    /// Whole lives at full speed: produce, deliver when due, ack
    Steady(steady::SteadyArgs),
    /// w2 with many other messages pending, and under load
    Lateness(lateness::LatenessArgs),
    /// Messages that come and go for a long time beside one that stays: disk, memory, lateness over time
    Churn(churn::ChurnArgs),
    /// A restart with very many messages that fell due meanwhile
    Overdue(overdue::OverdueArgs),
}

impl Workload {
    /// It loads a backlog for whoever comes after it.
    fn only_loads(&self) -> bool {
        matches!(self, Self::W4(args) if args.load_only)
    }

    fn name(&self) -> &'static str {
        match self {
            Self::W1(_) => "w1",
            Self::W2(_) => "w2",
            Self::W3(_) => "w3",
            Self::W4(_) => "w4",
            Self::W5(_) => "w5",
            Self::W6(_) => "w6",
            Self::Steady(_) => "steady",
            Self::Lateness(_) => "lateness",
            Self::Churn(_) => "churn",
            Self::Overdue(_) => "overdue",
        }
    }
}

/// Runs `bench`.
pub(super) async fn run(session: &Session, args: BenchArgs) -> Result<(), Failure> {
    let stop = Stop::listen().map_err(|error| Failure::new(Exit::Failed, format!("cannot watch signals: {error}")))?;
    let client = session.connect().await?;
    let place = Place::new(args.pid, args.data_dir.clone());
    let disk_alone = place.disk_alone().await;
    let mut bench = Bench::new(client, place, stop.clone());
    let (measured, is_forced) = tokio::select! {
        measured = measure(&mut bench, &args.workload) => (measured, false),
        () = stop.forced() => (Err(Failure::new(Exit::Failed, "stopped at once by a second signal")), true),
    };
    let (place, topics, broker_log) = bench.end();
    let goes_on = measured.is_ok();
    let told = match measured {
        Ok(report) => tell(session, &args, report, [disk_alone, place.disk_alone().await], &stop),
        Err(failure) => Err(failure),
    };
    if let Some(log) = broker_log {
        log.tell(goes_on);
    }
    if args.keep || args.workload.only_loads() || is_forced {
        scratch_topic::tell_left(&topics);
    } else {
        scratch_topic::delete(session, &topics).await;
    }
    told
}

/// Prints the report.
fn tell(
    session: &Session,
    args: &BenchArgs,
    mut report: Report,
    [disk_alone, disk_after]: [Option<(f64, f64)>; 2],
    stop: &Stop,
) -> Result<(), Failure> {
    report.put("workload", args.workload.name());
    report.put("peer", "duewheel");
    report.put("run", args.run);
    report.put("fsync_probe_ms", disk_alone.map(|(probe_ms, _)| probe_ms));
    report.put("raw_append_sync_s", disk_alone.map(|(_, per_second)| per_second));
    report.put("raw_append_sync_after_s", disk_after.map(|(_, per_second)| per_second));
    report.put("interrupted", stop.is_requested());
    print_sheet(if args.json { Format::Jsonl } else { session.format }, &report)?;
    if stop.is_requested() { Err(Failure::silent(Exit::Failed)) } else { Ok(()) }
}

async fn measure(bench: &mut Bench, workload: &Workload) -> Result<Report, Failure> {
    match workload {
        Workload::W1(args) => w1::run(bench, args).await,
        Workload::W2(args) => lateness::run_w2(bench, args).await,
        Workload::W3(args) => drain::run(bench, args, true).await,
        Workload::W4(args) => backlog::run(bench, args).await,
        Workload::W5(args) => drain::run(bench, args, false).await,
        Workload::W6(args) => timers::run(bench, args).await,
        Workload::Steady(args) => steady::run(bench, args).await,
        Workload::Lateness(args) => lateness::run(bench, args).await,
        Workload::Churn(args) => churn::run(bench, args).await,
        Workload::Overdue(args) => overdue::run(bench, args).await,
    }
}
