//! Numbers without visible order, the same for the same seed: loads that can be repeated.

/// A number without any visible order, the same for the same input.
pub(super) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// A sequence of such numbers.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub(super) fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// A number below `end`, which is not 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = mix(self.0);
        self.0 % end
    }

    /// True in so many of 100 cases.
    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
