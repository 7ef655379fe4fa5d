//! The deadline of a call: what the broker answers when it has passed, and what the client makes of it.

mod grpc_harness;

use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use duewheel::client::{Client, NewMessage, Options, Outcome};
use duewheel::pb;
use tokio::net::TcpStream;
use tonic::codegen::http::Request;
use tonic::{Code, Status};

use grpc_harness::{Running, reason, within};

/// The status that a call gets whose client says how long it may take, but does not end it itself.
async fn status(broker: &Running, method: &str, timeout: &str, message: &impl prost::Message) -> Status {
    let stream = TcpStream::connect(broker.grpc).await.expect("the broker accepts");
    let (mut requests, connection) = h2::client::handshake(stream).await.expect("the broker speaks HTTP/2");
    let pump = tokio::spawn(connection);
    let request = Request::post(format!("http://{}/duewheel.v1.{method}", broker.grpc))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", timeout)
        .body(())
        .expect("a well-formed request");
    let (response, mut body) = requests.send_request(request, false).expect("an open connection");
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(message.encoded_len().try_into().expect("small"));
    message.encode(&mut frame).expect("there is room");
    body.send_data(frame.freeze(), true).expect("an open stream");
    let response = within(response).await.expect("an answer");
    pump.abort();
    // An answer without a message has its status where others have their first header.
    Status::from_header_map(response.headers()).expect("a status")
}

#[tokio::test]
async fn a_call_whose_deadline_passes_is_told_so_and_that_the_outcome_is_unknown() {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let wait = Some(prost_types::Duration { seconds: 20, nanos: 0 });
    let fetch = pb::FetchRequest { topic: "orders".to_owned(), wait, ..Default::default() };
    broker.journal.hold();
    let message = pb::NewMessage { body: Bytes::from_static(b"x"), ..Default::default() };
    let produce = pb::ProduceRequest { topic: "orders".to_owned(), messages: vec![message] };
    for status in [
        status(&broker, "QueueService/Fetch", "50m", &fetch).await,
        status(&broker, "QueueService/Produce", "50000u", &produce).await,
    ] {
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
        assert_eq!(reason(&status), ("DEADLINE_PASSED".to_owned(), "unknown".to_owned()), "{status:?}");
        assert!(status.message().contains("50ms"), "{status:?}");
    }
    broker.journal.release();
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn the_client_tells_a_produce_that_was_not_answered_in_time_from_one_that_was_refused() {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let options =
        Options { request_timeout: Duration::from_millis(50), ..Options::new(format!("http://{}", broker.grpc)) };
    let client = Client::connect(options).await.expect("the broker accepts");
    broker.journal.hold();
    let error = within(client.produce("orders", NewMessage::new("x"))).await.expect_err("nothing is durable");
    assert_eq!((error.code(), error.outcome()), (Code::DeadlineExceeded, Outcome::Unknown), "{error:?}");
    assert!(error.is_temporary() && !error.is_unreachable());
    broker.journal.release();
    grpc_harness::until(|| async { broker.stats("orders").await.produced == 1 }).await;
    let refused = client.produce("missing", NewMessage::new("x")).await.expect_err("there is no such topic");
    assert_eq!(refused.outcome(), Outcome::NotDone);
    broker.stop().await.expect("a clean end");
}
