//! The slots of one topic, checked: pages against the directory, tombstones against pages, and both against the index.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::queue::message::{Message, MessageId, TopicId};
use crate::queue::quarantine::DamagedPart;

use super::MAX_KNOWN;
use super::check::{CheckReport, Finding};
use super::index::{Found, TopicIndex, each_of_topic};
use super::keys::SlotKey;
use super::kv::KvRead;
use super::page::{Order, PageEntry, PageRecord, PagesError, read_page};
use super::quarantine::PageName;
use super::slot::{Run, Slot};
use super::tombstones::read_tombstones;

/// Findings of one kind in one topic that are told one by one.
const MAX_TOLD: u64 = 20;

/// The check of one topic.
pub(super) struct TopicCheck<'a> {
    kv: &'a dyn KvRead,
    topic: TopicId,
    /// What the index says of messages that were not met yet.
    index: FxHashMap<u64, Found>,
    /// The index was read to its end.
    is_index_whole: bool,
    /// Messages that the index does not describe as they are.
    odd: u64,
}

impl<'a> TopicCheck<'a> {
    pub(super) fn begin(
        kv: &'a dyn KvRead,
        topic: TopicId,
        runs: Option<&TopicIndex>,
        report: &mut CheckReport,
    ) -> Self {
        let mut index = FxHashMap::default();
        let read = runs.map_or(Ok(()), |runs| {
            each_of_topic(kv, topic, runs, &mut |arrival, found| {
                index.insert(arrival, found);
            })
        });
        report.index_entries += index.len() as u64;
        let is_index_whole = read.is_ok();
        if let Err(error) = read {
            report.findings.push(Finding::of_pages(Some(topic), error.to_string()));
        }
        Self { kv, topic, index, is_index_whole, odd: 0 }
    }

    /// Checks a slot; `step` is told how many pages have been read in all.
    pub(super) fn slot(&mut self, key: &SlotKey, slot: &Slot, report: &mut CheckReport, step: &mut dyn FnMut(u64)) {
        let Some(dead) = self.tombstones(key, slot, report) else { return };
        let mut live = 0;
        for (&number, run) in slot.runs.iter() {
            let dead = dead.get(&number).map_or(&[][..], Vec::as_slice);
            let mut met = 0;
            let mut last = None;
            for (page, entry) in run.pages.iter().enumerate() {
                let name = PageName { slot: *key, run: number, page };
                let within = dead_within(dead, key, entry);
                met += within;
                live += u64::from(entry.count).saturating_sub(within);
                if last.is_some_and(|last| last >= entry.first(key)) {
                    self.tell(report, format!("{name}: it does not follow the page before it"));
                }
                last = Some(entry.last(key));
                if !entry.is_in_quarantine() {
                    self.page(&name, entry, (dead, within), report);
                }
                report.pages += 1;
                step(report.pages);
            }
            if met != dead.len() as u64 {
                let problem = format!("run {number} of {key:?}: {} tombstones kill nothing", dead.len() as u64 - met);
                self.tell(report, problem);
            }
        }
        if live != slot.live {
            self.tell(report, format!("{key:?}: {live} messages live and {} are counted", slot.live));
        }
    }

    /// What is left in the index names no message in pages, unless that is in a damaged page.
    pub(super) fn finish(mut self, report: &mut CheckReport) {
        let mut unmet: Vec<(u64, Found)> = self.index.drain().collect();
        unmet.sort_unstable_by_key(|&(arrival, _)| arrival);
        let mut count = 0;
        for (arrival, Found { birth_due, place, .. }) in unmet {
            let id = MessageId { topic: self.topic, birth_due, arrival };
            let holds = |part: &DamagedPart| part.may_hold(self.topic, place, arrival);
            match report.findings.iter_mut().find(|finding| finding.part.as_ref().is_some_and(holds)) {
                Some(finding) if finding.known.len() < MAX_KNOWN => finding.known.push(id),
                Some(_) => {}
                None if count < MAX_TOLD => {
                    count += 1;
                    let problem = format!("the index names message {id} at {place:?}, where the pages do not have it");
                    report.findings.push(Finding { known: vec![id], ..Finding::of_pages(Some(self.topic), problem) });
                }
                None => count += 1,
            }
        }
        for (count, what) in [(count, "index entries without a message"), (self.odd, "messages with a wrong index")] {
            if count > MAX_TOLD {
                self.tell(report, format!("{count} {what} in all"));
            }
        }
    }

    fn tell(&self, report: &mut CheckReport, problem: String) {
        report.findings.push(Finding::of_pages(Some(self.topic), problem));
    }

