//! A topic at run time: its record and the indexes over its live messages.

use std::collections::{BTreeMap, HashMap};

use super::change::{TopicRecord, Totals};
use super::dedup::DedupWindow;
use super::due::Shifts;
use super::ended::Ended;
use super::pacer::Pacer;
use super::stored::{NO_FRONTIER, Stored};
use super::time::Timestamp;
use super::values::Key;

/// Order within a topic: by instant, then by arrival number.
pub(super) type Order = (Timestamp, u64);

/// A topic and the indexes over its live messages; an index value is the message's place in the queue's slab.
#[derive(Debug)]
pub(super) struct Topic {
    pub(super) record: TopicRecord,
    /// Ready messages, in due order.
    pub(super) ready: BTreeMap<Order, u32>,
    /// Leased messages, in due order.
    pub(super) leased: BTreeMap<Order, u32>,
    /// Dead letters, by time of death.
    pub(super) dead: BTreeMap<Order, u32>,
    /// Live messages by the key that they hold.
    pub(super) keys: HashMap<Key, u32>,
    pub(super) ended: Ended,
    pub(super) dedup: DedupWindow,
    pub(super) pacer: Pacer,
    pub(super) scheduled: u64,
    pub(super) totals: Totals,
    /// What is on disk only.
    pub(super) stored: Stored,
    /// What waits when, compared with the pages.
    pub(super) shifts: Shifts,
    /// A load of this topic is under way.
    pub(super) loading: bool,
    /// After a load that failed: when the next one may be asked for.
    pub(super) load_again_at: Timestamp,
    /// When the queue has noted that the next load is due; see [`Topic::load_at`].
    pub(super) noted_load_at: Option<Timestamp>,
}

impl Topic {
    pub(super) fn new(record: TopicRecord, totals: Totals, stored: Stored, now: Timestamp) -> Self {
        Self {
            pacer: Pacer::new(record.settings.rate, now),
            record,
            ready: BTreeMap::new(),
            leased: BTreeMap::new(),
            dead: BTreeMap::new(),
            keys: HashMap::new(),
            ended: Ended::default(),
            dedup: DedupWindow::default(),
            scheduled: 0,
            totals,
            stored,
            shifts: Shifts::default(),
            loading: false,
            load_again_at: Timestamp::ZERO,
            noted_load_at: None,
        }
    }

    /// When the next part is to be loaded from disk, so long before it is due; `None` if nothing is on disk, a load
    /// is under way, or the topic is paused.
    pub(super) fn load_at(&self, ahead_ms: u64) -> Option<Timestamp> {
        let is_wanted = self.stored.frontier != NO_FRONTIER && !self.loading && !self.record.paused;
        is_wanted.then(|| self.stored.frontier.0.minus(ahead_ms).max(self.load_again_at))
    }

    /// True if the concurrency cap allows no further lease.
    pub(super) fn at_concurrency_cap(&self) -> bool {
        self.record.settings.concurrency.is_some_and(|cap| self.leased.len() >= cap as usize)
    }
}
