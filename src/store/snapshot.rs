//! A snapshot: everything that the store held at one commit, to be written as a backup while the store goes on.
//!
//! It is taken where a generation ends. That generation is folded as always; then the pages hold everything up to that
//! commit, apart from the messages that the fold has left to the journal, and these the snapshot takes along. What
//! lists the pages is copied (it is shared, so that costs little), and what it lists is held.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::crash::crash_point;
use crate::queue::change::{DedupRecord, Finished, TopicRecord, Totals};
use crate::queue::message::{Message, Place, TopicId};
use crate::queue::quarantine::DamagedPart;
use crate::queue::time::Timestamp;

use super::backup_file::{BackupCounts, BackupHeader, BackupSink, BackupWriter, Stopped};
use super::committer::{FoldDone, FoldJob};
use super::directory::Directory;
use super::folder::{FoldError, Folder};
use super::hold::Hold;
use super::home::HomeLock;
use super::keys::{Level, TOTALS};
use super::kv::{KvError, KvRead};
use super::page::PagesError;
use super::records::totals;
use super::recover::load;
use super::runs::{Remembered, RunIndex, each};
use super::tombstones::TombstoneCache;
use super::walk::{NONE_AVOIDED, Step, Stock, Walk};

/// The state of a store at one commit.
pub struct Snapshot {
    header: BackupHeader,
    kv: Box<dyn KvRead>,
    directory: Directory,
    topics: BTreeMap<TopicId, (TopicRecord, Totals)>,
    carried: BTreeMap<TopicId, Vec<Message>>,
    ended: RunIndex,
    dedup: RunIndex,
    hold: Arc<Hold>,
    _lock: Option<Arc<HomeLock>>,
}

/// Why a backup was not finished. The store is none the worse for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackupError {
    /// Whoever takes it does not want more.
    #[error("the backup was given up by its reader")]
    Stopped,
    /// It was read so slowly that too much had to be kept for it.
    #[error("the backup took so long that too much of what it reads had changed; read it faster, or at a quieter time")]
    Overtaken,
    /// A part of the pages cannot be read.
    #[error("the store is damaged, so a backup would lack something: {what}")]
    Damaged {
        /// What and where.
        what: String,
        /// The page or message, if it is one, which can be set aside.
        part: Option<DamagedPart>,
    },
}

impl From<Stopped> for BackupError {
    fn from(Stopped: Stopped) -> Self {
        Self::Stopped
    }
}

impl Folder {
    /// Runs a fold as [`Folder::run`] does, and takes a snapshot of what the store held when the job was made.
    ///
    /// # Errors
    /// [`FoldError`]; the folder is of no use any more.
    #[expect(clippy::needless_pass_by_value, reason = "a fold runs once, and its table is let go with it")]
    pub fn run_and_snapshot(&mut self, job: FoldJob) -> Result<(FoldDone, Snapshot), FoldError> {
        let fold = job.mark.fold;
        let done = self.fold(&job);
        let both = done.and_then(|done| Ok((done, self.snapshot(&job)?)));
        both.map_err(|problem| FoldError { fold, problem })
    }

    fn snapshot(&mut self, job: &FoldJob) -> Result<Snapshot, PagesError> {
        let hold = self.hold()?;
        crash_point!("snapshot.held");
        let mut counted: BTreeMap<TopicId, Totals> = BTreeMap::new();
        load(&*self.kv, TOTALS, "totals", totals, &mut |topic, totals| {
            counted.insert(topic, totals);
        })?;
        let with_totals = |(&id, topic): (&TopicId, &TopicRecord)| {
            (id, (topic.clone(), counted.get(&id).copied().unwrap_or_default()))
        };
        let topics: BTreeMap<_, _> = self.topics.iter().map(with_totals).collect();
        let mut carried: BTreeMap<TopicId, Vec<Message>> = BTreeMap::new();
        for entry in job.table.entries.iter().filter(|entry| job.table.is_carried(entry, job.carry_before)) {
            carried.entry(entry.topic).or_default().extend(entry.state.clone());
        }
        // What is left of deleted topics counts for nothing.
        let kept = |runs: &RunIndex| -> RunIndex {
            let kept = runs.iter().filter(|&(topic, _)| !self.doomed.contains_key(topic));
            kept.map(|(&topic, runs)| (topic, runs.clone())).collect()
        };
        let header = BackupHeader {
            store: self.store,
            epoch: job.epoch,
            taken_at: job.now,
            commit: job.mark.through,
            arrivals: job.arrivals,
            last_topic: job.last_topic,
            topics: topics.len() as u64,
            live: topics.values().map(|(_, totals)| totals.live()).sum(),
        };
        Ok(Snapshot {
            header,
            kv: self.kv.reader(),
            directory: self.directory.clone(),
            topics,
            carried,
            ended: kept(&self.ended),
            dedup: kept(&self.dedup),
            hold,
            _lock: self.lock.clone(),
        })
    }
}

