//! The files of a store.

use std::fs;
use std::path::{Path, PathBuf};

/// Copies a directory, but not who uses it.
pub(crate) fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("it can be read") {
        let entry = entry.expect("it can be read");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("it has a type").is_dir() {
            fs::create_dir(&target).expect("there is room");
            copy(&entry.path(), &target);
        } else if entry.file_name() != "LOCK" {
            fs::copy(entry.path(), target).expect("there is room");
        }
    }
}

/// The files of a store.
pub(crate) fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).expect("it can be read") {
        let path = entry.expect("it can be read").path();
        if path.is_dir() {
            files.extend(self::files(&path));
        } else if !path.ends_with("LOCK") {
            files.push(path);
        }
    }
    files.sort();
    files
}

pub(crate) fn contents(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    files(directory).into_iter().map(|path| (path.clone(), fs::read(path).expect("it can be read"))).collect()
}

/// What kind of file it is, for the table of outcomes.
pub(crate) fn kind(path: &Path) -> &'static str {
    let name = path.file_name().expect("a file").to_string_lossy().into_owned();
    match name.as_str() {
        "FORMAT" => "FORMAT",
        "db" => "pages/db",
        "conf" => "pages/conf",
        _ if name.starts_with("snap") => "pages/snap",
        _ if name.ends_with(".segment") => "journal",
        _ => "pages/blobs",
    }
}

/// The number of a use of a segment file; 0 of one that was never used.
pub(crate) fn sequence(path: &Path) -> u64 {
    let bytes = fs::read(path).expect("it can be read");
    u64::from_le_bytes(bytes[32..40].try_into().expect("eight bytes"))
}
