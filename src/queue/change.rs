//! What is to be made durable: the output of the state machine and the input of the store.

use super::message::{HistoryEntry, Message, MessageId, Place, TopicId};
use super::quarantine::DamagedPart;
use super::settings::TopicSettings;
use super::time::Timestamp;
use super::values::{ConsumerName, DedupId, Key, TopicName};

/// One durable change. The changes of a round are stored atomically and in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A topic was created or its settings or pause changed.
    TopicPut(TopicRecord),
    /// A topic is gone with everything in it; nothing of it is counted or remembered any more.
    TopicDeleted {
        /// The topic.
        topic: TopicId,
        /// Messages of it may be in pages, whose room is to be given back soon.
        in_pages: bool,
    },
    /// A message was produced.
    Produced(Message),
    /// A live message changed: it waits for another due time, became dead, was redriven, or is marked.
    Moved {
        /// The message as it is now.
        message: Message,
        /// Where the store kept it before.
        previous: Place,
        /// The delivery that ended with this change, already part of the message's history.
        entry: Option<HistoryEntry>,
    },
    /// A message is gone; the history remembers it.
    Finished(Finished),
    /// A dedup id is remembered.
    DedupPut(DedupRecord),
    /// Stored messages are damaged: the next fold sets them aside and counts them.
    Quarantined(DamagedPart),
    /// Arrival numbers below this one may have been used.
    ArrivalsReserved(u64),
    /// The broker started; receipts of this run carry the epoch.
    Opened {
        /// Ascending, never reused.
        epoch: u32,
        /// When, by the broker's clock.
        at: Timestamp,
    },
    /// The broker stopped cleanly; valid only as the very last change of the store.
    Closed(Closing),
}

/// A clean stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closing {
    /// When, by the broker's clock.
    pub at: Timestamp,
    /// Leases that stay valid over the restart.
    pub leases: Vec<OpenLease>,
    /// After an unclean stop some time before: messages with a lower arrival number that were due at that instant may
    /// have been delivered, and are flagged when they are delivered next.
    pub suspected: Option<(Timestamp, u64)>,
}

/// A topic as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicRecord {
    /// Number; never reused.
    pub id: TopicId,
    /// Unique name.
    pub name: TopicName,
    /// Settings.
    pub settings: TopicSettings,
    /// New leases are stopped.
    pub paused: bool,
    /// When it was created.
    pub created_at: Timestamp,
}

/// How a message ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Acknowledged.
    Acked,
    /// Cancelled by id or key.
    Cancelled,
    /// Replaced by a later produce with its key.
    Replaced,
    /// Deleted from the dead letters.
    Purged,
}

/// A message that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Identity.
    pub id: MessageId,
    /// Business key, by which the history is searched too.
    pub key: Option<Key>,
    /// How it ended.
    pub outcome: Outcome,
    /// When.
    pub at: Timestamp,
    /// Delivery number and epoch of the receipt that acked it.
    pub receipt: Option<(u32, u32)>,
    /// Where the store kept it.
    pub previous: Place,
}

/// A dedup id and the answer it gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DedupRecord {
    /// The topic.
    pub topic: TopicId,
    /// The id.
    pub dedup_id: DedupId,
    /// Hash of everything the request asked for.
    pub content_hash: u128,
    /// The message it produced or found.
    pub message: MessageId,
    /// The due time it answered.
    pub due_at: Timestamp,
    /// Forgotten from then on.
    pub expires_at: Timestamp,
}

/// A lease that outlives a clean shutdown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenLease {
    /// The message.
    pub id: MessageId,
    /// The delivery number.
    pub delivery: u32,
    /// The epoch of its receipt.
    pub epoch: u32,
    /// When it was delivered.
    pub delivered_at: Timestamp,
    /// When it ends.
    pub deadline: Timestamp,
    /// To whom.
    pub consumer: ConsumerName,
}

/// Messages of a topic ever counted, which outlive the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Ever produced.
    pub produced: u64,
    /// Ever acknowledged.
    pub acked: u64,
    /// Ever cancelled.
    pub cancelled: u64,
    /// Ever replaced.
    pub replaced: u64,
    /// Ever purged.
    pub purged: u64,
    /// Set aside because their stored form was damaged.
    pub quarantined: u64,
}

impl Totals {
    /// Counts one ended message.
    pub fn count(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Acked => self.acked += 1,
            Outcome::Cancelled => self.cancelled += 1,
            Outcome::Replaced => self.replaced += 1,
            Outcome::Purged => self.purged += 1,
        }
    }

    /// Messages that are still live: produced and not gone.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.produced - self.gone()
    }

    /// Messages that are gone, however.
    #[must_use]
    pub fn gone(&self) -> u64 {
        self.acked + self.cancelled + self.replaced + self.purged + self.quarantined
    }
}

/// What the store hands to a restoring queue, in this order: topics and totals, what is in pages, messages that
/// are not, ended messages and dedup ids as of the last fold, then the changes since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Restored {
    /// A topic.
    Topic(TopicRecord),
    /// The highest number that a topic ever had.
    LastTopic(TopicId),
    /// Totals of a topic.
    Totals(TopicId, Totals),
    /// The number of the last fold.
    Fold(u64),
    /// How much of a topic is in pages.
    Stored {
        /// The topic.
        topic: TopicId,
        /// Messages waiting for their due time or for a consumer.
        waiting: u64,
        /// Dead letters.
        dead: u64,
        /// The first of the waiting messages, by due time and arrival number.
        first: Option<(Timestamp, u64)>,
    },
    /// At most so many [`Restored::Index`] of a topic follow.
    IndexSize {
        /// The topic.
        topic: TopicId,
        /// How many.
        entries: u64,
    },
    /// Where a message in pages is found that has a key or is not at the due time it was born with.
    Index {
        /// The message.
        id: MessageId,
        /// Where it is.
        place: Place,
        /// [`key_hash`](super::key_hash) of the key that it holds.
        key_hash: Option<u64>,
    },
    /// A live message that is not in pages.
    Message(Message),
    /// An ended message that the history remembers, oldest first.
    Ended(Finished),
    /// A dedup id.
    Dedup(DedupRecord),
    /// A change made after the fold.
    Change(Change),
}
