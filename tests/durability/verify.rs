//! After a cut: the broker is asked for confirmed orders, many at a time, and gives out what is due.

use std::net::SocketAddr;
use std::sync::Arc;

use duewheel::pb::GetMessageRequest;
use duewheel::pb::queue_service_client::QueueServiceClient;
use tokio::task::JoinSet;
use tonic::Code;
use tonic::transport::Channel;

use super::TOPIC;
use super::ledger::Ledger;
use super::load::{by_key, connect, drain};

/// Questions at a time.
const ASKERS: usize = 64;

/// Compares the broker with the ledger in these orders.
pub(crate) fn verify(address: SocketAddr, ledger: &Arc<Ledger>, orders: &[usize]) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let client = connect(address);
        let mut askers = JoinSet::new();
        for part in orders.chunks(orders.len().div_ceil(ASKERS).max(1)) {
            askers.spawn(ask(client.clone(), Arc::clone(ledger), part.to_vec()));
        }
        while let Some(asked) = askers.join_next().await {
            asked.expect("an asker does not panic");
        }
    });
}

/// Takes what is due, for nothing of it may be early or over.
pub(crate) fn take_what_is_due(address: SocketAddr, ledger: &Ledger) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async { drain(&mut connect(address), ledger).await });
}

async fn ask(mut client: QueueServiceClient<Channel>, ledger: Arc<Ledger>, orders: Vec<usize>) {
    for number in orders {
        let request = GetMessageRequest { topic: TOPIC.to_owned(), message: Some(by_key(number)), omit_body: true };
        let answer = loop {
            match client.get_message(request.clone()).await {
                // A fold moves its page just now; the answer asks to try again.
                Err(status) if status.code() == Code::Unavailable => tokio::task::yield_now().await,
                answer => break answer,
            }
        };
        match answer {
            Ok(response) => ledger.found(number, response.into_inner().message.as_ref()),
            Err(status) => {
                assert_eq!(status.code(), Code::NotFound, "{status:?}");
                ledger.found(number, None);
            }
        }
    }
}
