//! The listening side: gRPC and HTTP servers as tasks, and their end within a deadline.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use super::health::Health;
use super::listen::{Acceptor, Listeners};
use super::reflection::reflection;
use super::settings::{
    CALL_TIMEOUT, CONNECTION_WINDOW, HTTP_CONNECTION_LIFE, MAX_FRAME_BYTES, MAX_HEADER_LIST_BYTES,
    MAX_HTTP_CONNECTIONS, MAX_LOCAL_RESETS, MAX_PENDING_RESETS, MAX_STREAMS, STREAM_WINDOW, Settings,
};
use super::{Admin, Queue};
use crate::grpc::{Broker, Deadlines, MAX_REQUEST_BYTES, MAX_RESPONSE_BYTES};
use crate::pb::admin_service_server::AdminServiceServer;
use crate::pb::queue_service_server::QueueServiceServer;

/// Tasks of connections that were cut end at once; this is only so that a fault there cannot hang the process.
const CUT_DEADLINE: Duration = Duration::from_secs(1);

/// The running servers.
pub(super) struct Network {
    servers: JoinSet<()>,
    /// No new connections; those that are idle end.
    close: CancellationToken,
    /// All connections end.
    cut: CancellationToken,
}

impl Network {
    /// Starts serving `broker` on `listeners`.
    pub(super) fn start(settings: &Settings, listeners: Listeners, broker: &Broker, health: &Health) -> Self {
        let (close, cut) = (CancellationToken::new(), CancellationToken::new());
        let mut servers = JoinSet::new();
        let grpc = Acceptor::new(listeners.grpc, settings.max_connections, None, cut.clone());
        servers.spawn(serve_grpc(settings, grpc, broker.clone(), health.reporter(), close.clone()));
        let http = Acceptor::new(listeners.http, MAX_HTTP_CONNECTIONS, Some(HTTP_CONNECTION_LIFE), cut.clone());
        let http = axum::serve(http, health.router()).with_graceful_shutdown(close.clone().cancelled_owned());
        servers.spawn(async move {
            if let Err(error) = http.await {
                tracing::error!(%error, "the HTTP server has ended");
            }
        });
        Self { servers, close, cut }
    }

    /// Ends the servers: in good order if that is done before `deadline` resolves, else by cutting what is open.
    /// An open stream that nobody reads does keep its connection for ever (hyper issue 4170), so the cut is no
    /// rare case.
    pub(super) async fn stop(mut self, deadline: impl Future<Output = ()>) {
        self.close.cancel();
        tokio::select! {
            () = ended(&mut self.servers) => return,
            () = deadline => {}
        }
        tracing::warn!("the drain deadline has passed; cutting the connections that are open");
        self.cut.cancel();
        if tokio::time::timeout(CUT_DEADLINE, ended(&mut self.servers)).await.is_err() {
            tracing::error!("connections did not end although they were cut");
        }
    }
}

async fn ended(servers: &mut JoinSet<()>) {
    while let Some(ended) = servers.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a server has panicked");
        }
    }
}

fn serve_grpc(
    settings: &Settings,
    acceptor: Acceptor,
    broker: Broker,
    health: HealthReporter,
    close: CancellationToken,
) -> impl Future<Output = ()> + use<> {
    let queue = QueueServiceServer::new(Queue::new(broker.clone()))
        .max_decoding_message_size(MAX_REQUEST_BYTES)
        .max_encoding_message_size(MAX_RESPONSE_BYTES);
    let admin = AdminServiceServer::new(Admin::new(broker))
        .max_decoding_message_size(MAX_REQUEST_BYTES)
        .max_encoding_message_size(MAX_RESPONSE_BYTES);
    let well_formed = "the descriptors come from the compiler";
    let served = Server::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .concurrency_limit_per_connection(usize::try_from(MAX_STREAMS).expect("u32 fits usize"))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keepalive_interval(Some(settings.keepalive_interval))
        .http2_keepalive_timeout(Some(settings.keepalive_timeout))
        .http2_adaptive_window(Some(false))
        .http2_max_header_list_size(MAX_HEADER_LIST_BYTES)
        .http2_max_pending_accept_reset_streams(Some(MAX_PENDING_RESETS))
        .http2_max_local_error_reset_streams(Some(MAX_LOCAL_RESETS))
        .max_frame_size(MAX_FRAME_BYTES)
        .accept_http1(false)
        .layer(Deadlines { longest: CALL_TIMEOUT })
        .add_service(HealthServer::new(HealthService::from_health_reporter(health)))
        .add_service(reflection().build_v1().expect(well_formed))
        .add_service(reflection().build_v1alpha().expect(well_formed))
        .add_service(queue)
        .add_service(admin)
        .serve_with_incoming_shutdown(acceptor.into_stream(), close.cancelled_owned());
    async {
        if let Err(error) = served.await {
            tracing::error!(%error, "the gRPC server has ended");
        }
    }
}
