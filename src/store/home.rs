//! The data directory: whose it is, in which format, and that nobody else uses it.
//!
//! ```text
//! FORMAT    what this is, format version, store id, receipt secret; mode 0600
//! LOCK      locked while a broker runs; holds its process id
//! journal/  segments
//! pages/    sled
//! RESTORING only while a backup is being restored: what is beside it is not whole
//! restore.spool  a backup that came through a pipe; for a moment only, then it has no name
//! pages.new/  what a compaction copies to, or the database that it has replaced; of no use to anybody else
//! ```
//! `FORMAT` comes last when a directory is made: until then `FORMAT.new` marks it as being made, so that an
//! interruption neither leaves a directory that is refused as foreign nor one that is half there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};

use crate::crash::crash_point;

use super::open_error::OpenError;
use super::options::StoreOptions;
use super::segment::StoreId;

/// The format of the directory that this version writes and the newest it reads.
pub const FORMAT_VERSION: u32 = 2;

const FORMAT: &str = "FORMAT";
const UNFINISHED: &str = "FORMAT.new";
const RESTORING: &str = "RESTORING";
const LOCK: &str = "LOCK";
const JOURNAL: &str = "journal";
const PAGES: &str = "pages";
const NEW_PAGES: &str = "pages.new";
const SPOOL: &str = "restore.spool";
const TITLE: &str = "duewheel store";

/// Who a store is.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// Drawn at creation.
    pub store: StoreId,
    /// The secret that receipts are sealed with, drawn at creation.
    pub secret: [u8; 16],
}

/// A data directory that this process has locked.
pub(super) struct Home {
    pub(super) identity: Identity,
    path: PathBuf,
    pub(super) journal: PathBuf,
    pub(super) pages: PathBuf,
    is_made: bool,
    pub(super) lock: Arc<HomeLock>,
}

/// The lock of a data directory, held until it is dropped.
pub(super) struct HomeLock {
    _file: File,
}

impl Home {
    /// Opens a data directory; makes it if it is missing or empty.
    pub(super) fn open(path: &Path, min_free_bytes: u64) -> Result<Self, OpenError> {
        make_directory(path)?;
        let found = names(path)?;
        refuse_unfinished(path, &found)?;
        refuse_foreign(path, &found)?;
        let lock = lock(path)?;
        // Only now is it sure that nobody else is making it.
        let found = names(path)?;
        refuse_unfinished(path, &found)?;
        let is_made = found.iter().any(|name| name == FORMAT);
        check_space(path, min_free_bytes)?;
        let (journal, pages) = (path.join(JOURNAL), path.join(PAGES));
        let identity = if is_made {
            let identity = read_identity(&path.join(FORMAT))?;
            for part in [&journal, &pages] {
                if !part.is_dir() {
                    return Err(OpenError::Incomplete { path: part.clone() });
                }
            }
            let database = pages.join("db");
            if !database.is_file() {
                return Err(OpenError::Incomplete { path: database });
            }
            identity
        } else {
            begin(path, &[&journal, &pages])?
        };
        let home = Self { identity, path: path.to_owned(), journal, pages, is_made, lock };
        home.remove_new_pages()?;
        Ok(home)
    }

    /// Opens a data directory that is there, for a tool. It needs as much room as a broker: without, sled does not open,
    /// which would be taken for damage.
    pub(super) fn open_existing(path: &Path) -> Result<Self, OpenError> {
        refuse_absent(path)?;
        let found = names(path)?;
        refuse_unfinished(path, &found)?;
        let format = path.join(FORMAT);
        if !format.is_file() {
            let is_part = |name: &String| [FORMAT, UNFINISHED, JOURNAL, PAGES].contains(&name.as_str());
            if found.iter().any(is_part) {
                return Err(OpenError::Incomplete { path: format });
            }
            refuse_foreign(path, &found)?;
            return Err(OpenError::Absent { path: path.to_owned(), problem: "is empty, no duewheel data directory" });
        }
        Self::open(path, StoreOptions::default().min_free_bytes)
    }

