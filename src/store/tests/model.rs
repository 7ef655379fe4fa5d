//! What the store must remember, in the simplest form: maps of what was committed.

use std::collections::BTreeMap;

use crate::queue::change::{Change, DedupRecord, Finished, Restored, TopicRecord, Totals};
use crate::queue::message::{Message, TopicId};
use crate::queue::time::Timestamp;
use crate::queue::values::DedupId;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) topics: BTreeMap<TopicId, TopicRecord>,
    pub(super) totals: BTreeMap<TopicId, Totals>,
    pub(super) messages: BTreeMap<u64, Message>,
    pub(super) ended: BTreeMap<TopicId, Vec<Finished>>,
    pub(super) dedup: BTreeMap<(TopicId, DedupId), DedupRecord>,
    pub(super) arrivals: u64,
    /// The highest number that a topic with a record ever had.
    pub(super) last_topic: u32,
    pub(super) epoch: u32,
    pub(super) closed: Option<Change>,
    /// Changes have begun to come, so nothing as of the fold may come any more.
    changing: bool,
}

impl Model {
    /// Takes what recovery gives and insists on its order and on its sense.
    pub(super) fn restore(&mut self, restored: Restored) {
        assert!(!self.changing || matches!(restored, Restored::Change(_)), "state after a change: {restored:?}");
        match restored {
            Restored::Topic(topic) => assert!(self.topics.insert(topic.id, topic).is_none()),
            Restored::Totals(topic, totals) => assert!(self.totals.insert(topic, totals).is_none()),
            // What is in pages is compared where it is read.
            Restored::LastTopic(topic) => self.last_topic = self.last_topic.max(topic.0),
            Restored::Fold(_) | Restored::Stored { .. } | Restored::IndexSize { .. } | Restored::Index { .. } => {}
            Restored::Message(message) => {
                let twice = self.messages.insert(message.id.arrival, message);
                assert!(twice.is_none(), "restored twice: {twice:?}");
            }
            Restored::Ended(finished) => self.ended.entry(finished.id.topic).or_default().push(finished),
            Restored::Dedup(dedup) => {
                self.dedup.insert((dedup.topic, dedup.dedup_id.clone()), dedup);
            }
            Restored::Change(change) => {
                self.changing = true;
                self.apply(&change);
            }
        }
    }

    pub(super) fn apply(&mut self, change: &Change) {
        assert!(self.closed.is_none() || matches!(change, Change::Opened { .. }), "a change after a close");
        self.closed = None;
        match change {
            Change::TopicDeleted { topic, .. } => {
                self.topics.remove(topic);
                self.totals.remove(topic);
                self.messages.retain(|_, message| message.id.topic != *topic);
                self.ended.remove(topic);
                self.dedup.retain(|(of, _), _| of != topic);
            }
            Change::TopicPut(topic) => {
                self.last_topic = self.last_topic.max(topic.id.0);
                self.topics.insert(topic.id, topic.clone());
            }
            Change::Produced(message) => {
                self.totals.entry(message.id.topic).or_default().produced += 1;
                let twice = self.messages.insert(message.id.arrival, message.clone());
                assert!(twice.is_none(), "produced twice: {twice:?}");
            }
            Change::Moved { message, previous, entry } => {
                let before =
                    self.messages.insert(message.id.arrival, message.clone()).expect("a move of a live message");
                assert_eq!(before.place(), *previous);
                assert_eq!(before.content, message.content);
                let last = message.history.as_ref().and_then(|history| history.iter().last());
                assert!(entry.is_none() || entry.as_ref() == last);
            }
            Change::Finished(finished) => {
                let before = self.messages.remove(&finished.id.arrival).expect("the end of a live message");
                assert_eq!(before.place(), finished.previous);
                self.totals.entry(finished.id.topic).or_default().count(finished.outcome);
                self.ended.entry(finished.id.topic).or_default().push(finished.clone());
            }
            Change::DedupPut(dedup) => {
                self.dedup.insert((dedup.topic, dedup.dedup_id.clone()), dedup.clone());
            }
            Change::Quarantined(_) => {}
            Change::ArrivalsReserved(through) => self.arrivals = self.arrivals.max(*through),
            Change::Opened { epoch, .. } => self.epoch = self.epoch.max(*epoch),
            Change::Closed(_) => self.closed = Some(change.clone()),
        }
    }

    /// Why `restored` is not this model; `None` if it is. The epoch is compared where it is used: the pages
    /// hand it over in another way.
    pub(super) fn difference(&self, restored: &Self, now: Timestamp) -> Option<String> {
        let same =
            |name: &str, equal: bool| (!equal).then(|| format!("{name} differ: {}", self.first_difference(restored)));
        same("topics", self.topics == restored.topics)
            .or_else(|| same("messages", self.messages == restored.messages))
            .or_else(|| same("totals", self.totals == restored.totals))
            .or_else(|| same("the last topic", self.last_topic == restored.last_topic))
            .or_else(|| same("arrivals", self.arrivals == restored.arrivals))
            .or_else(|| same("closes", self.closed == restored.closed))
            .or_else(|| same("ended messages", self.remembers_ended(restored, now)))
            .or_else(|| same("dedup ids", self.remembers_dedup(restored, now)))
    }

    fn first_difference(&self, restored: &Self) -> String {
        let (mine, others) = (format!("{self:#?}"), format!("{restored:#?}"));
        let mut lines = mine.lines().zip(others.lines()).enumerate();
        let at = lines.find(|(_, (mine, other))| mine != other).map_or(0, |(n, _)| n);
        let around = |text: &str| text.lines().skip(at.saturating_sub(12)).take(16).collect::<Vec<_>>().join("\n");
        format!("expected\n{}\nrestored\n{}", around(&mine), around(&others))
    }

    /// Of each topic the newest, as many as it remembers and young enough, in order; more is allowed.
    fn remembers_ended(&self, restored: &Self, now: Timestamp) -> bool {
        self.ended.iter().all(|(topic, ended)| {
            let settings = self.topics.get(topic).map(|topic| &topic.settings);
            let count = settings.map_or(usize::MAX, |settings| settings.history_count as usize);
            let age = settings.map_or(u64::MAX, |settings| settings.history_age_ms);
            let newest = &ended[ended.len().saturating_sub(count)..];
            let needed: Vec<_> = newest.iter().filter(|finished| now.since(finished.at) <= age).collect();
            let kept = restored.ended.get(topic).map_or(&[][..], Vec::as_slice);
            let mut kept = kept.iter();
            needed.iter().all(|&finished| kept.any(|other| other == finished))
        })
    }

    fn remembers_dedup(&self, restored: &Self, now: Timestamp) -> bool {
        let valid = self.dedup.iter().filter(|(_, dedup)| dedup.expires_at > now);
        valid.into_iter().all(|(key, dedup)| restored.dedup.get(key) == Some(dedup))
            && restored.dedup.keys().all(|key| self.dedup.contains_key(key))
    }
}
