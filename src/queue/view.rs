//! What can be seen of the queue from outside: read-only copies.

use super::change::{Finished, TopicRecord, Totals};
use super::message::Message;
use super::time::Timestamp;
use super::values::ConsumerName;

/// Everything known about one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageView {
    /// It is live.
    Live(Box<LiveView>),
    /// It is gone and the history remembers it.
    Gone(Finished),
}

/// A live message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveView {
    /// The topic as stored.
    pub topic: TopicRecord,
    /// The message as stored.
    pub message: Message,
    /// Where it is.
    pub state: StateView,
    /// Attempts after which it is dead.
    pub max_attempts: u32,
}

/// Where a live message is, and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateView {
    /// Until its due time.
    Scheduled,
    /// For a consumer.
    Ready {
        /// What keeps it, apart from the consumers' windows.
        hindrance: Option<Hindrance>,
        /// Ready messages of the topic before it; `None` where counting them would take long, and in listings.
        ahead: Option<u64>,
    },
    /// For a settlement.
    Leased {
        /// To whom.
        consumer: ConsumerName,
        /// Since when.
        delivered_at: Timestamp,
        /// Until when.
        deadline: Timestamp,
    },
    /// For an operator.
    Dead,
}

/// Why a ready message of a topic is not leased, apart from the consumers' windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hindrance {
    /// The topic is paused.
    Paused,
    /// The rate cap allows the next delivery at that instant.
    RateCap(Timestamp),
    /// As many messages are leased as the concurrency cap allows.
    ConcurrencyCap(u32),
}

/// Counts of a topic; all in O(1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicCounts {
    /// The topic as stored.
    pub topic: TopicRecord,
    /// In memory, waiting for their due time.
    pub scheduled: u64,
    /// In memory, waiting for a consumer.
    pub ready: u64,
    /// On disk only, waiting for either.
    pub stored: u64,
    /// What waits on disk is due at or after this instant; `None` if nothing does.
    pub frontier: Option<Timestamp>,
    /// Being worked on.
    pub leased: u64,
    /// To be reconciled.
    pub dead: u64,
    /// Ever counted.
    pub totals: Totals,
    /// Due time of the first message that waits for a consumer.
    pub oldest_ready_due_at: Option<Timestamp>,
}
