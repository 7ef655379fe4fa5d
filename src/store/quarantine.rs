//! Setting damaged pages aside: what cannot be read leaves the directory with the next fold, and its messages are
//! counted. The damaged bytes stay, under a key kind of their own, for whoever wants to look at them.
//!
//! How many messages a damaged page holds is known without reading it: the directory says how many were written,
//! and tombstones say which of these are gone. So the count is exact, and totals and pages agree at every moment,
//! since both change in one batch. Which messages they were is known of those only that the index names.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::queue::message::{MessageId, Place, TopicId};
use crate::queue::quarantine::DamagedPart;

use super::committer::FoldJob;
use super::index::{Found, Index, each_of_topic};
use super::keys::{Level, PAGE, QUARANTINE, SlotKey};
use super::kv::{Batch, KvRead};
use super::page::{Order, PageEntry};
use super::removals::Removals;
use super::slot::Slot;
use super::tombstones::{Tombstone, TombstoneCache};

/// Names a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PageName {
    pub(super) slot: SlotKey,
    pub(super) run: u64,
    pub(super) page: usize,
}

impl fmt::Display for PageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slot: SlotKey { topic, level, start }, run, page } = self;
        write!(f, "page {page} of run {run}, topic {}, {level:?} slot {start}", topic.0)
    }
}

impl PageName {
    /// The page as a damaged part.
    pub(super) fn whole(&self, entry: &PageEntry) -> DamagedPart {
        self.part(true, entry.first(&self.slot), entry.last(&self.slot))
    }

    /// A message of it as a damaged part.
    pub(super) fn message(&self, at: Order) -> DamagedPart {
        self.part(false, at, at)
    }

    fn part(&self, is_whole: bool, first: Order, last: Order) -> DamagedPart {
        let Self { slot: SlotKey { topic, level, start }, run, page } = *self;
        let page = u32::try_from(page).expect("a run has few pages");
        DamagedPart { topic, level: level.number(), slot_start: start, run, page, is_whole, first, last }
    }

    /// The page of a damaged part that is a page.
    pub(super) fn of_whole(part: &DamagedPart) -> Option<Self> {
        Self::of(part).filter(|_| part.is_whole)
    }

    /// The page of a damaged part; `None` if it names a level that there is not.
    pub(super) fn of(part: &DamagedPart) -> Option<Self> {
        let slot = SlotKey { topic: part.topic, level: Level::from_number(part.level)?, start: part.slot_start };
        Some(Self { slot, run: part.run, page: usize::try_from(part.page).ok()? })
    }
}

/// A damaged part of the pages that a fold has set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAside {
    /// Which.
    pub part: DamagedPart,
    /// How many live messages it held.
    pub messages: u64,
    /// Those of them that the index names, at most [`MAX_KNOWN`].
    pub known: Vec<MessageId>,
}

/// Messages of one damaged page that are named at most.
pub const MAX_KNOWN: usize = 100;

/// What a fold sets aside.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    pages: BTreeMap<SlotKey, Vec<DamagedPart>>,
    done: Vec<SetAside>,
}

impl Quarantine {
    /// Plans what is to be set aside. Single messages become tombstones here; pages follow with their slots.
    pub(super) fn plan(job: &FoldJob, removals: &mut Removals<'_>) -> Self {
        let mut quarantine = Self::default();
        for part in &job.table.damaged {
            let Some(name) = PageName::of(part) else { continue };
            if part.is_whole {
                quarantine.pages.entry(name.slot).or_default().push(*part);
                continue;
            }
            let is_with_page = job.table.damaged.iter().any(|other| other.is_whole && is_same_page(other, part));
            let (at, arrival) = part.first;
            let place = if part.is_of_dead() { Place::Dead(at) } else { Place::Due(at) };
            // A message that this generation touched leaves its page anyhow, and was read by whoever touched it.
            if !is_with_page
                && job.table.entry(arrival).is_none()
                && removals.remove(part.topic, place, arrival).is_ok()
            {
                quarantine.done.push(SetAside { part: *part, messages: 1, known: Vec::new() });
            }
        }
        quarantine
    }

