//! Whether the broker serves, told in two ways: the gRPC health service and `GET /healthz`.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::sync::watch;
use tonic::server::NamedService;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::{Admin, Queue};
use crate::pb::admin_service_server::AdminServiceServer;
use crate::pb::queue_service_server::QueueServiceServer;

/// What the broker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It reads its store.
    Recovering,
    /// It serves.
    Serving,
    /// It is shutting down.
    Draining,
    /// A commit has failed.
    Failed,
}

impl Phase {
    fn text(self) -> &'static str {
        match self {
            Self::Recovering => "recovering",
            Self::Serving => "serving",
            Self::Draining => "draining",
            Self::Failed => "failed",
        }
    }
}

/// The whole broker and each of its services, by their names in the gRPC health service.
const NAMES: [&str; 3] =
    ["", <QueueServiceServer<Queue> as NamedService>::NAME, <AdminServiceServer<Admin> as NamedService>::NAME];

/// Tells everybody what the broker is doing.
pub(super) struct Health {
    phase: watch::Sender<Phase>,
    grpc: HealthReporter,
}

impl Health {
    /// The health of a broker that reads its store.
    pub(super) async fn recovering() -> Self {
        let health = Self { phase: watch::Sender::new(Phase::Recovering), grpc: HealthReporter::new() };
        health.set(Phase::Recovering).await;
        health
    }

    /// Tells the phase.
    pub(super) async fn set(&self, phase: Phase) {
        self.phase.send_replace(phase);
        let status = if phase == Phase::Serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in NAMES {
            self.grpc.set_service_status(name, status).await;
        }
    }

    /// Ends the `Watch` streams, which would keep their connections open.
    pub(super) async fn end_watches(mut self) {
        for name in NAMES {
            self.grpc.clear_service_status(name).await;
        }
    }

    /// The reporter behind the gRPC health service.
    pub(super) fn reporter(&self) -> HealthReporter {
        self.grpc.clone()
    }

    /// The HTTP side.
    pub(super) fn router(&self) -> Router {
        Router::new().route("/healthz", get(healthz)).with_state(self.phase.subscribe())
    }
}

/// 200 and `serving`, or 503 and what it does instead.
async fn healthz(State(phase): State<watch::Receiver<Phase>>) -> (StatusCode, &'static str) {
    let phase = *phase.borrow();
    let code = if phase == Phase::Serving { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, phase.text())
}
