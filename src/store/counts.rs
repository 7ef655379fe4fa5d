//! Counting waiting messages by due time, from the directory.

use std::ops::Range;

use crate::queue::message::TopicId;
use crate::queue::time::Timestamp;

use super::directory::Directory;
use super::keys::{Level, SlotKey};
use super::page::{Order, PagesError, read_page};
use super::slot::Slot;
use super::walk::Stock;

/// Waiting messages of a topic in a range of its order, exactly: what lies inside is counted from the directory,
/// and only pages and tombstones across an end of the range are read.
pub(super) fn due_between(mut stock: Stock<'_>, topic: TopicId, range: Range<Order>) -> Result<u64, PagesError> {
    let mut count = 0;
    let directory = stock.directory;
    for level in Level::DUE {
        let slots = directory.slots_from(SlotKey::holding(topic, level, range.start.0));
        for (key, slot) in slots.take_while(|(key, _)| (Timestamp::from_millis(key.start), 0) < range.end) {
            let end = Timestamp::from_millis(key.start.saturating_add(level.width_ms()));
            let is_inside = range.start <= (Timestamp::from_millis(key.start), 0) && (end, 0) <= range.end;
            count += if is_inside { slot.live } else { slot_between(&mut stock, key, slot, &range)? };
        }
    }
    Ok(count)
}

fn slot_between(stock: &mut Stock<'_>, key: &SlotKey, slot: &Slot, range: &Range<Order>) -> Result<u64, PagesError> {
    let (mut held, mut gone) = (0_u64, 0_u64);
    for (&number, run) in slot.runs.iter() {
        let first = run.pages.partition_point(|page| page.last(key) < range.start);
        for (n, page) in run.pages.iter().enumerate().skip(first) {
            if page.first(key) >= range.end {
                break;
            }
            if range.contains(&page.first(key)) && range.contains(&page.last(key)) {
                held += u64::from(page.count);
            } else if page.is_in_quarantine() {
                // Only those that tombstones kill count, and these are counted as gone below.
                let ends = (page.first(key), page.last(key));
                let dead = stock.tombstones.dead_between(stock.kv, (key, slot), number, ends)?;
                held += dead.iter().filter(|at| range.contains(at)).count() as u64;
            } else {
                let records = read_page(stock.kv, key, number, n, page)?;
                held += records.iter().filter(|record| range.contains(&record.order)).count() as u64;
            }
        }
        let Some(graves) = &run.graves else { continue };
        let first = graves.parts.partition_point(|part| part.last < range.start);
        for (n, part) in graves.parts.iter().enumerate().skip(first) {
            if part.first >= range.end {
                break;
            }
            if range.contains(&part.first) && range.contains(&part.last) {
                gone += u64::from(part.count);
            } else {
                let tombstones = stock.tombstones.part(stock.kv, (*key, number, n), part)?;
                gone += tombstones.iter().filter(|(at, _)| range.contains(at)).count() as u64;
            }
        }
    }
    held.checked_sub(gone).ok_or_else(|| PagesError::Damaged {
        what: format!("topic {}, {:?} slot {}", key.topic.0, key.level, key.start),
        problem: "more of its messages are gone than there were",
    })
}

/// Waiting messages of a topic per span of time, each page and each part of tombstones spread evenly over the
/// time that it covers.
pub(super) fn timeline(
    directory: &Directory,
    topic: TopicId,
    from: Timestamp,
    bucket_ms: u64,
    buckets: usize,
) -> Vec<u64> {
    let mut counts = vec![0; buckets];
    let scale = Scale { from: from.as_millis(), bucket_ms: bucket_ms.max(1), buckets: buckets as u64 };
    for level in Level::DUE {
        for (key, slot) in directory.slots_from(SlotKey { topic, level, start: 0 }) {
            slot_timeline(key, slot, &scale, &mut counts);
        }
    }
    counts
}

/// The spans: number 0 is everything before the first one that was asked for, and the last is everything after.
struct Scale {
    from: u64,
    bucket_ms: u64,
    buckets: u64,
}

impl Scale {
    fn number(&self, at_ms: u64) -> u64 {
        at_ms.checked_sub(self.from).map_or(0, |since| (since / self.bucket_ms + 1).min(self.buckets + 1))
    }

    /// The first instant after span `number`.
    fn end(&self, number: u64) -> u64 {
        if number > self.buckets { u64::MAX } else { self.from.saturating_add(self.bucket_ms.saturating_mul(number)) }
    }
}

fn slot_timeline(key: &SlotKey, slot: &Slot, scale: &Scale, counts: &mut [u64]) {
    let (first, last) = (scale.number(key.start), scale.number(key.start.saturating_add(key.level.width_ms() - 1)));
    let span = |number: u64| usize::try_from(number.checked_sub(1)?).ok();
    if first == last {
        if let Some(count) = span(first).and_then(|n| counts.get_mut(n)) {
            *count += slot.live;
        }
        return;
    }
    let len = usize::try_from(last - first + 1).expect("no more than the spans asked for");
    let (mut held, mut gone) = (vec![0_u64; len], vec![0_u64; len]);
    let spread = |to: &mut [u64], count: u64, from: Timestamp, until: Timestamp| {
        let (from, until) = (from.as_millis(), until.as_millis());
        let width = until - from + 1;
        let mut before = 0;
        for number in scale.number(from)..=scale.number(until) {
            let reached = count * (scale.end(number).min(until + 1) - from) / width;
            to[usize::try_from(number - first).expect("inside the slot")] += reached - before;
            before = reached;
        }
    };
    for run in slot.runs.values() {
        for page in run.pages.iter() {
            spread(&mut held, page.count.into(), page.first(key).0, page.last(key).0);
        }
        for part in run.graves.iter().flat_map(|graves| &graves.parts) {
            spread(&mut gone, part.count.into(), part.first.0, part.last.0);
        }
    }
    // Spreading can put more tombstones than messages into a span; a sum that never goes down evens that out
    // and ends at what lives.
    let (mut held_before, mut gone_before, mut reached) = (0, 0, 0_u64);
    for (n, (held, gone)) in held.into_iter().zip(gone).enumerate() {
        (held_before, gone_before) = (held_before + held, gone_before + gone);
        let is_last = n + 1 == len;
        let estimate = held_before.saturating_sub(gone_before).clamp(reached, slot.live);
        let now = if is_last { slot.live } else { estimate };
        if let Some(count) = span(first + n as u64).and_then(|n| counts.get_mut(n)) {
            *count += now - reached;
        }
        reached = now;
    }
}
