//! A backup that is being taken: a snapshot of the store, and what is done about damage that reading it finds.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::handle::{EngineError, EngineHandle, Shared};
use super::input::Input;
use crate::store::{BackupCounts, BackupError, BackupHeader, BackupSink, Snapshot};

/// A backup that is being taken. Until it is dropped, the store keeps what the backup reads.
pub struct Backup {
    /// It ends before the permit does.
    pub(super) snapshot: Snapshot,
    pub(super) shared: Arc<Shared>,
    pub(super) _permit: OwnedSemaphorePermit,
}

impl EngineHandle {
    /// Begins a backup: a snapshot of everything that was confirmed before this call. Only one runs at a time.
    ///
    /// # Errors
    /// [`EngineError::BackupRunning`], [`EngineError::Draining`] or [`EngineError::OutcomeUnknown`].
    pub async fn backup(&self) -> Result<Backup, EngineError> {
        self.refuse_if_ending()?;
        let permit = Arc::clone(&self.shared.backups).try_acquire_owned();
        let permit = permit.map_err(|_| EngineError::BackupRunning)?;
        let (reply, answer) = oneshot::channel();
        self.shared.tell(Input::Snapshot(reply));
        let snapshot = answer.await.map_err(|_| self.ended())?;
        Ok(Backup { snapshot, shared: Arc::clone(&self.shared), _permit: permit })
    }
}

impl Backup {
    /// What it says at its beginning.
    pub fn header(&self) -> &BackupHeader {
        self.snapshot.header()
    }

    /// Writes it, in pieces of a few hundred kilobytes, on this thread. Gives the counts and the checksum of all of it.
    /// A damaged page that is found on the way is set aside, as if it had been loaded.
    ///
    /// # Errors
    /// [`BackupError`]; what was written so far is of no use.
    pub fn write(&self, sink: BackupSink<'_>) -> Result<(BackupCounts, u32), BackupError> {
        let written = self.snapshot.write(sink);
        if let Err(BackupError::Damaged { what, part }) = &written {
            tracing::error!(what, "a backup has found damage");
            if let Some(part) = part {
                self.shared.tell(Input::Damaged(vec![*part]));
            }
        }
        written
    }
}
