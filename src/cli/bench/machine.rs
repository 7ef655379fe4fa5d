//! The machine under the broker: memory, CPU time and disk of its process, and what the disk alone can do.
//!
//! All of it is read from `/proc` and the file system, so it needs a broker on the same machine that was named
//! by its process id or its data directory. What cannot be read is left out of the report, never guessed.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::report::rounded;
use crate::clock::Stopwatch;

/// Clock ticks per second in `/proc`, the same on every Linux.
const TICKS: f64 = 100.0;
/// Bytes of a message of 256 B with its frame in the journal.
const RECORD_BYTES: usize = 320;
/// The raw file is written ahead, as the journal's segments are.
const RAW_FILE_BYTES: usize = 8 * 1024 * 1024;
/// Appends of the probe whose median is reported.
const PROBES: usize = 41;

/// Where the broker is on this machine, as far as it is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    /// Its process.
    pub(super) process: Option<u32>,
    /// Its data directory.
    pub(super) data_dir: Option<PathBuf>,
}

impl Place {
    /// The place of a broker that was named by its process, its data directory, or both.
    pub(super) fn new(process: Option<u32>, data_dir: Option<PathBuf>) -> Self {
        let process = process.or_else(|| holder(data_dir.as_deref()?));
        Self { process, data_dir }
    }

    /// Memory in MiB: the proportional set size, or the resident size where that cannot be read.
    pub(super) fn memory_mb(&self) -> Option<u64> {
        memory_kb(self.process?).map(|kb| kb / 1024)
    }

    /// CPU seconds that the process has used, in user and system mode.
    pub(super) fn cpu_s(&self) -> Option<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process?)).ok()?;
        // The name of the program is in parentheses and may hold anything.
        let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
        let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
        Some((ticks(11)? + ticks(12)?) / TICKS)
    }

    /// CPU seconds since `before`.
    pub(super) fn cpu_since(&self, before: Option<f64>) -> Option<f64> {
        Some(rounded(self.cpu_s()? - before?))
    }

    /// Bytes allocated below the data directory.
    pub(super) fn disk_bytes(&self) -> Option<u64> {
        Some(allocated(self.data_dir.as_deref()?))
    }

    /// Median milliseconds of an append of 4 KiB and its fdatasync, and appends of a message to a preallocated
    /// file per second, each with its fdatasync. Beside the data directory, so on its disk.
    pub(super) async fn disk_alone(&self) -> Option<(f64, f64)> {
        let parent = self.data_dir.as_deref()?.parent()?.to_owned();
        let path = parent.join(format!("duewheel-probe-{}", std::process::id()));
        tokio::task::spawn_blocking(move || {
            let measured = probe(&path);
            // What was written only to be measured goes away; a file that cannot is seen by its name.
            let _ = fs::remove_file(&path);
            measured.ok()
        })
        .await
        .ok()?
    }
}

/// Watches the memory of the broker until it is asked for the peak.
pub(super) struct Peak(JoinHandle<()>, tokio::sync::watch::Receiver<Option<u64>>);

impl Peak {
    /// Starts to watch.
    pub(super) fn watch(place: &Place) -> Self {
        let (highest, seen) = tokio::sync::watch::channel(place.memory_mb());
        let place = place.clone();
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(200)).await;
                let now = place.memory_mb();
                highest.send_modify(|highest| *highest = (*highest).max(now));
            }
        });
        Self(task, seen)
    }

    /// The highest memory seen, MiB.
    pub(super) fn end(self) -> Option<u64> {
        self.0.abort();
        *self.1.borrow()
    }
}

/// The process that holds the lock of a data directory.
pub(super) fn holder(data_dir: &Path) -> Option<u32> {
    let process: u32 = fs::read_to_string(data_dir.join("LOCK")).ok()?.trim().parse().ok()?;
    is_alive(process).then_some(process)
}

/// The process exists, and some thread of it has not ended: until then it holds its files and addresses.
pub(super) fn is_alive(process: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    threads.into_iter().any(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let state = stat.rfind(')').and_then(|end| stat[end + 1..].split_whitespace().next());
        !matches!(state, None | Some("Z" | "X"))
    })
}

fn memory_kb(process: u32) -> Option<u64> {
    let field = |file: &str, name: &str| -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{process}/{file}")).ok()?;
        text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
    };
    field("smaps_rollup", "Pss:").or_else(|| field("status", "VmRSS:"))
}

fn allocated(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => allocated(&entry.path()),
        Ok(metadata) => metadata.blocks() * 512,
        // It went away while it was looked at.
        Err(_) => 0,
    };
    entries.map(size).sum()
}

fn probe(path: &Path) -> std::io::Result<(f64, f64)> {
    let mut file = fs::File::create(path)?;
    let mut took: Vec<f64> = Vec::with_capacity(PROBES);
    for _ in 0..PROBES {
        let watch = Stopwatch::start();
        file.write_all(&[7; 4096])?;
        file.sync_data()?;
        took.push(watch.elapsed().as_secs_f64() * 1_000.0);
    }
    took.sort_by(f64::total_cmp);
    file.write_all(&vec![0; RAW_FILE_BYTES])?;
    file.sync_all()?;
    let (watch, mut count, mut offset) = (Stopwatch::start(), 0_u32, 0);
    while watch.elapsed() < Duration::from_secs(1) {
        file.write_all_at(&[7; RECORD_BYTES], offset)?;
        file.sync_data()?;
        offset = (offset + RECORD_BYTES as u64) % (RAW_FILE_BYTES - RECORD_BYTES) as u64;
        count += 1;
    }
    let per_second = f64::from(count) / watch.elapsed().as_secs_f64();
    Ok(((took[PROBES / 2] * 1_000.0).round() / 1_000.0, per_second.round()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_cpu_time_and_is_alive() {
        let place = Place::new(Some(std::process::id()), None);
        assert!(place.memory_mb().is_some_and(|mb| mb > 0));
        assert!(place.cpu_s().is_some());
        assert!(is_alive(std::process::id()));
        assert!(!is_alive(u32::MAX));
        assert_eq!(Place::default().memory_mb(), None);
    }
}
