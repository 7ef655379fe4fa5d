//! Runs of ended messages and of dedup ids: what each fold remembers of them, per topic, dropped as a whole
//! when nothing in it is of use any more.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::queue::change::{DedupRecord, Finished, TopicRecord};
use crate::queue::message::TopicId;
use crate::queue::time::Timestamp;

use super::codec::{Malformed, Reader, put_bytes, put_u32, put_u64, seal, unseal};
use super::keys::{DEDUP, ENDED, MAX_VALUE_BYTES, parse_run_key, run_key, run_part_key};
use super::kv::{Batch, KvRead};
use super::page::{PagesError, Put};
use super::records::{dedup, finished, put_dedup, put_finished, put_time, time};

/// A record that is kept in runs.
pub(super) trait Remembered: Sized {
    const DATA_KIND: u8;
    const INDEX_KIND: u8;
    fn topic(&self) -> TopicId;
    /// The instant from which its age counts or at which it expires.
    fn instant(&self) -> Timestamp;
    fn put(&self, out: &mut Vec<u8>);
    fn read(input: &mut Reader<'_>) -> Result<Self, Malformed>;
}

impl Remembered for Finished {
    const DATA_KIND: u8 = ENDED;
    const INDEX_KIND: u8 = 9;

    fn topic(&self) -> TopicId {
        self.id.topic
    }

    fn instant(&self) -> Timestamp {
        self.at
    }

    fn put(&self, out: &mut Vec<u8>) {
        put_finished(out, self);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        finished(input)
    }
}

impl Remembered for DedupRecord {
    const DATA_KIND: u8 = DEDUP;
    const INDEX_KIND: u8 = 11;

    fn topic(&self) -> TopicId {
        self.topic
    }

    fn instant(&self) -> Timestamp {
        self.expires_at
    }

    fn put(&self, out: &mut Vec<u8>) {
        put_dedup(out, self);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        dedup(input)
    }
}

/// A run in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunEntry {
    /// Parts of at most [`MAX_VALUE_BYTES`].
    pub(super) parts: u32,
    /// Records.
    pub(super) count: u64,
    /// The latest instant of its records.
    pub(super) latest: Timestamp,
}

/// The index of runs, per topic, oldest first.
pub(super) type RunIndex = BTreeMap<TopicId, BTreeMap<u64, RunEntry>>;

/// Reads the index of the runs of `R`.
pub(super) fn load_index<R: Remembered>(kv: &dyn KvRead) -> Result<RunIndex, PagesError> {
    load_runs(kv, R::INDEX_KIND, "index of runs", |input| {
        Ok(RunEntry { parts: input.u32()?, count: input.u64()?, latest: time(input)? })
    })
}

