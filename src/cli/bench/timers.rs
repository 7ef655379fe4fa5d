//! w6: timers that close unpaid orders: keyed, 30 minutes, nearly all cancelled by key before they fire.
//!
//! So many workers each hold a pool of open orders. A step opens 1 to 10 orders with one request and ends as many,
//! picked from the pool at random, so that an order is cancelled at a random age: 95 of 100 are paid, which cancels
//! the timer; the others fire, which the workload brings about by rescheduling them to now, and are acked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use tokio::task::JoinSet;

use super::consumers::{Consumers, Nacks, Plan};
use super::machine::Peak;
use super::messages::{BODY_BYTES, key};
use super::report::{Report, Spread, per_second, rounded};
use super::run::Bench;
use crate::cli::exit::{Exit, Failure};
use crate::cli::random::Random;
use crate::cli::signals::Stop;
use crate::client::{CancelAnswer, Client, Due, Error, MessageRef, NewMessage, RescheduleAnswer};
use crate::clock::Stopwatch;

/// The delay of a timer.
const DELAY: Duration = Duration::from_mins(30);
/// Timers of a request at most.
const MAX_REQUEST: u64 = 10;
/// Of a hundred timers this many are cancelled.
const CANCELLED_PERCENT: u64 = 95;
/// How long the last timers that were made to fire may take until they are acked.
const REST_LIMIT: Duration = Duration::from_secs(10);

/// Arguments of `bench w6`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
A step opens 1 to 10 orders in one request and ends as many: cancel by key, or reschedule to now and ack. The rate \
counts timers that are produced and ended in the time; filling the pool is not counted.

Examples:
  duewheel bench w6 --secs 30
  duewheel bench w6 --conns 8 --workers 32 --pool 200000 --json")]
pub(super) struct W6Args {
    /// How long to measure, seconds
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    secs: u64,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    conns: u64,
    /// Workers on each connection; each has one call on the way
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    workers: u64,
    /// Timers that are pending at once
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pool: u64,
}

/// What a worker has done.
#[derive(Debug)]
struct Tally {
    produced: u64,
    cancelled: u64,
    fired: u64,
    /// Calls that had another answer than the one that is due.
    unexpected: u64,
    confirm: Spread,
    cancel: Spread,
    reschedule: Spread,
}

impl Tally {
    fn new() -> Self {
        let (confirm, cancel, reschedule) = (Spread::new(), Spread::new(), Spread::new());
        Self { produced: 0, cancelled: 0, fired: 0, unexpected: 0, confirm, cancel, reschedule }
    }

    fn merge(&mut self, other: &Self) {
        self.produced += other.produced;
        self.cancelled += other.cancelled;
        self.fired += other.fired;
        self.unexpected += other.unexpected;
        self.confirm.merge(&other.confirm);
        self.cancel.merge(&other.cancel);
        self.reschedule.merge(&other.reschedule);
    }
}

/// Runs w6.
pub(super) async fn run(bench: &Bench, args: &W6Args) -> Result<Report, Failure> {
    let topic = bench.create_topic("w6").await?;
    let plan = Plan { consumers: 1, window: 1_000, count: 0, nacks: Nacks::Never };
    let consumers = Consumers::start(bench, &topic, plan).await?;
    let mut workers = workers(bench, args, &topic).await?;
    let filling = bench.phase("pool filled", Some(args.pool));
    let filled = step_all(&mut workers, &filling, None).await?;
    let (cpu, peak) = (bench.place.cpu_s(), Peak::watch(&bench.place));
    let watch = Stopwatch::start();
    let ended = bench.phase("timers ended", None);
    let tally = step_all(&mut workers, &ended, Some(Duration::from_secs(args.secs))).await?;
    let seconds = watch.elapsed().as_secs_f64();
    bench.phase("waiting for the last acks", None);
    let seen = consumers.finish(bench, tally.fired, REST_LIMIT).await?;
    let mut report = Report::default();
    report.put("conns", args.conns);
    report.put("workers", args.workers);
    report.put("pool", filled.produced);
    report.put("secs", rounded(seconds));
    report.put("sent", tally.produced);
    report.put("cancelled", tally.cancelled);
    report.put("fired", tally.fired);
    report.put("acked", seen.acked);
    report.put("unexpected", tally.unexpected + filled.unexpected);
    report.put("msg_s", per_second(tally.cancelled + tally.fired, seconds));
    report.put("produce_msg_s", per_second(tally.produced, seconds));
    report.put("confirm", tally.confirm.to_json());
    report.put("cancel", tally.cancel.to_json());
    report.put("reschedule", tally.reschedule.to_json());
    report.put("pending", bench.pending(&topic).await?);
    report.put("peak_mem_mb", peak.end());
    report.put("server_cpu_s", bench.place.cpu_since(cpu));
    Ok(report)
}

