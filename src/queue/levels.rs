//! Level arithmetic of the timing wheel: which level and slot an instant belongs to, seen from another.
//!
//! Each level has 64 slots and each slot of a level spans all 64 slots of the level below, so a level is six
//! bits of the instant. An instant belongs to the level of the highest bit in which it differs from the
//! wheel's present instant. Eleven levels cover all 64 bits: there is no instant that the wheel cannot hold.

/// Slots of a level.
pub(super) const SLOTS: usize = 1 << BITS;
/// Levels that cover 64 bits.
pub(super) const LEVELS: usize = 64_usize.div_ceil(BITS as usize);
const BITS: u32 = 6;

/// The level of `instant` in a wheel that stands at `present`; `instant` is later than `present`.
pub(super) fn level_of(present: u64, instant: u64) -> usize {
    let differing = (present ^ instant) | (SLOTS as u64 - 1);
    (differing.ilog2() / BITS) as usize
}

/// The slot of `instant` within `level`.
pub(super) fn slot_of(instant: u64, level: usize) -> usize {
    let shifted = instant >> shift(level);
    usize::try_from(shifted % SLOTS as u64).expect("a remainder of 64 fits")
}

/// The first instant of `slot` of `level`, where all higher bits are those of `present`.
pub(super) fn slot_start(present: u64, level: usize, slot: usize) -> u64 {
    let above = shift(level) + BITS;
    let higher = if above >= 64 { 0 } else { present >> above << above };
    higher | ((slot as u64) << shift(level))
}

/// The first instant after `slot` of `level`; the last instant of all stands for what comes after it.
pub(super) fn slot_end(present: u64, level: usize, slot: usize) -> u64 {
    slot_start(present, level, slot).saturating_add(1 << shift(level))
}

fn shift(level: usize) -> u32 {
    u32::try_from(level).expect("there are eleven levels") * BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_belongs_to_the_level_of_the_highest_differing_digit() {
        let cases = [(0, 1, 0), (0, 63, 0), (0, 64, 1), (63, 64, 1), (64, 127, 0), (0, 4_096, 2), (4_095, 4_096, 2)];
        for (present, instant, level) in cases {
            assert_eq!(level_of(present, instant), level, "{instant} seen from {present}");
        }
        assert_eq!(level_of(0, u64::MAX), LEVELS - 1);
    }

    #[test]
    fn the_start_of_a_slot_is_not_after_any_instant_in_it() {
        for present in [0, 1, 63, 64, 1_000_000, u64::MAX / 3] {
            for distance in [1, 2, 63, 64, 65, 4_095, 4_096, 1 << 35, 1 << 60] {
                let instant = present + distance;
                let level = level_of(present, instant);
                let start = slot_start(present, level, slot_of(instant, level));
                assert!(start <= instant && start > present || level == 0 && start == instant, "{present}+{distance}");
            }
        }
    }
}
