//! The hierarchical timing wheel: entries by due instant, in whole milliseconds.
//!
//! Insert and remove take constant time whatever the distance; an entry is moved to a finer level at most ten
//! times on its way. Work is bounded: `advance` moves or fires a limited number of entries per call and goes on
//! where it stopped. Entries fire in the order of their due instants; those of one instant in any order, which
//! is why [`Wheel::fired_through`] tells up to where everything has fired.
//!
//! All occupied slots of a level lie after the wheel's present slot of that level, so the first occupied level
//! holds the next entry, and its first occupied slot is found with one bit operation.

use slab::Slab;

use super::levels::{LEVELS, SLOTS, level_of, slot_end, slot_of, slot_start};

/// Names an entry of the wheel until it fires or is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer(u32);

/// The end of a list.
const NONE: u32 = u32::MAX;
/// The list of entries whose instant has come.
const FIRING: usize = LEVELS * SLOTS;

#[derive(Clone, Copy, Debug)]
struct Node<T> {
    due: u64,
    item: T,
    list: u16,
    previous: u32,
    next: u32,
}

/// Entries of `T` by due instant.
#[derive(Debug)]
pub struct Wheel<T> {
    /// Where the wheel stands: nothing in a slot is due at or before it.
    present: u64,
    nodes: Slab<Node<T>>,
    /// Head of the list of each slot, level by level, and of the firing list.
    heads: Vec<u32>,
    /// One bit per occupied slot of a level.
    occupied: [u64; LEVELS],
    /// The slot that is being moved to finer levels; it must be emptied before anything else fires.
    cascading: Option<usize>,
}

impl<T: Copy> Wheel<T> {
    /// An empty wheel that stands at `present`.
    pub fn new(present: u64) -> Self {
        Self {
            present,
            nodes: Slab::new(),
            heads: vec![NONE; LEVELS * SLOTS + 1],
            occupied: [0; LEVELS],
            cascading: None,
        }
    }

    /// Entries in the wheel.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds an entry. If `due` has passed it fires at the next advance.
    pub fn insert(&mut self, due: u64, item: T) -> Timer {
        let index = self.nodes.insert(Node { due, item, list: 0, previous: NONE, next: NONE });
        let index = u32::try_from(index).expect("the wheel holds fewer than 2^32 entries");
        self.link(index);
        Timer(index)
    }

    /// Takes an entry out before it fires.
    pub fn remove(&mut self, timer: Timer) -> T {
        self.unlink(timer.0);
        self.nodes.remove(timer.0 as usize).item
    }

    /// Moves to `now` and calls `fire` with each entry whose instant has come, in the order of instants.
    /// Touches at most `limit` entries; returns true if more work is left at `now`.
    pub fn advance(&mut self, now: u64, limit: usize, mut fire: impl FnMut(T)) -> bool {
        let mut budget = limit;
        loop {
            if !self.finish_cascade(&mut budget) || !self.drain_firing(&mut budget, &mut fire) {
                return true;
            }
            match self.next_slot() {
                Some((list, start)) if start <= now => {
                    self.present = start;
                    self.cascading = Some(list);
                }
                _ => {
                    self.present = self.present.max(now);
                    return false;
                }
            }
        }
    }

    /// When to call `advance` next, `None` if the wheel is empty: exact if the next entry is due within the
    /// present 64 ms, otherwise an instant at or before it at which entries move to a finer level.
    pub fn next_wakeup(&self) -> Option<u64> {
        if self.heads[FIRING] != NONE || self.cascading.is_some() {
            return Some(self.present);
        }
        self.next_slot().map(|(_, start)| start)
    }

    /// Every entry due at or before this instant has fired.
    pub fn fired_through(&self) -> u64 {
        if self.heads[FIRING] != NONE || self.cascading.is_some() {
            self.present.saturating_sub(1)
        } else {
            self.present
        }
    }

    /// The entries that are due from `start` on, in groups of which each is due before the next. The first may hold
    /// earlier ones too. It costs what the entries of the groups that are taken cost.
    pub fn groups_from(&self, start: u64) -> impl Iterator<Item = Vec<(u64, T)>> {
        // What a cascade has begun to spread lies on finer levels, where nothing else is.
        let cascaded = self.cascading.map_or(0, |list| list / SLOTS);
        let end = self.cascading.map_or(self.present + 1, |list| slot_end(self.present, cascaded, list % SLOTS));
        let spread = (0..cascaded).flat_map(|level| self.slots(level)).map(|(list, _)| list);
        let first = [FIRING].into_iter().chain(self.cascading).chain(spread).collect();
        let is_cascading = move |list: usize| self.cascading == Some(list);
        let slots = (cascaded..LEVELS).flat_map(|level| self.slots(level));
        let slots = slots.filter(move |&(list, _)| !is_cascading(list)).map(|(list, end)| (vec![list], end));
        let groups = [(first, end)].into_iter().chain(slots).filter(move |&(_, end)| end > start || end == u64::MAX);
        groups.map(|(lists, _): (Vec<usize>, u64)| lists.into_iter().flat_map(|list| self.list(list)).collect())
    }

