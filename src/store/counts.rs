//! Counting waiting messages by due time, from the directory.
//!
//! Slots, pages and parts of tombstones that lie between two instants are counted from the directory. Of a slot that
//! an instant cuts in two, the pages and parts across that instant are read, at most one of each per run. Runs do not
//! change, so what was counted of one before an instant is kept for the next time: an instant on a whole minute is
//! counted once, however often somebody looks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::queue::message::TopicId;
use crate::queue::quarantine::DamagedPart;
use crate::queue::time::Timestamp;

use super::codec::Malformed;
use super::keys::{Level, SlotKey};
use super::page::{PageEntry, PagesError, read_page};
use super::quarantine::PageName;
use super::slot::{Run, Slot};
use super::tombstones::Graves;
use super::walk::Stock;

/// What was counted of runs before instants.
#[derive(Default)]
pub(super) struct CutCache {
    topics: BTreeMap<TopicId, Cuts>,
    count: usize,
}

/// All topics together, about 40 MB.
const MAX_CUTS: usize = 1 << 20;

type Cuts = HashMap<(SlotKey, u64), RunCuts>;

/// Of one run, as long as it is that one.
struct RunCuts {
    pages: Arc<[PageEntry]>,
    graves: Option<Arc<Graves>>,
    before: BTreeMap<Timestamp, Cut>,
}

/// Before an instant: messages in the pages of a run, and messages of earlier runs that its tombstones kill.
#[derive(Clone, Copy, Default)]
struct Cut {
    held: u64,
    gone: u64,
}

impl RunCuts {
    fn new(run: &Run) -> Self {
        Self { pages: Arc::clone(&run.pages), graves: run.graves.clone(), before: BTreeMap::new() }
    }

    fn is_of(&self, run: &Run) -> bool {
        let same_graves = match (&self.graves, &run.graves) {
            (Some(mine), Some(theirs)) => Arc::ptr_eq(mine, theirs),
            (None, None) => true,
            _ => false,
        };
        Arc::ptr_eq(&self.pages, &run.pages) && same_graves
    }
}

impl CutCache {
    /// Waiting messages of a topic in each of the spans between `edges`, which ascend, exactly. Those of a page across
    /// an edge that cannot be read, which is added to `damaged`, count where the page begins.
    pub(super) fn due(
        &mut self,
        stock: Stock<'_>,
        topic: TopicId,
        edges: &[Timestamp],
        damaged: &mut Vec<(DamagedPart, PagesError)>,
    ) -> Result<Vec<u64>, PagesError> {
        let old = self.topics.remove(&topic).unwrap_or_default();
        self.count -= old.values().map(|run| run.before.len()).sum::<usize>();
        let mut counting = Counting { stock, old, new: HashMap::new(), damaged };
        let mut counts = vec![0; edges.len().saturating_sub(1)];
        let result = counting.due(topic, edges, &mut counts);
        // What is not asked for any more is forgotten; after a failure all is kept.
        let mut cuts = counting.new;
        if result.is_err() {
            for (run, old) in counting.old {
                cuts.entry(run).or_insert(old);
            }
        }
        if !counting.damaged.is_empty() {
            cuts.clear();
        }
        self.count += cuts.values().map(|run| run.before.len()).sum::<usize>();
        self.topics.insert(topic, cuts);
        if self.count > MAX_CUTS {
            *self = Self::default();
        }
        result.map(|()| counts)
    }
}

struct Counting<'a> {
    stock: Stock<'a>,
    old: Cuts,
    new: Cuts,
    damaged: &'a mut Vec<(DamagedPart, PagesError)>,
}

