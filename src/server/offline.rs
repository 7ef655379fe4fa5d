//! Work on a data directory that no broker uses: checking it, setting damage aside, compacting it, and making one from a
//! backup.

use std::path::Path;

use crate::clock::wall_now;
use crate::store::{self, SetAside, StoreOptions};

pub use crate::store::{
    BackupContents, BackupFileError, BackupTopic, CheckReport, CheckedTopic, Compacted, Finding, InQuarantine,
    OpenError, RestoreError, RestoredBackup, check, compact, read_backup, restore_spool, user_of,
};

/// Sets the damaged pages and messages of a check aside: they leave the directory of the pages, are kept for whoever
/// wants to look at them, and count as quarantined. Leases that outlived a clean stop are void afterwards.
///
/// # Errors
/// [`OpenError`] if the store does not open or cannot be written.
pub fn quarantine(directory: &Path, report: &CheckReport) -> Result<Vec<SetAside>, OpenError> {
    let parts: Vec<_> = report.findings.iter().filter_map(|finding| finding.part).collect();
    store::set_aside(directory, StoreOptions::default(), wall_now(), &parts)
}

/// Restores a backup into a directory that is missing or empty, or holds a restore that was interrupted. `watch` is told
/// how many bytes of how many are in it.
///
/// # Errors
/// [`RestoreError`]; then the directory is empty, unless it cannot be written at all.
pub fn restore(file: &Path, directory: &Path, watch: &mut dyn FnMut(u64, u64)) -> Result<RestoredBackup, RestoreError> {
    store::restore(file, directory, StoreOptions::default(), wall_now(), watch)
}

/// True if an operator has to give another directory, or to stop the broker that uses it.
#[must_use]
pub fn is_misuse(error: &OpenError) -> bool {
    matches!(
        error,
        OpenError::Locked { .. }
            | OpenError::Incomplete { .. }
            | OpenError::Foreign { .. }
            | OpenError::Unrestored { .. }
            | OpenError::NotEmpty { .. }
            | OpenError::Absent { .. }
            | OpenError::NotADirectory { .. }
            | OpenError::NotWritable { .. }
            | OpenError::UnknownFormat { .. }
            | OpenError::NewerFormat { .. }
    )
}
