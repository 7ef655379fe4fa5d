//! A consumer: acks, nacks, extends, and now and then forgets a delivery until its lease expires.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use duewheel::pb::queue_service_client::QueueServiceClient;
use duewheel::pb::{
    ConsumeRequest, ConsumeResponse, ConsumeStart, Delivery, ExtendItem, NackItem, NackReason, SettlementResult,
    Settlements, TopicWindow, consume_request, settlement_result,
};
use fastrand::Rng;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;

use crate::{TOPIC, World};

/// Messages that one consumer may hold.
const WINDOW: u32 = 50;

pub(crate) async fn run(world: Arc<World>, seed: u64) {
    let mut random = Rng::with_seed(seed);
    while let Some(channel) = world.connect().await {
        let (frames, outgoing) = mpsc::unbounded_channel();
        let window = TopicWindow { topic: TOPIC.to_owned(), window: WINDOW, lease: None };
        let start = ConsumeStart { consumer: "ledger".to_owned(), topics: vec![window] };
        frames.send(request(consume_request::Frame::Start(start))).expect("the receiver is here");
        let opened = QueueServiceClient::new(channel).consume(UnboundedReceiverStream::new(outgoing)).await;
        if let Ok(stream) = opened {
            Stream { world: &world, random: &mut random, frames, asked: VecDeque::new() }
                .serve(stream.into_inner())
                .await;
        }
    }
}

fn request(frame: consume_request::Frame) -> ConsumeRequest {
    ConsumeRequest { frame: Some(frame) }
}

/// One open stream.
struct Stream<'a> {
    world: &'a World,
    random: &'a mut Rng,
    frames: mpsc::UnboundedSender<ConsumeRequest>,
    /// Order and delivery number of each settlement that was sent and is not answered yet.
    asked: VecDeque<(u64, u32)>,
}

impl Stream<'_> {
    /// Serves until the stream breaks or everything is over.
    async fn serve(mut self, mut incoming: Streaming<ConsumeResponse>) {
        while !self.world.is_over.load(Ordering::Relaxed) {
            let next = tokio::time::timeout(std::time::Duration::from_millis(50), incoming.message()).await;
            let Ok(message) = next else { continue };
            let Ok(Some(response)) = message else { return };
            for results in response.settled {
                results.results.into_iter().for_each(|result| self.answered(result));
            }
            for delivery in response.deliveries {
                self.work(&delivery);
            }
        }
    }

    fn work(&mut self, delivery: &Delivery) {
        let number: u64 = std::str::from_utf8(&delivery.body).expect("digits").parse().expect("an order number");
        assert_eq!(delivery.key, format!("order-{number}"), "a body under the wrong key");
        self.world.ledger.delivered(number, delivery);
        let receipt = delivery.receipt.clone();
        let nack =
            |reason: NackReason| NackItem { receipt: receipt.clone(), reason: reason as i32, ..NackItem::default() };
        let mut settlements = Settlements::default();
        let is_draining = self.world.is_draining.load(Ordering::Relaxed);
        match self.random.u32(0..100) {
            60..=84 if !is_draining => settlements.nacks.push(nack(NackReason::NotYet)),
            85..=92 if !is_draining => settlements.nacks.push(nack(NackReason::Failed)),
            // Forgotten: the lease expires.
            93..=94 if !is_draining => return,
            95..=99 if !is_draining => {
                settlements.acks.push(receipt.clone());
                settlements.extends.push(ExtendItem { receipt, lease: None });
            }
            _ => settlements.acks.push(receipt),
        }
        if !settlements.acks.is_empty() {
            self.world.ledger.ack_asked(number);
        }
        let asked = settlements.acks.len() + settlements.nacks.len() + settlements.extends.len();
        self.asked.extend(std::iter::repeat_n((number, delivery.delivery), asked));
        // A broken stream is seen by the next read.
        let _broken = self.frames.send(request(consume_request::Frame::Settlements(settlements)));
    }

    fn answered(&mut self, result: SettlementResult) {
        let (number, delivery) = self.asked.pop_front().expect("one answer for each settlement");
        let ledger = &self.world.ledger;
        match result.result.expect("a result") {
            settlement_result::Result::Acked(_) => ledger.settled(number, delivery, true, false),
            settlement_result::Result::Nacked(nacked) => ledger.settled(number, delivery, false, nacked.cancelled),
            settlement_result::Result::Extended(_) => {}
            settlement_result::Result::Error(status) => {
                let expected = [tonic::Code::FailedPrecondition, tonic::Code::NotFound, tonic::Code::Unavailable];
                assert!(expected.iter().any(|&code| status.code == code as i32), "order {number}: {status:?}");
                if status.code != tonic::Code::Unavailable as i32 {
                    ledger.lease_lost(number, delivery);
                }
            }
        }
    }
}
