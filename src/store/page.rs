//! Pages: packed messages of one slot and one run, sorted by (time, arrival).
//!
//! A page is a sealed value of at most [`MAX_VALUE_BYTES`]: the count, then each record as length and bytes. A
//! record is its kind, its time, its arrival number, and either the message (kind 1) or, when the encoded
//! message is over [`MAX_INLINE_BYTES`], its length and the run under whose number its chunks are (kind 2).

use bytes::Bytes;

use crate::queue::message::{Message, Place, TopicId};
use crate::queue::time::Timestamp;

use super::codec::{Malformed, Reader, SEAL_BYTES, put_bytes, put_u32, put_u64, seal, seal_of, unseal};
use super::keys::{Level, MAX_VALUE_BYTES, PAGE, SlotKey, chunk_key};
use super::kv::{KvError, KvRead};
use super::quarantine::PageName;
use super::records::{message, put_message, put_time, time};

/// Messages that take more are stored in chunks under keys of their own.
pub(super) const MAX_INLINE_BYTES: usize = 4096;
const MAX_CHUNK_BYTES: usize = MAX_VALUE_BYTES - SEAL_BYTES;
const INLINE: u8 = 1;
const CHUNKED: u8 = 2;

/// A place in the order of a slot: due time or time of death, and arrival number.
pub(super) type Order = (Timestamp, u64);

/// What a directory entry says of a page. There is one in memory for every page, so it is kept small: instants
/// are milliseconds from the start of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageEntry {
    first_ms: u32,
    last_ms: u32,
    first_arrival: u64,
    last_arrival: u64,
    /// The lowest and the highest arrival number, which tell runs apart that cover the same time.
    lowest: u64,
    highest: u64,
    /// Its checksum.
    pub(super) sum: u32,
    /// Messages in it.
    pub(super) count: u16,
    /// How many of its messages are in chunks.
    pub(super) chunked: u16,
}

/// In the place of the number of messages in chunks: the page is in quarantine. Its entry stays, since the place
/// of a page in the list is its number; its count is that of its messages that tombstones kill.
const IN_QUARANTINE: u16 = u16::MAX;

impl PageEntry {
    /// Its first message.
    pub(super) fn first(&self, slot: &SlotKey) -> Order {
        (Timestamp::from_millis(slot.start + u64::from(self.first_ms)), self.first_arrival)
    }

    /// Its last message.
    pub(super) fn last(&self, slot: &SlotKey) -> Order {
        (Timestamp::from_millis(slot.start + u64::from(self.last_ms)), self.last_arrival)
    }

    /// True if the page was set aside: nobody reads it any more.
    pub(super) fn is_in_quarantine(&self) -> bool {
        self.chunked == IN_QUARANTINE
    }

    /// The entry of the page when it is set aside, of whose messages tombstones kill `dead`.
    pub(super) fn in_quarantine(self, dead: u16) -> Self {
        Self { count: dead, chunked: IN_QUARANTINE, ..self }
    }

    /// True if the page may hold a message there.
    pub(super) fn may_hold(&self, slot: &SlotKey, at: Order) -> bool {
        !self.is_in_quarantine()
            && (self.first(slot)..=self.last(slot)).contains(&at)
            && (self.lowest..=self.highest).contains(&at.1)
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_u32(out, self.count.into());
        put_u32(out, self.chunked.into());
        put_u32(out, self.sum);
        put_u32(out, self.first_ms);
        put_u64(out, self.first_arrival);
        put_u32(out, self.last_ms - self.first_ms);
        put_u64(out, self.last_arrival);
        put_u64(out, self.lowest);
        put_u64(out, self.highest - self.lowest);
    }

