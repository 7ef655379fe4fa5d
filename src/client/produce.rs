//! Handing messages to the broker.

use std::time::Duration;

use bytes::Bytes;

use super::convert::{instant, span_of, tiers, timestamp_or_zero};
use super::{Client, Error};
use crate::pb;
use crate::queue::schedule::RetrySchedule;
use crate::queue::time::Timestamp;

/// When a message is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// This long from the moment the broker takes the request; rounded up to milliseconds.
    In(Duration),
    /// At an instant of the broker's clock; one in the past means now.
    At(Timestamp),
}

/// A message to produce. Without a due time it waits tier 1 of its retry schedule.
#[derive(Clone, Debug, Default)]
pub struct NewMessage(pb::NewMessage);

impl NewMessage {
    /// A message with a body, opaque to the broker.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self(pb::NewMessage { body: body.into(), ..pb::NewMessage::default() })
    }

    /// The business key, unique among the live messages of the topic.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.0.key = key.into();
        self
    }

    /// What happens when the key is taken; without this it is refused.
    #[must_use]
    pub fn key_policy(mut self, policy: pb::KeyPolicy) -> Self {
        self.0.key_policy = policy.into();
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.headers.insert(name.into(), value.into());
        self
    }

    /// The first due time.
    #[must_use]
    pub fn due(mut self, due: Due) -> Self {
        self.0.first_wait = Some(match due {
            Due::In(delay) => pb::new_message::FirstWait::Delay(span_of(delay)),
            Due::At(at) => pb::new_message::FirstWait::DueAt(instant(at)),
        });
        self
    }

    /// A retry schedule of its own instead of the topic's.
    #[must_use]
    pub fn schedule(mut self, schedule: &RetrySchedule) -> Self {
        self.0.schedule = Some(tiers(schedule));
        self
    }

    /// A retry cap of its own instead of the topic's.
    #[must_use]
    pub fn max_attempts(mut self, max_attempts: u32) -> Self {
        self.0.max_attempts = max_attempts;
        self
    }

    /// Makes the produce idempotent: a repeat within the topic's dedup window returns the first answer.
    #[must_use]
    pub fn dedup_id(mut self, dedup_id: impl Into<String>) -> Self {
        self.0.dedup_id = dedup_id.into();
        self
    }

    /// Whether it may be produced again when the answer got lost.
    #[must_use]
    pub fn is_idempotent(&self) -> bool {
        !self.0.dedup_id.is_empty()
    }

    pub(super) fn into_wire(self) -> pb::NewMessage {
        self.0
    }
}

/// A message that is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Produced {
    /// Its id.
    pub id: String,
    /// When it is due, by the broker's clock.
    pub due_at: Timestamp,
    /// It was there before: a repeated `dedup_id`, or a kept key.
    pub existing: bool,
}

impl Client {
    /// Produces one message.
    ///
    /// # Errors
    /// A refusal (`KEY_IN_USE`, `DEDUP_ID_REUSED`, `TOPIC_NOT_FOUND`, a bad field), or a call that broke. If the
    /// outcome is unknown and the message has a `dedup_id`, repeat it.
    pub async fn produce(&self, topic: &str, message: NewMessage) -> Result<Produced, Error> {
        let mut results = self.produce_all(topic, vec![message]).await?;
        results.pop().unwrap_or_else(|| Err(Error::protocol("an answer without a result")))
    }

    /// Produces 1 to 1,000 messages in one call; they are independent, and the results are in their order.
    ///
    /// # Errors
    /// The call as a whole failed; refusals of single messages are in the results.
    pub async fn produce_all(
        &self,
        topic: &str,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Result<Produced, Error>>, Error> {
        let expected = messages.len();
        let messages = messages.into_iter().map(NewMessage::into_wire).collect();
        let request = self.request(pb::ProduceRequest { topic: topic.to_owned(), messages });
        let response = self.queue().produce(request).await?.into_inner();
        results(response.results, expected)
    }
}

/// The results of one frame, checked to be one for each message.
pub(super) fn results(results: Vec<pb::ProduceResult>, expected: usize) -> Result<Vec<Result<Produced, Error>>, Error> {
    if results.len() != expected {
        return Err(Error::protocol(format!("{} results for {expected} messages", results.len())));
    }
    Ok(results.into_iter().map(result).collect())
}

fn result(result: pb::ProduceResult) -> Result<Produced, Error> {
    match result.result {
        Some(pb::produce_result::Result::Produced(produced)) => Ok(Produced {
            due_at: timestamp_or_zero(produced.due_at.as_ref()),
            id: produced.id,
            existing: produced.existing,
        }),
        Some(pb::produce_result::Result::Error(status)) => Err(status.into()),
        None => Err(Error::protocol("an empty result")),
    }
}
