//! The engine: it drives the queue, makes its changes durable, and only then lets anything out.
//!
//! ```text
//!  callers ──admission──▶ inbox ─▶ owner thread ──rounds──▶ commit thread ─▶ replies, deliveries
//!  (async)   (semaphore)           (the queue)   (bounded)   (one sync for      (async)
//!                                                             all that waits)
//!                      loads ▼ ▲ messages              jobs ▼ ▲ done
//!                   load and look threads                 fold thread
//! ```
//!
//! One thread owns the queue; there is no lock. It works in *rounds*: take what is in the inbox (bounded), read
//! the clock once, apply the commands, let the queue do its timed work, serve whoever waits for messages, and
//! hand the changes and everything that depends on them to the commit thread. That thread makes all rounds
//! that wait durable with one commit and then lets their replies and deliveries go. While it syncs, the owner
//! fills the next rounds; so the slower the disk, the larger the groups. A round that changed nothing takes
//! the same way, since what it shows may rest on a round before it; it costs no sync of its own.
//!
//! When the journal's generation is full, the owner ends it with a round; the commit thread hands it to the fold
//! thread and tells the owner when its messages are in pages. Those that are far from due then leave memory;
//! the load thread reads them back before they are due, and the owner itself when a command names one. Questions that
//! need more of the pages than one message are answered by the look thread, and joined with what the owner knows.
//!
//! The body of each thread takes an input and does one step, until it is to end. [`start()`] gives each a thread; a
//! simulation takes the steps by hand, with [`stepped()`].
//!
//! Invariants:
//! - *Change, commit, answer*: nobody learns of anything that a power cut could take back. If a commit fails,
//!   nothing more is let out or applied; whoever waits gets [`EngineError::OutcomeUnknown`].
//! - *Commands before time*: what a round finds in the inbox is applied before leases expire in it. After a long
//!   pause (suspend, a stopped process, a stuck disk) live leases get [`GRACE_MS`] more, because the settlements
//!   that were under way may not have reached the inbox yet.
//! - *No window is exceeded*, and what is delivered but unread is bounded by the windows, whatever the reader does.
//! - *No topic starves another*: topics take turns in bounded chunks, and so do the consumers of a topic.
//! - *The journal never has to stop*: when folds cannot keep up, produce is slowed down, and nothing else.
//! - *A disk that runs full stops produce first*: below the reserve, produce is refused, and nothing else.
//! - *It sleeps until exactly the next thing to do*, for [`MAX_SLEEP`](crate::clock::MAX_SLEEP) at most; it never polls.
//!
//! What this layer is not: it knows no rule of the queue, no file, no wire format.

mod admission;
mod backup;
mod commit;
mod consumer;
mod damage;
mod due;
mod handle;
mod input;
mod list;
mod look;
mod on_store;
mod owner;
mod pages;
mod reclaim;
mod reserve;
mod ring;
mod round;
mod serve;
mod service;
mod sight;
mod signals;
mod start;
mod stats;
mod stepped;
mod throttle;

pub use self::backup::Backup;
pub use self::commit::{CommitFailure, Commits, Folded, Folds};
pub use self::consumer::Consumer;
pub use self::due::DueSpan;
pub use self::handle::{EngineError, EngineHandle, Fetch, Pending, Seen, Window};
pub use self::list::ListedPart;
pub use self::on_store::Journal;
pub use self::pages::{NoPages, Reads};
pub use self::reclaim::Reclaiming;
pub use self::reserve::DiskView;
pub use self::signals::Status;
pub use self::start::{EngineSettings, Parts, StartError, start};
pub use self::stats::{Audience, BrokerStats, BrokerView, LatenessSummary, Stats, TopicStats};
pub use self::stepped::{Stepped, Thread, stepped};
pub use crate::store::{BACKUP_VERSION, BackupCounts, BackupError, BackupHeader};

/// A pause between two rounds, or a commit, that takes longer than this is a long pause, milliseconds.
const LONG_PAUSE_MS: u64 = 1_000;

/// Wait before the pages are asked again for what a fold has overtaken, milliseconds: word of the fold is on its way.
const OVERTAKEN_WAIT_MS: u64 = 10;

/// How much longer live leases last at least after a long pause, milliseconds.
pub const GRACE_MS: u64 = 2_000;

/// How long leases that outlived a clean stop last at least, milliseconds: their consumers have to connect again
/// before they can settle.
pub const RESTART_GRACE_MS: u64 = 10_000;
