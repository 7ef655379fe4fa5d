//! A table of places by hash, made for many millions of entries: about 25 bytes each, and it grows and shrinks a
//! few entries at a time, so that there is never an old table beside a new one.
//!
//! It is a linear hash table. There are as many buckets as the entries need; one more entry than that splits one
//! bucket, one fewer joins two. A bucket is a chain of blocks, of which only the first has room. A block is a cache
//! line: what a look-up costs is the three of them that it has to wait for.
//! All blocks lie in one dense arena: the block that becomes free is filled with the last one, whose chain is
//! found by the hash of what is in it. So memory follows the number of entries, up and down.

use super::message::Place;
use super::time::Timestamp;

/// Places of messages, by a hash; several messages may have the same.
#[derive(Debug, Default)]
pub(super) struct PlaceTable {
    /// Chunks of at most [`BLOCKS_OF_CHUNK`] blocks, all but the last full.
    chunks: Vec<Vec<Block>>,
    /// The first block of each bucket.
    buckets: Vec<BlockId>,
    len: usize,
}

/// Number of a block, from 0 on.
type BlockId = u32;

/// The bucket is empty, or its chain ends.
const NO_BLOCK: BlockId = BlockId::MAX;
/// Blocks are allocated together, 64 KiB of them.
const BLOCKS_OF_CHUNK: usize = 1024;
const ENTRIES_OF_BLOCK: usize = 3;
/// Average entries of a bucket.
const ENTRIES_OF_BUCKET: usize = 8;

/// Entries of a bucket, in a cache line.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Block {
    /// Those that there are come first: all in every block but the first of a chain, and never none.
    entries: [Entry; ENTRIES_OF_BLOCK],
    /// The next block of the chain.
    next: BlockId,
}

/// An entry in 20 bytes, each part little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    /// The lower 56 bits of the hash.
    hash: [u8; 7],
    /// Room for a million messages a second for nine years.
    arrival: [u8; 6],
    /// Milliseconds, and whether it is a time of death in the highest bit.
    place: [u8; 7],
}

const DEATH: u64 = 1 << 55;
/// No message has that place.
const NOTHING: Entry = Entry { hash: [0xff; 7], arrival: [0xff; 6], place: [0xff; 7] };

impl PlaceTable {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Makes the buckets that so many entries need, if the table is empty; they are divided up from then on only when
    /// there are more.
    pub(super) fn make_room(&mut self, entries: usize) {
        if self.len == 0 {
            self.buckets = vec![NO_BLOCK; entries.div_ceil(ENTRIES_OF_BUCKET)];
        }
    }

    /// Entries that are entered in ascending order of this are near each other in memory.
    pub(super) fn place_in_memory(&self, hash: u64) -> u32 {
        if self.buckets.is_empty() { 0 } else { u32::try_from(self.bucket_of(hash)).unwrap_or(u32::MAX) }
    }

    /// Enters a message, which is not in the table.
    pub(super) fn insert(&mut self, hash: u64, arrival: u64, place: Place) {
        self.len += 1;
        if self.len > self.buckets.len() * ENTRIES_OF_BUCKET {
            self.split();
        }
        self.add(self.bucket_of(hash), Entry::new(hash, arrival, place));
    }

    /// Takes a message out, if it is there.
    pub(super) fn remove(&mut self, hash: u64, arrival: u64) {
        if self.buckets.is_empty() {
            return;
        }
        let bucket = self.bucket_of(hash);
        let is_it = |entry: &Entry| entry.has(hash) && entry.arrival() == arrival;
        let found = self.chain(bucket).find_map(|id| Some((id, self.block(id).filled().iter().position(is_it)?)));
        let Some((id, at)) = found else { return };
        // The last entry of the first block takes its place.
        let last = self.last_of(bucket).expect("the chain holds an entry");
        self.block_mut(id).entries[at] = last;
        self.pop(bucket);
        self.len -= 1;
        if self.len + ENTRIES_OF_BUCKET * 2 < self.buckets.len() * ENTRIES_OF_BUCKET {
            self.join();
        }
    }

    /// Arrival numbers and places of the messages with that hash; rarely of others.
    pub(super) fn holders(&self, hash: u64) -> impl Iterator<Item = (u64, Place)> {
        let bucket = (!self.buckets.is_empty()).then(|| self.bucket_of(hash));
        let blocks = bucket.into_iter().flat_map(|bucket| self.chain(bucket)).map(|id| self.block(id));
        let entries = blocks.flat_map(Block::filled).filter(move |entry| entry.has(hash));
        entries.map(|entry| (entry.arrival(), entry.place()))
    }

