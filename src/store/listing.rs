//! The digest of everything in the page store that lists or counts: topics, totals, directory, indexes.
//!
//! A checksum shows that a value is damaged, not that one is missing or comes from another time. So the state
//! of the pages holds a digest of all such values together; pages and runs are named by them, with checksums.

use std::collections::HashMap;
use std::ops::ControlFlow;

use crate::queue::change::{DedupRecord, Finished};

use super::codec::{Malformed, seal_of, unseal};
use super::keys::{DELETED, DIRECTORY, INDEX_LIST, TOMBSTONES_LIST, TOPIC, TOTALS};
use super::kv::{Batch, KvRead};
use super::page::PagesError;
use super::runs::Remembered;

const KINDS: [u8; 8] =
    [TOPIC, TOTALS, DIRECTORY, TOMBSTONES_LIST, Finished::INDEX_KIND, DedupRecord::INDEX_KIND, INDEX_LIST, DELETED];

/// The digest of all listed values: the sum of a hash of each checksum, so that it follows changes without the
/// order mattering and without the values being kept in memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Listing {
    pub(super) digest: u64,
}

impl Listing {
    /// Reads the listing and compares it with the digest that was stored with it.
    pub(super) fn load(kv: &dyn KvRead, digest: u64) -> Result<Self, PagesError> {
        let mut listing = Self::default();
        for kind in KINDS {
            kv.scan(&[kind], &mut |_, value| {
                listing.digest = listing.digest.wrapping_add(hash(seal_of(value)));
                ControlFlow::Continue(())
            })?;
        }
        if listing.digest != digest {
            let problem = Malformed("an entry is missing or from another time");
            return Err(PagesError::damaged("the listing of the pages")(problem));
        }
        Ok(listing)
    }

    /// Follows a batch that is about to be applied; what it replaces is read.
    pub(super) fn follow(&mut self, kv: &dyn KvRead, batch: &Batch) -> Result<(), PagesError> {
        let listed = batch.items().iter().filter(|(key, _)| key.first().is_some_and(|kind| KINDS.contains(kind)));
        // The last item of a key counts.
        let after: HashMap<&[u8], Option<&[u8]>> =
            listed.map(|(key, value)| (key.as_slice(), value.as_deref())).collect();
        for (key, value) in after {
            if let Some(before) = kv.value(key)? {
                unseal(key, &before).map_err(PagesError::damaged(format!("listed value {key:02x?}")))?;
                self.digest = self.digest.wrapping_sub(hash(seal_of(&before)));
            }
            self.digest = self.digest.wrapping_add(value.map_or(0, |value| hash(seal_of(value))));
        }
        Ok(())
    }
}

/// The checksum covers the key, so it stands for the whole entry. Never 0.
fn hash(sum: u32) -> u64 {
    let mut mixed = u64::from(sum).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) | 1
}
