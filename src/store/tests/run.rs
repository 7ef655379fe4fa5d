//! A store in use over media that lose power, with everything that it must remember.

use std::collections::{BTreeMap, BTreeSet};

use crate::queue::change::{Change, Closing};
use crate::queue::message::{Message, Place, TopicId};
use crate::queue::time::Timestamp;
use crate::store::{Committer, FoldDone, FoldJob, Folder, ReadError, Reader, StoreOptions, keys};

use super::Media;
use super::model::Model;
use super::pages::{self, Paged};
use super::samples::{START, Samples};

/// A store in use, with what it must remember.
pub(super) struct Run {
    pub(super) seed: u64,
    pub(super) media: Media,
    pub(super) samples: Samples,
    pub(super) now: Timestamp,
    pub(super) committer: Committer,
    pub(super) folder: Folder,
    pub(super) reader: Reader,
    pub(super) job: Option<FoldJob>,
    /// The messages of the generation that is being folded and of those before.
    pub(super) frozen: Paged,
    /// What must be in pages.
    pub(super) paged: Paged,
    /// Some that were.
    pub(super) gone: Vec<Message>,
    /// All commits that were answered.
    pub(super) durable: Model,
    /// And the one that was not.
    pub(super) in_flight: Option<Model>,
    pub(super) options: StoreOptions,
    pub(super) body: u64,
    pub(super) folds: u64,
    pub(super) seen: Seen,
    /// Compaction is left for later.
    pub(super) leaves_worn: bool,
    /// Topics that were deleted, and those of them that a fold has taken out of use.
    pub(super) deleted: BTreeSet<TopicId>,
    pub(super) deleted_before_freeze: BTreeSet<TopicId>,
    pub(super) deleted_in_pages: BTreeSet<TopicId>,
}

/// States that the random histories must reach.
#[derive(Default, Debug)]
pub(super) struct Seen {
    pub(super) restarts: u64,
    pub(super) restarts_in_fold: u64,
    pub(super) commits_in_fold: u64,
    pub(super) folds: u64,
    pub(super) failed_commits: u64,
    pub(super) failed_folds: u64,
    pub(super) failed_opens: u64,
    pub(super) in_flight_survived: u64,
    pub(super) torn: u64,
    pub(super) clean: u64,
    pub(super) left_pages: u64,
    pub(super) old_reads: u64,
    pub(super) overtaken: u64,
    pub(super) compactions: u64,
    pub(super) failed_compactions: u64,
    pub(super) given_back: u64,
}

impl Run {
    pub(super) fn new(seed: u64, options: StoreOptions, body: u64) -> Self {
        let media = Media::default();
        let (opened, _) = media.open(options).expect("a new store opens");
        let mut run = Self {
            seed,
            media,
            samples: Samples::new(seed),
            now: START,
            reader: opened.folder.reader(),
            committer: opened.committer,
            folder: opened.folder,
            job: None,
            frozen: Paged::new(),
            paged: Paged::new(),
            gone: Vec::new(),
            durable: Model::default(),
            in_flight: None,
            options,
            body,
            folds: 0,
            seen: Seen::default(),
            leaves_worn: false,
            deleted: BTreeSet::new(),
            deleted_before_freeze: BTreeSet::new(),
            deleted_in_pages: BTreeSet::new(),
        };
        assert!(run.commit(&[Change::Opened { epoch: opened.epoch, at: START }]));
        run
    }

    pub(super) fn commit(&mut self, changes: &[Change]) -> bool {
        let mut after = self.durable.clone();
        for change in changes {
            after.apply(change);
            if let Change::TopicDeleted { topic, .. } = change {
                self.deleted.insert(*topic);
            }
        }
        if self.committer.commit(changes).is_ok() {
            self.durable = after;
            true
        } else {
            self.in_flight = Some(after);
            self.seen.failed_commits += 1;
            assert!(self.committer.commit(changes).is_err(), "seed {}: a failure is final", self.seed);
            false
        }
    }

    /// A commit of a few random changes.
    pub(super) fn step(&mut self) -> bool {
        self.now = self.now.plus(self.samples.below(4_000));
        let mut after = self.durable.clone();
        let mut changes = Vec::new();
        for _ in 0..=self.samples.below(5) {
            let change = self.samples.change(&after, self.now, self.body);
            after.apply(&change);
            changes.push(change);
        }
        self.seen.commits_in_fold += u64::from(self.job.is_some());
        self.commit(&changes)
    }

    pub(super) fn freeze(&mut self) -> bool {
        if self.job.is_none() {
            self.job = self.committer.freeze(self.now);
            self.frozen.clone_from(&self.durable.messages);
            let is_gone = |topic: &&TopicId| !self.durable.messages.values().any(|message| message.id.topic == **topic);
            self.deleted_before_freeze = self.deleted.iter().filter(is_gone).copied().collect();
        }
        self.job.is_some()
    }

