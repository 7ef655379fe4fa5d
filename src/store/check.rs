//! Checking a whole store while no broker runs: everything is read, and whatever does not fit is a finding.
//!
//! Opening a store reads little and refuses at the first damage. This reads all: each record of each journal
//! segment; each page, chunk and tombstone against the directory; the index against the messages and back; what is
//! remembered of ended messages and dedup ids; and the totals against a recount. It goes on after a finding as far
//! as that makes sense, and changes nothing.

use std::collections::BTreeMap;
use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;

use crate::crash::crash_point;
use crate::queue::change::{Change, DedupRecord, Finished, Restored, TopicRecord, Totals};
use crate::queue::message::{MessageId, TopicId};
use crate::queue::quarantine::DamagedPart;
use crate::queue::time::Timestamp;

use super::chain::{Chain, find_segments};
use super::check_slot::TopicCheck;
use super::codec::{Malformed, Reader};
use super::directory::Directory;
use super::generation::Ledger;
use super::give_back::{Doomed, load_doomed};
use super::home::Home;
use super::index::load_index_list;
use super::keys::{QUARANTINE, SlotKey, TOPIC, TOTALS};
use super::kv::KvRead;
use super::listing::Listing;
use super::log::{FileLog, SegmentLog};
use super::logged::Logged;
use super::open_error::OpenError;
use super::page::PagesError;
use super::pages_sled::{DEFAULT_CACHE_BYTES, SledPages};
use super::records::{topic, totals};
use super::recover::{check_counts, load, restore_journal, unmarked_fold};
use super::runs::{RunIndex, each, load_index};
use super::segment::{HeaderState, SegmentHeader, scan};
use super::state::PagesState;
use super::{Identity, SetAside, StoreId, StoreOptions};

/// Something that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file, relative to the data directory.
    pub file: String,
    /// The topic, if it is known.
    pub topic: Option<TopicId>,
    /// The damaged page or message; only this can be set aside.
    pub part: Option<DamagedPart>,
    /// How many live messages that concerns, if it is known.
    pub messages: Option<u64>,
    /// Those of them that can be named, at most [`MAX_KNOWN`](super::MAX_KNOWN).
    pub known: Vec<MessageId>,
    /// What is wrong.
    pub problem: String,
}

impl Finding {
    pub(super) fn of_pages(topic: Option<TopicId>, problem: impl Into<String>) -> Self {
        let (file, problem) = ("pages/db".to_owned(), problem.into());
        Self { file, topic, part: None, messages: None, known: Vec::new(), problem }
    }
}

/// A damaged page that was set aside before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InQuarantine {
    /// The topic.
    pub topic: TopicId,
    /// The number of the level and the first instant of the slot, milliseconds.
    pub slot: (u8, u64),
    /// The run.
    pub run: u64,
    /// Number of the page in its run.
    pub page: u32,
    /// Its size, bytes.
    pub bytes: usize,
}

/// A topic as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedTopic {
    /// The topic.
    pub record: TopicRecord,
    /// Waiting messages in pages.
    pub waiting: u64,
    /// Dead letters in pages.
    pub dead: u64,
    /// Its totals, the journal included.
    pub totals: Totals,
}

/// What a check has read and found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Journal segments in use.
    pub segments: u64,
    /// Records in them.
    pub commits: u64,
    /// The journal ends in a commit that was never answered; the next start drops it.
    pub is_torn: bool,
    /// Topics, by number.
    pub topics: Vec<CheckedTopic>,
    /// Pages that the directory lists.
    pub pages: u64,
    /// Messages in pages that are not dead copies.
    pub messages: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// Entries of the index.
    pub index_entries: u64,
    /// Ended messages that are remembered.
    pub ended: u64,
    /// Dedup ids that are remembered.
    pub dedup_ids: u64,
    /// Pages that were set aside before.
    pub quarantine: Vec<InQuarantine>,
    /// What does not fit.
    pub findings: Vec<Finding>,
}

/// Told how far a long work has come: how much of how much; of a check, pages.
pub type Watch<'a> = &'a mut dyn FnMut(u64, u64);

/// Checks the store in `directory`, which no broker may use.
///
/// # Errors
/// [`OpenError`] if there is no store, another process uses it, or it is of a format that cannot be read. Damage is no
/// error but a finding.
pub fn check(directory: &Path, watch: Watch<'_>) -> Result<CheckReport, OpenError> {
    let home = Home::open_existing(directory)?;
    let mut report = CheckReport::default();
    let log = FileLog::open(&home.journal).map_err(OpenError::io("the journal cannot be read"))?;
    match SledPages::open(&home.pages, DEFAULT_CACHE_BYTES) {
        Ok(pages) => check_with(&log, &pages, &home.identity, &mut report, watch),
        Err(error) => {
            check_segments(&log, &home.identity, &mut report);
            report.findings.push(Finding::of_pages(None, format!("the page store does not open: {error}")));
        }
    }
    for finding in &mut report.findings {
        if let Ok(relative) = Path::new(&finding.file).strip_prefix(directory) {
            finding.file = relative.display().to_string();
        }
    }
    Ok(report)
}