    /// The occupied slots of a level in order, each with the first instant after it.
    fn slots(&self, level: usize) -> impl Iterator<Item = (usize, u64)> {
        let is_occupied = move |&slot: &usize| self.occupied[level] & 1 << slot != 0;
        let slots = (0..SLOTS).filter(is_occupied);
        slots.map(move |slot| (level * SLOTS + slot, slot_end(self.present, level, slot)))
    }

    fn list(&self, list: usize) -> impl Iterator<Item = (u64, T)> {
        let node = |index: u32| (index != NONE).then(|| &self.nodes[index as usize]);
        let nodes = std::iter::successors(node(self.heads[list]), move |before| node(before.next));
        nodes.map(|node| (node.due, node.item))
    }

    /// Moves the entries of the cascading slot to finer levels; false if the budget ran out.
    fn finish_cascade(&mut self, budget: &mut usize) -> bool {
        let Some(list) = self.cascading else { return true };
        while self.heads[list] != NONE {
            if *budget == 0 {
                return false;
            }
            *budget -= 1;
            let index = self.heads[list];
            self.unlink(index);
            self.link(index);
        }
        self.cascading = None;
        true
    }

    fn drain_firing(&mut self, budget: &mut usize, fire: &mut impl FnMut(T)) -> bool {
        while self.heads[FIRING] != NONE {
            if *budget == 0 {
                return false;
            }
            *budget -= 1;
            let index = self.heads[FIRING];
            self.unlink(index);
            fire(self.nodes.remove(index as usize).item);
        }
        true
    }

    /// The occupied slot that comes next, and its first instant.
    fn next_slot(&self) -> Option<(usize, u64)> {
        let level = self.occupied.iter().position(|&bits| bits != 0)?;
        let slot = self.occupied[level].trailing_zeros() as usize;
        Some((level * SLOTS + slot, slot_start(self.present, level, slot)))
    }

    fn link(&mut self, index: u32) {
        let due = self.nodes[index as usize].due;
        let list = if due <= self.present {
            FIRING
        } else {
            let level = level_of(self.present, due);
            let slot = slot_of(due, level);
            self.occupied[level] |= 1 << slot;
            level * SLOTS + slot
        };
        let head = std::mem::replace(&mut self.heads[list], index);
        if head != NONE {
            self.nodes[head as usize].previous = index;
        }
        let node = &mut self.nodes[index as usize];
        node.list = u16::try_from(list).expect("there are 705 lists");
        node.previous = NONE;
        node.next = head;
    }