    pub(super) fn freeze_if_full(&mut self) {
        if self.committer.is_generation_full() {
            self.freeze();
        }
    }

    pub(super) fn fold(&mut self) -> bool {
        let Some(job) = self.job.take() else { return true };
        let Ok(done) = self.folder.run(job) else {
            self.seen.failed_folds += 1;
            return false;
        };
        self.seen.left_pages += done.left;
        self.turn_pages(&done);
        let folded = self.committer.folded(done).is_ok();
        self.seen.folds += u64::from(folded);
        self.folds += u64::from(folded);
        folded && (self.leaves_worn || self.compact())
    }

    /// After a fold: what the reader gives is what was frozen, apart from what was carried.
    pub(super) fn turn_pages(&mut self, done: &FoldDone) {
        let carried: BTreeSet<u64> = done.carried.iter().map(|carried| carried.arrival).collect();
        for message in self.frozen.values().filter(|message| message.progress.cancel_on_lease_end) {
            assert!(carried.contains(&message.id.arrival), "seed {}: it is cancelled when its lease ends", self.seed);
        }
        for arrival in &carried {
            let message = &self.frozen[arrival];
            let is_due =
                matches!(message.place(), Place::Due(at) if at <= self.now.plus(self.options.carry_horizon_ms));
            assert!(is_due || message.progress.cancel_on_lease_end, "seed {}: carried for no reason", self.seed);
        }
        let before = std::mem::replace(&mut self.paged, std::mem::take(&mut self.frozen));
        self.paged.retain(|arrival, _| !carried.contains(arrival));
        // What pages hold of deleted topics is nobody's business until it is given back.
        let left = before
            .into_values()
            .filter(|old| !self.deleted.contains(&old.id.topic) && self.paged.get(&old.id.arrival) != Some(old));
        self.gone.splice(..0, left);
        self.gone.truncate(200);
        self.gone.retain(|message| !self.deleted.contains(&message.id.topic));
        self.deleted_in_pages = std::mem::take(&mut self.deleted_before_freeze);
        self.look_without_knowing();
        self.reader.apply(&done.delta);
        assert_eq!(self.reader.fold(), done.fold);
        self.check_pages();
    }

    /// What the reader answers, of many messages now and then only.
    fn check_pages(&mut self) {
        if self.paged.len() < 200 || self.reader.fold().is_multiple_of(8) {
            pages::check(&mut self.reader, &self.paged, &self.gone, &mut self.samples.chance);
        }
    }

    /// A reader that was not told of the last change finds what was before it, or that it was overtaken.
    pub(super) fn look_without_knowing(&mut self) {
        let few = if self.paged.len() < 200 { 3 } else { 1 };
        for topic in self.samples.topics.into_iter().take(few) {
            match pages::read_topic(&mut self.reader, TopicId(topic), 5) {
                Ok(_) => self.seen.old_reads += 1,
                Err(ReadError::Overtaken) => self.seen.overtaken += 1,
                Err(error) => panic!("seed {}: {error}", self.seed),
            }
        }
    }

    pub(super) fn compact(&mut self) -> bool {
        loop {
            match self.folder.compact() {
                Ok(None) => {
                    for topic in &self.deleted_in_pages {
                        assert_eq!(self.reader.pages_of(*topic), 0, "seed {}: topic {}", self.seed, topic.0);
                        self.seen.given_back += 1;
                    }
                    return true;
                }
                Ok(Some(delta)) => {
                    self.seen.compactions += 1;
                    self.look_without_knowing();
                    self.reader.apply(&delta);
                    self.check_pages();
                }
                Err(_) => {
                    self.seen.failed_compactions += 1;
                    return false;
                }
            }
        }
    }

    /// Cuts the power, starts again and compares.
    pub(super) fn restart(&mut self) {
        self.seen.restarts += 1;
        self.seen.restarts_in_fold += u64::from(self.job.is_some());
        self.crash();
        // The power may fail again while the store opens.
        while self.samples.below(4) == 0 {
            let calls = self.samples.below(5);
            self.media.log.fail_after(Some(calls));
            self.media.kv.fail_after(Some(calls));
            self.seen.failed_opens += u64::from(self.media.open(self.options).is_err());
            self.crash();
        }
        self.reopen();
    }

    pub(super) fn crash(&mut self) {
        self.media.log.crash(&mut self.samples.chance);
        self.media.kv.crash(&mut self.samples.chance);
    }

