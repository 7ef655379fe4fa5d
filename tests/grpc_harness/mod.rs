//! A whole broker within the test process, on free ports and in a directory of its own, and its clients.

// Each test binary uses its part of the harness.
#![allow(dead_code, unreachable_pub)]

#[allow(clippy::struct_excessive_bools, reason = "each is a switch of the double")]
#[path = "../engine_support/mod.rs"]
pub mod engine_support;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::time::Duration;

use duewheel::clock::{ManualTime, StepPolicy};
use duewheel::engine::{EngineHandle, EngineSettings};
use duewheel::pb::admin_service_client::AdminServiceClient;
use duewheel::pb::queue_service_client::QueueServiceClient;
use duewheel::pb::{self, settlement_result};
use duewheel::queue::time::Timestamp;
use duewheel::server::{Listeners, OpenFailure, ServeError, Settings, serve, serve_engine};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt;

use engine_support::{Journal, START_MS, open};

/// Far longer than anything takes; only a hanging test reaches it.
pub const HANGS: Duration = Duration::from_secs(30);

/// A running broker, whose time stands still and whose journal is memory.
pub struct Running {
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    pub time: ManualTime,
    pub journal: Journal,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Result<(), ServeError>>,
}

type Stopped = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Settings for free ports.
pub fn settings() -> Settings {
    let free: SocketAddr = ([127, 0, 0, 1], 0).into();
    Settings { listen: free, http_listen: free, ..Settings::default() }
}

impl Running {
    /// Starts a fresh broker and waits until it serves.
    pub async fn start() -> Self {
        Self::start_with(settings(), EngineSettings::default()).await
    }

    /// As `start`, with settings.
    pub async fn start_with(settings: Settings, engine: EngineSettings) -> Self {
        Self::restart(settings, engine, Journal::default()).await
    }

    /// As `start`, over what a journal holds.
    pub async fn restart(settings: Settings, engine: EngineSettings, journal: Journal) -> Self {
        let time = ManualTime::new(Timestamp::from_millis(START_MS));
        let (clock, opened) = (time.clock(StepPolicy::Report), journal.clone());
        let broker = Self::opening(settings, time, journal, move || Ok(open(&opened, clock, engine))).await;
        broker.wait_until_serving().await;
        broker
    }

    /// Starts a broker whose engine comes from `open`, and does not wait for it.
    pub async fn opening(
        settings: Settings,
        time: ManualTime,
        journal: Journal,
        open: impl FnOnce() -> Result<EngineHandle, OpenFailure> + Send + 'static,
    ) -> Self {
        let own = settings.clone();
        let serving = |listeners, stopped| async move { serve_engine(&own, listeners, open, stopped).await };
        Self::run(settings, time, journal, serving).await
    }

    /// Starts a broker on the real store and clock, and does not wait for it. Its journal and time are of no use.
    pub async fn serving(settings: Settings) -> Self {
        let (own, time) = (settings.clone(), ManualTime::new(Timestamp::from_millis(START_MS)));
        Self::run(settings, time, Journal::default(), |listeners, stopped| serve(own, listeners, stopped)).await
    }

    async fn run<F>(
        settings: Settings,
        time: ManualTime,
        journal: Journal,
        serving: impl FnOnce(Listeners, Stopped) -> F,
    ) -> Self
    where
        F: Future<Output = Result<(), ServeError>> + Send + 'static,
    {
        let listeners = Listeners::bind(&settings).await.expect("free ports");
        let grpc = listeners.grpc_address().expect("a bound address");
        let http = listeners.http_address().expect("a bound address");
        let (stop, stopped) = oneshot::channel::<()>();
        // A dropped sender stops the broker as well, so that a failed test does not leave it running.
        let stopped = Box::pin(async { drop(stopped.await) });
        let ended = tokio::spawn(serving(listeners, stopped));
        Self { grpc, http, time, journal, stop, ended }
    }

    /// Asks the broker to shut down and waits until it has ended.
    pub async fn stop(self) -> Result<(), ServeError> {
        let _ = self.stop.send(());
        within(self.ended).await.expect("the broker does not panic")
    }

    /// Waits until the broker has ended by itself.
    pub async fn end(self) -> Result<(), ServeError> {
        within(self.ended).await.expect("the broker does not panic")
    }

    /// Asks the broker to shut down and leaves the waiting to the caller.
    pub fn request_stop(self) -> JoinHandle<Result<(), ServeError>> {
        let _ = self.stop.send(());
        self.ended
    }

    /// Waits until a commit is under way.
    pub async fn commit_under_way(&self) {
        let journal = self.journal.clone();
        within(tokio::task::spawn_blocking(move || journal.wait_for_commit())).await.expect("it does not panic");
    }

    /// A new connection.
    pub async fn connect(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.grpc)).expect("an address");
        within(endpoint.connect()).await.expect("the broker accepts")
    }

    /// A client of the queue on a new connection.
    pub async fn queue(&self) -> QueueServiceClient<Channel> {
        QueueServiceClient::new(self.connect().await)
    }

    /// A client of the administration on a new connection.
    pub async fn admin(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.connect().await)
    }

    /// Creates a topic.
    pub async fn create_topic(&self, name: &str, settings: pb::TopicSettings) {
        let request = pb::CreateTopicRequest { name: name.to_owned(), settings: Some(settings) };
        self.admin().await.create_topic(request).await.expect("a new topic");
    }

    /// Counts of a topic.
    pub async fn stats(&self, topic: &str) -> pb::TopicStats {
        let request = pb::GetStatsRequest { topic: topic.to_owned(), ..Default::default() };
        let response = self.admin().await.get_stats(request).await.expect("stats").into_inner();
        response.topics.into_iter().next().expect("the topic")
    }

    /// Code and body of `GET /healthz`.
    pub async fn healthz(&self) -> (u16, String) {
        healthz(self.http).await
    }

    /// Waits until `/healthz` says that the broker serves.
    pub async fn wait_until_serving(&self) {
        until(|| async { self.healthz().await == (200, "serving".to_owned()) }).await;
    }
}

