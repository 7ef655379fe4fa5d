//! The index of messages in pages, against a plain map.

use std::collections::BTreeMap;

use crate::queue::change::Restored;
use crate::queue::message::{Place, TopicId};
use crate::queue::time::Timestamp;
use crate::store::doubles::{Chance, LossyKv};
use crate::store::index::{
    Found, Index, IndexRecord, IndexRun, TopicIndex, each_indexed, load_index_list, write_index_run,
};
use crate::store::kv::{Batch, Kv};

const TOPIC: TopicId = TopicId(3);

/// An index on a medium of its own, with the map that it must equal.
#[derive(Default)]
struct Indexed {
    kv: LossyKv,
    runs: TopicIndex,
    expected: BTreeMap<u64, Found>,
    run: u64,
    /// Records written over all runs.
    written: u64,
}

impl Indexed {
    fn fold(&mut self, new: &BTreeMap<u64, Option<Found>>) {
        self.run += 1;
        let (mut data, mut last) = (Batch::default(), Batch::default());
        let records = new.iter().map(|(&arrival, &found)| IndexRecord { arrival, found });
        let records = records.collect::<Vec<_>>().into_iter();
        let put: crate::store::page::Put<'_> = &mut |key, value| {
            data.put(key, value);
            Ok(())
        };
        let kv = self.kv.clone();
        self.runs = write_index_run(&kv, (TOPIC, self.run), &self.runs, records, put, &mut last).expect("writes");
        self.written += self.runs.get(&self.run).map_or(0, IndexRun::records);
        self.kv.apply(data).expect("applies");
        self.kv.apply(last).expect("applies");
        for (&arrival, &found) in new {
            match found {
                Some(found) => self.expected.insert(arrival, found),
                None => self.expected.remove(&arrival),
            };
        }
    }

    fn check(&self) {
        let listed = load_index_list(&self.kv).expect("reads");
        let runs: Index = [(TOPIC, self.runs.clone())].into_iter().filter(|(_, runs)| !runs.is_empty()).collect();
        assert_eq!(listed, runs);
        let mut read = BTreeMap::new();
        each_indexed(&self.kv, listed.iter(), &mut |restored| {
            let (id, place, key_hash) = match restored {
                Restored::Index { id, place, key_hash } => (id, place, key_hash),
                Restored::IndexSize { topic, entries } => {
                    assert!(topic == TOPIC && entries >= self.expected.len() as u64, "room for {entries}");
                    return;
                }
                other => panic!("not of the index: {other:?}"),
            };
            let found = Found { birth_due: id.birth_due, place, key_hash };
            assert!(read.insert(id.arrival, found).is_none() && id.topic == TOPIC);
        })
        .expect("reads");
        assert_eq!(read, self.expected);
    }
}

fn found(chance: &mut Chance) -> Found {
    let birth_due = Timestamp::from_millis(chance.below(1 << 45));
    let at = Timestamp::from_millis(chance.below(1 << 45));
    let place = [Place::Due(birth_due), Place::Due(at), Place::Dead(at)][usize::try_from(chance.below(3)).expect("3")];
    let key_hash = (chance.below(2) == 0).then(|| chance.number());
    Found { birth_due, place, key_hash }
}

#[test]
fn what_the_newest_run_says_holds_and_there_are_never_many_runs() {
    for seed in 0..20 {
        let mut chance = Chance::new(seed);
        let mut indexed = Indexed::default();
        let most = [3, 40, 900][usize::try_from(seed % 3).expect("3")];
        for _ in 0..60 {
            let known: Vec<u64> = indexed.expected.keys().copied().collect();
            let mut new = BTreeMap::new();
            for _ in 0..chance.below(most) {
                let old = known.get(usize::try_from(chance.below(known.len() as u64 + 1)).expect("small")).copied();
                let arrival = old.filter(|_| chance.below(2) == 0).unwrap_or_else(|| chance.number() >> 20);
                let is_removed = chance.below(3) == 0;
                new.insert(arrival, (!is_removed).then(|| found(&mut chance)));
            }
            indexed.fold(&new);
            indexed.check();
            assert!(indexed.runs.len() <= 8, "seed {seed}: {} runs", indexed.runs.len());
        }
    }
}

#[test]
fn a_growing_index_writes_a_record_again_only_as_often_as_its_size_doubles() {
    let mut chance = Chance::new(1);
    let mut indexed = Indexed::default();
    for fold in 0..200 {
        indexed.fold(&(0..100).map(|n| (fold * 100 + n, Some(found(&mut chance)))).collect());
    }
    indexed.check();
    assert_eq!(indexed.expected.len(), 20_000);
    assert!(indexed.written < 20_000 * 9, "{} records written", indexed.written);
}

#[test]
fn an_index_of_what_is_gone_takes_nothing() {
    let mut chance = Chance::new(2);
    let mut indexed = Indexed::default();
    for fold in 0..20 {
        indexed.fold(&(0..50).map(|n| (fold * 50 + n, Some(found(&mut chance)))).collect());
    }
    indexed.fold(&(0..1_000).map(|arrival| (arrival, None)).collect());
    indexed.fold(&BTreeMap::from([(7, None)]));
    indexed.check();
    assert!(indexed.runs.is_empty() && indexed.expected.is_empty());
}