    /// The messages that tombstones kill, by run, sorted; `None` if not all tombstones can be read.
    fn tombstones(&self, key: &SlotKey, slot: &Slot, report: &mut CheckReport) -> Option<BTreeMap<u64, Vec<Order>>> {
        let mut dead: BTreeMap<u64, Vec<Order>> = BTreeMap::new();
        let mut is_whole = true;
        for (&by, run) in slot.runs.iter() {
            let Some(graves) = &run.graves else { continue };
            for (n, entry) in graves.parts.iter().enumerate() {
                match read_tombstones(self.kv, key, by, n, entry) {
                    Ok(part) => {
                        report.tombstones += part.len() as u64;
                        let ends = part.first().zip(part.last()).map(|(first, last)| (first.0, last.0));
                        if ends != Some((entry.first, entry.last)) || !part.is_sorted() {
                            self.tell(report, format!("tombstones {n} of run {by} of {key:?} are not as listed"));
                        }
                        for (at, run) in part {
                            dead.entry(run).or_default().push(at);
                        }
                    }
                    Err(error) => {
                        self.tell(report, error.to_string());
                        is_whole = false;
                    }
                }
            }
        }
        for (run, dead) in &mut dead {
            dead.sort_unstable();
            if !dead.is_sorted_by(|one, next| one < next) {
                self.tell(report, format!("a message of run {run} of {key:?} is killed twice"));
            }
            let counted = slot.runs.get(*run).map_or(0, |run: &Run| run.dead);
            if is_whole && counted != dead.len() as u64 {
                let problem = format!("run {run} of {key:?}: {} messages are killed, {counted} counted", dead.len());
                self.tell(report, problem);
            }
        }
        is_whole.then_some(dead)
    }

    /// Reads a page with its messages, of which `within` are among the dead.
    fn page(&mut self, name: &PageName, entry: &PageEntry, (dead, within): (&[Order], u64), report: &mut CheckReport) {
        let records = match read_page(self.kv, &name.slot, name.run, name.page, entry) {
            Ok(records) => records,
            Err(error) => {
                let messages = Some(u64::from(entry.count).saturating_sub(within));
                let finding = damaged(name.whole(entry), messages, &error);
                report.findings.push(finding);
                return;
            }
        };
        let orders: Vec<Order> = records.iter().map(|record| record.order).collect();
        let is_sorted = orders.is_sorted_by(|one, next| one < next);
        let chunked = records.iter().filter(|record| record.is_chunked()).count();
        if !is_sorted || !orders.iter().all(|&order| entry.may_hold(&name.slot, order)) {
            self.tell(report, format!("{name}: its messages are not in the order or range that is listed"));
        }
        if chunked != usize::from(entry.chunked) {
            self.tell(report, format!("{name}: {chunked} messages are in chunks, {} listed", entry.chunked));
        }
        let killed = orders.iter().filter(|order| dead.binary_search(order).is_ok()).count() as u64;
        if killed != within {
            self.tell(report, format!("{name}: {} tombstones kill no message of it", within.abs_diff(killed)));
        }
        for record in &records {
            self.record(name, record, dead.binary_search(&record.order).is_ok(), report);
        }
    }

    fn record(&mut self, name: &PageName, record: &PageRecord, is_dead: bool, report: &mut CheckReport) {
        // The chunks of a dead copy may be gone.
        if is_dead && record.is_chunked() {
            return;
        }
        match record.message(self.kv, &name.slot) {
            Ok(message) if !is_dead => {
                report.messages += 1;
                self.indexed(&message, report);
            }
            Ok(_) => {}
            Err(error) if is_dead => self.tell(report, error.to_string()),
            Err(error) => report.findings.push(damaged(name.message(record.order), Some(1), &error)),
        }
    }

    /// The index has what it must have of a message, and nothing else.
    fn indexed(&mut self, message: &Message, report: &mut CheckReport) {
        let (id, needed) = (message.id, Found::of(message));
        if self.index.remove(&id.arrival) == needed || !self.is_index_whole {
            return;
        }
        self.odd += 1;
        if self.odd <= MAX_TOLD {
            let problem = format!("the index does not say of message {id} where it is, or which key it holds");
            report.findings.push(Finding { known: vec![id], ..Finding::of_pages(Some(self.topic), problem) });
        }
    }
}

fn damaged(part: DamagedPart, messages: Option<u64>, error: &PagesError) -> Finding {
    Finding { part: Some(part), messages, ..Finding::of_pages(Some(part.topic), error.to_string()) }
}

/// How many of the dead lie in the range of a page.
fn dead_within(dead: &[Order], key: &SlotKey, entry: &PageEntry) -> u64 {
    let from = dead.partition_point(|&at| at < entry.first(key));
    let until = dead.partition_point(|&at| at <= entry.last(key));
    (until - from) as u64
}
