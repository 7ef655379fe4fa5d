//! Tests of the store as a whole, over the lossy doubles and over real files.

#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "numbers of tests are small")]

mod backup;
mod check;
mod crash;
mod damage;
mod files;
mod index;
mod model;
mod pages;
mod quarantine;
mod round_trips;
mod run;
mod samples;
mod slots;

use super::doubles::{LossyKv, LossyLog};
use super::{Identity, OpenError, Opened, StoreOptions, open_with};
use model::Model;

/// Simulated media, which outlive the stores opened on them.
#[derive(Clone, Default)]
struct Media {
    log: LossyLog,
    kv: LossyKv,
}

/// Sizes so small that every boundary is met in a few commits.
const TINY: StoreOptions = StoreOptions {
    segment_bytes: 4096,
    spare_segments: 1,
    generation_bytes: 6_000,
    carry_horizon_ms: 5_000,
    carry_bytes_per_commit: 40,
    cache_bytes: 1 << 20,
    min_free_bytes: 0,
};

impl Media {
    fn open(&self, options: StoreOptions) -> Result<(Opened, Model), OpenError> {
        let identity = Identity { store: [7; 16], secret: [9; 16] };
        let mut all = Vec::new();
        let (log, kv) = (Box::new(self.log.clone()), Box::new(self.kv.clone()));
        let opened = open_with(log, kv, identity, options, &mut |restored| all.push(restored))?;
        let model = pages::restore(&opened, all)?;
        Ok((opened, model))
    }

    fn copy(&self) -> Self {
        Self { log: self.log.copy(), kv: self.kv.copy() }
    }
}
