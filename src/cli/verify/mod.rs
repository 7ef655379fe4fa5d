//! `duewheel verify`: does this broker keep its promises, here and now, on this machine?
//!
//! Producers, consumers and a canceller put load on a topic of their own. Each writes down what it asks for before it
//! asks, and what it is answered. In the end the broker must have run empty, and the ledger must agree with all that
//! came: nothing confirmed is lost, nothing comes early, nothing that ended comes back, no more repeated deliveries
//! than were in flight when connections broke, no attempt skipped, no key kept, all counts add up. With commands
//! that kill and start the broker, it is killed again and again meanwhile.
//!
//! The verdict rests on what the clients saw, by their own clock, and on nothing that the broker says of itself.

mod accounts;
mod canceller;
mod closing;
mod consumer;
mod ledger;
mod order;
mod producer;
mod rounds;
mod tally;
mod verdict;
mod world;

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use clap::Args;
use tokio::task::JoinSet;

use self::ledger::Ledger;
use self::rounds::Rounds;
use self::verdict::{Judgement, Verdict};
use self::world::World;
use super::args::duration_ms;
use super::broker_command::BrokerLog;
use super::exit::{Exit, Failure, say};
use super::live::Live;
use super::output::{Format, print_sheet};
use super::scratch_topic;
use super::session::Session;
use super::signals::Stop;
use crate::client::{Client, span, tiers};
use crate::clock::{Stopwatch, wall_now};
use crate::pb;
use crate::queue::schedule::RetrySchedule;

/// How long a call of a client may take. Without an answer by then its outcome is unknown.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// How long the clients may take to end once everything is over: a call, and connecting once more.
const END_LIMIT: Duration = Duration::from_secs(40);

/// Arguments of `verify`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Works in a topic of its own, which is kept if a promise was broken. Exit code 0 if every promise was kept; 1 if one was \
broken (with the first cases of each kind), or if the run was interrupted or not finished; the verdict tells which. The \
same --seed makes the same load; what the machine does between is not the same.

After the load the broker has to run empty, which takes about as long again, and the accounts are settled.

--kill-cmd must have ended the broker when it returns; --start-cmd may stay in the foreground. The broker that it has \
started last goes on running; a file keeps what the started brokers write to stderr, and is named in the end. A kill is \
not a power cut: what the operating system holds survives it. Ctrl-C ends the load, and the accounts are settled; a \
second one ends all at once.

Examples:
  duewheel verify --duration 1m
  duewheel verify --duration 10m --producers 8 --json > verdict.json
  duewheel verify --duration 5m --rounds 100 --start-cmd 'duewheel serve' \\
      --kill-cmd 'kill -9 $(cat duewheel-data/LOCK)'")]
pub(super) struct VerifyArgs {
    /// How long to put load on the broker; the whole run takes about twice as long
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = duration_ms)]
    duration: u64,
    /// Producers, each with a connection of its own
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=100))]
    producers: u64,
    /// Consumers, each with a connection of its own
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=100))]
    consumers: u64,
    /// Wait of a producer and of the canceller between two calls
    #[arg(long, value_name = "SPAN", default_value = "2ms", value_parser = duration_ms)]
    pause: u64,
    /// Messages after which the load ends early; the ledger takes about 100 bytes of memory for each
    #[arg(long, value_name = "N", default_value_t = 5_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    max_messages: u64,
    /// Seed of the load [default: by the time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Shell command that kills the broker
    #[arg(long, value_name = "COMMAND", requires = "start_cmd")]
    kill_cmd: Option<String>,
    /// Shell command that starts it again, on the same address and directory
    #[arg(long, value_name = "COMMAND", requires = "kill_cmd")]
    start_cmd: Option<String>,
    /// Times that the broker is killed within --duration
    #[arg(long, value_name = "N", default_value_t = 10, requires = "kill_cmd", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rounds: u64,
    /// How long the broker may be away, or get no emptier, in the end
    #[arg(long, value_name = "SPAN", default_value = "1m", value_parser = duration_ms)]
    drain_timeout: u64,
    /// Write every intent and answer into this file, one JSON object per line
    #[arg(long, value_name = "FILE")]
    ledger: Option<PathBuf>,
    /// Leave the topic as it is in the end; it is deleted otherwise, unless a promise was broken
    #[arg(long)]
    keep_topic: bool,
    /// Print one line of JSON (the same as -o jsonl)
    #[arg(long)]
    json: bool,
}

