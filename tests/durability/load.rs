//! The clients before a cut: producers, a consumer and a canceller, which keep the ledger. Only what is answered before
//! the cut is confirmed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use duewheel::pb::queue_service_client::QueueServiceClient;
use duewheel::pb::{
    AckRequest, CancelRequest, CancelStatus, Delivery, FetchRequest, MessageRef, NackItem, NackReason, NackRequest,
    NewMessage, Outcome, ProduceRequest, message_ref, new_message, produce_result, settlement_result,
};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

use super::TOPIC;
use super::ledger::Ledger;
use crate::support::HANGS;

/// Messages of one produce.
const BATCH: usize = 50;
/// Cancels at a time.
const CANCELS: usize = 16;
/// One delivery in so many is nacked.
const NACK_EVERY: usize = 8;
/// What is nacked is not due again before the end of the test.
const NACK_DELAY_S: i64 = 900;
/// After a cut nobody answers; a client gives up then.
const GIVES_UP: Duration = Duration::from_millis(500);

/// Clients at work.
pub(crate) struct Load {
    runtime: Runtime,
    tasks: JoinSet<()>,
    is_over: Arc<AtomicBool>,
}

impl Load {
    pub(crate) fn start(address: SocketAddr, ledger: &Arc<Ledger>) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let is_over = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        let client = {
            let _entered = runtime.enter();
            connect(address)
        };
        let clients = || (client.clone(), Arc::clone(ledger), Arc::clone(&is_over));
        for _ in 0..2 {
            let (client, ledger, is_over) = clients();
            tasks.spawn_on(produce(client, ledger, is_over), runtime.handle());
        }
        let (client, ledger, is_over) = clients();
        tasks.spawn_on(consume(client.clone(), Arc::clone(&ledger), Arc::clone(&is_over)), runtime.handle());
        for _ in 0..CANCELS {
            tasks.spawn_on(cancel(client.clone(), Arc::clone(&ledger), Arc::clone(&is_over)), runtime.handle());
        }
        Self { runtime, tasks, is_over }
    }

    /// From now on nothing is confirmed any more.
    pub(crate) fn is_over(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// Waits for the clients, when there is no broker any more.
    pub(crate) fn join(mut self) {
        self.runtime.block_on(async {
            while let Some(ended) = self.tasks.join_next().await {
                ended.expect("a client does not panic");
            }
        });
    }
}

pub(crate) fn connect(address: SocketAddr) -> QueueServiceClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("a good address").tcp_nodelay(true);
    // A broker that is to die may do so before anybody has connected.
    QueueServiceClient::new(endpoint.connect_lazy())
}

