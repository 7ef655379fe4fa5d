//! A message: what was produced (fixed), how far it has come (durable), and its attempt history.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;

use super::limits::{HISTORY_FIRST, HISTORY_LAST};
use super::schedule::RetrySchedule;
use super::time::Timestamp;
use super::values::{ConsumerName, Headers, Key, NackText};

/// Number of a topic; never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId(pub u32);

/// Identity of a message, for life. Opaque to clients; its text form is 36 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId {
    /// The topic.
    pub topic: TopicId,
    /// The due time that the message was produced with.
    pub birth_due: Timestamp,
    /// Broker-wide, ascending, never reused, restarts included.
    pub arrival: u64,
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}{:012x}{:016x}", self.topic.0, self.birth_due.as_millis(), self.arrival)
    }
}

/// The text is not a message id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a message id")]
pub struct NotAMessageId;

impl FromStr for MessageId {
    type Err = NotAMessageId;

    fn from_str(text: &str) -> Result<Self, NotAMessageId> {
        let is_id = text.len() == 36 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if !is_id {
            return Err(NotAMessageId);
        }
        let part = |range| u64::from_str_radix(&text[range], 16).map_err(|_| NotAMessageId);
        let topic = u32::try_from(part(0..8)?).map_err(|_| NotAMessageId)?;
        let birth_due = Timestamp::from_millis(part(8..20)?);
        Ok(Self { topic: TopicId(topic), birth_due, arrival: part(20..36)? })
    }
}

/// What was produced; never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Business key.
    pub key: Option<Key>,
    /// String headers.
    pub headers: Headers,
    /// Opaque body.
    pub body: Bytes,
    /// Overrides the topic's retry schedule; not empty.
    pub schedule: Option<RetrySchedule>,
    /// Overrides the topic's retry cap.
    pub max_attempts: Option<u32>,
    /// The first wait was given with the produce, so it is not tier 1 of the schedule.
    pub explicit_first_wait: bool,
    /// When the broker took it.
    pub produced_at: Timestamp,
}

impl Content {
    /// Bytes of key, headers and body.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.key.as_ref().map_or(0, |key| key.as_str().len()) + headers + self.body.len()
    }
}

/// Why a message is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadReason {
    /// The retry cap was reached.
    MaxAttempts,
    /// The cap on all leases was reached.
    MaxDeliveries,
    /// A consumer gave up.
    Consumer,
}

/// How far a message has come: everything durable that changes, apart from the attempt history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// When it is or was due.
    pub due_at: Timestamp,
    /// Attempts spent since produce or redrive.
    pub attempts: u32,
    /// Failed deliveries within the present attempt.
    pub failures: u32,
    /// Leases that have ended, never reset.
    pub deliveries: u32,
    /// `deliveries` at the last redrive: the cap on deliveries counts from there.
    pub deliveries_before_redrive: u32,
    /// Leases returned in a row.
    pub returns: u32,
    /// Times redriven from the dead letters.
    pub redrives: u32,
    /// It holds its key: true from the produce, false from a death in a topic whose dead release their keys.
    pub holds_key: bool,
    /// It is to be cancelled when its present lease ends without an ack.
    pub cancel_on_lease_end: bool,
    /// If dead: why, and since when.
    pub dead: Option<(DeadReason, Timestamp)>,
}

impl Progress {
    /// A fresh message, due at `due_at`.
    #[must_use]
    pub fn new(due_at: Timestamp) -> Self {
        Self {
            due_at,
            attempts: 0,
            failures: 0,
            deliveries: 0,
            deliveries_before_redrive: 0,
            returns: 0,
            redrives: 0,
            holds_key: true,
            cancel_on_lease_end: false,
            dead: None,
        }
    }
}

/// Where the store keeps a message: by due time, or among the dead letters by time of death.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// Live, by due time.
    Due(Timestamp),
    /// Dead, by time of death.
    Dead(Timestamp),
}

/// A message in its durable form. Cloning is cheap: content and history are shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Identity.
    pub id: MessageId,
    /// What was produced.
    pub content: Arc<Content>,
    /// How far it has come.
    pub progress: Progress,
    /// Deliveries that ended without an ack; `None` while there are none.
    pub history: Option<Arc<AttemptHistory>>,
}

impl Message {
    /// Where the store keeps it.
    #[must_use]
    pub fn place(&self) -> Place {
        match self.progress.dead {
            Some((_, at)) => Place::Dead(at),
            None => Place::Due(self.progress.due_at),
        }
    }

    /// Appends to the attempt history.
    pub fn record(&mut self, entry: HistoryEntry) {
        Arc::make_mut(self.history.get_or_insert_default()).push(entry);
    }
}

/// How one delivery ended without an ack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// Nacked: no definite answer yet.
    NotYet,
    /// Nacked: the check itself broke.
    Failed,
    /// Nacked: give up.
    Dead,
    /// The lease expired.
    LeaseExpired,
    /// The consumer's stream ended.
    Returned,
}

/// One delivery that ended without an ack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// The delivery number.
    pub delivery: u32,
    /// The attempt it belonged to, 1-based.
    pub attempt: u32,
    /// When it was delivered.
    pub delivered_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// To whom.
    pub consumer: ConsumerName,
    /// How it ended.
    pub outcome: DeliveryOutcome,
    /// Text of the nack; may be empty.
    pub text: NackText,
    /// When it was due next; `None` if it became dead or was cancelled.
    pub next_due_at: Option<Timestamp>,
}

/// The first 4 and the last 16 deliveries that ended without an ack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttemptHistory {
    first: Vec<HistoryEntry>,
    last: Vec<HistoryEntry>,
    omitted: u32,
}

impl AttemptHistory {
    /// Rebuilds a history from its stored parts: the entries in order, and how many were left out
    /// after the first [`HISTORY_FIRST`].
    #[must_use]
    pub fn from_parts(entries: Vec<HistoryEntry>, omitted: u32) -> Self {
        let mut first = entries;
        let last = if first.len() > HISTORY_FIRST { first.split_off(HISTORY_FIRST) } else { Vec::new() };
        Self { first, last, omitted }
    }

    /// Appends an entry; the fifth to the seventeenth last are forgotten first.
    pub fn push(&mut self, entry: HistoryEntry) {
        if self.first.len() < HISTORY_FIRST {
            self.first.push(entry);
            return;
        }
        if self.last.len() == HISTORY_LAST {
            self.last.remove(0);
            self.omitted += 1;
        }
        self.last.push(entry);
    }

    /// The entries kept, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &HistoryEntry> {
        self.first.iter().chain(&self.last)
    }

    /// How many entries are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.first.len() + self.last.len()
    }

    /// True if no delivery has ended yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// How many entries between the first and the last were left out.
    #[must_use]
    pub fn omitted(&self) -> u32 {
        self.omitted
    }
}
