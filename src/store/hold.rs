//! Holding the pages of one fold: what later folds would remove stays readable until a backup has read it.
//!
//! Keys of pages, chunks, tombstones and of what is remembered carry the number of their run and are never written
//! twice. So to hold a fold it is enough not to remove: the removals of later folds are put aside, as *intents*, in
//! the same batch that stops listing what they name. When the hold is over they are done; if the process ends before,
//! the next start does them, as it does with what an unfinished fold has written. Nothing is compacted meanwhile.
//!
//! A backup that is read too slowly must not keep the disk from being given back: above [`MAX_WITHHELD`] removals the
//! hold is revoked, and the backup fails.

use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::queue::change::{DedupRecord, Finished};

use super::codec::{Malformed, Reader, put_bytes, seal, unseal};
use super::folder::Folder;
use super::keys::{CHUNK, MAX_VALUE_BYTES, PAGE, TOMBSTONES, intent_key};
use super::kv::Batch;
use super::page::PagesError;
use super::runs::Remembered;

/// Most removals that are put aside, each of a value of up to 6 KiB: about 2 GB of disk at the most.
pub(super) const MAX_WITHHELD: usize = 400_000;

/// Kinds that a backup reads while it runs. All else it has in memory from the beginning.
const HELD: [u8; 5] = [PAGE, CHUNK, TOMBSTONES, Finished::DATA_KIND, DedupRecord::DATA_KIND];

/// Intents of removals have parts from here on; those of what a run writes are numbered from 0.
const FIRST_PART: u32 = 1 << 31;

/// Keeps what is held. Dropping the last one ends the hold.
#[derive(Debug, Default)]
pub(super) struct Hold {
    is_revoked: AtomicBool,
}

impl Hold {
    /// True if the pages have gone on without this hold.
    pub(super) fn is_revoked(&self) -> bool {
        self.is_revoked.load(Ordering::SeqCst)
    }
}

/// What the folder knows of a hold.
#[derive(Debug, Default)]
pub(super) struct Held {
    hold: Weak<Hold>,
    /// Keys of the intents, and how many removals they hold.
    intents: Vec<Vec<u8>>,
    keys: usize,
    max_keys: usize,
}

impl Folder {
    /// Begins a hold of what the pages list now.
    pub(super) fn hold(&mut self) -> Result<Arc<Hold>, PagesError> {
        self.is_held()?;
        if let Some(hold) = self.held.hold.upgrade() {
            return Ok(hold);
        }
        let hold = Arc::new(Hold::default());
        self.held = Held { hold: Arc::downgrade(&hold), max_keys: self.max_withheld, ..Held::default() };
        Ok(hold)
    }

    /// True while a hold lasts. Does what was put aside for one that is over.
    pub(super) fn is_held(&mut self) -> Result<bool, PagesError> {
        if let Some(hold) = self.held.hold.upgrade() {
            if self.held.keys <= self.held.max_keys {
                return Ok(true);
            }
            hold.is_revoked.store(true, Ordering::SeqCst);
        }
        let held = std::mem::take(&mut self.held);
        for intent in held.intents {
            self.remove_by(intent)?;
        }
        Ok(false)
    }

    /// The batch that ends the run `run`, with the removals that must wait put aside.
    pub(super) fn withhold(&mut self, last: Batch, run: u64) -> Result<Batch, PagesError> {
        if !self.is_held()? {
            return Ok(last);
        }
        let mut kept = Batch::default();
        let mut intents = Intents { run, part: FIRST_PART, payload: Vec::new(), keys: Vec::new() };
        for (key, value) in last.into_items() {
            match value {
                Some(value) => kept.put(key, value),
                None if key.first().is_some_and(|kind| HELD.contains(kind)) => {
                    put_bytes(&mut intents.payload, &key);
                    self.held.keys += 1;
                    if intents.payload.len() > MAX_VALUE_BYTES - 64 {
                        intents.close(&mut kept);
                    }
                }
                None => kept.remove(key),
            }
        }
        intents.close(&mut kept);
        self.held.intents.append(&mut intents.keys);
        Ok(kept)
    }

    /// Does the removals of an intent, and removes it.
    fn remove_by(&mut self, intent: Vec<u8>) -> Result<(), PagesError> {
        let Some(value) = self.kv.value(&intent)? else { return Ok(()) };
        let mut batch = Batch::default();
        let mut read = || {
            let mut input = Reader::new(unseal(&intent, &value)?);
            while !input.is_empty() {
                batch.remove(input.bytes()?.to_vec());
            }
            Ok::<_, Malformed>(())
        };
        read().map_err(PagesError::damaged("what was kept for a backup"))?;
        batch.remove(intent);
        Ok(self.kv.apply(batch)?)
    }
}

/// Removals on their way into intents.
struct Intents {
    run: u64,
    part: u32,
    payload: Vec<u8>,
    keys: Vec<Vec<u8>>,
}

impl Intents {
    fn close(&mut self, batch: &mut Batch) {
        if self.payload.is_empty() {
            return;
        }
        let key = intent_key(self.run, self.part);
        batch.put(key.clone(), seal(&key, &self.payload));
        self.keys.push(key);
        self.payload.clear();
        self.part += 1;
    }
}
