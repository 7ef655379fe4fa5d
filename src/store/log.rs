//! The append log under the journal: segment files of a fixed size, zero-filled when made, so that a write
//! never changes a file's length and a sync has no metadata to write.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use std::collections::BTreeMap;

/// Number of a segment file; it says nothing about the order of the contents.
pub type SegmentFile = u32;

/// Segment files in one place.
///
/// A sector of 512 bytes is written whole or not at all; apart from that nothing is sure of a write until
/// [`SegmentLog::sync`] of its file has returned without error.
pub trait SegmentLog: Send {
    /// The files that exist, with their sizes in bytes.
    fn list(&self) -> Vec<(SegmentFile, u64)>;
    /// Makes a file of `bytes` zero bytes; when this returns, the file and its name are durable.
    ///
    /// # Errors
    /// Any error of the medium; no file is left behind.
    fn create(&mut self, bytes: u64) -> io::Result<SegmentFile>;
    /// Reads a whole file.
    ///
    /// # Errors
    /// Any error of the medium.
    fn read(&self, file: SegmentFile) -> io::Result<Vec<u8>>;
    /// Writes inside the file.
    ///
    /// # Errors
    /// Any error of the medium; how much was written is then unknown.
    fn write(&mut self, file: SegmentFile, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes every write of the file durable.
    ///
    /// # Errors
    /// Any error of the medium; the writes may be lost for ever, and a second sync proves nothing.
    fn sync(&mut self, file: SegmentFile) -> io::Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// Any error of the medium.
    fn remove(&mut self, file: SegmentFile) -> io::Result<()>;
    /// The name of a file for people.
    fn name(&self, file: SegmentFile) -> String;
}

/// Segment files in a directory: `00000001.segment` and so on.
pub struct FileLog {
    directory: PathBuf,
    handle: File,
    files: BTreeMap<SegmentFile, (File, u64)>,
}

const SUFFIX: &str = ".segment";
/// A file that is not complete; such a file was never used and is removed.
const UNFINISHED_SUFFIX: &str = ".segment.new";

impl FileLog {
    /// Opens the segment files of `directory`, which exists.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let mut log = Self { directory: directory.to_owned(), handle: File::open(directory)?, files: BTreeMap::new() };
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.ends_with(UNFINISHED_SUFFIX) {
                fs::remove_file(entry.path())?;
            } else if let Some(number) = name.strip_suffix(SUFFIX).and_then(|number| number.parse().ok()) {
                let file = OpenOptions::new().read(true).write(true).open(entry.path())?;
                let bytes = file.metadata()?.len();
                log.files.insert(number, (file, bytes));
            }
        }
        Ok(log)
    }

    fn path(&self, file: SegmentFile) -> PathBuf {
        self.directory.join(format!("{file:08}{SUFFIX}"))
    }

    fn file(&self, file: SegmentFile) -> io::Result<&File> {
        self.files.get(&file).map(|(file, _)| file).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn fill(path: &Path, bytes: u64) -> io::Result<File> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        let zeros = vec![0; usize::try_from(bytes.min(1 << 20)).expect("at most 1 MiB")];
        let mut offset = 0;
        while offset < bytes {
            let len = zeros.len().min(usize::try_from(bytes - offset).unwrap_or(usize::MAX));
            file.write_all_at(&zeros[..len], offset)?;
            offset += len as u64;
        }
        file.sync_all()?;
        Ok(file)
    }
}

impl SegmentLog for FileLog {
    fn list(&self) -> Vec<(SegmentFile, u64)> {
        self.files.iter().map(|(&number, &(_, bytes))| (number, bytes)).collect()
    }

    fn create(&mut self, bytes: u64) -> io::Result<SegmentFile> {
        let number = self.files.last_key_value().map_or(1, |(number, _)| number + 1);
        let path = self.path(number);
        let unfinished = self.directory.join(format!("{number:08}{UNFINISHED_SUFFIX}"));
        let file = match Self::fill(&unfinished, bytes) {
            Ok(file) => file,
            Err(error) => {
                // The disk may be full: give the room back at once. The first error is the one to tell.
                let _ = fs::remove_file(&unfinished);
                return Err(error);
            }
        };
        fs::rename(&unfinished, &path)?;
        self.handle.sync_all()?;
        self.files.insert(number, (file, bytes));
        Ok(number)
    }

    fn read(&self, file: SegmentFile) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let handle = self.file(file)?;
        bytes.resize(usize::try_from(handle.metadata()?.len()).map_err(io::Error::other)?, 0);
        handle.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    fn write(&mut self, file: SegmentFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file(file)?.write_all_at(bytes, offset)
    }

    fn sync(&mut self, file: SegmentFile) -> io::Result<()> {
        self.file(file)?.sync_data()
    }

    fn remove(&mut self, file: SegmentFile) -> io::Result<()> {
        fs::remove_file(self.path(file))?;
        self.files.remove(&file);
        Ok(())
    }

    fn name(&self, file: SegmentFile) -> String {
        self.path(file).display().to_string()
    }
}
