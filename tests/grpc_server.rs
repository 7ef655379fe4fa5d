//! The broker as a process: recovering, serving, draining, failing; health, reflection and limits.

mod grpc_harness;

use std::sync::mpsc;
use std::time::Duration;

use duewheel::clock::{ManualTime, StepPolicy};
use duewheel::engine::EngineSettings;
use duewheel::pb;
use duewheel::queue::time::Timestamp;
use duewheel::server::{Listeners, OpenFailure, ServeError, Settings};
use tokio_stream::StreamExt as _;
use tonic::Code;
use tonic::transport::Channel;
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::{v1, v1alpha};

use grpc_harness::engine_support::{Journal, START_MS, open};
use grpc_harness::{Consuming, Running, message, produce, reason, settings, until, within};

const SERVICES: [&str; 3] = ["", "duewheel.v1.QueueService", "duewheel.v1.AdminService"];

async fn health(channel: &Channel) -> Vec<i32> {
    let mut client = HealthClient::new(channel.clone());
    let mut statuses = Vec::new();
    for service in SERVICES {
        let request = HealthCheckRequest { service: service.to_owned() };
        statuses.push(client.check(request).await.expect("every service is known").into_inner().status);
    }
    statuses
}

fn all(status: ServingStatus) -> Vec<i32> {
    let status = match status {
        ServingStatus::Serving => 1,
        _ => 2,
    };
    vec![status; SERVICES.len()]
}

fn patient() -> Settings {
    Settings { drain_deadline: grpc_harness::HANGS, ..settings() }
}

