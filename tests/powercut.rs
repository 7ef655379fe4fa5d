//! Power cuts, as near as one machine can come to them: the broker's data is on a file system in a loop image; the
//! broker is stopped in the middle of its work, the image is copied as it is at that moment (what was not synced is
//! not in it), and a second broker opens the copy. Every produce that was confirmed before the cut must be there and
//! every confirmed ack must still hold. A control whose `fdatasync` does nothing must lose, or the test proves nothing.
//!
//! It needs root, loop devices and mkfs, so it belongs to the full tier: `DUEWHEEL_POWERCUTS=5 cargo test --test
//! powercut` makes five cuts per file system. In the gate the store's own power cuts over lossy
//! doubles stand for it (`src/store/tests`). `DUEWHEEL_SEED` sets the moments.

#[path = "powercut/image.rs"]
mod image;
mod support;

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use duewheel::pb::queue_service_client::QueueServiceClient;
use duewheel::pb::{
    AckRequest, FetchRequest, GetMessageRequest, MessageRef, MessageState, NewMessage, ProduceRequest, message_ref,
    new_message, produce_result, settlement_result,
};
use image::Image;
use rustix::process::Signal;
use support::{Broker, duewheel};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

const TOPIC: &str = "orders";
/// Keys of the broker under load are found by number, so a batch is known by its first.
const BATCH: u64 = 50;

/// What was confirmed before the cut.
#[derive(Default)]
struct Confirmed {
    produced: Vec<u64>,
    acked: HashSet<u64>,
    /// Acks that were sent: they may hold.
    ack_sent: HashSet<u64>,
}

#[test]
fn what_was_confirmed_before_a_power_cut_is_there_after_it() {
    let Ok(cuts) = std::env::var("DUEWHEEL_POWERCUTS") else {
        println!("not asked for: set DUEWHEEL_POWERCUTS to the number of cuts per file system");
        return;
    };
    let cuts: u64 = cuts.parse().expect("DUEWHEEL_POWERCUTS is a number");
    let seed = std::env::var("DUEWHEEL_SEED")
        .map_or_else(|_| fastrand::u64(0..1 << 40), |text| text.parse().expect("a number"));
    println!("DUEWHEEL_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for file_system in ["ext4", "xfs"] {
        let (mut confirmed, mut lost) = (0, 0);
        for _ in 0..cuts {
            let outcome = cut(file_system, &mut random, false);
            confirmed += outcome.confirmed;
            lost += outcome.lost;
        }
        println!("{file_system}: {cuts} cuts, {confirmed} confirmed, {lost} lost");
        assert!(confirmed > 0 && lost == 0, "{lost} of {confirmed} confirmed changes were lost on {file_system}");
        let control = cut(file_system, &mut random, true);
        println!(
            "{file_system}, without any sync: {} of {} lost, opened: {}",
            control.lost, control.confirmed, control.opened
        );
        assert!(control.lost > 0 || !control.opened, "without syncs nothing was lost: the cut cuts nothing");
    }
}

struct Outcome {
    confirmed: usize,
    lost: usize,
    opened: bool,
}

/// One cut at a random moment.
fn cut(file_system: &str, random: &mut fastrand::Rng, without_syncs: bool) -> Outcome {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let image = Image::make(scratch.path(), file_system);
    let mounted = image.mount(scratch.path(), "live");
    let mut program = duewheel();
    if without_syncs {
        program.env("LD_PRELOAD", losing_library(scratch.path())).env("DUEWHEEL_TEST_LOSE", "1");
    }
    let data = Arc::new(TempDir::new_in(mounted.path()).expect("the image is writable"));
    let name = data.path().file_name().expect("a name").to_owned();
    let flags = ["--journal-generation", "1MiB"];
    let mut broker = Broker::start_by(program, Arc::clone(&data), ([127, 0, 0, 1], 0).into(), &flags);
    broker.ok(&["topic", "create", TOPIC]);
    let confirmed = load(&broker, Duration::from_millis(random.u64(300..2_500)));
    let copy = image.copy(scratch.path());
    broker.kill();
    drop((broker, data));
    drop(mounted);
    let remounted = copy.mount(scratch.path(), "copy");
    let total = confirmed.produced.len() + confirmed.acked.len();
    let directory = remounted.path().join(name);
    if without_syncs && !directory.exists() {
        return Outcome { confirmed: total, lost: total, opened: false };
    }
    let found = Arc::new(tempfile::Builder::new().prefix("unused").tempdir_in(remounted.path()).expect("writable"));
    std::fs::rename(directory.join("data"), found.path().join("data")).expect("the data directory is there");
    if without_syncs && !can_open(&found.path().join("data")) {
        return Outcome { confirmed: total, lost: total, opened: false };
    }
    let again = Broker::start_in(found, ([127, 0, 0, 1], 0).into(), &flags);
    let lost = missing(&again, &confirmed);
    drop(again);
    Outcome { confirmed: total, lost, opened: true }
}

/// True if a broker comes to serve from this directory, false if it refuses.
fn can_open(data: &Path) -> bool {
    let mut child = duewheel()
        .args([
            "serve",
            "--log-format",
            "json",
            "--listen",
            "127.0.0.1:0",
            "--http-listen",
            "127.0.0.1:0",
            "--data-dir",
        ])
        .arg(data)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let lines = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
    let serves = lines.map_while(Result::ok).any(|line| line.contains("\"message\":\"serving\""));
    let _ended = child.kill();
    child.wait().expect("a child can be waited for");
    serves
}

