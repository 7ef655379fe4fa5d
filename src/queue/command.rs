//! What the queue can be asked, what it answers, and how it refuses.

use bytes::Bytes;

use super::change::{Outcome, TopicRecord};
use super::fields::TopicPatch;
use super::message::{Message, MessageId, TopicId};
use super::receipt::Receipt;
use super::schedule::RetrySchedule;
use super::settings::TopicSettings;
use super::time::Timestamp;
use super::values::{ConsumerName, DedupId, Headers, Invalid, Key, NackText, TopicName};

/// A consume stream; [`ConsumerId::NONE`] for leases that are not tied to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerId(pub u64);

impl ConsumerId {
    /// A lease that no stream holds: it ends by settlement or expiry only.
    pub const NONE: Self = Self(0);
}

/// One thing asked of the queue.
#[derive(Clone, Debug)]
pub enum Command {
    /// Create a topic.
    CreateTopic {
        /// Its name.
        name: TopicName,
        /// Its settings.
        settings: TopicSettings,
    },
    /// Replace the settings of a topic.
    UpdateTopic {
        /// Its name.
        name: TopicName,
        /// The complete new settings.
        settings: TopicSettings,
    },
    /// Change some settings of a topic; the others stay as they are.
    PatchTopic {
        /// Its name.
        name: TopicName,
        /// The new values.
        patch: TopicPatch,
    },
    /// Stop (or allow again) new leases of a topic.
    SetPaused {
        /// Its name.
        name: TopicName,
        /// Stop or allow.
        paused: bool,
    },
    /// Delete a topic.
    DeleteTopic {
        /// Its name.
        name: TopicName,
        /// With all its messages; else it must be empty.
        purge: bool,
    },
    /// Take a message.
    Produce(Produce),
    /// Lease ready messages.
    Lease(LeaseRequest),
    /// A delivery is done.
    Ack(Receipt),
    /// A delivery is not done.
    Nack(Nack),
    /// A delivery takes longer.
    Extend {
        /// The lease.
        receipt: Receipt,
        /// From now, milliseconds; `None`: the topic's lease time.
        lease_ms: Option<u64>,
    },
    /// A consume stream ended: give all its leases back.
    ReturnAll(ConsumerId),
    /// A delivery could not be handed over: give the lease back.
    Return(Receipt),
    /// Remove a message before it is delivered.
    Cancel {
        /// The topic.
        topic: TopicName,
        /// The message.
        target: Target,
        /// A leased message is cancelled when its lease ends without an ack.
        when_lease_ends: bool,
    },
    /// Give a waiting message a new due time.
    Reschedule {
        /// The topic.
        topic: TopicName,
        /// The message.
        target: Target,
        /// The new due time.
        due: Due,
    },
    /// Make a dead letter ready again.
    Redrive(DeadLetter),
    /// Delete a dead letter for good; the history remembers it.
    Purge(DeadLetter),
}

/// Names a dead letter.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// The topic.
    pub topic: TopicName,
    /// The message.
    pub id: MessageId,
    /// Only if it died then: one that lived and died again since is another dead letter.
    pub died_at: Option<Timestamp>,
}

/// Names a message within its topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// By id.
    Id(MessageId),
    /// By business key.
    Key(Key),
}

/// When something is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// After a wait from now, milliseconds.
    After(u64),
    /// At an instant; one in the past is set to now.
    At(Timestamp),
}

/// What to do if the key of a produced message is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyPolicy {
    /// Refuse.
    #[default]
    Reject,
    /// Remove the holder.
    Replace,
    /// Keep the holder and answer with it.
    Keep,
}

/// A message to take.
#[derive(Clone, Debug)]
pub struct Produce {
    /// The topic.
    pub topic: TopicName,
    /// Business key.
    pub key: Option<Key>,
    /// String headers.
    pub headers: Headers,
    /// Opaque body.
    pub body: Bytes,
    /// First wait; `None`: tier 1 of the schedule.
    pub due: Option<Due>,
    /// Overrides the topic's schedule; not empty.
    pub schedule: Option<RetrySchedule>,
    /// Overrides the topic's retry cap.
    pub max_attempts: Option<u32>,
    /// If the key is taken.
    pub key_policy: KeyPolicy,
    /// Makes the produce idempotent.
    pub dedup_id: Option<DedupId>,
}