pub(crate) fn by_key(number: usize) -> MessageRef {
    MessageRef { r#ref: Some(message_ref::Ref::Key(format!("order-{number}"))) }
}

/// What is asked of a broker whose power may be cut: `None` then.
async fn answer<T>(call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>) -> Option<T> {
    answer_within(GIVES_UP, call).await
}

async fn answer_within<T>(
    patience: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Option<T> {
    let answered = tokio::time::timeout(patience, call).await;
    answered.ok()?.ok().map(tonic::Response::into_inner)
}

async fn produce(mut client: QueueServiceClient<Channel>, ledger: Arc<Ledger>, is_over: Arc<AtomicBool>) {
    while !is_over.load(Ordering::SeqCst) {
        let first = ledger.open(BATCH);
        let messages = (first..first + BATCH).map(message).collect();
        let request = ProduceRequest { topic: TOPIC.to_owned(), messages };
        let Some(response) = answer(client.produce(request)).await else { continue };
        if is_over.load(Ordering::SeqCst) {
            return;
        }
        for (number, result) in (first..).zip(response.results) {
            match result.result {
                Some(produce_result::Result::Produced(produced)) => ledger.produced(number, produced.due_at),
                // The broker has lost its disk.
                _ => assert!(is_outcome_unknown(&result), "{result:?}"),
            }
        }
    }
}

fn is_outcome_unknown(result: &duewheel::pb::ProduceResult) -> bool {
    let code = |status: &tonic_types::Status| status.code == tonic::Code::Unavailable as i32;
    matches!(&result.result, Some(produce_result::Result::Error(status)) if code(status))
}

/// Half is due far from now, and most of that will be cancelled.
fn is_far(number: usize) -> bool {
    number % 10 >= 5
}

fn message(number: usize) -> NewMessage {
    let small = |number: usize| i64::try_from(number).expect("a small number");
    let ms = match number % 10 {
        0..4 => 0,
        4 => 1_000 + small(number % 2_000),
        _ => 600_000 + small(number % 1_200) * 1_000,
    };
    let (seconds, nanos) = (ms / 1_000, i32::try_from(ms % 1_000 * 1_000_000).expect("less than a second"));
    NewMessage {
        key: format!("order-{number}"),
        // Some are too large for a page.
        body: vec![7; if number % 100 == 57 { 5_000 } else { 256 }].into(),
        first_wait: Some(new_message::FirstWait::Delay(prost_types::Duration { seconds, nanos })),
        ..NewMessage::default()
    }
}

/// The order of a delivery.
fn number(delivery: &Delivery) -> usize {
    delivery.key.trim_start_matches("order-").parse().expect("an order number")
}

async fn consume(mut client: QueueServiceClient<Channel>, ledger: Arc<Ledger>, is_over: Arc<AtomicBool>) {
    let wait = Some(prost_types::Duration { seconds: 0, nanos: 50_000_000 });
    while !is_over.load(Ordering::SeqCst) {
        settle(&mut client, &ledger, (&is_over, GIVES_UP), wait).await;
    }
}

/// How long answers count, and how long to wait for one.
type Until<'a> = (&'a AtomicBool, Duration);

/// Fetches some messages and acks most of them, and nacks the rest; how many came. `None` if nobody answers,
/// or too late to count.
async fn settle(
    client: &mut QueueServiceClient<Channel>,
    ledger: &Ledger,
    until: Until<'_>,
    wait: Option<prost_types::Duration>,
) -> Option<usize> {
    let request = FetchRequest { topic: TOPIC.to_owned(), max_messages: 100, wait, ..FetchRequest::default() };
    let deliveries = answer_within(until.1, client.fetch(request)).await?.deliveries;
    for delivery in &deliveries {
        ledger.delivered(number(delivery), delivery);
    }
    let came = deliveries.len();
    let (nacked, acked): (Vec<_>, Vec<_>) =
        deliveries.into_iter().partition(|delivery| number(delivery).is_multiple_of(NACK_EVERY));
    ack(client, ledger, until, acked).await?;
    nack(client, ledger, until, nacked).await?;
    Some(came)
}

async fn ack(
    client: &mut QueueServiceClient<Channel>,
    ledger: &Ledger,
    (is_over, patience): Until<'_>,
    deliveries: Vec<Delivery>,
) -> Option<()> {
    if deliveries.is_empty() {
        return Some(());
    }
    let numbers: Vec<usize> = deliveries.iter().map(number).collect();
    for &number in &numbers {
        ledger.end_asked(number);
    }
    let receipts = deliveries.into_iter().map(|delivery| delivery.receipt).collect();
    let results = answer_within(patience, client.ack(AckRequest { receipts })).await?.results;
    if is_over.load(Ordering::SeqCst) {
        return None;
    }
    for (number, result) in numbers.into_iter().zip(results) {
        if let Some(settlement_result::Result::Acked(_)) = result.result {
            ledger.ended(number, Outcome::Acked);
        }
    }
    Some(())
}

async fn nack(
    client: &mut QueueServiceClient<Channel>,
    ledger: &Ledger,
    (is_over, patience): Until<'_>,
    deliveries: Vec<Delivery>,
) -> Option<()> {
    if deliveries.is_empty() {
        return Some(());
    }
    let numbers: Vec<usize> = deliveries.iter().map(number).collect();
    for &number in &numbers {
        ledger.nack_asked(number);
    }
    let delay = Some(prost_types::Duration { seconds: NACK_DELAY_S, nanos: 0 });
    let (reason, text) = (NackReason::NotYet.into(), String::new());
    let item = |delivery: Delivery| NackItem { receipt: delivery.receipt, reason, delay, text: text.clone() };
    let nacks = deliveries.into_iter().map(item).collect();
    let results = answer_within(patience, client.nack(NackRequest { nacks })).await?.results;
    if is_over.load(Ordering::SeqCst) {
        return None;
    }
    for (number, result) in numbers.into_iter().zip(results) {
        if let Some(settlement_result::Result::Nacked(_)) = result.result {
            ledger.nacked(number);
        }
    }
    Some(())
}

async fn cancel(mut client: QueueServiceClient<Channel>, ledger: Arc<Ledger>, is_over: Arc<AtomicBool>) {
    while !is_over.load(Ordering::SeqCst) {
        let numbers = ledger.to_cancel(4, |number| is_far(number) && number % 10 != 9);
        if numbers.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for number in numbers {
            let request =
                CancelRequest { topic: TOPIC.to_owned(), message: Some(by_key(number)), when_lease_ends: false };
            let Some(response) = answer(client.cancel(request)).await else { return };
            if is_over.load(Ordering::SeqCst) {
                return;
            }
            if response.status() == CancelStatus::Cancelled {
                ledger.ended(number, Outcome::Cancelled);
            }
        }
    }
}

/// Takes everything that is due, when no cut is to come.
pub(crate) async fn drain(client: &mut QueueServiceClient<Channel>, ledger: &Ledger) {
    let is_over = AtomicBool::new(false);
    while settle(client, ledger, (&is_over, HANGS), None).await.expect("the broker answers") > 0 {}
}
