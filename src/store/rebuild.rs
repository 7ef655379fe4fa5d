//! Compacting a store while no broker runs: what lives is copied into a fresh page database, which then takes the
//! place of the old one.
//!
//! Compaction beside a broker gives pages back to the database; only a new database gives the disk back. The copy
//! lies in `pages.new` until it is complete and durable, then the two directories change places in one step of the
//! file system, and what is in `pages.new` then is removed. So `pages` is complete at every moment, and `pages.new` is
//! of no use whenever a store is opened: a copy that was not finished, or the old database.

use std::fs;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::crash::crash_point;
use crate::queue::change::{DedupRecord, Finished};
use crate::queue::message::TopicId;

use super::codec::{Malformed, seal};
use super::folder::Folder;
use super::home::{Home, free_bytes, sync_directory};
use super::keys::{INDEX, INDEX_LIST, MAX_VALUE_BYTES, QUARANTINE, STATE, SlotKey, TOPIC, TOTALS};
use super::kv::{Batch, Kv, KvRead};
use super::listing::Listing;
use super::open_error::OpenError;
use super::page::{Packer, PagesError};
use super::pages_sled::{DEFAULT_CACHE_BYTES, SledOpenError, SledPages};
use super::recover::load_folder;
use super::runs::Remembered;
use super::slot::Slot;
use super::state::PagesState;
use super::tombstones::{Graves, TombstoneCache};
use super::walk::{NONE_AVOIDED, Step, Stock, Walk};

/// What a compaction did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// Size of the old database on disk, bytes.
    pub bytes_before: u64,
    /// Size of the new one.
    pub bytes_after: u64,
    /// Messages in its pages.
    pub messages: u64,
}

/// Kinds that are copied as they are.
const COPIED: [u8; 9] = [
    TOPIC,
    TOTALS,
    Finished::DATA_KIND,
    Finished::INDEX_KIND,
    DedupRecord::DATA_KIND,
    DedupRecord::INDEX_KIND,
    INDEX,
    INDEX_LIST,
    QUARANTINE,
];

/// About this many bytes are applied at once.
const WRITE_BYTES: usize = 512 << 10;

/// What the copy needs beside what is copied, bytes: the page store writes whole segments.
const SPARE_BYTES: u64 = 16 << 20;

/// Compacts the store in `directory`, which no broker may use. `watch` is told after each slot: how many of how many.
///
/// # Errors
/// [`OpenError`] if the store cannot be used, is damaged, or the disk has too little room; then it is as it was.
pub fn compact(directory: &Path, watch: &mut dyn FnMut(u64, u64)) -> Result<Compacted, OpenError> {
    let home = Home::open_existing(directory)?;
    let before = open(&home.pages)?;
    let state = PagesState::load(&before)?;
    let folder = load_folder(Box::new(before), &state, home.identity.store, None)?;
    let bytes_before = directory_bytes(&home.pages);
    check_room(directory, needed_bytes(&folder, bytes_before))?;
    let new = home.new_pages();
    fs::create_dir(&new).map_err(OpenError::io(format!("{} cannot be made", new.display())))?;
    crash_point!("rebuild.begins");
    let copied = copy(&folder, &new, watch);
    if copied.is_err() {
        // The room is given back at once; if that fails, the next start does it.
        let _left = fs::remove_dir_all(&new);
    }
    let messages = copied?;
    drop(folder);
    crash_point!("rebuild.copied");
    exchange(&home)?;
    crash_point!("rebuild.exchanged");
    let bytes_after = directory_bytes(&home.pages);
    home.remove_new_pages()?;
    crash_point!("rebuild.complete");
    Ok(Compacted { bytes_before, bytes_after, messages })
}

fn open(path: &Path) -> Result<SledPages, OpenError> {
    SledPages::open(path, DEFAULT_CACHE_BYTES).map_err(|error| match error {
        SledOpenError::Io { path, source } => OpenError::io(path.display().to_string())(source),
        SledOpenError::Refused(problem) => OpenError::PagesRefused { path: path.to_owned(), problem },
    })
}

/// Puts the new database into the place of the old one.
fn exchange(home: &Home) -> Result<(), OpenError> {
    let (pages, new) = (&home.pages, home.new_pages());
    sync_directory(&new)?;
    let parent = pages.parent().expect("the pages are in the data directory");
    sync_directory(parent)?;
    renameat_with(CWD, &new, CWD, pages, RenameFlags::EXCHANGE)
        .map_err(|error| OpenError::io("the file system cannot exchange two directories")(error.into()))?;
    crash_point!("rebuild.before_sync");
    sync_directory(parent)
}

/// The room for the copy, at most: it is not larger than the old database, nor than full pages.
fn needed_bytes(folder: &Folder, bytes_before: u64) -> u64 {
    let mut pages = folder.directory.slots().flat_map(|(_, slot)| slot.runs.values()).flat_map(|run| run.pages.iter());
    let has_chunks = pages.any(|page| page.chunked > 0 && !page.is_in_quarantine());
    let full = folder.directory.pages() as u64 * MAX_VALUE_BYTES as u64 * 3 / 2;
    if has_chunks { bytes_before } else { full.min(bytes_before) }.saturating_add(SPARE_BYTES)
}

