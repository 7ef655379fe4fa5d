//! A payment compensator: what this broker is for, played with two thousand payments.
//!
//! A customer pays, the channel answers only "accepted", and the final result does not arrive: a *dropped order*.
//! The shop produces one delayed message per uncertain payment. When it falls due, the compensator asks the
//! channel. A definite answer settles the order and acks the message; "still processing" nacks it onto the next
//! delay tier; a broken query is retried within the tier. Payments that the channel never settles end as dead
//! letters, to be reconciled. A notification that arrives after all settles the order and cancels the compensation
//! by order number, even while a query is running; "query now" makes a message due at once.
//!
//! ```text
//! cargo run --release -- serve
//! cargo run --release --example payment_compensator -- --time-scale 60
//! ```
//!
//! An hour of tiers, sixty times faster: this takes a little over a minute. The payments are part of the program, so it
//! runs from any directory; `--payments` plays another file.
//!
//! The broker may be killed and started again in the middle. The example then repeats what was not answered, opens
//! its stream again, and must still come to the same end: its exit code is 0 only if every payment is accounted
//! for, by the broker, by the orders table and by the channel.
//!
//! Order numbers get the number of the run in front, so the example can be run again on the same broker.

#[path = "payment_compensator/channel.rs"]
mod channel;
#[path = "payment_compensator/check.rs"]
mod check;
#[path = "payment_compensator/compensator.rs"]
mod compensator;
#[path = "payment_compensator/intake.rs"]
mod intake;
#[path = "payment_compensator/orders.rs"]
mod orders;
#[path = "payment_compensator/payment.rs"]
mod payment;
#[path = "payment_compensator/report.rs"]
mod report;

use std::convert::Infallible;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Parser;
use duewheel::client::{Client, DEFAULT_ENDPOINT, Error, Options, Window, tiers};
use duewheel::clock::{Stopwatch, wall_now};
use duewheel::pb::TopicSettings;
use duewheel::queue::schedule::RetrySchedule;
use tokio::task::JoinSet;

use self::channel::Channels;
use self::compensator::Tally;
use self::intake::{Answers, until_answered};
use self::orders::Orders;
use self::payment::Payment;

/// The payments that are played unless others are given.
const PAYMENTS: &str = include_str!("data/payments.jsonl");
/// Between two lines of progress.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// The topic of the compensations.
const TOPIC: &str = "dropped-orders";
/// The delay tiers, an hour in all.
const SCHEDULE: &str = "5s,10s,30s,1m,2m,5m,10m,20m,21m";
/// Delays of broken queries within a tier.
const ERROR_SCHEDULE: &str = "3x1s";
/// Queries at once.
const WINDOW: u32 = 256;

/// Settle uncertain payments through a broker that runs elsewhere.
#[derive(Debug, Parser)]
struct Args {
    /// URL of the broker
    #[arg(long, value_name = "URL", env = "DUEWHEEL_ENDPOINT", default_value = DEFAULT_ENDPOINT)]
    endpoint: String,
    /// Payments to play, one JSON object per line [default: the 2,400 of examples/data/payments.jsonl, built in]
    #[arg(long, value_name = "FILE")]
    payments: Option<PathBuf>,
    /// Play only this many of them, spread evenly over the file
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// How many times faster than life: with 60, an hour of tiers takes a minute
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    time_scale: f64,
}

/// What all parts share.
struct Shop {
    client: Client,
    run: String,
    scale: f64,
    schedule: RetrySchedule,
    orders: Orders,
    channels: Channels,
    answers: Answers,
    tally: Mutex<Tally>,
}

