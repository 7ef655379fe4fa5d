//! Sizes of the store. The defaults are for production; tests make everything small.

/// Sizes and horizons of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Size of a journal segment file, bytes. Default 4 MiB.
    pub segment_bytes: u64,
    /// Blank segments that are ready after opening. Default 4.
    pub spare_segments: usize,
    /// Journal bytes after which a generation is folded. Default 16 MiB.
    pub generation_bytes: u64,
    /// Messages due within this span of a fold stay in the journal, milliseconds. Default 60 s. They take at
    /// most a quarter of a generation: with more of them the span is shorter for that fold.
    pub carry_horizon_ms: u64,
    /// While a fold runs, each commit carries about this many bytes of them. Default 64 KiB.
    pub carry_bytes_per_commit: usize,
    /// Cache of the page store, bytes. Default 32 MiB.
    pub cache_bytes: u64,
    /// Free space below which the store does not open, bytes: a disk that runs full while the page store
    /// opens can keep it from ever opening again. Default 64 MiB.
    pub min_free_bytes: u64,
}

impl StoreOptions {
    /// Smallest generation, bytes.
    pub const MIN_GENERATION_BYTES: u64 = 256 << 10;
    /// Largest generation, bytes.
    pub const MAX_GENERATION_BYTES: u64 = 1 << 30;
    /// Smallest cache of the page store, bytes.
    pub const MIN_CACHE_BYTES: u64 = 1 << 20;
    /// Largest cache of the page store, bytes.
    pub const MAX_CACHE_BYTES: u64 = 64 << 30;

    /// The same with generations of that size, and segments that fit it.
    #[must_use]
    pub fn with_generation(self, generation_bytes: u64) -> Self {
        Self { generation_bytes, segment_bytes: (generation_bytes / 4).clamp(256 << 10, 8 << 20), ..self }
    }
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            segment_bytes: 4 << 20,
            spare_segments: 4,
            generation_bytes: 16 << 20,
            carry_horizon_ms: 60_000,
            carry_bytes_per_commit: 64 << 10,
            cache_bytes: super::pages_sled::DEFAULT_CACHE_BYTES,
            min_free_bytes: 64 << 20,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_generation_named_by_a_setting_is_the_default() {
        let options = StoreOptions::default();
        assert_eq!(options.with_generation(options.generation_bytes), options);
    }
}
