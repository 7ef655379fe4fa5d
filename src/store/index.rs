//! The index: where to find the messages in pages that a command may name by key, or whose id does not tell where
//! they are. Every other message needs none.
//!
//! Each fold writes per topic one run, sorted by arrival number, of what it moved into the pages and of what left
//! them (removals). A later run overrules an earlier one. Runs are merged as they are written, so that few are
//! left to read when the store opens.

use std::collections::BTreeMap;
use std::vec;

use crate::queue::change::Restored;
use crate::queue::key_hash;
use crate::queue::message::{Message, MessageId, Place, TopicId};
use crate::queue::time::Timestamp;

use super::codec::{Malformed, Reader, put_u32, put_u64, seal, unseal};
use super::keys::{INDEX, INDEX_LIST, MAX_VALUE_BYTES, run_key, run_part_key};
use super::kv::{Batch, KvRead};
use super::page::{PagesError, Put};
use super::records::{put_time, time};
use super::runs::load_runs;

/// What the index says of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexRecord {
    pub(super) arrival: u64,
    /// `None`: the message is not in pages any more, or needs no index.
    pub(super) found: Option<Found>,
}

/// Where a message is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) birth_due: Timestamp,
    pub(super) place: Place,
    pub(super) key_hash: Option<u64>,
}

impl Found {
    /// What the index has to say of a message in pages, if anything.
    pub(super) fn of(message: &Message) -> Option<Self> {
        let key = message.content.key.as_ref().filter(|_| message.progress.holds_key);
        let (birth_due, place) = (message.id.birth_due, message.place());
        let is_needed = key.is_some() || place != Place::Due(birth_due);
        is_needed.then(|| Self { birth_due, place, key_hash: key.map(key_hash) })
    }
}

/// A run of the index of a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct IndexRun {
    /// Parts of at most [`MAX_VALUE_BYTES`].
    pub(super) parts: u32,
    entries: u64,
    removals: u64,
}

impl IndexRun {
    pub(super) fn records(&self) -> u64 {
        self.entries + self.removals
    }
}

/// The runs of one topic, oldest first.
pub(super) type TopicIndex = BTreeMap<u64, IndexRun>;

/// The runs of all topics.
pub(super) type Index = BTreeMap<TopicId, TopicIndex>;

/// Reads the list of the runs.
pub(super) fn load_index_list(kv: &dyn KvRead) -> Result<Index, PagesError> {
    load_runs(kv, INDEX_LIST, "list of the index", |input| {
        Ok(IndexRun { parts: input.u32()?, entries: input.u64()?, removals: input.u64()? })
    })
}

/// Gives every entry that holds to `sink`.
pub(super) fn each_indexed<'a>(
    kv: &dyn KvRead,
    index: impl Iterator<Item = (&'a TopicId, &'a TopicIndex)>,
    sink: &mut dyn FnMut(Restored),
) -> Result<(), PagesError> {
    for (&topic, runs) in index {
        sink(Restored::IndexSize { topic, entries: runs.values().map(|run| run.entries).sum() });
        each_of_topic(kv, topic, runs, &mut |arrival, Found { birth_due, place, key_hash }| {
            let id = MessageId { topic, birth_due, arrival };
            sink(Restored::Index { id, place, key_hash });
        })?;
    }
    Ok(())
}

/// Gives every entry of a topic that holds to `sink`, by arrival number.
pub(super) fn each_of_topic(
    kv: &dyn KvRead,
    topic: TopicId,
    runs: &TopicIndex,
    sink: &mut dyn FnMut(u64, Found),
) -> Result<(), PagesError> {
    let mut merge = Merge::new(kv, topic, runs.iter())?;
    while let Some(IndexRecord { arrival, found }) = merge.next()? {
        if let Some(found) = found {
            sink(arrival, found);
        }
    }
    Ok(())
}

/// More runs than this are merged.
const MAX_RUNS: usize = 8;