/// Asks for ready messages.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// The topic.
    pub topic: TopicName,
    /// Who holds the leases.
    pub consumer: ConsumerId,
    /// Who, for people.
    pub consumer_name: ConsumerName,
    /// At most so many; fewer if their content reaches
    /// [`MAX_LEASE_BYTES`](super::limits::MAX_LEASE_BYTES).
    pub max: usize,
    /// Lease time, milliseconds; `None`: the topic's.
    pub lease_ms: Option<u64>,
}

/// Why a delivery is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NackReason {
    /// No definite answer yet; the attempt is spent. With a wait (milliseconds) instead of the tier, once.
    NotYet(Option<u64>),
    /// The check itself broke; retried within the attempt. With a wait instead of the error tier, once.
    Failed(Option<u64>),
    /// Give up: dead at once.
    Dead,
}

/// A delivery is not done.
#[derive(Clone, Debug)]
pub struct Nack {
    /// The lease.
    pub receipt: Receipt,
    /// Why.
    pub reason: NackReason,
    /// Why, for people.
    pub text: NackText,
}

/// The answer to a command that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The topic as it is now.
    Topic(TopicRecord),
    /// The topic is gone.
    TopicDeleted(DeletedTopic),
    /// The message is stored.
    Produced(Produced),
    /// Leased messages, in due order; may be empty.
    Leased(Vec<Delivery>),
    /// The message is done; `repeated` if this receipt had acked it before.
    Acked {
        /// This receipt had acked it before.
        repeated: bool,
    },
    /// The nack was applied.
    Nacked(Nacked),
    /// The lease lasts until then.
    Extended(Timestamp),
    /// So many leases were given back.
    Returned(usize),
    /// What the cancel found.
    Cancel(CancelReply),
    /// What the reschedule found.
    Reschedule(RescheduleReply),
    /// What the redrive found.
    Redrive(RedriveReply),
    /// What the purge found.
    Purge(PurgeReply),
}

/// A topic that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeletedTopic {
    /// Its number, which is never used again.
    pub id: TopicId,
    /// Messages that went with it.
    pub messages: u64,
    /// The generation whose fold takes what is in pages out of use; `None` if nothing of it can be there.
    pub generation: Option<u32>,
}

/// A stored message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Produced {
    /// Its id.
    pub id: MessageId,
    /// Its resolved due time.
    pub due_at: Timestamp,
    /// It was there before: a repeated dedup id, or the holder of the key was kept.
    pub existing: bool,
}

/// A message leased to a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The topic.
    pub topic: TopicName,
    /// The message as it is stored.
    pub message: Message,
    /// The token of the lease.
    pub receipt: Receipt,
    /// The attempt, 1-based.
    pub attempt: u32,
    /// Attempts after which it is dead.
    pub max_attempts: u32,
    /// When it was leased.
    pub delivered_at: Timestamp,
    /// When the lease ends.
    pub deadline: Timestamp,
    /// It may have been delivered before.
    pub redelivered: bool,
}

/// What a nack led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nacked {
    /// Due again at that instant.
    Waits(Timestamp),
    /// Dead now.
    Dead,
    /// It had been cancelled while leased and is gone now.
    Cancelled,
}

/// How a message ended, or that it is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Gone.
    Gone(Outcome),
    /// A dead letter.
    Dead,
}

/// What a cancel found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelReply {
    /// Cancelled now or before.
    Cancelled(MessageId),
    /// A consumer is working on it.
    InFlight(MessageId),
    /// It had ended or died before.
    AlreadyDone(MessageId, Ending),
    /// Nothing live or remembered.
    NotFound,
}

/// What a reschedule found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RescheduleReply {
    /// It has the new due time.
    Rescheduled(MessageId, Timestamp),
    /// A consumer is working on it.
    InFlight(MessageId),
    /// It had ended or died before.
    AlreadyDone(MessageId, Ending),
    /// Nothing live or remembered.
    NotFound,
}

/// What a redrive found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedriveReply {
    /// Ready again.
    Redriven,
    /// Another live message holds its key.
    KeyInUse,
    /// Live, but not dead.
    NotDead,
    /// Nothing live by that id.
    NotFound,
}