#[tokio::test]
async fn a_recovering_broker_says_so_until_its_store_is_read() {
    let (time, journal) = (ManualTime::new(Timestamp::from_millis(START_MS)), Journal::default());
    let (clock, opened) = (time.clock(StepPolicy::Report), journal.clone());
    let (release, released) = mpsc::channel();
    let broker = Running::opening(settings(), time, journal, move || {
        released.recv().expect("the test goes on");
        Ok(open(&opened, clock, EngineSettings::default()))
    })
    .await;
    let channel = broker.connect().await;
    assert_eq!(health(&channel).await, all(ServingStatus::NotServing));
    assert_eq!(broker.healthz().await, (503, "recovering".to_owned()));
    let mut queue = broker.queue().await;
    let request = pb::ProduceRequest { topic: "orders".to_owned(), messages: vec![message("k", "b")] };
    let refused = queue.produce(request).await.expect_err("the store is not read");
    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!(reason(&refused), ("RECOVERING".to_owned(), "not_done".to_owned()));
    assert!(tonic_types::StatusExt::get_details_retry_info(&refused).is_some());
    let (_requests, outgoing) = tokio::sync::mpsc::channel(1);
    let refused = queue.consume(tokio_stream::wrappers::ReceiverStream::new(outgoing)).await.expect_err("recovering");
    assert_eq!(reason(&refused).0, "RECOVERING");

    release.send(()).expect("the opening waits");
    broker.wait_until_serving().await;
    assert_eq!(health(&channel).await, all(ServingStatus::Serving));
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_store_that_is_still_being_read() {
    let (time, journal) = (ManualTime::new(Timestamp::from_millis(START_MS)), Journal::default());
    let (_release, released) = mpsc::channel::<()>();
    let settings = Settings { drain_deadline: Duration::from_millis(50), ..settings() };
    let broker = Running::opening(settings, time, journal.clone(), move || {
        let _ = released.recv();
        Err(OpenFailure::Failed("too late".into()))
    })
    .await;
    assert_eq!(broker.healthz().await.0, 503);
    broker.stop().await.expect("nothing was lost");
    assert_eq!(journal.commits(), 0);
}

#[tokio::test]
async fn a_store_that_cannot_be_opened_ends_the_broker_with_the_code_for_its_cause() {
    for (is_configuration, code) in [(true, 78), (false, 1)] {
        let (time, journal) = (ManualTime::new(Timestamp::from_millis(START_MS)), Journal::default());
        let broker = Running::opening(settings(), time, journal, move || {
            let cause = "the directory is not a store".into();
            Err(if is_configuration { OpenFailure::Configuration(cause) } else { OpenFailure::Failed(cause) })
        })
        .await;
        let error = broker.end().await.expect_err("it cannot serve");
        assert_eq!((error.to_string().as_str(), error.exit_code()), ("the directory is not a store", code));
    }
}

#[tokio::test]
async fn a_drain_keeps_leases_answers_what_is_under_way_and_refuses_the_rest() {
    let broker = Running::start_with(patient(), EngineSettings::default()).await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let mut queue = broker.queue().await;
    let channel = broker.connect().await;
    produce(&mut queue, "orders", vec![message("held", "b")]).await;
    let mut stream = Consuming::start(&mut queue, "orders", 5).await;
    let receipt = stream.deliveries(1).await.remove(0).receipt;

    broker.journal.hold();
    let (mut own, request) =
        (queue.clone(), pb::ProduceRequest { topic: "orders".to_owned(), messages: vec![message("under way", "b")] });
    let under_way = tokio::spawn(async move { own.produce(request).await });
    broker.commit_under_way().await;
    let journal = broker.journal.clone();
    let (grpc, http) = (broker.grpc, broker.http);
    let ended = broker.request_stop();
    until(|| async { health(&channel).await == all(ServingStatus::NotServing) }).await;
    assert_eq!(grpc_harness::healthz(http).await, (503, "draining".to_owned()));
    let refuse = pb::AckRequest { receipts: vec![receipt.clone()] };
    // Health turns first; the engine refuses a moment later.
    let refused = within(queue.ack(refuse)).await.expect_err("no new work");
    assert_eq!(reason(&refused), ("BROKER_DRAINING".to_owned(), "not_done".to_owned()));
    journal.release();
    let taken = within(under_way).await.expect("no panic").expect("it was admitted").into_inner();
    assert!(matches!(taken.results[0].result, Some(pb::produce_result::Result::Produced(_))));
    let end = loop {
        // What was produced meanwhile may still be delivered.
        if let Err(end) = stream.next().await {
            break end;
        }
    };
    assert_eq!((end.code(), reason(&end).0.as_str()), (Code::Unavailable, "BROKER_DRAINING"));
    drop((stream, queue, channel));
    within(ended).await.expect("no panic").expect("a clean end");
    assert!(tokio::net::TcpStream::connect(grpc).await.is_err(), "the port is closed");

    let again = Running::restart(settings(), EngineSettings::default(), journal).await;
    let mut queue = again.queue().await;
    let acked = queue.ack(pb::AckRequest { receipts: vec![receipt] }).await.expect("well-formed").into_inner();
    assert!(grpc_harness::is_acked(&acked.results[0]), "the lease was kept over the restart: {acked:?}");
    assert_eq!(again.stats("orders").await.produced, 2);
    again.stop().await.expect("a clean end");
}

#[tokio::test]
async fn a_drain_with_an_open_unread_stream_ends_within_its_deadline() {
    let settings = Settings { drain_deadline: Duration::from_millis(200), ..settings() };
    let broker = Running::start_with(settings, EngineSettings::default()).await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let mut queue = broker.queue().await;
    for _ in 0..10 {
        produce(&mut queue, "orders", vec![message("", &"x".repeat(200_000)); 10]).await;
    }
    let mut unread = Consuming::start(&mut queue, "orders", 10_000).await;
    let mut health = HealthClient::new(broker.connect().await);
    let watch = health.watch(HealthCheckRequest::default()).await.expect("a watch");
    let idle = tokio::net::TcpStream::connect(broker.grpc).await.expect("a connection that says nothing");
    until(|| async { broker.stats("orders").await.leased > 0 }).await;
    broker.stop().await.expect("the end is clean");
    let end = loop {
        if let Err(end) = unread.next().await {
            break end;
        }
    };
    assert!(tonic_types::StatusExt::get_details_error_info(&end).is_none(), "cut, not ended in order: {end:?}");
    drop((watch, idle));
}

#[tokio::test]
async fn an_idle_broker_with_watched_health_ends_without_waiting_for_the_deadline() {
    let broker = Running::start_with(patient(), EngineSettings::default()).await;
    let mut client = HealthClient::new(broker.connect().await);
    let mut watch = client.watch(HealthCheckRequest::default()).await.expect("a watch").into_inner();
    let first = within(watch.next()).await.expect("a status").expect("a status");
    let ended = broker.request_stop();
    let second = within(watch.next()).await.expect("a status").expect("a status");
    assert_eq!((first.status, second.status), (1, 2));
    // `within` is no longer than the drain deadline: reaching the deadline would fail the test.
    within(ended).await.expect("no panic").expect("a clean end");
}

#[tokio::test]
async fn after_a_failed_commit_callers_hear_that_the_outcome_is_unknown_and_the_broker_ends() {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let mut queue = broker.queue().await;
    let mut stream = Consuming::start(&mut queue, "orders", 5).await;
    until(|| async { broker.stats("orders").await.consumers == 1 }).await;
    broker.journal.fail();
    let request = pb::ProduceRequest { topic: "orders".to_owned(), messages: vec![message("k", "b")] };
    let unknown = within(queue.produce(request)).await.expect_err("it is not known");
    assert_eq!(unknown.code(), Code::Unavailable);
    assert_eq!(reason(&unknown), ("OUTCOME_UNKNOWN".to_owned(), "unknown".to_owned()));
    let end = stream.next().await.expect_err("the broker ends the stream");
    assert_eq!(reason(&end).0, "OUTCOME_UNKNOWN");
    let error = broker.end().await.expect_err("it does not go on");
    assert!(matches!(&error, ServeError::CommitFailed(cause) if cause.contains("the disk is broken")), "{error}");
    assert_eq!(error.exit_code(), 1);
}

#[tokio::test]
async fn addresses_that_others_can_reach_are_refused_unless_that_is_wanted() {
    for address in [([0, 0, 0, 0], 0).into(), ([10, 0, 0, 1], 0).into(), "[::]:0".parse().expect("an address")] {
        for (listen, http_listen) in [(address, settings().http_listen), (settings().listen, address)] {
            let error = Listeners::bind(&Settings { listen, http_listen, ..settings() }).await.expect_err("reachable");
            assert_eq!(error.exit_code(), 78, "{error}");
            assert!(error.to_string().contains("--insecure"), "it says what to do: {error}");
        }
    }
    let insecure = Settings { listen: ([0, 0, 0, 0], 0).into(), insecure: true, ..settings() };
    Listeners::bind(&insecure).await.expect("that is wanted");
    let taken = Listeners::bind(&settings()).await.expect("free ports");
    let listen = taken.grpc_address().expect("bound");
    let error = Listeners::bind(&Settings { listen, ..settings() }).await.expect_err("the port is taken");
    assert_eq!(error.exit_code(), 1, "{error}");
    assert!(error.to_string().contains(&listen.to_string()));
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_until_one_ends() {
    let broker = Running::start_with(Settings { max_connections: 1, ..settings() }, EngineSettings::default()).await;
    let first = broker.connect().await;
    assert_eq!(health(&first).await, all(ServingStatus::Serving));
    // The system completes the second connection, but nobody serves it.
    let second = broker.connect().await;
    let waiting = tokio::spawn(async move { health(&second).await });
    assert_eq!(health(&first).await, all(ServingStatus::Serving));
    assert!(!waiting.is_finished());
    drop(first);
    assert_eq!(within(waiting).await.expect("no panic"), all(ServingStatus::Serving));
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn reflection_lists_the_services_in_both_versions_and_describes_them() {
    let broker = Running::start().await;
    let mut client = ServerReflectionClient::new(broker.connect().await);
    let ask =
        |message_request| v1::ServerReflectionRequest { host: String::new(), message_request: Some(message_request) };
    let asked = tokio_stream::iter([
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol("duewheel.v1.QueueService".to_owned())),
        // A tool that shows the refusal of an item looks for the types of its details.
        ask(MessageRequest::FileContainingSymbol("google.rpc.ErrorInfo".to_owned())),
    ]);
    let mut answers = client.server_reflection_info(asked).await.expect("a stream").into_inner();
    let listed = within(answers.next()).await.expect("an answer").expect("an answer");
    let Some(MessageResponse::ListServicesResponse(listed)) = listed.message_response else { panic!("{listed:?}") };
    let names: Vec<_> = listed.service.iter().map(|service| &*service.name).collect();
    for name in ["duewheel.v1.QueueService", "duewheel.v1.AdminService", "grpc.health.v1.Health"] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    for _ in 0..2 {
        let described = within(answers.next()).await.expect("an answer").expect("an answer");
        assert!(
            matches!(described.message_response, Some(MessageResponse::FileDescriptorResponse(_))),
            "{described:?}"
        );
    }

    let old = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1alpha::server_reflection_request::MessageRequest::ListServices(String::new())),
    };
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(broker.connect().await);
    let mut answers = client.server_reflection_info(tokio_stream::iter([old])).await.expect("a stream").into_inner();
    assert!(within(answers.next()).await.expect("an answer").is_ok());
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn a_broker_keeps_its_messages_and_its_directory_for_itself() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let own = Settings { data_dir: directory.path().join("data"), ..settings() };
    let broker = Running::serving(own.clone()).await;
    broker.wait_until_serving().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let mut queue = broker.queue().await;
    let ids = produce(&mut queue, "orders", vec![message("leased", "b"), message("acked", "b")]).await;
    let mut stream = Consuming::start(&mut queue, "orders", 2).await;
    let deliveries = stream.deliveries(2).await;
    stream.ack(vec![deliveries[1].receipt.clone()]).await;
    assert!(grpc_harness::is_acked(&stream.settled(1).await[0].results[0]));

    let second = Running::serving(own.clone()).await;
    let error = second.end().await.expect_err("the directory is taken");
    assert_eq!(error.exit_code(), 78, "{error}");
    assert!(error.to_string().contains("in use by another broker"), "{error}");
    // Its streams are still open when the broker is told to stop.
    broker.stop().await.expect("a clean end");

    let again = Running::serving(own).await;
    again.wait_until_serving().await;
    let stats = again.stats("orders").await;
    assert_eq!((stats.produced, stats.acked, stats.leased), (2, 1, 1), "the lease outlives a clean stop");
    let mut queue = again.queue().await;
    let receipts = deliveries.into_iter().map(|delivery| delivery.receipt).collect();
    let acked = queue.ack(pb::AckRequest { receipts }).await.expect("well-formed").into_inner().results;
    let acked: Vec<_> = acked.into_iter().map(|result| result.result).collect();
    let settled = |repeated| Some(pb::settlement_result::Result::Acked(pb::Acked { repeated }));
    assert_eq!(acked, [settled(false), settled(true)], "for {ids:?}");
    again.stop().await.expect("a clean end");
}
