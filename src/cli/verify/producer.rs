//! A producer: small batches, half of them idempotent and repeated until they are answered.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tonic::transport::Channel;

use super::tally::{Operation, Result as Answer};
use super::world::World;
use crate::cli::random::{Random, mix};
use crate::client::{Error, Outcome, span};
use crate::pb;
use crate::pb::queue_service_client::QueueServiceClient;

/// Most messages of a request.
const MAX_REQUEST: u64 = 20;
/// Longest first wait of an order that is soon due, milliseconds.
const SOON_MS: u64 = 800;
/// First wait of the others: they leave memory, and are cancelled or made due by their key.
const FAR_MS: u64 = 3_600_000;
/// Between two looks whether the run is over, once the ledger is full.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Wait before a refused produce is repeated.
const REFUSED_WAIT: Duration = Duration::from_millis(50);

/// Produces until the world drains and everything is answered that is repeated until then.
pub(super) async fn run(world: Arc<World>, seed: u64, pause: Duration) {
    produce_all(&world, seed, pause).await;
    world.producer_ended();
}

async fn produce_all(world: &World, seed: u64, pause: Duration) {
    let mut random = Random::new(seed);
    // Idempotent orders whose produce was not answered yet.
    let mut unanswered: Vec<u64> = Vec::new();
    while let Some(channel) = world.connect().await {
        let mut client = QueueServiceClient::new(channel);
        loop {
            if world.is_over() || world.is_draining() && unanswered.is_empty() {
                return;
            }
            let is_retried = random.percent(50);
            let mut orders = std::mem::take(&mut unanswered);
            if orders.is_empty() {
                let open = |_| world.ledger.open_order(is_retried, |number| first_wait_ms(number) * 1_000);
                orders = (0..=random.below(MAX_REQUEST)).map_while(open).collect();
            }
            if orders.is_empty() {
                world.full.cancel();
                tokio::time::sleep(LOOK_AGAIN).await;
                continue;
            }
            if !produce(world, &mut client, &orders, &mut unanswered).await {
                break;
            }
            tokio::time::sleep(pause).await;
        }
    }
}

/// Produces one message per order; those that must be repeated go to `unanswered`. False: the connection is broken.
async fn produce(
    world: &World,
    client: &mut QueueServiceClient<Channel>,
    orders: &[u64],
    unanswered: &mut Vec<u64>,
) -> bool {
    let messages = orders.iter().map(|&number| message(world, number)).collect();
    let request = pb::ProduceRequest { topic: world.topic.clone(), messages };
    let answered = |answer, count| world.ledger.answered(Operation::Produce, answer, count);
    let not_stored = |unanswered: &mut Vec<u64>, number, error: &Error| {
        let is_unknown = error.outcome() != Outcome::NotDone;
        answered(if is_unknown { Answer::Unknown } else { Answer::Failed }, 1);
        if !error.is_temporary() {
            world.ledger.refusal(number, "produce", error);
        } else if world.ledger.is_retried(number) {
            return unanswered.push(number);
        }
        if !is_unknown {
            world.ledger.refused(number);
        }
    };
    let response = match client.produce(request).await {
        Ok(response) => response,
        Err(status) => {
            let error = Error::from(status);
            for &number in orders {
                not_stored(unanswered, number, &error);
            }
            tokio::time::sleep(REFUSED_WAIT).await;
            return false;
        }
    };
    let results = response.into_inner().results;
    if results.len() != orders.len() {
        world.ledger.unexpected(orders[0], &format!("{} results for {} messages", results.len(), orders.len()));
    }
    let mut is_refused = false;
    let results = results.into_iter().map(|result| result.result).chain(std::iter::repeat(None));
    for (&number, result) in orders.iter().zip(results) {
        match result {
            Some(pb::produce_result::Result::Produced(_)) => {
                answered(Answer::Ok, 1);
                world.ledger.produced(number);
                world.confirmed.fetch_add(1, Ordering::Relaxed);
            }
            Some(pb::produce_result::Result::Error(status)) => {
                is_refused = true;
                not_stored(unanswered, number, &Error::from(status));
            }
            None => {
                answered(Answer::Unknown, 1);
                world.ledger.unexpected(number, "a produce without a result");
                world.ledger.produce_unclear(number);
            }
        }
    }
    if is_refused {
        tokio::time::sleep(REFUSED_WAIT).await;
    }
    true
}

/// The key of an order.
pub(super) fn key(number: u64) -> String {
    format!("order-{number}")
}

/// The body of an order: its number and noise of any length.
pub(super) fn body(number: u64) -> Vec<u8> {
    let mut body = format!("{number} ").into_bytes();
    let length = mix(number) % 512;
    body.extend((0..length).map(|at| (mix(number ^ at << 32) & 0xff) as u8));
    body
}

/// Some orders carry a header.
pub(super) fn headers(number: u64) -> HashMap<String, String> {
    let is_marked = number.is_multiple_of(3);
    is_marked.then(|| ("order".to_owned(), number.to_string())).into_iter().collect()
}

/// Some orders get no answer until they are dead letters.
pub(super) fn is_hopeless(number: u64) -> bool {
    number % 16 == 5
}

/// Every fourth order is not due before the end of the run.
fn first_wait_ms(number: u64) -> u64 {
    number * 7_919 % SOON_MS + if number.is_multiple_of(4) { FAR_MS } else { 0 }
}

/// The same order always makes the same message, as an idempotent produce needs.
fn message(world: &World, number: u64) -> pb::NewMessage {
    pb::NewMessage {
        key: key(number),
        body: body(number).into(),
        headers: headers(number),
        first_wait: Some(pb::new_message::FirstWait::Delay(span(first_wait_ms(number)))),
        dedup_id: if world.ledger.is_retried(number) { format!("produce-{number}") } else { String::new() },
        ..pb::NewMessage::default()
    }
}
