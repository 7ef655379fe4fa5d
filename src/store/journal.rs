//! The journal: one append and one sync per commit, over recycled segments.

use std::collections::VecDeque;
use std::io;

use crate::crash::crash_point;

use super::log::{SegmentFile, SegmentLog};
use super::segment::{HEADER_BYTES, SegmentHeader, StoreId, finish_record};

/// Fold numbers: how far the pages cover the journal. All zero before the first fold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FoldMark {
    /// Number of the last fold, from 1.
    pub(super) fold: u64,
    /// The last commit that it covers.
    pub(super) through: u64,
    /// The last commit that the fold before it covered.
    pub(super) previous_through: u64,
}

/// A segment in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct UsedSegment {
    pub(super) file: SegmentFile,
    pub(super) bytes: u64,
    pub(super) header: SegmentHeader,
}

/// What the header of a new segment says beside its place in the order.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeaderFacts {
    pub(super) epoch: u32,
    pub(super) mark: FoldMark,
    pub(super) live: u64,
}

pub(super) struct Journal {
    log: Box<dyn SegmentLog>,
    store: StoreId,
    segment_bytes: u64,
    /// In order of their sequence; the last one is written to.
    used: VecDeque<UsedSegment>,
    /// Ready for use: blank, or with contents that nothing needs any more.
    spares: Vec<(SegmentFile, u64)>,
    max_spares: usize,
    /// Where the next record goes in the last segment.
    end: u64,
    next_commit: u64,
    next_sequence: u64,
}

/// What recovery found, from which the journal goes on.
pub(super) struct JournalStart {
    pub(super) used: VecDeque<UsedSegment>,
    pub(super) spares: Vec<(SegmentFile, u64)>,
    pub(super) end: u64,
    pub(super) next_commit: u64,
    pub(super) next_sequence: u64,
}

impl Journal {
    pub(super) fn new(
        log: Box<dyn SegmentLog>,
        store: StoreId,
        segment_bytes: u64,
        max_spares: usize,
        start: JournalStart,
    ) -> Self {
        let JournalStart { used, spares, end, next_commit, next_sequence } = start;
        Self { log, store, segment_bytes, used, spares, max_spares, end, next_commit, next_sequence }
    }

    /// Number of the last commit; 0 before the first.
    pub(super) fn last_commit(&self) -> u64 {
        self.next_commit - 1
    }

    /// Bytes of all segments on disk.
    pub(super) fn disk_bytes(&self) -> u64 {
        let used: u64 = self.used.iter().map(|segment| segment.bytes).sum();
        used + self.spares.iter().map(|&(_, bytes)| bytes).sum::<u64>()
    }

    /// Segments in use.
    pub(super) fn used_segments(&self) -> usize {
        self.used.len()
    }

    /// Makes blank segments until there are `count` spares.
    pub(super) fn prepare(&mut self, count: usize) -> io::Result<()> {
        while self.spares.len() < count {
            let file = self.log.create(self.segment_bytes)?;
            self.spares.push((file, self.segment_bytes));
        }
        Ok(())
    }

    /// Appends a record, which is room for its header and the payload, and makes it durable.
    /// After an error nothing may be appended any more.
    pub(super) fn append(&mut self, record: &mut Vec<u8>, facts: HeaderFacts) -> io::Result<()> {
        let needed = super::segment::record_bytes(record.len() - super::segment::RECORD_HEADER_BYTES) as u64;
        let has_room = self.used.back().is_some_and(|segment| self.end + needed <= segment.bytes);
        if !has_room {
            self.begin_segment(needed, facts)?;
        }
        let segment = self.used.back().expect("a segment was begun");
        finish_record(record, &segment.header, self.next_commit);
        crash_point!("journal.before_write");
        self.log.write(segment.file, self.end, record)?;
        crash_point!("journal.written");
        self.log.sync(segment.file)?;
        crash_point!("journal.durable");
        self.end += record.len() as u64;
        self.next_commit += 1;
        Ok(())
    }

    /// The header is durable before the first record: so a segment with records and no header is damage.
    fn begin_segment(&mut self, needed: u64, facts: HeaderFacts) -> io::Result<()> {
        let least = needed + HEADER_BYTES as u64;
        let spare = self.spares.iter().position(|&(_, bytes)| bytes >= least);
        let (file, bytes) = if let Some(at) = spare {
            self.spares.swap_remove(at)
        } else {
            let bytes = self.segment_bytes.max(least);
            (self.log.create(bytes)?, bytes)
        };
        if self.spares.is_empty() {
            self.log.prepare(self.segment_bytes);
        }
        let header = SegmentHeader {
            store: self.store,
            epoch: facts.epoch,
            sequence: self.next_sequence,
            first_commit: self.next_commit,
            fold: facts.mark.fold,
            folded_through: facts.mark.through,
            live: facts.live,
            bytes,
        };
        crash_point!("segment.before_header");
        self.log.write(file, 0, &header.encode())?;
        crash_point!("segment.header_written");
        self.log.sync(file)?;
        crash_point!("segment.header_durable");
        self.used.push_back(UsedSegment { file, bytes, header });
        self.next_sequence += 1;
        self.end = HEADER_BYTES as u64;
        Ok(())
    }

    /// Frees the segments whose commits are all at or below `through`.
    pub(super) fn recycle(&mut self, through: u64) -> io::Result<()> {
        while self.used.len() >= 2 && self.used[1].header.first_commit <= through + 1 {
            let segment = self.used.pop_front().expect("there are two");
            if segment.bytes == self.segment_bytes && self.spares.len() < self.max_spares {
                self.spares.push((segment.file, segment.bytes));
                crash_point!("recycle.reused");
            } else {
                crash_point!("recycle.before_removal");
                self.log.remove(segment.file)?;
                crash_point!("recycle.removed");
            }
        }
        Ok(())
    }
}
