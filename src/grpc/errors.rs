//! Every refusal of the API, mapped to its gRPC status in this one file.
//!
//! A client decides by code and `reason`; people read the message. The `outcome` in the metadata says
//! whether anything was stored, so that a client knows what it may repeat.

use std::collections::HashMap;
use std::time::Duration;

use prost::Message as _;
use prost_types::Any;
use tonic::{Code, Status};
use tonic_types::pb;

use crate::clock::AdoptError;
use crate::engine::{BackupError, EngineError};
use crate::queue::change::Outcome;
use crate::queue::command::{FindRejection, ProduceRejection, Rejection, SettleRejection, TopicRejection};
use crate::queue::message::MessageId;
use crate::queue::schedule::format_duration;
use crate::queue::values::{Invalid, TopicName};

/// The `domain` of every `google.rpc.ErrorInfo`.
pub const DOMAIN: &str = "duewheel";

/// The reasons of `google.rpc.ErrorInfo`. They are part of the API: none is renamed or reused.
pub mod reason {
    /// A field is malformed or out of range; `google.rpc.BadRequest` names it. `INVALID_ARGUMENT`.
    pub const INVALID_FIELD: &str = "INVALID_FIELD";
    /// There is no such topic; metadata `topic`. `NOT_FOUND`.
    pub const TOPIC_NOT_FOUND: &str = "TOPIC_NOT_FOUND";
    /// The name of a new topic is taken; metadata `topic`. `ALREADY_EXISTS`.
    pub const TOPIC_EXISTS: &str = "TOPIC_EXISTS";
    /// The topic has messages and was not to be purged; metadata `topic`, `waiting`, `leased`, `dead`.
    /// `FAILED_PRECONDITION`.
    pub const TOPIC_NOT_EMPTY: &str = "TOPIC_NOT_EMPTY";
    /// The broker has as many topics as it may; metadata `limit`. `RESOURCE_EXHAUSTED`.
    pub const TOO_MANY_TOPICS: &str = "TOO_MANY_TOPICS";
    /// The message is neither live nor remembered. `NOT_FOUND`.
    pub const MESSAGE_NOT_FOUND: &str = "MESSAGE_NOT_FOUND";
    /// A live message holds the key; metadata `holder` (its id) and `dead`. `ALREADY_EXISTS`.
    pub const KEY_IN_USE: &str = "KEY_IN_USE";
    /// The holder of the key is leased and cannot be replaced; metadata `holder`. `FAILED_PRECONDITION`.
    pub const KEY_IN_FLIGHT: &str = "KEY_IN_FLIGHT";
    /// The dedup id was used with other content; metadata `first` (the id of that message).
    /// `FAILED_PRECONDITION`.
    pub const DEDUP_ID_REUSED: &str = "DEDUP_ID_REUSED";
    /// The topic remembers as many dedup ids as it may; metadata `limit`. `RESOURCE_EXHAUSTED`.
    pub const DEDUP_WINDOW_FULL: &str = "DEDUP_WINDOW_FULL";
    /// The bytes are not a receipt that this broker issued. `INVALID_ARGUMENT`.
    pub const RECEIPT_INVALID: &str = "RECEIPT_INVALID";
    /// The lease has ended and the message is live; metadata `state`. `FAILED_PRECONDITION`.
    pub const LEASE_LOST: &str = "LEASE_LOST";
    /// The message has ended otherwise; metadata `state`. `FAILED_PRECONDITION`.
    pub const MESSAGE_GONE: &str = "MESSAGE_GONE";
    /// The message is being moved on disk at this moment; the next try succeeds.
    pub const PAGES_MOVING: &str = "PAGES_MOVING";
    /// The stored record of the message is damaged.
    pub const RECORD_DAMAGED: &str = "RECORD_DAMAGED";
    /// The commit failed: what was asked may or may not be stored. `UNAVAILABLE`.
    pub const OUTCOME_UNKNOWN: &str = "OUTCOME_UNKNOWN";
    /// The broker is shutting down. `UNAVAILABLE`.
    pub const BROKER_DRAINING: &str = "BROKER_DRAINING";
    /// The broker is starting and reads its store. `UNAVAILABLE`.
    pub const RECOVERING: &str = "RECOVERING";
    /// The disk has less room than the reserve, so produce is refused; metadata `limit` (the reserve) and `free`, bytes.
    /// `RESOURCE_EXHAUSTED`.
    pub const DISK_RESERVE: &str = "DISK_RESERVE";
    /// The offset of the wall clock is not the expected one; metadata `offset_ms`. `FAILED_PRECONDITION`.
    pub const CLOCK_OFFSET_CHANGED: &str = "CLOCK_OFFSET_CHANGED";
    /// The wall clock is too far behind to be followed without a restart; metadata `behind_ms` and `limit` (milliseconds).
    /// `FAILED_PRECONDITION`.
    pub const CLOCK_TOO_FAR_BEHIND: &str = "CLOCK_TOO_FAR_BEHIND";
    /// As many `Fetch` calls wait as may; metadata `limit`. `RESOURCE_EXHAUSTED`.
    pub const TOO_MANY_WAITERS: &str = "TOO_MANY_WAITERS";
    /// Another backup is being taken; only one runs at a time. `RESOURCE_EXHAUSTED`.
    pub const BACKUP_RUNNING: &str = "BACKUP_RUNNING";
    /// The backup was read so slowly that it had to be given up; what was read of it is of no use. `ABORTED`.
    pub const BACKUP_OVERTAKEN: &str = "BACKUP_OVERTAKEN";
    /// The call was given a deadline, or took longer than any call may; it may or may not be done. `DEADLINE_EXCEEDED`.
    pub const DEADLINE_PASSED: &str = "DEADLINE_PASSED";
    /// As many consume streams are open as may be; metadata `limit`. `RESOURCE_EXHAUSTED`.
    pub const TOO_MANY_STREAMS: &str = "TOO_MANY_STREAMS";
}

