//! Joins store and engine: restores the queue from the data directory and starts the engine on it.

use crate::clock::Clock;
use crate::engine::{EngineHandle, Parts, start};
use crate::queue::Restore;
use crate::store::{self, OpenError};

use super::error::OpenFailure;
use super::settings::Settings;

/// Opens the store of `settings` and starts the engine on what it holds. Blocks while the store is read.
pub(super) fn open(settings: &Settings) -> Result<EngineHandle, OpenFailure> {
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
    start(settings.engine, parts, clock).map_err(|error| OpenFailure::Failed(Box::new(error)))
}

/// Which refusals an operator has to act on before another start can succeed.
fn refused(error: OpenError) -> OpenFailure {
    match error {
        OpenError::NotWritable { .. }
        | OpenError::Locked { .. }
        | OpenError::Foreign { .. }
        | OpenError::NotADirectory { .. }
        | OpenError::UnknownFormat { .. }
        | OpenError::NewerFormat { .. } => OpenFailure::Configuration(Box::new(error)),
        _ => OpenFailure::Failed(Box::new(error)),
    }
}
