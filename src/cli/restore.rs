//! `duewheel restore`: a data directory from a backup, or a look at a backup.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use clap::Args;

use super::args::default_data_dir;
use super::backup::BackupView;
use super::exit::{Exit, Failure, say};
use super::output::{Format, print_sheet};
use super::progress::Progress;
use crate::server::offline::{self, BackupContents, BackupFileError, RestoreError, RestoredBackup};

/// Arguments of `restore`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The directory must be missing or empty, and no broker may use it. The whole backup is checked before anything is \
written. A restore that is interrupted leaves a directory that no broker opens; repeat the command, and it begins anew. The \
restored store has a new id and a new secret: receipts of before are refused. What was delivered or settled after the backup \
was taken is not in it, and comes again.

With - the backup comes from stdin. It is kept in the directory until all of it was checked, in a file without a name, so \
there must be room for it there too. Unpack a packed backup on the way.

Exit code 78: the backup is damaged, cut off or of a newer version, or the directory is not empty.

Examples:
  duewheel restore /backup/2026-12-01 --data-dir /var/lib/duewheel
  duewheel restore /backup/2026-12-01 --check
  zstd -dc /backup/latest.zst | duewheel restore - --data-dir /srv/duewheel")]
pub(super) struct RestoreArgs {
    /// Backup file; - for stdin
    file: PathBuf,
    #[arg(long, value_name = "DIR", hide_default_value = true, default_value = default_data_dir(),
        help = "Directory to make [env: DUEWHEEL_DATA_DIR] [default: duewheel-data]")]
    data_dir: PathBuf,
    /// Only read the whole backup, check it, and print what it holds
    #[arg(long)]
    check: bool,
}

/// Runs `restore`.
pub(super) fn run(format: Format, args: &RestoreArgs) -> Result<(), Failure> {
    let is_stdin = args.file.as_os_str() == "-";
    if is_stdin && io::stdin().is_terminal() {
        let failure = Failure::new(Exit::Usage, "a backup does not come from a terminal");
        return Err(failure.next("give its file, or send it in: duewheel restore - < FILE"));
    }
    if args.check {
        let contents = read(if is_stdin { Path::new("/dev/stdin") } else { &args.file }, "MiB checked")?;
        return Ok(print_sheet(format, &view(&contents))?);
    }
    let restored = if is_stdin {
        from_stdin(&args.data_dir)?
    } else {
        from_file(&args.file, &args.file.display().to_string(), &args.data_dir)?
    };
    print_sheet(format, &view(&restored.contents))?;
    say(&format!("restored to {}; start the broker on it", args.data_dir.display()));
    Ok(())
}

/// Restores the backup in a file; `name` is what it is called where something is wrong with it.
fn from_file(file: &Path, name: &str, directory: &Path) -> Result<RestoredBackup, Failure> {
    let mut steps = Steps::new("MiB restored");
    let restored = offline::restore(file, directory, &mut |bytes, of| steps.reached(bytes, of));
    steps.finish();
    restored.map_err(|error| refused(name, directory, &error))
}

/// Restores what comes from stdin. A backup is read twice, and so it is kept first.
fn from_stdin(directory: &Path) -> Result<RestoredBackup, Failure> {
    let was_there = directory.exists();
    let restored = spooled(directory).and_then(|spool| {
        // The file has no name; through the process it can be opened again.
        from_file(Path::new(&format!("/proc/self/fd/{}", spool.as_raw_fd())), "stdin", directory)
    });
    if restored.is_err() && !was_there {
        // Something may be in it, which is to be looked at.
        let _kept = fs::remove_dir(directory);
    }
    restored
}

/// All of stdin in a file without a name.
fn spooled(directory: &Path) -> Result<File, Failure> {
    let mut spool = offline::restore_spool(directory).map_err(|error| refused("stdin", directory, &error))?;
    let (mut stdin, mut buffer) = (io::stdin().lock(), vec![0; 1 << 20]);
    let (mut progress, mut bytes) = (Progress::new("MiB read", None), 0);
    loop {
        let unread = |error| Failure::new(Exit::Failed, format!("cannot read stdin: {error}"));
        let read = stdin.read(&mut buffer).map_err(unread)?;
        if read == 0 {
            progress.finish();
            return Ok(spool);
        }
        let full = |error| Failure::new(Exit::Failed, format!("cannot keep it in {}: {error}", directory.display()));
        spool.write_all(&buffer[..read]).map_err(full)?;
        let before = bytes;
        bytes += read as u64;
        progress.done_bytes(before, bytes);
    }
}

/// Reads a whole backup and checks it.
pub(super) fn read(file: &Path, verb: &'static str) -> Result<BackupContents, Failure> {
    let mut steps = Steps::new(verb);
    let contents = offline::read_backup(file, &mut |bytes, of| steps.reached(bytes, of));
    steps.finish();
    contents.map_err(|error| Failure::new(exit_of(&error), format!("{}: {error}", file.display())))
}

fn refused(file: &str, directory: &Path, error: &RestoreError) -> Failure {
    let what = match error {
        RestoreError::Store(_) => format!("cannot restore to {}", directory.display()),
        RestoreError::File(_) | RestoreError::Missing(_) => format!("cannot restore {file}"),
    };
    Failure::new(exit_of(error), format!("{what}: {error}"))
}

fn exit_of(error: &RestoreError) -> Exit {
    match error {
        RestoreError::File(error) if !matches!(error, BackupFileError::Io { .. }) => Exit::Config,
        RestoreError::Store(error) if offline::is_misuse(error) => Exit::Config,
        _ => Exit::Failed,
    }
}

/// Progress in bytes, told in MiB.
struct Steps {
    verb: &'static str,
    progress: Option<Progress>,
    reached: u64,
}

impl Steps {
    fn new(verb: &'static str) -> Self {
        Self { verb, progress: None, reached: 0 }
    }

    fn reached(&mut self, bytes: u64, of: u64) {
        let progress = self.progress.get_or_insert_with(|| Progress::new(self.verb, Some(of)));
        progress.read(usize::try_from(bytes - self.reached).unwrap_or(usize::MAX));
        progress.done_bytes(self.reached, bytes);
        self.reached = bytes;
    }

    fn finish(&self) {
        if let Some(progress) = &self.progress {
            progress.finish();
        }
    }
}

fn view(contents: &BackupContents) -> BackupView {
    let BackupContents { header, counts, bytes, checksum, .. } = contents;
    let store = header.store.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a text can be written");
        text
    });
    BackupView {
        taken_at: header.taken_at.to_rfc3339(),
        store,
        epoch: header.epoch,
        topics: counts.topics,
        waiting: counts.waiting,
        dead: counts.dead,
        ended: counts.ended,
        dedup_ids: counts.dedup_ids,
        bytes: *bytes,
        checksum: format!("{checksum:08x}"),
    }
}
