//! Consuming: so many streams, every frame of deliveries settled by one frame, every message followed by its number.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::link::ConsumeLink;
use super::messages::{WARM_UP, stated};
use super::report::Spread;
use super::run::Bench;
use crate::cli::exit::{Exit, Failure};
use crate::client::{Error, span};
use crate::clock::wall_now_us;
use crate::pb;
use crate::queue::limits::MAX_BATCH;

/// How long consumers may take to end.
const END_LIMIT: Duration = Duration::from_secs(3);
/// A message that is nacked once comes back after this many milliseconds.
const NACK_DELAY_MS: u64 = 1_000;

/// What to do with deliveries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Streams.
    pub(super) consumers: u32,
    /// Messages that a stream holds at most.
    pub(super) window: u32,
    /// Messages whose deliveries are counted one by one, from number 0; others are acked and counted.
    pub(super) count: u64,
    /// Each counted message is nacked once before it is acked.
    pub(super) nack_first: bool,
}

/// What the consumers have seen.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    /// Receive time minus due time of first deliveries.
    pub(super) late: Spread,
    /// Messages whose ack is answered.
    pub(super) acked: u64,
    /// Deliveries beyond those that the plan asks for.
    pub(super) duplicates: u64,
    /// Settlements that the broker refused.
    pub(super) refused: u64,
    /// When the last first delivery came, microseconds since 1970.
    pub(super) last_first_us: u64,
    /// When the last ack was answered, microseconds since 1970.
    pub(super) done_us: u64,
}

impl Tally {
    fn new() -> Self {
        Self { late: Spread::new(), acked: 0, duplicates: 0, refused: 0, last_first_us: 0, done_us: 0 }
    }

    fn merge(&mut self, other: &Self) {
        self.late.merge(&other.late);
        self.acked += other.acked;
        self.duplicates += other.duplicates;
        self.refused += other.refused;
        self.last_first_us = self.last_first_us.max(other.last_first_us);
        self.done_us = self.done_us.max(other.done_us);
    }
}

/// Running consumers of a topic.
pub(super) struct Consumers {
    tasks: JoinSet<(Tally, Result<(), Error>)>,
    acked: Arc<AtomicU64>,
    end: watch::Sender<bool>,
}

impl Consumers {
    /// Opens the streams; all are served when this returns.
    pub(super) async fn start(bench: &Bench, topic: &str, plan: Plan) -> Result<Self, Failure> {
        let acked = Arc::new(AtomicU64::new(0));
        let (end, ended) = watch::channel(false);
        let seen: Arc<[AtomicU8]> = (0..plan.count).map(|_| AtomicU8::new(0)).collect();
        let mut tasks = JoinSet::new();
        for _ in 0..plan.consumers {
            let link = ConsumeLink::open(bench.endpoint(), topic, plan.window).await;
            let link = link.map_err(|error| Failure::call(format!("consume '{topic}'"), &error))?;
            let (seen, acked) = (Arc::clone(&seen), Arc::clone(&acked));
            let consumer = Consumer { link, plan, seen, acked, asked: VecDeque::new(), tally: Tally::new() };
            tasks.spawn(consumer.run(ended.clone()));
        }
        Ok(Self { tasks, acked, end })
    }

    /// Counts messages whose ack is answered.
    pub(super) fn acked(&self) -> &Arc<AtomicU64> {
        &self.acked
    }

    /// Waits until `count` are acked, `limit` is over, a signal asks to stop, or a stream broke; then ends them.
    pub(super) async fn finish(self, bench: &Bench, count: u64, limit: Duration) -> Result<Tally, Failure> {
        let streams = self.tasks.len();
        let mut tasks = self.tasks;
        let mut broken = false;
        let mut total = Tally::new();
        let mut take = |(tally, ended): (Tally, Result<(), Error>)| {
            total.merge(&tally);
            ended.map_err(|error| Failure::call("consume", &error))
        };
        let mut result = Ok(());
        bench
            .wait_until(limit, || {
                if let Some(Ok(ended)) = tasks.try_join_next() {
                    broken = true;
                    result = take(ended);
                }
                broken || self.acked.load(Ordering::Relaxed) >= count
            })
            .await;
        result?;
        // A stream that ended by itself does not look at this any more.
        let _ = self.end.send(true);
        let gather = async {
            while let Some(ended) = tasks.join_next().await {
                let ended = ended.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
                take(ended)?;
            }
            Ok::<(), Failure>(())
        };
        match tokio::time::timeout(END_LIMIT, gather).await {
            Ok(gathered) => gathered?,
            Err(_) => return Err(Failure::new(Exit::Failed, format!("{streams} consumers did not end in time"))),
        }
        Ok(total)
    }
}

