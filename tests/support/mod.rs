//! A broker as a process of its own, in a directory of its own on free ports, and the program's commands against it.

// Each test binary uses its part of the support.
#![allow(dead_code, unreachable_pub)]

pub mod page_store;
pub mod pages;
pub mod preload;
pub mod small_disk;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use duewheel::clock::Stopwatch;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Far longer than anything takes; only a hanging test reaches it.
pub const HANGS: Duration = Duration::from_secs(30);
/// Between two looks at something that another process has to do.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The program under test.
pub fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_duewheel"))
}

/// A command of the program, without the environment of the person who runs the tests.
pub fn duewheel() -> Command {
    let mut command = Command::new(program());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DUEWHEEL_")) {
        command.env_remove(name);
    }
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// A running broker. Dropping it kills it.
pub struct Broker {
    child: Child,
    log: Arc<Mutex<String>>,
    pub data_dir: Arc<TempDir>,
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    flags: Vec<String>,
}

impl Broker {
    /// Starts a broker on free ports in a fresh directory, and waits until it serves.
    pub fn start() -> Self {
        let data_dir = Arc::new(tempfile::tempdir().expect("a temporary directory"));
        Self::start_in(data_dir, ([127, 0, 0, 1], 0).into(), &[])
    }

    /// Starts a broker in `data_dir` on the gRPC address `listen`, and waits until it serves.
    pub fn start_in(data_dir: Arc<TempDir>, listen: SocketAddr, flags: &[&str]) -> Self {
        Self::start_by(duewheel(), data_dir, listen, flags)
    }

    /// Starts a broker by a command that may have an environment of its own, and waits until it serves.
    pub fn start_by(mut program: Command, data_dir: Arc<TempDir>, listen: SocketAddr, flags: &[&str]) -> Self {
        let mut child = program
            .args(["serve", "--log-format", "json", "--http-listen", "127.0.0.1:0"])
            .arg("--listen")
            .arg(listen.to_string())
            .arg("--data-dir")
            .arg(data_dir.path().join("data"))
            .args(flags)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let log = Arc::new(Mutex::new(String::new()));
        let mut lines = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
        let mut addresses = None;
        for line in lines.by_ref() {
            let line = line.expect("the log is text");
            log.lock().expect("no holder panics").push_str(&format!("{line}\n"));
            addresses = bound_addresses(&line);
            if addresses.is_some() {
                break;
            }
        }
        let kept = Arc::clone(&log);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                kept.lock().expect("no holder panics").push_str(&format!("{line}\n"));
            }
        });
        let Some((grpc, http)) = addresses else {
            panic!("the broker does not listen:\n{}", log.lock().expect("no holder panics"));
        };
        let flags = flags.iter().map(|&flag| flag.to_owned()).collect();
        let broker = Self { child, log, data_dir, grpc, http, flags };
        until("the broker serves", || broker.healthz().is_some_and(|(code, _)| code == 200));
        broker
    }

    /// Starts a broker on free ports in a fresh directory with further flags of `serve`.
    pub fn start_with(flags: &[&str]) -> Self {
        let data_dir = Arc::new(tempfile::tempdir().expect("a temporary directory"));
        Self::start_in(data_dir, ([127, 0, 0, 1], 0).into(), flags)
    }

    /// Kills the broker as `kill -9` does, and starts it again on the same port and directory, with the same flags.
    pub fn kill_and_restart(mut self) -> Self {
        self.kill();
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        Self::start_in(Arc::clone(&self.data_dir), self.grpc, &flags)
    }

    /// Starts a broker and produces so many messages with keys, due in nine hours, most of which are in pages then. Also gives
    /// its data directory.
    pub fn with_pages(messages: u64) -> (Self, PathBuf) {
        let broker = Self::start_with(&["--journal-generation", "256KiB"]);
        broker.ok(&["topic", "create", "orders"]);
        let line = |n| format!("{{\"key\":\"order-{n}\",\"body\":\"order {n:05} {}\"}}\n", "y".repeat(250));
        let lines = (0..messages).map(line).collect::<Vec<_>>().concat();
        let lines = file(&broker.data_dir, "orders.txt", &lines);
        broker.ok(&["produce", "orders", "--from", arg(&lines), "--delay", "9h"]);
        let data = broker.data_dir.path().join("data");
        (broker, data)
    }

    /// Kills the broker as `kill -9` does.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }

    /// The id of the process.
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        send_signal(&self.child, signal);
    }

    /// Waits until the process has ended.
    pub fn wait(&mut self) -> ExitStatus {
        wait(&mut self.child)
    }

    /// What the broker has logged.
    pub fn log(&self) -> String {
        self.log.lock().expect("no holder panics").clone()
    }

    /// URL of the gRPC listener.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.grpc)
    }

    /// Status code and body of `GET /healthz`; `None` if nobody answers.
    pub fn healthz(&self) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(self.http).ok()?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
        let mut response = String::new();
        stream.read_to_string(&mut response).ok()?;
        let code = response.split(' ').nth(1)?.parse().ok()?;
        Some((code, response.split("\r\n\r\n").nth(1)?.to_owned()))
    }

    /// A command against this broker.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = duewheel();
        command.args(args).env("DUEWHEEL_ENDPOINT", self.endpoint());
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, args: &[&str]) -> Ran {
        Ran::of(self.command(args).output().expect("the program runs"), args)
    }

    /// Runs a command that must succeed; its stdout.
    pub fn ok(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.stdout
    }

    /// Runs a command with `-o json` that must succeed; the document.
    pub fn json(&self, args: &[&str]) -> Value {
        let mut args = args.to_vec();
        args.extend(["-o", "json"]);
        let text = self.ok(&args);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args:?} printed no JSON ({error}): {text}"))
    }

    /// A count in the statistics of a topic, such as `ready`.
    pub fn count(&self, topic: &str, name: &str) -> u64 {
        self.json(&["stats", topic])["topics"][0][name].as_u64().expect("a count")
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It may have ended before.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- log of the broker ---\n{}", self.log());
        }
    }
}