/// Runs `verify`.
pub(super) async fn run(session: &Session, args: VerifyArgs) -> Result<(), Failure> {
    let failed = |text: String| Failure::new(Exit::Failed, text);
    let stop = Stop::listen().map_err(|error| failed(format!("cannot watch signals: {error}")))?;
    let client = session.connect().await?;
    let seed = args.seed.unwrap_or_else(|| wall_now().as_millis());
    let log = args.ledger.as_ref().map(File::create).transpose();
    let log = log.map_err(|error| failed(format!("cannot write the ledger: {error}")))?;
    let endpoint = session.options().to_endpoint();
    let endpoint = endpoint.map_err(|error| Failure::new(Exit::Usage, error.message()))?.timeout(CALL_LIMIT);
    let topic = format!("verify-{:x}-{:x}", wall_now().as_millis(), std::process::id());
    let broker_log = args.start_cmd.as_ref().map(|_| BrokerLog::create(&topic)).transpose()?;
    create_topic(&client, &topic).await?;
    say(&format!("seed {seed}, topic {topic}"));
    let world = Arc::new(World::new(endpoint, topic, Ledger::new(args.max_messages, log), args.producers));
    let (live, kills) = (Live::start(), AtomicU64::new(0));
    let run = Run {
        world: Arc::clone(&world),
        session,
        args: &args,
        live,
        seed,
        stop: stop.clone(),
        kills: &kills,
        broker_log: broker_log.as_ref(),
    };
    let watch = Stopwatch::start();
    let (judged, is_forced) = tokio::select! {
        judged = run.judge() => (judged, false),
        () = stop.forced() => (Err(failed("stopped at once by a second signal".to_owned())), true),
    };
    drop(run);
    if let Err(error) = world.ledger.close_log() {
        say(&format!("the ledger file is not complete: {error}"));
    }
    let tally = world.ledger.tally();
    let judgement = match &judged {
        _ if tally.violations() > 0 => Judgement::Broken,
        Err(_) => Judgement::Incomplete,
        Ok(()) if stop.is_requested() => Judgement::Interrupted,
        Ok(()) if tally.produced() == 0 => Judgement::Incomplete,
        Ok(()) => Judgement::Kept,
    };
    let seconds = (watch.elapsed().as_secs_f64() * 10.0).round() / 10.0;
    let (topic, kills, is_full) = (world.topic.clone(), kills.into_inner(), world.full.is_cancelled());
    let verdict = Verdict { judgement, seed, topic, kills, seconds, is_full, tally };
    print_sheet(if args.json { Format::Jsonl } else { session.format }, &verdict)?;
    if let Some(log) = broker_log {
        log.tell(judged.is_ok());
    }
    let topics = [world.topic.clone()];
    if args.keep_topic || judgement == Judgement::Broken || is_forced {
        scratch_topic::tell_left(&topics);
    } else {
        scratch_topic::delete(session, &topics).await;
    }
    judged?;
    match judgement {
        Judgement::Kept => Ok(()),
        Judgement::Incomplete => Err(failed("nothing was produced".to_owned())),
        Judgement::Broken | Judgement::Interrupted => Err(Failure::silent(Exit::Failed)),
    }
}

async fn create_topic(client: &Client, topic: &str) -> Result<(), Failure> {
    let schedule = |text: &str| RetrySchedule::parse("schedule", text).ok().map(|schedule| tiers(&schedule));
    let settings = pb::TopicSettings {
        schedule: schedule(world::SCHEDULE),
        error_schedule: schedule(world::ERROR_SCHEDULE),
        max_attempts: world::MAX_ATTEMPTS,
        max_deliveries: 100_000,
        lease: Some(span(world::LEASE_MS)),
        min_redelivery_gap: Some(span(10)),
        max_returns: 1_000,
        ..pb::TopicSettings::default()
    };
    let created = client.create_topic(topic, settings).await;
    created.map_err(|error| Failure::call(format!("create the topic '{topic}'"), &error))?;
    Ok(())
}

struct Run<'a> {
    world: Arc<World>,
    session: &'a Session,
    args: &'a VerifyArgs,
    live: Live,
    seed: u64,
    stop: Stop,
    kills: &'a AtomicU64,
    /// Where the brokers that it starts write to.
    broker_log: Option<&'a BrokerLog>,
}

impl Run<'_> {
    /// Load, drain, and the accounts.
    async fn judge(&self) -> Result<(), Failure> {
        let world = &*self.world;
        let mut clients = self.start_clients();
        self.live.phase_of("confirmed", &world.confirmed);
        let (endpoint, args, stop) = (&self.session.endpoint, self.args, &self.stop);
        let rounds = Rounds { world, endpoint, args, stop, kills: self.kills, broker_log: self.broker_log };
        rounds.run(self.seed).await?;
        world.drain();
        self.live.phase("waiting until the broker has run empty", None);
        let patience = Duration::from_millis(args.drain_timeout);
        let stats = closing::drained(self.session, world, patience).await?;
        world.end();
        self.live.phase("settling accounts", None);
        ended(&mut clients).await?;
        let client = self.session.connect().await?;
        let dead = closing::dead(&client, &world.topic).await?;
        world.ledger.settle_accounts(&stats, &dead);
        closing::use_keys_again(&client, world, &dead).await
    }

    fn start_clients(&self) -> JoinSet<()> {
        let (world, pause) = (&self.world, Duration::from_millis(self.args.pause));
        let mut clients = JoinSet::new();
        for number in 0..self.args.producers {
            clients.spawn(producer::run(Arc::clone(world), self.seed ^ (number + 1), pause));
        }
        for number in 0..self.args.consumers {
            clients.spawn(consumer::run(Arc::clone(world), self.seed ^ (number + 0x1000)));
        }
        clients.spawn(canceller::run(Arc::clone(world), self.seed ^ 0x1_0000, pause));
        clients
    }
}

/// Waits until all clients have ended. One that still hangs in a call is left: what it asked for stays unknown.
async fn ended(clients: &mut JoinSet<()>) -> Result<(), Failure> {
    let all = async {
        while let Some(ended) = clients.join_next().await {
            ended.map_err(|error| Failure::new(Exit::Failed, format!("a client ended badly: {error}")))?;
        }
        Ok(())
    };
    tokio::time::timeout(END_LIMIT, all).await.unwrap_or(Ok(()))
}
