//! A file system in a file, mounted over a loop device, whose power can be cut.
//!
//! The cut is a call of the file system that exists for this (`FS_IOC_SHUTDOWN` without a flush of its log): from then
//! on nothing is written to the device any more, and every call fails. So the image holds what had reached the device
//! at one moment, and nothing else; mounted again it is the disk after the power came back. (To copy the image while
//! it is mounted would not do: the file system goes on writing while the copy is made, and the copy is a disk that
//! never was.)

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Room for many generations and their pages.
const SIZE: &str = "600M";

/// A file with a file system.
pub(crate) struct Image {
    file: PathBuf,
    at: PathBuf,
    power_switch: PathBuf,
}

/// A mounted image; dropping it unmounts.
pub(crate) struct Mounted<'a> {
    image: &'a Image,
    /// Holds the file system until it is used or told to end.
    power_switch: Child,
}

impl Image {
    /// Makes an image in `scratch`, which must outlive it.
    pub(crate) fn make(scratch: &Path, file_system: &str) -> Self {
        let file = scratch.join("disk.image");
        run(Command::new("truncate").args(["-s", SIZE]).arg(&file));
        run(Command::new(format!("mkfs.{file_system}")).arg("-q").arg(&file));
        let at = scratch.join("disk");
        std::fs::create_dir(&at).expect("the scratch directory is writable");
        let power_switch = scratch.join("cut");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/powercut/cut.c");
        run(Command::new("cc").arg("-o").arg(&power_switch).arg(source));
        Self { file, at, power_switch }
    }

    /// Mounts it, which repeats the log of the file system if the power was cut.
    pub(crate) fn mount(&self) -> Mounted<'_> {
        run(Command::new("mount").args(["-o", "loop"]).arg(&self.file).arg(&self.at));
        let power_switch = Command::new(&self.power_switch).arg(&self.at).stdin(Stdio::piped()).spawn();
        Mounted { image: self, power_switch: power_switch.expect("what was compiled runs") }
    }
}

impl Mounted<'_> {
    pub(crate) fn path(&self) -> &Path {
        &self.image.at
    }

    /// Nothing reaches the disk from now on.
    pub(crate) fn cut_power(&mut self) {
        let stdin = self.power_switch.stdin.as_mut().expect("stdin is piped");
        stdin.write_all(b"!").and_then(|()| stdin.flush()).expect("the switch waits");
        let status = self.power_switch.wait().expect("a child can be waited for");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        drop(self.power_switch.stdin.take());
        let _ended = self.power_switch.wait();
        let at = &self.image.at;
        if std::thread::panicking() {
            // Whatever still holds it, the mount and its loop device go when that does.
            let _ended = Command::new("umount").arg("--lazy").arg(at).status();
        } else {
            run(Command::new("umount").arg(at));
        }
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
