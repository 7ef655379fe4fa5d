//! A small file system of its own, which can be filled.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use tempfile::TempDir;

/// A small file system of its own; unmounted when dropped.
pub struct SmallDisk(pub Arc<TempDir>);

impl SmallDisk {
    /// `None` where mounting is not allowed.
    pub fn mount(size: &str) -> Option<Self> {
        let directory = Arc::new(tempfile::tempdir().expect("a temporary directory"));
        let options = format!("size={size}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(directory.path()).stderr(Stdio::null());
        let is_mounted = mount.status().is_ok_and(|status| status.success());
        if !is_mounted {
            println!("a file system cannot be mounted here: the real one is not tested, the injected one is");
        }
        is_mounted.then_some(Self(directory))
    }

    /// Bytes that are free.
    pub fn free(&self) -> u64 {
        let space = rustix::fs::statvfs(self.0.path()).expect("it is mounted");
        space.f_bavail * space.f_frsize
    }

    /// Fills the disk up to so many free bytes.
    pub fn fill(&self, leave: u64) -> PathBuf {
        let ballast = self.0.path().join("ballast");
        let bytes = vec![1; usize::try_from(self.free() - leave).expect("it is small")];
        fs::write(&ballast, bytes).expect("there is room");
        ballast
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}