    /// Makes a data directory for a backup, in one that is missing or empty, or in which a restore was interrupted:
    /// what that has left is removed. Until [`Home::restored`] nobody else opens it.
    pub(super) fn begin_restore(path: &Path, min_free_bytes: u64) -> Result<Self, OpenError> {
        make_directory(path)?;
        refuse_used(path, &names(path)?)?;
        let lock = lock(path)?;
        refuse_used(path, &names(path)?)?;
        let marker = path.join(RESTORING);
        let written = File::create(&marker).and_then(|file| file.sync_all());
        written.map_err(write_error(&marker))?;
        crash_point!("restore.marked");
        sync_directory(path)?;
        remove_parts(path)?;
        crash_point!("restore.emptied");
        check_space(path, min_free_bytes)?;
        let (journal, pages) = (path.join(JOURNAL), path.join(PAGES));
        let identity = begin(path, &[&journal, &pages])?;
        Ok(Self { identity, path: path.to_owned(), journal, pages, is_made: false, lock })
    }

    /// A file for a backup that can be read only once, in the directory that it is to be restored into. It has no name and
    /// goes with its handle.
    pub(super) fn spool(path: &Path) -> Result<File, OpenError> {
        make_directory(path)?;
        refuse_used(path, &names(path)?)?;
        let spool = path.join(SPOOL);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let file = options.open(&spool).map_err(write_error(&spool))?;
        fs::remove_file(&spool).map_err(write_error(&spool))?;
        Ok(file)
    }

    /// The restore is complete: from now on it is a data directory as any other.
    pub(super) fn restored(&self) -> Result<(), OpenError> {
        let marker = self.path.join(RESTORING);
        crash_point!("restore.before_unmarking");
        fs::remove_file(&marker).map_err(write_error(&marker))?;
        crash_point!("restore.unmarked");
        sync_directory(&self.path)
    }

    /// The restore has failed: the directory becomes as empty as it was.
    pub(super) fn abandon_restore(&self) -> Result<(), OpenError> {
        remove_parts(&self.path)?;
        self.restored()
    }

    /// Where a compaction copies to.
    pub(super) fn new_pages(&self) -> PathBuf {
        self.path.join(NEW_PAGES)
    }

    /// Removes what a compaction has left.
    pub(super) fn remove_new_pages(&self) -> Result<(), OpenError> {
        let new = self.new_pages();
        match fs::remove_dir_all(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(write_error(&new)(error)),
            Err(_) => Ok(()),
            Ok(()) => {
                crash_point!("home.copy_removed");
                sync_directory(&self.path)
            }
        }
    }

    /// Completes a directory that was being made; its parts exist now. Does nothing to one that is complete.
    pub(super) fn finish(&self) -> Result<(), OpenError> {
        if !self.is_made {
            let unfinished = self.path.join(UNFINISHED);
            crash_point!("home.before_naming");
            fs::rename(&unfinished, self.path.join(FORMAT)).map_err(write_error(&unfinished))?;
            crash_point!("home.named");
            sync_directory(&self.path)?;
            crash_point!("home.finished");
        }
        Ok(())
    }
}

fn make_directory(path: &Path) -> Result<(), OpenError> {
    if path.is_dir() {
        return Ok(());
    }
    if path.exists() {
        return Err(OpenError::NotADirectory { path: path.to_owned() });
    }
    crash_point!("home.begins");
    // Bodies of messages are nobody else's business.
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(write_error(path))?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    sync_directory(parent)
}

/// A tool makes no directory: the name of one that is not there is a mistake.
fn refuse_absent(path: &Path) -> Result<(), OpenError> {
    let path = path.to_owned();
    match fs::metadata(&path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(OpenError::NotADirectory { path }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(OpenError::Absent { path, problem: "does not exist" })
        }
        Err(error) => Err(OpenError::io(format!("the data directory {} cannot be read", path.display()))(error)),
    }
}

