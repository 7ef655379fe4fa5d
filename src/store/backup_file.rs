//! The format of a backup: a preamble, then frames of records, each under a checksum of all that comes before it.
//!
//! ```text
//! preamble   "duewheel backup\n", version (u32), CRC-32C of these 20 bytes
//! frame      length of the payload (u32), payload, sum (u32)
//! payload    kind (a byte), then records of that kind, each with its length
//! ```
//! Fixed numbers are little endian. `sum` is the CRC-32C of everything in the file before it that is not itself a sum.
//! So no frame can be lost, moved or taken from another backup without notice, and the last sum covers the whole
//! file. The first frame is the header, the last one the trailer, and nothing follows it.
//!
//! A backup holds records and no pages: it does not depend on how the store keeps them, and what is read from it was
//! read and checked record by record when it was written.

use std::io::{self, Read};

use crate::queue::change::{DedupRecord, Finished, TopicRecord, Totals};
use crate::queue::message::{Message, TopicId};
use crate::queue::time::Timestamp;

use super::codec::{Malformed, Reader, put_bytes, put_u32, put_u64};
use super::records::{
    dedup, finished, message, put_dedup, put_finished, put_message, put_time, put_topic, put_totals, time, topic,
    totals,
};
use super::segment::StoreId;

/// The version of backups that this version writes and the newest it reads.
pub const BACKUP_VERSION: u32 = 1;

const TITLE: &[u8; 16] = b"duewheel backup\n";
/// Bytes of title and version, before the sum of the preamble.
const PREAMBLE_BYTES: usize = 20;
/// A frame is closed when it has this many bytes.
const FRAME_BYTES: usize = 256 << 10;
/// The longest frame, bytes: one message of the largest kind goes over [`FRAME_BYTES`] and stays far below.
const MAX_FRAME_BYTES: usize = 3 << 20;

const HEADER: u8 = 1;
const TOPIC: u8 = 2;
const MESSAGE: u8 = 3;
const ENDED: u8 = 4;
const DEDUP: u8 = 5;
const TRAILER: u8 = 6;

/// What a backup says of itself at its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupHeader {
    /// The store that it was taken of.
    pub store: StoreId,
    /// The epoch of the broker's run.
    pub epoch: u32,
    /// The instant whose state it holds, by the broker's clock.
    pub taken_at: Timestamp,
    /// The last commit whose effect it holds.
    pub commit: u64,
    /// Arrival numbers below this one may have been used.
    pub arrivals: u64,
    /// The highest number that a topic ever had.
    pub last_topic: TopicId,
    /// Topics in it.
    pub topics: u64,
    /// Live messages in it.
    pub live: u64,
}

/// What a backup holds, by its trailer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupCounts {
    /// Topics.
    pub topics: u64,
    /// Messages that wait for their due time or for a consumer, leased ones included.
    pub waiting: u64,
    /// Dead letters.
    pub dead: u64,
    /// Ended messages that are remembered.
    pub ended: u64,
    /// Dedup ids.
    pub dedup_ids: u64,
}

/// One record of a backup.
#[derive(Debug)]
pub(super) enum BackupItem {
    Header(BackupHeader),
    Topic(TopicRecord, Totals),
    Message(Message),
    Ended(Finished),
    Dedup(DedupRecord),
    Trailer(BackupCounts),
}

/// Why a backup cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BackupFileError {
    /// The medium gives an error.
    #[error("it cannot be read at offset {offset}: {source}")]
    Io {
        /// Where, bytes.
        offset: u64,
        /// Why not.
        source: io::Error,
    },
    /// It was written by a newer version.
    #[error("it is a backup of format {found}; this version reads up to {BACKUP_VERSION}: use a newer version")]
    Newer {
        /// Its format.
        found: u32,
    },
    /// It is a backup in the form of a program that packs, or another such file.
    #[error("it is packed with {packer}; unpack it on the way, as in {packer} -dc FILE | duewheel restore -")]
    Packed {
        /// The program.
        packer: &'static str,
    },
    /// It is no backup, or not whole.
    #[error("it is not a whole backup: offset {offset}: {problem}; use another one")]
    Damaged {
        /// Where the part begins that cannot be used, bytes.
        offset: u64,
        /// What is wrong with it.
        problem: String,
    },
}

/// The reader of the backup does not want more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stopped;

/// Takes the next bytes of a backup; false ends it.
pub type BackupSink<'a> = &'a mut dyn FnMut(Vec<u8>) -> bool;

