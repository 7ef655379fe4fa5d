//! Creating topics, changing their settings, pausing them.

use super::change::{Change, TopicRecord, Totals};
use super::command::TopicRejection;
use super::fields::TopicPatch;
use super::message::TopicId;
use super::pacer::Pacer;
use super::settings::TopicSettings;
use super::state::{Effects, Queue};
use super::stored::Stored;
use super::time::Timestamp;
use super::topic::Topic;
use super::values::TopicName;

impl Queue {
    pub(super) fn create_topic(
        &mut self,
        now: Timestamp,
        name: TopicName,
        settings: TopicSettings,
        effects: &mut Effects,
    ) -> Result<TopicRecord, TopicRejection> {
        settings.check(&self.limits)?;
        if self.names.contains_key(&name) {
            return Err(TopicRejection::Exists(name));
        }
        if self.topics.len() >= self.limits.max_topics {
            return Err(TopicRejection::TooMany(self.topics.len()));
        }
        let id = TopicId(self.last_topic.0.checked_add(1).expect("fewer than 2^32 topics are ever created"));
        self.last_topic = id;
        let record = TopicRecord { id, name: name.clone(), settings, paused: false, created_at: now };
        self.topics.insert(id, Topic::new(record.clone(), Totals::default(), Stored::nothing(), now));
        self.names.insert(name, id);
        effects.changes.push(Change::TopicPut(record.clone()));
        Ok(record)
    }

    pub(super) fn update_topic(
        &mut self,
        now: Timestamp,
        name: &TopicName,
        settings: TopicSettings,
        effects: &mut Effects,
    ) -> Result<TopicRecord, TopicRejection> {
        settings.check(&self.limits)?;
        let id = self.topic_id(name).ok_or_else(|| TopicRejection::NotFound(name.clone()))?;
        let topic = self.topic_mut(id);
        if topic.pacer.cap() != settings.rate {
            topic.pacer = Pacer::new(settings.rate, now);
        }
        topic.record.settings = settings;
        effects.changes.push(Change::TopicPut(topic.record.clone()));
        Ok(topic.record.clone())
    }

    pub(super) fn patch_topic(
        &mut self,
        now: Timestamp,
        name: &TopicName,
        patch: &TopicPatch,
        effects: &mut Effects,
    ) -> Result<TopicRecord, TopicRejection> {
        let present = self.topic(name).ok_or_else(|| TopicRejection::NotFound(name.clone()))?;
        let settings = patch.of_present(&present.settings);
        self.update_topic(now, name, settings, effects)
    }

    pub(super) fn set_paused(
        &mut self,
        name: &TopicName,
        paused: bool,
        effects: &mut Effects,
    ) -> Result<TopicRecord, TopicRejection> {
        let id = self.topic_id(name).ok_or_else(|| TopicRejection::NotFound(name.clone()))?;
        let topic = self.topic_mut(id);
        if topic.record.paused != paused {
            topic.record.paused = paused;
            effects.changes.push(Change::TopicPut(topic.record.clone()));
            self.note_load(id);
        }
        Ok(self.topics[&id].record.clone())
    }
}