fn names(path: &Path) -> Result<Vec<String>, OpenError> {
    let what = || OpenError::io(format!("the data directory {} cannot be read", path.display()));
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(what())? {
        names.push(entry.map_err(what())?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// What an unfinished restore has left is no store.
fn refuse_unfinished(path: &Path, names: &[String]) -> Result<(), OpenError> {
    if names.iter().any(|name| name == RESTORING) {
        return Err(OpenError::Unrestored { path: path.to_owned() });
    }
    Ok(())
}

/// A backup is restored beside nothing else.
fn refuse_used(path: &Path, names: &[String]) -> Result<(), OpenError> {
    let is_unfinished = names.iter().any(|name| name == RESTORING);
    let foreign = names.iter().find(|name| match name.as_str() {
        LOCK | RESTORING | SPOOL | "lost+found" => false,
        FORMAT | UNFINISHED | JOURNAL | PAGES => !is_unfinished,
        _ => true,
    });
    match foreign {
        Some(found) => Err(OpenError::NotEmpty { path: path.to_owned(), found: found.clone() }),
        None => Ok(()),
    }
}

/// Removes what a restore makes, apart from its marker and the lock.
fn remove_parts(path: &Path) -> Result<(), OpenError> {
    for part in [FORMAT, UNFINISHED, JOURNAL, PAGES, SPOOL].map(|name| path.join(name)) {
        let removed = if part.is_dir() { fs::remove_dir_all(&part) } else { fs::remove_file(&part) };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(write_error(&part)(error)),
            _ => {}
        }
    }
    sync_directory(path)
}

/// A directory without `FORMAT` may hold nothing but what an interrupted start has left.
fn refuse_foreign(path: &Path, names: &[String]) -> Result<(), OpenError> {
    if names.iter().any(|name| name == FORMAT) {
        return Ok(());
    }
    let being_made = names.iter().any(|name| name == UNFINISHED);
    let foreign = names.iter().find(|name| match name.as_str() {
        // A file system of its own has this directory from birth.
        LOCK | UNFINISHED | "lost+found" => false,
        JOURNAL | PAGES => !being_made,
        _ => true,
    });
    match foreign {
        Some(found) => Err(OpenError::Foreign { path: path.to_owned(), found: found.clone() }),
        None => Ok(()),
    }
}

fn lock(path: &Path) -> Result<Arc<HomeLock>, OpenError> {
    let lock_path = path.join(LOCK);
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&lock_path);
    let mut file = options.map_err(write_error(&lock_path))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            return Err(OpenError::Locked { path: path.to_owned(), pid: read_holder(&mut file) });
        }
        Err(error) => {
            return Err(OpenError::io(format!("{} cannot be locked", lock_path.display()))(error.into()));
        }
    }
    file.set_len(0).map_err(write_error(&lock_path))?;
    writeln!(file, "{}", std::process::id()).map_err(write_error(&lock_path))?;
    Ok(Arc::new(HomeLock { _file: file }))
}

/// The process that uses a data directory, if one does; `None` in it if its id cannot be read.
pub fn user_of(path: &Path) -> Option<Option<u32>> {
    let mut file = File::open(path.join(LOCK)).ok()?;
    // If nobody has the lock, it is given back at the end of this function.
    let Err(rustix::io::Errno::WOULDBLOCK) = flock(&file, FlockOperation::NonBlockingLockExclusive) else {
        return None;
    };
    Some(read_holder(&mut file))
}

/// The id in a lock file. Only a help for the reader of a message: an unreadable one is no other error.
fn read_holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Bytes that are free on the file system of `path`, for the broker's user.
///
/// # Errors
/// Any error of the file system.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let space = rustix::fs::statvfs(path)?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

/// Bytes of the file system of `path` in all.
///
/// # Errors
/// Any error of the file system.
pub fn total_bytes(path: &Path) -> io::Result<u64> {
    let space = rustix::fs::statvfs(path)?;
    Ok(space.f_blocks.saturating_mul(space.f_frsize))
}

fn check_space(path: &Path, needed: u64) -> Result<(), OpenError> {
    let unknown = OpenError::io(format!("the free space of {} is unknown", path.display()));
    let free = free_bytes(path).map_err(unknown)?;
    if free < needed {
        return Err(OpenError::DiskFull { path: path.to_owned(), free, needed });
    }
    Ok(())
}

fn begin(path: &Path, parts: &[&Path]) -> Result<Identity, OpenError> {
    let unfinished = path.join(UNFINISHED);
    // An interrupted start may have got as far as writing with this identity.
    let identity = match read_identity(&unfinished) {
        Ok(identity) => identity,
        Err(_) => write_identity(&unfinished)?,
    };
    crash_point!("home.identity_written");
    sync_directory(path)?;
    for part in parts {
        match fs::create_dir(part) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(write_error(part)(error)),
            _ => {}
        }
        crash_point!("home.part_made");
    }
    sync_directory(path)?;
    Ok(identity)
}

