//! Every commit ends in an `fdatasync`, seen from outside: the real program runs with a library in front of the C
//! library that counts the calls, and each answered request must have brought one.

mod support;

use std::path::PathBuf;
use std::sync::Arc;

use duewheel::pb::queue_service_client::QueueServiceClient;
use duewheel::pb::{AckRequest, FetchRequest, NewMessage, ProduceRequest, new_message, settlement_result};
use support::{Broker, duewheel, preload};
use tonic::transport::{Channel, Endpoint};

const TOPIC: &str = "orders";
const REQUESTS: usize = 50;

/// A broker whose syncs are counted.
struct Watched {
    broker: Broker,
    syncs: PathBuf,
    /// Grows by each `sync_file_range`.
    ranges: PathBuf,
}

impl Watched {
    fn start(environment: &[(&str, &str)], flags: &[&str]) -> Self {
        let directory = Arc::new(tempfile::tempdir().expect("a temporary directory"));
        let library = preload::compile("tests/fdatasync/count.c", directory.path());
        let (syncs, ranges) = (directory.path().join("syncs"), directory.path().join("ranges"));
        std::fs::write(&syncs, "").expect("the directory is writable");
        let mut program = duewheel();
        program.env("LD_PRELOAD", &library).env("DUEWHEEL_TEST_SYNCS", &syncs).env("DUEWHEEL_TEST_RANGES", &ranges);
        program.envs(environment.iter().copied());
        let broker = Broker::start_by(program, directory, ([127, 0, 0, 1], 0).into(), flags);
        Self { broker, syncs, ranges }
    }

    fn syncs(&self) -> u64 {
        std::fs::metadata(&self.syncs).expect("the file was made before the broker").len()
    }

    async fn client(&self) -> QueueServiceClient<Channel> {
        self.broker.ok(&["topic", "create", TOPIC]);
        let endpoint = Endpoint::from_shared(self.broker.endpoint()).expect("a good address").tcp_nodelay(true);
        QueueServiceClient::new(endpoint.connect().await.expect("the broker serves"))
    }
}

async fn produce(client: &mut QueueServiceClient<Channel>) {
    let first_wait = Some(new_message::FirstWait::Delay(prost_types::Duration::default()));
    let message = NewMessage { body: "body".into(), first_wait, ..NewMessage::default() };
    let request = ProduceRequest { topic: TOPIC.to_owned(), messages: vec![message] };
    client.produce(request).await.expect("produced");
}

#[tokio::test]
async fn each_answered_produce_and_ack_has_been_synced_before_its_answer() {
    let watched = Watched::start(&[], &[]);
    let mut client = watched.client().await;
    for _ in 0..REQUESTS {
        let before = watched.syncs();
        produce(&mut client).await;
        assert!(watched.syncs() > before, "a produce was answered without a sync");
    }
    let fetch = FetchRequest { topic: TOPIC.to_owned(), max_messages: 1, ..FetchRequest::default() };
    for _ in 0..REQUESTS {
        let fetched = client.fetch(fetch.clone()).await.expect("a response").into_inner().deliveries;
        let receipts = fetched.into_iter().map(|delivery| delivery.receipt).collect::<Vec<_>>();
        assert_eq!(receipts.len(), 1, "a message is ready");
        let before = watched.syncs();
        let results = client.ack(AckRequest { receipts }).await.expect("a response").into_inner().results;
        assert!(matches!(results[0].result, Some(settlement_result::Result::Acked(_))));
        assert!(watched.syncs() > before, "an ack was answered without a sync");
    }
}

/// What the page store writes must be durable when it takes it for that, not only at the end of a fold; with less than
/// an `fdatasync` a power cut in the middle of a fold leaves it empty, or so that it does not open.
#[tokio::test]
async fn a_fold_relies_on_nothing_less_than_an_fdatasync() {
    let watched = Watched::start(&[], &["--journal-generation", "256KiB"]);
    let mut client = watched.client().await;
    let before = watched.syncs();
    for _ in 0..10 {
        let first_wait = Some(new_message::FirstWait::Delay(prost_types::Duration { seconds: 86_400, nanos: 0 }));
        let message = NewMessage { body: vec![7; 1_024].into(), first_wait, ..NewMessage::default() };
        let request = ProduceRequest { topic: TOPIC.to_owned(), messages: vec![message; 100] };
        client.produce(request).await.expect("produced");
    }
    support::until("a fold is done", || watched.broker.json(&["stats"])["broker"]["folds"].as_u64() > Some(0));
    assert!(watched.syncs() > before + 10, "a fold syncs as well");
    assert!(!watched.ranges.exists(), "the page store takes a sync_file_range for a sync");
}

#[tokio::test]
async fn a_broker_that_does_not_sync_is_told_by_this_count() {
    let watched = Watched::start(&[("DUEWHEEL_TEST_LOSE", "1")], &[]);
    let mut client = watched.client().await;
    let before = watched.syncs();
    produce(&mut client).await;
    assert_eq!(watched.syncs(), before, "the control must not sync");
}