/// Writes a backup, a frame at a time.
pub(super) struct BackupWriter<'a> {
    sink: BackupSink<'a>,
    sum: u32,
    /// Kind and records of the frame that is being filled; empty between frames.
    payload: Vec<u8>,
    record: Vec<u8>,
}

impl<'a> BackupWriter<'a> {
    /// Begins a backup.
    pub(super) fn begin(sink: BackupSink<'a>) -> Result<Self, Stopped> {
        let mut preamble = TITLE.to_vec();
        preamble.extend(BACKUP_VERSION.to_le_bytes());
        let sum = crc32c::crc32c(&preamble);
        preamble.extend(sum.to_le_bytes());
        if !sink(preamble) {
            return Err(Stopped);
        }
        Ok(Self { sink, sum, payload: Vec::new(), record: Vec::new() })
    }

    pub(super) fn header(&mut self, header: &BackupHeader) -> Result<(), Stopped> {
        self.add(HEADER, |out| {
            out.extend(header.store);
            put_u32(out, header.epoch);
            put_time(out, header.taken_at);
            put_u32(out, header.last_topic.0);
            for number in [header.commit, header.arrivals, header.topics, header.live] {
                put_u64(out, number);
            }
        })
    }

    pub(super) fn topic(&mut self, topic: &TopicRecord, totals: &Totals) -> Result<(), Stopped> {
        self.add(TOPIC, |out| {
            put_topic(out, topic);
            put_totals(out, totals);
        })
    }

    pub(super) fn message(&mut self, message: &Message) -> Result<(), Stopped> {
        self.add(MESSAGE, |out| put_message(out, message))
    }

    pub(super) fn ended(&mut self, ended: &Finished) -> Result<(), Stopped> {
        self.add(ENDED, |out| put_finished(out, ended))
    }

    pub(super) fn dedup(&mut self, record: &DedupRecord) -> Result<(), Stopped> {
        self.add(DEDUP, |out| put_dedup(out, record))
    }

    /// Ends the backup; gives the last sum.
    pub(super) fn finish(mut self, counts: &BackupCounts) -> Result<u32, Stopped> {
        let BackupCounts { topics, waiting, dead, ended, dedup_ids } = *counts;
        self.add(TRAILER, |out| {
            for number in [topics, waiting, dead, ended, dedup_ids] {
                put_u64(out, number);
            }
        })?;
        self.flush()?;
        Ok(self.sum)
    }

    fn add(&mut self, kind: u8, put: impl FnOnce(&mut Vec<u8>)) -> Result<(), Stopped> {
        if self.payload.first().is_some_and(|&present| present != kind) {
            self.flush()?;
        }
        if self.payload.is_empty() {
            self.payload.push(kind);
        }
        self.record.clear();
        put(&mut self.record);
        put_bytes(&mut self.payload, &self.record);
        if self.payload.len() >= FRAME_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Stopped> {
        if self.payload.is_empty() {
            return Ok(());
        }
        assert!(self.payload.len() <= MAX_FRAME_BYTES, "a message is far smaller than the longest frame");
        let length = u32::try_from(self.payload.len()).expect("a frame is short");
        let mut frame = Vec::with_capacity(self.payload.len() + 8);
        frame.extend(length.to_le_bytes());
        frame.append(&mut self.payload);
        self.sum = crc32c::crc32c_append(self.sum, &frame);
        frame.extend(self.sum.to_le_bytes());
        if (self.sink)(frame) { Ok(()) } else { Err(Stopped) }
    }
}

/// Reads a backup, a frame at a time.
pub(super) struct BackupReader<R> {
    input: R,
    offset: u64,
    sum: u32,
}

impl<R: Read> BackupReader<R> {
    /// Reads the preamble.
    pub(super) fn open(mut input: R) -> Result<Self, BackupFileError> {
        let mut preamble = [0; PREAMBLE_BYTES + 4];
        read_exact(&mut input, &mut preamble, 0)?;
        let (head, sum) = preamble.split_at(PREAMBLE_BYTES);
        let (title, version) = head.split_at(TITLE.len());
        if title != TITLE {
            return Err(match packer(title) {
                Some(packer) => BackupFileError::Packed { packer },
                None => damaged(0, "it does not begin as a backup does"),
            });
        }
        if number(sum) != crc32c::crc32c(head) {
            return Err(damaged(0, "the checksum of its first bytes does not agree"));
        }
        // The version comes before everything that a later version might change.
        match number(version) {
            BACKUP_VERSION => Ok(Self { input, offset: preamble.len() as u64, sum: number(sum) }),
            found => Err(BackupFileError::Newer { found }),
        }
    }