/// Checks a log and a key-value store.
pub(super) fn check_with(
    log: &dyn SegmentLog,
    kv: &dyn KvRead,
    identity: &Identity,
    report: &mut CheckReport,
    watch: Watch<'_>,
) {
    let is_journal_whole = check_segments(log, identity, report);
    let found = check_pages(kv, report, watch);
    let result = found
        .map_err(OpenError::from)
        .and_then(|found| if is_journal_whole { check_whole(log, identity, &found, report) } else { Ok(()) });
    if let Err(error) = result {
        report.findings.push(finding(&error));
    }
}

fn finding(error: &OpenError) -> Finding {
    let mut finding = Finding::of_pages(None, String::new());
    match error {
        OpenError::JournalDamaged { file, .. } => finding.file.clone_from(file),
        OpenError::JournalGap { .. } | OpenError::ForeignSegment { .. } => "journal".clone_into(&mut finding.file),
        OpenError::CountMismatch { topic, .. } => finding.topic = Some(*topic),
        _ => {}
    }
    finding.problem = error.problem();
    finding
}

/// Reads every record of every segment; true if all are good.
fn check_segments(log: &dyn SegmentLog, identity: &Identity, report: &mut CheckReport) -> bool {
    let before = report.findings.len();
    let newest = log
        .list()
        .into_iter()
        .filter_map(|(file, _)| header(log, file, &identity.store)?.ok())
        .max_by_key(|header| header.sequence);
    for (file, _) in log.list() {
        let mut add = |problem: String| {
            let finding = Finding { file: log.name(file), ..Finding::of_pages(None, problem) };
            report.findings.push(finding);
        };
        let header = match header(log, file, &identity.store) {
            None => continue,
            Some(Err(problem)) => {
                add(problem);
                continue;
            }
            Some(Ok(header)) => header,
        };
        let contents = log.read(file).unwrap_or_default();
        let scanned = scan(&contents, &header);
        let is_last = newest.is_some_and(|newest| newest.sequence == header.sequence);
        if scanned.later.is_some() {
            add(format!("offset {}: a commit is damaged, and good ones follow it", scanned.end));
        }
        for record in &scanned.records {
            let mut input = Reader::new(record.payload(&contents));
            while !input.is_empty() {
                if let Err(Malformed(problem)) = Logged::read(&mut input) {
                    add(format!("offset {}, commit {}: {problem}", record.offset, record.commit));
                    break;
                }
            }
        }
        report.segments += 1;
        report.commits += scanned.records.len() as u64;
        report.is_torn |= is_last && scanned.torn;
    }
    report.findings.len() == before
}

/// The header of a segment; `None` if the segment was never used.
fn header(log: &dyn SegmentLog, file: u32, store: &StoreId) -> Option<Result<SegmentHeader, String>> {
    let contents = match log.read(file) {
        Ok(contents) => contents,
        Err(error) => return Some(Err(format!("it cannot be read: {error}"))),
    };
    Some(match SegmentHeader::decode(&contents) {
        Err(Malformed(problem)) => Err(format!("offset 0: {problem}")),
        Ok(HeaderState::Newer(version)) => Err(format!("it has format {version}, of a newer version")),
        Ok(HeaderState::Blank) if contents.iter().any(|&byte| byte != 0) => {
            Err("offset 0: the header is gone".to_owned())
        }
        Ok(HeaderState::Blank) => return None,
        Ok(HeaderState::Used(header)) if header.store != *store => Err("it belongs to another store".to_owned()),
        Ok(HeaderState::Used(header)) => Ok(header),
    })
}

/// What the pages say of themselves.
struct FoundPages {
    state: PagesState,
    directory: Directory,
    topics: BTreeMap<TopicId, TopicRecord>,
    totals: BTreeMap<TopicId, Totals>,
    doomed: Doomed,
}

fn check_pages(kv: &dyn KvRead, report: &mut CheckReport, watch: Watch<'_>) -> Result<FoundPages, PagesError> {
    kv.scan(&[QUARANTINE], &mut |key, value| {
        if let Some((slot, run, page)) = SlotKey::parse(key) {
            let (topic, slot) = (slot.topic, (slot.level.number(), slot.start));
            report.quarantine.push(InQuarantine { topic, slot, run, page, bytes: value.len() });
        }
        ControlFlow::Continue(())
    })?;
    let state = PagesState::load(kv)?;
    if let Err(error) = Listing::load(kv, state.listing) {
        report.findings.push(Finding::of_pages(None, error.to_string()));
    }
    let (mut topics, mut all_totals) = (BTreeMap::new(), BTreeMap::new());
    load(kv, TOPIC, "topic", topic, &mut |_, record: TopicRecord| {
        topics.insert(record.id, record);
    })?;
    load(kv, TOTALS, "totals", totals, &mut |topic, totals| {
        all_totals.insert(topic, totals);
    })?;
    let doomed = load_doomed(kv)?;
    check_remembered(kv, &doomed, report);
    let directory = Directory::load(kv)?;
    let index = match load_index_list(kv) {
        Ok(index) => index,
        Err(error) => {
            report.findings.push(Finding::of_pages(None, error.to_string()));
            BTreeMap::new()
        }
    };
    let mut slots: BTreeMap<TopicId, Vec<_>> = BTreeMap::new();
    // What is listed of deleted topics is being removed.
    for (key, slot) in directory.slots().filter(|(key, _)| !doomed.contains_key(&key.topic)) {
        slots.entry(key.topic).or_default().push((*key, slot));
    }
    for &topic in index.keys().filter(|topic| !doomed.contains_key(topic)) {
        slots.entry(topic).or_default();
    }
    let total = directory.pages() as u64;
    for (topic, slots) in slots {
        let mut check = TopicCheck::begin(kv, topic, index.get(&topic), report);
        for (key, slot) in slots {
            check.slot(&key, slot, report, &mut |pages| watch(pages, total));
        }
        check.finish(report);
    }
    Ok(FoundPages { state, directory, topics, totals: all_totals, doomed })
}

