//! Pages: packed messages of one slot and one run, sorted by (time, arrival).
//!
//! A page is a sealed value of at most [`MAX_VALUE_BYTES`]: the count, then each record as length and bytes. A
//! record is its kind, its time, its arrival number, and either the message (kind 1) or, when the encoded
//! message is over [`MAX_INLINE_BYTES`], its length and the number of chunks that hold it (kind 2).

use crate::queue::message::{Message, Place, TopicId};
use crate::queue::time::Timestamp;

use super::codec::{Malformed, Reader, SEAL_BYTES, put_bytes, put_u32, put_u64, seal, seal_of, unseal};
use super::keys::{MAX_VALUE_BYTES, PAGE, SlotKey, chunk_key};
use super::kv::{Kv, KvError};
use super::records::{message, put_message, put_time, time};

/// Messages that take more are stored in chunks under keys of their own.
pub(super) const MAX_INLINE_BYTES: usize = 4096;
const MAX_CHUNK_BYTES: usize = MAX_VALUE_BYTES - SEAL_BYTES;
const INLINE: u8 = 1;
const CHUNKED: u8 = 2;

/// What a directory entry says of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageEntry {
    /// Messages in it.
    pub(super) count: u32,
    /// Its checksum.
    pub(super) sum: u32,
    /// (time, arrival) of the first message.
    pub(super) first: (Timestamp, u64),
    /// (time, arrival) of the last message.
    pub(super) last: (Timestamp, u64),
    /// How many of its messages are in chunks.
    pub(super) chunked: u32,
}

impl PageEntry {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_u32(out, self.count);
        put_u32(out, self.sum);
        put_time(out, self.first.0);
        put_u64(out, self.first.1);
        put_time(out, self.last.0);
        put_u64(out, self.last.1);
        put_u32(out, self.chunked);
    }

    pub(super) fn read(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            count: input.u32()?,
            sum: input.u32()?,
            first: (time(input)?, input.u64()?),
            last: (time(input)?, input.u64()?),
            chunked: input.u32()?,
        })
    }
}

/// Stored data that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PagesError {
    #[error(transparent)]
    Kv(#[from] KvError),
    #[error("{what}: {problem}")]
    Damaged { what: String, problem: &'static str },
}

impl PagesError {
    pub(super) fn damaged(what: impl Into<String>) -> impl FnOnce(Malformed) -> Self {
        let what = what.into();
        |Malformed(problem)| Self::Damaged { what, problem }
    }
}

/// The instant by which the pages sort a message.
pub(super) fn sort_time(place: Place) -> Timestamp {
    match place {
        Place::Due(at) | Place::Dead(at) => at,
    }
}

/// Packs messages of one slot, which come in order, into pages; gives each page's key and value, and its
/// chunks before it, to `put`.
pub(super) fn pack<'a>(
    slot: &SlotKey,
    run: u64,
    messages: impl Iterator<Item = &'a Message>,
    put: &mut dyn FnMut(Vec<u8>, Vec<u8>) -> Result<(), PagesError>,
) -> Result<Vec<PageEntry>, PagesError> {
    let mut pages = Vec::new();
    let mut open = OpenPage::default();
    let mut encoded = Vec::new();
    for message in messages {
        encoded.clear();
        put_message(&mut encoded, message);
        let order = (sort_time(message.place()), message.id.arrival);
        let mut record = Vec::with_capacity(encoded.len().min(MAX_INLINE_BYTES) + 24);
        let is_chunked = encoded.len() > MAX_INLINE_BYTES;
        record.push(if is_chunked { CHUNKED } else { INLINE });
        put_time(&mut record, order.0);
        put_u64(&mut record, order.1);
        if is_chunked {
            put_u64(&mut record, encoded.len() as u64);
            for (n, chunk) in encoded.chunks(MAX_CHUNK_BYTES).enumerate() {
                let key = chunk_key(slot.topic, order.1, run, u32::try_from(n).expect("a message has few chunks"));
                let value = seal(&key, chunk);
                put(key, value)?;
            }
        } else {
            record.extend_from_slice(&encoded);
        }
        if open.bytes.len() + record.len() > MAX_VALUE_BYTES - 16 {
            open.close(slot, run, &mut pages, put)?;
        }
        open.add(&record, order, is_chunked);
    }
    open.close(slot, run, &mut pages, put)?;
    Ok(pages)
}

#[derive(Default)]
struct OpenPage {
    bytes: Vec<u8>,
    count: u32,
    chunked: u32,
    range: Option<((Timestamp, u64), (Timestamp, u64))>,
}

impl OpenPage {
    fn add(&mut self, record: &[u8], order: (Timestamp, u64), is_chunked: bool) {
        put_bytes(&mut self.bytes, record);
        self.count += 1;
        self.chunked += u32::from(is_chunked);
        self.range = Some((self.range.map_or(order, |(first, _)| first), order));
    }