    fn unlink(&mut self, index: u32) {
        let Node { list, previous, next, .. } = self.nodes[index as usize];
        let list = list as usize;
        if previous == NONE {
            self.heads[list] = next;
        } else {
            self.nodes[previous as usize].next = next;
        }
        if next != NONE {
            self.nodes[next as usize].previous = previous;
        }
        if self.heads[list] == NONE && list != FIRING {
            self.occupied[list / SLOTS] &= !(1 << (list % SLOTS));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fires everything up to `now` in steps of `limit` and returns what fired, in order.
    fn fire(wheel: &mut Wheel<u64>, now: u64, limit: usize) -> Vec<u64> {
        let mut fired = Vec::new();
        while wheel.advance(now, limit, |item| fired.push(item)) {}
        fired
    }

    /// A distance of any magnitude below 2^`bits`.
    fn far(random: &mut fastrand::Rng, bits: u32) -> u64 {
        let magnitude = random.u32(0..bits);
        random.u64(0..1 << magnitude)
    }

    #[test]
    fn an_entry_at_any_slot_or_level_boundary_fires_once_and_never_early() {
        for start in [0, 1, 63, 64, 4_095, 1_790_000_000_000, (1 << 36) - 1] {
            for level in 0..6_u32 {
                for slots in [1_u64, 2, 63, 64] {
                    for edge in [-1_i64, 0, 1] {
                        let delay = (slots << (6 * level)).saturating_add_signed(edge);
                        let mut wheel = Wheel::new(start);
                        wheel.insert(start + delay, delay);
                        if delay > 0 {
                            let early = fire(&mut wheel, start + delay - 1, 7);
                            assert!(early.is_empty(), "early: {start} + {delay}");
                        }
                        assert_eq!(fire(&mut wheel, start + delay, 7), [delay], "{start} + {delay}");
                        assert!(wheel.is_empty());
                    }
                }
            }
        }
    }

    #[test]
    fn following_next_wakeup_reaches_each_entry_exactly_at_its_instant() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut wheel = Wheel::new(1_000);
        let mut dues: Vec<u64> = (0..2_000).map(|_| 1_001 + far(&mut random, 35)).collect();
        for &due in &dues {
            wheel.insert(due, due);
        }
        dues.sort_unstable();
        let (mut fired, mut steps) = (Vec::new(), 0);
        while let Some(wakeup) = wheel.next_wakeup() {
            steps += 1;
            wheel.advance(wakeup, usize::MAX, |due| {
                assert_eq!(due, wakeup, "fired off its instant");
                fired.push(due);
            });
        }
        assert_eq!(fired, dues);
        assert!(steps < 2_000 * LEVELS, "{steps} wake-ups");
    }

    #[test]
    fn random_inserts_removals_and_bounded_advances_match_a_sorted_list() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut now = random.u64(0..1 << 40);
            let mut wheel = Wheel::new(now);
            let mut model: Vec<(u64, u64, Timer)> = Vec::new();
            for step in 0..300_u64 {
                match random.u32(0..10) {
                    0..=4 => {
                        let due = now + far(&mut random, 34);
                        model.push((due, step, wheel.insert(due, step)));
                    }
                    5..=6 if !model.is_empty() => {
                        let (_, item, timer) = model.swap_remove(random.usize(0..model.len()));
                        assert_eq!(wheel.remove(timer), item, "seed {seed}");
                    }
                    _ => {
                        now += far(&mut random, 34);
                        let mut due_now: Vec<(u64, u64)> =
                            model.iter().filter(|m| m.0 <= now).map(|m| (m.0, m.1)).collect();
                        model.retain(|m| m.0 > now);
                        due_now.sort_unstable();
                        let mut fired: Vec<u64> = Vec::new();
                        while wheel.advance(now, random.usize(1..9), |item| fired.push(item)) {
                            let through = wheel.fired_through();
                            let missing = due_now.iter().any(|d| d.0 <= through && !fired.contains(&d.1));
                            assert!(!missing, "seed {seed}: not all fired through {through}");
                        }
                        fired.sort_unstable_by_key(|item| due_now.iter().position(|d| d.1 == *item));
                        assert_eq!(fired, due_now.iter().map(|d| d.1).collect::<Vec<_>>(), "seed {seed}");
                        assert_eq!(wheel.fired_through(), now);
                    }
                }
                assert_eq!(wheel.len(), model.len());
                let earliest = model.iter().map(|m| m.0).min();
                assert!(wheel.next_wakeup() <= earliest && wheel.next_wakeup().is_some() == earliest.is_some());
            }
        }
    }

    #[test]
    fn groups_hold_every_entry_from_an_instant_on_and_follow_each_other() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..300 {
            let mut present = random.u64(0..1 << 40);
            let mut wheel = Wheel::new(present);
            let mut model = std::collections::BTreeSet::new();
            for number in 0..random.u64(0..300) {
                let due = present.saturating_sub(5) + far(&mut random, 38);
                wheel.insert(due, number);
                model.insert((due, number));
            }
            // It stops anywhere, mostly within a cascade.
            present += far(&mut random, 38);
            let limit = random.usize(0..400);
            wheel.advance(present, limit, |number| model.retain(|&(_, other)| other != number));
            let starts = [0, present, present + far(&mut random, 38), u64::MAX];
            for start in starts {
                let (mut found, mut last) = (std::collections::BTreeSet::new(), None);
                for mut group in wheel.groups_from(start) {
                    group.sort_unstable();
                    let first = group.first().map(|&(due, _)| due);
                    assert!(first.is_none() || last < first, "seed {seed}: {first:?} after {last:?}");
                    last = group.last().map(|&(due, _)| due).or(last);
                    found.extend(group.into_iter().filter(|&(due, _)| due >= start));
                }
                assert_eq!(found, model.range((start, 0)..).copied().collect(), "seed {seed}");
            }
        }
    }
}