impl Counting<'_> {
    fn due(&mut self, topic: TopicId, edges: &[Timestamp], counts: &mut [u64]) -> Result<(), PagesError> {
        let (Some(&first), Some(&last)) = (edges.first(), edges.last()) else { return Ok(()) };
        let directory = self.stock.directory;
        for level in Level::DUE {
            let slots = directory.slots_from(SlotKey::holding(topic, level, first));
            for (key, slot) in slots.take_while(|(key, _)| Timestamp::from_millis(key.start) < last) {
                let start = Timestamp::from_millis(key.start);
                let end = Timestamp::from_millis(key.start.saturating_add(level.width_ms()));
                let inside = edges.partition_point(|&edge| edge <= start)..edges.partition_point(|&edge| edge < end);
                let before = self.live_before(key, slot, &edges[inside.clone()])?;
                let ends = before.iter().copied().chain([slot.live]);
                let mut reached = 0;
                for (span, now) in (inside.start..=inside.end).zip(ends) {
                    // Span n is before edge n + 1; what is before the first edge and after the last is left out.
                    if let Some(count) = span.checked_sub(1).and_then(|span| counts.get_mut(span)) {
                        *count += now.saturating_sub(reached);
                    }
                    reached = reached.max(now);
                }
            }
        }
        Ok(())
    }

    /// Of a slot, what lives before each of some instants in it.
    fn live_before(&mut self, key: &SlotKey, slot: &Slot, cuts: &[Timestamp]) -> Result<Vec<u64>, PagesError> {
        let mut live = vec![Cut::default(); cuts.len()];
        if cuts.is_empty() {
            return Ok(Vec::new());
        }
        for (&number, run) in slot.runs.iter() {
            let old = self.old.remove(&(*key, number)).filter(|old| old.is_of(run));
            let mut kept = RunCuts::new(run);
            let mut page = None;
            for (sum, &at) in live.iter_mut().zip(cuts) {
                let cut = match old.as_ref().and_then(|old| old.before.get(&at)) {
                    Some(&cut) => cut,
                    None => Cut {
                        held: self.held_before(key, (slot, number), run, at, &mut page)?,
                        gone: self.gone_before(key, number, run, at)?,
                    },
                };
                kept.before.insert(at, cut);
                (sum.held, sum.gone) = (sum.held + cut.held, sum.gone + cut.gone);
            }
            self.new.insert((*key, number), kept);
        }
        let count = |cut: Cut| cut.held.checked_sub(cut.gone).ok_or_else(|| impossible(key));
        live.into_iter().map(count).collect()
    }

    /// Messages in the pages of a run that are due before an instant. `open`: the page that was read last.
    fn held_before(
        &mut self,
        key: &SlotKey,
        (slot, number): (&Slot, u64),
        run: &Run,
        at: Timestamp,
        open: &mut Option<(usize, Vec<Timestamp>)>,
    ) -> Result<u64, PagesError> {
        let across = run.pages.partition_point(|page| page.last(key).0 < at);
        let whole: u64 = run.pages[..across].iter().map(|page| u64::from(page.count)).sum();
        let Some(entry) = run.pages.get(across).filter(|page| page.first(key).0 < at) else { return Ok(whole) };
        if open.as_ref().is_none_or(|&(page, _)| page != across) {
            *open = Some((across, self.instants(key, (slot, number), across, entry)?));
        }
        let instants = open.as_ref().map_or(&[][..], |(_, instants)| instants);
        Ok(whole + instants.partition_point(|&instant| instant < at) as u64)
    }

    /// Due times of the messages that the directory counts in a page.
    fn instants(
        &mut self,
        key: &SlotKey,
        (slot, number): (&Slot, u64),
        page: usize,
        entry: &PageEntry,
    ) -> Result<Vec<Timestamp>, PagesError> {
        if entry.is_in_quarantine() {
            // Only those that tombstones kill count, and these are counted as gone, too.
            let ends = (entry.first(key), entry.last(key));
            let dead = self.stock.tombstones.dead_between(self.stock.kv, (key, slot), number, ends)?;
            return Ok(dead.into_iter().map(|(at, _)| at).collect());
        }
        let name = PageName { slot: *key, run: number, page };
        let read = if self.stock.avoided.contains(&name) {
            Err(PagesError::damaged(name.to_string())(Malformed("it was found damaged before")))
        } else {
            read_page(self.stock.kv, key, number, page, entry)
        };
        Ok(match read {
            Ok(records) => records.into_iter().map(|record| record.order.0).collect(),
            Err(problem) => {
                self.damaged.push((name.whole(entry), problem));
                vec![entry.first(key).0; entry.count.into()]
            }
        })
    }

    /// Tombstones of a run for messages that were due before an instant.
    fn gone_before(&mut self, key: &SlotKey, number: u64, run: &Run, at: Timestamp) -> Result<u64, PagesError> {
        let Some(graves) = &run.graves else { return Ok(0) };
        let across = graves.parts.partition_point(|part| part.last.0 < at);
        let whole: u64 = graves.parts[..across].iter().map(|part| u64::from(part.count)).sum();
        let Some(entry) = graves.parts.get(across).filter(|part| part.first.0 < at) else { return Ok(whole) };
        let part = self.stock.tombstones.part(self.stock.kv, (*key, number, across), entry)?;
        Ok(whole + part.partition_point(|&((instant, _), _)| instant < at) as u64)
    }
}

fn impossible(key: &SlotKey) -> PagesError {
    PagesError::Damaged {
        what: format!("topic {}, {:?} slot {}", key.topic.0, key.level, key.start),
        problem: "more of its messages are gone than there were",
    }
}
