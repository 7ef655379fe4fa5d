//! A broker whose power will be cut: started without waiting for it, and watched by its log, which tells at any moment
//! whether it serves and what its fold thread does.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use duewheel::clock::Stopwatch;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{HANGS, send_signal, wait};

/// The smallest there is, so that hardly a moment is without a fold or a compaction.
const GENERATION: &str = "256KiB";
/// Between two looks at the log: short against a fold.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// What the fold thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Nothing,
    Fold,
    Compaction,
}

/// What the log has said.
struct Log {
    text: String,
    address: Option<SocketAddr>,
    is_serving: bool,
    work: Work,
    /// How much work was begun.
    begun: u64,
    /// How long the last fold and the last compaction that changed something took.
    lasted: [Duration; 2],
    since: Stopwatch,
    has_ended: bool,
}

/// A moment in the life of a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) is_serving: bool,
    pub(crate) work: Work,
    begun: u64,
}

/// A running broker. Dropping it kills it.
pub(crate) struct Process {
    child: Child,
    log: Arc<Mutex<Log>>,
    reading: Option<JoinHandle<()>>,
    started: Stopwatch,
}

impl Process {
    /// Starts a broker.
    pub(crate) fn start(mut program: Command, data: &Path) -> Self {
        let started = Stopwatch::start();
        let mut child = program
            .args(["serve", "--log-format", "json", "--log-level", "info,duewheel=debug"])
            .args(["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--journal-generation", GENERATION])
            .arg("--data-dir")
            .arg(data)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let log = Arc::new(Mutex::new(Log {
            text: String::new(),
            address: None,
            is_serving: false,
            work: Work::Nothing,
            begun: 0,
            lasted: [Duration::ZERO; 2],
            since: Stopwatch::start(),
            has_ended: false,
        }));
        let lines = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
        let kept = Arc::clone(&log);
        let reading = thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| lock(&kept).add(&line));
            lock(&kept).has_ended = true;
        });
        Self { child, log, reading: Some(reading), started }
    }

    /// Waits until it serves, or gives its log if it has ended instead.
    pub(crate) fn serves(&self) -> Result<(SocketAddr, Duration), String> {
        self.wait(HANGS, |log| log.is_serving || log.has_ended);
        let log = lock(&self.log);
        let address = log.address.filter(|_| log.is_serving).ok_or_else(|| log.text.clone())?;
        Ok((address, self.started.elapsed()))
    }

    /// Waits until it serves, but not longer than `time` from its start; true if it does not serve by then.
    pub(crate) fn is_recovering_after(&self, time: Duration) -> bool {
        self.wait(time.saturating_sub(self.started.elapsed()), |log| log.is_serving || log.has_ended);
        let log = lock(&self.log);
        assert!(!log.has_ended, "the broker has refused to start:\n{}", log.text);
        !log.is_serving
    }

    /// Waits until the fold thread does this; for how long the last such work took. `None` if it does not come to it.
    pub(crate) fn reaches(&self, work: Work, patience: Duration) -> Option<Duration> {
        let has_begun = |log: &Log| log.work == work && log.lasted[slot(work)] > Duration::ZERO;
        self.wait(patience, has_begun).then(|| lock(&self.log).lasted[slot(work)])
    }

    /// Waits until it has ended by itself; how it did, and its log.
    pub(crate) fn ends(&mut self) -> (ExitStatus, String) {
        let status = wait(&mut self.child);
        self.kill();
        (status, lock(&self.log).text.clone())
    }

    /// True if it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_some()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        send_signal(&self.child, signal);
    }

    /// The moment.
    pub(crate) fn moment(&self) -> Moment {
        let log = lock(&self.log);
        Moment { is_serving: log.is_serving, work: log.work, begun: log.begun }
    }

    /// Kills it and reads its log to the end.
    pub(crate) fn kill(&mut self) {
        // It may have ended by itself, since its disk is gone.
        let _ended = self.child.kill();
        self.child.wait().expect("a child can be waited for");
        if let Some(reading) = self.reading.take() {
            reading.join().expect("reading a log does not panic");
        }
    }

    fn wait(&self, patience: Duration, condition: impl Fn(&Log) -> bool) -> bool {
        let waited = Stopwatch::start();
        while !condition(&lock(&self.log)) {
            if waited.elapsed() >= patience {
                return false;
            }
            thread::sleep(LOOK_AGAIN);
        }
        true
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            eprintln!("--- log of the broker ---\n{}", lock(&self.log).text);
        }
    }
}

impl Log {
    fn add(&mut self, line: &str) {
        let event: Value = serde_json::from_str(line).unwrap_or_default();
        let is = |field: &str| event[field].as_bool() == Some(true);
        match event["message"].as_str().unwrap_or_default() {
            "listening" => self.address = event["grpc_address"].as_str().and_then(|address| address.parse().ok()),
            "serving" => self.is_serving = true,
            "a fold begins" => self.begins(Work::Fold),
            "a compaction begins" => self.begins(Work::Compaction),
            // What has failed for want of a disk has not ended.
            "a fold has ended" if is("is_durable") => self.ends(true),
            "a compaction has ended" if is("is_durable") => self.ends(is("changed")),
            _ => {}
        }
        if event["level"] != "DEBUG" {
            self.text.push_str(line);
            self.text.push('\n');
        }
    }

    fn begins(&mut self, work: Work) {
        self.work = work;
        self.begun += 1;
        self.since = Stopwatch::start();
    }

    fn ends(&mut self, is_measured: bool) {
        if is_measured {
            self.lasted[slot(self.work)] = self.since.elapsed();
        }
        self.work = Work::Nothing;
    }
}

/// Where the duration of such work is kept.
fn slot(work: Work) -> usize {
    usize::from(work == Work::Compaction)
}

fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().expect("no holder panics")
}
