//! A consumer: acks, nacks, extends a lease and keeps the delivery, breaks its stream, and now and then forgets a
//! delivery until its lease expires.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::ledger::{Arrival, Kept, Ledger, Settled};
use super::producer::{body, headers, is_hopeless, key};
use super::tally::{Operation, Result as Answer, Violation};
use super::world::{EXTENDED_MS, KEPT_MS, World};
use crate::cli::random::Random;
use crate::client::{Error, span};
use crate::pb;
use crate::pb::queue_service_client::QueueServiceClient;

/// Messages that one consumer may hold.
const WINDOW: u32 = 50;
/// Frames that may wait to be sent. There is at most one for each message that is held, so it is never reached unless
/// leases expire while the connection stands still.
const FRAMES_WAITING: usize = 4 * WINDOW as usize;
/// Deliveries without a settlement, those included that were forgotten, before they are looked through.
const MAX_OPEN: usize = 1_000;
/// Deliveries whose leases were extended and that one consumer keeps at once.
const MAX_KEPT: usize = 8;
/// Between two looks at how far the run is.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Consumes until the run is over.
pub(super) async fn run(world: Arc<World>, seed: u64) {
    let mut random = Random::new(seed);
    while let Some(channel) = world.connect().await {
        let (frames, outgoing) = mpsc::channel(FRAMES_WAITING);
        let window = pb::TopicWindow { topic: world.topic.clone(), window: WINDOW, lease: None };
        let start = pb::ConsumeStart { consumer: "verify".to_owned(), topics: vec![window] };
        send(&frames, pb::consume_request::Frame::Start(start)).await;
        let opened = QueueServiceClient::new(channel).consume(ReceiverStream::new(outgoing)).await;
        match opened {
            Ok(stream) => {
                let mut consumer = Stream {
                    world: &world,
                    random: &mut random,
                    frames,
                    asked: VecDeque::new(),
                    open: HashSet::new(),
                    keeping: VecDeque::new(),
                };
                consumer.serve(stream.into_inner()).await;
                consumer.broke();
            }
            Err(status) => {
                refused(&world, status);
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }
}

/// A stream was not opened or has ended, which is right only while the broker is away.
fn refused(world: &World, status: tonic::Status) {
    let error = Error::from(status);
    if !error.is_temporary() {
        world.ledger.refusal(0, "consume", &error);
    }
}

async fn send(frames: &mpsc::Sender<pb::ConsumeRequest>, frame: pb::consume_request::Frame) {
    // A broken stream is seen by the next read.
    let _broken = frames.send(pb::ConsumeRequest { frame: Some(frame) }).await;
}

/// A settlement without an answer.
struct Asked {
    operation: Operation,
    number: u64,
    delivery: u32,
    at_us: u64,
    /// The least wait if it is a nack, microseconds.
    wait_us: u64,
    /// What was seen meanwhile of a delivery that was kept.
    kept: Option<Kept>,
}

/// A delivery whose lease was extended, to be acked later.
struct Keeping {
    number: u64,
    delivery: u32,
    receipt: Bytes,
    /// When it is acked, microseconds.
    until_us: u64,
}

/// One open stream.
struct Stream<'a> {
    world: &'a World,
    random: &'a mut Random,
    frames: mpsc::Sender<pb::ConsumeRequest>,
    asked: VecDeque<Asked>,
    /// Deliveries whose settlement was not answered.
    open: HashSet<(u64, u32)>,
    /// In the order in which they are acked.
    keeping: VecDeque<Keeping>,
}

impl Stream<'_> {
    fn ledger(&self) -> &Ledger {
        &self.world.ledger
    }

    /// Serves until the stream breaks or everything is over.
    async fn serve(&mut self, mut incoming: Streaming<pb::ConsumeResponse>) {
        while !self.world.is_over() {
            self.settle_kept().await;
            let next = tokio::time::timeout(LOOK_EVERY, incoming.message()).await;
            let Ok(message) = next else { continue };
            let response = match message {
                Ok(Some(response)) => response,
                Ok(None) => return,
                Err(status) => return refused(self.world, status),
            };
            for results in response.settled {
                results.results.into_iter().for_each(|result| self.answered(result));
            }
            for delivery in response.deliveries {
                self.work(&delivery).await;
            }
            // A consumer that goes away in the middle gives its leases back.
            if !self.world.is_draining() && self.random.below(5_000) == 0 {
                return;
            }
        }
    }

    /// The stream is over: what was not answered may or may not have been done, and may come again.
    fn broke(self) {
        for Asked { operation, .. } in &self.asked {
            self.ledger().answered(*operation, Answer::Unknown, 1);
        }
        for Keeping { number, delivery, .. } in &self.keeping {
            self.ledger().let_go(*number, *delivery);
        }
        self.ledger().note_in_flight(self.open.iter().copied());
    }

    async fn work(&mut self, delivery: &pb::Delivery) {
        let number = delivery.key.strip_prefix("order-").and_then(|number| number.parse().ok()).unwrap_or(0);
        if delivery.key != key(number) || delivery.body != body(number) || delivery.headers != headers(number) {
            let text = format!("delivered as '{}' with a body of {} bytes", delivery.key, delivery.body.len());
            self.ledger().violation(Violation::WrongContent, number, &text);
        }
        if !self.ledger().delivered(number, Arrival::of(delivery)) {
            return;
        }
        self.open.insert((number, delivery.delivery));
        if self.open.len() > MAX_OPEN {
            self.world.ledger.keep_in_flight(&mut self.open);
        }
        if let Some(settlements) = self.settlements(number, delivery) {
            send(&self.frames, pb::consume_request::Frame::Settlements(settlements)).await;
        }
    }

    /// What becomes of a delivery; `None`: it is forgotten, and its lease expires.
    fn settlements(&mut self, number: u64, delivery: &pb::Delivery) -> Option<pb::Settlements> {
        let receipt = delivery.receipt.clone();
        let choice = if self.world.is_draining() {
            0
        } else if is_hopeless(number) {
            60
        } else if self.keeping.is_empty() {
            // Not left to chance: a slow broker may deliver little.
            95
        } else {
            self.random.below(100)
        };
        let mut settlements = pb::Settlements::default();
        let ask = |stream: &mut Self, operation, at_us, wait_us| {
            stream.asked.push_back(Asked {
                operation,
                number,
                delivery: delivery.delivery,
                at_us,
                wait_us,
                kept: None,
            });
        };
        match choice {
            60..=92 => {
                let at_us = self.ledger().nack_asked(number, delivery.delivery);
                let (reason, wait_us) = if choice < 85 {
                    (pb::NackReason::NotYet, self.world.tier_us(delivery.attempt))
                } else {
                    (pb::NackReason::Failed, self.world.error_wait_us())
                };
                settlements.nacks.push(pb::NackItem { receipt, reason: reason.into(), ..pb::NackItem::default() });
                ask(self, Operation::Nack, at_us, wait_us);
            }
            93..=94 => return None,
            95..=96 if self.keeping.len() < MAX_KEPT => {
                let at_us = self.ledger().extend_asked(number, delivery.delivery);
                let until_us = at_us + KEPT_MS * 1_000;
                self.keeping.push_back(Keeping {
                    number,
                    delivery: delivery.delivery,
                    receipt: receipt.clone(),
                    until_us,
                });
                settlements.extends.push(pb::ExtendItem { receipt, lease: Some(span(EXTENDED_MS)) });
                ask(self, Operation::Extend, at_us, 0);
            }
            _ => {
                let at_us = self.ledger().ack_asked(number, delivery.delivery);
                settlements.acks.push(receipt.clone());
                ask(self, Operation::Ack, at_us, 0);
                if choice >= 97 {
                    // Too late: the ack before it has ended the lease.
                    settlements.extends.push(pb::ExtendItem { receipt, lease: None });
                    ask(self, Operation::LateExtend, at_us, 0);
                }
            }
        }
        Some(settlements)
    }

    /// Acks what was kept long enough.
    async fn settle_kept(&mut self) {
        let now_us = self.ledger().now_us();
        while let Some(keeping) = self.keeping.pop_front_if(|keeping| keeping.until_us <= now_us) {
            let Keeping { number, delivery, receipt, .. } = keeping;
            let kept = self.ledger().let_go(number, delivery);
            let at_us = self.ledger().ack_asked(number, delivery);
            self.asked.push_back(Asked { operation: Operation::Ack, number, delivery, at_us, wait_us: 0, kept });
            let settlements = pb::Settlements { acks: vec![receipt], ..pb::Settlements::default() };
            send(&self.frames, pb::consume_request::Frame::Settlements(settlements)).await;
        }
    }

    fn answered(&mut self, result: pb::SettlementResult) {
        let Some(asked) = self.asked.pop_front() else {
            return self.ledger().unexpected(0, "an answer to a settlement that nobody asked for");
        };
        let Asked { operation, number, delivery, at_us, wait_us, kept } = asked;
        let settled = match result.result {
            Some(pb::settlement_result::Result::Acked(_)) => Some(Settled::Acked),
            Some(pb::settlement_result::Result::Nacked(nacked)) if nacked.dead => Some(Settled::Dead),
            Some(pb::settlement_result::Result::Nacked(nacked)) if nacked.cancelled => Some(Settled::Cancelled),
            Some(pb::settlement_result::Result::Nacked(_)) => Some(Settled::Waits(wait_us)),
            Some(pb::settlement_result::Result::Extended(_)) if operation == Operation::Extend => {
                self.ledger().extended(number, delivery, at_us);
                None
            }
            Some(pb::settlement_result::Result::Extended(_)) => {
                self.ledger().unexpected(number, "a lease was extended after the ack before it had ended it");
                None
            }
            Some(pb::settlement_result::Result::Error(status)) => {
                return self.refused(&asked, &status);
            }
            None => return self.ledger().unexpected(number, "an empty answer to a settlement"),
        };
        self.ledger().answered(operation, Answer::Ok, 1);
        if let Some(settled) = settled {
            self.open.remove(&(number, delivery));
            self.ledger().settled(number, delivery, at_us, settled);
        }
        if let Some(kept) = kept {
            self.ledger().kept_settled(number, kept, false);
        }
    }

    fn refused(&mut self, asked: &Asked, status: &tonic_types::pb::Status) {
        let is = |code: tonic::Code| status.code == code as i32;
        let &Asked { operation, number, delivery, .. } = asked;
        // The lease had ended before, or the message.
        let is_refused = is(tonic::Code::FailedPrecondition) || is(tonic::Code::NotFound);
        self.ledger().answered(operation, if is_refused { Answer::Failed } else { Answer::Unknown }, 1);
        if is_refused {
            self.open.remove(&(number, delivery));
            if operation == Operation::Ack {
                self.ledger().not_acked(number);
            }
            if operation == Operation::Extend {
                // There is no lease to keep.
                self.keeping.retain(|keeping| (keeping.number, keeping.delivery) != (number, delivery));
                self.ledger().let_go(number, delivery);
            }
            if let Some(kept) = asked.kept {
                self.ledger().kept_settled(number, kept, true);
            }
        } else if !is(tonic::Code::Unavailable) {
            self.ledger().unexpected(number, &format!("{operation:?}: {status:?}"));
        }
    }
}
