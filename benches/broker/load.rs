//! The loads: lateness at light load, produce, and whole lives over streams.

use std::time::Duration;

use duewheel::clock::{Stopwatch, wall_now};
use duewheel::pb::admin_service_client::AdminServiceClient;
use duewheel::pb::queue_service_client::QueueServiceClient;
use duewheel::pb::{
    ConsumeRequest, ConsumeResponse, ConsumeStart, CreateTopicRequest, NewMessage, ProduceRequest,
    ProduceStreamRequest, Settlements, TopicWindow, consume_request, new_message, produce_result,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use crate::Figures;

/// How long and how much.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) seconds: f64,
    /// Messages of the lateness load.
    light: u64,
    /// Messages of the lifecycle load.
    lives: usize,
}

impl Size {
    pub(crate) fn full() -> Self {
        Self { seconds: 5.0, light: 1_000, lives: 300_000 }
    }

    pub(crate) fn smoke() -> Self {
        Self { seconds: 0.2, light: 20, lives: 2_000 }
    }
}

/// Messages in one frame of a stream.
const FRAME: usize = 100;
/// Frames under way on the produce stream.
const FRAMES_UNDER_WAY: usize = 16;
const WINDOW: u32 = 10_000;

async fn connect(endpoint: &str) -> Channel {
    let endpoint = Endpoint::from_shared(endpoint.to_owned()).expect("a good address").tcp_nodelay(true);
    endpoint.connect().await.expect("the broker listens")
}

async fn create_topic(endpoint: &str, name: &str) {
    let request = CreateTopicRequest { name: name.to_owned(), settings: None };
    AdminServiceClient::new(connect(endpoint).await).create_topic(request).await.expect("a new topic");
}

fn message(delay_ms: u64) -> NewMessage {
    let nanos = i32::try_from(delay_ms % 1_000 * 1_000_000).expect("below a second");
    let delay = prost_types::Duration { seconds: i64::try_from(delay_ms / 1_000).expect("a short delay"), nanos };
    NewMessage {
        body: bytes::Bytes::from_static(&[7; 256]),
        first_wait: Some(new_message::FirstWait::Delay(delay)),
        ..NewMessage::default()
    }
}

/// One consumer waits; messages fall due at random moments. Receive time by our clock minus due time.
pub(crate) async fn lateness(endpoint: &str, size: Size) -> Figures {
    create_topic(endpoint, "light").await;
    let (_frames, mut incoming) = consume(endpoint, "light").await;
    let mut producer = QueueServiceClient::new(connect(endpoint).await);
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..size.light / 10 {
        let messages = (0..10).map(|_| message(random.u64(500..size.light * 10 + 500))).collect();
        let request = ProduceRequest { topic: "light".to_owned(), messages };
        producer.produce(request).await.expect("produced");
    }
    let mut lateness: Vec<f64> = Vec::new();
    while lateness.len() < usize::try_from(size.light / 10 * 10).expect("few") {
        let response = incoming.message().await.expect("the stream lives").expect("the stream goes on");
        #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 fit 52 bits")]
        for delivery in response.deliveries {
            let due_at = delivery.due_at.expect("a due time");
            let due_ms = due_at.seconds as f64 * 1e3 + f64::from(due_at.nanos) / 1e6;
            lateness.push(wall_now().as_millis() as f64 - due_ms);
        }
    }
    lateness.sort_by(f64::total_cmp);
    let at = |part: usize| lateness[(lateness.len() - 1) * part / 1_000];
    vec![
        ("lateness at 100 msg/s, at the client, p50, ms", at(500)),
        ("lateness at 100 msg/s, at the client, p99, ms", at(990)),
        ("lateness at 100 msg/s, at the client, max, ms", at(1_000)),
    ]
}

