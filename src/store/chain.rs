//! Reading the journal: which segments are needed, that none is missing and none damaged.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

use crate::crash::crash_point;

use super::codec::{Malformed, Reader};
use super::home::Identity;
use super::journal::{JournalStart, UsedSegment};
use super::log::{SegmentFile, SegmentLog};
use super::logged::Logged;
use super::open_error::OpenError;
use super::options::StoreOptions;
use super::segment::{FoundRecord, HeaderState, JOURNAL_VERSION, Scan, SegmentHeader, scan, written_bytes};
use super::state::PagesState;

/// The segments on the medium.
pub(super) struct FoundSegments {
    /// By sequence number.
    pub(super) used: BTreeMap<u64, UsedSegment>,
    pub(super) spares: Vec<(SegmentFile, u64)>,
}

/// Reads the header of every segment.
pub(super) fn find_segments(log: &dyn SegmentLog, identity: &Identity) -> Result<FoundSegments, OpenError> {
    let mut found = FoundSegments { used: BTreeMap::new(), spares: Vec::new() };
    for (file, bytes) in log.list() {
        let contents = read_segment(log, file)?;
        let damaged = |problem| OpenError::JournalDamaged { file: log.name(file), offset: 0, problem };
        match SegmentHeader::decode(&contents).map_err(|Malformed(problem)| damaged(problem))? {
            HeaderState::Newer(found) => {
                let path = log.name(file).into();
                return Err(OpenError::NewerFormat { path, found, supported: JOURNAL_VERSION });
            }
            HeaderState::Blank if written_bytes(&contents) > 0 => {
                return Err(damaged("the header is gone"));
            }
            HeaderState::Blank => found.spares.push((file, bytes)),
            HeaderState::Used(header) if header.store != identity.store => {
                return Err(OpenError::ForeignSegment { file: log.name(file) });
            }
            HeaderState::Used(header) if header.bytes != 0 && header.bytes != bytes => {
                return Err(damaged("the file is not as long as it was made: its end is lost"));
            }
            HeaderState::Used(header) => {
                if found.used.insert(header.sequence, UsedSegment { file, bytes, header }).is_some() {
                    return Err(damaged("another segment has the same number: was a file copied?"));
                }
            }
        }
    }
    Ok(found)
}

fn read_segment(log: &dyn SegmentLog, file: SegmentFile) -> Result<Vec<u8>, OpenError> {
    log.read(file).map_err(OpenError::io(format!("{} cannot be read", log.name(file))))
}

/// The segments that recovery needs, in order, and what they hold.
pub(super) struct Chain {
    segments: Vec<(UsedSegment, Vec<FoundRecord>)>,
    /// Where the next record goes in the last segment.
    end: usize,
    /// A commit that was begun and is not whole.
    pub(super) torn: Option<(String, usize)>,
    /// Other segments with a header, by sequence: the anchor of a rollback, or spares.
    others: BTreeMap<u64, UsedSegment>,
    state: PagesState,
    /// The last commit before those that were asked for.
    pub(super) after: u64,
}

impl Chain {
    /// Finds the records after commit `after` and checks that none is missing.
    pub(super) fn read(
        log: &dyn SegmentLog,
        used: &BTreeMap<u64, UsedSegment>,
        state: &PagesState,
        after: u64,
    ) -> Result<Self, OpenError> {
        let (mark, mut used) = (state.mark, used.clone());
        let headers_fold = used.values().map(|segment| segment.header.fold).max().unwrap_or(0);
        if headers_fold > mark.fold + 1 {
            return Err(OpenError::PagesRolledBack { pages: mark.fold, journal: headers_fold });
        }
        let mut needed = VecDeque::new();
        let mut next = None;
        while let Some(sequence) = next.unwrap_or_else(|| used.last_key_value().map(|(&sequence, _)| sequence)) {
            let Some(segment) = used.remove(&sequence) else { break };
            needed.push_front(segment);
            if segment.header.first_commit <= after + 1 {
                break;
            }
            next = Some(sequence.checked_sub(1));
        }
        let first = needed.front().map(|segment| segment.header.first_commit);
        if first.is_none_or(|first| first > after + 1) && (first.is_some() || mark.fold > 0) {
            return Err(OpenError::JournalGap { expected: after + 1, found: first });
        }
        let mut chain = Self { segments: Vec::new(), end: 0, torn: None, others: used, state: *state, after };
        while let Some(segment) = needed.pop_front() {
            chain.add(log, segment, needed.front())?;
        }
        let last = chain.last_commit();
        if last < mark.through {
            return Err(OpenError::JournalGap { expected: mark.through, found: Some(last) });
        }
        Ok(chain)
    }

    fn add(&mut self, log: &dyn SegmentLog, segment: UsedSegment, next: Option<&UsedSegment>) -> Result<(), OpenError> {
        let contents = read_segment(log, segment.file)?;
        let Scan { records, end, torn, later } = scan(&contents, &segment.header);
        let damaged = |problem| OpenError::JournalDamaged { file: log.name(segment.file), offset: end, problem };
        if later.is_some() {
            return Err(damaged("a commit is damaged, and good ones follow it"));
        }
        let last = segment.header.first_commit + records.len() as u64 - 1;
        match next {
            Some(next) if next.header.first_commit != last + 1 => {
                return Err(damaged("a commit is damaged, and the next segment follows it"));
            }
            Some(_) => {}
            None => {
                self.end = end;
                self.torn = torn.then(|| (log.name(segment.file), end));
            }
        }
        self.segments.push((segment, records));
        Ok(())
    }

