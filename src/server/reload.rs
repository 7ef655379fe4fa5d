//! What can change while a broker runs, and the way in: a caller hands the new values in and hears what became of them.
//!
//! A reload is carried out whole or, if a topic is refused, not: the topics come first, because they alone can fail
//! for reasons that only the running broker knows. One reload is under way at a time.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::engine::EngineHandle;

use super::open::reserve;
use super::settings::Settings;
use super::topics::{DeclareError, TopicDeclaration, declare};

/// The settings that take effect in a running broker; each replaces what was before.
#[derive(Clone, Debug)]
pub struct Reload {
    /// As [`Settings::drain_deadline`].
    pub drain_deadline: Duration,
    /// As [`Settings::disk_reserve`].
    pub disk_reserve: Option<u64>,
    /// As [`Settings::topics`].
    pub topics: Vec<TopicDeclaration>,
}

/// Why a reload was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// A declared topic is refused; the other settings are as they were.
    #[error(transparent)]
    Topic(#[from] DeclareError),
    /// The size of the file system of the data directory cannot be read; nothing was changed.
    #[error("the default of the disk reserve is unknown, because the size of the file system cannot be read: {0}")]
    Disk(#[from] io::Error),
    /// The broker ends.
    #[error("the broker is ending")]
    Ending,
}

/// The side that asks for reloads.
#[derive(Debug)]
pub struct Reloader(mpsc::Sender<Asked>);

/// The side of the broker.
#[derive(Debug)]
pub struct Reloads(mpsc::Receiver<Asked>);

#[derive(Debug)]
struct Asked {
    reload: Reload,
    done: oneshot::Sender<Result<(), ReloadError>>,
}

/// The two sides.
#[must_use]
pub fn reloads() -> (Reloader, Reloads) {
    let (asking, asked) = mpsc::channel(1);
    (Reloader(asking), Reloads(asked))
}

impl Reloader {
    /// Changes the settings of the running broker; waits for a broker that still reads its store.
    ///
    /// # Errors
    /// [`ReloadError`].
    pub async fn reload(&self, reload: Reload) -> Result<(), ReloadError> {
        let (done, outcome) = oneshot::channel();
        self.0.send(Asked { reload, done }).await.map_err(|_| ReloadError::Ending)?;
        outcome.await.map_err(|_| ReloadError::Ending)?
    }
}

impl Reloads {
    /// Nobody will ask.
    pub(super) fn none() -> Self {
        reloads().1
    }
}

/// Settings of the running broker that can change.
pub(super) struct Running {
    drain_deadline_ms: AtomicU64,
    data_dir: PathBuf,
}

impl Running {
    /// As the broker was started.
    pub(super) fn new(settings: &Settings) -> Self {
        let running = Self { drain_deadline_ms: AtomicU64::new(0), data_dir: settings.data_dir.clone() };
        running.set_drain_deadline(settings.drain_deadline);
        running
    }

    /// How long a shutdown may take now.
    pub(super) fn drain_deadline(&self) -> Duration {
        Duration::from_millis(self.drain_deadline_ms.load(Ordering::Relaxed))
    }

    fn set_drain_deadline(&self, deadline: Duration) {
        let ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        self.drain_deadline_ms.store(ms, Ordering::Relaxed);
    }
}

/// Carries reloads out, for ever.
pub(super) async fn serve(running: &Running, engine: &EngineHandle, mut reloads: Reloads) -> Infallible {
    while let Some(Asked { reload, done }) = reloads.0.recv().await {
        let outcome = carry_out(running, engine, reload).await;
        // An asker that has gone does not want to know.
        let _gone = done.send(outcome);
    }
    std::future::pending().await
}

async fn carry_out(running: &Running, engine: &EngineHandle, reload: Reload) -> Result<(), ReloadError> {
    let reserve = reserve(reload.disk_reserve, &running.data_dir)?;
    declare(engine, &reload.topics).await?;
    engine.set_disk_reserve(reserve);
    running.set_drain_deadline(reload.drain_deadline);
    Ok(())
}
