//! The digest of everything in the page store that lists or counts: topics, totals, directory, indexes.
//!
//! A checksum shows that a value is damaged, not that one is missing or comes from another time. So the state
//! of the pages holds a digest of all such values together; pages and runs are named by them, with checksums.

use std::collections::HashMap;
use std::ops::ControlFlow;

use crate::queue::change::{DedupRecord, Finished};

use super::codec::{Malformed, seal_of};
use super::keys::{DIRECTORY, INDEX_LIST, TOMBSTONES_LIST, TOPIC, TOTALS};
use super::kv::{Batch, KvRead};
use super::page::PagesError;
use super::runs::Remembered;

const KINDS: [u8; 7] =
    [TOPIC, TOTALS, DIRECTORY, TOMBSTONES_LIST, Finished::INDEX_KIND, DedupRecord::INDEX_KIND, INDEX_LIST];

/// The checksums of all listed values, and the digest of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Listing {
    sums: HashMap<Vec<u8>, u32>,
    /// The sum of a hash of each checksum, so that it follows changes without the order mattering.
    pub(super) digest: u64,
}

impl Listing {
    /// Reads the listing and compares it with the digest that was stored with it.
    pub(super) fn load(kv: &dyn KvRead, digest: u64) -> Result<Self, PagesError> {
        let mut listing = Self::default();
        for kind in KINDS {
            kv.scan(&[kind], &mut |key, value| {
                listing.set(key, Some(seal_of(value)));
                ControlFlow::Continue(())
            })?;
        }
        if listing.digest != digest {
            let problem = Malformed("an entry is missing or from another time");
            return Err(PagesError::damaged("the listing of the pages")(problem));
        }
        Ok(listing)
    }

    /// Follows a batch that is about to be applied.
    pub(super) fn follow(&mut self, batch: &Batch) {
        for (key, value) in batch.items() {
            if key.first().is_some_and(|kind| KINDS.contains(kind)) {
                self.set(key, value.as_deref().map(seal_of));
            }
        }
    }

    fn set(&mut self, key: &[u8], sum: Option<u32>) {
        let before = match sum {
            Some(sum) => self.sums.insert(key.to_vec(), sum),
            None => self.sums.remove(key),
        };
        self.digest = self.digest.wrapping_sub(before.map_or(0, hash)).wrapping_add(sum.map_or(0, hash));
    }
}

/// The checksum covers the key, so it stands for the whole entry. Never 0.
fn hash(sum: u32) -> u64 {
    let mut mixed = u64::from(sum).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) | 1
}
