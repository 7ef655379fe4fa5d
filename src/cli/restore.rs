//! `duewheel restore`: a data directory from a backup, or a look at a backup.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;

use super::args::default_data_dir;
use super::backup::BackupView;
use super::exit::{Exit, Failure, say};
use super::output::{Format, print_sheet};
use super::progress::Progress;
use crate::server::offline::{self, BackupContents, BackupFileError, RestoreError};

/// Arguments of `restore`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The directory must be missing or empty, and no broker may use it. The whole backup is checked before anything is \
written. A restore that is interrupted leaves a directory that no broker opens; repeat the command, and it begins anew. The \
restored store has a new id and a new secret: receipts of before are refused. What was delivered or settled after the backup \
was taken is not in it, and comes again.

Exit code 78: the backup is damaged, cut off or of a newer version, or the directory is not empty.

Examples:
  duewheel restore /backup/duewheel-2026-12-01 --data-dir /var/lib/duewheel
  duewheel restore /backup/duewheel-2026-12-01 --check")]
pub(super) struct RestoreArgs {
    /// Backup file
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
    if args.check {
        let contents = read(&args.file, "MiB checked")?;
        return Ok(print_sheet(format, &view(&contents))?);
    }
    let mut steps = Steps::new("MiB restored");
    let restored = offline::restore(&args.file, &args.data_dir, &mut |bytes, of| steps.reached(bytes, of));
    steps.finish();
    let restored = restored.map_err(|error| refused(&args.file, &args.data_dir, &error))?;
    print_sheet(format, &view(&restored.contents))?;
    say(&format!("restored to {}; start the broker on it", args.data_dir.display()));
    Ok(())
}

/// Reads a whole backup and checks it.
pub(super) fn read(file: &Path, verb: &'static str) -> Result<BackupContents, Failure> {
    let mut steps = Steps::new(verb);
    let contents = offline::read_backup(file, &mut |bytes, of| steps.reached(bytes, of));
    steps.finish();
    contents.map_err(|error| Failure::new(exit_of(&error), format!("{}: {error}", file.display())))
}

fn refused(file: &Path, directory: &Path, error: &RestoreError) -> Failure {
    let what = match error {
        RestoreError::Store(_) => format!("cannot restore to {}", directory.display()),
        RestoreError::File(_) | RestoreError::Missing(_) => format!("cannot restore {}", file.display()),
    };
    Failure::new(exit_of(error), format!("{what}: {error}"))
}

fn exit_of(error: &RestoreError) -> Exit {
    match error {
        RestoreError::File(BackupFileError::Damaged { .. } | BackupFileError::Newer { .. }) => Exit::Config,
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
        (self.reached >> 20..bytes >> 20).for_each(|_| progress.done());
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
