//! Finding, cancelling and rescheduling a message by id or by business key.

use std::fmt;

use super::convert::{instant, span_of, timestamp_or_zero};
use super::{Client, Due, Error};
use crate::pb;
use crate::queue::time::Timestamp;

/// Names a message of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageRef {
    /// By the id that produce returned.
    Id(String),
    /// By the business key.
    Key(String),
}

impl MessageRef {
    /// The message with this id.
    pub fn id(id: impl Into<String>) -> Self {
        Self::Id(id.into())
    }

    /// The message with this key.
    pub fn key(key: impl Into<String>) -> Self {
        Self::Key(key.into())
    }

    fn into_wire(self) -> pb::MessageRef {
        pb::MessageRef {
            r#ref: Some(match self {
                Self::Id(id) => pb::message_ref::Ref::Id(id),
                Self::Key(key) => pb::message_ref::Ref::Key(key),
            }),
        }
    }
}

impl fmt::Display for MessageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "id {id}"),
            Self::Key(key) => write!(f, "key {key}"),
        }
    }
}

/// How a message had ended before it could be cancelled or rescheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It is gone.
    Gone(pb::Outcome),
    /// It is a dead letter.
    Dead,
}

/// The definite answer to a cancel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CancelAnswer {
    /// Cancelled, now or before: it will never be delivered.
    Cancelled {
        /// Its id.
        id: String,
    },
    /// A consumer is working on it.
    InFlight {
        /// Its id.
        id: String,
    },
    /// It had ended before.
    AlreadyDone {
        /// Its id.
        id: String,
        /// How it had ended.
        ended: Ended,
    },
    /// Nothing by that id or key is live or remembered.
    NotFound,
}

/// The definite answer to a reschedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RescheduleAnswer {
    /// It has the new due time.
    Rescheduled {
        /// Its id.
        id: String,
        /// The resolved due time.
        due_at: Timestamp,
    },
    /// A consumer is working on it; nothing changed.
    InFlight {
        /// Its id.
        id: String,
    },
    /// It had ended before; nothing changed.
    AlreadyDone {
        /// Its id.
        id: String,
        /// How it had ended.
        ended: Ended,
    },
    /// Nothing by that id or key is live or remembered.
    NotFound,
}

impl Client {
    /// Cancels a message, durably before the answer. With `when_lease_ends`, a leased message is cancelled when
    /// its lease ends without an ack; the answer is `InFlight` all the same.
    ///
    /// # Errors
    /// The topic does not exist, a bad field, or a call that broke; a cancel may be repeated.
    pub async fn cancel(&self, topic: &str, message: MessageRef, when_lease_ends: bool) -> Result<CancelAnswer, Error> {
        let message = Some(message.into_wire());
        let request = self.request(pb::CancelRequest { topic: topic.to_owned(), message, when_lease_ends });
        let answer = self.queue().cancel(request).await?.into_inner();
        let (status, id) = (answer.status(), answer.id.clone());
        match status {
            pb::CancelStatus::Cancelled => Ok(CancelAnswer::Cancelled { id }),
            pb::CancelStatus::InFlight => Ok(CancelAnswer::InFlight { id }),
            pb::CancelStatus::AlreadyDone => {
                Ok(CancelAnswer::AlreadyDone { id, ended: ended(answer.dead, answer.outcome()) })
            }
            pb::CancelStatus::NotFound => Ok(CancelAnswer::NotFound),
            pb::CancelStatus::Unspecified => Err(Error::protocol("an empty answer to a cancel")),
        }
    }

    /// Gives a waiting message a new due time without spending an attempt; a delay of zero is "query now".
    ///
    /// # Errors
    /// The topic does not exist, a bad field, or a call that broke; a reschedule may be repeated.
    pub async fn reschedule(&self, topic: &str, message: MessageRef, due: Due) -> Result<RescheduleAnswer, Error> {
        let due = Some(match due {
            Due::In(delay) => pb::reschedule_request::Due::Delay(span_of(delay)),
            Due::At(at) => pb::reschedule_request::Due::DueAt(instant(at)),
        });
        let message = Some(message.into_wire());
        let request = self.request(pb::RescheduleRequest { topic: topic.to_owned(), message, due });
        let answer = self.queue().reschedule(request).await?.into_inner();
        let (status, id) = (answer.status(), answer.id.clone());
        match status {
            pb::RescheduleStatus::Rescheduled => {
                Ok(RescheduleAnswer::Rescheduled { id, due_at: timestamp_or_zero(answer.due_at.as_ref()) })
            }
            pb::RescheduleStatus::InFlight => Ok(RescheduleAnswer::InFlight { id }),
            pb::RescheduleStatus::AlreadyDone => {
                Ok(RescheduleAnswer::AlreadyDone { id, ended: ended(answer.dead, answer.outcome()) })
            }
            pb::RescheduleStatus::NotFound => Ok(RescheduleAnswer::NotFound),
            pb::RescheduleStatus::Unspecified => Err(Error::protocol("an empty answer to a reschedule")),
        }
    }

    /// Everything known about a message; without body and headers if `omit_body`.
    ///
    /// # Errors
    /// `TOPIC_NOT_FOUND`, `MESSAGE_NOT_FOUND`, a bad field, or a call that broke.
    pub async fn message(&self, topic: &str, message: MessageRef, omit_body: bool) -> Result<pb::MessageInfo, Error> {
        let message = Some(message.into_wire());
        let request = self.request(pb::GetMessageRequest { topic: topic.to_owned(), message, omit_body });
        let answer = self.queue().get_message(request).await?.into_inner();
        answer.message.ok_or_else(|| Error::protocol("an answer without a message"))
    }
}

fn ended(dead: bool, outcome: pb::Outcome) -> Ended {
    if dead { Ended::Dead } else { Ended::Gone(outcome) }
}