/// When to try again what a starting, stopping or full broker has refused.
const RETRY_SOON: Duration = Duration::from_secs(1);

/// A refusal on its way to a client, as the status of a call or of one item of a batch.
#[derive(Clone, Debug)]
pub(crate) struct Fault(Box<Parts>);

#[derive(Clone, Debug)]
struct Parts {
    code: Code,
    reason: &'static str,
    outcome: &'static str,
    message: String,
    metadata: Vec<(&'static str, String)>,
    /// The path and the problem of a bad field.
    field: Option<(String, String)>,
    retry_after: Option<Duration>,
}

impl Fault {
    /// Its reason, one of [`reason`].
    pub(super) fn reason(&self) -> &'static str {
        self.0.reason
    }

    fn new(code: Code, reason: &'static str, message: impl Into<String>) -> Self {
        Self(Box::new(Parts {
            code,
            reason,
            outcome: "not_done",
            message: message.into(),
            metadata: Vec::new(),
            field: None,
            retry_after: None,
        }))
    }

    /// The field at `path` is not acceptable.
    pub(crate) fn invalid(path: impl Into<String>, problem: impl Into<String>) -> Self {
        let mut fault = Self::new(Code::InvalidArgument, reason::INVALID_FIELD, "");
        fault.0.field = Some((path.into(), problem.into()));
        fault
    }

    /// The field at `path` is not a receipt of this broker.
    pub(crate) fn receipt(path: impl Into<String>) -> Self {
        let mut fault = Self::invalid(path, "is not a receipt of this broker");
        fault.0.reason = reason::RECEIPT_INVALID;
        fault
    }

    /// There is no such topic.
    pub(crate) fn topic_not_found(topic: &TopicName) -> Self {
        let text = format!("topic '{topic}' does not exist");
        Self::new(Code::NotFound, reason::TOPIC_NOT_FOUND, text).with("topic", topic)
    }

