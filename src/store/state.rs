//! The state of the page store as a whole, one value.

use crate::queue::message::TopicId;
use crate::queue::time::Timestamp;

use super::codec::{Reader, put_u32, put_u64, unseal};
use super::journal::FoldMark;
use super::keys::STATE;
use super::kv::KvRead;
use super::page::PagesError;
use super::records::{put_time, time};

/// What the pages know about the whole store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PagesState {
    pub(super) mark: FoldMark,
    /// Number of the last run that a fold or compaction wrote; it is never used again.
    pub(super) run: u64,
    pub(super) arrivals: u64,
    pub(super) epoch: u32,
    /// The highest number that a topic ever had.
    pub(super) last_topic: TopicId,
    /// Digest of everything that lists and counts.
    pub(super) listing: u64,
    /// What fell due before this instant was left to the journal by the last fold.
    pub(super) carry_before: Timestamp,
}

impl PagesState {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        put_u64(&mut payload, self.mark.fold);
        put_u64(&mut payload, self.mark.through);
        put_u64(&mut payload, self.mark.previous_through);
        put_u64(&mut payload, self.run);
        put_u64(&mut payload, self.arrivals);
        put_u32(&mut payload, self.epoch);
        put_u64(&mut payload, self.listing);
        put_time(&mut payload, self.carry_before);
        put_u32(&mut payload, self.last_topic.0);
        payload
    }

    pub(super) fn load(kv: &dyn KvRead) -> Result<Self, PagesError> {
        let key = [STATE];
        let Some(value) = kv.value(&key)? else { return Ok(Self::default()) };
        let read = || {
            let mut input = Reader::new(unseal(&key, &value)?);
            let mark = FoldMark { fold: input.u64()?, through: input.u64()?, previous_through: input.u64()? };
            let state = Self {
                mark,
                run: input.u64()?,
                arrivals: input.u64()?,
                epoch: input.u32()?,
                listing: input.u64()?,
                carry_before: time(&mut input)?,
                // Format 1 has none: no topic was ever deleted.
                last_topic: if input.is_empty() { TopicId(0) } else { TopicId(input.u32()?) },
            };
            input.finish()?;
            Ok(state)
        };
        read().map_err(PagesError::damaged("the state of the pages"))
    }
}