fn check_room(path: &Path, needed: u64) -> Result<(), OpenError> {
    let free = free_bytes(path).map_err(OpenError::io(format!("the free space of {} is unknown", path.display())))?;
    if free < needed {
        return Err(OpenError::NoRoom { path: path.to_owned(), free, needed });
    }
    Ok(())
}

fn directory_bytes(path: &Path) -> u64 {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}

/// Copies what lives into a new database; gives the number of messages.
fn copy(folder: &Folder, to: &Path, watch: &mut dyn FnMut(u64, u64)) -> Result<u64, OpenError> {
    let mut target = Target { kv: Box::new(open(to)?), batch: Batch::default(), listing: Listing::default() };
    let messages = copy_all(folder, &mut target, watch)?;
    let state = PagesState { run: folder.state.run + 1, listing: target.listing.digest, ..folder.state };
    target.batch.put(vec![STATE], seal(&[STATE], &state.encode()));
    target.apply()?;
    crash_point!("rebuild.stated");
    target.kv.make_durable().map_err(PagesError::from)?;
    Ok(messages)
}

fn copy_all(folder: &Folder, target: &mut Target, watch: &mut dyn FnMut(u64, u64)) -> Result<u64, PagesError> {
    let run = folder.state.run + 1;
    let kv = &*folder.kv;
    for kind in COPIED {
        let mut failed = Ok(());
        kv.scan(&[kind], &mut |key, value| {
            if is_of_deleted(folder, key) {
                return std::ops::ControlFlow::Continue(());
            }
            failed = target.put(key.to_vec(), value.to_vec());
            if failed.is_ok() { std::ops::ControlFlow::Continue(()) } else { std::ops::ControlFlow::Break(()) }
        })?;
        failed?;
    }
    let slots = folder.directory.slots().count() as u64;
    let (mut messages, mut done) = (0, 0);
    for (key, slot) in folder.directory.slots().filter(|(key, _)| !folder.doomed.contains_key(&key.topic)) {
        messages += copy_slot(folder, key, slot, run, target)?;
        done += 1;
        watch(done, slots);
    }
    target.apply()?;
    Ok(messages)
}

/// True if a key belongs to a deleted topic: all kinds that are copied have the topic behind the kind.
fn is_of_deleted(folder: &Folder, key: &[u8]) -> bool {
    let topic = key[1..].first_chunk().map(|topic| TopicId(u32::from_be_bytes(*topic)));
    topic.is_some_and(|topic| folder.doomed.contains_key(&topic))
}

/// Copies what lives in a slot as one run.
fn copy_slot(folder: &Folder, key: &SlotKey, slot: &Slot, run: u64, target: &mut Target) -> Result<u64, PagesError> {
    let kv = &*folder.kv;
    let mut tombstones = TombstoneCache::default();
    let directory = &folder.directory;
    let mut stock = Stock { kv, directory, tombstones: &mut tombstones, avoided: &NONE_AVOIDED };
    let runs: Vec<u64> = slot.runs.iter().map(|(&run, _)| run).collect();
    let shared = directory.slot(key).expect("it was just seen");
    let mut walk = Walk::of_runs(*key, shared, &runs);
    let mut packer = Packer::new(*key, run);
    let (mut count, mut budget) = (0, usize::MAX);
    loop {
        match walk.step(&mut stock, &mut budget)? {
            Step::Record(_, record) => {
                for chunk in record.chunk_keys(key.topic) {
                    let value = kv.value(&chunk)?.ok_or(Malformed("a chunk is missing"));
                    let value = value.map_err(PagesError::damaged(format!("message {} in {key:?}", record.order.1)))?;
                    target.put(chunk, value)?;
                }
                packer.add_record(&record, &mut |key, value| target.put(key, value))?;
                count += 1;
            }
            Step::Damaged(_, problem) => return Err(problem),
            Step::Exhausted | Step::End => break,
        }
    }
    let pages = packer.finish(&mut |key, value| target.put(key, value))?;
    if count != slot.live {
        let problem = Malformed("its tombstones do not match its pages");
        return Err(PagesError::damaged(format!("slot {key:?}"))(problem));
    }
    if !pages.is_empty() {
        let mut list = Batch::default();
        Slot::default().list(key, run, pages, Graves::default(), &mut list);
        for (key, value) in list.into_items() {
            target.put(key, value.expect("a fresh slot removes nothing"))?;
        }
    }
    Ok(count)
}

/// The new database.
struct Target {
    kv: Box<dyn Kv>,
    batch: Batch,
    listing: Listing,
}

impl Target {
    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<(), PagesError> {
        self.batch.put(key, value);
        if self.batch.bytes() >= WRITE_BYTES { self.apply() } else { Ok(()) }
    }

    fn apply(&mut self) -> Result<(), PagesError> {
        let batch = std::mem::take(&mut self.batch);
        let kv: &dyn KvRead = &*self.kv;
        self.listing.follow(kv, &batch)?;
        self.kv.apply(batch)?;
        crash_point!("rebuild.after_batch");
        Ok(())
    }
}
