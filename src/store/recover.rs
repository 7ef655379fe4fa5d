//! Recovery: pages as of the last fold, then the journal since.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::queue::change::{Change, DedupRecord, Finished, Restored, TopicRecord, Totals};
use crate::queue::message::TopicId;

use super::codec::{Malformed, Reader, unseal};
use super::committer::{Committer, UnmarkedFold};
use super::directory::Directory;
use super::folder::{Folder, PagesState, remove_unfinished};
use super::generation::Ledger;
use super::home::{HomeLock, Identity};
use super::journal::{Journal, JournalStart, UsedSegment};
use super::keys::{TOPIC, TOTALS};
use super::kv::Kv;
use super::listing::Listing;
use super::log::SegmentLog;
use super::logged::Logged;
use super::open_error::OpenError;
use super::options::StoreOptions;
use super::page::PagesError;
use super::records::{topic, totals};
use super::runs::{each, load_index};
use super::segment::{FoundRecord, HeaderState, JOURNAL_VERSION, Scan, SegmentHeader, scan};

/// An open store.
pub struct Opened {
    /// Takes changes.
    pub committer: Committer,
    /// Folds generations, on a thread of its own.
    pub folder: Folder,
    /// The epoch of this run: one more than the highest ever opened. It is to be written as
    /// [`Change::Opened`] in the first commit.
    pub epoch: u32,
    /// The last run ended with [`Change::Closed`].
    pub clean: bool,
    /// Id and receipt secret of the store.
    pub identity: Identity,
    /// The end of the journal was torn: segment and offset of a commit that was never answered.
    pub torn: Option<(String, usize)>,
}

/// Opens a store on a log and a key-value store, giving what it holds to `sink` in the order of [`Restored`].
///
/// # Errors
/// [`OpenError`]; `sink` may have been given some items by then.
pub fn open_with(
    log: Box<dyn SegmentLog>,
    kv: Box<dyn Kv>,
    identity: Identity,
    options: StoreOptions,
    sink: &mut dyn FnMut(Restored),
) -> Result<Opened, OpenError> {
    open_locked(log, kv, identity, options, None, sink)
}

pub(super) fn open_locked(
    mut log: Box<dyn SegmentLog>,
    mut kv: Box<dyn Kv>,
    identity: Identity,
    options: StoreOptions,
    lock: Option<Arc<HomeLock>>,
    sink: &mut dyn FnMut(Restored),
) -> Result<Opened, OpenError> {
    let state = PagesState::load(&*kv)?;
    let found = find_segments(&*log, &identity)?;
    let mut chain = Chain::read(&*log, &found.used, &state, state.mark.through)?;
    if chain.noted_fold(&*log)? < state.mark.fold {
        chain = Chain::read(&*log, &found.used, &state, state.mark.previous_through)?;
        let (pages, journal) = (state.mark.fold, chain.noted_fold(&*log)?);
        // A fold may have become durable without its note in the journal, but only one.
        if pages > journal + 1 {
            return Err(OpenError::JournalBehind { pages, journal });
        }
    }
    remove_unfinished(&mut *kv)?;
    let folder = load_folder(kv, &state, lock.clone())?;
    let mut ledger = Ledger { arrivals: state.arrivals, epoch: state.epoch, ..Ledger::default() };
    let unmarked = chain.unmarked_fold(&*log)?;
    restore_pages(&folder, &chain, &*log, unmarked.as_ref(), &mut ledger, sink)?;
    restore_journal(&chain, &*log, &state, &mut ledger, sink)?;
    check_counts(&folder.directory, &ledger, unmarked.as_ref())?;
    let torn = chain.torn.clone();
    let start = go_on(&mut *log, chain, found.spares, &state, &options)?;
    let (epoch, clean) = (ledger.epoch + 1, ledger.closed);
    let max_spares = usize::try_from(options.generation_bytes * 3 / options.segment_bytes).unwrap_or(usize::MAX);
    let max_spares = max_spares.max(options.spare_segments) + 2;
    let mut journal = Journal::new(log, identity.store, options.segment_bytes, max_spares, start);
    journal.prepare(options.spare_segments).map_err(OpenError::io("no journal segment can be made"))?;
    let committer = Committer::new(journal, ledger, state.mark, options, unmarked, lock);
    Ok(Opened { committer, folder, epoch, clean, identity, torn })
}

