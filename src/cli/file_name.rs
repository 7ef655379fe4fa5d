//! Names of the files that commands make.

use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use super::exit::{Exit, Failure};

/// True if a file has this name already. Refuses a name of anything else: the file is written under another name first
/// and then renamed, which would put it in the place of a device, a pipe or a link.
pub(super) fn is_taken(path: &Path) -> Result<bool, Failure> {
    // A name that cannot be looked at cannot be written either, which says why.
    let Ok(found) = path.symlink_metadata() else { return Ok(false) };
    let kind = found.file_type();
    let (kind, next) = if kind.is_file() {
        return Ok(true);
    } else if kind.is_dir() {
        ("a directory", "give the name of a file in it")
    } else if kind.is_symlink() {
        ("a link", "give the name of the file that it leads to")
    } else if kind.is_fifo() {
        ("a pipe", "give the name of a file, or write to stdout")
    } else {
        ("a device or a socket", "give the name of a file, or write to stdout")
    };
    let problem = format!("{} is {kind}, which no file is put in the place of; nothing was changed", path.display());
    Err(Failure::new(Exit::Usage, problem).next(next))
}
