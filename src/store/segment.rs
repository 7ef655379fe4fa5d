//! The bytes of a journal segment: a header, then records.
//!
//! A record's checksum covers the store's id and the segment's sequence number too. So a record that an
//! earlier use of the file left behind can never pass for one of this use, and after a bad record the rest of
//! the segment can be searched for a later good one: if there is one, the bad record is damage and not the
//! torn end of the last write.

use super::codec::Malformed;

/// Id of a store, drawn at its creation.
pub type StoreId = [u8; 16];

/// The journal format that this version writes and the only one it reads.
pub(super) const JOURNAL_VERSION: u32 = 2;
/// Bytes of a segment's header: one sector, which is written whole or not at all.
pub(super) const HEADER_BYTES: usize = 512;
/// Bytes of a record in front of its payload: length, checksum, commit number.
pub(super) const RECORD_HEADER_BYTES: usize = 16;

const MAGIC: [u8; 8] = *b"DUEWHEEL";
/// Records start at multiples of this.
const ALIGNMENT: usize = 8;

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    /// The store it belongs to.
    pub(super) store: StoreId,
    /// The run of the broker that began it.
    pub(super) epoch: u32,
    /// Number of this use of the file; ascending by one from segment to segment.
    pub(super) sequence: u64,
    /// The commit number of its first record.
    pub(super) first_commit: u64,
    /// The last fold that was durable when it was begun.
    pub(super) fold: u64,
    /// The last commit that this fold covers.
    pub(super) folded_through: u64,
    /// Live messages when it was begun.
    pub(super) live: u64,
    /// Size of its file, which never changes; 0 in headers that do not tell it. A shorter file has lost commits, which
    /// would look like the end of the journal. It needs no checksum: a wrong size is refused.
    pub(super) bytes: u64,
}

/// What the first sector of a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderState {
    /// All zero: never used.
    Blank,
    /// A header.
    Used(SegmentHeader),
    /// A header of a later format.
    Newer(u32),
}

impl SegmentHeader {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&JOURNAL_VERSION.to_le_bytes());
        bytes[12..28].copy_from_slice(&self.store);
        bytes[28..32].copy_from_slice(&self.epoch.to_le_bytes());
        let words = [self.sequence, self.first_commit, self.fold, self.folded_through, self.live];
        for (word, to) in words.iter().zip(bytes[32..72].chunks_exact_mut(8)) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let sum = crc32c::crc32c(&bytes[..72]);
        bytes[72..76].copy_from_slice(&sum.to_le_bytes());
        bytes[76..84].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<HeaderState, Malformed> {
        let header = bytes.first_chunk::<HEADER_BYTES>().ok_or(Malformed("shorter than a header"))?;
        if header.iter().all(|&byte| byte == 0) {
            return Ok(HeaderState::Blank);
        }
        if header[0..8] != MAGIC {
            return Err(Malformed("not a journal segment"));
        }
        let version = word32(header, 8);
        if version > JOURNAL_VERSION {
            return Ok(HeaderState::Newer(version));
        }
        if word32(header, 72) != crc32c::crc32c(&header[..72]) {
            return Err(Malformed("the header's checksum does not agree"));
        }
        Ok(HeaderState::Used(Self {
            store: std::array::from_fn(|i| header[12 + i]),
            epoch: word32(header, 28),
            sequence: word64(header, 32),
            first_commit: word64(header, 40),
            fold: word64(header, 48),
            folded_through: word64(header, 56),
            live: word64(header, 64),
            bytes: word64(header, 76),
        }))
    }

    fn seed(&self) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&self.store), &self.sequence.to_le_bytes())
    }
}

/// Bytes that a record with a payload of `payload` bytes takes in a segment.
pub(super) fn record_bytes(payload: usize) -> usize {
    (RECORD_HEADER_BYTES + payload).next_multiple_of(ALIGNMENT)
}

/// Completes a record in place: `record` is [`RECORD_HEADER_BYTES`] of room and then the payload.
pub(super) fn finish_record(record: &mut Vec<u8>, header: &SegmentHeader, commit: u64) {
    let payload = record.len() - RECORD_HEADER_BYTES;
    let len = u32::try_from(payload).expect("the committer bounds a commit far below 4 GiB");
    record[0..4].copy_from_slice(&len.to_le_bytes());
    record[8..16].copy_from_slice(&commit.to_le_bytes());
    let sum = record_sum(header.seed(), record);
    record[4..8].copy_from_slice(&sum.to_le_bytes());
    record.resize(record_bytes(payload), 0);
}

fn record_sum(seed: u32, record: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(seed, &record[0..4]), &record[8..])
}

/// A record found in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundRecord {
    /// Its commit number.
    pub(super) commit: u64,
    /// Where it starts in the segment.
    pub(super) offset: usize,
    /// Length of its payload, which follows the record header.
    pub(super) payload: usize,
}

impl FoundRecord {
    pub(super) fn payload<'a>(&self, segment: &'a [u8]) -> &'a [u8] {
        &segment[self.offset + RECORD_HEADER_BYTES..][..self.payload]
    }

    pub(super) fn end(&self) -> usize {
        self.offset + record_bytes(self.payload)
    }
}

/// What a segment holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scan {
    /// The records up to the end or the first bad one.
    pub(super) records: Vec<FoundRecord>,
    /// Where the next record goes.
    pub(super) end: usize,
    /// A record was begun at `end` and is not whole.
    pub(super) torn: bool,
    /// Where a good record lies beyond `end`: then what is at `end` is damaged.
    pub(super) later: Option<usize>,
}

/// Reads the records of a segment up to the first that is not good.
pub(super) fn scan(segment: &[u8], header: &SegmentHeader) -> Scan {
    let seed = header.seed();
    let mut records = Vec::new();
    let (mut end, mut commit) = (HEADER_BYTES, header.first_commit);
    while let Some(record) = record_at(segment, end, seed, commit..=commit) {
        end = record.end();
        commit += 1;
        records.push(record);
    }
    let torn = segment.get(end + 8..end + 16).is_some_and(|bytes| bytes == commit.to_le_bytes())
        && segment[end..end + 4] != [0; 4];
    // Each lost record took at least one unit, so the commit numbers beyond the gap are bounded.
    let highest = commit + (segment.len() / ALIGNMENT) as u64;
    let later = (end + ALIGNMENT..written_bytes(segment))
        .step_by(ALIGNMENT)
        .find(|&offset| record_at(segment, offset, seed, commit..=highest).is_some());
    Scan { records, end, torn, later }
}

/// How much of a segment may have been written: up to the last block that is not all zero.
pub(super) fn written_bytes(segment: &[u8]) -> usize {
    const BLANK: [u8; 4096] = [0; 4096];
    let blank = segment.rchunks(BLANK.len()).take_while(|block| **block == BLANK[..block.len()]);
    segment.len() - blank.map(<[u8]>::len).sum::<usize>()
}

fn record_at(segment: &[u8], offset: usize, seed: u32, commits: std::ops::RangeInclusive<u64>) -> Option<FoundRecord> {
    let header = segment.get(offset..offset + RECORD_HEADER_BYTES)?;
    let (payload, commit) = (word32(header, 0) as usize, word64(header, 8));
    if payload == 0 || !commits.contains(&commit) {
        return None;
    }
    let record = segment.get(offset..offset + RECORD_HEADER_BYTES + payload)?;
    (word32(header, 4) == record_sum(seed, record)).then_some(FoundRecord { commit, offset, payload })
}

fn word32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn word64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}
