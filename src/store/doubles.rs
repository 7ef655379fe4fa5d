//! Doubles of the two traits that lose what was not synced, as a power cut does, and fail when told to.
//!
//! A double is a handle on a simulated medium; the medium outlives the store that uses it. After
//! [`LossyLog::crash`] and [`LossyKv::crash`] a new store opened on the same media sees what a machine would
//! see after the cut: for the log, any subset of the sectors written since the last sync; for the key-value
//! store, the state after some of the batches applied since. The same seed gives the same loss.

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard};

use super::kv::{Batch, Kv, KvError, KvRead, Visit};
use super::log::{SegmentFile, SegmentLog};

/// A small generator of the splitmix64 family; good enough to choose what is lost.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// A generator that always gives the same numbers for the same seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, of 64 random bits.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }
}

/// Calls counted since the medium was made, and the call that is to fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Writes (log) or batches applied (key-value store).
    pub writes: u64,
    /// Syncs (log) or durability barriers (key-value store).
    pub syncs: u64,
    /// Writes and syncs until the one that fails, and all after it; `None`: none fails.
    pub fail_after: Option<u64>,
}

impl Calls {
    fn proceed(&mut self) -> Result<(), &'static str> {
        match &mut self.fail_after {
            Some(0) => Err("injected failure"),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

const SECTOR: usize = 512;

#[derive(Default)]
struct LogMedium {
    durable: BTreeMap<SegmentFile, Vec<u8>>,
    present: BTreeMap<SegmentFile, Vec<u8>>,
    unsynced: Vec<(SegmentFile, usize, usize)>,
    calls: Calls,
}

/// A log that loses what was not synced.
#[derive(Clone, Default)]
pub struct LossyLog(Arc<Mutex<LogMedium>>);

impl LossyLog {
    /// The calls so far.
    #[must_use]
    pub fn calls(&self) -> Calls {
        self.medium().calls
    }

    /// Lets the next `calls` writes and syncs succeed and all later ones fail; `None`: none fails.
    pub fn fail_after(&self, calls: Option<u64>) {
        self.medium().calls.fail_after = calls;
    }

    /// Cuts the power: each sector written since the last sync of its file is kept or lost by chance.
    pub fn crash(&self, chance: &mut Chance) {
        let medium = &mut *self.medium();
        let keep_nothing = chance.below(4) == 0;
        for (file, offset, len) in std::mem::take(&mut medium.unsynced) {
            let (Some(from), Some(to)) = (medium.present.get(&file), medium.durable.get_mut(&file)) else { continue };
            let (mut at, end) = (offset, offset + len);
            while at < end {
                let next = ((at / SECTOR + 1) * SECTOR).min(end);
                if !keep_nothing && chance.below(2) == 0 {
                    to[at..next].copy_from_slice(&from[at..next]);
                }
                at = next;
            }
        }
        medium.present = medium.durable.clone();
        medium.calls.fail_after = None;
    }

    /// Changes a byte of what is durable.
    pub fn damage(&self, file: SegmentFile, offset: usize, xor: u8) {
        let medium = &mut *self.medium();
        for image in [&mut medium.durable, &mut medium.present] {
            if let Some(byte) = image.get_mut(&file).and_then(|bytes| bytes.get_mut(offset)) {
                *byte ^= xor;
            }
        }
    }

    /// A medium of its own with the same durable contents.
    #[must_use]
    pub fn copy(&self) -> Self {
        let durable = self.medium().durable.clone();
        Self(Arc::new(Mutex::new(LogMedium { present: durable.clone(), durable, ..LogMedium::default() })))
    }

    fn medium(&self) -> MutexGuard<'_, LogMedium> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl SegmentLog for LossyLog {
    fn list(&self) -> Vec<(SegmentFile, u64)> {
        self.medium().present.iter().map(|(&file, bytes)| (file, bytes.len() as u64)).collect()
    }

    fn create(&mut self, bytes: u64) -> io::Result<SegmentFile> {
        let medium = &mut *self.medium();
        medium.calls.proceed().map_err(io::Error::other)?;
        let file = medium.present.last_key_value().map_or(1, |(file, _)| file + 1);
        let zeros = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
        medium.durable.insert(file, zeros.clone());
        medium.present.insert(file, zeros);
        Ok(file)
    }

    fn read(&self, file: SegmentFile) -> io::Result<Vec<u8>> {
        self.medium().present.get(&file).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn write(&mut self, file: SegmentFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let medium = &mut *self.medium();
        medium.calls.writes += 1;
        let failed = medium.calls.proceed();
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        let image = medium.present.get_mut(&file).ok_or(io::ErrorKind::NotFound)?;
        // A failing write leaves half of itself behind.
        let len = if failed.is_err() { bytes.len() / 2 } else { bytes.len() };
        image[offset..offset + len].copy_from_slice(&bytes[..len]);
        medium.unsynced.push((file, offset, len));
        failed.map_err(io::Error::other)
    }

    fn sync(&mut self, file: SegmentFile) -> io::Result<()> {
        let medium = &mut *self.medium();
        medium.calls.syncs += 1;
        medium.calls.proceed().map_err(io::Error::other)?;
        let image = medium.present.get(&file).ok_or(io::ErrorKind::NotFound)?.clone();
        medium.durable.insert(file, image);
        medium.unsynced.retain(|&(written, ..)| written != file);
        Ok(())
    }

    fn remove(&mut self, file: SegmentFile) -> io::Result<()> {
        let medium = &mut *self.medium();
        medium.calls.proceed().map_err(io::Error::other)?;
        medium.present.remove(&file);
        medium.durable.remove(&file);
        Ok(())
    }

    fn name(&self, file: SegmentFile) -> String {
        format!("segment {file}")
    }
}

type Image = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Default)]
struct KvMedium {
    durable: Image,
    present: Image,
    unsynced: Vec<Batch>,
    calls: Calls,
    reads: u64,
    /// What every read fails with.
    reading: Option<KvError>,
}

/// A key-value store that loses what was not made durable.
#[derive(Clone, Default)]
pub struct LossyKv(Arc<Mutex<KvMedium>>);

impl LossyKv {
    /// The calls so far.
    #[must_use]
    pub fn calls(&self) -> Calls {
        self.medium().calls
    }

