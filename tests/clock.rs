//! The broker's clock against clocks that are set, run fast, or stand still, seen from outside: the real program runs
//! with a library in front of the C library that shifts its wall clock, or is stopped for a while.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use duewheel::clock::Stopwatch;
use duewheel::pb::queue_service_client::QueueServiceClient;
use duewheel::pb::{AckRequest, Delivery, FetchRequest, NewMessage, ProduceRequest, new_message, settlement_result};
use rustix::process::Signal;
use serde_json::Value;
use support::{Broker, HANGS, duewheel, preload, until};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

const TOPIC: &str = "orders";
const DAY_MS: i64 = 86_400_000;
const HOUR_MS: i64 = 3_600_000;

/// A wall clock that can be set.
struct Wall {
    directory: Arc<TempDir>,
    library: PathBuf,
    shift: PathBuf,
}

impl Wall {
    fn new() -> Self {
        let directory = Arc::new(tempfile::tempdir().expect("a temporary directory"));
        let library = preload::compile("tests/clock_shift/shift.c", directory.path());
        let shift = directory.path().join("shift");
        let wall = Self { directory, library, shift };
        wall.set(0);
        wall
    }

    /// Sets it so many milliseconds ahead of the true time. Written in place, since the program has the file mapped.
    fn set(&self, ms: i64) {
        use std::os::unix::fs::FileExt as _;
        let file = std::fs::File::options().write(true).create(true).truncate(false).open(&self.shift);
        file.expect("the directory is writable").write_all_at(&ms.to_le_bytes(), 0).expect("it is written");
    }

    /// A command of the program that lives by this wall clock.
    fn program(&self) -> Command {
        let mut program = duewheel();
        program.env("LD_PRELOAD", &self.library).env("DUEWHEEL_TEST_SHIFT", &self.shift);
        program
    }

    fn broker(&self, flags: &[&str]) -> Broker {
        Broker::start_by(self.program(), Arc::clone(&self.directory), ([127, 0, 0, 1], 0).into(), flags)
    }
}

async fn client(broker: &Broker) -> QueueServiceClient<Channel> {
    let endpoint = Endpoint::from_shared(broker.endpoint()).expect("a good address");
    QueueServiceClient::new(endpoint.connect().await.expect("the broker serves"))
}

/// Produces a message that is due after `delay`; the instant is taken before.
async fn produce(client: &mut QueueServiceClient<Channel>, body: &str, delay: Duration) -> Stopwatch {
    let produced = Stopwatch::start();
    let delay = prost_types::Duration::try_from(delay).expect("a short time");
    let message = NewMessage {
        body: body.as_bytes().to_vec().into(),
        first_wait: Some(new_message::FirstWait::Delay(delay)),
        ..NewMessage::default()
    };
    let request = ProduceRequest { topic: TOPIC.to_owned(), messages: vec![message] };
    client.produce(request).await.expect("produced");
    produced
}

/// Waits up to `wait` for a message.
async fn fetch(client: &mut QueueServiceClient<Channel>, wait: Duration) -> Option<Delivery> {
    let wait = Some(prost_types::Duration::try_from(wait).expect("a short time"));
    let request = FetchRequest { topic: TOPIC.to_owned(), max_messages: 1, wait, ..FetchRequest::default() };
    client.fetch(request).await.expect("a response").into_inner().deliveries.pop()
}

async fn ack(client: &mut QueueServiceClient<Channel>, delivery: &Delivery) -> bool {
    let request = AckRequest { receipts: vec![delivery.receipt.clone()] };
    let results = client.ack(request).await.expect("a response").into_inner().results;
    matches!(results[0].result, Some(settlement_result::Result::Acked(_)))
}

/// The message with that body comes, and `since` its produce no less than `delay` has passed.
async fn comes_in_time(client: &mut QueueServiceClient<Channel>, body: &str, since: &Stopwatch, delay: Duration) {
    let delivery = fetch(client, HANGS).await.expect("it is due");
    let waited = since.elapsed();
    assert_eq!(delivery.body, body.as_bytes());
    assert!(waited >= delay, "{body} came after {waited:?}");
    assert!(ack(client, &delivery).await);
}

fn clock(broker: &Broker) -> Value {
    broker.json(&["clock", "show"])
}

/// Waits until the broker has seen what became of the wall clock.
fn until_offset(broker: &Broker, offset_ms: i64) {
    let seen = || clock(broker)["offset_ms"].as_i64().expect("a number");
    until("the broker sees the wall clock", || (seen() - offset_ms).abs() < 500);
}

