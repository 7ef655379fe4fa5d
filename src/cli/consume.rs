//! `duewheel consume`: print messages, or run a command for each, and settle by its exit code.
//!
//! Each worker takes one message, handles it and settles it. Without `--max` the messages come over a consume
//! stream, whose end gives back what is not settled. With `--max` they are fetched one by one, so that not one
//! more than asked for is ever leased.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::args::{at_least_one, duration_ms, not_empty};
use super::body::Body;
use super::exec::{self, Verdict};
use super::exit::{Exit, Failure, say};
use super::output::{Listing, Row};
use super::session::Session;
use super::signals::Stop;
use crate::client::{Backoff, Client, Consumer, Delivery, Error, Fetch, Nack, Window};
use crate::clock::Stopwatch;

/// How long one fetch waits, and so how long Ctrl-C may have to wait for it.
const FETCH_WAIT: Duration = Duration::from_secs(1);

/// Arguments of `consume`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Without --exec every message is printed and acked. With --exec the command (run by sh -c) gets the body on stdin \
and settles by its exit code: 0 acks; 75 nacks as not-yet, which leads to the next delay tier; anything else nacks \
as failed, which retries within the attempt. The last line that it writes to stderr is the text of the nack. The \
lease is extended while the command runs. An ack or nack that the broker cannot take, because it restarts, is \
repeated until the lease ends. The command's environment holds \
DUEWHEEL_TOPIC, _ID, _KEY, _ATTEMPT, _MAX_ATTEMPTS, _DELIVERY, _REDELIVERED, _DUE_AT, _DELIVERED_AT, _ENDPOINT, and \
DUEWHEEL_HEADER_NAME for each header.

Ctrl-C finishes the messages at hand and ends with exit code 0; a second one stops at once.

Examples:
  duewheel consume dropped-orders
  duewheel consume dropped-orders --max 1 -o json
  duewheel consume dropped-orders --exec './query.sh \"$DUEWHEEL_KEY\"'")]
