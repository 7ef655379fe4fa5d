//! A canceller: orders are paid, or wanted at once, at any age of their message.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use duewheel::pb::queue_service_client::QueueServiceClient;
use duewheel::pb::{
    CancelRequest, CancelStatus, MessageRef, RescheduleRequest, RescheduleStatus, message_ref, reschedule_request,
};
use fastrand::Rng;
use tonic::transport::Channel;

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
            let asked = if random.bool() {
                cancel(&world, &mut client, number, random.bool()).await
            } else {
                make_due(&world, &mut client, number).await
            };
            if asked.is_err() {
                break;
            }
        }
        if world.is_draining.load(Ordering::Relaxed) && make_all_due(&world, &mut client).await.is_ok() {
            return;
        }
    }
}

/// What is still far away is wanted now, so that the broker can run empty.
async fn make_all_due(world: &World, client: &mut QueueServiceClient<Channel>) -> Result<(), tonic::Status> {
    while !world.ledger.all_retries_answered() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for number in world.ledger.unended() {
        make_due(world, client, number).await?;
    }
    // An order whose produce was never answered may be there all the same.
    for number in world.ledger.unconfirmed() {
        make_due(world, client, number).await?;
    }
    Ok(())
}

fn by_key(number: u64) -> MessageRef {
    MessageRef { r#ref: Some(message_ref::Ref::Key(format!("order-{number}"))) }
}

async fn cancel(
    world: &World,
    client: &mut QueueServiceClient<Channel>,
    number: u64,
    when_lease_ends: bool,
) -> Result<(), tonic::Status> {
    world.ledger.cancel_asked(number);
    let request = CancelRequest { topic: TOPIC.to_owned(), message: Some(by_key(number)), when_lease_ends };
    match client.cancel(request).await?.into_inner().status() {
        CancelStatus::Cancelled => world.ledger.cancelled(number),
        CancelStatus::NotFound => world.ledger.not_found(number),
        CancelStatus::InFlight if when_lease_ends => {}
        CancelStatus::InFlight | CancelStatus::AlreadyDone => world.ledger.not_cancelled(number),
        CancelStatus::Unspecified => panic!("a cancel has a definite answer"),
    }
    Ok(())
}

async fn make_due(world: &World, client: &mut QueueServiceClient<Channel>, number: u64) -> Result<(), tonic::Status> {
    let due = Some(reschedule_request::Due::Delay(prost_types::Duration::default()));
    let request = RescheduleRequest { topic: TOPIC.to_owned(), message: Some(by_key(number)), due };
    match client.reschedule(request).await?.into_inner().status() {
        RescheduleStatus::NotFound => world.ledger.not_found(number),
        RescheduleStatus::Rescheduled | RescheduleStatus::InFlight | RescheduleStatus::AlreadyDone => {}
        RescheduleStatus::Unspecified => panic!("a reschedule has a definite answer"),
    }
    Ok(())
}