/// An epoch above the highest one that was opened, by a step that nobody can foresee. It is one part in 65,536 of the
/// epochs that are left at the most, so that they last for millions of starts.
pub(super) fn random_epoch_above(highest: u32) -> Result<u32, OpenError> {
    let left = u32::MAX - highest;
    let [high, low] = random::<2>()?;
    let step = u32::from(u16::from_be_bytes([high, low])) % (left >> 16).clamp(1, 1 << 16);
    Ok(highest.saturating_add(1).saturating_add(step))
}

#[expect(clippy::disallowed_methods, reason = "this is where a store draws what nobody may foresee")]
fn random<const N: usize>() -> Result<[u8; N], OpenError> {
    let mut random = [0; N];
    getrandom::fill(&mut random)
        .map_err(|error| OpenError::io("the system gives no random bytes")(io::Error::other(error.to_string())))?;
    Ok(random)
}

fn write_identity(path: &Path) -> Result<Identity, OpenError> {
    let random = random::<32>()?;
    let half = |from: usize| std::array::from_fn(|i| random[from + i]);
    let identity = Identity { store: half(0), secret: half(16) };
    let text = format!("{TITLE}\nformat {FORMAT_VERSION}\nid {}\nsecret {}\n", hex(&random[..16]), hex(&random[16..]));
    let text = format!("{text}sum {:08x}\n", crc32c::crc32c(text.as_bytes()));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options.open(path).and_then(|mut file| {
        crash_point!("home.identity_begun");
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.map_err(write_error(path))?;
    Ok(identity)
}

fn read_identity(path: &Path) -> Result<Identity, OpenError> {
    let problem = |problem: &str| OpenError::UnknownFormat { path: path.to_owned(), problem: problem.to_owned() };
    let text = match fs::read(path) {
        Ok(bytes) => String::from_utf8(bytes).map_err(|_| problem("it is not text"))?,
        Err(error) => return Err(OpenError::io(format!("{} cannot be read", path.display()))(error)),
    };
    let mut lines = text.lines();
    if lines.next() != Some(TITLE) {
        return Err(problem("its first line is not that of a duewheel store"));
    }
    // The version comes before everything that a later version might change.
    let found = lines.next().and_then(|line| line.strip_prefix("format ")).and_then(|n| n.parse::<u32>().ok());
    match found {
        None | Some(0) => return Err(problem("it names no format")),
        Some(found) if found > FORMAT_VERSION => {
            return Err(OpenError::NewerFormat { path: path.to_owned(), found, supported: FORMAT_VERSION });
        }
        Some(_) => {}
    }
    let id = lines.next().and_then(|line| line.strip_prefix("id ")).and_then(unhex);
    let secret = lines.next().and_then(|line| line.strip_prefix("secret ")).and_then(unhex);
    let sum = lines.next().and_then(|line| line.strip_prefix("sum ")).and_then(|n| u32::from_str_radix(n, 16).ok());
    let summed = text.find("sum ").map_or("", |at| &text[..at]);
    match (id, secret) {
        (Some(store), Some(secret)) if sum == Some(crc32c::crc32c(summed.as_bytes())) => Ok(Identity { store, secret }),
        _ => Err(problem("its checksum does not agree")),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn unhex(text: &str) -> Option<[u8; 16]> {
    let bytes = (0..16).map(|i| text.get(2 * i..2 * i + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok()));
    if text.len() != 32 {
        return None;
    }
    bytes.collect::<Option<Vec<u8>>>()?.try_into().ok()
}

pub(super) fn sync_directory(path: &Path) -> Result<(), OpenError> {
    File::open(path).and_then(|handle| handle.sync_all()).map_err(write_error(path))
}

fn write_error(path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    |source| match source.kind() {
        io::ErrorKind::PermissionDenied
        | io::ErrorKind::ReadOnlyFilesystem
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::NotFound => OpenError::NotWritable { path, source },
        _ => OpenError::io(format!("{} cannot be written", path.display()))(source),
    }
}