pub(super) struct ConsumeArgs {
    /// Topic to consume
    topic: String,
    /// Run a command for each message instead of printing it
    #[arg(long, value_name = "CMD", value_parser = not_empty)]
    exec: Option<String>,
    /// End after this many messages are settled
    #[arg(long, value_name = "N", value_parser = at_least_one::<u64>)]
    max: Option<u64>,
    /// Messages handled at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    concurrency: u32,
    /// Messages leased at once; at least the concurrency, which is the default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    window: Option<u32>,
    /// Lease time instead of the topic's
    #[arg(long, value_name = "SPAN", value_parser = duration_ms)]
    lease: Option<u64>,
    /// Name of this consumer in the attempt history [default: cli and the process id]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

/// Runs `consume`.
pub(super) async fn run(session: &Session, args: ConsumeArgs) -> Result<(), Failure> {
    let stop = Stop::listen().map_err(|error| Failure::new(Exit::Failed, format!("cannot watch signals: {error}")))?;
    let client = session.connect().await?;
    let name = args.name.clone().unwrap_or_else(|| format!("cli-{}", std::process::id()));
    let lease = args.lease.map(Duration::from_millis);
    let source = match args.max {
        Some(max) => Source::fetch(client, &args.topic, lease, name, max).await,
        None => Source::stream(&client, &args, lease, &name).await,
    };
    let shared = Arc::new(Shared {
        source: source.map_err(|error| Failure::call(format!("consume '{}'", args.topic), &error))?,
        command: args.exec,
        endpoint: session.endpoint.clone(),
        listing: Mutex::new(Some(Listing::new(session.format))),
        stop,
        tally: Tally::default(),
    });
    let mut workers = JoinSet::new();
    for _ in 0..args.concurrency {
        workers.spawn(worker(Arc::clone(&shared)));
    }
    let mut result = Ok(());
    while let Some(ended) = workers.join_next().await {
        let ended = ended.unwrap_or_else(|error| Err(Failure::new(Exit::Failed, format!("a worker broke: {error}"))));
        if ended.is_err() && result.is_ok() {
            result = ended;
        }
    }
    let shared = Arc::into_inner(shared).expect("every worker has ended");
    shared.finish().await?;
    result
}

/// What all workers share.
struct Shared {
    source: Source,
    command: Option<String>,
    endpoint: String,
    /// Taken out when the listing is finished.
    listing: Mutex<Option<Listing>>,
    stop: Stop,
    tally: Tally,
}

/// How the messages at hand ended.
#[derive(Default)]
struct Tally {
    acked: AtomicU64,
    not_yet: AtomicU64,
    failed: AtomicU64,
    lost: AtomicU64,
}

impl Shared {
    async fn finish(self) -> Result<(), Failure> {
        if let Source::Stream(consumer) = self.source {
            consumer.into_inner().close().await;
        }
        if self.command.is_none() {
            if let Some(listing) = self.listing.into_inner() {
                listing.finish()?;
            }
            return Ok(());
        }
        let count = |counter: AtomicU64| counter.into_inner();
        let Tally { acked, not_yet, failed, lost } = self.tally;
        let (acked, not_yet, failed, lost) = (count(acked), count(not_yet), count(failed), count(lost));
        say(&format!("{acked} acked, {not_yet} not yet, {failed} failed, {lost} lost their lease"));
        Ok(())
    }
}

async fn worker(shared: Arc<Shared>) -> Result<(), Failure> {
    loop {
        let delivery = tokio::select! {
            () = shared.stop.forced() => return Err(Failure::silent(Exit::Failed)),
            delivery = shared.source.next(&shared.stop) => delivery,
        };
        let Some(delivery) = delivery.map_err(|error| Failure::call("consume", &error))? else { return Ok(()) };
        let verdict = match &shared.command {
            None => print(&shared, &delivery).await?,
            Some(command) => {
                let run = exec::run(command, &delivery, &shared.endpoint);
                tokio::select! {
                    () = shared.stop.forced() => return Err(Failure::silent(Exit::Failed)),
                    verdict = run => verdict?,
                }
            }
        };
        settle(&shared, &delivery, &verdict).await?;
    }
}

async fn print(shared: &Shared, delivery: &Delivery) -> Result<Verdict, Failure> {
    let mut listing = shared.listing.lock().await;
    let listing = listing.as_mut().expect("the listing is finished after the workers");
    listing.print(&DeliveryView::new(delivery))?;
    Ok(Verdict::Ack)
}

/// Settles by the verdict. A lease that was lost is somebody else's by now: it is told and not counted.
async fn settle(shared: &Shared, delivery: &Delivery, verdict: &Verdict) -> Result<(), Failure> {
    let settled = tokio::select! {
        () = shared.stop.forced() => return Err(Failure::silent(Exit::Failed)),
        settled = settle_within_lease(&shared.source, delivery, verdict) => settled,
    };
    match settled {
        Ok(()) => {
            let counter = match verdict {
                Verdict::Ack => &shared.tally.acked,
                Verdict::NotYet(_) => &shared.tally.not_yet,
                Verdict::Failed(_) => &shared.tally.failed,
            };
            counter.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
        Err(error) if is_lost(&error) || error.is_temporary() => {
            say(&format!("{}: {}", delivery.id, lost_text(verdict, &error)));
            shared.tally.lost.fetch_add(1, Ordering::Relaxed);
            shared.source.give_back();
            Ok(())
        }
        Err(error) => Err(Failure::call(format!("settle {}", delivery.id), &error)),
    }
}

/// Settles again and again while the broker is away, starts or moves pages, until the lease must have ended. If an
/// answer got lost, the repeat finds out what became of the lease.
async fn settle_within_lease(source: &Source, delivery: &Delivery, verdict: &Verdict) -> Result<(), Error> {
    let (begun, mut backoff) = (Stopwatch::start(), Backoff::default());
    let mut is_told = false;
    loop {
        let settled = match verdict {
            Verdict::Ack => delivery.ack().await.map(drop),
            Verdict::NotYet(text) => delivery.nack(Nack::not_yet().text(text)).await.map(drop),
            Verdict::Failed(text) => delivery.nack(Nack::failed().text(text)).await.map(drop),
        };
        let Err(error) = settled else { return Ok(()) };
        let left = delivery.lease().saturating_sub(begun.elapsed());
        if left.is_zero() || is_lost(&error) || !source.may_repeat(&error) {
            return Err(error);
        }
        if !is_told {
            let settlement = settlement(verdict);
            say(&format!("{}: the {settlement} failed: {error}; trying again until the lease ends", delivery.id));
            is_told = true;
        }
        tokio::time::sleep(backoff.next_wait().min(left)).await;
    }
}

/// How a verdict is called when it is sent.
fn settlement(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Ack => "ack",
        Verdict::NotYet(_) | Verdict::Failed(_) => "nack",
    }
}

/// What becomes of a message whose settlement was not taken.
fn lost_text(verdict: &Verdict, error: &Error) -> String {
    let settlement = settlement(verdict);
    match error.reason() {
        Some("LEASE_LOST") => {
            format!("the {settlement} came too late: {error}; the message comes again or has done so")
        }
        Some("MESSAGE_GONE" | "MESSAGE_NOT_FOUND" | "TOPIC_NOT_FOUND") => {
            format!("the {settlement} came too late: {error}; the message is over and does not come again")
        }
        _ => {
            let fate = "unless it was taken after all, the message comes again";
            format!("the {settlement} failed until the lease ended: {error}; {fate}")
        }
    }
}

/// True if the message is somebody else's by now, or was settled by somebody else.
fn is_lost(error: &Error) -> bool {
    matches!(error.reason(), Some("LEASE_LOST" | "MESSAGE_GONE" | "MESSAGE_NOT_FOUND" | "TOPIC_NOT_FOUND"))
}

/// Where messages come from.
enum Source {
    Stream(Mutex<Consumer>),
    Fetch {
        client: Client,
        request: Fetch,
        /// How many messages may still be taken.
        left: AtomicU64,
    },
}

impl Source {
    async fn stream(client: &Client, args: &ConsumeArgs, lease: Option<Duration>, name: &str) -> Result<Self, Error> {
        let mut window = Window::new(&args.topic, args.window.unwrap_or_default().max(args.concurrency));
        if let Some(lease) = lease {
            window = window.lease(lease);
        }
        Ok(Self::Stream(Mutex::new(client.consume(name, [window]).await?)))
    }

