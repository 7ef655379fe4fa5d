//! What a call can answer instead of a result, and whether the broker did what was asked.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, RpcStatusExt as _, StatusExt as _, pb as rpc};

/// Whether the broker did what was asked. This decides what to do next: repeat, or look first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was stored or changed.
    NotDone,
    /// It was done, although the call failed.
    Done,
    /// Nobody can tell yet. Repeat a produce with the same `dedup_id`; cancel, reschedule and ack may be
    /// repeated as they are.
    Unknown,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotDone => "not done",
            Self::Done => "done",
            Self::Unknown => "outcome unknown",
        })
    }
}

/// A call, or one item of a call, that did not succeed.
#[derive(Clone, Debug)]
pub struct Error(Box<Parts>);

#[derive(Clone, Debug)]
struct Parts {
    code: Code,
    message: String,
    outcome: Outcome,
    unreachable: bool,
    broken: bool,
    reason: Option<String>,
    field: Option<String>,
    retry_after: Option<Duration>,
    metadata: HashMap<String, String>,
}

impl Error {
    /// The gRPC status code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// The text of the broker, or of the connection, in English.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Whether the broker did what was asked.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.0.outcome
    }

    /// The stable reason that the broker gave, such as `KEY_IN_USE` or `TOPIC_NOT_FOUND`.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.0.reason.as_deref()
    }

    /// The request field that is not acceptable, such as `key`, if the broker named one.
    #[must_use]
    pub fn field(&self) -> Option<&str> {
        self.0.field.as_deref()
    }

    /// How long the broker asks to wait before the next try, if it said so.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// A further fact that came with the reason, such as the `id` of the message that holds a key.
    #[must_use]
    pub fn metadata(&self, name: &str) -> Option<&str> {
        self.0.metadata.get(name).map(String::as_str)
    }

    /// No connection could be made: the request has not left this process.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        self.0.unreachable
    }

    /// The same call may succeed later without any change: the broker is away, starting, draining or full. Not so if
    /// it has as many topics as it may: they do not go away by themselves.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        if self.reason() == Some("TOO_MANY_TOPICS") {
            return false;
        }
        self.0.unreachable
            || self.0.broken
            || self.0.retry_after.is_some()
            || matches!(
                self.0.code,
                Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown
            )
    }

    /// An answer that never came because the connection, the time or the consumer ended.
    pub(super) fn unanswered(message: impl Into<String>) -> Self {
        Self::plain(Code::Unavailable, message).with_outcome(Outcome::Unknown)
    }

    /// A request that could not be sent any more, because its stream has ended.
    pub(super) fn ended(message: impl Into<String>) -> Self {
        Self::plain(Code::Unavailable, message)
    }

    /// The failure of a stream, for a request that was on its way when it struck: it may have been done, unless
    /// the stream ended because the broker refused what was on it.
    pub(super) fn made_unknown(self) -> Self {
        if self.0.code == Code::InvalidArgument { self } else { self.with_outcome(Outcome::Unknown) }
    }

    /// A mistake found before anything was sent.
    pub(super) fn invalid(field: &str, message: impl Into<String>) -> Self {
        let mut error = Self::plain(Code::InvalidArgument, message);
        error.0.field = Some(field.to_owned());
        error
    }

    /// An answer that breaks the protocol; nothing can be concluded from it.
    pub(super) fn protocol(message: impl Into<String>) -> Self {
        Self::plain(Code::Internal, message).with_outcome(Outcome::Unknown)
    }

    /// No connection could be made, for the reason `cause`.
    pub(super) fn unreachable(cause: &(dyn StdError + 'static)) -> Self {
        let mut error = Self::plain(Code::Unavailable, chain(cause));
        error.0.unreachable = true;
        error
    }

    fn plain(code: Code, message: impl Into<String>) -> Self {
        Self(Box::new(Parts {
            code,
            message: message.into(),
            outcome: Outcome::NotDone,
            unreachable: false,
            broken: false,
            reason: None,
            field: None,
            retry_after: None,
            metadata: HashMap::new(),
        }))
    }

    fn with_outcome(mut self, outcome: Outcome) -> Self {
        self.0.outcome = outcome;
        self
    }

    fn with_details(mut self, details: &ErrorDetails) -> Self {
        if let Some(info) = details.error_info() {
            self.0.reason = Some(info.reason.clone());
            self.0.metadata.clone_from(&info.metadata);
            self.0.outcome = match info.metadata.get("outcome").map(String::as_str) {
                Some("not_done") => Outcome::NotDone,
                Some("done") => Outcome::Done,
                Some(_) => Outcome::Unknown,
                None => self.0.outcome,
            };
        }
        self.0.field = details.bad_request().and_then(|bad| bad.field_violations.first()).map(|bad| bad.field.clone());
        self.0.retry_after = details.retry_info().and_then(|retry| retry.retry_delay);
        self
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        if let Some(cause) = status.source()
            && causes(cause).any(<dyn StdError>::is::<tonic::ConnectError>)
        {
            return Self::unreachable(cause);
        }
        if let Some(cause) = status.source()
            && causes(cause).any(<dyn StdError>::is::<tonic::TimeoutExpired>)
        {
            // The library calls it cancelled.
            let text = "the broker did not answer within the time that the call was given";
            return Self::plain(Code::DeadlineExceeded, text).with_outcome(Outcome::Unknown);
        }
        let message = match status.source() {
            Some(cause) if status.message().is_empty() || status.message() == "transport error" => chain(cause),
            _ => status.message().to_owned(),
        };
        // Only a status that this side made has a source: the connection broke during the call.
        let broken = status.source().is_some();
        let outcome = if broken { Outcome::Unknown } else { outcome_of(status.code()) };
        let mut error = Self::plain(status.code(), message).with_outcome(outcome);
        error.0.broken = broken;
        error.with_details(&status.get_error_details())
    }
}

