//! Consuming: so many streams, every frame of deliveries settled by one frame, every message followed by its number.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::link::ConsumeLink;
use super::messages::{WARM_UP, stated};
use super::report::Spread;
use super::run::Bench;
use crate::cli::exit::{Exit, Failure};
use crate::cli::random::mix;
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
    /// What comes before the ack.
    pub(super) nacks: Nacks,
}

/// How messages are nacked before they are acked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nacks {
    /// Not at all.
    Never,
    /// Each counted message once, to come back after a second.
    Once,
    /// Every message so many times, to come back after a random part of the span each time. The lateness of each
    /// delivery counts, against the due time that the broker names.
    Cycle {
        /// Nacks of a message.
        times: u32,
        /// Longest delay, milliseconds.
        span_ms: u64,
    },
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
    recent: Arc<Mutex<Spread>>,
    end: watch::Sender<bool>,
}

impl Consumers {
    /// Opens the streams; all are served when this returns.
    pub(super) async fn start(bench: &Bench, topic: &str, plan: Plan) -> Result<Self, Failure> {
        let acked = Arc::new(AtomicU64::new(0));
        let recent = Arc::new(Mutex::new(Spread::new()));
        let (end, ended) = watch::channel(false);
        let seen: Arc<[AtomicU8]> = (0..plan.count).map(|_| AtomicU8::new(0)).collect();
        let mut tasks = JoinSet::new();
        for _ in 0..plan.consumers {
            let link = ConsumeLink::open(bench.endpoint(), topic, plan.window).await;
            let link = link.map_err(|error| Failure::call(format!("consume '{topic}'"), &error))?;
            let (seen, acked, recent) = (Arc::clone(&seen), Arc::clone(&acked), Arc::clone(&recent));
            let consumer = Consumer { link, plan, seen, acked, recent, asked: VecDeque::new(), tally: Tally::new() };
            tasks.spawn(consumer.run(ended.clone()));
        }
        Ok(Self { tasks, acked, recent, end })
    }

    /// The lateness of what came since the last call; only a plan that nacks in cycles counts it.
    pub(super) fn recent(&self) -> Spread {
        std::mem::replace(&mut self.recent.lock().expect("nothing panics while it holds the spread"), Spread::new())
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
    /// Lateness since the last look at it.
    recent: Arc<Mutex<Spread>>,
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
                Fate::Nack(delay_ms) => nacks.push(nack(delivery.receipt, delay_ms)),
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
        if let Nacks::Cycle { times, span_ms } = self.plan.nacks {
            return self.cycle(number, delivery, now_us, (times, span_ms));
        }
        let counted = usize::try_from(number).ok().and_then(|number| self.seen.get(number));
        let before = counted.map_or(0, |seen| seen.fetch_add(1, Ordering::Relaxed));
        if before == 0 {
            let instant_us = due_ms.saturating_mul(1_000);
            self.tally.late.add(now_us.cast_signed() - instant_us.cast_signed());
            self.tally.last_first_us = now_us;
        }
        match (self.plan.nacks == Nacks::Once, before) {
            (true, 0) => Fate::Nack(NACK_DELAY_MS),
            (true, 1) | (false, 0) => Fate::Finish,
            _ => {
                self.tally.duplicates += 1;
                Fate::Ack
            }
        }
    }

    fn cycle(&mut self, number: u64, delivery: &pb::Delivery, now_us: u64, (times, span_ms): (u32, u64)) -> Fate {
        if let Some(due_at) = delivery.due_at {
            let due_us = due_at.seconds * 1_000_000 + i64::from(due_at.nanos) / 1_000;
            let late_us = now_us.cast_signed() - due_us;
            self.tally.late.add(late_us);
            self.recent.lock().expect("nothing panics while it holds the spread").add(late_us);
        }
        self.tally.last_first_us = now_us;
        if delivery.delivery > times {
            return Fate::Finish;
        }
        Fate::Nack(1 + mix(number ^ u64::from(delivery.delivery) << 40) % span_ms.max(1))
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
    /// Nacked, to come back after so many milliseconds.
    Nack(u64),
}

fn nack(receipt: bytes::Bytes, delay_ms: u64) -> pb::NackItem {
    let delay = Some(span(delay_ms));
    pb::NackItem { receipt, reason: pb::NackReason::NotYet.into(), delay, text: String::new() }
}