    /// Where the next frame begins, bytes.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The sum of what was read.
    pub(super) fn sum(&self) -> u32 {
        self.sum
    }

    /// Gives the records of the next frame to `take`, which may refuse one.
    pub(super) fn frame(
        &mut self,
        take: &mut dyn FnMut(BackupItem) -> Result<(), &'static str>,
    ) -> Result<(), BackupFileError> {
        let start = self.offset;
        let mut length = [0; 4];
        read_exact(&mut self.input, &mut length, start)?;
        let bytes = usize::try_from(number(&length)).unwrap_or(usize::MAX);
        if bytes == 0 || bytes > MAX_FRAME_BYTES {
            return Err(damaged(start, "a frame of a length that there is not"));
        }
        let mut payload = vec![0; bytes + 4];
        read_exact(&mut self.input, &mut payload, start)?;
        let sum = number(&payload.split_off(bytes));
        self.sum = crc32c::crc32c_append(crc32c::crc32c_append(self.sum, &length), &payload);
        if self.sum != sum {
            return Err(damaged(start, "the checksum of a frame does not agree"));
        }
        self.offset += bytes as u64 + 8;
        let (&kind, records) = payload.split_first().expect("it is not empty");
        let mut read = || {
            let mut records = Reader::new(records);
            while !records.is_empty() {
                let item = item(kind, records.bytes().map_err(|Malformed(problem)| problem)?);
                take(item.map_err(|Malformed(problem)| problem)?)?;
            }
            Ok(())
        };
        read().map_err(|problem: &'static str| damaged(start, problem))
    }

    /// Checks that nothing follows.
    pub(super) fn finish(mut self) -> Result<(), BackupFileError> {
        let mut byte = [0];
        match self.input.read(&mut byte) {
            Ok(0) => Ok(()),
            Ok(_) => Err(damaged(self.offset, "something follows its end")),
            Err(source) => Err(BackupFileError::Io { offset: self.offset, source }),
        }
    }
}

/// The program that lets its files begin like this, if it is one of those that pack.
fn packer(begin: &[u8]) -> Option<&'static str> {
    let packers: [(&[u8], &str); 4] =
        [(b"\x28\xb5\x2f\xfd", "zstd"), (b"\x1f\x8b", "gzip"), (b"\xfd7zXZ\0", "xz"), (b"BZh", "bzip2")];
    packers.into_iter().find(|(magic, _)| begin.starts_with(magic)).map(|(_, name)| name)
}

fn item(kind: u8, bytes: &[u8]) -> Result<BackupItem, Malformed> {
    let mut input = Reader::new(bytes);
    let item = match kind {
        HEADER => BackupItem::Header(BackupHeader {
            store: input.array()?,
            epoch: input.u32()?,
            taken_at: time(&mut input)?,
            last_topic: TopicId(input.u32()?),
            commit: input.u64()?,
            arrivals: input.u64()?,
            topics: input.u64()?,
            live: input.u64()?,
        }),
        TOPIC => BackupItem::Topic(topic(&mut input)?, totals(&mut input)?),
        MESSAGE => BackupItem::Message(message(&mut input)?),
        ENDED => BackupItem::Ended(finished(&mut input)?),
        DEDUP => BackupItem::Dedup(dedup(&mut input)?),
        TRAILER => BackupItem::Trailer(BackupCounts {
            topics: input.u64()?,
            waiting: input.u64()?,
            dead: input.u64()?,
            ended: input.u64()?,
            dedup_ids: input.u64()?,
        }),
        _ => return Err(Malformed("an unknown kind of record")),
    };
    input.finish()?;
    Ok(item)
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("four bytes"))
}

pub(super) fn damaged(offset: u64, problem: &str) -> BackupFileError {
    BackupFileError::Damaged { offset, problem: problem.to_owned() }
}

fn read_exact(input: &mut impl Read, bytes: &mut [u8], offset: u64) -> Result<(), BackupFileError> {
    input.read_exact(bytes).map_err(|source| match source.kind() {
        io::ErrorKind::UnexpectedEof => damaged(offset, "it ends before its end: it was cut off"),
        _ => BackupFileError::Io { offset, source },
    })
}
