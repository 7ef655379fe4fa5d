//! The append log under the journal: segment files of a fixed size, zero-filled when made, so that a write
//! never changes a file's length and a sync has no metadata to write.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use crate::crash::crash_point;

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
    /// A hint that a file of `bytes` will be wanted soon; it may be made in the background.
    fn prepare(&mut self, bytes: u64) {
        let _ = bytes;
    }
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
    /// A file that is being made for the next [`SegmentLog::create`].
    next: Option<(u64, JoinHandle<io::Result<File>>)>,
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
        let mut log = Self {
            directory: directory.to_owned(),
            handle: File::open(directory)?,
            files: BTreeMap::new(),
            next: None,
        };
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
        path(&self.directory, file)
    }

    fn next_number(&self) -> SegmentFile {
        self.files.last_key_value().map_or(1, |(number, _)| number + 1)
    }

    fn file(&self, file: SegmentFile) -> io::Result<&File> {
        self.files.get(&file).map(|(file, _)| file).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn path(directory: &Path, file: SegmentFile) -> PathBuf {
    directory.join(format!("{file:08}{SUFFIX}"))
}

/// Makes a file of zeros under a name that says it is unfinished, and renames it when it is durable.
fn make(directory: &Path, handle: &File, number: SegmentFile, bytes: u64) -> io::Result<File> {
    let unfinished = directory.join(format!("{number:08}{UNFINISHED_SUFFIX}"));
    let file = match fill(&unfinished, bytes) {
        Ok(file) => file,
        Err(error) => {
            // The disk may be full: give the room back at once. The first error is the one to tell.
            let _ = fs::remove_file(&unfinished);
            return Err(error);
        }
    };
    crash_point!("segment_file.filled");
    fs::rename(&unfinished, path(directory, number))?;
    crash_point!("segment_file.named");
    handle.sync_all()?;
    crash_point!("segment_file.durable");
    Ok(file)
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

impl Drop for FileLog {
    fn drop(&mut self) {
        // So that no file appears in a directory that somebody else may have opened by then.
        if let Some((_, making)) = self.next.take() {
            let _ = making.join();
        }
    }
}

impl SegmentLog for FileLog {
    fn list(&self) -> Vec<(SegmentFile, u64)> {
        self.files.iter().map(|(&number, &(_, bytes))| (number, bytes)).collect()
    }

    fn create(&mut self, bytes: u64) -> io::Result<SegmentFile> {
        if let Some((prepared, making)) = self.next.take() {
            // What went wrong in the background shows again below, or is over.
            if let Ok(Ok(file)) = making.join() {
                let number = self.next_number();
                self.files.insert(number, (file, prepared));
                if prepared == bytes {
                    return Ok(number);
                }
            }
        }
        let number = self.next_number();
        let file = make(&self.directory, &self.handle, number, bytes)?;
        self.files.insert(number, (file, bytes));
        Ok(number)
    }

    fn prepare(&mut self, bytes: u64) {
        if self.next.is_some() {
            return;
        }
        let (directory, number) = (self.directory.clone(), self.next_number());
        let Ok(handle) = self.handle.try_clone() else { return };
        let making = std::thread::Builder::new().name("segment".to_owned());
        let making = making.spawn(move || make(&directory, &handle, number, bytes));
        // Without a thread the file is made when it is wanted.
        self.next = making.ok().map(|making| (bytes, making));
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
