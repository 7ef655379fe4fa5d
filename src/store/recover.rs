//! Recovery: pages as of the last fold, then the journal since.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::crash::crash_point;
use crate::queue::change::{Change, DedupRecord, Finished, Restored, TopicRecord, Totals};
use crate::queue::message::TopicId;
use crate::queue::time::Timestamp;

use super::chain::{Chain, find_segments, go_on};
use super::codec::{Malformed, Reader, unseal};
use super::committer::{Committer, UnmarkedFold};
use super::directory::Directory;
use super::folder::Folder;
use super::generation::Ledger;
use super::give_back::{Doomed, load_doomed};
use super::hold::{Held, MAX_WITHHELD};
use super::home::{HomeLock, Identity};
use super::index::{each_indexed, load_index_list};
use super::journal::Journal;
use super::keys::{TOPIC, TOTALS};
use super::kv::{Kv, KvRead};
use super::listing::Listing;
use super::log::SegmentLog;
use super::logged::Logged;
use super::open_error::OpenError;
use super::options::StoreOptions;
use super::page::PagesError;
use super::quarantine::PageName;
use super::records::{topic, totals};
use super::runs::{RunIndex, each, load_index};
use super::segment::StoreId;
use super::state::PagesState;
use super::writer::remove_unfinished;

/// An open store.
pub struct Opened {
    /// Takes changes.
    pub committer: Committer,
    /// Folds generations, on a thread of its own.
    pub folder: Folder,
    /// The epoch of this run: above the highest ever opened, by a random step if the store is in a directory. It is to
    /// be written as [`Change::Opened`] in the first commit.
    pub epoch: u32,
    /// The last run ended with [`Change::Closed`].
    pub clean: bool,
    /// Id and receipt secret of the store.
    pub identity: Identity,
    /// The end of the journal was torn: segment and offset of a commit that was never answered.
    pub torn: Option<(String, usize)>,
    /// The page store had lost this fold, which the journal has repeated: a reason to check the disk.
    pub repeated_fold: Option<u64>,
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
    crash_point!("recovery.pages_read");
    let found = find_segments(&*log, &identity)?;
    let mut chain = Chain::read(&*log, &found.used, &state, state.mark.through)?;
    let noted = chain.noted_fold(&*log)?;
    if noted < state.mark.fold {
        chain = Chain::read(&*log, &found.used, &state, state.mark.previous_through)?;
        let (pages, journal) = (state.mark.fold, chain.noted_fold(&*log)?);
        // A fold may have become durable without its note in the journal, but only one.
        if pages > journal + 1 {
            return Err(OpenError::JournalBehind { pages, journal });
        }
    }
    crash_point!("recovery.journal_read");
    remove_unfinished(&mut *kv)?;
    let mut folder = load_folder(kv, &state, identity.store, lock.clone())?;
    let mut ledger = Ledger {
        arrivals: state.arrivals,
        epoch: state.epoch,
        last_topic: state.last_topic.max(folder.topics.keys().next_back().copied().unwrap_or_default()),
        ..Ledger::default()
    };
    crash_point!("recovery.unfinished_removed");
    let unmarked = unmarked_fold(&chain, &*log, &state)?;
    restore_pages(&folder, &chain, &*log, unmarked.as_ref(), &mut ledger, sink)?;
    restore_journal(&chain, &*log, &state, &mut ledger, sink)?;
    check_counts(&folder.directory, &folder.doomed, &ledger, unmarked.as_ref())?;
    folder.avoided = ledger.young.damaged.iter().filter_map(PageName::of_whole).collect();
    crash_point!("recovery.restored");
    let torn = chain.torn.clone();
    let start = go_on(&mut *log, chain, found.spares, &state, &options)?;
    crash_point!("recovery.goes_on");
    let (epoch, clean) = (ledger.epoch + 1, ledger.closed);
    let max_spares = usize::try_from(options.generation_bytes * 3 / options.segment_bytes).unwrap_or(usize::MAX);
    let max_spares = max_spares.max(options.spare_segments) + 2;
    let mut journal = Journal::new(log, identity.store, options.segment_bytes, max_spares, start);
    journal.prepare(options.spare_segments).map_err(OpenError::io("no journal segment can be made"))?;
    crash_point!("recovery.prepared");
    let committer = Committer::new(journal, ledger, state.mark, options, unmarked, lock);
    let repeated_fold = (noted > state.mark.fold).then_some(noted);
    Ok(Opened { committer, folder, epoch, clean, identity, torn, repeated_fold })
}

pub(super) fn load_folder(
    kv: Box<dyn Kv>,
    state: &PagesState,
    store: StoreId,
    lock: Option<Arc<HomeLock>>,
) -> Result<Folder, OpenError> {
    let listing = Listing::load(&*kv, state.listing)?;
    let directory = Directory::load(&*kv)?;
    let index = load_index_list(&*kv)?;
    let (ended, dedup) = (load_index::<Finished>(&*kv)?, load_index::<DedupRecord>(&*kv)?);
    let mut topics = BTreeMap::new();
    load(&*kv, TOPIC, "topic", topic, &mut |_, record: TopicRecord| {
        topics.insert(record.id, record);
    })?;
    let worn = directory.slots().map(|(&key, _)| key).collect();
    let avoided = BTreeSet::new();
    let doomed = load_doomed(&*kv)?;
    Ok(Folder {
        kv,
        directory,
        index,
        ended,
        dedup,
        topics,
        listing,
        state: *state,
        worn,
        avoided,
        doomed,
        held: Held::default(),
        max_withheld: MAX_WITHHELD,
        store,
        lock,
    })
}