    /// The message is neither live nor remembered.
    pub(crate) fn message_not_found() -> Self {
        let text = "no message by that id or key is live or remembered";
        Self::new(Code::NotFound, reason::MESSAGE_NOT_FOUND, text)
    }

    fn pages_moving(text: String) -> Self {
        Self::new(Code::Unavailable, reason::PAGES_MOVING, text).retry_after(RETRY_SOON)
    }

    /// The broker reads its store.
    pub(crate) fn recovering() -> Self {
        Self::new(Code::Unavailable, reason::RECOVERING, "the broker is starting and reads its store; try again")
            .retry_after(RETRY_SOON)
    }

    /// The call was not answered within the time that it was given.
    pub(crate) fn deadline_passed(given: Duration) -> Self {
        let given = format_duration(u64::try_from(given.as_millis()).unwrap_or(u64::MAX));
        let text = format!("no answer within {given}, the time that the call was given; it may or may not be done");
        let mut fault = Self::new(Code::DeadlineExceeded, reason::DEADLINE_PASSED, text);
        fault.0.outcome = "unknown";
        fault
    }

    /// The field of this fault, if any, lies under `path`; a field without a name is `path` itself.
    pub(crate) fn under(mut self, path: &str) -> Self {
        if let Some((field, _)) = &mut self.0.field {
            *field = if field.is_empty() { path.to_owned() } else { format!("{path}.{field}") };
        }
        self
    }

    fn with(mut self, name: &'static str, value: &impl ToString) -> Self {
        self.0.metadata.push((name, value.to_string()));
        self
    }

    fn retry_after(mut self, delay: Duration) -> Self {
        self.0.retry_after = Some(delay);
        self
    }

    /// The status of one item of a batch.
    pub(crate) fn into_item(self) -> pb::Status {
        let Parts { code, reason, outcome, message, metadata, field, retry_after } = *self.0;
        let mut info: HashMap<String, String> =
            metadata.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        info.insert("outcome".to_owned(), outcome.to_owned());
        let info = pb::ErrorInfo { reason: reason.to_owned(), domain: DOMAIN.to_owned(), metadata: info };
        let mut details = vec![any("ErrorInfo", &info)];
        let message = match &field {
            Some((path, problem)) => format!("{path}: {problem}"),
            None => message,
        };
        if let Some((field, description)) = field {
            let violation = pb::bad_request::FieldViolation { field, description, ..Default::default() };
            details.push(any("BadRequest", &pb::BadRequest { field_violations: vec![violation] }));
        }
        if let Some(delay) = retry_after {
            let retry_delay = prost_types::Duration::try_from(delay).ok();
            details.push(any("RetryInfo", &pb::RetryInfo { retry_delay }));
        }
        pb::Status { code: code.into(), message, details }
    }
}

fn any(name: &str, message: &impl prost::Message) -> Any {
    Any { type_url: format!("type.googleapis.com/google.rpc.{name}"), value: message.encode_to_vec() }
}

impl From<Fault> for Status {
    fn from(fault: Fault) -> Self {
        let item = fault.into_item();
        let details = item.encode_to_vec().into();
        Self::with_details(Code::from_i32(item.code), item.message, details)
    }
}

impl From<Fault> for pb::Status {
    fn from(fault: Fault) -> Self {
        fault.into_item()
    }
}

impl From<Invalid> for Fault {
    fn from(invalid: Invalid) -> Self {
        Self::invalid(invalid.field, invalid.problem)
    }
}