async fn workers(bench: &Bench, args: &W6Args, topic: &str) -> Result<Vec<Worker>, Failure> {
    let count = args.conns * args.workers;
    let mut workers = Vec::new();
    let mut client = bench.another_client().await?;
    for number in 0..count {
        if number % args.workers == 0 && number > 0 {
            client = bench.another_client().await?;
        }
        workers.push(Worker {
            client: client.clone(),
            topic: topic.to_owned(),
            stop: bench.stop().clone(),
            pool: Vec::new(),
            pool_size: usize::try_from(args.pool.div_ceil(count)).unwrap_or(usize::MAX),
            next: number,
            step: count,
            random: Random::new(number),
        });
    }
    Ok(workers)
}

/// Lets all workers go on at once: until their pools are full, or, with a limit, for that time.
async fn step_all(workers: &mut Vec<Worker>, done: &Arc<AtomicU64>, limit: Option<Duration>) -> Result<Tally, Failure> {
    let mut running = JoinSet::new();
    for mut worker in workers.drain(..) {
        let done = Arc::clone(done);
        running.spawn(async move {
            let tally = worker.go_on(&done, limit).await;
            (worker, tally)
        });
    }
    let mut total = Tally::new();
    while let Some(ended) = running.join_next().await {
        let (worker, tally) = ended.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
        total.merge(&tally.map_err(|error| Failure::call("produce, cancel or reschedule", &error))?);
        workers.push(worker);
    }
    Ok(total)
}

struct Worker {
    client: Client,
    topic: String,
    stop: Stop,
    /// Numbers of the open orders.
    pool: Vec<u64>,
    pool_size: usize,
    /// Number of the next order; each worker takes every `step`th.
    next: u64,
    step: u64,
    random: Random,
}

impl Worker {
    async fn go_on(&mut self, done: &AtomicU64, limit: Option<Duration>) -> Result<Tally, Error> {
        let mut tally = Tally::new();
        let watch = Stopwatch::start();
        let goes_on = |worker: &Self| match limit {
            Some(limit) => watch.elapsed() < limit,
            None => worker.pool.len() < worker.pool_size,
        };
        while goes_on(self) && !self.stop.is_requested() {
            let count = 1 + self.random.below(MAX_REQUEST);
            self.open(count, &mut tally).await?;
            if limit.is_none() {
                done.fetch_add(count, Ordering::Relaxed);
                continue;
            }
            for _ in 0..count {
                if self.pool.is_empty() || self.stop.is_requested() {
                    break;
                }
                let at = usize::try_from(self.random.below(self.pool.len() as u64)).expect("an index of the pool");
                let number = self.pool.swap_remove(at);
                self.end(number, &mut tally).await?;
                done.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(tally)
    }

    async fn open(&mut self, count: u64, tally: &mut Tally) -> Result<(), Error> {
        let numbers: Vec<u64> = (0..count).map(|nth| self.next + nth * self.step).collect();
        self.next += count * self.step;
        let message = |&number: &u64| NewMessage::new(vec![7; BODY_BYTES]).key(key(number)).due(Due::In(DELAY));
        let watch = Stopwatch::start();
        let results = self.client.produce_all(&self.topic, numbers.iter().map(message).collect()).await?;
        tally.confirm.add_since(&watch);
        for (number, result) in numbers.into_iter().zip(results) {
            match result {
                Ok(_) => {
                    tally.produced += 1;
                    self.pool.push(number);
                }
                Err(_) => tally.unexpected += 1,
            }
        }
        Ok(())
    }

    async fn end(&mut self, number: u64, tally: &mut Tally) -> Result<(), Error> {
        let message = MessageRef::key(key(number));
        let watch = Stopwatch::start();
        if self.random.below(100) < CANCELLED_PERCENT {
            let answer = self.client.cancel(&self.topic, message, false).await?;
            tally.cancel.add_since(&watch);
            match answer {
                CancelAnswer::Cancelled { .. } => tally.cancelled += 1,
                _ => tally.unexpected += 1,
            }
        } else {
            let answer = self.client.reschedule(&self.topic, message, Due::In(Duration::ZERO)).await?;
            tally.reschedule.add_since(&watch);
            match answer {
                RescheduleAnswer::Rescheduled { .. } => tally.fired += 1,
                _ => tally.unexpected += 1,
            }
        }
        Ok(())
    }
}
