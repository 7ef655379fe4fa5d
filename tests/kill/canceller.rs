//! A canceller: orders are paid now and then, at any age of their message.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use duewheel::pb::queue_service_client::QueueServiceClient;
use duewheel::pb::{CancelRequest, CancelStatus, MessageRef, message_ref};
use fastrand::Rng;

use crate::{TOPIC, World};

pub(crate) async fn run(world: Arc<World>, seed: u64) {
    let mut random = Rng::with_seed(seed);
    while let Some(channel) = world.connect().await {
        let mut client = QueueServiceClient::new(channel);
        while !world.is_draining.load(Ordering::Relaxed) {
            let Some(number) = world.ledger.some_confirmed(&mut random) else {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            };
            world.ledger.cancel_asked(number);
            let request = CancelRequest {
                topic: TOPIC.to_owned(),
                message: Some(MessageRef { r#ref: Some(message_ref::Ref::Key(format!("order-{number}"))) }),
                when_lease_ends: random.bool(),
            };
            let Ok(response) = client.cancel(request).await else { break };
            match response.into_inner().status() {
                CancelStatus::Cancelled => world.ledger.cancelled(number),
                CancelStatus::NotFound => world.ledger.not_found(number),
                CancelStatus::InFlight | CancelStatus::AlreadyDone => {}
                CancelStatus::Unspecified => panic!("a cancel has a definite answer"),
            }
        }
        if world.is_draining.load(Ordering::Relaxed) {
            return;
        }
    }
}
