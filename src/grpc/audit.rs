//! The audit trail: one line of the log, at info, for each administrative act, written when the act is durable.
//!
//! An act runs to its end in a task of its own, so a caller that goes away in the middle takes no line with it. The
//! lines name topics, settings, counts and message ids; never a body, a key, a header or a text of a client.

use std::future::Future;

use super::dead_job::{Doing, Tally};
use super::dead_letters::Selection;
use super::errors::Fault;
use super::queue_service;
use crate::clock::Adoption;
use crate::engine::EngineHandle;
use crate::queue::change::TopicRecord;
use crate::queue::command::{Command, DeletedTopic, Reply};
use crate::queue::fields::TopicField;
use crate::queue::settings::TopicSettings;
use crate::queue::values::TopicName;

/// What a filter of the log calls the audit trail.
macro_rules! audit {
    ($($fields:tt)*) => { tracing::info!(target: "duewheel::audit", $($fields)*) };
}

/// Most ids that a line names.
const MAX_IDS: usize = 10;

/// Brings an act to its end, whether or not the caller still waits for it.
pub(super) async fn to_its_end<T: Send + 'static>(
    act: impl Future<Output = Result<T, Fault>> + Send + 'static,
) -> Result<T, Fault> {
    tokio::spawn(act).await.expect("an administrative act does not panic")
}

/// Applies a command, and has `tell` tell it when it is durable.
pub(super) async fn apply(
    engine: &EngineHandle,
    command: Command,
    tell: impl FnOnce(&Reply) + Send + 'static,
) -> Result<Reply, Fault> {
    let engine = engine.clone();
    to_its_end(async move {
        let reply = queue_service::apply(&engine, command).await?;
        tell(&reply);
        Ok(reply)
    })
    .await
}

/// A topic was created.
pub(super) fn created(topic: &TopicRecord) {
    let settings =
        differing(&TopicSettings::default(), &topic.settings, |field, _, value| format!("{field} = {value}"));
    audit!(act = "create_topic", topic = %topic.name, settings, "a topic was created");
}

/// The settings of a topic were changed from those of `before`.
pub(super) fn updated(topic: &TopicRecord, before: &TopicSettings) {
    let changes = differing(before, &topic.settings, |field, old, new| format!("{field}: {old} -> {new}"));
    audit!(act = "update_topic", topic = %topic.name, changes, "settings of a topic were changed");
}

/// The settings that differ, each as `show` shows its name, old and new value.
fn differing(old: &TopicSettings, new: &TopicSettings, show: impl Fn(&str, &str, &str) -> String) -> String {
    let texts = TopicField::ALL.into_iter().map(|field| (field.name(), field.text(old), field.text(new)));
    let shown: Vec<String> =
        texts.filter(|(_, old, new)| old != new).map(|(field, old, new)| show(field, &old, &new)).collect();
    shown.join("; ")
}

/// New leases of a topic were stopped, or allowed again.
pub(super) fn paused(topic: &TopicRecord) {
    if topic.paused {
        audit!(act = "pause_topic", topic = %topic.name, "a topic was paused");
    } else {
        audit!(act = "resume_topic", topic = %topic.name, "a topic was resumed");
    }
}

/// A topic was deleted with all its messages.
pub(super) fn deleted(topic: &TopicName, purge: bool, deleted: &DeletedTopic) {
    audit!(act = "delete_topic", %topic, purge, messages = deleted.messages, "a topic was deleted");
}

/// A job over dead letters has ended, well or not. What it has done is durable.
pub(super) fn dead_letters(doing: Doing, topic: &TopicName, selection: &Selection, tally: &Tally, end: &str) {
    let act = match doing {
        Doing::Redrive => "redrive_dead_letters",
        Doing::Purge => "purge_dead_letters",
    };
    let selected = match selection {
        Selection::Ids(ids) => {
            let mut named: Vec<String> = ids.iter().take(MAX_IDS).map(ToString::to_string).collect();
            named.extend((ids.len() > MAX_IDS).then(|| format!("and {} more", ids.len() - MAX_IDS)));
            format!("ids: {}", named.join(" "))
        }
        Selection::Filter(filter, _) if filter.is_all() => "all".to_owned(),
        Selection::Filter(..) => "a filter".to_owned(),
    };
    let Tally { matched, done, key_in_use, not_dead, not_found, remaining } = *tally;
    audit!(
        act,
        %topic,
        selected,
        matched,
        done,
        key_in_use,
        not_dead,
        not_found,
        remaining,
        end,
        "a job over dead letters has ended"
    );
}

/// The clock follows the wall clock from now on.
pub(super) fn clock_adopted(adoption: &Adoption) {
    let (offset_ms, held_ms) = (adoption.before.offset_ms, adoption.after.held_ms);
    audit!(act = "adopt_clock", offset_ms, held_ms, "the wall clock was adopted");
}

/// A backup begins.
pub(super) fn backup_begun(topics: u64, live: u64) {
    audit!(act = "begin_backup", topics, live_messages = live, "a backup begins");
}

/// A backup has ended after so many bytes, well or not.
pub(super) fn backup_ended(bytes: u64, end: &str) {
    audit!(act = "end_backup", bytes, end, "a backup has ended");
}