/// What a purge found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PurgeReply {
    /// Gone for good.
    Purged,
    /// Live, but not dead.
    NotDead,
    /// Nothing live by that id.
    NotFound,
}

/// The refusal of a command; nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// Of a topic command.
    #[error(transparent)]
    Topic(#[from] TopicRejection),
    /// Of a produce.
    #[error(transparent)]
    Produce(#[from] ProduceRejection),
    /// Of an ack, nack, extend or return.
    #[error(transparent)]
    Settle(#[from] SettleRejection),
    /// Of a lease, cancel, reschedule, redrive, purge or look-up.
    #[error(transparent)]
    Find(#[from] FindRejection),
    /// Of any command on a message that is being moved on disk at this moment; the next try succeeds.
    #[error("the stored message is being moved; try again")]
    PagesMoving,
    /// Of any command on a message whose stored record is damaged.
    #[error("the stored message cannot be read: {0}")]
    Damaged(String),
}

/// Why a topic command is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopicRejection {
    /// There is no such topic.
    #[error("topic '{0}' does not exist")]
    NotFound(TopicName),
    /// The name is taken.
    #[error("topic '{0}' exists already")]
    Exists(TopicName),
    /// The broker has as many topics as it may.
    #[error("there are {0} topics already, the most that this broker allows")]
    TooMany(usize),
    /// It has messages, and was not to be deleted with them.
    #[error(
        "topic '{topic}' is not empty: {waiting} messages wait, {leased} are leased, {dead} are dead letters; settle, \
         cancel or purge them first, or ask for the topic to be purged with all of them"
    )]
    NotEmpty {
        /// The topic.
        topic: TopicName,
        /// Scheduled and ready messages.
        waiting: u64,
        /// Leased messages.
        leased: u64,
        /// Dead letters.
        dead: u64,
    },
    /// A setting is out of range.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

/// Why a produce is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProduceRejection {
    /// There is no such topic.
    #[error("topic '{0}' does not exist")]
    TopicNotFound(TopicName),
    /// A field is out of range.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// A live message holds the key; `dead` if it is a dead letter.
    #[error("the key is held by message {holder}{}", if *dead { ", a dead letter" } else { "" })]
    KeyInUse {
        /// The holder.
        holder: MessageId,
        /// The holder is a dead letter.
        dead: bool,
    },
    /// The holder of the key is leased and cannot be replaced now.
    #[error("the key is held by message {holder}, which a consumer is working on")]
    KeyInFlight {
        /// The holder.
        holder: MessageId,
    },
    /// The dedup id was used for other content.
    #[error("the dedup id was used for message {first} with other content")]
    DedupIdReused {
        /// The message of the first use.
        first: MessageId,
    },
    /// The dedup window of the topic is full.
    #[error("the topic remembers {capacity} dedup ids, the most it may, for another {retry_after_ms} ms")]
    DedupWindowFull {
        /// The capacity.
        capacity: u32,
        /// Until the oldest is forgotten, milliseconds.
        retry_after_ms: u64,
    },
}

/// Why a settlement is refused; nobody else's lease was touched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettleRejection {
    /// The lease of this receipt has ended; the message is live.
    #[error("the lease of this receipt has ended; the message is {state} now")]
    LeaseLost {
        /// Where the message is: `scheduled`, `ready`, `leased` or `dead`.
        state: &'static str,
    },
    /// The message has ended otherwise.
    #[error("the message has been {} already", match .0 {
        Outcome::Acked => "acknowledged",
        Outcome::Cancelled => "cancelled",
        Outcome::Replaced => "replaced",
        Outcome::Purged => "purged",
    })]
    Gone(Outcome),
    /// Nothing live or remembered.
    #[error("the message is not known (any more)")]
    NotFound,
    /// A field is out of range.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

/// Why a look-up, cancel, reschedule, redrive, purge or lease is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FindRejection {
    /// There is no such topic.
    #[error("topic '{0}' does not exist")]
    TopicNotFound(TopicName),
    /// The stored record is being moved on disk at this moment; the next try succeeds.
    #[error("the stored message is being moved; try again")]
    PagesMoving,
    /// The stored record is damaged.
    #[error("the stored message cannot be read: {0}")]
    Damaged(String),
    /// A field is out of range.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}