/// The oldest of the runs that a new one with `added` records is to be merged with; `None`: it stands alone.
///
/// A run is merged into the new one if it is less than twice as large, so that sizes at least double from run to
/// run and a record is written again only as often as sizes double. When most records say that something is gone,
/// everything is merged.
fn merge_from(runs: &TopicIndex, added: u64) -> Option<u64> {
    let (entries, removals) =
        runs.values().fold((0, 0), |(entries, removals), run| (entries + run.entries, removals + run.removals));
    if removals * 2 > entries {
        return runs.first_key_value().map(|(&run, _)| run);
    }
    let mut from = runs.keys().nth(MAX_RUNS - 1).copied();
    let mut size = added + from.map_or(0, |from| runs.range(from..).map(|(_, run)| run.records()).sum::<u64>());
    for (&number, run) in runs.range(..from.unwrap_or(u64::MAX)).rev() {
        if run.records() >= size * 2 {
            break;
        }
        size += run.records();
        from = Some(number);
    }
    from
}

/// Writes run `run` of a topic, with `new` sorted by arrival number, merged with as many of the runs before as is
/// good. Gives the runs as they are then; what changes in the list of runs goes into `last`.
pub(super) fn write_index_run(
    kv: &dyn KvRead,
    (topic, run): (TopicId, u64),
    runs: &TopicIndex,
    new: impl ExactSizeIterator<Item = IndexRecord>,
    put: Put<'_>,
    last: &mut Batch,
) -> Result<TopicIndex, PagesError> {
    let from = merge_from(runs, new.len() as u64);
    let merged = || runs.range(from.unwrap_or(u64::MAX)..);
    let is_all = merged().count() == runs.len();
    let mut new = new;
    let mut merge = Merge::new(kv, topic, merged())?;
    merge.add_newest(&mut new);
    let mut written = WrittenRun { topic, run, entry: IndexRun::default(), payload: Vec::new(), before: 0 };
    while let Some(record) = merge.next()? {
        // Nothing older is left that a removal could remove.
        if record.found.is_some() || !is_all {
            written.add(&record, put)?;
        }
    }
    let entry = written.finish(put)?;
    let mut after = runs.clone();
    for (&number, old) in merged() {
        after.remove(&number);
        last.remove(run_key(INDEX_LIST, topic, number));
        for part in 0..old.parts {
            last.remove(run_part_key(INDEX, topic, number, part));
        }
    }
    if entry.records() > 0 {
        let key = run_key(INDEX_LIST, topic, run);
        let mut payload = Vec::new();
        put_u32(&mut payload, entry.parts);
        put_u64(&mut payload, entry.entries);
        put_u64(&mut payload, entry.removals);
        let value = seal(&key, &payload);
        last.put(key, value);
        after.insert(run, entry);
    }
    Ok(after)
}

struct WrittenRun {
    topic: TopicId,
    run: u64,
    entry: IndexRun,
    payload: Vec<u8>,
    /// The arrival number of the record before in this part.
    before: u64,
}

impl WrittenRun {
    fn add(&mut self, record: &IndexRecord, put: Put<'_>) -> Result<(), PagesError> {
        put_record(&mut self.payload, record, self.before);
        self.before = record.arrival;
        *(if record.found.is_some() { &mut self.entry.entries } else { &mut self.entry.removals }) += 1;
        // A record takes at most 39 bytes.
        if self.payload.len() > MAX_VALUE_BYTES - 64 { self.close(put) } else { Ok(()) }
    }

    fn close(&mut self, put: Put<'_>) -> Result<(), PagesError> {
        let key = run_part_key(INDEX, self.topic, self.run, self.entry.parts);
        let value = seal(&key, &self.payload);
        self.payload.clear();
        self.before = 0;
        self.entry.parts += 1;
        put(key, value)
    }

    fn finish(mut self, put: Put<'_>) -> Result<IndexRun, PagesError> {
        if !self.payload.is_empty() {
            self.close(put)?;
        }
        Ok(self.entry)
    }
}

/// The difference to the arrival number before; a tag: 0 removal, 1 at the birth due time, 2 due, 3 dead, plus 4 if
/// there is the hash of a key; then the due time of birth, the instant of the place and the hash, as far as the
/// tag tells.
fn put_record(out: &mut Vec<u8>, record: &IndexRecord, before: u64) {
    put_u64(out, record.arrival - before);
    let Some(Found { birth_due, place, key_hash }) = record.found else {
        out.push(0);
        return;
    };
    let (tag, at) = match place {
        Place::Due(at) if at == birth_due => (1, None),
        Place::Due(at) => (2, Some(at)),
        Place::Dead(at) => (3, Some(at)),
    };
    out.push(tag + if key_hash.is_some() { 4 } else { 0 });
    put_time(out, birth_due);
    if let Some(at) = at {
        put_time(out, at);
    }
    out.extend(key_hash.iter().flat_map(|hash| hash.to_le_bytes()));
}

