//! Runs the command of `consume --exec` for one message, extending the lease while it runs.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};
use tokio::time::MissedTickBehavior;

use super::exit::{Exit, Failure};
use super::last_words::LastWords;
use crate::client::Delivery;

/// Exit code by which a command says that there is no definite answer yet (`EX_TEMPFAIL`).
const NOT_YET: i32 = 75;

/// How a message is to be settled.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Done.
    Ack,
    /// No definite answer yet, with a text for the history, which may be empty.
    NotYet(String),
    /// The command broke, with a text for the history.
    Failed(String),
}

/// Runs `command` for `delivery` until it ends. Dropping the future kills the command and its children.
pub(super) async fn run(command: &str, delivery: &Delivery, endpoint: &str) -> Result<Verdict, Failure> {
    let mut child = spawn(command, delivery, endpoint)?;
    let group = Group(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw));
    let stdin = child.stdin.take();
    let mut words = LastWords::of(child.stderr.take().expect("stderr is piped"));
    let feed = async {
        if let Some(mut stdin) = stdin {
            // A command that does not read its input closes the pipe; its exit code is what counts.
            let _ = stdin.write_all(&delivery.body).await;
        }
    };
    let ended = async { tokio::join!(feed, child.wait()).1 };
    let status = tokio::select! {
        status = ended => status,
        never = keep_lease(delivery) => match never {},
        never = words.show() => match never {},
    };
    group.ended();
    let last = words.finish();
    let status = status.map_err(|error| Failure::new(Exit::Failed, format!("cannot wait for the command: {error}")))?;
    Ok(verdict(status, last))
}

fn spawn(command: &str, delivery: &Delivery, endpoint: &str) -> Result<Child, Failure> {
    let mut process = Command::new("sh");
    process.arg("-c").arg(command).stdin(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
    for (name, value) in environment(delivery, endpoint) {
        process.env(name, value);
    }
    process.spawn().map_err(|error| Failure::new(Exit::Failed, format!("cannot run sh -c '{command}': {error}")))
}

/// What the command is told. An environment cannot carry NUL, so it is left out of values.
fn environment(delivery: &Delivery, endpoint: &str) -> Vec<(String, String)> {
    let mut variables = vec![
        ("TOPIC".to_owned(), delivery.topic.clone()),
        ("ID".to_owned(), delivery.id.clone()),
        ("KEY".to_owned(), delivery.key.clone().unwrap_or_default()),
        ("ATTEMPT".to_owned(), delivery.attempt.to_string()),
        ("MAX_ATTEMPTS".to_owned(), delivery.max_attempts.to_string()),
        ("DELIVERY".to_owned(), delivery.delivery.to_string()),
        ("REDELIVERED".to_owned(), delivery.redelivered.to_string()),
        ("DUE_AT".to_owned(), delivery.due_at.to_rfc3339()),
        ("DELIVERED_AT".to_owned(), delivery.delivered_at.to_rfc3339()),
        ("ENDPOINT".to_owned(), endpoint.to_owned()),
    ];
    for (name, value) in &delivery.headers {
        let name: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
        variables.push((format!("HEADER_{name}"), value.clone()));
    }
    variables.into_iter().map(|(name, value)| (format!("DUEWHEEL_{name}"), value.replace('\0', ""))).collect()
}

/// Extends the lease every third of it, for ever.
async fn keep_lease(delivery: &Delivery) -> std::convert::Infallible {
    let lease = delivery.lease();
    let mut ticks = tokio::time::interval((lease / 3).max(Duration::from_millis(20)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        if let Err(error) = delivery.extend(Some(lease)).await {
            tracing::warn!(id = %delivery.id, %error, "the lease could not be extended");
        }
    }
}

/// The verdict of an exit code; the text is what the command has said last.
fn verdict(status: ExitStatus, last: Option<String>) -> Verdict {
    match status.code() {
        Some(0) => Verdict::Ack,
        Some(NOT_YET) => Verdict::NotYet(last.unwrap_or_default()),
        _ => Verdict::Failed(last.unwrap_or_else(|| status.to_string())),
    }
}

/// The command's process group, killed when the command is given up.
struct Group(Option<Pid>);

impl Group {
    fn ended(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // It may have ended in this very moment.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn the_exit_code_is_the_verdict() {
        let said = |text: &str| Some(text.to_owned());
        assert_eq!(verdict(ExitStatus::from_raw(0), said("a warning")), Verdict::Ack);
        assert_eq!(verdict(ExitStatus::from_raw(75 << 8), None), Verdict::NotYet(String::new()));
        assert_eq!(verdict(ExitStatus::from_raw(75 << 8), said("no answer")), Verdict::NotYet("no answer".to_owned()));
        assert_eq!(verdict(ExitStatus::from_raw(3 << 8), None), Verdict::Failed("exit status: 3".to_owned()));
        assert_eq!(verdict(ExitStatus::from_raw(3 << 8), said("no route")), Verdict::Failed("no route".to_owned()));
        assert!(matches!(verdict(ExitStatus::from_raw(9), None), Verdict::Failed(text) if text.contains("signal")));
    }
}