#[tokio::test]
async fn a_wall_clock_a_day_ahead_fires_nothing_early_and_is_followed_only_when_an_operator_says_so() {
    let wall = Wall::new();
    let broker = wall.broker(&[]);
    broker.ok(&["topic", "create", TOPIC]);
    let mut client = client(&broker).await;
    let (soon, hour) = (Duration::from_secs(2), Duration::from_hours(1));
    let since = produce(&mut client, "soon", soon).await;
    produce(&mut client, "in an hour", hour).await;
    wall.set(DAY_MS);
    until_offset(&broker, DAY_MS);
    // What comes first is what is due by the time that has passed.
    comes_in_time(&mut client, "soon", &since, soon).await;
    assert!(fetch(&mut client, Duration::from_millis(1_500)).await.is_none(), "it is due in an hour");
    let state = clock(&broker);
    assert_eq!((&state["stepped"], &state["steps"]), (&true.into(), &1.into()), "{state}");
    assert!(broker.log().contains("wall clock"), "the step is reported");

    broker.ok(&["clock", "adopt", "--yes"]);
    let delivery = fetch(&mut client, HANGS).await.expect("by the clock that was adopted it is due");
    assert_eq!(delivery.body, "in an hour");
    assert_eq!(clock(&broker)["stepped"], false);
}

#[tokio::test]
async fn a_wall_clock_an_hour_behind_makes_nothing_late() {
    let wall = Wall::new();
    let broker = wall.broker(&["--clock-policy", "adopt"]);
    broker.ok(&["topic", "create", TOPIC]);
    let mut client = client(&broker).await;
    let soon = Duration::from_millis(1_500);
    let since = produce(&mut client, "before", soon).await;
    wall.set(-HOUR_MS);
    until_offset(&broker, -HOUR_MS);
    comes_in_time(&mut client, "before", &since, soon).await;
    let since = produce(&mut client, "after", soon).await;
    comes_in_time(&mut client, "after", &since, soon).await;
    // A step back is not followed even where steps are adopted.
    let state = clock(&broker);
    assert_eq!((&state["stepped"], &state["steps"]), (&true.into(), &1.into()), "{state}");
}

#[tokio::test]
async fn a_small_difference_is_no_step_and_fires_nothing_early() {
    let wall = Wall::new();
    let broker = wall.broker(&[]);
    broker.ok(&["topic", "create", TOPIC]);
    let mut client = client(&broker).await;
    let soon = Duration::from_secs(2);
    let since = produce(&mut client, "soon", soon).await;
    wall.set(900);
    until("the difference is worked off", || clock(&broker)["slewing"] == true);
    // At most 500 parts per million of two seconds.
    comes_in_time(&mut client, "soon", &since, Duration::from_millis(1_999)).await;
    assert_eq!(clock(&broker)["steps"], 0);
}

#[tokio::test]
async fn the_clock_of_a_client_does_not_matter() {
    for shift in [HOUR_MS, -HOUR_MS] {
        let wall = Wall::new();
        let broker = Broker::start();
        broker.ok(&["topic", "create", TOPIC]);
        let mut client = client(&broker).await;
        wall.set(shift);
        let since = Stopwatch::start();
        let produced = wall
            .program()
            .args(["produce", TOPIC, "body", "--delay", "1s"])
            .env("DUEWHEEL_ENDPOINT", broker.endpoint())
            .output();
        assert!(produced.expect("the program runs").status.success());
        comes_in_time(&mut client, "body", &since, Duration::from_secs(1)).await;
    }
}

/// `DUEWHEEL_PAUSE_S` makes the pause longer; it is 300 in the full tier.
#[tokio::test]
async fn after_a_pause_what_became_due_comes_in_order_and_a_lease_of_before_can_still_be_settled() {
    let pause = std::env::var("DUEWHEEL_PAUSE_S").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let pause = Duration::from_secs(pause);
    let broker = Broker::start();
    broker.ok(&["topic", "create", TOPIC, "--lease", "2s"]);
    let mut client = client(&broker).await;
    produce(&mut client, "leased", Duration::ZERO).await;
    let leased = fetch(&mut client, HANGS).await.expect("it is due");
    let (mut due, delays) = (Vec::new(), [1_200, 600, 900, 1_500]);
    for ms in delays {
        let delay = Duration::from_millis(ms);
        due.push((ms, produce(&mut client, &ms.to_string(), delay).await, delay));
    }
    broker.signal(Signal::STOP);
    thread::sleep(pause);
    broker.signal(Signal::CONT);
    assert!(ack(&mut client, &leased).await, "its lease has ended in the pause, but it gets a grace");
    due.sort_by_key(|&(ms, ..)| ms);
    for (ms, since, delay) in due {
        comes_in_time(&mut client, &ms.to_string(), &since, delay).await;
    }
    assert_eq!(clock(&broker)["steps"], 0, "a pause is no step of the clock");
    assert!(broker.log().contains("held up"), "the pause is reported");
}

/// The path of the sources is what the compiler is given.
#[test]
fn the_library_touches_the_wall_clock_only() {
    let wall = Wall::new();
    wall.set(-HOUR_MS - 1);
    let date = |preloaded: bool| {
        let mut command = Command::new("date");
        command.args(["+%s"]).env("DUEWHEEL_TEST_SHIFT", &wall.shift);
        if preloaded {
            command.env("LD_PRELOAD", &wall.library);
        }
        let output = command.output().expect("date is there");
        String::from_utf8(output.stdout).expect("text").trim().parse::<i64>().expect("a number")
    };
    let (with, without) = (date(true), date(false));
    assert!((3_600..=3_605).contains(&(without - with)), "{without} became {with}");
    assert!(Path::new(&wall.library).exists());
}
