//! The young table: the latest state of everything that the present journal generation touched.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::queue::change::{Change, DedupRecord, Finished, Outcome, TopicRecord, Totals};
use crate::queue::message::{HistoryEntry, Message, MessageId, Place, Progress, TopicId};
use crate::queue::quarantine::DamagedPart;
use crate::queue::time::Timestamp;

/// A message that this generation touched.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) topic: TopicId,
    pub(super) arrival: u64,
    /// The message as it is now; `None`: it ended in this generation.
    pub(super) state: Option<Message>,
    /// Where the pages hold a copy of it, which this generation makes invalid.
    pub(super) in_pages: Option<Place>,
    /// The index of the pages may name that copy.
    pub(super) was_indexed: bool,
    /// About what it takes in the journal, bytes.
    pub(super) bytes: u32,
}

/// Everything since a fold. Over the pages of that fold it is complete in itself.
#[derive(Debug, Default)]
pub(super) struct Generation {
    /// Positions in `entries` by arrival number.
    index: FxHashMap<u64, usize>,
    pub(super) entries: Vec<Entry>,
    pub(super) topics: BTreeMap<TopicId, TopicRecord>,
    /// Topics that are gone; what the generation holds of them goes nowhere.
    pub(super) deleted: BTreeSet<TopicId>,
    /// Some of these may be in pages.
    pub(super) is_deletion_in_pages: bool,
    /// Topics whose totals changed.
    pub(super) counted: BTreeSet<TopicId>,
    /// In the order of their end.
    pub(super) ended: Vec<Finished>,
    pub(super) dedup: Vec<DedupRecord>,
    /// Damaged parts of the pages that its fold sets aside.
    pub(super) damaged: BTreeSet<DamagedPart>,
    /// Journal bytes of this generation.
    pub(super) bytes: u64,
}

impl Generation {
    /// True if a fold at that horizon leaves this entry to the journal.
    pub(super) fn is_carried(&self, entry: &Entry, carry_before: Timestamp) -> bool {
        !self.deleted.contains(&entry.topic)
            && entry.state.as_ref().is_some_and(|message| {
                let is_soon = matches!(message.place(), Place::Due(due) if due < carry_before);
                is_soon || message.progress.cancel_on_lease_end
            })
    }

    /// The entries of topics that are there.
    pub(super) fn kept(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| !self.deleted.contains(&entry.topic))
    }

    /// An empty one with room for about as much as `other` holds, so that it does not stop to grow.
    pub(super) fn sized_like(other: &Self) -> Self {
        Self {
            index: FxHashMap::with_capacity_and_hasher(other.index.len(), FxBuildHasher),
            entries: Vec::with_capacity(other.entries.len()),
            ..Self::default()
        }
    }

    /// Frees up to `count` items of each kind; true when nothing is left. Freeing everything at once would
    /// hold up a commit.
    pub(super) fn shed(&mut self, count: usize) -> bool {
        self.entries.truncate(self.entries.len().saturating_sub(count));
        self.ended.truncate(self.ended.len().saturating_sub(count));
        self.dedup.truncate(self.dedup.len().saturating_sub(count));
        self.entries.is_empty() && self.ended.is_empty() && self.dedup.is_empty()
    }

    pub(super) fn entry(&self, arrival: u64) -> Option<&Entry> {
        self.index.get(&arrival).map(|&at| &self.entries[at])
    }

    /// The live state of a message.
    pub(super) fn message(&self, arrival: u64) -> Option<&Message> {
        self.entry(arrival).and_then(|entry| entry.state.as_ref())
    }

    /// Sets the state of a message. `in_pages` counts only if this is the generation's first touch of it.
    fn put(&mut self, message: &Message, in_pages: Option<Place>, bytes: usize) {
        let entry = self.touch(message.id, in_pages, message.content.key.is_some());
        entry.state = Some(message.clone());
        entry.bytes = entry.bytes.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
    }

    fn touch(&mut self, id: MessageId, in_pages: Option<Place>, has_key: bool) -> &mut Entry {
        let MessageId { topic, birth_due, arrival } = id;
        let at = *self.index.entry(arrival).or_insert_with(|| {
            let was_indexed = in_pages.is_some_and(|place| has_key || place != Place::Due(birth_due));
            self.entries.push(Entry { topic, arrival, state: None, in_pages, was_indexed, bytes: 0 });
            self.entries.len() - 1
        });
        &mut self.entries[at]
    }
}

/// The store's memory of itself: the young table and what outlives generations.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) young: Generation,
    pub(super) totals: BTreeMap<TopicId, Totals>,
    /// The highest number that a topic ever had.
    pub(super) last_topic: TopicId,
    /// Live messages of all topics.
    pub(super) live: u64,
    /// Arrival numbers below this may have been used.
    pub(super) arrivals: u64,
    /// The highest epoch that was opened.
    pub(super) epoch: u32,
    /// The last change was a clean stop.
    pub(super) closed: bool,
    /// While the journal is read: the latest clean stop.
    pub(super) last_close: Option<Change>,
}