struct FoundSegments {
    used: BTreeMap<u64, UsedSegment>,
    spares: Vec<(u32, u64)>,
}

fn find_segments(log: &dyn SegmentLog, identity: &Identity) -> Result<FoundSegments, OpenError> {
    let mut found = FoundSegments { used: BTreeMap::new(), spares: Vec::new() };
    for (file, bytes) in log.list() {
        let contents = read_segment(log, file)?;
        let damaged = |problem| OpenError::JournalDamaged { file: log.name(file), offset: 0, problem };
        match SegmentHeader::decode(&contents).map_err(|Malformed(problem)| damaged(problem))? {
            HeaderState::Newer(found) => {
                let path = log.name(file).into();
                return Err(OpenError::NewerFormat { path, found, supported: JOURNAL_VERSION });
            }
            HeaderState::Blank if contents.iter().any(|&byte| byte != 0) => {
                return Err(damaged("the header is gone"));
            }
            HeaderState::Blank => found.spares.push((file, bytes)),
            HeaderState::Used(header) if header.store != identity.store => {
                return Err(OpenError::ForeignSegment { file: log.name(file) });
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

fn read_segment(log: &dyn SegmentLog, file: u32) -> Result<Vec<u8>, OpenError> {
    log.read(file).map_err(OpenError::io(format!("{} cannot be read", log.name(file))))
}

/// The segments that recovery needs, in order, and what they hold.
struct Chain {
    segments: Vec<(UsedSegment, Vec<FoundRecord>)>,
    /// Where the next record goes in the last segment.
    end: usize,
    torn: Option<(String, usize)>,
    /// Other segments with a header, by sequence: the anchor of a rollback, or spares.
    others: BTreeMap<u64, UsedSegment>,
    state: PagesState,
    /// The last commit before those that were asked for.
    after: u64,
}

impl Chain {
    /// Finds the records after commit `after` and checks that none is missing.
    fn read(
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
    fn noted_fold(&self, log: &dyn SegmentLog) -> Result<u64, OpenError> {
        let all = self.segments.iter().map(|(segment, _)| segment).chain(self.others.values());
        let mut journal = all.map(|segment| segment.header.fold).max().unwrap_or(0);
        self.each(log, self.after + 1..=u64::MAX, &mut |logged, _| {
            if let Logged::Folded { fold, .. } = logged {
                journal = journal.max(fold);
            }
            Ok(())
        })?;
        let pages = self.state.mark.fold;
        if journal > pages + 1 {
            return Err(OpenError::PagesRolledBack { pages, journal });
        }
        Ok(journal)
    }

    /// The frozen generation of a fold that the pages have and the journal does not: what it left to the
    /// journal may not all have been carried.
    fn unmarked_fold(&self, log: &dyn SegmentLog) -> Result<Option<UnmarkedFold>, OpenError> {
        let mark = self.state.mark;
        if self.after == mark.through {
            return Ok(None);
        }
        let mut frozen = Ledger::default();
        self.each(log, self.after + 1..=mark.through, &mut |logged, bytes| {
            replay(&mut frozen, logged, bytes, mark.fold - 1).map(|_| ())
        })?;
        Ok(Some(UnmarkedFold { table: frozen.young, carry_before: self.state.carry_before }))
    }

    /// Gives every change after the last fold and its size to `visit`.
    fn each_change(
        &self,
        log: &dyn SegmentLog,
        visit: &mut dyn FnMut(Logged, usize) -> Result<(), Malformed>,
    ) -> Result<(), OpenError> {
        self.each(log, self.state.mark.through + 1..=u64::MAX, visit)
    }

    fn each(
        &self,
        log: &dyn SegmentLog,
        commits: std::ops::RangeInclusive<u64>,
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

fn load_folder(kv: Box<dyn Kv>, state: &PagesState, lock: Option<Arc<HomeLock>>) -> Result<Folder, OpenError> {
    let listing = Listing::load(&*kv, state.listing)?;
    let directory = Directory::load(&*kv)?;
    let (ended, dedup) = (load_index::<Finished>(&*kv)?, load_index::<DedupRecord>(&*kv)?);
    let mut topics = BTreeMap::new();
    load(&*kv, TOPIC, "topic", topic, &mut |_, record: TopicRecord| {
        topics.insert(record.id, record);
    })?;
    Ok(Folder { kv, directory, ended, dedup, topics, listing, mark: state.mark, _lock: lock })
}

/// Everything as of the last fold.
fn restore_pages(
    folder: &Folder,
    chain: &Chain,
    log: &dyn SegmentLog,
    unmarked: Option<&UnmarkedFold>,
    ledger: &mut Ledger,
    sink: &mut dyn FnMut(Restored),
) -> Result<(), OpenError> {
    folder.topics.values().for_each(|topic| sink(Restored::Topic(topic.clone())));
    load(&*folder.kv, TOTALS, "totals", totals, &mut |topic, totals: Totals| {
        ledger.totals.insert(topic, totals);
    })?;
    for (&topic, &totals) in &ledger.totals {
        ledger.live += live(topic, &totals)?;
        sink(Restored::Totals(topic, totals));
    }
    folder.directory.each_message(&*folder.kv, &mut |message| sink(Restored::Message(message)))?;
    let mut carried = HashSet::new();
    chain.each_change(log, &mut |logged, _| {
        match logged {
            Logged::Carried { fold, message } if fold == folder.mark.fold => {
                carried.insert(message.id.arrival);
                sink(Restored::Message(message));
            }
            _ => {}
        }
        Ok(())
    })?;
    let entries = unmarked.into_iter().flat_map(UnmarkedFold::to_carry);
    entries.filter(|message| !carried.contains(&message.id.arrival)).for_each(|message| {
        sink(Restored::Message(message.clone()));
    });
    each::<Finished>(&*folder.kv, &folder.ended, &mut |ended| sink(Restored::Ended(ended)))?;
    each::<DedupRecord>(&*folder.kv, &folder.dedup, &mut |dedup| sink(Restored::Dedup(dedup)))?;
    Ok(())
}

/// Values of one kind under topic keys.
fn load<T>(
    kv: &dyn Kv,
    kind: u8,
    name: &str,
    read: impl Fn(&mut Reader<'_>) -> Result<T, Malformed>,
    take: &mut dyn FnMut(TopicId, T),
) -> Result<(), PagesError> {
    let mut problem = None;
    kv.scan(&[kind], &mut |key, value| {
        let parsed = || {
            let id = key.get(1..).and_then(|id| id.try_into().ok()).ok_or(Malformed("not a topic's key"))?;
            let mut input = Reader::new(unseal(key, value)?);
            let value = read(&mut input)?;
            input.finish()?;
            Ok((TopicId(u32::from_be_bytes(id)), value))
        };
        match parsed() {
            Ok((topic, value)) => {
                take(topic, value);
                ControlFlow::Continue(())
            }
            Err(error) => {
                problem = Some(PagesError::damaged(format!("{name} {key:02x?}"))(error));
                ControlFlow::Break(())
            }
        }
    })?;
    problem.map_or(Ok(()), Err)
}

/// Everything since.
fn restore_journal(
    chain: &Chain,
    log: &dyn SegmentLog,
    state: &PagesState,
    ledger: &mut Ledger,
    sink: &mut dyn FnMut(Restored),
) -> Result<(), OpenError> {
    if state.arrivals > 0 {
        sink(Restored::Change(Change::ArrivalsReserved(state.arrivals)));
    }
    chain.each_change(log, &mut |logged, bytes| {
        ledger.closed = matches!(logged, Logged::Closed { .. });
        if let Some(change) = replay(ledger, logged, bytes, state.mark.fold)? {
            // A clean stop that was followed by another start says nothing any more; the last one does.
            if matches!(change, Change::Closed { .. }) {
                ledger.last_close = Some(change);
            } else {
                sink(Restored::Change(change));
            }
        }
        ledger.young.bytes += bytes as u64;
        Ok(())
    })?;
    let last_close = ledger.last_close.take();
    if ledger.closed {
        sink(Restored::Change(last_close.expect("the last change was a close")));
    }
    Ok(())
}

/// Brings one journal item into the ledger; gives the change that it stands for, if it is one.
fn replay(ledger: &mut Ledger, logged: Logged, bytes: usize, fold: u64) -> Result<Option<Change>, Malformed> {
    Ok(Some(match logged {
        Logged::Topic(topic) => {
            ledger.topic(&topic);
            Change::TopicPut(topic)
        }
        Logged::Produced(message) => {
            ledger.produced(&message, bytes);
            Change::Produced(message)
        }
        Logged::Moved { message, previous, entry } => {
            ledger.moved(&message, previous, bytes);
            Change::Moved { message, previous, entry }
        }
        Logged::Progressed { arrival, progress, entry } => {
            let missing = Malformed("a difference to a message that the generation does not hold");
            let previous = ledger.young.message(arrival).ok_or(missing)?.place();
            let message = ledger.progressed(arrival, progress, entry.clone(), bytes).ok_or(missing)?;
            Change::Moved { message, previous, entry }
        }
        Logged::Finished(finished) => {
            ledger.finished(&finished);
            Change::Finished(finished)
        }
        Logged::Dedup(dedup) => {
            ledger.dedup(&dedup);
            Change::DedupPut(dedup)
        }
        Logged::Arrivals(through) => {
            ledger.arrivals = ledger.arrivals.max(through);
            Change::ArrivalsReserved(through)
        }
        Logged::Opened { epoch, at } => {
            ledger.epoch = ledger.epoch.max(epoch);
            Change::Opened { epoch, at }
        }
        Logged::Closed { at, leases } => Change::Closed { at, leases },
        Logged::Carried { fold: by, message } => {
            let is_known = ledger.young.entry(message.id.arrival).is_some();
            if by == fold && !is_known {
                ledger.carried(&message, bytes);
            } else if !is_known || by == fold {
                // A fold that the pages do not have left the message where this generation knows it.
                return Err(Malformed("a carried message that does not fit the fold of the pages"));
            }
            return Ok(None);
        }
        Logged::Folded { .. } => return Ok(None),
    }))
}

/// The totals say how many messages live; pages and journal must hold as many.
fn check_counts(directory: &Directory, ledger: &Ledger, unmarked: Option<&UnmarkedFold>) -> Result<(), OpenError> {
    let mut found = directory.live();
    for message in unmarked.into_iter().flat_map(UnmarkedFold::to_carry) {
        if ledger.young.entry(message.id.arrival).is_none() {
            *found.entry(message.id.topic).or_default() += 1;
        }
    }
    for entry in &ledger.young.entries {
        let count = found.entry(entry.topic).or_default();
        // A page can lack a message only if it was lost; then the sums differ below.
        *count = (*count + u64::from(entry.state.is_some())).saturating_sub(u64::from(entry.in_pages.is_some()));
    }
    let topics: BTreeSet<_> = found.keys().chain(ledger.totals.keys()).copied().collect();
    for topic in topics {
        let totals = ledger.totals.get(&topic).copied().unwrap_or_default();
        let (counted, found) = (live(topic, &totals)?, found.get(&topic).copied().unwrap_or(0));
        if counted != found {
            return Err(OpenError::CountMismatch { topic, counted, found });
        }
    }
    Ok(())
}

fn live(topic: TopicId, totals: &Totals) -> Result<u64, OpenError> {
    let gone = totals.acked + totals.cancelled + totals.replaced + totals.purged + totals.quarantined;
    let live = totals.produced.checked_sub(gone);
    live.ok_or_else(|| OpenError::PagesDamaged {
        what: format!("the totals of topic {} contradict themselves", topic.0),
    })
}

/// Prepares the journal for going on where it ended.
///
/// The last record is written and synced once more: if its sync failed in the last run, the bytes that were
/// just read may exist in the system's memory only.
fn go_on(
    log: &mut dyn SegmentLog,
    mut chain: Chain,
    mut spares: Vec<(u32, u64)>,
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
    }
    Ok(JournalStart { used, spares, end: chain.end as u64, next_commit, next_sequence: newest + 1 })
}