    /// Fails at once if the topic does not exist.
    async fn fetch(
        client: Client,
        topic: &str,
        lease: Option<Duration>,
        consumer: String,
        max: u64,
    ) -> Result<Self, Error> {
        client.topic(topic).await?;
        let request = Fetch { topic: topic.to_owned(), max_messages: 1, wait: FETCH_WAIT, lease, consumer };
        Ok(Self::Fetch { client, request, left: AtomicU64::new(max) })
    }

    /// The next message; `None` when enough were taken or the process is to stop.
    async fn next(&self, stop: &Stop) -> Result<Option<Delivery>, Error> {
        match self {
            Self::Stream(consumer) => tokio::select! {
                biased;
                () = stop.requested() => Ok(None),
                delivery = async { consumer.lock().await.next().await } => delivery.map(Some),
            },
            Self::Fetch { client, request, left } => {
                let mut backoff = Backoff::default();
                while !stop.is_requested() && take_one(left) {
                    match client.fetch(request.clone()).await {
                        Ok(deliveries) => {
                            if let Some(delivery) = deliveries.into_iter().next() {
                                return Ok(Some(delivery));
                            }
                        }
                        Err(error) if error.is_temporary() => tokio::time::sleep(backoff.next_wait()).await,
                        Err(error) => return Err(error),
                    }
                    self.give_back();
                }
                Ok(None)
            }
        }
    }

    /// True if a settlement that ended like this may succeed within its lease. A stream repeats by itself what it did not
    /// hear of; only what the broker has answered is for its user to repeat.
    fn may_repeat(&self, error: &Error) -> bool {
        error.is_temporary() && (matches!(self, Self::Fetch { .. }) || error.reason().is_some())
    }

    /// A message that was taken did not get settled.
    fn give_back(&self) {
        if let Self::Fetch { left, .. } = self {
            left.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn take_one(left: &AtomicU64) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

/// A delivery as it is printed.
#[derive(Serialize)]
struct DeliveryView<'a> {
    topic: &'a str,
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    attempt: u32,
    max_attempts: u32,
    delivery: u32,
    redelivered: bool,
    produced_at: String,
    due_at: String,
    delivered_at: String,
    headers: &'a std::collections::BTreeMap<String, String>,
    #[serde(flatten)]
    body: Body,
}

impl<'a> DeliveryView<'a> {
    fn new(delivery: &'a Delivery) -> Self {
        Self {
            topic: &delivery.topic,
            id: &delivery.id,
            key: delivery.key.as_deref(),
            attempt: delivery.attempt,
            max_attempts: delivery.max_attempts,
            delivery: delivery.delivery,
            redelivered: delivery.redelivered,
            produced_at: delivery.produced_at.to_rfc3339(),
            due_at: delivery.due_at.to_rfc3339(),
            delivered_at: delivery.delivered_at.to_rfc3339(),
            headers: &delivery.headers,
            body: Body::new(&delivery.body),
        }
    }
}

impl Row for DeliveryView<'_> {
    const COLUMNS: &'static [&'static str] = &["delivered at", "id", "key", "attempt", "body"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.delivered_at.clone(),
            self.id.to_owned(),
            self.key.unwrap_or("-").to_owned(),
            format!("{}/{}", self.attempt, self.max_attempts),
            self.body.to_string(),
        ]
    }
}
