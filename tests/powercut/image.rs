//! A file system in a file, mounted over a loop device; its copy is the disk at the moment of the copy.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Room for a few generations and their pages.
const SIZE: &str = "600M";

/// A file with a file system.
pub(crate) struct Image(PathBuf);

/// A mounted image; dropping it unmounts.
pub(crate) struct Mounted(PathBuf);

impl Image {
    pub(crate) fn make(scratch: &Path, file_system: &str) -> Self {
        let file = scratch.join("disk.image");
        run(Command::new("truncate").args(["-s", SIZE]).arg(&file));
        run(Command::new(format!("mkfs.{file_system}")).arg("-q").arg(&file));
        Self(file)
    }

    pub(crate) fn mount(&self, scratch: &Path, name: &str) -> Mounted {
        let at = scratch.join(name);
        std::fs::create_dir(&at).expect("the scratch directory is writable");
        // A copy has the identity of its original, which xfs would refuse to mount twice.
        let is_xfs = Command::new("blkid").args(["-o", "value", "-s", "TYPE"]).arg(&self.0).output();
        let options = if is_xfs.is_ok_and(|output| output.stdout.starts_with(b"xfs")) { "loop,nouuid" } else { "loop" };
        run(Command::new("mount").args(["-o", options]).arg(&self.0).arg(&at));
        Mounted(at)
    }

    /// What the disk holds now: what the file system has not written is not in it.
    pub(crate) fn copy(&self, scratch: &Path) -> Self {
        let file = scratch.join("copy.image");
        run(Command::new("cp").arg("--sparse=always").arg(&self.0).arg(&file));
        Self(file)
    }
}

impl Mounted {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        run(Command::new("umount").arg(&self.0));
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