    fn last_commit(&self) -> u64 {
        self.segments.last().map_or(0, |(segment, records)| segment.header.first_commit + records.len() as u64 - 1)
    }

    /// The last fold that the journal knows of. Pages that are more than one fold behind it are refused;
    /// one fold is repeated by the commits that follow.
    pub(super) fn noted_fold(&self, log: &dyn SegmentLog) -> Result<u64, OpenError> {
        let mark = self.state.mark;
        // A fold that the pages have lost is repeated under its number, and covers more: the note of the one is not the
        // note of the other.
        let noted = |fold, through| if fold == mark.fold && through != mark.through { fold - 1 } else { fold };
        let headers = self.segments.iter().map(|(segment, _)| segment.header);
        let headers = headers.chain(self.others.values().map(|segment| segment.header));
        // Before the first fold there is none to be noted.
        let headers = headers.filter(|header| header.fold > 0);
        let mut journal = headers.map(|header| noted(header.fold, header.folded_through)).max().unwrap_or(0);
        self.each(log, self.after + 1..=u64::MAX, &mut |logged, _| {
            if let Logged::Folded { fold, through } = logged {
                journal = journal.max(noted(fold, through));
            }
            Ok(())
        })?;
        let pages = self.state.mark.fold;
        if journal > pages + 1 {
            return Err(OpenError::PagesRolledBack { pages, journal });
        }
        Ok(journal)
    }

    /// Gives every change after the last fold and its size to `visit`.
    pub(super) fn each_change(
        &self,
        log: &dyn SegmentLog,
        visit: &mut dyn FnMut(Logged, usize) -> Result<(), Malformed>,
    ) -> Result<(), OpenError> {
        self.each(log, self.state.mark.through + 1..=u64::MAX, visit)
    }

    /// Gives every change of the commits to `visit`, with its size in bytes.
    pub(super) fn each(
        &self,
        log: &dyn SegmentLog,
        commits: RangeInclusive<u64>,
        visit: &mut dyn FnMut(Logged, usize) -> Result<(), Malformed>,
    ) -> Result<(), OpenError> {
        for (segment, records) in &self.segments {
            let contents = read_segment(log, segment.file)?;
            for record in records.iter().filter(|record| commits.contains(&record.commit)) {
                let mut input = Reader::new(record.payload(&contents));
                let mut read_all = || {
                    while !input.is_empty() {
                        let before = input.rest().len();
                        let logged = Logged::read(&mut input)?;
                        visit(logged, before - input.rest().len())?;
                    }
                    Ok(())
                };
                read_all().map_err(|Malformed(problem)| {
                    let file = log.name(segment.file);
                    OpenError::JournalDamaged { file, offset: record.offset, problem }
                })?;
            }
        }
        Ok(())
    }
}

/// Prepares the journal for going on where it ended.
///
/// The last record is written and synced once more: if its sync failed in the last run, the bytes that were
/// just read may exist in the system's memory only.
pub(super) fn go_on(
    log: &mut dyn SegmentLog,
    mut chain: Chain,
    mut spares: Vec<(SegmentFile, u64)>,
    state: &PagesState,
    options: &StoreOptions,
) -> Result<JournalStart, OpenError> {
    let mut used: VecDeque<UsedSegment> = chain.segments.iter().map(|&(segment, _)| segment).collect();
    if let Some((segment, records)) = chain.segments.last() {
        let failed = || OpenError::io(format!("{} cannot be written", log.name(segment.file)));
        let (failed_write, failed_sync) = (failed(), failed());
        let contents = read_segment(log, segment.file)?;
        let from = records.last().map_or(0, |record| record.offset);
        let bytes = &contents[from..chain.end];
        log.write(segment.file, from as u64, bytes).map_err(failed_write)?;
        crash_point!("recovery.end_written");
        log.sync(segment.file).map_err(failed_sync)?;
    }
    let next_commit = chain.last_commit() + 1;
    let newest = used.back().map_or(0, |segment| segment.header.sequence);
    // The segments of the last fold stay: they undo a rollback of the pages by one fold.
    while let Some(front) = used.front() {
        let below = front.header.sequence.checked_sub(1);
        let anchor = below.and_then(|sequence| chain.others.get(&sequence).copied());
        match anchor {
            Some(anchor) if front.header.first_commit > state.mark.previous_through + 1 => {
                chain.others.remove(&anchor.header.sequence);
                used.push_front(anchor);
            }
            _ => break,
        }
    }
    spares.extend(chain.others.values().map(|segment| (segment.file, segment.bytes)));
    let (spares, odd): (Vec<_>, Vec<_>) = spares.into_iter().partition(|&(_, bytes)| bytes == options.segment_bytes);
    for (file, _) in odd {
        let failed = OpenError::io(format!("{} cannot be removed", log.name(file)));
        log.remove(file).map_err(failed)?;
        crash_point!("recovery.odd_removed");
    }
    Ok(JournalStart { used, spares, end: chain.end as u64, next_commit, next_sequence: newest + 1 })
}
