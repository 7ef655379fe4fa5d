//! `duewheel verify`: does this broker keep its promises, here and now, on this machine?
//!
//! Producers, consumers and a canceller put load on a topic of their own. Each writes down what it asks for before it
//! asks, and what it is answered. In the end the broker must have run empty, and the ledger must agree with all that
//! came: nothing confirmed is lost, nothing comes early, nothing that ended comes back, no more repeated deliveries
//! than were in flight when connections broke, no attempt skipped, no key kept, all counts add up. With commands
//! that kill and start the broker, it is killed again and again meanwhile.
//!
//! The verdict rests on what the clients saw, by their own clock, and on nothing that the broker says of itself.

mod canceller;
mod consumer;
mod ledger;
mod order;
mod producer;
mod tally;
mod world;

use std::collections::HashSet;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::task::JoinSet;
use tonic::transport::Endpoint;

use self::ledger::Ledger;
use self::tally::Verdict;
use self::world::World;
use super::args::duration_ms;
use super::broker_command;
use super::exit::{Exit, Failure, say};
use super::live::Live;
use super::output::print_sheet;
use super::random::Random;
use super::session::Session;
use super::signals::Stop;
use crate::client::{CancelAnswer, Client, Due, MessageRef, NewMessage, span, tiers};
use crate::clock::{Stopwatch, wall_now};
use crate::pb;
use crate::queue::schedule::RetrySchedule;

/// Between two looks whether the broker has run empty.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Keys of ended messages that are used again in the end.
const KEYS_TRIED: usize = 200;
/// Times that the start command is tried: the killed process may hold its directory for a moment.
const START_TRIES: u32 = 5;

/// Arguments of `verify`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Works in a topic of its own. Exit code 1 if a promise was broken, with the first cases of each kind. The same --seed makes the same load; what the machine does between is not the same.

--kill-cmd must have ended the broker when it returns; --start-cmd may stay in the foreground. A kill is not a power \
cut: what the operating system holds survives it.

Examples:
  duewheel verify --duration 1m
  duewheel verify --duration 10m --producers 8 --consumers 8 --json > verdict.json
  duewheel verify --duration 5m --rounds 100 --kill-cmd 'kill -9 $(cat data/LOCK)' \\
      --start-cmd 'duewheel serve --data-dir data'")]
pub(super) struct VerifyArgs {
    /// How long to put load on the broker
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = duration_ms)]
    duration: u64,
    /// Producers, each with a connection of its own
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=100))]
    producers: u64,
    /// Consumers, each with a connection of its own
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=100))]
    consumers: u64,
    /// Wait of a producer and of the canceller between two calls; the ledger takes about 200 bytes of memory per message
    #[arg(long, value_name = "SPAN", default_value = "2ms", value_parser = duration_ms)]
    pause: u64,
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
    /// How long the broker may take to run empty in the end
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
    let stop = Stop::listen().map_err(|error| Failure::new(Exit::Failed, format!("cannot watch signals: {error}")))?;
    let client = session.connect().await?;
    let seed = args.seed.unwrap_or_else(|| wall_now().as_millis());
    let topic = create_topic(&client).await?;
    let log = args.ledger.as_ref().map(File::create).transpose();
    let log = log.map_err(|error| Failure::new(Exit::Failed, format!("cannot write the ledger: {error}")))?;
    let endpoint = Endpoint::from_shared(session.endpoint.clone());
    let endpoint = endpoint.map_err(|error| Failure::new(Exit::Usage, error.to_string()))?.tcp_nodelay(true);
    let run = Run {
        world: Arc::new(World::new(endpoint, topic, Ledger::new(log))),
        session,
        args: &args,
        live: Live::start(),
        seed,
        stop: stop.clone(),
    };
    say(&format!("seed {seed}, topic {}", run.world.topic));
    let watch = Stopwatch::start();
    let kills = tokio::select! {
        kills = run.judge() => kills?,
        () = stop.forced() => return Err(Failure::new(Exit::Failed, "stopped at once by a second signal")),
    };
    let tally = run.world.ledger.tally();
    let topic = run.world.topic.clone();
    drop(run);
    let seconds = (watch.elapsed().as_secs_f64() * 10.0).round() / 10.0;
    let verdict = Verdict { seed, topic, kills, seconds, interrupted: stop.is_requested(), tally };
    print_sheet(if args.json { super::output::Format::Jsonl } else { session.format }, &verdict)?;
    match verdict.tally.violations() {
        0 if verdict.tally.confirmed() == 0 => Err(Failure::new(Exit::Failed, "nothing was confirmed: no verdict")),
        0 if !stop.is_requested() => Ok(()),
        _ => Err(Failure::silent(Exit::Failed)),
    }
}

async fn create_topic(client: &Client) -> Result<String, Failure> {
    let topic = format!("verify-{:x}-{:x}", wall_now().as_millis(), std::process::id());
    let schedule = |text: &str| RetrySchedule::parse("schedule", text).ok().map(|schedule| tiers(&schedule));
    let settings = pb::TopicSettings {
        schedule: schedule(world::SCHEDULE),
        error_schedule: schedule(world::ERROR_SCHEDULE),
        max_attempts: world::MAX_ATTEMPTS,
        max_deliveries: 100_000,
        lease: Some(span(1_000)),
        min_redelivery_gap: Some(span(10)),
        max_returns: 1_000,
        ..pb::TopicSettings::default()
    };
    let created = client.create_topic(&topic, settings).await;
    created.map_err(|error| Failure::call(format!("create the topic '{topic}'"), &error))?;
    Ok(topic)
}