    pub(super) fn read(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let small = |number: u32| u16::try_from(number).map_err(|_| Malformed("a count over the size"));
        let (count, chunked, sum) = (small(input.u32()?)?, small(input.u32()?)?, input.u32()?);
        let (first_ms, first_arrival) = (input.u32()?, input.u64()?);
        let last_ms = first_ms.checked_add(input.u32()?).ok_or(Malformed("an instant outside the slot"))?;
        let (last_arrival, lowest) = (input.u64()?, input.u64()?);
        let highest = lowest.checked_add(input.u64()?).ok_or(Malformed("an arrival over 64 bits"))?;
        Ok(Self { first_ms, last_ms, first_arrival, last_arrival, lowest, highest, sum, count, chunked })
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

/// Takes a key and a value that are to be written.
pub(super) type Put<'a> = &'a mut dyn FnMut(Vec<u8>, Vec<u8>) -> Result<(), PagesError>;

/// Packs records of one slot, which come in order, into the pages of a run.
pub(super) struct Packer {
    slot: SlotKey,
    run: u64,
    open: OpenPage,
    pages: Vec<PageEntry>,
    encoded: Vec<u8>,
    record: Vec<u8>,
}

#[derive(Default)]
struct OpenPage {
    bytes: Vec<u8>,
    chunked: u16,
    orders: Vec<Order>,
}

impl Packer {
    pub(super) fn new(slot: SlotKey, run: u64) -> Self {
        let (encoded, record) = (Vec::new(), Vec::new());
        Self { slot, run, open: OpenPage::default(), pages: Vec::new(), encoded, record }
    }

    /// Adds a message, its chunks first.
    pub(super) fn add_message(&mut self, message: &Message, put: Put<'_>) -> Result<(), PagesError> {
        let (encoded, record) = (&mut self.encoded, &mut self.record);
        encoded.clear();
        put_message(encoded, message);
        let order = (sort_time(message.place()), message.id.arrival);
        let is_chunked = encoded.len() > MAX_INLINE_BYTES;
        record.clear();
        record.push(if is_chunked { CHUNKED } else { INLINE });
        put_time(record, order.0);
        put_u64(record, order.1);
        if is_chunked {
            put_u64(record, encoded.len() as u64);
            put_u64(record, self.run);
            for (n, chunk) in encoded.chunks(MAX_CHUNK_BYTES).enumerate() {
                let n = u32::try_from(n).expect("a message has few chunks");
                let key = chunk_key(self.slot.topic, order.1, self.run, n);
                let value = seal(&key, chunk);
                put(key, value)?;
            }
        } else {
            record.extend_from_slice(encoded);
        }
        let record = std::mem::take(record);
        self.add(&record, order, is_chunked, put)?;
        self.record = record;
        Ok(())
    }

    /// Adds a record of an older run as it is; its chunks stay where they are.
    pub(super) fn add_record(&mut self, record: &PageRecord, put: Put<'_>) -> Result<(), PagesError> {
        self.add(&record.bytes, record.order, record.is_chunked(), put)
    }

    fn add(&mut self, record: &[u8], order: Order, is_chunked: bool, put: Put<'_>) -> Result<(), PagesError> {
        if self.open.bytes.len() + record.len() > MAX_VALUE_BYTES - 16 {
            self.close(put)?;
        }
        put_bytes(&mut self.open.bytes, record);
        self.open.chunked += u16::from(is_chunked);
        self.open.orders.push(order);
        Ok(())
    }

    fn close(&mut self, put: Put<'_>) -> Result<(), PagesError> {
        let OpenPage { bytes, chunked, orders } = std::mem::take(&mut self.open);
        let Some((&first, &last)) = orders.first().zip(orders.last()) else { return Ok(()) };
        let arrivals = || orders.iter().map(|&(_, arrival)| arrival);
        let (lowest, highest) = (arrivals().min().expect("not empty"), arrivals().max().expect("not empty"));
        let mut payload = Vec::with_capacity(bytes.len() + 4);
        put_u64(&mut payload, orders.len() as u64);
        payload.extend_from_slice(&bytes);
        let key = self.slot.key(PAGE, self.run, u32::try_from(self.pages.len()).expect("a run has few pages"));
        let value = seal(&key, &payload);
        let in_slot = |at: Timestamp| {
            u32::try_from(at.as_millis() - self.slot.start).expect("a slot is narrower than 2^32 milliseconds")
        };
        self.pages.push(PageEntry {
            first_ms: in_slot(first.0),
            last_ms: in_slot(last.0),
            first_arrival: first.1,
            last_arrival: last.1,
            lowest,
            highest,
            sum: seal_of(&value),
            count: u16::try_from(orders.len()).expect("a page holds fewer than 2^13 bytes"),
            chunked,
        });
        put(key, value)
    }

    /// The pages, of which the last one is written now.
    pub(super) fn finish(mut self, put: Put<'_>) -> Result<Vec<PageEntry>, PagesError> {
        self.close(put)?;
        Ok(self.pages)
    }
}

/// A record of a page. It shares the bytes of the page.
pub(super) struct PageRecord {
    pub(super) order: Order,
    /// The whole record.
    bytes: Bytes,
    body: Body,
}

#[derive(Clone, Copy)]
enum Body {
    /// From there on in the record.
    Inline { at: usize },
    /// In chunks of run `run`, `len` bytes together.
    Chunked { len: usize, run: u64 },
}

impl PageRecord {
    pub(super) fn is_chunked(&self) -> bool {
        matches!(self.body, Body::Chunked { .. })
    }

    /// Values that are to be read beside the page.
    pub(super) fn chunks(&self) -> usize {
        match self.body {
            Body::Inline { .. } => 0,
            Body::Chunked { len, .. } => len.div_ceil(MAX_CHUNK_BYTES),
        }
    }

    /// The keys of its chunks.
    pub(super) fn chunk_keys(&self, topic: TopicId) -> Vec<Vec<u8>> {
        let Body::Chunked { run, .. } = self.body else { return Vec::new() };
        let count = u32::try_from(self.chunks()).unwrap_or(u32::MAX);
        (0..count).map(|n| chunk_key(topic, self.order.1, run, n)).collect()
    }

    /// The message, read from its chunks if need be.
    pub(super) fn message(&self, kv: &dyn KvRead, slot: &SlotKey) -> Result<Message, PagesError> {
        let (topic, (at, arrival)) = (slot.topic, self.order);
        let what = || format!("message {arrival} of topic {}, {:?} slot {}", topic.0, slot.level, slot.start);
        let read = |bytes: &[u8]| {
            let mut input = Reader::new(bytes);
            let message = message(&mut input)?;
            input.finish()?;
            let place = if slot.level == Level::Dead { Place::Dead(at) } else { Place::Due(at) };
            if message.id.topic != topic || message.id.arrival != arrival || message.place() != place {
                return Err(Malformed("it is another message"));
            }
            Ok(message)
        };
        let (len, run) = match self.body {
            Body::Inline { at } => return read(&self.bytes[at..]).map_err(PagesError::damaged(what())),
            Body::Chunked { len, run } => (len, run),
        };
        let mut bytes = Vec::with_capacity(len);
        for n in 0..u32::try_from(self.chunks()).unwrap_or(u32::MAX) {
            let key = chunk_key(topic, arrival, run, n);
            let value = kv.value(&key)?.ok_or(Malformed("a chunk is missing")).map_err(PagesError::damaged(what()))?;
            bytes.extend_from_slice(unseal(&key, &value).map_err(PagesError::damaged(what()))?);
        }
        if bytes.len() != len {
            return Err(PagesError::damaged(what())(Malformed("its chunks have another length")));
        }
        read(&bytes).map_err(PagesError::damaged(what()))
    }
}

/// Reads a page that the directory lists and checks it against its entry. Of one in quarantine nothing is read.
pub(super) fn read_page(
    kv: &dyn KvRead,
    slot: &SlotKey,
    run: u64,
    page: usize,
    entry: &PageEntry,
) -> Result<Vec<PageRecord>, PagesError> {
    if entry.is_in_quarantine() {
        return Ok(Vec::new());
    }
    let what = || PageName { slot: *slot, run, page }.to_string();
    let key = slot.key(PAGE, run, u32::try_from(page).expect("a run has few pages"));
    let value = kv.value(&key)?.ok_or(Malformed("it is missing")).map_err(PagesError::damaged(what()))?;
    let value = Bytes::from(value);
    let read = || {
        let payload = unseal(&key, &value)?;
        if seal_of(&value) != entry.sum {
            return Err(Malformed("it is not the page that the directory lists"));
        }
        let mut input = Reader::new(payload);
        let count = input.count()?;
        let records = (0..count).map(|_| record(value.slice_ref(input.bytes()?))).collect::<Result<Vec<_>, _>>()?;
        input.finish()?;
        let ends = records.first().zip(records.last()).map(|(first, last)| (first.order, last.order));
        if ends != Some((entry.first(slot), entry.last(slot))) || count != usize::from(entry.count) {
            return Err(Malformed("it does not agree with the directory"));
        }
        Ok(records)
    };
    read().map_err(PagesError::damaged(what()))
}

fn record(bytes: Bytes) -> Result<PageRecord, Malformed> {
    let mut input = Reader::new(&bytes);
    let kind = input.u8()?;
    let order = (time(&mut input)?, input.u64()?);
    let body = match kind {
        INLINE => Body::Inline { at: bytes.len() - input.rest().len() },
        CHUNKED => {
            let len = usize::try_from(input.u64()?).map_err(|_| Malformed("a length over the size"))?;
            if len > 1 << 30 {
                return Err(Malformed("a length over the size"));
            }
            let run = input.u64()?;
            input.finish()?;
            Body::Chunked { len, run }
        }
        _ => return Err(Malformed("an unknown kind of record")),
    };
    Ok(PageRecord { order, bytes, body })
}
