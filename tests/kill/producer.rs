//! A producer: small batches, some of them idempotent and repeated until they are answered.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use duewheel::pb::queue_service_client::QueueServiceClient;
use duewheel::pb::{NewMessage, ProduceRequest, new_message, produce_result};
use fastrand::Rng;
use tonic::transport::Channel;

use crate::{TOPIC, World};

pub(crate) async fn run(world: Arc<World>, seed: u64) {
    let mut random = Rng::with_seed(seed);
    // Idempotent orders whose produce was not answered yet.
    let mut unanswered: Vec<u64> = Vec::new();
    while let Some(channel) = world.connect().await {
        let mut client = QueueServiceClient::new(channel);
        loop {
            let is_draining = world.is_draining.load(Ordering::Relaxed);
            if is_draining && unanswered.is_empty() {
                return;
            }
            let is_retried = random.bool();
            let mut orders = std::mem::take(&mut unanswered);
            if orders.is_empty() {
                orders = (0..random.usize(1..=20)).map(|_| world.ledger.open_order(is_retried)).collect();
            }
            if produce(&world, &mut client, &orders, &mut unanswered).await.is_err() {
                break;
            }
        }
    }
}

/// Produces one message per order; those that must be repeated go to `unanswered`.
async fn produce(
    world: &World,
    client: &mut QueueServiceClient<Channel>,
    orders: &[u64],
    unanswered: &mut Vec<u64>,
) -> Result<(), ()> {
    let messages = orders.iter().map(|&number| message(world, number)).collect();
    let request = ProduceRequest { topic: TOPIC.to_owned(), messages };
    let repeat = |unanswered: &mut Vec<u64>, number: u64| {
        if world.ledger.is_retried(number) {
            unanswered.push(number);
        }
    };
    let Ok(response) = client.produce(request).await else {
        for &number in orders {
            repeat(unanswered, number);
        }
        return Err(());
    };
    let results = response.into_inner().results;
    assert_eq!(results.len(), orders.len(), "one result for each message");
    for (&number, result) in orders.iter().zip(results) {
        match result.result.expect("a result") {
            produce_result::Result::Produced(produced) => {
                let due_at = produced.due_at.expect("a resolved due time");
                world.ledger.produced(number, due_at.seconds.unsigned_abs() * 1_000);
            }
            // Only a broker that is going down refuses these.
            produce_result::Result::Error(status) => {
                assert_eq!(status.code, tonic::Code::Unavailable as i32, "order {number}: {status:?}");
                repeat(unanswered, number);
            }
        }
    }
    Ok(())
}

/// Every fourth order is not due before the end of the test.
pub(crate) fn is_far(number: u64) -> bool {
    number.is_multiple_of(4)
}

/// The same order always makes the same message, as an idempotent produce needs.
fn message(world: &World, number: u64) -> NewMessage {
    let delay_ms = number * 7_919 % 800;
    let nanos = i32::try_from(delay_ms).expect("below 800") * 1_000_000;
    // Some wait so long that they leave memory; they are cancelled or made due by their key.
    let delay = prost_types::Duration { seconds: if is_far(number) { 3_600 } else { 0 }, nanos };
    NewMessage {
        key: format!("order-{number}"),
        body: number.to_string().into(),
        first_wait: Some(new_message::FirstWait::Delay(delay)),
        dedup_id: if world.ledger.is_retried(number) { format!("produce-{number}") } else { String::new() },
        ..NewMessage::default()
    }
}