    /// Slots with pages to be set aside.
    pub(super) fn slots(&self) -> impl Iterator<Item = &SlotKey> {
        self.pages.keys()
    }

    /// Sets the damaged pages of a slot aside, of which `dead` are to be killed by this fold.
    pub(super) fn set_aside(
        &mut self,
        kv: &dyn KvRead,
        tombstones: &mut TombstoneCache,
        (key, slot): (&SlotKey, &mut Slot),
        dead: &[Tombstone],
        last: &mut Batch,
    ) {
        let before = slot.clone();
        for part in self.pages.remove(key).unwrap_or_default() {
            let Some(name) = PageName::of(&part) else { continue };
            let listed = before.runs.get(name.run).and_then(|run| run.pages.get(name.page));
            let Some(entry) = listed.filter(|entry| !entry.is_in_quarantine()) else { continue };
            let range = (entry.first(key), entry.last(key));
            // Without the tombstones it is not known how many messages live; then the page stays where it is.
            let Ok(gone) = tombstones.dead_between(kv, (key, &before), name.run, range) else { continue };
            let is_new = |(at, run): &&Tombstone| *run == name.run && (range.0..=range.1).contains(at);
            let gone = gone.len() + dead.iter().filter(is_new).count();
            let gone = u16::try_from(gone).unwrap_or(u16::MAX).min(entry.count);
            // What not even the page store can read stays under its key: nothing lists it any more.
            let page_key = key.key(PAGE, name.run, part.page);
            if let Ok(Some(value)) = kv.value(&page_key) {
                last.put(key.key(QUARANTINE, name.run, part.page), value);
                last.remove(page_key);
            }
            slot.set_aside(key, (name.run, name.page), gone, last);
            self.done.push(SetAside { part, messages: u64::from(entry.count - gone), known: Vec::new() });
        }
    }

    /// Messages set aside, by topic.
    pub(super) fn counts(&self) -> BTreeMap<TopicId, u64> {
        let mut counts = BTreeMap::new();
        for aside in &self.done {
            *counts.entry(aside.part.topic).or_default() += aside.messages;
        }
        counts
    }

    /// What the index says of the messages that were set aside: they are named, and removed from it.
    pub(super) fn name(
        &mut self,
        index: &Index,
        removals: &mut Removals<'_>,
        job: &FoldJob,
    ) -> BTreeMap<TopicId, BTreeSet<u64>> {
        let mut named: BTreeMap<TopicId, BTreeSet<u64>> = BTreeMap::new();
        for aside in self.done.iter_mut().filter(|aside| aside.messages > 0) {
            let part = aside.part;
            let topic = named.entry(part.topic).or_default();
            let Some(runs) = index.get(&part.topic) else { continue };
            // A damaged index names nobody; whoever opens the store finds that out.
            let kv = removals.kv;
            let _damaged = each_of_topic(kv, part.topic, runs, &mut |arrival, Found { birth_due, place, .. }| {
                let is_candidate = part.may_hold(part.topic, place, arrival) && job.table.entry(arrival).is_none();
                let is_first = is_candidate && removals.is_only_in(&part, place, arrival) && topic.insert(arrival);
                if is_first && aside.known.len() < MAX_KNOWN {
                    aside.known.push(MessageId { topic: part.topic, birth_due, arrival });
                }
            });
        }
        named
    }

    pub(super) fn done(self) -> Vec<SetAside> {
        self.done
    }
}

fn is_same_page(one: &DamagedPart, other: &DamagedPart) -> bool {
    let page = |part: &DamagedPart| (part.topic, part.level, part.slot_start, part.run, part.page);
    page(one) == page(other)
}
