//! Exit codes, and how a failure is told to a person: what failed, whether it was done, what to do next.

use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

use tonic::Code;

use super::visible::visible_lines;
use crate::client::{Error, Outcome};
use crate::queue::schedule::format_duration;

/// Every exit code of the program. The numbers above 2 are those of `sysexits.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// Done as asked.
    Ok = 0,
    /// Not done, or only in part.
    Failed = 1,
    /// The command or a value in it is wrong.
    Usage = 2,
    /// No broker answers at the endpoint.
    Unreachable = 69,
    /// The same command may succeed later.
    Temporary = 75,
    /// The configuration or the data directory has to be put right.
    Config = 78,
}

/// The list of exit codes as help texts show it.
macro_rules! exit_codes {
    () => {
        "\
Exit codes:
  0   done as asked
  1   failed
  2   wrong usage
  69  no broker at the endpoint
  75  temporary: try again
  78  wrong configuration"
    };
}
pub(super) use exit_codes;

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Tells the person at the terminal something, on stderr. Unlike `eprintln!` it goes on if nobody reads that.
pub(super) fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{}", visible_lines(text));
}

/// Tells that a listing was cut short by its limit.
pub(super) fn say_more(limit: usize) {
    say(&format!("the first {limit} are shown; there are more: --limit N shows the first N"));
}

/// A command that did not succeed.
#[derive(Debug)]
pub(super) struct Failure {
    /// The exit code.
    pub(super) exit: Exit,
    message: String,
    outcome: Option<Outcome>,
    next: Option<String>,
    unknown_topic: Option<String>,
}

impl Failure {
    /// A failure with nothing to add.
    pub(super) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), outcome: None, next: None, unknown_topic: None }
    }

    /// An end with an exit code alone: everything has been said already.
    pub(super) fn silent(exit: Exit) -> Self {
        Self::new(exit, "")
    }

    /// What the person can do about it.
    pub(super) fn next(self, next: impl Into<String>) -> Self {
        Self { next: Some(next.into()), ..self }
    }

    /// The failure of a command that reads only: whether something was done is no question then.
    pub(super) fn of_reading(self) -> Self {
        let next = self.next.map(|next| if next == REPEAT { "try again".to_owned() } else { next });
        Self { outcome: None, next, ..self }
    }

    /// The topic that the broker does not know, if that is the failure.
    pub(super) fn unknown_topic(&self) -> Option<&str> {
        self.unknown_topic.as_deref()
    }

    /// `what`, such as "produce to 'orders'", failed in a call to the broker.
    pub(super) fn call(what: impl fmt::Display, error: &Error) -> Self {
        let reason = error.reason().map(|reason| format!(" ({reason})")).unwrap_or_default();
        let field = error.field().map(|field| format!("{field}: ")).unwrap_or_default();
        let text = if error.message().starts_with(&field) { "" } else { &field };
        Self {
            exit: exit_of(error),
            message: format!("cannot {what}: {text}{}{reason}", error.message()),
            outcome: Some(error.outcome()),
            next: next_step(error),
            unknown_topic: error.metadata("topic").filter(|_| is_unknown_topic(error)).map(str::to_owned),
        }
    }

    /// Tells it on stderr.
    pub(super) fn report(&self) {
        if self.message.is_empty() {
            return;
        }
        say(&format!("error: {}", self.message));
        if let Some(outcome) = self.outcome {
            say(&format!("  outcome: {}", outcome_text(outcome)));
        }
        if let Some(next) = &self.next {
            say(&format!("  next: {next}"));
        }
    }
}

impl From<io::Error> for Failure {
    /// Writing the output failed; a reader that went away (`| head`) needs no words.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::silent(Exit::Failed),
            _ => Self::new(Exit::Failed, format!("cannot write the output: {error}")),
        }
    }
}

/// The exit code of a failed call.
pub(super) fn exit_of(error: &Error) -> Exit {
    if error.is_unreachable() {
        Exit::Unreachable
    } else if error.code() == Code::InvalidArgument {
        Exit::Usage
    } else if error.is_temporary() {
        Exit::Temporary
    } else {
        Exit::Failed
    }
}