/// Kills the broker that a shell command has started on a directory, when it is dropped.
pub struct KillHolder(pub PathBuf);

impl Drop for KillHolder {
    fn drop(&mut self) {
        let holder = std::fs::read_to_string(self.0.join("LOCK")).unwrap_or_default();
        let Some(holder) = holder.trim().parse().ok().and_then(Pid::from_raw) else { return };
        // The number may be that of another process by now.
        let command = std::fs::read(format!("/proc/{}/cmdline", holder.as_raw_nonzero())).unwrap_or_default();
        if String::from_utf8_lossy(&command).contains(arg(&self.0)) {
            // It may have ended before.
            let _ = kill_process(holder, Signal::KILL);
        }
    }
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ran {
    pub args: Vec<String>,
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// The parts of `output`.
    pub fn of(output: Output, args: &[&str]) -> Self {
        Self {
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).expect("stdout is text"),
            stderr: String::from_utf8(output.stderr).expect("stderr is text"),
        }
    }
}

/// Sends a signal to a child.
pub fn send_signal(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a child has an id");
    kill_process(pid, signal).expect("the child is there");
}

/// Waits until a child has ended.
pub fn wait(child: &mut Child) -> ExitStatus {
    let mut status = None;
    until("the process ends", || {
        status = child.try_wait().expect("a child can be waited for");
        status.is_some()
    });
    status.expect("it has ended")
}

/// Looks again and again until `condition` holds; it must hold soon.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let waited = Stopwatch::start();
    while !condition() {
        assert!(waited.elapsed() < HANGS, "waited in vain until {what}");
        thread::sleep(LOOK_AGAIN);
    }
}

/// A file with `text` in a directory.
pub fn file(directory: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = directory.path().join(name);
    std::fs::write(&path, text).expect("a writable directory");
    path
}

/// The path as an argument.
pub fn arg(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

fn bound_addresses(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let event: Value = serde_json::from_str(line).ok()?;
    let address = |name: &str| event[name].as_str()?.parse().ok();
    Some((address("grpc_address")?, address("http_address")?))
}
