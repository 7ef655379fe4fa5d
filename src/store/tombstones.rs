//! Tombstones: which messages in the pages of earlier runs are gone. Each names the run whose copy it kills, and
//! is part of the run of the fold that found out; so the messages of a run are its pages less the tombstones
//! that name it, and no later run changes that.

use std::collections::HashMap;
use std::sync::Arc;

use crate::queue::time::Timestamp;

use super::codec::{Malformed, Reader, put_u32, put_u64, seal, seal_of, unseal};
use super::keys::{MAX_VALUE_BYTES, SlotKey, TOMBSTONES};
use super::kv::KvRead;
use super::page::{Order, PagesError, Put};
use super::records::{put_time, time};
use super::slot::Slot;

/// A copy that is gone: where it is in its slot's order, and in which run.
pub(super) type Tombstone = (Order, u64);

/// What the directory says of a part of a run of tombstones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TombstonesEntry {
    pub(super) count: u32,
    pub(super) sum: u32,
    pub(super) first: Order,
    pub(super) last: Order,
}

impl TombstonesEntry {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_u32(out, self.count);
        put_u32(out, self.sum);
        for (at, arrival) in [self.first, self.last] {
            put_time(out, at);
            put_u64(out, arrival);
        }
    }

    pub(super) fn read(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            count: input.u32()?,
            sum: input.u32()?,
            first: (time(input)?, input.u64()?),
            last: (time(input)?, input.u64()?),
        })
    }
}

/// The tombstones of one run of a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Graves {
    pub(super) parts: Vec<TombstonesEntry>,
    /// How many messages of which runs they kill, by ascending run.
    pub(super) kills: Vec<(u64, u32)>,
    /// Parts of its entry in the directory.
    pub(super) listed_in: u32,
}

impl Graves {
    pub(super) fn count(&self) -> u64 {
        self.parts.iter().map(|part| u64::from(part.count)).sum()
    }

    pub(super) fn kills_in(&self, run: u64) -> bool {
        self.kills.binary_search_by_key(&run, |&(run, _)| run).is_ok()
    }
}

/// Writes tombstones, which are sorted, as a run. Each is the difference to the instant before, the arrival
/// number, and how many runs earlier its copy is.
pub(super) fn put_tombstones(
    key: &SlotKey,
    run: u64,
    tombstones: &[Tombstone],
    put: Put<'_>,
) -> Result<Graves, PagesError> {
    // Each number takes at most 10 bytes.
    const PER_PART: usize = MAX_VALUE_BYTES / 30 - 1;
    let mut graves = Graves::default();
    let mut kills: HashMap<u64, u32> = HashMap::new();
    for (n, part) in tombstones.chunks(PER_PART).enumerate() {
        let mut payload = Vec::new();
        put_u64(&mut payload, part.len() as u64);
        let mut before = key.start;
        for &((at, arrival), killed) in part {
            put_u64(&mut payload, at.as_millis() - before);
            put_u64(&mut payload, arrival);
            put_u64(&mut payload, run - killed);
            before = at.as_millis();
            *kills.entry(killed).or_default() += 1;
        }
        let part_key = key.key(TOMBSTONES, run, u32::try_from(n).expect("a run has few parts"));
        let value = seal(&part_key, &payload);
        graves.parts.push(TombstonesEntry {
            count: u32::try_from(part.len()).expect("a part is small"),
            sum: seal_of(&value),
            first: part[0].0,
            last: part[part.len() - 1].0,
        });
        put(part_key, value)?;
    }
    graves.kills = kills.into_iter().collect();
    graves.kills.sort_unstable();
    Ok(graves)
}

/// Reads a part of a run of tombstones that the directory lists.
pub(super) fn read_tombstones(
    kv: &dyn KvRead,
    key: &SlotKey,
    run: u64,
    part: usize,
    entry: &TombstonesEntry,
) -> Result<Vec<Tombstone>, PagesError> {
    let what = || format!("tombstones {part} of run {run}, topic {}, {:?} slot {}", key.topic.0, key.level, key.start);
    let part_key = key.key(TOMBSTONES, run, u32::try_from(part).expect("a run has few parts"));
    let value = kv.value(&part_key)?.ok_or(Malformed("missing")).map_err(PagesError::damaged(what()))?;
    let read = || {
        let mut input = Reader::new(unseal(&part_key, &value)?);
        if seal_of(&value) != entry.sum || input.count()? != entry.count as usize {
            return Err(Malformed("not the part that the directory lists"));
        }
        let mut before = key.start;
        let mut tombstones = Vec::with_capacity(entry.count as usize);
        for _ in 0..entry.count {
            before = before.checked_add(input.u64()?).ok_or(Malformed("an instant over 64 bits"))?;
            let arrival = input.u64()?;
            let killed = run.checked_sub(input.u64()?).ok_or(Malformed("a run below zero"))?;
            tombstones.push(((Timestamp::from_millis(before), arrival), killed));
        }
        input.finish()?;
        Ok(tombstones)
    };
    read().map_err(PagesError::damaged(what()))
}

/// A part of a run of tombstones of a slot.
type PartName = (SlotKey, u64, usize);

/// Tombstones that were read. Parts never change, so they stay valid; too many are let go.
#[derive(Default)]
pub(super) struct TombstoneCache {
    parts: HashMap<PartName, Arc<[Tombstone]>>,
    count: usize,
}

/// About 6 MB.
const MAX_CACHED: usize = 256 << 10;

impl TombstoneCache {
    pub(super) fn part(
        &mut self,
        kv: &dyn KvRead,
        name: PartName,
        entry: &TombstonesEntry,
    ) -> Result<Arc<[Tombstone]>, PagesError> {
        if let Some(part) = self.parts.get(&name) {
            return Ok(Arc::clone(part));
        }
        let (key, run, part) = name;
        let read: Arc<[Tombstone]> = read_tombstones(kv, &key, run, part, entry)?.into();
        if self.count + read.len() > MAX_CACHED {
            (self.parts, self.count) = (HashMap::new(), 0);
        }
        self.count += read.len();
        self.parts.insert(name, Arc::clone(&read));
        Ok(read)
    }

    /// The messages of a run between two places, inclusive, that are gone; sorted.
    pub(super) fn dead_between(
        &mut self,
        kv: &dyn KvRead,
        (key, slot): (&SlotKey, &Slot),
        run: u64,
        (first, last): (Order, Order),
    ) -> Result<Vec<Order>, PagesError> {
        let mut dead = Vec::new();
        if slot.runs[run].dead == 0 {
            return Ok(dead);
        }
        for (&by, graves) in slot.runs.after(run).filter_map(|(by, run)| Some((by, run.graves.as_ref()?))) {
            if !graves.kills_in(run) {
                continue;
            }
            let from = graves.parts.partition_point(|part| part.last < first);
            for (n, entry) in graves.parts.iter().enumerate().skip(from).take_while(|(_, part)| part.first <= last) {
                let part = self.part(kv, (*key, by, n), entry)?;
                let start = part.partition_point(|&(at, _)| at < first);
                let within = part[start..].iter().take_while(|&&(at, _)| at <= last);
                dead.extend(within.filter(|&&(_, killed)| killed == run).map(|&(at, _)| at));
            }
        }
        dead.sort_unstable();
        Ok(dead)
    }
}
