//! A broker that is killed and started by shell commands of the user.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::exit::{Exit, Failure};
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

/// Starts a shell command in a process group of its own, so that Ctrl-C ends the run and not the broker.
pub(super) fn start(command: &str) -> Result<Child, Failure> {
    let spawned = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
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
            return Err(Failure::new(Exit::Failed, text).next("run it by hand to see what it says"));
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
