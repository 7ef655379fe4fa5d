//! Restoring a backup: a fresh store, filled by the same commits and folds as a broker makes.
//!
//! The backup is read twice. The first time nothing is written: every byte and every record is checked, and the counts
//! with them. The second time its records become commits, generation by generation. So the new store owes nothing to the
//! layout of the old one, and a restore that works leaves a store that a start has already been tried on.
//!
//! What the restored store does not share with the one that the backup was taken of: its id and its secret, so no
//! receipt of before is accepted; and its next arrival numbers, of which [`ARRIVALS_SKIPPED`] are skipped, so that no
//! message made after the backup shares its number with one made after the restore.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::crash::crash_point;
use crate::queue::change::{Change, Finished, TopicRecord, Totals};
use crate::queue::message::{Content, DeadReason, Message, Place, Progress, TopicId};
use crate::queue::time::Timestamp;
use crate::queue::values::Headers;

use super::backup_file::{BackupCounts, BackupFileError, BackupHeader, BackupItem, BackupReader, damaged};
use super::check::Watch;
use super::home::Home;
use super::open_error::OpenError;
use super::recover::Opened;
use super::{StoreOptions, open_home};

/// Arrival numbers that a restore leaves out. At 100,000 messages a second it takes four months to use as many up.
pub const ARRIVALS_SKIPPED: u64 = 1 << 40;

/// Changes of about this size share a commit, bytes of the backup.
const COMMIT_BYTES: u64 = 2 << 20;

/// A topic of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupTopic {
    /// The topic.
    pub record: TopicRecord,
    /// Its totals.
    pub totals: Totals,
    /// Live messages that are not dead.
    pub waiting: u64,
    /// Dead letters.
    pub dead: u64,
}

/// What a whole backup holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupContents {
    /// What it says of itself.
    pub header: BackupHeader,
    /// What was found in it.
    pub counts: BackupCounts,
    /// Its topics, by number.
    pub topics: Vec<BackupTopic>,
    /// Its size, bytes.
    pub bytes: u64,
    /// The checksum of all of it.
    pub checksum: u32,
}

/// A backup that was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// What was restored.
    pub contents: BackupContents,
    /// Size of the new store on disk, bytes.
    pub bytes: u64,
}