/// `connections` clients that each send a request of `batch` far-off messages when the one before is answered.
pub(crate) async fn produce(endpoint: &str, connections: usize, batch: usize, size: Size) -> f64 {
    let topic = format!("produce-{connections}-{batch}");
    create_topic(endpoint, &topic).await;
    let mut clients = tokio::task::JoinSet::new();
    let watch = Stopwatch::start();
    for _ in 0..connections {
        let (mut client, topic) = (QueueServiceClient::new(connect(endpoint).await), topic.clone());
        clients.spawn(async move {
            let watch = Stopwatch::start();
            let mut produced = 0_usize;
            while watch.elapsed().as_secs_f64() < size.seconds {
                let messages = (0..batch).map(|n| message(3_600_000 + n as u64)).collect();
                let request = ProduceRequest { topic: topic.clone(), messages };
                let results = client.produce(request).await.expect("produced").into_inner().results;
                let stored = |result: &duewheel::pb::ProduceResult| {
                    matches!(result.result, Some(produce_result::Result::Produced(_)))
                };
                assert!(results.len() == batch && results.iter().all(stored), "a produce was refused");
                produced += batch;
            }
            produced
        });
    }
    let produced: usize = clients.join_all().await.into_iter().sum();
    rate(produced, &watch)
}

/// A produce stream with frames of 100 and 16 frames under way; a consume stream that acks every delivery.
pub(crate) async fn lifecycles(endpoint: &str, size: Size) -> f64 {
    create_topic(endpoint, "lives").await;
    let (frames, mut incoming) = consume(endpoint, "lives").await;
    let watch = Stopwatch::start();
    let producer = tokio::spawn(produce_stream(endpoint.to_owned(), size.lives));
    let mut acked = 0;
    while acked < size.lives {
        let response = incoming.message().await.expect("the stream lives").expect("the stream goes on");
        acked += response.settled.iter().map(|settled| settled.results.len()).sum::<usize>();
        let acks: Vec<_> = response.deliveries.into_iter().map(|delivery| delivery.receipt).collect();
        for chunk in acks.chunks(1_000) {
            let settlements = Settlements { acks: chunk.to_vec(), ..Settlements::default() };
            let frame = consume_request::Frame::Settlements(settlements);
            frames.send(ConsumeRequest { frame: Some(frame) }).expect("the stream is open");
        }
    }
    producer.await.expect("all was produced");
    rate(size.lives, &watch)
}

async fn produce_stream(endpoint: String, count: usize) {
    let (sender, frames) = mpsc::channel(FRAMES_UNDER_WAY);
    let mut client = QueueServiceClient::new(connect(&endpoint).await);
    let feeder = tokio::spawn(async move {
        for _ in 0..count / FRAME {
            let messages = vec![message(0); FRAME];
            let frame = ProduceStreamRequest { topic: "lives".to_owned(), messages };
            sender.send(frame).await.expect("the stream is open");
        }
    });
    let mut responses = client.produce_stream(ReceiverStream::new(frames)).await.expect("a stream").into_inner();
    for _ in 0..count / FRAME {
        let response = responses.message().await.expect("the stream lives").expect("an answer to each frame");
        assert_eq!(response.results.len(), FRAME);
    }
    feeder.await.expect("all was sent");
}

async fn consume(endpoint: &str, topic: &str) -> (mpsc::UnboundedSender<ConsumeRequest>, Streaming<ConsumeResponse>) {
    let (frames, outgoing) = mpsc::unbounded_channel();
    let topics = vec![TopicWindow { topic: topic.to_owned(), window: WINDOW, lease: None }];
    let start = consume_request::Frame::Start(ConsumeStart { consumer: "bench".to_owned(), topics });
    frames.send(ConsumeRequest { frame: Some(start) }).expect("the receiver is here");
    let mut client = QueueServiceClient::new(connect(endpoint).await);
    let stream = client.consume(UnboundedReceiverStream::new(outgoing)).await.expect("a stream").into_inner();
    // The stream is attached before the load begins.
    tokio::time::sleep(Duration::from_millis(50)).await;
    (frames, stream)
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52 messages")]
fn rate(count: usize, watch: &Stopwatch) -> f64 {
    count as f64 / watch.elapsed().as_secs_f64()
}