impl Ledger {
    pub(super) fn topic(&mut self, topic: &TopicRecord) {
        self.last_topic = self.last_topic.max(topic.id);
        self.young.topics.insert(topic.id, topic.clone());
    }

    pub(super) fn topic_deleted(&mut self, topic: TopicId, in_pages: bool) {
        let totals = self.totals.remove(&topic).unwrap_or_default();
        // A generation that is read alone counts from nothing.
        self.live = self.live.saturating_sub(totals.produced.saturating_sub(totals.gone()));
        let young = &mut self.young;
        young.topics.remove(&topic);
        young.counted.remove(&topic);
        young.damaged.retain(|part| part.topic != topic);
        young.deleted.insert(topic);
        young.is_deletion_in_pages |= in_pages;
    }

    pub(super) fn produced(&mut self, message: &Message, bytes: usize) {
        self.count(message.id.topic, |totals| totals.produced += 1);
        self.live += 1;
        self.young.put(message, None, bytes);
    }

    pub(super) fn moved(&mut self, message: &Message, previous: Place, bytes: usize) {
        self.young.put(message, Some(previous), bytes);
    }

    /// A message that the pages no longer hold and that did not change.
    pub(super) fn carried(&mut self, message: &Message, bytes: usize) {
        self.young.put(message, None, bytes);
    }

    /// Applies a difference; `None` if the generation does not hold the message.
    pub(super) fn progressed(
        &mut self,
        arrival: u64,
        progress: Progress,
        entry: Option<HistoryEntry>,
        bytes: usize,
    ) -> Option<Message> {
        let mut message = self.young.message(arrival)?.clone();
        message.progress = progress;
        if let Some(entry) = entry {
            message.record(entry);
        }
        self.young.put(&message, None, bytes);
        Some(message)
    }

    pub(super) fn finished(&mut self, finished: &Finished) {
        let id = finished.id;
        self.young.touch(id, Some(finished.previous), finished.key.is_some()).state = None;
        self.young.ended.push(finished.clone());
        let outcome: Outcome = finished.outcome;
        self.count(id.topic, |totals| totals.count(outcome));
        self.live = self.live.saturating_sub(1);
    }

    pub(super) fn dedup(&mut self, dedup: &DedupRecord) {
        self.young.dedup.push(dedup.clone());
    }

    /// The totals of its topic change with the fold, if it turns out to hold messages.
    pub(super) fn quarantined(&mut self, part: &DamagedPart) {
        self.young.damaged.insert(*part);
        self.count(part.topic, |_| {});
    }

    /// A fold has set so many messages of a topic aside.
    pub(super) fn set_aside(&mut self, topic: TopicId, messages: u64) {
        // The topic may have been deleted meanwhile.
        let Some(totals) = self.totals.get_mut(&topic) else { return };
        totals.quarantined += messages;
        self.live = self.live.saturating_sub(messages);
    }

    fn count(&mut self, topic: TopicId, count: impl FnOnce(&mut Totals)) {
        count(self.totals.entry(topic).or_default());
        self.young.counted.insert(topic);
    }
}

/// Chooses the instant before which live messages are carried in the journal instead of being folded: `now`
/// plus at most `horizon_ms`, and so early that the carried take about `budget` bytes at most, since a
/// generation that starts full would be folded again at once.
pub(super) fn carry_before(young: &Generation, now: Timestamp, horizon_ms: u64, budget: u64) -> Timestamp {
    const STEPS: usize = 64;
    // A sample is enough for a budget, and a commit waits for this.
    let stride = young.entries.len() / 8_192 + 1;
    let step_ms = (horizon_ms / (STEPS as u64 - 1)).max(1);
    let mut bytes = [0_u64; STEPS];
    for entry in young.entries.iter().step_by(stride) {
        let Some(message) = &entry.state else { continue };
        if message.progress.cancel_on_lease_end {
            // Carried whatever its due time.
            bytes[0] += u64::from(entry.bytes) * stride as u64;
            continue;
        }
        let Place::Due(due) = message.place() else { continue };
        // Step 0 is what is due already; step n what falls due within n steps.
        let step = due.since(now).div_ceil(step_ms);
        if let Some(bytes) = usize::try_from(step).ok().and_then(|step| bytes.get_mut(step)) {
            *bytes += u64::from(entry.bytes) * stride as u64;
        }
    }
    let mut total = 0;
    let fitting = bytes.iter().take_while(|&&bytes| {
        total += bytes;
        total <= budget
    });
    match fitting.count() as u64 {
        0 => Timestamp::ZERO,
        steps => now.plus((steps - 1) * step_ms + 1),
    }
}
