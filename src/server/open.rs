//! Joins store and engine: restores the queue from the data directory and starts the engine on it.

use std::error::Error;
use std::io;
use std::path::Path;

use crate::clock::{Clock, Stopwatch};
use crate::engine::{EngineHandle, Parts, start};
use crate::queue::Restore;
use crate::store::{self, OpenError};

use super::error::OpenFailure;
use super::settings::{Settings, disk_reserve};

/// Opens the store of `settings` and starts the engine on what it holds. Blocks while the store is read.
pub(super) fn open(settings: &Settings) -> Result<EngineHandle, OpenFailure> {
    let watch = Stopwatch::start();
    let clock = Clock::system(settings.step_policy);
    let mut restore = Restore::new(settings.limits);
    let opened =
        store::open(&settings.data_dir, settings.store, &mut |restored| restore.record(restored)).map_err(refused)?;
    if let Some((segment, offset)) = &opened.torn {
        tracing::warn!(%segment, offset, "the journal ended in a commit that was never answered; it was dropped");
    }
    if let Some(fold) = opened.repeated_fold {
        tracing::warn!(fold, "the page store had lost a fold, which the journal has repeated; check the disk");
    }
    let parts = Parts::on_store(opened, restore, &clock);
    let engine = start(settings.engine, parts, clock).map_err(failed)?;
    engine.note_opening(watch.elapsed_ms());
    watch_disk(&engine, settings).map_err(failed)?;
    Ok(engine)
}

fn failed(error: impl Error + Send + Sync + 'static) -> OpenFailure {
    OpenFailure::Failed(Box::new(error))
}

fn watch_disk(engine: &EngineHandle, settings: &Settings) -> io::Result<()> {
    let directory = settings.data_dir.clone();
    let reserve = reserve(settings.disk_reserve, &directory)?;
    // If it cannot be read the watch says so.
    let free_bytes = store::free_bytes(&directory).ok();
    tracing::info!(reserve_bytes = reserve, free_bytes, "disk reserve");
    engine.watch_disk(reserve, move || store::free_bytes(&directory))
}

/// The disk reserve in bytes: what was set, or the default for the file system of the data directory.
///
/// # Errors
/// If the size of the file system cannot be read.
pub(super) fn reserve(set: Option<u64>, data_dir: &Path) -> io::Result<u64> {
    match set {
        Some(reserve) => Ok(reserve),
        None => Ok(disk_reserve(store::total_bytes(data_dir)?)),
    }
}

/// Which refusals an operator has to act on before another start can succeed.
fn refused(error: OpenError) -> OpenFailure {
    match error {
        OpenError::NotWritable { .. }
        | OpenError::Locked { .. }
        | OpenError::Foreign { .. }
        | OpenError::Unrestored { .. }
        | OpenError::NotADirectory { .. }
        | OpenError::UnknownFormat { .. }
        | OpenError::NewerFormat { .. } => OpenFailure::Configuration(Box::new(error)),
        _ => OpenFailure::Failed(Box::new(error)),
    }
}