    /// One bucket more: it takes its part of the entries of the one that had them so far.
    fn split(&mut self) {
        let new = self.buckets.len();
        let entries = if new == 0 { Vec::new() } else { self.drain(parent_of(new)) };
        self.buckets.push(NO_BLOCK);
        for entry in entries {
            self.add(self.bucket_of(entry.hash()), entry);
        }
    }

    /// One bucket less: its entries go back to where they came from.
    fn join(&mut self) {
        let last = self.buckets.len() - 1;
        let entries = self.drain(last);
        self.buckets.pop();
        for entry in entries {
            self.add(parent_of(last), entry);
        }
        if self.buckets.capacity() > self.buckets.len() * 4 {
            self.buckets.shrink_to(self.buckets.len() * 2);
        }
    }

    fn drain(&mut self, bucket: usize) -> Vec<Entry> {
        let mut entries = Vec::with_capacity(ENTRIES_OF_BUCKET * 2);
        while let Some(entry) = self.pop(bucket) {
            entries.push(entry);
        }
        entries
    }

    /// The bucket of a hash: with 2^n buckets and some more, its lower n + 1 bits if there is such a bucket, else
    /// its lower n bits.
    fn bucket_of(&self, hash: u64) -> usize {
        let buckets = self.buckets.len() as u64;
        let wide = hash & (buckets.next_power_of_two() - 1);
        let bucket = if wide < buckets { wide } else { wide & ((buckets.next_power_of_two() >> 1) - 1) };
        usize::try_from(bucket).expect("there are as many buckets")
    }

    fn add(&mut self, bucket: usize, entry: Entry) {
        let first = self.buckets[bucket];
        let len = if first == NO_BLOCK { ENTRIES_OF_BLOCK } else { self.block(first).len() };
        if len < ENTRIES_OF_BLOCK {
            self.block_mut(first).entries[len] = entry;
        } else {
            self.buckets[bucket] = self.add_block(Block::of(entry, first));
        }
    }

    /// The entry that [`PlaceTable::pop`] takes out.
    fn last_of(&self, bucket: usize) -> Option<Entry> {
        let first = self.chain(bucket).next()?;
        self.block(first).filled().last().copied()
    }

    /// Takes the last entry of the first block out.
    fn pop(&mut self, bucket: usize) -> Option<Entry> {
        let entry = self.last_of(bucket)?;
        let first = self.buckets[bucket];
        let block = self.block_mut(first);
        let left = block.len() - 1;
        block.entries[left] = NOTHING;
        if left == 0 {
            self.buckets[bucket] = block.next;
            self.free(first);
        }
        Some(entry)
    }

    fn add_block(&mut self, block: Block) -> BlockId {
        if self.chunks.last().is_none_or(|chunk| chunk.len() == BLOCKS_OF_CHUNK) {
            self.chunks.push(Vec::new());
        }
        let before = (self.chunks.len() - 1) * BLOCKS_OF_CHUNK;
        let chunk = self.chunks.last_mut().expect("there is one");
        chunk.push(block);
        BlockId::try_from(before + chunk.len() - 1).expect("a topic has fewer than 2^32 blocks of keys")
    }

    /// Frees a block that is in no chain any more: the last one of the arena takes its number.
    fn free(&mut self, id: BlockId) {
        let before = (self.chunks.len() - 1) * BLOCKS_OF_CHUNK;
        let chunk = self.chunks.last_mut().expect("a block that is freed exists");
        let moved = chunk.pop().expect("a chunk is not empty");
        let last_id = BlockId::try_from(before + chunk.len()).expect("it was given as a number");
        if chunk.is_empty() {
            self.chunks.pop();
        }
        if id != last_id {
            self.relink(&moved, last_id, id);
            *self.block_mut(id) = moved;
        }
    }

    /// In the chain of `block`, what named it `old` names it `new`.
    fn relink(&mut self, block: &Block, old: BlockId, new: BlockId) {
        let bucket = self.bucket_of(block.entries[0].hash());
        if self.buckets[bucket] == old {
            self.buckets[bucket] = new;
            return;
        }
        let mut before = self.buckets[bucket];
        while self.block(before).next != old {
            before = self.block(before).next;
        }
        self.block_mut(before).next = new;
    }