    fn close(
        &mut self,
        slot: &SlotKey,
        run: u64,
        pages: &mut Vec<PageEntry>,
        put: &mut dyn FnMut(Vec<u8>, Vec<u8>) -> Result<(), PagesError>,
    ) -> Result<(), PagesError> {
        let Self { bytes, count, chunked, range } = std::mem::take(self);
        let Some((first, last)) = range else { return Ok(()) };
        let mut payload = Vec::with_capacity(bytes.len() + 4);
        put_u32(&mut payload, count);
        payload.extend_from_slice(&bytes);
        let key = slot.key(PAGE, run, u32::try_from(pages.len()).expect("a run has few pages"));
        let value = seal(&key, &payload);
        pages.push(PageEntry { count, sum: seal_of(&value), first, last, chunked });
        put(key, value)
    }
}

/// A record of a page.
pub(super) struct PageRecord {
    pub(super) time: Timestamp,
    pub(super) arrival: u64,
    body: Body,
}

enum Body {
    Inline(Vec<u8>),
    Chunked(usize),
}

impl PageRecord {
    /// The message, read from its chunks if need be.
    pub(super) fn message(&self, kv: &dyn Kv, topic: TopicId, run: u64) -> Result<Message, PagesError> {
        let what = || format!("message {} of topic {} in run {run}", self.arrival, topic.0);
        let read = |bytes: &[u8]| {
            let mut input = Reader::new(bytes);
            let message = message(&mut input)?;
            input.finish()?;
            if message.id.topic != topic || message.id.arrival != self.arrival {
                return Err(Malformed("it is another message"));
            }
            Ok(message)
        };
        let len = match &self.body {
            Body::Inline(bytes) => return read(bytes).map_err(PagesError::damaged(what())),
            Body::Chunked(len) => *len,
        };
        let mut bytes = Vec::with_capacity(len);
        for n in 0..u32::try_from(len.div_ceil(MAX_CHUNK_BYTES)).unwrap_or(u32::MAX) {
            let key = chunk_key(topic, self.arrival, run, n);
            let value = kv.value(&key)?.ok_or(Malformed("a chunk is missing")).map_err(PagesError::damaged(what()))?;
            bytes.extend_from_slice(unseal(&key, &value).map_err(PagesError::damaged(what()))?);
        }
        if bytes.len() != len {
            return Err(PagesError::damaged(what())(Malformed("its chunks have another length")));
        }
        read(&bytes).map_err(PagesError::damaged(what()))
    }
}

/// Reads a page that the directory lists and checks it against its entry.
pub(super) fn read_page(
    kv: &dyn Kv,
    slot: &SlotKey,
    run: u64,
    page: usize,
    entry: &PageEntry,
) -> Result<Vec<PageRecord>, PagesError> {
    let what = || page_name(slot, run, page);
    let key = slot.key(PAGE, run, u32::try_from(page).expect("a run has few pages"));
    let value = kv.value(&key)?.ok_or(Malformed("it is missing")).map_err(PagesError::damaged(what()))?;
    let read = || {
        let payload = unseal(&key, &value)?;
        if seal_of(&value) != entry.sum {
            return Err(Malformed("it is not the page that the directory lists"));
        }
        let mut input = Reader::new(payload);
        let records = (0..input.count()?).map(|_| record(input.bytes()?)).collect::<Result<Vec<_>, _>>()?;
        input.finish()?;
        let ends = records.first().zip(records.last());
        let ends = ends.map(|(first, last)| ((first.time, first.arrival), (last.time, last.arrival)));
        if ends != Some((entry.first, entry.last)) || records.len() != entry.count as usize {
            return Err(Malformed("it does not agree with the directory"));
        }
        Ok(records)
    };
    read().map_err(PagesError::damaged(what()))
}

/// A page in words, for errors.
pub(super) fn page_name(slot: &SlotKey, run: u64, page: usize) -> String {
    format!("page {page} of run {run}, topic {}, {:?} slot {}", slot.topic.0, slot.level, slot.start)
}

fn record(bytes: &[u8]) -> Result<PageRecord, Malformed> {
    let mut input = Reader::new(bytes);
    let kind = input.u8()?;
    let (time, arrival) = (time(&mut input)?, input.u64()?);
    let body = match kind {
        INLINE => Body::Inline(input.rest().to_vec()),
        CHUNKED => {
            let len = usize::try_from(input.u64()?).map_err(|_| Malformed("a length over the size"))?;
            if len > 1 << 30 {
                return Err(Malformed("a length over the size"));
            }
            input.finish()?;
            Body::Chunked(len)
        }
        _ => return Err(Malformed("an unknown kind of record")),
    };
    Ok(PageRecord { time, arrival, body })
}