/// Produces and acks until the broker is stopped, and gives what was confirmed before.
fn load(broker: &Broker, time: Duration) -> Confirmed {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let endpoint = Endpoint::from_shared(broker.endpoint()).expect("a good address").tcp_nodelay(true);
    let is_over = Arc::new(AtomicBool::new(false));
    let confirmed = runtime.block_on(async {
        let client = QueueServiceClient::new(endpoint.connect().await.expect("the broker serves"));
        let producing = tokio::spawn(produce(client.clone(), Arc::clone(&is_over)));
        let consuming = tokio::spawn(consume(client, Arc::clone(&is_over)));
        // The moment of the cut is what is random here.
        tokio::time::sleep(time).await;
        broker.signal(Signal::STOP);
        is_over.store(true, Ordering::SeqCst);
        let (produced, (acked, ack_sent)) = (producing.await.expect("no panic"), consuming.await.expect("no panic"));
        Confirmed { produced, acked, ack_sent }
    });
    runtime.shutdown_background();
    confirmed
}

async fn produce(mut client: QueueServiceClient<Channel>, is_over: Arc<AtomicBool>) -> Vec<u64> {
    let mut produced = Vec::new();
    for first in (0..).step_by(usize::try_from(BATCH).expect("small")) {
        let messages = (first..first + BATCH).map(message).collect();
        let request = ProduceRequest { topic: TOPIC.to_owned(), messages };
        let answer = tokio::time::timeout(Duration::from_millis(500), client.produce(request)).await;
        let Ok(Ok(response)) = answer else { break };
        let results = response.into_inner().results;
        assert!(results.iter().all(|result| matches!(result.result, Some(produce_result::Result::Produced(_)))));
        if is_over.load(Ordering::SeqCst) {
            break;
        }
        produced.extend(first..first + BATCH);
    }
    produced
}

fn message(number: u64) -> NewMessage {
    // A third is due at once, the others later than the test.
    let seconds = if number.is_multiple_of(3) { 0 } else { 600 + i64::try_from(number % 86_400).expect("a day") };
    NewMessage {
        key: format!("order-{number}"),
        body: vec![7; 256].into(),
        first_wait: Some(new_message::FirstWait::Delay(prost_types::Duration { seconds, nanos: 0 })),
        ..NewMessage::default()
    }
}

async fn consume(mut client: QueueServiceClient<Channel>, is_over: Arc<AtomicBool>) -> (HashSet<u64>, HashSet<u64>) {
    let (mut acked, mut sent) = (HashSet::new(), HashSet::new());
    let wait = Some(prost_types::Duration { seconds: 0, nanos: 50_000_000 });
    while !is_over.load(Ordering::SeqCst) {
        let request = FetchRequest { topic: TOPIC.to_owned(), max_messages: 100, wait, ..FetchRequest::default() };
        let fetched = tokio::time::timeout(Duration::from_millis(500), client.fetch(request)).await;
        let Ok(Ok(response)) = fetched else { break };
        let deliveries = response.into_inner().deliveries;
        let number = |key: &str| key.trim_start_matches("order-").parse::<u64>().expect("an order number");
        let numbers: Vec<u64> = deliveries.iter().map(|delivery| number(&delivery.key)).collect();
        if numbers.is_empty() {
            continue;
        }
        sent.extend(&numbers);
        let receipts = deliveries.into_iter().map(|delivery| delivery.receipt).collect();
        let answer = tokio::time::timeout(Duration::from_millis(500), client.ack(AckRequest { receipts })).await;
        let Ok(Ok(response)) = answer else { break };
        if is_over.load(Ordering::SeqCst) {
            break;
        }
        for (number, result) in numbers.into_iter().zip(response.into_inner().results) {
            assert!(matches!(result.result, Some(settlement_result::Result::Acked(_))), "{result:?}");
            acked.insert(number);
        }
    }
    (acked, sent)
}

/// How many confirmed changes the broker does not know.
fn missing(broker: &Broker, confirmed: &Confirmed) -> usize {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let endpoint = Endpoint::from_shared(broker.endpoint()).expect("a good address").tcp_nodelay(true);
    runtime.block_on(async {
        let mut client = QueueServiceClient::new(endpoint.connect().await.expect("the broker serves"));
        let mut lost = 0;
        for &number in &confirmed.produced {
            let message = Some(MessageRef { r#ref: Some(message_ref::Ref::Key(format!("order-{number}"))) });
            let request = GetMessageRequest { topic: TOPIC.to_owned(), message, omit_body: true };
            let state = match client.get_message(request).await {
                Ok(response) => response.into_inner().message.expect("a message").state(),
                Err(status) => {
                    assert_eq!(status.code(), tonic::Code::NotFound, "{status:?}");
                    MessageState::Unspecified
                }
            };
            let is_done = state == MessageState::Done;
            let is_live = !is_done && state != MessageState::Unspecified;
            let is_right = if confirmed.acked.contains(&number) {
                is_done
            } else {
                is_live || (is_done && confirmed.ack_sent.contains(&number))
            };
            lost += usize::from(!is_right);
        }
        lost
    })
}

/// A library in front of the C library whose `fdatasync` does nothing.
fn losing_library(directory: &Path) -> std::path::PathBuf {
    let library = directory.join("count.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fdatasync/count.c");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl").status();
    assert!(compiled.expect("a C compiler").success());
    library
}