/// The frozen generation of a fold that the pages have and the journal does not: what it left to the journal
/// may not all have been carried.
pub(super) fn unmarked_fold(
    chain: &Chain,
    log: &dyn SegmentLog,
    state: &PagesState,
) -> Result<Option<UnmarkedFold>, OpenError> {
    let mark = state.mark;
    if chain.after == mark.through {
        return Ok(None);
    }
    let mut frozen = Ledger::default();
    chain.each(log, chain.after + 1..=mark.through, &mut |logged, bytes| {
        replay(&mut frozen, logged, bytes, mark.fold - 1).map(|_| ())
    })?;
    Ok(Some(UnmarkedFold { table: frozen.young, carry_before: state.carry_before }))
}

/// Everything as of the last fold; of what is in pages only how much it is, and where to find what must be found.
fn restore_pages(
    folder: &Folder,
    chain: &Chain,
    log: &dyn SegmentLog,
    unmarked: Option<&UnmarkedFold>,
    ledger: &mut Ledger,
    sink: &mut dyn FnMut(Restored),
) -> Result<(), OpenError> {
    sink(Restored::LastTopic(ledger.last_topic));
    folder.topics.values().for_each(|topic| sink(Restored::Topic(topic.clone())));
    load(&*folder.kv, TOTALS, "totals", totals, &mut |topic, totals: Totals| {
        ledger.totals.insert(topic, totals);
    })?;
    for (&topic, &totals) in &ledger.totals {
        ledger.live += live(topic, &totals)?;
        sink(Restored::Totals(topic, totals));
    }
    sink(Restored::Fold(folder.state.mark.fold));
    let live = folder.directory.live();
    let is_kept = |topic: &TopicId| !folder.doomed.contains_key(topic);
    let topics: BTreeSet<TopicId> = folder.topics.keys().chain(live.keys()).copied().collect();
    for topic in topics.into_iter().filter(is_kept) {
        let (waiting, dead) = live.get(&topic).copied().unwrap_or_default();
        let first = folder.directory.first_waiting(topic).filter(|_| waiting > 0);
        sink(Restored::Stored { topic, waiting, dead, first });
    }
    let kept = folder.index.iter().filter(|&(topic, _)| is_kept(topic));
    each_indexed(&*folder.kv, kept, sink)?;
    let mut carried = HashSet::new();
    chain.each_change(log, &mut |logged, _| {
        match logged {
            Logged::Carried { fold, message } if fold == folder.state.mark.fold => {
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
    let kept = |runs: &RunIndex| -> RunIndex {
        runs.iter().filter(|&(topic, _)| is_kept(topic)).map(|(&topic, runs)| (topic, runs.clone())).collect()
    };
    each::<Finished>(&*folder.kv, &kept(&folder.ended), &mut |ended| sink(Restored::Ended(ended)))?;
    each::<DedupRecord>(&*folder.kv, &kept(&folder.dedup), &mut |dedup| sink(Restored::Dedup(dedup)))?;
    Ok(())
}

/// Values of one kind under topic keys.
pub(super) fn load<T>(
    kv: &dyn KvRead,
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
pub(super) fn restore_journal(
    chain: &Chain,
    log: &dyn SegmentLog,
    state: &PagesState,
    ledger: &mut Ledger,
    sink: &mut dyn FnMut(Restored),
) -> Result<(), OpenError> {
    if state.arrivals > 0 {
        sink(Restored::Change(Change::ArrivalsReserved(state.arrivals)));
    }
    if state.epoch > 0 {
        // The segment that told when may be gone.
        sink(Restored::Change(Change::Opened { epoch: state.epoch, at: Timestamp::ZERO }));
    }
    chain.each_change(log, &mut |logged, bytes| {
        ledger.closed = matches!(logged, Logged::Closed(_));
        if let Some(change) = replay(ledger, logged, bytes, state.mark.fold)? {
            // A clean stop that was followed by another start says nothing any more; the last one does.
            if matches!(change, Change::Closed(_)) {
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
        Logged::TopicDeleted { topic, in_pages } => {
            ledger.topic_deleted(topic, in_pages);
            Change::TopicDeleted { topic, in_pages }
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
        Logged::Quarantined(part) => {
            ledger.quarantined(&part);
            Change::Quarantined(part)
        }
        Logged::Arrivals(through) => {
            ledger.arrivals = ledger.arrivals.max(through);
            Change::ArrivalsReserved(through)
        }
        Logged::Opened { epoch, at } => {
            ledger.epoch = ledger.epoch.max(epoch);
            Change::Opened { epoch, at }
        }
        Logged::Closed(closing) => Change::Closed(closing),
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

/// The totals say how many messages live; pages and journal must hold as many. What they hold of deleted topics does not
/// count.
pub(super) fn check_counts(
    directory: &Directory,
    doomed: &Doomed,
    ledger: &Ledger,
    unmarked: Option<&UnmarkedFold>,
) -> Result<(), OpenError> {
    let is_gone = |topic: &TopicId| ledger.young.deleted.contains(topic);
    let live_in_pages = directory.live().into_iter();
    let live_in_pages = live_in_pages.filter(|(topic, _)| !doomed.contains_key(topic) && !is_gone(topic));
    let mut found: BTreeMap<TopicId, u64> =
        live_in_pages.map(|(topic, (waiting, dead))| (topic, waiting + dead)).collect();
    for message in unmarked.into_iter().flat_map(UnmarkedFold::to_carry) {
        if ledger.young.entry(message.id.arrival).is_none() && !is_gone(&message.id.topic) {
            *found.entry(message.id.topic).or_default() += 1;
        }
    }
    for entry in ledger.young.kept() {
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
    let live = totals.produced.checked_sub(totals.gone());
    live.ok_or_else(|| OpenError::PagesDamaged {
        what: format!("the totals of topic {} contradict themselves", topic.0),
    })
}