/// Why a backup is not restored, or not read.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The file cannot be opened.
    #[error("it cannot be opened: {0}")]
    Missing(#[source] std::io::Error),
    /// The file is not a backup that can be used. Nothing was written.
    #[error(transparent)]
    File(#[from] BackupFileError),
    /// The directory cannot be used, or not be written.
    #[error(transparent)]
    Store(#[from] OpenError),
}

/// Reads and checks a whole backup, and changes nothing. `watch` is told how many bytes of how many were read.
///
/// # Errors
/// [`RestoreError`].
pub fn read_backup(path: &Path, watch: Watch<'_>) -> Result<BackupContents, RestoreError> {
    let (mut reader, size) = open_file(path)?;
    let mut found = Found::default();
    while found.trailer.is_none() {
        let offset = reader.offset();
        reader.frame(&mut |item| found.take(&item))?;
        found.check_place(offset)?;
        watch(reader.offset(), size);
    }
    let (bytes, checksum) = (reader.offset(), reader.sum());
    reader.finish()?;
    Ok(found.finish(bytes, checksum))
}

/// A file in `directory` for a backup that can be read only once, before it is restored into that directory: it has no
/// name, and goes with its handle. Makes the directory if it is missing.
///
/// # Errors
/// [`RestoreError::Store`] if nothing can be restored there.
pub fn restore_spool(directory: &Path) -> Result<File, RestoreError> {
    Ok(Home::spool(directory)?)
}

/// Restores a backup into a directory that is missing or empty, or holds a restore that was interrupted.
/// `watch` is told how many bytes of how many are in it.
///
/// # Errors
/// [`RestoreError`]; then the directory is empty, unless it cannot be written at all.
pub fn restore(
    path: &Path,
    directory: &Path,
    options: StoreOptions,
    now: Timestamp,
    watch: Watch<'_>,
) -> Result<Restored, RestoreError> {
    let contents = read_backup(path, &mut |_, _| {})?;
    let home = Home::begin_restore(directory, options.min_free_bytes)?;
    match fill(path, &home, &contents, options, now, watch) {
        Ok(bytes) => {
            crash_point!("restore.filled");
            home.finish()?;
            home.restored()?;
            Ok(Restored { contents, bytes })
        }
        Err(error) => {
            // The marker stays if that fails too, and so nobody takes the directory for a store.
            let _left = home.abandon_restore();
            Err(error)
        }
    }
}

type FileReader = BackupReader<BufReader<File>>;

fn open_file(path: &Path) -> Result<(FileReader, u64), RestoreError> {
    let file = File::open(path).map_err(RestoreError::Missing)?;
    let size = file.metadata().map_err(RestoreError::Missing)?.len();
    Ok((BackupReader::open(BufReader::with_capacity(1 << 20, file))?, size))
}

/// What was found in a backup so far.
#[derive(Default)]
struct Found {
    header: Option<BackupHeader>,
    topics: BTreeMap<TopicId, BackupTopic>,
    counts: BackupCounts,
    trailer: Option<BackupCounts>,
}

impl Found {
    fn take(&mut self, item: &BackupItem) -> Result<(), &'static str> {
        if self.trailer.is_some() {
            return Err("a record behind the trailer");
        }
        if self.header.is_none() && !matches!(item, BackupItem::Header(_)) {
            return Err("a record before the header");
        }
        let counts = &mut self.counts;
        match item {
            BackupItem::Header(_) if self.header.is_some() => return Err("a second header"),
            BackupItem::Header(header) => self.header = Some(*header),
            BackupItem::Topic(record, _) if self.header.is_some_and(|header| record.id > header.last_topic) => {
                return Err("a topic of a number that was never issued");
            }
            BackupItem::Topic(record, totals) => {
                counts.topics += 1;
                let topic = BackupTopic { record: record.clone(), totals: *totals, waiting: 0, dead: 0 };
                if self.topics.insert(record.id, topic).is_some() {
                    return Err("a topic that comes twice");
                }
            }
            BackupItem::Message(message) => {
                let topic = self.topics.get_mut(&message.id.topic).ok_or("a message of an unknown topic")?;
                match message.place() {
                    Place::Due(_) => (counts.waiting, topic.waiting) = (counts.waiting + 1, topic.waiting + 1),
                    Place::Dead(_) => (counts.dead, topic.dead) = (counts.dead + 1, topic.dead + 1),
                }
            }
            BackupItem::Ended(ended) if self.topics.contains_key(&ended.id.topic) => counts.ended += 1,
            BackupItem::Dedup(dedup) if self.topics.contains_key(&dedup.topic) => counts.dedup_ids += 1,
            BackupItem::Ended(_) | BackupItem::Dedup(_) => return Err("a record of an unknown topic"),
            BackupItem::Trailer(trailer) => self.trailer = Some(*trailer),
        }
        Ok(())
    }

    /// The trailer must say what was found, and the totals must agree with it.
    fn check_place(&self, offset: u64) -> Result<(), BackupFileError> {
        let Some(trailer) = self.trailer else { return Ok(()) };
        let header = self.header.expect("a trailer is refused before the header");
        if trailer != self.counts || (header.topics, header.live) != (trailer.topics, trailer.waiting + trailer.dead) {
            return Err(damaged(offset, "it holds another number of records than it counts"));
        }
        let is_counted = |topic: &BackupTopic| {
            let Totals { produced, acked, cancelled, replaced, purged, quarantined } = topic.totals;
            let gone = [acked, cancelled, replaced, purged, quarantined].into_iter().try_fold(0, u64::checked_add);
            gone.and_then(|gone| produced.checked_sub(gone)) == Some(topic.waiting + topic.dead)
        };
        if self.topics.values().all(is_counted) {
            Ok(())
        } else {
            Err(damaged(offset, "the totals of a topic contradict its messages"))
        }
    }

    fn finish(self, bytes: u64, checksum: u32) -> BackupContents {
        let header = self.header.expect("there is a trailer, and so a header");
        let topics = self.topics.into_values().collect();
        BackupContents { header, counts: self.counts, topics, bytes, checksum }
    }
}

/// Fills the store; gives its size.
fn fill(
    path: &Path,
    home: &Home,
    contents: &BackupContents,
    options: StoreOptions,
    now: Timestamp,
    watch: Watch<'_>,
) -> Result<u64, RestoreError> {
    let mut filling = Filling { opened: open_home(home, options, &mut |_| {})?, now };
    let (mut reader, size) = open_file(path)?;
    let (mut changes, mut begun) = (Vec::new(), 0);
    while reader.offset() < contents.bytes {
        reader.frame(&mut |item| {
            changes.extend(self::changes(item));
            Ok(())
        })?;
        if reader.offset() - begun >= COMMIT_BYTES || reader.offset() >= contents.bytes {
            begun = reader.offset();
            filling.commit(&std::mem::take(&mut changes))?;
            watch(begun, size);
        }
    }
    // The file is open a second time: it must be the one that was checked.
    if reader.sum() != contents.checksum {
        return Err(damaged(0, "it has changed while it was being restored").into());
    }
    let BackupHeader { epoch, taken_at, arrivals, last_topic, .. } = contents.header;
    let reserved = Change::ArrivalsReserved(arrivals.saturating_add(ARRIVALS_SKIPPED));
    filling.commit(&[reserved, Change::Opened { epoch, at: taken_at }])?;
    let totals = contents.topics.iter().map(|topic| (topic.record.id, topic.totals));
    filling.opened.committer.set_totals(totals.filter(|(_, totals)| *totals != Totals::default()).collect());
    filling.opened.committer.set_last_topic(last_topic);
    // Twice: both must also be in the fold to which a page store could go back.
    filling.fold()?;
    crash_point!("restore.folded");
    filling.fold()?;
    let bytes = filling.opened.folder.disk_bytes() + filling.opened.committer.journal_bytes();
    drop(filling);
    crash_point!("restore.before_trial");
    // What a start would refuse is to be found now.
    drop(open_home(home, options, &mut |_| {})?);
    Ok(bytes)
}

struct Filling {
    opened: Opened,
    now: Timestamp,
}

impl Filling {
    fn commit(&mut self, changes: &[Change]) -> Result<(), OpenError> {
        self.opened.committer.commit(changes).map_err(|error| failed(&error))?;
        crash_point!("restore.committed");
        if self.opened.committer.is_generation_full() { self.fold() } else { Ok(()) }
    }

    fn fold(&mut self) -> Result<(), OpenError> {
        let Opened { committer, folder, .. } = &mut self.opened;
        let job = committer.freeze(self.now).expect("no other fold runs, and there is a commit since the last");
        let done = folder.run(job).map_err(|error| failed(&error))?;
        committer.folded(done).map_err(|error| failed(&error))
    }
}

fn failed(error: &dyn Error) -> OpenError {
    OpenError::NotRestored { problem: error.to_string() }
}

/// The changes that bring a record into a store.
fn changes(item: BackupItem) -> Vec<Change> {
    match item {
        BackupItem::Header(_) | BackupItem::Trailer(_) => Vec::new(),
        BackupItem::Topic(record, _) => vec![Change::TopicPut(record)],
        BackupItem::Message(message) => vec![Change::Produced(message)],
        // A store learns of an end only if there was something to end.
        BackupItem::Ended(ended) => vec![Change::Produced(ended_message(&ended)), Change::Finished(ended)],
        BackupItem::Dedup(dedup) => vec![Change::DedupPut(dedup)],
    }
}

/// What an ended message leaves in the journal: all but its content.
fn ended_message(ended: &Finished) -> Message {
    let content = Content {
        key: ended.key.clone(),
        headers: Headers::default(),
        body: Bytes::new(),
        schedule: None,
        max_attempts: None,
        explicit_first_wait: false,
        produced_at: ended.at,
    };
    let progress = match ended.previous {
        Place::Due(at) => Progress::new(at),
        Place::Dead(at) => Progress { dead: Some((DeadReason::Consumer, at)), ..Progress::new(ended.id.birth_due) },
    };
    Message { id: ended.id, content: Arc::new(content), progress, history: None }
}