fn check_remembered(kv: &dyn KvRead, doomed: &Doomed, report: &mut CheckReport) {
    let kept =
        |runs: RunIndex| -> RunIndex { runs.into_iter().filter(|(topic, _)| !doomed.contains_key(topic)).collect() };
    let (mut ended, mut dedup_ids) = (0, 0);
    let read = load_index::<Finished>(kv).and_then(|runs| each::<Finished>(kv, &kept(runs), &mut |_| ended += 1));
    let read_ids =
        load_index::<DedupRecord>(kv).and_then(|runs| each::<DedupRecord>(kv, &kept(runs), &mut |_| dedup_ids += 1));
    (report.ended, report.dedup_ids) = (ended, dedup_ids);
    for error in [read.err(), read_ids.err()].into_iter().flatten() {
        report.findings.push(Finding::of_pages(None, error.to_string()));
    }
}

/// The pages together with the journal, as a start reads them.
fn check_whole(
    log: &dyn SegmentLog,
    identity: &Identity,
    found: &FoundPages,
    report: &mut CheckReport,
) -> Result<(), OpenError> {
    let FoundPages { state, directory, topics, totals, doomed } = found;
    let segments = find_segments(log, identity)?;
    let mut chain = Chain::read(log, &segments.used, state, state.mark.through)?;
    if chain.noted_fold(log)? < state.mark.fold {
        chain = Chain::read(log, &segments.used, state, state.mark.previous_through)?;
        let (pages, journal) = (state.mark.fold, chain.noted_fold(log)?);
        if pages > journal + 1 {
            return Err(OpenError::JournalBehind { pages, journal });
        }
    }
    let unmarked = unmarked_fold(&chain, log, state)?;
    let mut ledger = Ledger { totals: totals.clone(), ..Ledger::default() };
    let mut all = topics.clone();
    restore_journal(&chain, log, state, &mut ledger, &mut |_| {})?;
    all.extend(ledger.young.topics.iter().map(|(&id, record)| (id, record.clone())));
    all.retain(|topic, _| !ledger.young.deleted.contains(topic));
    let live = directory.live();
    report.topics = all
        .into_iter()
        .map(|(id, record)| {
            let (waiting, dead) = live.get(&id).copied().unwrap_or_default();
            let totals = ledger.totals.get(&id).copied().unwrap_or_default();
            CheckedTopic { record, waiting, dead, totals }
        })
        .collect();
    check_counts(directory, doomed, &ledger, unmarked.as_ref())
}

/// Sets damaged parts aside while no broker runs, in the way a broker does: noted in the journal, then done by a fold.
/// Leases that outlived a clean stop are void afterwards.
///
/// # Errors
/// [`OpenError`] if the store does not open or cannot be written.
pub fn set_aside(
    directory: &Path,
    options: StoreOptions,
    now: Timestamp,
    parts: &[DamagedPart],
) -> Result<Vec<SetAside>, OpenError> {
    let mut clean = None;
    let mut opened = super::open(directory, options, &mut |restored| {
        if let Restored::Change(change @ Change::Closed { .. }) = restored {
            clean = Some(change);
        }
    })?;
    let changes: Vec<Change> = parts.iter().copied().map(Change::Quarantined).collect();
    let failed = |error: &dyn Error| OpenError::PagesFailed { problem: error.to_string() };
    let job = loop {
        opened.committer.commit(&changes).map_err(|error| failed(&error))?;
        // A fold that the last run did not note is noted by these commits first.
        if let Some(job) = opened.committer.freeze(now) {
            break job;
        }
    };
    crash_point!("set_aside.noted");
    let done = opened.folder.run(job).map_err(|error| failed(&error))?;
    crash_point!("set_aside.folded");
    let aside = done.set_aside.clone();
    opened.committer.folded(done).map_err(|error| failed(&error))?;
    crash_point!("set_aside.complete");
    // Without leases a clean stop stays one.
    if let Some(close) = clean.filter(|close| matches!(close, Change::Closed(closing) if closing.leases.is_empty())) {
        opened.committer.commit(&[close]).map_err(|error| failed(&error))?;
    }
    Ok(aside)
}