    fn chain(&self, bucket: usize) -> impl Iterator<Item = BlockId> {
        let is_block = |&id: &BlockId| id != NO_BLOCK;
        let first = Some(self.buckets[bucket]).filter(is_block);
        std::iter::successors(first, move |&id| Some(self.block(id).next).filter(is_block))
    }

    fn block(&self, id: BlockId) -> &Block {
        &self.chunks[id as usize / BLOCKS_OF_CHUNK][id as usize % BLOCKS_OF_CHUNK]
    }

    fn block_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.chunks[id as usize / BLOCKS_OF_CHUNK][id as usize % BLOCKS_OF_CHUNK]
    }
}

impl Block {
    fn of(entry: Entry, next: BlockId) -> Self {
        let mut entries = [NOTHING; ENTRIES_OF_BLOCK];
        entries[0] = entry;
        Self { entries, next }
    }

    fn len(&self) -> usize {
        self.entries.iter().position(|entry| *entry == NOTHING).unwrap_or(ENTRIES_OF_BLOCK)
    }

    fn filled(&self) -> &[Entry] {
        &self.entries[..self.len()]
    }
}

impl Entry {
    fn new(hash: u64, arrival: u64, place: Place) -> Self {
        assert!(arrival < 1 << 48, "a broker takes fewer than 2^48 messages in its life");
        let (at, death) = match place {
            Place::Due(at) => (at.as_millis(), 0),
            Place::Dead(at) => (at.as_millis(), DEATH),
        };
        assert!(at < DEATH - 1, "an instant is before the year one million");
        Self { hash: low(hash), arrival: low(arrival), place: low(at | death) }
    }

    fn has(&self, hash: u64) -> bool {
        self.hash == low(hash)
    }

    fn hash(&self) -> u64 {
        whole(self.hash)
    }

    fn arrival(&self) -> u64 {
        whole(self.arrival)
    }

    fn place(&self) -> Place {
        let packed = whole(self.place);
        let at = Timestamp::from_millis(packed & !DEATH);
        if packed & DEATH == 0 { Place::Due(at) } else { Place::Dead(at) }
    }
}

/// The bucket that had the entries of `bucket` before there was that one.
fn parent_of(bucket: usize) -> usize {
    bucket & !(1 << bucket.ilog2())
}

/// The lower `N` bytes.
fn low<const N: usize>(number: u64) -> [u8; N] {
    let bytes = number.to_le_bytes();
    std::array::from_fn(|i| bytes[i])
}