/// Code and body of `GET /healthz`.
pub async fn healthz(http: SocketAddr) -> (u16, String) {
    let mut stream = TcpStream::connect(http).await.expect("the HTTP listener accepts");
    let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.expect("a request");
    let mut response = String::new();
    within(stream.read_to_string(&mut response)).await.expect("a response");
    let code = response.split(' ').nth(1).expect("a status line").parse().expect("a number");
    let body = response.split("\r\n\r\n").nth(1).expect("a body");
    (code, body.to_owned())
}

/// Waits for `future`, which must not hang.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANGS, future).await.expect("this does not hang")
}

/// Looks again and again until `condition` holds; it must hold soon.
pub async fn until<F: Future<Output = bool>>(mut condition: impl FnMut() -> F) {
    let looking = async {
        while !condition().await {
            tokio::task::yield_now().await;
        }
    };
    within(looking).await;
}

/// Reason and metadata entry `outcome` of a status.
pub fn reason(status: &Status) -> (String, String) {
    let info = status.get_details_error_info().unwrap_or_else(|| panic!("no error info in {status:?}"));
    assert_eq!(info.domain, "duewheel");
    (info.reason, info.metadata["outcome"].clone())
}

/// The fields that a status complains about.
pub fn fields(status: &Status) -> Vec<String> {
    let request = status.get_details_bad_request();
    request.into_iter().flat_map(|request| request.field_violations).map(|violation| violation.field).collect()
}

/// The status of an item as the status of a call, so that both are checked alike.
pub fn item_status(item: &tonic_types::pb::Status) -> Status {
    use prost::Message as _;
    Status::with_details(Code::from_i32(item.code), item.message.clone(), item.encode_to_vec().into())
}

/// A message without a wait.
pub fn message(key: &str, body: &str) -> pb::NewMessage {
    pb::NewMessage {
        key: key.to_owned(),
        body: body.to_owned().into(),
        first_wait: Some(pb::new_message::FirstWait::Delay(prost_types::Duration::default())),
        ..Default::default()
    }
}

/// Produces messages that must all be taken; returns their ids.
pub async fn produce(
    queue: &mut QueueServiceClient<Channel>,
    topic: &str,
    messages: Vec<pb::NewMessage>,
) -> Vec<String> {
    let request = pb::ProduceRequest { topic: topic.to_owned(), messages };
    let results = queue.produce(request).await.expect("a well-formed request").into_inner().results;
    results
        .into_iter()
        .map(|result| match result.result {
            Some(pb::produce_result::Result::Produced(produced)) => produced.id,
            other => panic!("not produced: {other:?}"),
        })
        .collect()
}

/// A consume stream and the way to talk on it.
pub struct Consuming {
    pub requests: mpsc::Sender<pb::ConsumeRequest>,
    pub responses: Streaming<pb::ConsumeResponse>,
}

impl Consuming {
    /// Opens a stream that has not said `start` yet.
    pub async fn open(queue: &mut QueueServiceClient<Channel>) -> Self {
        let (requests, outgoing) = mpsc::channel(64);
        let responses = within(queue.consume(ReceiverStream::new(outgoing))).await.expect("a stream").into_inner();
        Self { requests, responses }
    }

    /// Opens a stream on one topic.
    pub async fn start(queue: &mut QueueServiceClient<Channel>, topic: &str, window: u32) -> Self {
        let stream = Self::open(queue).await;
        let topics = vec![pb::TopicWindow { topic: topic.to_owned(), window, lease: None }];
        let start = pb::ConsumeStart { consumer: "test".to_owned(), topics };
        stream.send(pb::consume_request::Frame::Start(start)).await;
        stream
    }

    /// Sends a frame.
    pub async fn send(&self, frame: pb::consume_request::Frame) {
        within(self.requests.send(pb::ConsumeRequest { frame: Some(frame) })).await.expect("an open stream");
    }

    /// Acks some receipts in one frame.
    pub async fn ack(&self, acks: Vec<bytes::Bytes>) {
        let settlements = pb::Settlements { acks, ..Default::default() };
        self.send(pb::consume_request::Frame::Settlements(settlements)).await;
    }

    /// The next frame; an error is the end of the stream.
    pub async fn next(&mut self) -> Result<pb::ConsumeResponse, Status> {
        let frame = within(self.responses.message()).await?;
        frame.ok_or_else(|| Status::ok("the stream has ended"))
    }

    /// Reads frames until there are `count` deliveries; settlement answers that come meanwhile are dropped.
    pub async fn deliveries(&mut self, count: usize) -> Vec<pb::Delivery> {
        let mut deliveries = Vec::new();
        while deliveries.len() < count {
            deliveries.extend(self.next().await.expect("a frame").deliveries);
        }
        deliveries
    }

    /// Reads frames until there are `count` answers to settlement frames; deliveries that come meanwhile are
    /// dropped.
    pub async fn settled(&mut self, count: usize) -> Vec<pb::SettlementResults> {
        let mut settled = Vec::new();
        while settled.len() < count {
            settled.extend(self.next().await.expect("a frame").settled);
        }
        settled
    }
}

/// True if the settlement is an ack that won.
pub fn is_acked(result: &pb::SettlementResult) -> bool {
    matches!(result.result, Some(settlement_result::Result::Acked(_)))
}

/// True while the future does not resolve, polled once.
pub async fn is_pending(future: impl Future) -> bool {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}
