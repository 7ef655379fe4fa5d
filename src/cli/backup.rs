//! `duewheel backup`: everything a running broker holds, in a file that appears when it is whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::exit::{Exit, Failure, say};
use super::file_name;
use super::output::{Sheet, print_sheet};
use super::progress::Progress;
use super::restore;
use super::session::Session;
use super::signals::Stop;
use crate::client::{Backup, timestamp};
use crate::crash::crash_point;

/// Arguments of `backup`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The file holds everything that was confirmed before the command began: topics, messages with their attempts and keys, \
dead letters, the history of ended messages, dedup ids and counts. The broker goes on serving. The file is written as \
FILE.partial, read back, checked and renamed; Ctrl-C removes it. A FILE that is a link, a pipe or a device is refused. \
Restore it with `duewheel restore`. It holds the bodies of \
messages: keep it as safe as the data directory (its mode is 0600).

Examples:
  duewheel backup /backup/duewheel-2026-12-01
  duewheel backup --force /backup/latest
  duewheel backup - | zstd > /backup/latest.zst
  zstd -dc /backup/latest.zst | duewheel restore - --data-dir /srv/duewheel")]
pub(super) struct BackupArgs {
    /// File to write; - for stdout
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
}

/// Runs `backup`.
pub(super) async fn run(session: &Session, args: &BackupArgs) -> Result<(), Failure> {
    let is_stdout = args.file.as_os_str() == "-";
    if is_stdout && io::stdout().is_terminal() {
        let failure = Failure::new(Exit::Usage, "a backup is not for a terminal");
        return Err(failure.next("give the name of a file, or send it on: duewheel backup - | zstd > FILE"));
    }
    if !is_stdout {
        file_name::is_taken(&Partial::name(&args.file))?;
    }
    if !is_stdout && file_name::is_taken(&args.file)? && !args.force {
        let message = format!("{} exists", args.file.display());
        return Err(Failure::new(Exit::Usage, message).next("give another name, or --force to replace it"));
    }
    let stop = Stop::listen()?;
    let client = session.connect().await?;
    let mut backup = client.backup().await.map_err(|error| Failure::call("take a backup", &error))?;
    if is_stdout {
        // Stdout is the backup itself; what there is to say goes to stderr.
        let written = receive(&mut backup, &mut io::stdout().lock(), &stop).await?;
        say(&format!("a backup of {} messages, {} bytes", written.waiting + written.dead, written.bytes));
        return Ok(());
    }
    let partial = Partial::create(&args.file)?;
    let written = receive(&mut backup, &mut &partial.file, &stop).await?;
    partial.finish(&args.file, &written, args.force)?;
    Ok(print_sheet(session.format, &written)?)
}

/// Writes the whole backup out, or fails.
async fn receive(backup: &mut Backup, out: &mut impl Write, stop: &Stop) -> Result<BackupView, Failure> {
    let mut progress = Progress::new("MiB written", None);
    let mut bytes = 0_u64;
    let received = loop {
        let next = tokio::select! {
            next = backup.next() => next,
            () = stop.requested() => break Err(Failure::new(Exit::Failed, "stopped; there is no backup")),
        };
        match next {
            Err(error) => break Err(Failure::call("take a backup", &error)),
            Ok(None) => break Ok(()),
            Ok(Some(data)) => {
                if let Err(error) = out.write_all(&data) {
                    break Err(Failure::new(Exit::Failed, format!("cannot write the backup: {error}")));
                }
                let before = bytes;
                bytes += data.len() as u64;
                crash_point!("backup.part_written");
                progress.done_bytes(before, bytes);
            }
        }
    };
    progress.finish();
    received?;
    out.flush()?;
    let trailer = backup.trailer().expect("a backup ends with its trailer");
    if trailer.bytes != bytes {
        let message = format!("{bytes} bytes came of a backup of {}", trailer.bytes);
        return Err(Failure::new(Exit::Failed, message));
    }
    let header = backup.header();
    Ok(BackupView {
        taken_at: header.taken_at.as_ref().map(|at| timestamp(at).to_rfc3339()).unwrap_or_default(),
        store: header.store_id.clone(),
        epoch: header.epoch,
        topics: trailer.topics,
        waiting: trailer.waiting,
        dead: trailer.dead,
        ended: trailer.ended,
        dedup_ids: trailer.dedup_ids,
        bytes,
        checksum: format!("{:08x}", trailer.checksum),
    })
}

/// The file while it is not whole. Dropping it removes it.
struct Partial {
    path: PathBuf,
    file: File,
}

impl Partial {
    fn name(target: &Path) -> PathBuf {
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(".partial");
        target.with_file_name(name)
    }

    fn create(target: &Path) -> Result<Self, Failure> {
        let path = Self::name(target);
        let mut options = OpenOptions::new();
        // What a backup that was killed has left is of no use.
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
        let file = file.map_err(|error| cannot_write(&path, &error))?;
        Ok(Self { path, file })
    }

    /// Makes it durable, reads it back, and gives it its name.
    fn finish(self, target: &Path, written: &BackupView, force: bool) -> Result<(), Failure> {
        crash_point!("backup.written");
        self.file.sync_all().map_err(|error| cannot_write(&self.path, &error))?;
        crash_point!("backup.durable");
        let contents = restore::read(&self.path, "MiB read back")?;
        if format!("{:08x}", contents.checksum) != written.checksum {
            return Err(Failure::new(Exit::Failed, "the file is not what the broker sent: check the disk"));
        }
        if file_name::is_taken(target)? && !force {
            return Err(Failure::new(Exit::Failed, format!("{} has come into being meanwhile", target.display())));
        }
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        crash_point!("backup.checked");
        let named = fs::rename(&self.path, target).and_then(|()| File::open(parent)?.sync_all());
        crash_point!("backup.named");
        named.map_err(|error| cannot_write(target, &error))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // After the rename there is nothing by that name.
        let _gone = fs::remove_file(&self.path);
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("{} cannot be written: {error}", path.display()))
}

/// A backup as it is shown.
#[derive(Debug, Serialize)]
pub(super) struct BackupView {
    pub(super) taken_at: String,
    pub(super) store: String,
    pub(super) epoch: u32,
    pub(super) topics: u64,
    pub(super) waiting: u64,
    pub(super) dead: u64,
    pub(super) ended: u64,
    pub(super) dedup_ids: u64,
    pub(super) bytes: u64,
    pub(super) checksum: String,
}

impl Sheet for BackupView {
    fn lines(&self) -> Vec<(&'static str, String)> {
        vec![
            ("taken at", self.taken_at.clone()),
            ("of store", self.store.clone()),
            ("epoch", self.epoch.to_string()),
            ("topics", self.topics.to_string()),
            ("messages", self.waiting.to_string()),
            ("dead letters", self.dead.to_string()),
            ("ended remembered", self.ended.to_string()),
            ("dedup ids", self.dedup_ids.to_string()),
            ("bytes", self.bytes.to_string()),
            ("checksum", self.checksum.clone()),
        ]
    }
}