impl Shop {
    /// The business key of a payment: its order number, in this run.
    fn key(&self, payment: &Payment) -> String {
        format!("{}-{}", self.run, payment.order)
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    if !(args.time_scale > 0.0 && args.time_scale.is_finite()) {
        bail!("--time-scale must be above 0");
    }
    let payments = match &args.payments {
        Some(path) => payment::read(path, args.limit)?,
        None => payment::parse("the built-in payments", PAYMENTS, args.limit)?,
    };
    let client = Client::connect(Options::new(&args.endpoint))
        .await
        .with_context(|| format!("no broker answers at {}; start one with: duewheel serve", args.endpoint))?;
    let schedule = scaled(SCHEDULE, args.time_scale)?;
    let settings = TopicSettings {
        schedule: Some(tiers(&schedule)),
        error_schedule: Some(tiers(&scaled(ERROR_SCHEDULE, args.time_scale)?)),
        ..TopicSettings::default()
    };
    intake::ensure_topic(&client, settings).await.context("cannot create the topic")?;
    let shop = Arc::new(Shop {
        client,
        run: format!("r{}", wall_now().as_millis()),
        scale: args.time_scale,
        schedule,
        orders: Orders::default(),
        channels: Channels::new(args.time_scale),
        answers: Answers::default(),
        tally: Mutex::new(Tally::new()),
    });
    let last = payments.iter().map(|payment| payment.at.scaled(shop.scale)).max().unwrap_or_default();
    let longest = last + Duration::from_millis(shop.schedule.tiers().iter().sum());
    eprintln!(
        "playing {} payments against {}, {} times faster than life; the last ends after about {} s",
        payments.len(),
        args.endpoint,
        shop.scale,
        longest.as_secs().max(1)
    );
    let conservation = play(&shop, &payments).await?;
    let holds = report::print(&shop, payments.len(), &conservation);
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Plays all payments to their end and checks how they ended.
async fn play(shop: &Arc<Shop>, payments: &[Payment]) -> anyhow::Result<check::Conservation> {
    let consumer = shop.client.consume("compensator", [Window::new(TOPIC, WINDOW)]).await?;
    let compensator = tokio::spawn(compensator::run(Arc::clone(shop), consumer));
    let compensating = compensator.abort_handle();
    let mut intake = JoinSet::new();
    for payment in payments {
        intake.spawn(intake::play(Arc::clone(shop), payment.clone()));
    }
    let all = async {
        while let Some(ended) = intake.join_next().await {
            ended.context("a payment's task broke")??;
        }
        all_ended(shop).await?;
        check::run(shop, payments).await.context("the check could not be made")
    };
    let conservation = tokio::select! {
        conservation = all => conservation,
        never = tell_progress(shop, payments.len()) => match never {},
        ended = compensator => {
            ended.context("the compensator broke")??;
            bail!("the compensator has ended");
        }
    };
    compensating.abort();
    conservation
}

/// Tells how far the run is, now and then, for ever.
async fn tell_progress(shop: &Shop, payments: usize) -> Infallible {
    let watch = Stopwatch::start();
    loop {
        tokio::time::sleep(TELL_EVERY).await;
        let (opened, settled) = shop.orders.progress();
        eprintln!("{} s: {opened} of {payments} paid for, {settled} settled", watch.elapsed().as_secs());
    }
}

/// Waits until nothing of the topic is scheduled, ready or leased.
async fn all_ended(shop: &Shop) -> Result<(), Error> {
    loop {
        let stats = until_answered(|| shop.client.stats(Some(TOPIC))).await?;
        if stats.topics.iter().all(|topic| topic.scheduled + topic.ready + topic.leased == 0) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A schedule in which every delay is `scale` times shorter, but not below a millisecond.
fn scaled(text: &str, scale: f64) -> anyhow::Result<RetrySchedule> {
    let schedule = RetrySchedule::parse("schedule", text)?;
    let tiers: Vec<u64> = schedule
        .tiers()
        .iter()
        .map(|&ms| Duration::from_millis(ms).div_f64(scale).as_millis().max(1))
        .map(|ms| u64::try_from(ms).unwrap_or(u64::MAX))
        .collect();
    Ok(RetrySchedule::new("schedule", &tiers)?)
}