impl From<rpc::Status> for Error {
    fn from(status: rpc::Status) -> Self {
        let details = status.get_error_details();
        let code = Code::from(status.code);
        Self::plain(code, status.message).with_outcome(outcome_of(code)).with_details(&details)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        match &self.0.reason {
            Some(reason) => write!(f, " ({reason}, {})", self.0.outcome),
            None => write!(f, " ({})", self.0.outcome),
        }
    }
}

impl StdError for Error {}

/// What a code says when the broker gave no details: a refusal stored nothing, a broken call may have.
fn outcome_of(code: Code) -> Outcome {
    match code {
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Unauthenticated => Outcome::NotDone,
        Code::Ok => Outcome::Done,
        _ => Outcome::Unknown,
    }
}

fn causes<'a>(first: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(first), |&cause| cause.source())
}

/// The last, most specific texts of a chain of causes, without repetition.
fn chain(first: &(dyn StdError + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    for text in causes(first).map(ToString::to_string) {
        let repeats = texts.last().is_some_and(|last| last.contains(&text));
        if !repeats && text != "transport error" {
            texts.push(text);
        }
    }
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn details_of_the_broker_are_exposed_one_by_one() {
        let mut details = ErrorDetails::new();
        details.set_error_info(
            "KEY_IN_USE",
            "duewheel",
            [("outcome".to_owned(), "not_done".to_owned()), ("id".to_owned(), "m1".to_owned())],
        );
        details.add_bad_request_violation("key", "is taken");
        details.set_retry_info(Some(Duration::from_secs(2)));
        let error = Error::from(Status::with_error_details(Code::AlreadyExists, "the key is taken", details));
        assert_eq!(error.code(), Code::AlreadyExists);
        assert_eq!(error.reason(), Some("KEY_IN_USE"));
        assert_eq!(error.field(), Some("key"));
        assert_eq!(error.metadata("id"), Some("m1"));
        assert_eq!(error.outcome(), Outcome::NotDone);
        assert_eq!(error.retry_after(), Some(Duration::from_secs(2)));
        assert_eq!(error.to_string(), "the key is taken (KEY_IN_USE, not done)");
    }

    #[test]
    fn a_full_broker_is_temporary_unless_it_is_full_of_topics() {
        let refused = |reason: &str| {
            let details = ErrorDetails::with_error_info(reason, "duewheel", HashMap::new());
            Error::from(Status::with_error_details(Code::ResourceExhausted, "full", details))
        };
        assert!(refused("DISK_RESERVE").is_temporary());
        assert!(!refused("TOO_MANY_TOPICS").is_temporary());
    }

    #[test]
    fn the_stated_outcome_overrules_the_code() {
        for (text, want) in [("not_done", Outcome::NotDone), ("done", Outcome::Done), ("unknown", Outcome::Unknown)] {
            let mut details = ErrorDetails::new();
            details.set_error_info("ANY", "duewheel", [("outcome".to_owned(), text.to_owned())]);
            let status = Status::with_error_details(Code::Unavailable, "x", details);
            assert_eq!(Error::from(status).outcome(), want, "{text}");
        }
    }

    #[test]
    fn a_call_that_broke_is_unknown_and_a_refusal_is_not_done() {
        assert_eq!(Error::from(Status::unavailable("broken pipe")).outcome(), Outcome::Unknown);
        assert_eq!(Error::from(Status::deadline_exceeded("late")).outcome(), Outcome::Unknown);
        assert_eq!(Error::from(Status::invalid_argument("bad")).outcome(), Outcome::NotDone);
        assert!(Error::from(Status::unavailable("x")).is_temporary());
        assert!(!Error::from(Status::not_found("x")).is_temporary());
    }
}
