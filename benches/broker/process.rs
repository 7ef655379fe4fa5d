//! The broker under measurement: a process of its own on free ports, with its data in a scratch directory.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// A directory on the disk that is to be measured.
pub(crate) fn scratch_dir() -> TempDir {
    let parent = std::env::var_os("DUEWHEEL_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    tempfile::tempdir_in(parent).expect("a scratch directory")
}

pub(crate) struct Broker {
    child: Child,
    address: String,
    _data: TempDir,
}

impl Broker {
    /// Starts the broker and waits until it serves.
    pub(crate) fn start() -> Self {
        let data = scratch_dir();
        let mut child = Command::new(env!("CARGO_BIN_EXE_duewheel"))
            .args([
                "serve",
                "--log-format",
                "json",
                "--listen",
                "127.0.0.1:0",
                "--http-listen",
                "127.0.0.1:0",
                "--data-dir",
            ])
            .arg(data.path().join("data"))
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let mut address = None;
        let mut lines = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
        for line in lines.by_ref().map_while(Result::ok) {
            let event: serde_json::Value = serde_json::from_str(&line).expect("the log is JSON lines");
            if let Some(bound) = event["grpc_address"].as_str() {
                address = Some(bound.to_owned());
            }
            if event["message"] == "serving" {
                break;
            }
        }
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address: address.expect("the broker says where it listens"), _data: data }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}
