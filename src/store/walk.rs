//! A walk over the live messages of some slots in their order: a merge of all runs of all slots that overlap,
//! which opens slots and reads pages only when their turn comes.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::vec;

use crate::queue::message::TopicId;
use crate::queue::quarantine::DamagedPart;
use crate::queue::time::Timestamp;

use super::codec::Malformed;
use super::directory::Directory;
use super::keys::{Level, SlotKey};
use super::kv::KvRead;
use super::page::{Order, PageRecord, PagesError, read_page};
use super::quarantine::PageName;
use super::slot::Slot;
use super::tombstones::TombstoneCache;

/// A walk, which can be left and gone on with as long as its slots do not change.
pub(super) struct Walk {
    topic: TopicId,
    from: Order,
    heap: BinaryHeap<Reverse<Turn>>,
    /// Pages that it holds in memory.
    pub(super) loaded: usize,
}

/// What comes next at a place in the order, or not before it.
struct Turn {
    at: Order,
    source: Source,
}

enum Source {
    /// The slots of a level from this one on.
    Slots(SlotKey),
    /// The pages of a run from this one on.
    Pages(RunOfSlot, usize),
    /// The records of a page; the first of them is at the place.
    Records(RunOfSlot, usize, vec::IntoIter<PageRecord>),
}

/// A run of a slot.
#[derive(Clone)]
struct RunOfSlot {
    key: SlotKey,
    slot: Arc<Slot>,
    run: u64,
}

/// A step of a walk.
pub(super) enum Step {
    /// The next message, and the page that it is in.
    Record(PageName, PageRecord),
    /// A page that cannot be read; the walk goes on behind it.
    Damaged(DamagedPart, PagesError),
    /// The next page would be one more than was allowed.
    Exhausted,
    /// There is nothing more.
    End,
}

/// What a walk reads.
pub(super) struct Stock<'a> {
    pub(super) kv: &'a dyn KvRead,
    pub(super) directory: &'a Directory,
    pub(super) tombstones: &'a mut TombstoneCache,
    /// Pages that are not read any more, since they were found damaged.
    pub(super) avoided: &'a BTreeSet<PageName>,
}

/// No page is avoided.
pub(super) static NONE_AVOIDED: BTreeSet<PageName> = BTreeSet::new();

impl Walk {
    /// Over all messages of a topic in `levels` that are at or after `from`.
    pub(super) fn of_topic(directory: &Directory, topic: TopicId, levels: &[Level], from: Order) -> Self {
        let mut walk = Self { topic, from, heap: BinaryHeap::new(), loaded: 0 };
        for &level in levels {
            walk.push_slots(directory, SlotKey::holding(topic, level, from.0));
        }
        walk
    }

    /// Over the messages of some runs of a slot.
    pub(super) fn of_runs(key: SlotKey, slot: &Arc<Slot>, runs: &[u64]) -> Self {
        let from = (Timestamp::ZERO, 0);
        let mut walk = Self { topic: key.topic, from, heap: BinaryHeap::new(), loaded: 0 };
        for &run in runs {
            walk.push_pages(RunOfSlot { key, slot: Arc::clone(slot), run }, 0);
        }
        walk
    }

    /// Where the next message is, or a place that it is not before; `None`: there is none.
    pub(super) fn frontier(&self) -> Option<Order> {
        self.heap.peek().map(|Reverse(turn)| turn.at)
    }

    /// The next message, reading at most `budget` pages, by which it goes down.
    pub(super) fn step(&mut self, stock: &mut Stock<'_>, budget: &mut usize) -> Result<Step, PagesError> {
        while let Some(Reverse(turn)) = self.heap.pop() {
            match turn.source {
                Source::Slots(key) => self.open_slot(stock.directory, key),
                Source::Pages(..) if *budget == 0 => {
                    self.heap.push(Reverse(turn));
                    return Ok(Step::Exhausted);
                }
                Source::Pages(run, page) => {
                    *budget -= 1;
                    if let Some(damaged) = self.read(stock, run, page)? {
                        return Ok(damaged);
                    }
                }
                Source::Records(run, page, mut records) => {
                    let record = records.next().expect("a page whose turn it is has a record");
                    let name = PageName { slot: run.key, run: run.run, page };
                    self.push_records(run, page, records);
                    return Ok(Step::Record(name, record));
                }
            }
        }
        Ok(Step::End)
    }

    fn push(&mut self, at: Order, source: Source) {
        self.heap.push(Reverse(Turn { at: at.max(self.from), source }));
    }

    fn push_slots(&mut self, directory: &Directory, first: SlotKey) {
        if let Some((&key, _)) = directory.slots_from(first).next() {
            let start = Timestamp::from_millis(key.start);
            self.push((start, 0), Source::Slots(key));
        }
    }

    fn open_slot(&mut self, directory: &Directory, key: SlotKey) {
        let slot = directory.slot(&key).expect("a walk ends when its slots change");
        for (&run, listed) in slot.runs.iter() {
            let page = listed.pages.partition_point(|page| page.last(&key) < self.from);
            self.push_pages(RunOfSlot { key, slot: Arc::clone(slot), run }, page);
        }
        if let Some(start) = key.start.checked_add(1) {
            self.push_slots(directory, SlotKey { topic: self.topic, start, ..key });
        }
    }

    fn push_pages(&mut self, run: RunOfSlot, page: usize) {
        let listed = &run.slot.runs[run.run];
        // A run in which nothing lives is not read.
        if listed.live() == 0 {
            return;
        }
        if let Some(entry) = listed.pages.get(page) {
            self.push(entry.first(&run.key), Source::Pages(run, page));
        }
    }

    fn push_records(&mut self, run: RunOfSlot, page: usize, records: vec::IntoIter<PageRecord>) {
        if let Some(next) = records.as_slice().first() {
            self.push(next.order, Source::Records(run, page, records));
        } else {
            self.loaded -= 1;
            self.push_pages(run, page + 1);
        }
    }

    /// Reads a page; gives a step if it is damaged.
    fn read(&mut self, stock: &mut Stock<'_>, run: RunOfSlot, page: usize) -> Result<Option<Step>, PagesError> {
        let RunOfSlot { key, slot, run: number } = &run;
        let entry = &slot.runs[*number].pages[page];
        let name = PageName { slot: *key, run: *number, page };
        let read = if stock.avoided.contains(&name) {
            Err(PagesError::damaged(name.to_string())(Malformed("it was found damaged before")))
        } else {
            read_page(stock.kv, key, *number, page, entry)
        };
        let mut records = match read {
            Ok(records) => records,
            Err(problem) => {
                let part = name.whole(entry);
                self.push_pages(run, page + 1);
                return Ok(Some(Step::Damaged(part, problem)));
            }
        };
        let range = (entry.first(key), entry.last(key));
        let dead = stock.tombstones.dead_between(stock.kv, (key, slot), *number, range)?;
        let first = self.from;
        records.retain(|record| record.order >= first && dead.binary_search(&record.order).is_err());
        self.loaded += 1;
        self.push_records(run, page, records.into_iter());
        Ok(None)
    }
}

impl Turn {
    /// At the same place, what is unread comes first: it may hold the next message.
    fn rank(&self) -> (Order, bool) {
        (self.at, matches!(self.source, Source::Records(..)))
    }
}

impl PartialEq for Turn {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Turn {}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Turn {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}
