//! Holding the pages of one fold: what later folds would remove stays readable until a backup has read it.
//!
//! Keys of pages, chunks, tombstones and of what is remembered carry the number of their run and are never written
//! twice. So to hold a fold it is enough not to remove: later folds leave what they make useless to its *intents*, which
//! are in the same batch that stops listing what they name. When the hold is over they are done; if the process ends
//! before, the next start does them, as always. Nothing is compacted or given back meanwhile.
//!
//! A backup that is read too slowly must not keep the disk from being given back: above [`MAX_WITHHELD`] removals the
//! hold is revoked, and the backup fails.

use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

use super::folder::Folder;
use super::page::PagesError;
use super::writer::{Useless, remove_by};

/// Most removals that are put aside, each of a value of up to 6 KiB: about 2 GB of disk at the most.
pub(super) const MAX_WITHHELD: usize = 400_000;

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
            remove_by(&mut *self.kv, &intent)?;
        }
        Ok(false)
    }

    /// True if a clean-up has to wait for a backup, or something that waited for one has still to be removed.
    pub fn is_held_up(&self) -> bool {
        self.held.hold.strong_count() > 0 || !self.held.intents.is_empty()
    }

    /// Removes what a run has made useless; while a hold lasts, that waits for its end.
    pub(super) fn remove_useless(&mut self, useless: Useless) -> Result<(), PagesError> {
        if !self.is_held()? {
            return useless.remove(&mut *self.kv);
        }
        let (intents, keys) = useless.into_intents();
        self.held.intents.extend(intents);
        self.held.keys += keys;
        Ok(())
    }
}
