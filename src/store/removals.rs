//! What one fold does to the directory: the copies of messages that left their page, and the pages it added.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::queue::message::{Place, TopicId};
use crate::queue::quarantine::DamagedPart;

use super::directory::{Directory, Located};
use super::keys::SlotKey;
use super::kv::{Batch, KvRead};
use super::page::{Order, PageEntry, PagesError, Put, read_page, sort_time};
use super::quarantine::{PageName, Quarantine};
use super::slot::Slot;
use super::tombstones::{Graves, Tombstone, TombstoneCache, put_tombstones};

/// Finds and collects the copies that a fold makes invalid.
pub(super) struct Removals<'a> {
    pub(super) kv: &'a dyn KvRead,
    directory: &'a Directory,
    dead: BTreeMap<SlotKey, Vec<Tombstone>>,
    /// Positions in pages that were read to tell copies apart.
    read_pages: HashMap<(SlotKey, u64, usize), HashSet<Order>>,
    tombstones: TombstoneCache,
}

impl<'a> Removals<'a> {
    pub(super) fn new(kv: &'a dyn KvRead, directory: &'a Directory) -> Self {
        let (dead, read_pages, tombstones) = (BTreeMap::new(), HashMap::new(), TombstoneCache::default());
        Self { kv, directory, dead, read_pages, tombstones }
    }

    /// Marks the copy of a message in the pages as gone.
    pub(super) fn remove(&mut self, topic: TopicId, place: Place, arrival: u64) -> Result<Located, PagesError> {
        let located = self.locate(topic, place, arrival)?;
        let tombstone = ((sort_time(place), arrival), located.run);
        self.dead.entry(located.slot).or_default().push(tombstone);
        Ok(located)
    }

    /// Finds a message in the pages. The directory leaves one page in the usual case; only if there are more
    /// candidates are they read. What no readable page holds is in the damaged one.
    fn locate(&mut self, topic: TopicId, place: Place, arrival: u64) -> Result<Located, PagesError> {
        let at = (sort_time(place), arrival);
        let mut candidates = self.directory.candidates(topic, place, arrival);
        if candidates.len() > 1 {
            let (mut holding, mut unreadable) = (Vec::new(), Vec::new());
            for candidate in candidates {
                match self.holds(&candidate, at) {
                    Ok(true) => holding.push(candidate),
                    Ok(false) => {}
                    Err(_) => unreadable.push(candidate),
                }
            }
            if holding.is_empty() {
                unreadable.truncate(1);
                holding = unreadable;
            }
            candidates = holding;
        }
        match candidates[..] {
            [located] => Ok(located),
            _ => Err(PagesError::Damaged {
                what: format!("message {arrival} of topic {} at {place:?}", topic.0),
                problem: "the pages do not hold exactly one copy",
            }),
        }
    }

    /// True if the damaged page may hold a message and no page that can be read does.
    pub(super) fn is_only_in(&mut self, part: &DamagedPart, place: Place, arrival: u64) -> bool {
        let candidates = self.directory.candidates(part.topic, place, arrival);
        let is_part = |located: &Located| {
            let name = PageName { slot: located.slot, run: located.run, page: located.page };
            PageName::of(part) == Some(name)
        };
        let at = (sort_time(place), arrival);
        candidates.iter().any(is_part)
            && !candidates
                .iter()
                .filter(|located| !is_part(located))
                .any(|other| matches!(self.holds(other, at), Ok(true)))
    }

    /// True if the page holds a copy there that no tombstone killed.
    fn holds(&mut self, candidate: &Located, at: Order) -> Result<bool, PagesError> {
        let Located { slot: key, run, page, .. } = *candidate;
        let slot = self.directory.slot(&key).expect("candidates are listed");
        // Removals come in the order of the pages, so dropping old positions costs few repeated reads.
        if self.read_pages.len() > 4096 {
            self.read_pages.clear();
        }
        let positions = match self.read_pages.entry((key, run, page)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let records = read_page(self.kv, &key, run, page, &slot.runs[run].pages[page])?;
                entry.insert(records.iter().map(|record| record.order).collect())
            }
        };
        if !positions.contains(&at) {
            return Ok(false);
        }
        Ok(self.tombstones.dead_between(self.kv, (&key, slot), run, (at, at))?.is_empty())
    }

    /// Writes the tombstones with `put`, and the lists of run `run` with its new pages into `last`; gives the
    /// touched slots as they are then.
    pub(super) fn finish(
        &mut self,
        run: u64,
        quarantine: &mut Quarantine,
        mut new_pages: BTreeMap<SlotKey, Vec<PageEntry>>,
        put: Put<'_>,
        last: &mut Batch,
    ) -> Result<BTreeMap<SlotKey, Option<Arc<Slot>>>, PagesError> {
        let mut dead = std::mem::take(&mut self.dead);
        let touched: BTreeSet<SlotKey> =
            new_pages.keys().chain(dead.keys()).chain(quarantine.slots()).copied().collect();
        let mut changed = BTreeMap::new();
        for key in touched {
            let pages = new_pages.remove(&key).unwrap_or_default();
            let mut dead = dead.remove(&key).unwrap_or_default();
            // Nothing is set aside in a slot that is gone already.
            let is_new = !pages.is_empty();
            let Some(mut slot) = self.directory.slot(&key).map(|slot| Slot::clone(slot)).or(is_new.then(Slot::default))
            else {
                continue;
            };
            quarantine.set_aside(self.kv, &mut self.tombstones, (&key, &mut slot), &dead, last);
            if pages.is_empty() && slot.live == dead.len() as u64 {
                slot.drop_all(&key, last);
                changed.insert(key, None);
                continue;
            }
            dead.sort_unstable();
            let graves = if dead.is_empty() { Graves::default() } else { put_tombstones(&key, run, &dead, put)? };
            if !pages.is_empty() || !graves.parts.is_empty() {
                slot.list(&key, run, pages, graves, last);
            }
            slot.count().map_err(PagesError::damaged(format!("slot {key:?}")))?;
            changed.insert(key, Some(Arc::new(slot)));
        }
        Ok(changed)
    }
}