fn record(input: &mut Reader<'_>, before: u64) -> Result<IndexRecord, Malformed> {
    let arrival = before.checked_add(input.u64()?).ok_or(Malformed("an arrival over 64 bits"))?;
    let tag = input.u8()?;
    if tag == 0 {
        return Ok(IndexRecord { arrival, found: None });
    }
    let birth_due = time(input)?;
    let place = match tag & 3 {
        1 => Place::Due(birth_due),
        2 => Place::Due(time(input)?),
        3 => Place::Dead(time(input)?),
        _ => return Err(Malformed("an unknown tag")),
    };
    let key_hash = match tag >> 2 {
        0 => None,
        1 => Some(u64::from_le_bytes(input.array()?)),
        _ => return Err(Malformed("an unknown tag")),
    };
    Ok(IndexRecord { arrival, found: Some(Found { birth_due, place, key_hash }) })
}

/// Several runs as one: of each message what the newest run says, by arrival number.
struct Merge<'a> {
    /// Oldest first, each with its next record.
    sources: Vec<(Option<IndexRecord>, Source<'a>)>,
}

enum Source<'a> {
    Stored(StoredRun<'a>),
    New(&'a mut dyn Iterator<Item = IndexRecord>),
}

impl<'a> Merge<'a> {
    fn new<'r>(
        kv: &'a dyn KvRead,
        topic: TopicId,
        runs: impl Iterator<Item = (&'r u64, &'r IndexRun)>,
    ) -> Result<Self, PagesError> {
        let mut sources = Vec::new();
        for (&run, &entry) in runs {
            let records = Vec::new().into_iter();
            let mut stored = StoredRun { kv, topic, run, entry, part: 0, count: 0, records };
            sources.push((stored.next()?, Source::Stored(stored)));
        }
        Ok(Self { sources })
    }

    fn add_newest(&mut self, records: &'a mut dyn Iterator<Item = IndexRecord>) {
        self.sources.push((records.next(), Source::New(records)));
    }

    fn next(&mut self) -> Result<Option<IndexRecord>, PagesError> {
        let Some(arrival) = self.sources.iter().filter_map(|(next, _)| Some(next.as_ref()?.arrival)).min() else {
            return Ok(None);
        };
        let mut newest = None;
        for (next, source) in &mut self.sources {
            if next.is_some_and(|next| next.arrival == arrival) {
                newest = match source {
                    Source::Stored(stored) => std::mem::replace(next, stored.next()?),
                    Source::New(records) => std::mem::replace(next, records.next()),
                };
            }
        }
        Ok(newest)
    }
}

struct StoredRun<'a> {
    kv: &'a dyn KvRead,
    topic: TopicId,
    run: u64,
    entry: IndexRun,
    part: u32,
    count: u64,
    records: vec::IntoIter<IndexRecord>,
}

impl StoredRun<'_> {
    fn next(&mut self) -> Result<Option<IndexRecord>, PagesError> {
        loop {
            if let Some(record) = self.records.next() {
                self.count += 1;
                return Ok(Some(record));
            }
            let what = || format!("run {} of the index of topic {}", self.run, self.topic.0);
            if self.part == self.entry.parts {
                if self.count != self.entry.records() {
                    return Err(PagesError::damaged(what())(Malformed("it has another number of records")));
                }
                return Ok(None);
            }
            let key = run_part_key(INDEX, self.topic, self.run, self.part);
            let value = self.kv.value(&key)?.ok_or(Malformed("a part is missing"));
            let value = value.map_err(PagesError::damaged(what()))?;
            let read = || {
                let mut input = Reader::new(unseal(&key, &value)?);
                let (mut records, mut before) = (Vec::new(), 0);
                while !input.is_empty() {
                    let record = record(&mut input, before)?;
                    before = record.arrival;
                    records.push(record);
                }
                Ok(records)
            };
            self.records = read().map_err(PagesError::damaged(what()))?.into_iter();
            self.part += 1;
        }
    }
}
