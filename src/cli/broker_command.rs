//! A broker that is killed and started by shell commands of the user.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::exit::{Exit, Failure, say};
use super::signals::Stop;
use crate::client::{Client, Error, Options};
use crate::clock::Stopwatch;

/// How long the broker may take until it serves.
const SERVE_LIMIT: Duration = Duration::from_mins(10);
/// Between two tries.
const TRY_AGAIN: Duration = Duration::from_millis(5);

/// Runs the shell command that kills the broker, to its end. It is not hit by Ctrl-C, which is for this program.
pub(super) async fn kill(command: &str) -> Result<(), Failure> {
    let ran = tokio::process::Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .process_group(0)
        .status()
        .await;
    match ran {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => {
            let text = format!("the command that kills the broker ended: {status}");
            Err(Failure::new(Exit::Failed, text).next("run it by hand; or has the broker ended by itself?"))
        }
        Err(error) => Err(Failure::new(Exit::Failed, format!("cannot run '{command}': {error}"))),
    }
}

/// What started brokers write to stderr. It is a file, because the last one outlives this program.
pub(super) struct BrokerLog {
    path: PathBuf,
    file: File,
}

impl BrokerLog {
    /// An empty file in the temporary directory, named after the run.
    pub(super) fn create(run: &str) -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("duewheel-{run}.log"));
        let file = File::options().append(true).create_new(true).open(&path);
        let failed =
            |error| Failure::new(Exit::Failed, format!("cannot write the broker's log {}: {error}", path.display()));
        Ok(Self { file: file.map_err(failed)?, path })
    }

    fn stderr(&self) -> Stdio {
        // Without a second handle the broker runs all the same.
        self.file.try_clone().map_or_else(|_| Stdio::null(), Stdio::from)
    }

    /// Says where it is, if anything was written, and whether the broker that was started last goes on running.
    pub(super) fn tell(&self, goes_on: bool) {
        if self.file.metadata().is_ok_and(|file| file.len() == 0) {
            // Nothing was started, or its command has sent the log elsewhere.
            let _left = std::fs::remove_file(&self.path);
            return;
        }
        let what = if goes_on { "the broker that was started last goes on running; its" } else { "the broker's" };
        say(&format!("{what} log is {}", self.path.display()));
    }
}

/// Starts a shell command in a process group of its own, so that Ctrl-C ends the run and not the broker.
pub(super) fn start(command: &str, log: &BrokerLog) -> Result<Child, Failure> {
    let spawned = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.stderr())
        .process_group(0)
        .spawn();
    let failed = |error| Failure::new(Exit::Failed, format!("cannot run '{command}': {error}"));
    spawned.map_err(failed)
}

/// Waits until the broker that `started` answers a question about `topic`.
pub(super) async fn serves(
    endpoint: &str,
    topic: &str,
    started: &mut Child,
    (watch, stop): (&Stopwatch, &Stop),
) -> Result<Client, Failure> {
    loop {
        let tried: Result<Client, Error> = async {
            let client = Client::connect(Options::new(endpoint)).await?;
            client.stats(Some(topic)).await?;
            Ok(client)
        }
        .await;
        // A command that puts the broker into the background has ended well.
        if let Ok(Some(status)) = started.try_wait()
            && !status.success()
        {
            let text = format!("the command that starts the broker ended: {status}");
            return Err(Failure::new(Exit::Failed, text).next("see its log, or run it by hand"));
        }
        match tried {
            Ok(client) => return Ok(client),
            Err(error) if !error.is_temporary() || watch.elapsed() > SERVE_LIMIT || stop.is_requested() => {
                return Err(Failure::call("reach the broker after its restart", &error));
            }
            Err(_) => tokio::time::sleep(TRY_AGAIN).await,
        }
    }
}