/// Reads what is listed under `kind` by topic and run.
pub(super) fn load_runs<E>(
    kv: &dyn KvRead,
    kind: u8,
    what: &str,
    read_entry: impl Fn(&mut Reader<'_>) -> Result<E, Malformed>,
) -> Result<BTreeMap<TopicId, BTreeMap<u64, E>>, PagesError> {
    let mut index: BTreeMap<TopicId, BTreeMap<u64, E>> = BTreeMap::new();
    let mut problem = None;
    kv.scan(&[kind], &mut |key, value| {
        let read = || {
            let (topic, run) = parse_run_key(key).ok_or(Malformed("not a key of a run"))?;
            let mut input = Reader::new(unseal(key, value)?);
            let entry = read_entry(&mut input)?;
            input.finish()?;
            Ok((topic, run, entry))
        };
        match read() {
            Ok((topic, run, entry)) => {
                index.entry(topic).or_default().insert(run, entry);
                ControlFlow::Continue(())
            }
            Err(error) => {
                problem = Some(PagesError::damaged(format!("{what} {key:02x?}"))(error));
                ControlFlow::Break(())
            }
        }
    })?;
    problem.map_or(Ok(index), Err)
}

/// Gives every record of the runs to `sink`, oldest run first within each topic.
pub(super) fn each<R: Remembered>(
    kv: &dyn KvRead,
    index: &RunIndex,
    sink: &mut dyn FnMut(R),
) -> Result<(), PagesError> {
    for (&topic, runs) in index {
        for (&run, entry) in runs {
            let mut count = 0;
            let what = || format!("run {run} of kind {} of topic {}", R::DATA_KIND, topic.0);
            for part in 0..entry.parts {
                let key = run_part_key(R::DATA_KIND, topic, run, part);
                let value = kv.value(&key)?.ok_or(Malformed("a part is missing"));
                let value = value.map_err(PagesError::damaged(what()))?;
                let mut read = || {
                    let mut input = Reader::new(unseal(&key, &value)?);
                    while !input.is_empty() {
                        let mut record = Reader::new(input.bytes()?);
                        sink(R::read(&mut record)?);
                        record.finish()?;
                        count += 1;
                    }
                    Ok(())
                };
                read().map_err(PagesError::damaged(what()))?;
            }
            if count != entry.count {
                return Err(PagesError::damaged(what())(Malformed("it has another number of records")));
            }
        }
    }
    Ok(())
}

/// Writes the records of one topic as parts of a run; gives the entry for the index.
pub(super) fn write_run<'a, R: Remembered + 'a>(
    topic: TopicId,
    run: u64,
    records: impl Iterator<Item = &'a R>,
    put: Put<'_>,
) -> Result<RunEntry, PagesError> {
    let mut entry = RunEntry { parts: 0, count: 0, latest: Timestamp::ZERO };
    let (mut payload, mut encoded) = (Vec::new(), Vec::new());
    let mut close = |payload: &mut Vec<u8>, entry: &mut RunEntry| {
        let key = run_part_key(R::DATA_KIND, topic, run, entry.parts);
        let value = seal(&key, payload);
        payload.clear();
        entry.parts += 1;
        put(key, value)
    };
    for record in records {
        encoded.clear();
        record.put(&mut encoded);
        if payload.len() + encoded.len() > MAX_VALUE_BYTES - 16 {
            close(&mut payload, &mut entry)?;
        }
        put_bytes(&mut payload, &encoded);
        entry.count += 1;
        entry.latest = entry.latest.max(record.instant());
    }
    if !payload.is_empty() {
        close(&mut payload, &mut entry)?;
    }
    Ok(entry)
}

/// Enters a run into the index.
pub(super) fn put_entry<R: Remembered>(topic: TopicId, run: u64, entry: &RunEntry, batch: &mut Batch) {
    let key = run_key(R::INDEX_KIND, topic, run);
    let mut payload = Vec::new();
    put_u32(&mut payload, entry.parts);
    put_u64(&mut payload, entry.count);
    put_time(&mut payload, entry.latest);
    let value = seal(&key, &payload);
    batch.put(key, value);
}

/// Removes a run with its data.
pub(super) fn remove_run<R: Remembered>(topic: TopicId, run: u64, entry: &RunEntry, batch: &mut Batch) {
    batch.remove(run_key(R::INDEX_KIND, topic, run));
    for part in 0..entry.parts {
        batch.remove(run_part_key(R::DATA_KIND, topic, run, part));
    }
}

/// The runs of ended messages that are of no use: by the topic's age, or because later runs alone hold as many
/// as the topic remembers.
pub(super) fn useless_ended(runs: &BTreeMap<u64, RunEntry>, topic: &TopicRecord, now: Timestamp) -> Vec<u64> {
    let mut later = 0;
    let mut useless = Vec::new();
    for (&run, entry) in runs.iter().rev() {
        let is_full = later >= u64::from(topic.settings.history_count);
        if is_full || now.since(entry.latest) > topic.settings.history_age_ms {
            useless.push(run);
        }
        later += entry.count;
    }
    useless
}

/// The runs of dedup ids that have all expired.
pub(super) fn useless_dedup(runs: &BTreeMap<u64, RunEntry>, now: Timestamp) -> Vec<u64> {
    runs.iter().filter(|(_, entry)| entry.latest <= now).map(|(&run, _)| run).collect()
}