    /// Values that were asked for so far.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.medium().reads
    }

    /// Lets the next `calls` batches and barriers succeed and all later ones fail; `None`: none fails.
    pub fn fail_after(&self, calls: Option<u64>) {
        self.medium().calls.fail_after = calls;
    }

    /// Lets every read fail from now on, or none any more.
    pub fn fail_reads(&self, error: Option<KvError>) {
        self.medium().reading = error;
    }

    /// Cuts the power: some of the batches since the last barrier survive, in their order.
    pub fn crash(&self, chance: &mut Chance) {
        let medium = &mut *self.medium();
        let unsynced = std::mem::take(&mut medium.unsynced);
        let kept = chance.below(unsynced.len() as u64 + 1);
        for batch in unsynced.into_iter().take(usize::try_from(kept).expect("fits a length")) {
            apply(&mut medium.durable, batch);
        }
        medium.present = medium.durable.clone();
        medium.calls.fail_after = None;
    }

    /// A medium of its own with the same durable contents: a way to go back in time.
    #[must_use]
    pub fn copy(&self) -> Self {
        let durable = self.medium().durable.clone();
        Self(Arc::new(Mutex::new(KvMedium { present: durable.clone(), durable, ..KvMedium::default() })))
    }

    /// The keys that are there, durable or not.
    #[must_use]
    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.medium().present.keys().cloned().collect()
    }

    /// Changes a byte of the durable value of `key`.
    pub fn damage(&self, key: &[u8], offset: usize, xor: u8) {
        let medium = &mut *self.medium();
        for image in [&mut medium.durable, &mut medium.present] {
            if let Some(byte) = image.get_mut(key).and_then(|bytes| bytes.get_mut(offset)) {
                *byte ^= xor;
            }
        }
    }

    /// Loses a key.
    pub fn lose(&self, key: &[u8]) {
        let medium = &mut *self.medium();
        medium.durable.remove(key);
        medium.present.remove(key);
    }

    fn medium(&self) -> MutexGuard<'_, KvMedium> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

fn apply(image: &mut Image, batch: Batch) {
    for (key, value) in batch.into_items() {
        match value {
            Some(value) => image.insert(key, value),
            None => image.remove(&key),
        };
    }
}

impl KvRead for LossyKv {
    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        let medium = &mut *self.medium();
        medium.reads += 1;
        medium.reading.clone().map_or(Ok(()), Err)?;
        Ok(medium.present.get(key).cloned())
    }

    fn scan(&self, prefix: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        let medium = self.medium();
        medium.reading.clone().map_or(Ok(()), Err)?;
        for (key, value) in medium.present.range(prefix.to_vec()..) {
            if !key.starts_with(prefix) || visit(key, value) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }
}

impl Kv for LossyKv {
    fn reader(&self) -> Box<dyn KvRead> {
        Box::new(self.clone())
    }

    fn apply(&mut self, batch: Batch) -> Result<(), KvError> {
        let medium = &mut *self.medium();
        medium.calls.writes += 1;
        medium.calls.proceed().map_err(|text| KvError::Failed(text.to_owned()))?;
        medium.unsynced.push(batch.clone());
        apply(&mut medium.present, batch);
        Ok(())
    }

    fn make_durable(&mut self) -> Result<(), KvError> {
        let medium = &mut *self.medium();
        medium.calls.syncs += 1;
        medium.calls.proceed().map_err(|text| KvError::Failed(text.to_owned()))?;
        medium.durable = medium.present.clone();
        medium.unsynced.clear();
        Ok(())
    }
}