impl From<EngineError> for Fault {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::OutcomeUnknown => {
                let text =
                    "the commit failed: it is not known whether this was stored; repeat it with the same dedup_id";
                let mut fault = Self::new(Code::Unavailable, reason::OUTCOME_UNKNOWN, text).retry_after(RETRY_SOON);
                fault.0.outcome = "unknown";
                fault
            }
            EngineError::Draining => {
                let text = "the broker is shutting down; try again when it is back";
                Self::new(Code::Unavailable, reason::BROKER_DRAINING, text).retry_after(RETRY_SOON)
            }
            EngineError::DiskReserve { free, reserve } => {
                exhausted(reason::DISK_RESERVE, error.to_string(), reserve).with("free", &free).retry_after(RETRY_SOON)
            }
            EngineError::BackupRunning => {
                let text = "another backup is being taken, and only one runs at a time";
                Self::new(Code::ResourceExhausted, reason::BACKUP_RUNNING, text)
            }
            EngineError::TooManyWaiters { max } => {
                let text = format!("{max} fetch calls wait already, the most that this broker allows");
                exhausted(reason::TOO_MANY_WAITERS, text, max).retry_after(RETRY_SOON)
            }
            EngineError::TooManyStreams { max } => {
                let text = format!("{max} consume streams are open already, the most that this broker allows");
                exhausted(reason::TOO_MANY_STREAMS, text, max).retry_after(RETRY_SOON)
            }
        }
    }
}

impl From<BackupError> for Fault {
    fn from(error: BackupError) -> Self {
        let text = error.to_string();
        match error {
            BackupError::Stopped | BackupError::Overtaken => Self::new(Code::Aborted, reason::BACKUP_OVERTAKEN, text),
            BackupError::Damaged { .. } => Self::new(Code::DataLoss, reason::RECORD_DAMAGED, text),
        }
    }
}

impl From<AdoptError> for Fault {
    fn from(error: AdoptError) -> Self {
        let text = error.to_string();
        match error {
            AdoptError::OffsetChanged { offset_ms, .. } => {
                precondition(reason::CLOCK_OFFSET_CHANGED, text).with("offset_ms", &offset_ms)
            }
            AdoptError::TooFarBehind { behind_ms, max_ms } => {
                precondition(reason::CLOCK_TOO_FAR_BEHIND, text).with("behind_ms", &behind_ms).with("limit", &max_ms)
            }
        }
    }
}

impl From<Rejection> for Fault {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::Topic(rejection) => rejection.into(),
            Rejection::Produce(rejection) => rejection.into(),
            Rejection::Settle(rejection) => rejection.into(),
            Rejection::Find(rejection) => rejection.into(),
            Rejection::PagesMoving => Self::pages_moving(rejection.to_string()),
            Rejection::Damaged(_) => Self::new(Code::DataLoss, reason::RECORD_DAMAGED, rejection.to_string()),
        }
    }
}

impl From<TopicRejection> for Fault {
    fn from(rejection: TopicRejection) -> Self {
        let text = rejection.to_string();
        match rejection {
            TopicRejection::NotFound(topic) => Self::topic_not_found(&topic),
            TopicRejection::Exists(topic) => {
                Self::new(Code::AlreadyExists, reason::TOPIC_EXISTS, text).with("topic", &topic)
            }
            TopicRejection::TooMany(limit) => exhausted(reason::TOO_MANY_TOPICS, text, limit),
            TopicRejection::NotEmpty { topic, waiting, leased, dead } => precondition(reason::TOPIC_NOT_EMPTY, text)
                .with("topic", &topic)
                .with("waiting", &waiting)
                .with("leased", &leased)
                .with("dead", &dead),
            TopicRejection::Invalid(invalid) => invalid.into(),
        }
    }
}

impl From<ProduceRejection> for Fault {
    fn from(rejection: ProduceRejection) -> Self {
        let text = rejection.to_string();
        match rejection {
            ProduceRejection::TopicNotFound(topic) => Self::topic_not_found(&topic),
            ProduceRejection::Invalid(invalid) => invalid.into(),
            ProduceRejection::KeyInUse { holder, dead } => {
                Self::new(Code::AlreadyExists, reason::KEY_IN_USE, text).with("holder", &holder).with("dead", &dead)
            }
            ProduceRejection::KeyInFlight { holder } => {
                precondition(reason::KEY_IN_FLIGHT, text).with("holder", &holder)
            }
            ProduceRejection::DedupIdReused { first } => reused(text, first),
            ProduceRejection::DedupWindowFull { capacity, retry_after_ms } => {
                exhausted(reason::DEDUP_WINDOW_FULL, text, capacity).retry_after(Duration::from_millis(retry_after_ms))
            }
        }
    }
}

