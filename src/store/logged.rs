//! What a journal record holds: changes as they are written, with a move either whole or as a difference.

use crate::queue::change::{Closing, DedupRecord, Finished, TopicRecord};
use crate::queue::message::{HistoryEntry, Message, Place, Progress, TopicId};
use crate::queue::quarantine::DamagedPart;
use crate::queue::time::Timestamp;

use super::codec::{Malformed, Reader, put_u32, put_u64};
use super::records::{
    damaged_part, dedup, entry, finished, flag, lease, message, option, place, progress, put_damaged_part, put_dedup,
    put_entry, put_finished, put_lease, put_message, put_option, put_place, put_progress, put_time, put_topic, time,
    topic,
};

/// One item of a journal record. The numbers of the kinds are permanent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Logged {
    /// 1: a topic was created or changed.
    Topic(TopicRecord),
    /// 2: a message was produced.
    Produced(Message),
    /// 3: a message moved, written whole: its first change in this generation.
    Moved { message: Message, previous: Place, entry: Option<HistoryEntry> },
    /// 4: a message moved that this generation holds already: only what changed.
    Progressed { arrival: u64, progress: Progress, entry: Option<HistoryEntry> },
    /// 5: a message is gone.
    Finished(Finished),
    /// 6: a dedup id is remembered.
    Dedup(DedupRecord),
    /// 7: arrival numbers below this one may have been used.
    Arrivals(u64),
    /// 8: the broker started.
    Opened { epoch: u32, at: Timestamp },
    /// 9: the broker stopped cleanly.
    Closed(Closing),
    /// 10: an unchanged message that fold `fold` leaves to the journal instead of the pages.
    Carried { fold: u64, message: Message },
    /// 11: fold `fold` of all commits up to `through` is durable in the pages.
    Folded { fold: u64, through: u64 },
    /// 12: stored messages are damaged and to be set aside by the next fold.
    Quarantined(DamagedPart),
    /// 13: a topic is gone with all its messages, of which some may be in pages.
    TopicDeleted { topic: TopicId, in_pages: bool },
}

impl Logged {
    pub(super) fn read(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match input.u8()? {
            1 => Self::Topic(topic(input)?),
            2 => Self::Produced(message(input)?),
            3 => {
                let (message, previous) = (message(input)?, place(input)?);
                let entry = if flag(input)? {
                    let history = message.history.as_ref().and_then(|history| history.iter().last());
                    Some(history.ok_or(Malformed("a history without its last entry"))?.clone())
                } else {
                    None
                };
                Self::Moved { message, previous, entry }
            }
            4 => Self::Progressed { arrival: input.u64()?, progress: progress(input)?, entry: option(input, entry)? },
            5 => Self::Finished(finished(input)?),
            6 => Self::Dedup(dedup(input)?),
            7 => Self::Arrivals(input.u64()?),
            8 => Self::Opened { epoch: input.u32()?, at: time(input)? },
            9 => {
                let at = time(input)?;
                let leases = (0..input.count()?).map(|_| lease(input)).collect::<Result<Vec<_>, _>>()?;
                let suspected = option(input, |input| Ok((time(input)?, input.u64()?)))?;
                Self::Closed(Closing { at, leases, suspected })
            }
            10 => Self::Carried { fold: input.u64()?, message: message(input)? },
            11 => Self::Folded { fold: input.u64()?, through: input.u64()? },
            12 => Self::Quarantined(damaged_part(input)?),
            13 => Self::TopicDeleted { topic: TopicId(input.u32()?), in_pages: flag(input)? },
            _ => return Err(Malformed("an unknown kind of change")),
        })
    }
}

pub(super) fn log_topic(out: &mut Vec<u8>, topic: &TopicRecord) {
    out.push(1);
    put_topic(out, topic);
}

pub(super) fn log_topic_deleted(out: &mut Vec<u8>, topic: TopicId, in_pages: bool) {
    out.push(13);
    put_u32(out, topic.0);
    out.push(in_pages.into());
}

pub(super) fn log_produced(out: &mut Vec<u8>, message: &Message) {
    out.push(2);
    put_message(out, message);
}

/// `entry`, if there is one, is the last of the message's history, so a flag is enough.
pub(super) fn log_moved(out: &mut Vec<u8>, message: &Message, previous: Place, entry: Option<&HistoryEntry>) {
    let last = message.history.as_ref().and_then(|history| history.iter().last());
    assert!(entry.is_none() || entry == last, "the entry of a move is the last of the message's history");
    out.push(3);
    put_message(out, message);
    put_place(out, previous);
    out.push(entry.is_some().into());
}

pub(super) fn log_progressed(out: &mut Vec<u8>, message: &Message, entry: Option<&HistoryEntry>) {
    out.push(4);
    put_u64(out, message.id.arrival);
    put_progress(out, &message.progress);
    put_option(out, entry, put_entry);
}

pub(super) fn log_finished(out: &mut Vec<u8>, finished: &Finished) {
    out.push(5);
    put_finished(out, finished);
}

pub(super) fn log_dedup(out: &mut Vec<u8>, dedup: &DedupRecord) {
    out.push(6);
    put_dedup(out, dedup);
}

pub(super) fn log_arrivals(out: &mut Vec<u8>, through: u64) {
    out.push(7);
    put_u64(out, through);
}

pub(super) fn log_opened(out: &mut Vec<u8>, epoch: u32, at: Timestamp) {
    out.push(8);
    put_u32(out, epoch);
    put_time(out, at);
}

pub(super) fn log_closed(out: &mut Vec<u8>, closing: &Closing) {
    out.push(9);
    put_time(out, closing.at);
    put_u64(out, closing.leases.len() as u64);
    for lease in &closing.leases {
        put_lease(out, lease);
    }
    put_option(out, closing.suspected, |out, (at, arrival)| {
        put_time(out, at);
        put_u64(out, arrival);
    });
}

pub(super) fn log_carried(out: &mut Vec<u8>, fold: u64, message: &Message) {
    out.push(10);
    put_u64(out, fold);
    put_message(out, message);
}

pub(super) fn log_folded(out: &mut Vec<u8>, fold: u64, through: u64) {
    out.push(11);
    put_u64(out, fold);
    put_u64(out, through);
}

pub(super) fn log_quarantined(out: &mut Vec<u8>, part: &DamagedPart) {
    out.push(12);
    put_damaged_part(out, part);
}
