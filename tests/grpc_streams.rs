//! Streams over a real connection: pipelined produces, and consumers that settle, stall, end and vanish.

mod grpc_harness;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use duewheel::engine::EngineSettings;
use duewheel::pb;
use duewheel::pb::consume_request::Frame;
use duewheel::pb::queue_service_client::QueueServiceClient;
use duewheel::pb::settlement_result::Result as Settled;
use duewheel::server::Settings;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use grpc_harness::{
    Consuming, Running, is_acked, is_pending, item_status, message, produce, reason, settings, until, within,
};

fn frame(keys: &[&str]) -> pb::ProduceStreamRequest {
    let messages = keys.iter().map(|key| message(key, "b")).collect();
    pb::ProduceStreamRequest { topic: "orders".to_owned(), messages }
}

/// The keys that were taken, and the reasons for the others, in order.
fn outcomes(response: &pb::ProduceStreamResponse) -> Vec<String> {
    let outcome = |result: &pb::ProduceResult| match result.result.as_ref().expect("a result") {
        pb::produce_result::Result::Produced(_) => "produced".to_owned(),
        pb::produce_result::Result::Error(item) => reason(&item_status(item)).0,
    };
    response.results.iter().map(outcome).collect()
}

/// Opens a produce stream.
async fn open_produce(
    queue: &mut QueueServiceClient<Channel>,
) -> (mpsc::Sender<pb::ProduceStreamRequest>, Streaming<pb::ProduceStreamResponse>) {
    let (requests, outgoing) = mpsc::channel(64);
    let responses = within(queue.produce_stream(ReceiverStream::new(outgoing))).await.expect("a stream").into_inner();
    (requests, responses)
}

#[tokio::test]
async fn a_produce_stream_takes_requests_before_it_answers_and_answers_in_order() {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let mut queue = broker.queue().await;
    let (requests, mut responses) = open_produce(&mut queue).await;
    broker.journal.hold();
    for keys in [&["a", "b"][..], &["a"], &["c", "", "c"]] {
        requests.send(frame(keys)).await.expect("an open stream");
    }
    broker.commit_under_way().await;
    assert!(is_pending(responses.message()).await, "nothing is answered before it is durable");
    broker.journal.release();
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(outcomes(&within(responses.message()).await.expect("a response").expect("more")));
    }
    assert_eq!(answers, [&["produced", "produced"][..], &["KEY_IN_USE"], &["produced", "produced", "KEY_IN_USE"]]);

    drop(requests);
    assert_eq!(within(responses.message()).await.expect("a clean end"), None);
    assert_eq!(broker.stats("orders").await.produced, 4);
    broker.stop().await.expect("a clean end");
}