    pub(super) fn reopen(&mut self) {
        let seed = self.seed;
        self.job = None;
        let (opened, restored) =
            self.media.open(self.options).unwrap_or_else(|error| panic!("seed {seed}: does not open: {error}"));
        self.seen.torn += u64::from(opened.torn.is_some());
        self.seen.clean += u64::from(opened.clean);
        assert_eq!(opened.clean, restored.closed.is_some(), "seed {seed}");
        let in_flight = self.in_flight.take();
        match self.durable.difference(&restored, self.now) {
            None => {}
            Some(difference) => match in_flight {
                Some(in_flight) if in_flight.difference(&restored, self.now).is_none() => {
                    self.seen.in_flight_survived += 1;
                    self.durable = in_flight;
                }
                _ => panic!("seed {seed}: {difference}"),
            },
        }
        for (&topic, totals) in &self.durable.totals {
            assert_eq!(opened.committer.totals(topic), *totals, "seed {seed}");
            let live = self.durable.messages.values().filter(|message| message.id.topic == topic).count();
            assert_eq!(totals.live(), live as u64, "seed {seed}");
        }
        // History and dedup ids may be forgotten as time goes by; what is gone stays gone.
        self.durable.ended = restored.ended;
        self.durable.dedup = restored.dedup;
        assert!(opened.epoch > self.durable.epoch, "seed {seed}: an epoch is never used twice");
        self.reader = opened.folder.reader();
        self.committer = opened.committer;
        self.folder = opened.folder;
        let topics = self.durable.messages.values().map(|message| message.id.topic);
        let topics: BTreeSet<TopicId> = topics.chain(self.samples.topics.map(TopicId)).collect();
        self.deleted_in_pages.clear();
        self.deleted.retain(|topic| !topics.contains(topic));
        self.paged = topics
            .into_iter()
            .flat_map(|topic| pages::read_topic(&mut self.reader, topic, 9).expect("reads"))
            .map(|message| (message.id.arrival, message))
            .collect();
        self.gone.clear();
        assert!(self.commit(&[Change::Opened { epoch: opened.epoch, at: self.now }]), "seed {seed}");
    }

    /// Everything in the page store is listed, and of every message there is one copy at most. Gives the number of
    /// chunks.
    pub(super) fn check_garbage(&self) -> u64 {
        let (seed, keys) = (self.seed, self.media.kv.keys());
        let of_kind = |kind: u8| keys.iter().filter(move |key| key[0] == kind);
        let slots = self.folder.directory.slots().flat_map(|(_, slot)| slot.runs.values());
        let tombstones = slots.filter_map(|run| run.graves.as_ref()).map(|graves| graves.parts.len()).sum::<usize>();
        let index = self.folder.index.values().flat_map(BTreeMap::values).map(|run| run.parts as usize).sum::<usize>();
        assert_eq!(of_kind(keys::PAGE).count(), self.folder.pages(), "seed {seed}: pages that are not listed");
        assert_eq!(of_kind(keys::TOMBSTONES).count(), tombstones, "seed {seed}: tombstones that are not listed");
        assert_eq!(of_kind(keys::INDEX).count(), index, "seed {seed}: parts of the index that are not listed");
        assert_eq!(of_kind(keys::INTENT).count(), 0, "seed {seed}");
        assert_eq!(of_kind(keys::DELETED).count(), 0, "seed {seed}: marks of topics that are given back");
        for key in keys.iter().filter(|key| key.len() > 4 && key[0] != keys::INTENT) {
            let topic = TopicId(u32::from_be_bytes([key[1], key[2], key[3], key[4]]));
            assert!(!self.deleted_in_pages.contains(&topic), "seed {seed}: {key:02x?} of a deleted topic");
        }
        let mut runs: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for key in of_kind(keys::CHUNK) {
            let (arrival, number) = keys::parse_chunk_key(key).expect("a chunk key");
            runs.entry(arrival).or_default().insert(number);
        }
        for (arrival, runs) in runs {
            assert!(self.paged.contains_key(&arrival), "seed {seed}: chunks of a message that is gone");
            assert_eq!(runs.len(), 1, "seed {seed}: chunks of an old copy");
        }
        of_kind(keys::CHUNK).count() as u64
    }

    pub(super) fn close(&mut self) {
        let leases = vec![self.samples.lease()];
        assert!(self.commit(&[Change::Closed(Closing { at: self.now, leases, suspected: Some((self.now, 7)) })]));
        assert!(self.committer.freeze(self.now).is_none(), "a close stays the last change");
    }
}

/// The same store opened from the same media, for looking at.
pub(super) fn fork(run: &Run) -> Run {
    let media = run.media.copy();
    let (opened, _) = media.open(run.options).expect("opens");
    Run {
        seed: run.seed,
        media,
        samples: Samples::new(run.seed),
        now: run.now,
        reader: opened.folder.reader(),
        committer: opened.committer,
        folder: opened.folder,
        job: None,
        frozen: Paged::new(),
        paged: Paged::new(),
        gone: Vec::new(),
        durable: run.durable.clone(),
        in_flight: None,
        options: run.options,
        body: run.body,
        folds: run.folds,
        seen: Seen::default(),
        leaves_worn: false,
        deleted: run.deleted.clone(),
        deleted_before_freeze: BTreeSet::new(),
        deleted_in_pages: BTreeSet::new(),
    }
}
