//! The dedup window of one topic: produce requests that must not be stored twice, with the answers they got.

use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};

use siphasher::sip128::{Hasher128, SipHasher13};

use super::change::DedupRecord;
use super::command::{Due, KeyPolicy, Produce};
use super::time::Timestamp;
use super::values::DedupId;

/// Remembered dedup ids.
#[derive(Debug, Default)]
pub(super) struct DedupWindow {
    records: HashMap<DedupId, DedupRecord>,
    by_expiry: BTreeSet<(Timestamp, DedupId)>,
}

impl DedupWindow {
    /// What `dedup_id` answered before, unless its window has passed.
    pub(super) fn answered(&self, dedup_id: &DedupId, now: Timestamp) -> Option<&DedupRecord> {
        self.records.get(dedup_id).filter(|record| record.expires_at > now)
    }

    /// How long until there is room for one more id, milliseconds; `None` if there is room now.
    pub(super) fn full_for(&self, capacity: u32, now: Timestamp) -> Option<u64> {
        let live = self.records.len() - self.by_expiry.iter().take_while(|(at, _)| *at <= now).count();
        let oldest = self.by_expiry.iter().find(|(at, _)| *at > now)?;
        (live >= capacity as usize).then(|| oldest.0.since(now))
    }

    /// Remembers an answer and forgets those whose window has passed.
    pub(super) fn insert(&mut self, record: DedupRecord, now: Timestamp) {
        while let Some((at, _)) = self.by_expiry.first()
            && *at <= now
        {
            let (_, dedup_id) = self.by_expiry.pop_first().expect("there is a first");
            self.records.remove(&dedup_id);
        }
        let (expires_at, dedup_id) = (record.expires_at, record.dedup_id.clone());
        // A store that is opened with the clock set back may tell of an earlier use of the id that has not expired.
        if let Some(earlier) = self.records.insert(dedup_id.clone(), record) {
            self.by_expiry.remove(&(earlier.expires_at, dedup_id.clone()));
        }
        self.by_expiry.insert((expires_at, dedup_id));
    }

    /// All that is remembered, first to expire first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &DedupRecord> {
        self.by_expiry.iter().map(|(_, dedup_id)| &self.records[dedup_id])
    }
}

/// A hash of everything a produce asks for, stable over restarts and versions of the same store format.
pub(super) fn content_hash(produce: &Produce) -> u128 {
    let mut hasher = SipHasher13::new();
    part(&mut hasher, produce.key.as_ref().map_or("", |key| key.as_str()).as_bytes());
    hasher.write_u64(produce.headers.iter().len() as u64);
    for (name, value) in produce.headers.iter() {
        part(&mut hasher, name.as_bytes());
        part(&mut hasher, value.as_bytes());
    }
    part(&mut hasher, &produce.body);
    let (kind, at) = match produce.due {
        None => (0, 0),
        Some(Due::After(ms)) => (1, ms),
        Some(Due::At(at)) => (2, at.as_millis()),
    };
    hasher.write_u8(kind);
    hasher.write_u64(at);
    let tiers = produce.schedule.as_ref().map_or(&[][..], |schedule| schedule.tiers());
    hasher.write_u64(tiers.len() as u64);
    for &tier in tiers {
        hasher.write_u64(tier);
    }
    hasher.write_u64(produce.max_attempts.map_or(0, |n| u64::from(n) + 1));
    hasher.write_u8(match produce.key_policy {
        KeyPolicy::Reject => 0,
        KeyPolicy::Replace => 1,
        KeyPolicy::Keep => 2,
    });
    hasher.finish128().as_u128()
}

/// Length first, so that no two lists of parts look alike.
fn part(hasher: &mut SipHasher13, bytes: &[u8]) {
    (bytes.len() as u64).hash(hasher);
    hasher.write(bytes);
}