/// On a slow disk a stream whose frames waited for each other's commits would starve.
#[tokio::test]
async fn all_frames_of_a_stream_that_wait_for_the_disk_share_the_next_commit() {
    const FRAMES: usize = 20;
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let mut queue = broker.queue().await;
    let (requests, mut responses) = open_produce(&mut queue).await;
    let keys: Vec<String> = (0..FRAMES).map(|n| format!("k-{n}")).collect();
    broker.journal.hold();
    for key in &keys {
        requests.send(frame(&[key])).await.expect("an open stream");
    }
    broker.commit_under_way().await;
    // Everything here is on one thread: by the time of these answers the stream has taken what it takes.
    for _ in 0..FRAMES {
        broker.healthz().await;
    }
    let before = broker.journal.commits();
    broker.journal.release();
    for _ in 0..FRAMES {
        within(responses.message()).await.expect("a response").expect("more");
    }
    let commits = broker.journal.commits() - before;
    assert!(commits <= 3, "{FRAMES} frames took {commits} commits");
    drop(requests);
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn a_malformed_request_ends_a_produce_stream_after_the_answers_before_it() {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let mut queue = broker.queue().await;
    let frames = vec![frame(&["a"]), frame(&[]), frame(&["never"])];
    let mut responses = within(queue.produce_stream(tokio_stream::iter(frames))).await.expect("a stream").into_inner();
    assert_eq!(outcomes(&within(responses.message()).await.expect("a response").expect("more")), ["produced"]);
    let status = within(responses.message()).await.expect_err("no messages");
    assert_eq!(grpc_harness::fields(&status), ["messages"]);
    assert_eq!(broker.stats("orders").await.produced, 1);
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn produce_streams_whose_answers_are_not_read_hold_up_nobody_else() {
    let settings = Settings { drain_deadline: Duration::from_millis(200), ..settings() };
    let broker = Running::start_with(settings, EngineSettings::default()).await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    // As the broker does, the client leaves room on the connection for all its streams.
    let endpoint = Endpoint::from_shared(format!("http://{}", broker.grpc)).expect("an address");
    let endpoint = endpoint.initial_stream_window_size(64 * 1024).initial_connection_window_size(16 * 1024 * 1024);
    let mut queue = QueueServiceClient::new(within(endpoint.connect()).await.expect("the broker accepts"));
    // Refusals are long, so the client's window for the answers is soon used up; and one frame is larger than what
    // may be sent on a stream before it is read.
    let bad = pb::NewMessage { key_policy: 99, ..message("", &"x".repeat(1_000)) };
    let frame = pb::ProduceStreamRequest { topic: "orders".to_owned(), messages: vec![bad; 300] };
    let sent = Arc::new(AtomicUsize::new(0));
    let mut unread = Vec::new();
    for _ in 0..3 {
        let (requests, outgoing) = mpsc::channel(1);
        let responses = within(queue.produce_stream(ReceiverStream::new(outgoing))).await.expect("a stream");
        let (counter, frame) = (Arc::clone(&sent), frame.clone());
        let sending = tokio::spawn(async move {
            while requests.send(frame.clone()).await.is_ok() {
                counter.fetch_add(1, Ordering::SeqCst);
            }
        });
        unread.push((responses, sending));
    }
    // The other calls share the connection, and go on long after the streams have come to a stand.
    let (mut other, mut calls, mut calls_at_a_stand, mut seen) = (queue.clone(), 0, 0, 0);
    while calls_at_a_stand < 200 {
        within(produce(&mut other, "orders", vec![message(&format!("k-{calls}"), "b")])).await;
        calls += 1;
        let now = sent.load(Ordering::SeqCst);
        calls_at_a_stand = if now == seen && now > 0 { calls_at_a_stand + 1 } else { 0 };
        seen = now;
    }
    for (_, sending) in unread {
        sending.abort();
    }
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn settlements_are_answered_in_the_order_they_were_sent() {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let mut queue = broker.queue().await;
    produce(&mut queue, "orders", (0..4).map(|n| message(&format!("k-{n}"), "b")).collect()).await;
    let mut stream = Consuming::start(&mut queue, "orders", 10).await;
    let receipts: Vec<_> = stream.deliveries(4).await.into_iter().map(|delivery| delivery.receipt).collect();
    let nack = |n: usize, reason: pb::NackReason| pb::NackItem {
        receipt: receipts[n].clone(),
        reason: reason.into(),
        ..Default::default()
    };
    let extend = |n: usize| pb::ExtendItem { receipt: receipts[n].clone(), lease: None };
    broker.journal.hold();
    stream.ack(vec![receipts[0].clone(), "forged".into()]).await;
    stream.send(Frame::Settlements(pb::Settlements::default())).await;
    let mixed = pb::Settlements {
        acks: vec![receipts[1].clone()],
        nacks: vec![nack(2, pb::NackReason::Dead), nack(2, pb::NackReason::NotYet)],
        extends: vec![extend(3), extend(1)],
    };
    stream.send(Frame::Settlements(mixed)).await;
    stream.ack(vec![receipts[0].clone()]).await;
    broker.commit_under_way().await;
    broker.journal.release();

    let text = |result: &pb::SettlementResult| match result.result.as_ref().expect("a result") {
        Settled::Acked(acked) => if acked.repeated { "acked before" } else { "acked" }.to_owned(),
        Settled::Nacked(nacked) => if nacked.dead { "dead" } else { "waits" }.to_owned(),
        Settled::Extended(_) => "extended".to_owned(),
        Settled::Error(item) => reason(&item_status(item)).0,
    };
    let settled: Vec<Vec<String>> =
        stream.settled(4).await.iter().map(|frame| frame.results.iter().map(text).collect()).collect();
    let want: [&[&str]; 4] = [
        &["acked", "RECEIPT_INVALID"],
        &[],
        &["acked", "dead", "LEASE_LOST", "extended", "MESSAGE_GONE"],
        &["acked before"],
    ];
    assert_eq!(settled, want);
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn a_window_is_never_exceeded_and_settling_makes_room() {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let mut queue = broker.queue().await;
    produce(&mut queue, "orders", (0..10).map(|n| message(&n.to_string(), "b")).collect()).await;
    let mut stream = Consuming::start(&mut queue, "orders", 3).await;
    let mut held: Vec<_> = stream.deliveries(3).await.into_iter().map(|delivery| delivery.receipt).collect();
    for left in (0..7).rev() {
        let stats = broker.stats("orders").await;
        assert_eq!((stats.leased, stats.ready), (3, left + 1), "the window is full and not more than full");
        stream.ack(vec![held.remove(0)]).await;
        let (mut acked, mut delivered) = (0, 0);
        while (acked, delivered) != (1, 1) {
            let frame = stream.next().await.expect("a frame");
            acked += frame.settled.iter().filter(|settled| is_acked(&settled.results[0])).count();
            delivered += frame.deliveries.len();
            held.extend(frame.deliveries.into_iter().map(|delivery| delivery.receipt));
        }
    }
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn deliveries_that_are_ready_together_share_frames_below_the_size_that_clients_accept() {
    use prost::Message as _;
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let mut queue = broker.queue().await;
    for _ in 0..4 {
        produce(&mut queue, "orders", vec![message("", "small"); 500]).await;
    }
    let large = "x".repeat(256 * 1024);
    for _ in 0..10 {
        produce(&mut queue, "orders", vec![message("", &large); 4]).await;
    }
    let mut stream = Consuming::start(&mut queue, "orders", 10_000).await;
    let (mut deliveries, mut frames) = (0, 0);
    while deliveries < 2_040 {
        let frame = stream.next().await.expect("a frame");
        assert!(frame.encoded_len() < 2 * 1024 * 1024, "{} bytes in a frame", frame.encoded_len());
        (deliveries, frames) = (deliveries + frame.deliveries.len(), frames + 1);
    }
    assert!(frames < 200, "{frames} frames");
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn a_fetch_of_large_messages_stays_below_the_size_that_clients_accept() {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let mut queue = broker.queue().await;
    let large = "x".repeat(256 * 1024);
    for _ in 0..10 {
        produce(&mut queue, "orders", vec![message("", &large); 4]).await;
    }
    let mut fetched = 0;
    while fetched < 40 {
        let request = pb::FetchRequest { topic: "orders".to_owned(), max_messages: 1_000, ..Default::default() };
        // The client's limit is the default of 4 MiB.
        let deliveries = within(queue.fetch(request)).await.expect("a response it can read").into_inner().deliveries;
        assert!(!deliveries.is_empty(), "{fetched} so far");
        fetched += deliveries.len();
    }
    assert_eq!(broker.stats("orders").await.leased, 40);
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn leases_come_back_when_the_client_ends_or_vanishes_and_no_attempt_is_spent() {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let mut queue = broker.queue().await;
    produce(&mut queue, "orders", (0..4).map(|n| message(&n.to_string(), "b")).collect()).await;
    for round in ["ends its side", "drops the stream", "drops the connection"] {
        let mut own = broker.queue().await;
        let mut stream = Consuming::start(&mut own, "orders", 10).await;
        assert_eq!(stream.deliveries(4).await.len(), 4, "the client {round}");
        let Consuming { requests, mut responses } = stream;
        match round {
            "ends its side" => {
                drop(requests);
                let rest = within(responses.message()).await.expect("the end is clean");
                assert!(rest.is_none_or(|frame| frame.deliveries.is_empty()));
            }
            "drops the stream" => drop((requests, responses)),
            _ => drop((requests, responses, own)),
        }
        until(|| async { broker.stats("orders").await.leased == 0 }).await;
        assert_eq!(broker.stats("orders").await.scheduled, 4, "they wait for the redelivery gap");
        let message = Some(pb::MessageRef { r#ref: Some(pb::message_ref::Ref::Key("0".to_owned())) });
        let request = pb::GetMessageRequest { topic: "orders".to_owned(), message, omit_body: true };
        let info = queue.get_message(request).await.expect("it lives").into_inner().message.expect("a message");
        assert_eq!(info.attempts, 0);
        assert_eq!(info.history.last().expect("an entry").outcome(), pb::DeliveryOutcome::Returned);
        broker.time.advance_ms(1_000);
    }
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn settlements_sent_before_the_client_ends_are_applied() {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let mut queue = broker.queue().await;
    produce(&mut queue, "orders", (0..3).map(|n| message(&n.to_string(), "b")).collect()).await;
    let mut stream = Consuming::start(&mut queue, "orders", 10).await;
    let deliveries = stream.deliveries(3).await;
    stream.ack(deliveries[..2].iter().map(|delivery| delivery.receipt.clone()).collect()).await;
    let Consuming { requests, mut responses } = stream;
    drop(requests);
    let answer = within(responses.message()).await.expect("a frame").expect("the answer comes before the end");
    assert!(answer.settled[0].results.iter().all(is_acked));
    assert_eq!(within(responses.message()).await.expect("a clean end"), None);
    until(|| async { broker.stats("orders").await.leased == 0 }).await;
    let stats = broker.stats("orders").await;
    assert_eq!((stats.acked, stats.scheduled), (2, 1));
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn a_consumer_that_does_not_read_holds_up_nobody() {
    let broker = Running::start().await;
    for topic in ["orders", "other"] {
        broker.create_topic(topic, pb::TopicSettings::default()).await;
    }
    let mut queue = broker.queue().await;
    // 20 MB for the one that does not read: more than the connection's windows and all channels hold.
    for _ in 0..10 {
        let large = "x".repeat(200_000);
        produce(&mut queue, "orders", vec![message("", &large); 10]).await;
    }
    let unread = Consuming::start(&mut queue, "orders", 10_000).await;
    until(|| async { broker.stats("orders").await.leased > 0 }).await;
    let mut stream = Consuming::start(&mut queue, "other", 10).await;
    for n in 0..50 {
        produce(&mut queue, "other", vec![message(&n.to_string(), "b")]).await;
        let receipt = stream.deliveries(1).await.remove(0).receipt;
        stream.ack(vec![receipt]).await;
        assert!(is_acked(&stream.settled(1).await[0].results[0]));
    }
    drop(unread);
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn streams_and_waiting_fetches_beyond_the_limit_are_refused_until_one_ends() {
    let engine = EngineSettings { max_streams: 1, max_waiters: 1, ..EngineSettings::default() };
    let broker = Running::start_with(settings(), engine).await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let mut queue = broker.queue().await;
    let first = Consuming::start(&mut queue, "orders", 1).await;
    until(|| async { broker.stats("orders").await.consumers == 1 }).await;
    let refused = Consuming::start(&mut queue, "orders", 1).await.next().await.expect_err("one too many");
    assert_eq!(reason(&refused), ("TOO_MANY_STREAMS".to_owned(), "not_done".to_owned()));
    drop(first);
    until(|| async { broker.stats("orders").await.consumers == 0 }).await;
    let _second = Consuming::start(&mut queue, "orders", 1).await;
    until(|| async { broker.stats("orders").await.consumers == 1 }).await;

    let wait = Some(prost_types::Duration { seconds: 60, nanos: 0 });
    let fetch = pb::FetchRequest { topic: "orders".to_owned(), wait, ..Default::default() };
    let (mut own, waiting) = (queue.clone(), fetch.clone());
    let waiting = tokio::spawn(async move { own.fetch(waiting).await });
    until(|| async { broker.stats("orders").await.waiting_fetches == 1 }).await;
    let refused = within(queue.fetch(fetch)).await.expect_err("one too many");
    assert_eq!(reason(&refused).0, "TOO_MANY_WAITERS");
    assert!(tonic_types::StatusExt::get_details_retry_info(&refused).is_some());
    waiting.abort();
    until(|| async { broker.stats("orders").await.waiting_fetches == 0 }).await;
    broker.stop().await.expect("a clean end");
}