fn whole<const N: usize>(bytes: [u8; N]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Bytes of everything that the table has allocated.
    fn bytes(table: &PlaceTable) -> usize {
        let blocks: usize = table.chunks.iter().map(Vec::capacity).sum();
        blocks * size_of::<Block>()
            + table.chunks.capacity() * size_of::<Vec<Block>>()
            + table.buckets.capacity() * size_of::<BlockId>()
    }

    /// Every block is in one chain, in that of its entries, and full unless it is the first.
    fn check(table: &PlaceTable) {
        let mut seen = BTreeSet::new();
        let mut entries = 0;
        for bucket in 0..table.buckets.len() {
            for (n, id) in table.chain(bucket).enumerate() {
                let block = table.block(id);
                assert!(seen.insert(id), "block {id} is in two chains");
                assert!(block.len() > 0 && (n == 0 || block.filled().len() == ENTRIES_OF_BLOCK), "block {id} has room");
                assert!(block.filled().iter().all(|entry| table.bucket_of(entry.hash()) == bucket));
                entries += block.filled().len();
            }
        }
        assert_eq!(entries, table.len());
        assert_eq!(seen.len(), table.chunks.iter().map(Vec::len).sum::<usize>(), "a block is in no chain");
        let full = &table.chunks[..table.chunks.len().saturating_sub(1)];
        assert!(full.iter().all(|chunk| chunk.len() == BLOCKS_OF_CHUNK));
    }

    fn place(arrival: u64) -> Place {
        let at = Timestamp::from_millis(1_790_000_000_000 + arrival * 977);
        if arrival.is_multiple_of(5) { Place::Dead(at) } else { Place::Due(at) }
    }

    /// Spreads the numbers from 0 on.
    fn spread(number: u64) -> u64 {
        (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    #[test]
    fn what_is_entered_is_found_until_it_is_taken_out() {
        // A third of the hashes is shared by many, a third by few.
        let hash = |arrival: u64| match arrival % 3 {
            0 => spread(arrival % 7),
            1 => spread(arrival / 12),
            _ => spread(arrival),
        };
        let mut table = PlaceTable::default();
        let mut model = BTreeSet::new();
        let seed = 20_240_229;
        let mut state = seed;
        for step in 0..16_000_u64 {
            state = spread(state);
            // It grows, shrinks to nothing, and grows again.
            let grows = (step / 4_000).is_multiple_of(2);
            let arrival = state % 3_000;
            if (state >> 40) % 10 < if grows { 8 } else { 1 } {
                if model.insert((hash(arrival), arrival)) {
                    table.insert(hash(arrival), arrival, place(arrival));
                }
            } else {
                model.remove(&(hash(arrival), arrival));
                table.remove(hash(arrival), arrival);
            }
            let mut found: Vec<_> = table.holders(hash(arrival)).collect();
            found.sort_unstable();
            let expected: Vec<_> = model.range((hash(arrival), 0)..=(hash(arrival), u64::MAX)).collect();
            let expected: Vec<_> = expected.into_iter().map(|&(_, arrival)| (arrival, place(arrival))).collect();
            assert_eq!(found, expected, "seed {seed}, step {step}");
            if step.is_multiple_of(997) {
                check(&table);
            }
        }
        for (n, (hash, arrival)) in std::mem::take(&mut model).into_iter().enumerate() {
            table.remove(hash, arrival);
            if n.is_multiple_of(97) {
                check(&table);
            }
        }
        assert_eq!((table.len(), table.chunks.len(), table.buckets.len()), (0, 0, 2));
    }

    #[test]
    fn an_entry_costs_at_most_26_bytes_at_any_size_and_leaves_none_behind() {
        assert_eq!((size_of::<Entry>(), size_of::<Block>()), (20, 64));
        let mut table = PlaceTable::default();
        for arrival in 0..50_000 {
            table.insert(spread(arrival), arrival, place(arrival));
            if !arrival.is_multiple_of(61) {
                continue;
            }
            let largest = table.len() * 26 + BLOCKS_OF_CHUNK * size_of::<Block>();
            assert!(bytes(&table) <= largest, "{} bytes for {} entries", bytes(&table), table.len());
        }
        check(&table);
        for arrival in 1_000..50_000 {
            table.remove(spread(arrival), arrival);
        }
        check(&table);
        assert!(
            bytes(&table) < 1_000 * 26 + BLOCKS_OF_CHUNK * size_of::<Block>() + 4_096,
            "{} bytes for {} entries",
            bytes(&table),
            table.len()
        );
    }

    #[test]
    fn a_table_with_room_is_as_one_that_has_grown() {
        let (mut roomy, mut grown) = (PlaceTable::default(), PlaceTable::default());
        roomy.make_room(2_000);
        let buckets = roomy.buckets.len();
        for arrival in 0..3_000 {
            for table in [&mut roomy, &mut grown] {
                table.insert(spread(arrival), arrival, place(arrival));
            }
            assert!(arrival >= 2_000 || roomy.buckets.len() == buckets, "it was divided up at {arrival}");
        }
        check(&roomy);
        for arrival in 0..3_000 {
            let found = |table: &PlaceTable| table.holders(spread(arrival)).collect::<Vec<_>>();
            assert_eq!(
                (found(&roomy), found(&grown)),
                (vec![(arrival, place(arrival))], vec![(arrival, place(arrival))])
            );
        }
        for arrival in 0..2_990 {
            roomy.remove(spread(arrival), arrival);
        }
        check(&roomy);
        assert!(roomy.buckets.len() < 10, "{} buckets for 10 entries", roomy.buckets.len());
    }

    #[test]
    fn the_largest_numbers_fit() {
        let mut table = PlaceTable::default();
        let places = [Place::Due(Timestamp::from_millis(DEATH - 2)), Place::Dead(Timestamp::ZERO)];
        for (place, arrival) in places.into_iter().zip([(1 << 48) - 1, 0]) {
            table.insert(u64::MAX, arrival, place);
        }
        let found: Vec<_> = table.holders(u64::MAX).collect();
        assert_eq!(found, [((1 << 48) - 1, places[0]), (0, places[1])]);
        assert_eq!(table.holders(0).count(), 0);
    }
}