async fn delete_topic(client: &Client, topic: &str) -> Result<(), Failure> {
    let failed = |error| Failure::call(format!("delete the topic '{topic}'"), &error);
    let mut progress = client.delete_topic(topic, true).await.map_err(failed)?;
    while progress.next().await.map_err(failed)?.is_some() {}
    Ok(())
}

struct Run<'a> {
    world: Arc<World>,
    session: &'a Session,
    args: &'a VerifyArgs,
    live: Live,
    seed: u64,
    stop: Stop,
}

impl Run<'_> {
    /// Load, drain, and the accounts. Gives the number of kills.
    async fn judge(&self) -> Result<u64, Failure> {
        let mut clients = self.start_clients();
        let kills = self.load().await?;
        self.world.drain();
        let stats = self.drained().await?;
        self.world.end();
        self.live.phase("settling accounts", None);
        while let Some(ended) = clients.join_next().await {
            ended.map_err(|error| Failure::new(Exit::Failed, format!("a client ended badly: {error}")))?;
        }
        let client = self.session.connect().await?;
        let dead = self.dead(&client).await?;
        self.world.ledger.settle_accounts(&stats, &dead);
        self.use_keys_again(&client).await?;
        if !self.args.keep_topic && self.world.ledger.tally().violations() == 0 {
            delete_topic(&client, &self.world.topic).await?;
        }
        Ok(kills)
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

    async fn load(&self) -> Result<u64, Failure> {
        self.live.phase_of("confirmed", &self.world.confirmed);
        let Some((kill, start)) = self.args.kill_cmd.as_ref().zip(self.args.start_cmd.as_ref()) else {
            self.pause(Duration::from_millis(self.args.duration)).await;
            return Ok(0);
        };
        let mut random = Random::new(self.seed);
        let round_ms = (self.args.duration / self.args.rounds).max(2);
        for round in 0..self.args.rounds {
            self.pause(Duration::from_millis(round_ms / 2 + random.below(round_ms))).await;
            if self.stop.is_requested() {
                return Ok(round);
            }
            self.kill(kill).await?;
            self.start(start).await?;
        }
        Ok(self.args.rounds)
    }

    async fn pause(&self, span: Duration) {
        tokio::select! {
            () = tokio::time::sleep(span) => {}
            () = self.stop.requested() => {}
        }
    }

    async fn kill(&self, command: &str) -> Result<(), Failure> {
        let killed = tokio::process::Command::new("/bin/sh").args(["-c", command]).status().await;
        match killed {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Failure::new(Exit::Failed, format!("the command that kills the broker ended: {status}"))),
            Err(error) => Err(Failure::new(Exit::Failed, format!("cannot run '{command}': {error}"))),
        }
    }

    async fn start(&self, command: &str) -> Result<(), Failure> {
        let mut tries = START_TRIES;
        loop {
            let mut started = broker_command::start(command)?;
            let watch = Stopwatch::start();
            let (endpoint, topic) = (&self.session.endpoint, &self.world.topic);
            match broker_command::serves(endpoint, topic, &mut started, (&watch, &self.stop)).await {
                Ok(_) => return Ok(()),
                Err(failure) if tries == 1 || self.stop.is_requested() => return Err(failure),
                Err(_) => tries -= 1,
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Waits until no message waits or is worked on, and gives the counts.
    async fn drained(&self) -> Result<pb::TopicStats, Failure> {
        self.live.phase("waiting until the broker has run empty", None);
        let watch = Stopwatch::start();
        let limit = Duration::from_millis(self.args.drain_timeout);
        loop {
            let client = self.session.connect().await?;
            let stats = client.stats(Some(&self.world.topic)).await;
            let mut stats = stats.map_err(|error| Failure::call("read the statistics", &error))?;
            let stats = stats.topics.pop().ok_or_else(|| Failure::new(Exit::Failed, "statistics without the topic"))?;
            let left = stats.scheduled + stats.ready + stats.leased;
            let is_answered = self.world.ledger.all_retries_answered();
            if left == 0 && is_answered || watch.elapsed() > limit {
                self.world.ledger.stuck(left);
                return Ok(stats);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// The orders that are dead letters.
    async fn dead(&self, client: &Client) -> Result<HashSet<u64>, Failure> {
        let (mut dead, mut token) = (HashSet::new(), String::new());
        loop {
            let page = client.dead_letters(&self.world.topic, pb::DeadLetterFilter::default(), 1_000, &token).await;
            let (messages, next) = page.map_err(|error| Failure::call("list the dead letters", &error))?;
            dead.extend(messages.iter().filter_map(|message| message.key.strip_prefix("order-")?.parse::<u64>().ok()));
            let Some(next) = next else { return Ok(dead) };
            token = next;
        }
    }

    /// The keys of messages that are over can be used again.
    async fn use_keys_again(&self, client: &Client) -> Result<(), Failure> {
        let ended = self.world.ledger.ended(KEYS_TRIED);
        let failed = |error| Failure::call("use keys again", &error);
        let again = |&number: &u64| {
            NewMessage::new(Vec::new()).key(producer::key(number)).due(Due::In(Duration::from_hours(1)))
        };
        if ended.is_empty() {
            return Ok(());
        }
        let results = client.produce_all(&self.world.topic, ended.iter().map(again).collect()).await.map_err(failed)?;
        for (number, result) in ended.into_iter().zip(results) {
            if let Err(error) = result {
                self.world.ledger.key_leaked(number, error.message());
                continue;
            }
            let message = MessageRef::key(producer::key(number));
            let answer = client.cancel(&self.world.topic, message, false).await.map_err(failed)?;
            if !matches!(answer, CancelAnswer::Cancelled { .. }) {
                self.world.ledger.unexpected(number, &format!("cancel of a new message: {answer:?}"));
            }
        }
        Ok(())
    }
}
