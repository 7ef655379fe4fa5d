//! A proxy in front of a broker. The calls that carry promises go through the saboteur, all others pass untouched.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request as HttpRequest;
use axum::response::Response as HttpResponse;
use axum::routing::{MethodRouter, post};
use bytes::Bytes;
use duewheel::pb::admin_service_client::AdminServiceClient;
use duewheel::pb::queue_service_client::QueueServiceClient;
use duewheel::pb::{self, consume_request, produce_result};
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::codegen::Service as _;
use tonic::server::{Grpc, StreamingService, UnaryService};
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::sabotage::{Hoard, Plan, Sabotage, Saboteur};

/// Frames that may wait in each direction of a stream.
const FRAMES: usize = 16;

/// A running proxy. Dropping it ends it.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy in front of `broker`.
    pub(crate) async fn start(broker: SocketAddr, sabotage: Sabotage, seed: u64) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{broker}")).expect("an address").tcp_nodelay(true);
        let routes = routes(endpoint.connect_lazy(), &Arc::new(Saboteur::new(sabotage, seed)));
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let serving = tokio::spawn(async move {
            let server = Server::builder().tcp_nodelay(true).add_routes(Routes::from(routes));
            server.serve_with_incoming(TcpListenerStream::new(listener)).await.expect("the proxy serves");
        });
        Self { address, serving }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn routes(broker: Channel, saboteur: &Arc<Saboteur>) -> Router {
    let queue = || (QueueServiceClient::new(broker.clone()), Arc::clone(saboteur));
    let (client, own) = queue();
    let produce = unary(move |request| produce(client.clone(), Arc::clone(&own), request));
    let (client, own) = queue();
    let cancel = unary(move |request| cancel(client.clone(), Arc::clone(&own), request));
    let (client, own) = queue();
    let reschedule = unary(move |request| reschedule(client.clone(), Arc::clone(&own), request));
    let (client, own) = (AdminServiceClient::new(broker.clone()), Arc::clone(saboteur));
    let stats = unary(move |request| stats(client.clone(), Arc::clone(&own), request));
    let (client, own) = queue();
    let consume = post(move |request: HttpRequest| async move {
        let codec = ProstCodec::<pb::ConsumeResponse, pb::ConsumeRequest>::default();
        Grpc::new(codec).streaming(Consume(client, own), request).await
    });
    Router::new()
        .route("/duewheel.v1.QueueService/Produce", produce)
        .route("/duewheel.v1.QueueService/Cancel", cancel)
        .route("/duewheel.v1.QueueService/Reschedule", reschedule)
        .route("/duewheel.v1.QueueService/Consume", consume)
        .route("/duewheel.v1.AdminService/GetStats", stats)
        .fallback(move |request| pass(broker, request))
}

/// Passes any other call on as it is.
async fn pass(mut broker: Channel, request: HttpRequest) -> HttpResponse {
    let answered = async {
        poll_fn(|context| broker.poll_ready(context)).await?;
        broker.call(request.map(tonic::body::Body::new)).await
    };
    let response = answered.await.unwrap_or_else(|error| Status::unavailable(error.to_string()).into_http());
    response.map(axum::body::Body::new)
}

fn unary<Q, A, F, Answered>(act: F) -> MethodRouter<(), Infallible>
where
    Q: Message + Default + Send + Sync + 'static,
    A: Message + Default + Send + Sync + 'static,
    F: Fn(Q) -> Answered + Clone + Send + Sync + 'static,
    Answered: Future<Output = Result<A, Status>> + Send + 'static,
{
    post(
        move |request: HttpRequest| async move { Grpc::new(ProstCodec::<A, Q>::default()).unary(Call(act), request).await },
    )
}

struct Call<F>(F);

impl<Q, A, F, Answered> UnaryService<Q> for Call<F>
where
    F: Fn(Q) -> Answered,
    Answered: Future<Output = Result<A, Status>> + Send + 'static,
{
    type Response = A;
    type Future = Pin<Box<dyn Future<Output = Result<Response<A>, Status>> + Send>>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let answered = (self.0)(request.into_inner());
        Box::pin(async { answered.await.map(Response::new) })
    }
}

type Queue = QueueServiceClient<Channel>;

async fn produce(
    mut broker: Queue,
    saboteur: Arc<Saboteur>,
    request: pb::ProduceRequest,
) -> Result<pb::ProduceResponse, Status> {
    tokio::time::sleep(saboteur.delay()).await;
    let pb::ProduceRequest { topic, mut messages } = request;
    let dropped: Vec<bool> = messages.iter_mut().map(|message| saboteur.drops(message)).collect();
    let mut drop = dropped.iter();
    messages.retain(|_| !drop.next().expect("one for each message"));
    // The key of a second message of the same key is in use: its answer is given instead of that of the first.
    let is_kept = messages.iter().all(|message| saboteur.keeps_key(message)) && !messages.is_empty();
    if is_kept {
        messages = messages.into_iter().flat_map(|message| [message.clone(), message]).collect();
    }
    let mut stored = Vec::new();
    if !messages.is_empty() {
        stored = broker.produce(pb::ProduceRequest { topic, messages }).await?.into_inner().results;
    }
    if is_kept {
        stored = stored.into_iter().skip(1).step_by(2).collect();
    }
    let mut stored = stored.into_iter();
    let never = || pb::ProduceResult { result: Some(produce_result::Result::Produced(pb::Produced::default())) };
    let mut results: Vec<_> =
        dropped.into_iter().filter_map(|is_dropped| if is_dropped { Some(never()) } else { stored.next() }).collect();
    saboteur.results(&mut results);
    Ok(pb::ProduceResponse { results })
}