struct Consumer {
    link: ConsumeLink,
    plan: Plan,
    /// How often each message was delivered.
    seen: Arc<[AtomicU8]>,
    acked: Arc<AtomicU64>,
    /// Settlement frames without an answer: how many of their first settlements finish a message.
    asked: VecDeque<usize>,
    tally: Tally,
}

impl Consumer {
    async fn run(mut self, mut end: watch::Receiver<bool>) -> (Tally, Result<(), Error>) {
        let ended = loop {
            tokio::select! {
                // The sender lives as long as the consumers are wanted.
                _ = end.changed() => break Ok(()),
                frame = self.link.receive() => {
                    let settled = frame.and_then(|frame| self.take(frame));
                    if settled.is_err() {
                        break settled;
                    }
                }
            }
        };
        (self.tally, ended)
    }

    fn take(&mut self, frame: pb::ConsumeResponse) -> Result<(), Error> {
        let now_us = wall_now_us();
        for settled in frame.settled {
            self.answered(&settled.results, now_us);
        }
        // Acks that finish a message come first, so that their answers can be told by their number.
        let (mut finishing, mut others, mut nacks) = (Vec::new(), Vec::new(), Vec::new());
        for delivery in frame.deliveries {
            match self.fate(&delivery, now_us) {
                Fate::Finish => finishing.push(delivery.receipt),
                Fate::Ack => others.push(delivery.receipt),
                Fate::Nack => nacks.push(nack(delivery.receipt)),
            }
        }
        let mut finishing_left = finishing.len();
        finishing.append(&mut others);
        for acks in finishing.chunks(MAX_BATCH) {
            let finished = finishing_left.min(acks.len());
            finishing_left -= finished;
            self.settle(finished, pb::Settlements { acks: acks.to_vec(), ..pb::Settlements::default() })?;
        }
        for nacks in nacks.chunks(MAX_BATCH) {
            self.settle(0, pb::Settlements { nacks: nacks.to_vec(), ..pb::Settlements::default() })?;
        }
        Ok(())
    }

    fn fate(&mut self, delivery: &pb::Delivery, now_us: u64) -> Fate {
        let Some((number, due_ms)) = stated(&delivery.body) else { return Fate::Ack };
        if number >= WARM_UP {
            return Fate::Ack;
        }
        let counted = usize::try_from(number).ok().and_then(|number| self.seen.get(number));
        let before = counted.map_or(0, |seen| seen.fetch_add(1, Ordering::Relaxed));
        if before == 0 {
            let instant_us = due_ms.saturating_mul(1_000);
            self.tally.late.add(now_us.cast_signed() - instant_us.cast_signed());
            self.tally.last_first_us = now_us;
        }
        match (self.plan.nack_first, before) {
            (true, 0) => Fate::Nack,
            (true, 1) | (false, 0) => Fate::Finish,
            _ => {
                self.tally.duplicates += 1;
                Fate::Ack
            }
        }
    }

    fn settle(&mut self, finishing: usize, settlements: pb::Settlements) -> Result<(), Error> {
        self.asked.push_back(finishing);
        self.link.settle(settlements)
    }

    fn answered(&mut self, results: &[pb::SettlementResult], now_us: u64) {
        let finishing = self.asked.pop_front().unwrap_or(0);
        let is_refused = |result: &&pb::SettlementResult| {
            matches!(result.result, None | Some(pb::settlement_result::Result::Error(_)))
        };
        self.tally.refused += results.iter().filter(is_refused).count() as u64;
        let lost = results.iter().take(finishing).filter(is_refused).count();
        let finished = (finishing - lost) as u64;
        if finished > 0 {
            self.tally.acked += finished;
            self.tally.done_us = now_us;
            self.acked.fetch_add(finished, Ordering::Relaxed);
        }
    }
}

/// What becomes of a delivery.
enum Fate {
    /// Acked, and that was the last of the message.
    Finish,
    /// Acked, and not counted.
    Ack,
    /// Nacked.
    Nack,
}

fn nack(receipt: bytes::Bytes) -> pb::NackItem {
    let delay = Some(span(NACK_DELAY_MS));
    pb::NackItem { receipt, reason: pb::NackReason::NotYet.into(), delay, text: String::new() }
}
