//! Producing: so many connections, each with so many messages in flight, until all are confirmed or time is up.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use tokio::task::JoinSet;
use tonic_types::pb as rpc;

use super::link::ProduceLink;
use super::messages::{Due, messages};
use super::report::Spread;
use super::run::Bench;
use crate::cli::exit::{Exit, Failure};
use crate::client::Error;
use crate::clock::Stopwatch;
use crate::pb;
use crate::queue::limits::MAX_BATCH;

/// How to produce.
#[derive(Clone, Debug, Args)]
pub(super) struct LoadArgs {
    /// Connections that produce
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(super) conns: u32,
    /// Messages in flight on each connection; 1: one confirmed at a time
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=50_000))]
    pub(super) batch: u64,
    /// Messages of a frame [default: all that are in flight, at most 1,000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub(super) frame: Option<u64>,
    /// Make a call for each frame instead of using a stream
    #[arg(long)]
    pub(super) unary: bool,
}

/// One load.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// How to produce.
    pub(super) args: LoadArgs,
    /// Where to.
    pub(super) topic: String,
    /// Number of the first message.
    pub(super) first: u64,
    /// How many messages.
    pub(super) count: u64,
    /// When they are due.
    pub(super) due: Due,
    /// Each has a business key of its own.
    pub(super) keyed: bool,
    /// Nothing is sent after this time; what was sent is waited for.
    pub(super) limit: Duration,
    /// Nothing is sent once it is set.
    pub(super) halt: Arc<AtomicBool>,
    /// Counts messages that need not be waited for any more, and how many the load may be ahead of them.
    pub(super) ahead: Option<(Arc<AtomicU64>, u64)>,
}

/// What a load has done.
#[derive(Debug)]
pub(super) struct Loaded {
    /// Messages that are stored.
    pub(super) sent: u64,
    /// Messages that the broker refused.
    pub(super) refused: u64,
    /// From the first frame to the last answer.
    pub(super) took: Duration,
    /// From a frame to its answer.
    pub(super) confirm: Spread,
}

impl Load {
    /// A load of `count` messages from number 0 within `limit`.
    pub(super) fn new(args: &LoadArgs, topic: &str, count: u64, due: Due, limit: Duration) -> Self {
        let topic = topic.to_owned();
        let halt = Arc::new(AtomicBool::new(false));
        Self { args: args.clone(), topic, first: 0, count, due, keyed: false, limit, halt, ahead: None }
    }

    /// Runs the load; `done` counts what is confirmed.
    pub(super) async fn run(&self, bench: &Bench, done: &Arc<AtomicU64>) -> Result<Loaded, Failure> {
        let failed = |error: Error| Failure::call(format!("produce to '{}'", self.topic), &error);
        let mut links = Vec::new();
        for _ in 0..self.args.conns {
            links.push(ProduceLink::open(bench.endpoint(), &self.topic, self.args.unary).await.map_err(failed)?);
        }
        let next = Arc::new(AtomicU64::new(0));
        let watch = Stopwatch::start();
        let mut senders = JoinSet::new();
        for link in links {
            let sender = Sender {
                load: self.clone(),
                link,
                next: Arc::clone(&next),
                done: Arc::clone(done),
                stop: bench.stop().clone(),
                watch,
                frame: self.args.frame.unwrap_or(self.args.batch).min(self.args.batch).min(MAX_BATCH as u64),
                waiting: VecDeque::new(),
                in_flight: 0,
                loaded: Loaded { sent: 0, refused: 0, took: Duration::ZERO, confirm: Spread::new() },
                refusal: None,
            };
            senders.spawn(sender.run());
        }
        let mut total = Loaded { sent: 0, refused: 0, took: Duration::ZERO, confirm: Spread::new() };
        let mut refusal = None;
        while let Some(ended) = senders.join_next().await {
            let (loaded, refused) =
                ended.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?.map_err(failed)?;
            total.sent += loaded.sent;
            total.refused += loaded.refused;
            total.confirm.merge(&loaded.confirm);
            refusal = refusal.or(refused);
        }
        total.took = watch.elapsed();
        match refusal {
            Some(status) if total.sent == 0 => Err(failed(status.into())),
            _ => Ok(total),
        }
    }
}

/// One connection of a load.
struct Sender {
    load: Load,
    link: ProduceLink,
    /// Number of the next message that no connection has taken.
    next: Arc<AtomicU64>,
    done: Arc<AtomicU64>,
    stop: crate::cli::signals::Stop,
    watch: Stopwatch,
    frame: u64,
    /// Frames without an answer: how many messages, and since when.
    waiting: VecDeque<(u64, Stopwatch)>,
    in_flight: u64,
    loaded: Loaded,
    refusal: Option<rpc::Status>,
}

impl Sender {
    async fn run(mut self) -> Result<(Loaded, Option<rpc::Status>), Error> {
        loop {
            while self.has_room() && self.may_send() {
                let Some((first, count)) = self.take() else { break };
                let sent = Stopwatch::start();
                self.link.send(messages(first, count, self.load.due, self.load.keyed)).await?;
                self.waiting.push_back((count, sent));
                self.in_flight += count;
            }
            if !self.waiting.is_empty() {
                self.answered().await?;
            } else if self.may_send() && self.next.load(Ordering::Relaxed) < self.load.count {
                // Too far ahead of the consumers.
                tokio::time::sleep(Duration::from_millis(1)).await;
            } else {
                return Ok((self.loaded, self.refusal));
            }
        }
    }

    fn has_room(&self) -> bool {
        self.waiting.len() < self.link.max_frames() && self.in_flight + self.frame <= self.load.args.batch
    }

    fn may_send(&self) -> bool {
        self.watch.elapsed() < self.load.limit && !self.load.halt.load(Ordering::Relaxed) && !self.stop.is_requested()
    }

    /// Takes the numbers of a frame: the first and how many. `None`: all are taken, or the load is too far ahead.
    fn take(&self) -> Option<(u64, u64)> {
        if let Some((settled, max)) = &self.load.ahead
            && self.next.load(Ordering::Relaxed) >= settled.load(Ordering::Relaxed) + max
        {
            return None;
        }
        let from = self.next.fetch_add(self.frame, Ordering::Relaxed);
        let count = self.load.count.saturating_sub(from).min(self.frame);
        (count > 0).then_some((self.load.first + from, count))
    }

    async fn answered(&mut self) -> Result<(), Error> {
        let results = self.link.answer().await?;
        let (count, sent) = self.waiting.pop_front().expect("an answer is waited for only after a frame");
        self.loaded.confirm.add_since(&sent);
        self.in_flight -= count;
        let mut stored = 0;
        for result in results {
            match result.result {
                Some(pb::produce_result::Result::Produced(_)) => stored += 1,
                Some(pb::produce_result::Result::Error(status)) => {
                    self.loaded.refused += 1;
                    self.refusal.get_or_insert(status);
                }
                None => self.loaded.refused += 1,
            }
        }
        self.loaded.sent += stored;
        self.done.fetch_add(stored, Ordering::Relaxed);
        Ok(())
    }
}