impl Snapshot {
    /// What a backup of it says at its beginning.
    pub fn header(&self) -> &BackupHeader {
        &self.header
    }

    /// Writes it as a backup, in pieces of a few hundred kilobytes. Gives the counts and the last sum.
    ///
    /// # Errors
    /// [`BackupError`]; what was written so far is of no use.
    pub fn write(&self, sink: BackupSink<'_>) -> Result<(BackupCounts, u32), BackupError> {
        let mut writer = BackupWriter::begin(sink)?;
        writer.header(&self.header)?;
        for (topic, totals) in self.topics.values() {
            writer.topic(topic, totals)?;
        }
        let mut counts = BackupCounts { topics: self.header.topics, ..BackupCounts::default() };
        for (&id, (_, totals)) in &self.topics {
            self.write_topic(id, totals, &mut writer, &mut counts)?;
        }
        counts.ended = self.write_remembered::<Finished>(&self.ended, &mut |ended| writer.ended(&ended))?;
        counts.dedup_ids = self.write_remembered::<DedupRecord>(&self.dedup, &mut |dedup| writer.dedup(&dedup))?;
        let sum = writer.finish(&counts)?;
        Ok((counts, sum))
    }

    fn write_topic(
        &self,
        id: TopicId,
        totals: &Totals,
        writer: &mut BackupWriter<'_>,
        counts: &mut BackupCounts,
    ) -> Result<(), BackupError> {
        let before = counts.waiting + counts.dead;
        let mut write = |message: &Message| {
            *(if matches!(message.place(), Place::Dead(_)) { &mut counts.dead } else { &mut counts.waiting }) += 1;
            writer.message(message)
        };
        for message in self.carried.get(&id).into_iter().flatten() {
            write(message)?;
        }
        let mut tombstones = TombstoneCache::default();
        let mut stock =
            Stock { kv: &*self.kv, directory: &self.directory, tombstones: &mut tombstones, avoided: &NONE_AVOIDED };
        for levels in [&Level::DUE[..], &[Level::Dead]] {
            let mut walk = Walk::of_topic(&self.directory, id, levels, (Timestamp::ZERO, 0));
            let mut budget = usize::MAX;
            loop {
                match walk.step(&mut stock, &mut budget).map_err(|problem| self.explain(None, &problem))? {
                    Step::Record(name, record) => {
                        let message = record.message(&*self.kv, &name.slot);
                        let part = || Some(name.message(record.order));
                        write(&message.map_err(|problem| self.explain(part(), &problem))?)?;
                    }
                    Step::Damaged(part, problem) => return Err(self.explain(Some(part), &problem)),
                    Step::Exhausted | Step::End => break,
                }
            }
        }
        let (found, counted) = (counts.waiting + counts.dead - before, totals.live());
        if found != counted {
            let what = format!("topic {} should have {counted} live messages and has {found}", id.0);
            return Err(BackupError::Damaged { what, part: None });
        }
        Ok(())
    }

    fn write_remembered<R: Remembered>(
        &self,
        runs: &RunIndex,
        write: &mut dyn FnMut(R) -> Result<(), Stopped>,
    ) -> Result<u64, BackupError> {
        let (mut count, mut written) = (0, Ok(()));
        // One run at a time, so that a reader that has gone is noticed soon.
        for (&topic, runs) in runs {
            for (&run, &entry) in runs {
                let one = BTreeMap::from([(topic, BTreeMap::from([(run, entry)]))]);
                let read = each::<R>(&*self.kv, &one, &mut |record| {
                    count += 1;
                    if written.is_ok() {
                        written = write(record);
                    }
                });
                read.map_err(|problem| self.explain(None, &problem))?;
                written?;
            }
        }
        Ok(count)
    }

    /// What cannot be read is damaged, unless it is not held any more.
    fn explain(&self, part: Option<DamagedPart>, problem: &PagesError) -> BackupError {
        if self.hold.is_revoked() {
            return BackupError::Overtaken;
        }
        // A page store that has failed says nothing about its pages.
        let part = part.filter(|_| !matches!(problem, PagesError::Kv(KvError::Failed(_))));
        BackupError::Damaged { what: problem.to_string(), part }
    }
}