fn reused(text: String, first: MessageId) -> Fault {
    precondition(reason::DEDUP_ID_REUSED, text).with("first", &first)
}

fn precondition(reason: &'static str, text: String) -> Fault {
    Fault::new(Code::FailedPrecondition, reason, text)
}

fn exhausted(reason: &'static str, text: String, limit: impl ToString + Copy) -> Fault {
    Fault::new(Code::ResourceExhausted, reason, text).with("limit", &limit)
}

impl From<SettleRejection> for Fault {
    fn from(rejection: SettleRejection) -> Self {
        let text = rejection.to_string();
        match rejection {
            SettleRejection::LeaseLost { state } => precondition(reason::LEASE_LOST, text).with("state", &state),
            SettleRejection::Gone(outcome) => precondition(reason::MESSAGE_GONE, text).with("state", &ended(outcome)),
            SettleRejection::NotFound => Self::new(Code::NotFound, reason::MESSAGE_NOT_FOUND, text),
            SettleRejection::Invalid(invalid) => invalid.into(),
        }
    }
}

fn ended(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Acked => "acked",
        Outcome::Cancelled => "cancelled",
        Outcome::Replaced => "replaced",
        Outcome::Purged => "purged",
    }
}

impl From<FindRejection> for Fault {
    fn from(rejection: FindRejection) -> Self {
        match rejection {
            FindRejection::TopicNotFound(topic) => Self::topic_not_found(&topic),
            FindRejection::Invalid(invalid) => invalid.into(),
            FindRejection::PagesMoving => Self::pages_moving(rejection.to_string()),
            FindRejection::Damaged(_) => Self::new(Code::DataLoss, reason::RECORD_DAMAGED, rejection.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic_types::{RpcStatusExt, StatusExt};

    use super::*;

    #[test]
    fn a_bad_field_is_named_by_its_full_path_in_message_and_details() {
        let status = Status::from(Fault::invalid("key", "300 bytes; at most 256").under("messages[3]"));
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.message(), "messages[3].key: 300 bytes; at most 256");
        let violations = status.get_details_bad_request().expect("a bad request").field_violations;
        assert_eq!(violations[0].field, "messages[3].key");
        let info = status.get_details_error_info().expect("error info");
        assert_eq!((info.reason.as_str(), info.domain.as_str()), (reason::INVALID_FIELD, DOMAIN));
        assert_eq!(info.metadata["outcome"], "not_done");
    }

    #[test]
    fn a_failed_commit_is_told_as_unknown_and_a_full_window_says_when_to_come_back() {
        let unknown = Fault::from(EngineError::OutcomeUnknown).into_item();
        let info = unknown.get_details_error_info().expect("error info");
        assert_eq!(info.metadata["outcome"], "unknown");
        let short = Fault::from(EngineError::DiskReserve { free: 7, reserve: 9 }).into_item();
        let info = short.get_details_error_info().expect("error info");
        assert_eq!((short.code, info.reason.as_str()), (i32::from(Code::ResourceExhausted), reason::DISK_RESERVE));
        assert_eq!((info.metadata["outcome"].as_str(), info.metadata["free"].as_str()), ("not_done", "7"));
        assert!(short.get_details_retry_info().is_some());
        let full = ProduceRejection::DedupWindowFull { capacity: 9, retry_after_ms: 1_500 };
        let full = Fault::from(full).into_item();
        let retry = full.get_details_retry_info().expect("retry info");
        assert_eq!(retry.retry_delay, Some(Duration::from_millis(1_500)));
        assert_eq!(full.get_details_error_info().expect("error info").metadata["limit"], "9");
    }
}
