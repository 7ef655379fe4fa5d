//! A canceller: orders are paid, or wanted at once, at any age of their message.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tonic::Status;
use tonic::transport::Channel;

use super::producer::key;
use super::tally::{Operation, Result as Answer};
use super::world::World;
use crate::cli::random::Random;
use crate::client::{Error, Outcome};
use crate::pb;
use crate::pb::queue_service_client::QueueServiceClient;

/// Between two looks for an order, while there is none.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Between two passes over all orders that may be live.
const PASS_AGAIN: Duration = Duration::from_millis(200);
/// Orders that are made due at once in the end.
const AT_ONCE: usize = 64;

/// Cancels and reschedules until the world drains, and then makes everything due that may be far away.
pub(super) async fn run(world: Arc<World>, seed: u64, pause: Duration) {
    let mut random = Random::new(seed);
    while let Some(channel) = world.connect().await {
        let mut client = QueueServiceClient::new(channel);
        while !world.is_draining() {
            let Some(number) = world.ledger.some_confirmed(|newest| random.below(newest)) else {
                tokio::time::sleep(LOOK_AGAIN).await;
                continue;
            };
            let asked = if random.percent(50) {
                let when_lease_ends = random.percent(50);
                cancel(&world, &mut client, number, when_lease_ends).await
            } else {
                make_due(&world, &mut client, number).await
            };
            if asked.is_err() {
                break;
            }
            tokio::time::sleep(pause).await;
        }
        if world.is_draining() && make_all_due(&world, &client).await.is_ok() {
            return;
        }
    }
}

/// Makes everything due, again and again until the run is over: what was refused for a time, or stored late.
async fn make_all_due(world: &Arc<World>, client: &QueueServiceClient<Channel>) -> Result<(), Status> {
    while !world.is_over() {
        let numbers = if world.are_producers_done() { world.ledger.maybe_live() } else { Vec::new() };
        for numbers in numbers.chunks(AT_ONCE) {
            let mut asked = JoinSet::new();
            for &number in numbers {
                let (world, mut client) = (Arc::clone(world), client.clone());
                asked.spawn(async move { make_due(&world, &mut client, number).await });
            }
            while let Some(answered) = asked.join_next().await {
                // A panic is this program's own fault, and ends the run as such.
                answered.expect("a reschedule does not panic")?;
            }
            if world.is_over() {
                break;
            }
        }
        tokio::time::sleep(PASS_AGAIN).await;
    }
    Ok(())
}

fn by_key(number: u64) -> pb::MessageRef {
    pb::MessageRef { r#ref: Some(pb::message_ref::Ref::Key(key(number))) }
}

async fn cancel(
    world: &World,
    client: &mut QueueServiceClient<Channel>,
    number: u64,
    when_lease_ends: bool,
) -> Result<(), Status> {
    world.ledger.cancel_asked(number);
    let request = pb::CancelRequest { topic: world.topic.clone(), message: Some(by_key(number)), when_lease_ends };
    let answer = client.cancel(request).await;
    let Some(status) = taken(world, Operation::Cancel, number, answer)?.map(|response| response.status()) else {
        world.ledger.not_cancelled(number);
        return Ok(());
    };
    match status {
        pb::CancelStatus::Cancelled => world.ledger.cancelled(number),
        pb::CancelStatus::NotFound => {
            world.ledger.not_cancelled(number);
            world.ledger.not_found(number);
        }
        pb::CancelStatus::InFlight if when_lease_ends => {}
        pb::CancelStatus::InFlight | pb::CancelStatus::AlreadyDone => world.ledger.not_cancelled(number),
        pb::CancelStatus::Unspecified => world.ledger.unexpected(number, "a cancel without a definite answer"),
    }
    Ok(())
}

async fn make_due(world: &World, client: &mut QueueServiceClient<Channel>, number: u64) -> Result<(), Status> {
    world.ledger.reschedule_asked(number);
    let due = Some(pb::reschedule_request::Due::Delay(prost_types::Duration::default()));
    let request = pb::RescheduleRequest { topic: world.topic.clone(), message: Some(by_key(number)), due };
    let answer = client.reschedule(request).await;
    let answer = taken(world, Operation::Reschedule, number, answer)?;
    match answer.map(|response| response.status()) {
        Some(pb::RescheduleStatus::NotFound) => world.ledger.not_found(number),
        Some(pb::RescheduleStatus::Unspecified) => {
            world.ledger.unexpected(number, "a reschedule without a definite answer");
        }
        _ => {}
    }
    Ok(())
}

/// Counts an answer. `None`: refused for now, definitely not done. An error: the connection broke.
fn taken<T>(
    world: &World,
    operation: Operation,
    number: u64,
    answer: Result<tonic::Response<T>, Status>,
) -> Result<Option<T>, Status> {
    let count = |answer| world.ledger.answered(operation, answer, 1);
    match answer {
        Ok(response) => {
            count(Answer::Ok);
            Ok(Some(response.into_inner()))
        }
        Err(status) => {
            let error = Error::from(status.clone());
            if error.outcome() == Outcome::NotDone && !error.is_unreachable() {
                count(Answer::Failed);
                if !error.is_temporary() {
                    world.ledger.refusal(number, &format!("{operation:?}"), &error);
                }
                return Ok(None);
            }
            count(Answer::Unknown);
            Err(status)
        }
    }
}