async fn cancel(
    mut broker: Queue,
    saboteur: Arc<Saboteur>,
    request: pb::CancelRequest,
) -> Result<pb::CancelResponse, Status> {
    if saboteur.drops_cancel(&request) {
        let status = pb::CancelStatus::Cancelled.into();
        return Ok(pb::CancelResponse { status, ..pb::CancelResponse::default() });
    }
    broker.cancel(request).await.map(Response::into_inner)
}

async fn reschedule(
    mut broker: Queue,
    saboteur: Arc<Saboteur>,
    request: pb::RescheduleRequest,
) -> Result<pb::RescheduleResponse, Status> {
    if saboteur.drops_reschedule(&request) {
        let status = pb::RescheduleStatus::Rescheduled.into();
        return Ok(pb::RescheduleResponse { status, ..pb::RescheduleResponse::default() });
    }
    broker.reschedule(request).await.map(Response::into_inner)
}

async fn stats(
    mut broker: AdminServiceClient<Channel>,
    saboteur: Arc<Saboteur>,
    request: pb::GetStatsRequest,
) -> Result<pb::GetStatsResponse, Status> {
    let mut response = broker.get_stats(request).await?.into_inner();
    saboteur.stats(&mut response);
    Ok(response)
}

struct Consume(Queue, Arc<Saboteur>);

impl StreamingService<pb::ConsumeRequest> for Consume {
    type Response = pb::ConsumeResponse;
    type ResponseStream = ReceiverStream<Result<pb::ConsumeResponse, Status>>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Self::ResponseStream>, Status>> + Send>>;

    fn call(&mut self, request: Request<Streaming<pb::ConsumeRequest>>) -> Self::Future {
        let (mut broker, saboteur) = (self.0.clone(), Arc::clone(&self.1));
        Box::pin(async move {
            let mut from_client = request.into_inner();
            let start = from_client.message().await?.ok_or_else(|| Status::cancelled("no start"))?;
            let (to_broker, outgoing) = mpsc::channel(FRAMES);
            to_broker.send(start).await.expect("the receiver is here");
            let from_broker = broker.consume(ReceiverStream::new(outgoing)).await?.into_inner();
            let (to_client, answers) = mpsc::channel(FRAMES);
            let hoard = saboteur.hoard();
            let stream = Stream { saboteur, to_broker, to_client, asked: VecDeque::new(), hoard };
            tokio::spawn(stream.run(from_client, from_broker));
            Ok(Response::new(ReceiverStream::new(answers)))
        })
    }
}

/// Who answers a frame of settlements, in the order in which they came.
enum Asked {
    /// The broker. With the receipt of its nack, if there is one.
    Broker(Option<Bytes>),
    Proxy(pb::SettlementResults),
}

/// One consume stream.
struct Stream {
    saboteur: Arc<Saboteur>,
    to_broker: mpsc::Sender<pb::ConsumeRequest>,
    to_client: mpsc::Sender<Result<pb::ConsumeResponse, Status>>,
    asked: VecDeque<Asked>,
    hoard: Option<Hoard>,
}

impl Stream {
    /// Passes frames on until either side ends the stream; then both ends are dropped.
    async fn run(
        mut self,
        mut from_client: Streaming<pb::ConsumeRequest>,
        mut from_broker: Streaming<pb::ConsumeResponse>,
    ) {
        loop {
            let goes_on = tokio::select! {
                request = from_client.message() => match request {
                    Ok(Some(request)) => self.ask(request).await,
                    Ok(None) | Err(_) => false,
                },
                response = from_broker.message() => match response {
                    Ok(Some(response)) => self.answer(response).await,
                    Ok(None) => false,
                    Err(status) => {
                        let _gone = self.to_client.send(Err(status)).await;
                        false
                    }
                },
            };
            if !goes_on {
                return;
            }
        }
    }

    async fn ask(&mut self, request: pb::ConsumeRequest) -> bool {
        let Some(consume_request::Frame::Settlements(settlements)) = request.frame else { return false };
        let nack = settlements.nacks.first().map(|nack| nack.receipt.clone());
        match self.saboteur.plan(settlements) {
            Plan::Forward(settlements) => {
                self.asked.push_back(Asked::Broker(nack));
                let frame = Some(consume_request::Frame::Settlements(settlements));
                self.to_broker.send(pb::ConsumeRequest { frame }).await.is_ok()
            }
            Plan::Answer(result) => {
                let results = vec![pb::SettlementResult { result: Some(result) }];
                self.asked.push_back(Asked::Proxy(pb::SettlementResults { results }));
                self.answer(pb::ConsumeResponse::default()).await
            }
        }
    }

    async fn answer(&mut self, response: pb::ConsumeResponse) -> bool {
        let mut passed = pb::ConsumeResponse::default();
        if let Some(hoard) = &mut self.hoard {
            hoard.keep(&response.deliveries);
        }
        passed.deliveries = self.saboteur.deliveries(response.deliveries);
        for results in response.settled {
            self.own_answers(&mut passed);
            if let (Some(Asked::Broker(Some(receipt))), Some(hoard)) = (self.asked.pop_front(), &mut self.hoard) {
                passed.deliveries.extend(hoard.settled(&receipt, results.results.first()));
            }
            passed.settled.push(results);
        }
        self.own_answers(&mut passed);
        let is_empty = passed.deliveries.is_empty() && passed.settled.is_empty();
        is_empty || self.to_client.send(Ok(passed)).await.is_ok()
    }

    /// Gives the proxy's own answers that are next.
    fn own_answers(&mut self, passed: &mut pb::ConsumeResponse) {
        while let Some(Asked::Proxy(_)) = self.asked.front() {
            let Some(Asked::Proxy(results)) = self.asked.pop_front() else { return };
            passed.settled.push(results);
        }
    }
}
