//! The composition root: sockets, store, engine and services become a broker, and end in good order.
//!
//! ```text
//! bind ─▶ recovering ─▶ serving ─▶ draining ─▶ end: Ok
//!              │            └────▶ failed ───▶ end: an error
//!              └ the store is not usable ────▶ end: an error
//! ```
//!
//! The sockets are bound and answer before the store is read, so that clients hear `RECOVERING` instead of a refused
//! connection and health checks see why. A shutdown first makes health `NOT_SERVING`, then stops the engine, which
//! finishes what it has admitted and keeps the open leases; then connections are closed, and cut when the drain
//! deadline passes. After a failed commit the broker does not go on: it tells those who wait that the
//! outcome is unknown, and ends with an error, because only a recovery from the disk shows what is true.
//!
//! What this layer is not: it parses no arguments, handles no signals and sets up no logging (`cli`, `main`).

mod error;
mod health;
mod listen;
mod network;
pub mod offline;
mod open;
mod reflection;
mod reload;
mod settings;
mod topics;

use std::io;
use std::pin::{Pin, pin};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use self::health::{Health, Phase};
use self::network::Network;
use self::reload::Running;
use self::settings::FAILED_DEADLINE;
use crate::engine::{EngineHandle, Status};
use crate::grpc::{Admin, Broker, Queue};

pub use self::error::{OpenFailure, ServeError};
pub use self::listen::{Listeners, check_addresses};
pub use self::reload::{Reload, ReloadError, Reloader, Reloads, reloads};
pub use self::settings::{Settings, disk_reserve};
pub use self::topics::{DeclareError, TopicDeclaration};
pub use crate::clock::StepPolicy;
pub use crate::engine::EngineSettings;
pub use crate::store::StoreOptions;

/// The runtime that [`serve_engine`] should run on: `network_threads` threads.
///
/// # Errors
/// If the system gives no threads.
pub fn runtime(settings: &Settings) -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(settings.network_threads.max(1))
        .thread_name("duewheel-network")
        .enable_all()
        .build()
}

/// Runs a broker on the store of `settings`; see [`serve_engine`].
///
/// # Errors
/// As [`serve_engine`].
pub async fn serve(
    settings: Settings,
    listeners: Listeners,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    serve_reloading(settings, listeners, Reloads::none(), shutdown).await
}

/// As [`serve`], and some settings can change meanwhile; see [`Reload`].
///
/// # Errors
/// As [`serve_engine`].
pub async fn serve_reloading(
    settings: Settings,
    listeners: Listeners,
    reloads: Reloads,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let opening = settings.clone();
    broker(&settings, listeners, move || open::open(&opening), reloads, shutdown).await
}

/// Runs a broker on `listeners` until `shutdown` resolves and the drain is done, or until it fails. Its engine is
/// what `open` returns, which may block.
///
/// # Errors
/// [`ServeError`]; [`ServeError::exit_code`] is the exit code that belongs to it.
pub async fn serve_engine(
    settings: &Settings,
    listeners: Listeners,
    open: impl FnOnce() -> Result<EngineHandle, OpenFailure> + Send + 'static,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    broker(settings, listeners, open, Reloads::none(), shutdown).await
}

async fn broker(
    settings: &Settings,
    listeners: Listeners,
    open: impl FnOnce() -> Result<EngineHandle, OpenFailure> + Send + 'static,
    reloads: Reloads,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let (broker, health) = (Broker::recovering(), Health::recovering().await);
    let network = Network::start(settings, listeners, &broker, &health);
    let outcome = run(settings, &broker, &health, open, reloads, pin!(shutdown)).await;
    let (outcome, deadline) = match outcome {
        Ok(Drain { outcome, deadline }) => (outcome, deadline),
        Err(error) => (Err(error), Box::pin(tokio::time::sleep(FAILED_DEADLINE)) as Deadline),
    };
    health.end_watches().await;
    network.stop(deadline).await;
    outcome
}

type Deadline = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The engine has ended after a shutdown.
struct Drain {
    outcome: Result<(), ServeError>,
    /// Resolves when the shutdown must be over.
    deadline: Deadline,
}

async fn run(
    settings: &Settings,
    broker: &Broker,
    health: &Health,
    open: impl FnOnce() -> Result<EngineHandle, OpenFailure> + Send + 'static,
    reloads: Reloads,
    mut shutdown: Pin<&mut impl Future<Output = ()>>,
) -> Result<Drain, ServeError> {
    let mut opening = open_aside(open);
    let opened = tokio::select! {
        opened = &mut opening => Some(opened),
        () = shutdown.as_mut() => None,
    };
    let Some(opened) = opened else {
        // Reading a store cannot be interrupted, but it can be abandoned: nothing has been served.
        let mut deadline = start_drain(settings.drain_deadline, health).await;
        tokio::select! {
            opened = opening => if let Ok(Ok(engine)) = opened {
                return Ok(drain_engine(&engine, deadline).await);
            },
            () = &mut deadline => {}
        }
        return Ok(Drain { outcome: Ok(()), deadline: passed() });
    };
    let engine = opened.expect("opening the store does not panic")?;
    if let Err(error) = topics::declare(&engine, &settings.topics).await {
        engine.shutdown().await;
        return Err(error.into());
    }
    broker.recovered(engine.clone());
    health.set(Phase::Serving).await;
    tracing::info!("serving");
    let running = Running::new(settings);
    tokio::select! {
        cause = failure(&engine) => {
            health.set(Phase::Failed).await;
            Err(ServeError::CommitFailed(cause))
        }
        never = reload::serve(&running, &engine, reloads) => match never {},
        () = shutdown => {
            let deadline = start_drain(running.drain_deadline(), health).await;
            Ok(drain_engine(&engine, deadline).await)
        }
    }
}

/// Opens on a thread of its own, which the end of the runtime does not wait for.
fn open_aside(
    open: impl FnOnce() -> Result<EngineHandle, OpenFailure> + Send + 'static,
) -> oneshot::Receiver<Result<EngineHandle, OpenFailure>> {
    let (opened, opening) = oneshot::channel();
    let body = move || {
        // Nobody waits for the engine after a shutdown that came first; it ends as it would by a crash.
        let _ = opened.send(open());
    };
    thread::Builder::new().name("duewheel-open".to_owned()).spawn(body).expect("the system gives a thread");
    opening
}

async fn start_drain(within: Duration, health: &Health) -> Deadline {
    tracing::info!(deadline_s = within.as_secs_f64(), "draining");
    health.set(Phase::Draining).await;
    Box::pin(tokio::time::sleep(within))
}

async fn drain_engine(engine: &EngineHandle, mut deadline: Deadline) -> Drain {
    let is_over = tokio::select! {
        () = engine.shutdown() => true,
        () = &mut deadline => false,
    };
    let outcome = match &*engine.status().borrow() {
        Status::Failed(cause) => Err(ServeError::CommitFailed(cause.clone())),
        _ if is_over => Ok(()),
        _ => Err(ServeError::DrainDeadline),
    };
    Drain { outcome, deadline: if is_over { deadline } else { passed() } }
}

fn passed() -> Deadline {
    Box::pin(std::future::ready(()))
}

/// Waits until the engine fails, and says why.
async fn failure(engine: &EngineHandle) -> String {
    let mut status = engine.status();
    loop {
        if let Status::Failed(cause) = &*status.borrow_and_update() {
            return cause.clone();
        }
        if status.changed().await.is_err() {
            return "the engine has ended".to_owned();
        }
    }
}