/// The broker does not know the topic that was named.
pub(super) fn is_unknown_topic(error: &Error) -> bool {
    error.reason() == Some("TOPIC_NOT_FOUND")
}

/// What to do when nobody knows what was done.
const REPEAT: &str = "repeat it (a produce with the same --dedup-id), or look first";

fn outcome_text(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::NotDone => "not done; nothing was changed",
        Outcome::Done => "done",
        Outcome::Unknown => "unknown; it may or may not have been done",
    }
}

fn next_step(error: &Error) -> Option<String> {
    if error.is_unreachable() {
        return Some("start the broker (duewheel serve), or name it with --endpoint or DUEWHEEL_ENDPOINT".to_owned());
    }
    if error.code() == Code::Unimplemented && error.reason().is_none() {
        let next = "is this the gRPC port of a broker of this version? It is 7383 by default; 7384 is HTTP";
        return Some(next.to_owned());
    }
    let known = match error.reason() {
        Some("TOPIC_NOT_FOUND") => Some("see which topics there are: duewheel topic list"),
        Some("TOPIC_NOT_EMPTY") => {
            Some("see what is in it with duewheel stats; --purge deletes it with all its messages")
        }
        Some("TOO_MANY_TOPICS") => Some(
            "delete a topic that is not used (duewheel topic list), or raise max_topics of the broker; a topic is for \
             a kind of job, not for an order",
        ),
        Some("TOPIC_EXISTS") => Some("change it with duewheel topic update"),
        Some("KEY_IN_USE" | "KEY_IN_FLIGHT") => {
            Some("see the holder with duewheel message show --key, or choose another --key-policy")
        }
        Some("DEDUP_ID_REUSED") => Some("use another --dedup-id, or repeat exactly what was produced first"),
        Some("DEDUP_WINDOW_FULL") => Some("wait, or raise --dedup-capacity of the topic"),
        Some("CLOCK_OFFSET_CHANGED") => Some("look again with duewheel clock show"),
        Some("CLOCK_TOO_FAR_BEHIND") => {
            Some("restart the broker: messages then wait until the wall clock gets to their due time")
        }
        Some("DISK_RESERVE") => Some("make room on the disk of the broker; it accepts produce again by itself"),
        Some("MESSAGE_NOT_FOUND") => {
            Some("check the topic and the id or key; ended messages are remembered for a time")
        }
        _ => None,
    };
    if let Some(known) = known {
        return Some(known.to_owned());
    }
    match (error.outcome(), error.retry_after()) {
        (Outcome::Unknown, _) => Some(REPEAT.to_owned()),
        (_, Some(wait)) => {
            let ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            Some(format!("try again in {}", format_duration(ms)))
        }
        _ if error.is_temporary() => Some("try again".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;

    #[test]
    fn each_kind_of_error_has_its_exit_code() {
        let cases = [
            (Status::invalid_argument("x"), Exit::Usage),
            (Status::not_found("x"), Exit::Failed),
            (Status::already_exists("x"), Exit::Failed),
            (Status::unavailable("x"), Exit::Temporary),
            (Status::resource_exhausted("x"), Exit::Temporary),
            (Status::internal("x"), Exit::Failed),
        ];
        for (status, want) in cases {
            let code = status.code();
            assert_eq!(exit_of(&Error::from(status)), want, "{code:?}");
        }
    }

    #[test]
    fn a_failure_says_what_failed_whether_it_was_done_and_what_to_do_next() {
        let failure = Failure::call("produce to 'orders'", &Error::from(Status::unavailable("connection reset")));
        assert_eq!(failure.message, "cannot produce to 'orders': connection reset");
        assert_eq!(failure.outcome, Some(Outcome::Unknown));
        assert!(failure.next.expect("an unknown outcome needs advice").contains("--dedup-id"));
        let read = Failure::call("list topics", &Error::from(Status::unavailable("connection reset"))).of_reading();
        assert_eq!((read.outcome, read.next.as_deref()), (None, Some("try again")));
        let elsewhere = Failure::call("list topics", &Error::from(Status::unimplemented("HTTP status code 404")));
        assert!(elsewhere.next.expect("another server needs advice").contains("7383"));
    }
}
