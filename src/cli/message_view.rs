//! A message as people and programs read it.

use std::collections::BTreeMap;

use serde::Serialize;

use super::body::Body;
use super::output::{Row, Sheet};
use crate::client::{tiers_text, timestamp};
use crate::pb;
use crate::queue::time::Timestamp;

/// Everything known about a message. What does not apply is left out.
#[derive(Serialize)]
pub(super) struct MessageView {
    topic: String,
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    state: &'static str,
    why: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    produced_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_at: Option<String>,
    #[serde(flatten)]
    counters: Option<Counters>,
    #[serde(skip_serializing_if = "Option::is_none")]
    consumer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_deadline: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cancel_when_lease_ends: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
    #[serde(flatten)]
    body: Option<Body>,
    pub(super) history: Vec<HistoryView>,
    pub(super) history_omitted: u32,
}

/// Counters of a message that is not gone.
#[derive(Serialize)]
struct Counters {
    attempts: u32,
    max_attempts: u32,
    failures: u32,
    deliveries: u32,
    redrives: u32,
}

/// One delivery that ended without an ack.
#[derive(Serialize)]
pub(super) struct HistoryView {
    delivery: u32,
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    delivered_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
    consumer: String,
    outcome: &'static str,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_due_at: Option<String>,
}

impl MessageView {
    pub(super) fn new(info: pb::MessageInfo) -> Self {
        let state = info.state();
        let dead_reason = (state == pb::MessageState::Dead).then(|| dead_reason_name(info.dead_reason()));
        let outcome = (state == pb::MessageState::Done).then(|| outcome_name(info.outcome()));
        let counters = (state != pb::MessageState::Done).then_some(Counters {
            attempts: info.attempts,
            max_attempts: info.max_attempts,
            failures: info.failures,
            deliveries: info.deliveries,
            redrives: info.redrives,
        });
        Self {
            state: short(state.as_str_name(), "MESSAGE_STATE_"),
            dead_reason,
            outcome,
            produced_at: at(info.produced_at.as_ref()),
            due_at: at(info.due_at.as_ref()),
            lease_deadline: at(info.lease_deadline.as_ref()),
            ended_at: at(info.ended_at.as_ref()),
            schedule: info.schedule.as_ref().map(tiers_text),
            body: (!info.body.is_empty()).then(|| Body::new(&info.body)),
            history: info.history.into_iter().map(HistoryView::new).collect(),
            topic: info.topic,
            id: info.id,
            key: filled(info.key),
            why: info.why,
            counters,
            consumer: filled(info.consumer),
            cancel_when_lease_ends: info.cancel_when_lease_ends,
            headers: info.headers.into_iter().collect(),
            history_omitted: info.history_omitted,
        }
    }
}

impl Sheet for MessageView {
    fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("topic", self.topic.clone()), ("id", self.id.clone())];
        let mut add = |name, value: Option<String>| lines.extend(value.map(|value| (name, value)));
        add("key", self.key.clone());
        add("state", Some(self.state.to_owned()));
        add("why", Some(self.why.clone()));
        add("produced at", self.produced_at.clone());
        add("due at", self.due_at.clone());
        add("consumer", self.consumer.clone());
        add("lease deadline", self.lease_deadline.clone());
        add("cancelled when the lease ends", self.cancel_when_lease_ends.then(|| "yes".to_owned()));
        add("dead reason", self.dead_reason.map(str::to_owned));
        add("outcome", self.outcome.map(str::to_owned));
        add("ended at", self.ended_at.clone());
        if let Some(counters) = &self.counters {
            add("attempts", Some(format!("{} of {}", counters.attempts, counters.max_attempts)));
            add("failures", (counters.failures > 0).then(|| counters.failures.to_string()));
            add("deliveries", Some(counters.deliveries.to_string()));
            add("redrives", (counters.redrives > 0).then(|| counters.redrives.to_string()));
        }
        add("schedule", self.schedule.clone());
        for (name, value) in &self.headers {
            add("header", Some(format!("{name}={value}")));
        }
        add("body", self.body.as_ref().map(ToString::to_string));
        lines
    }
}

/// As a row of a listing of dead letters.
impl Row for MessageView {
    const COLUMNS: &'static [&'static str] =
        &["id", "key", "reason", "dead since", "attempts", "deliveries", "last outcome", "last text"];

    fn cells(&self) -> Vec<String> {
        let last = self.history.last();
        let counters = |text: fn(&Counters) -> String| self.counters.as_ref().map(text).unwrap_or_default();
        vec![
            self.id.clone(),
            self.key.clone().unwrap_or_else(|| "-".to_owned()),
            self.dead_reason.unwrap_or("-").to_owned(),
            self.ended_at.clone().unwrap_or_default(),
            counters(|counters| format!("{}/{}", counters.attempts, counters.max_attempts)),
            counters(|counters| counters.deliveries.to_string()),
            last.map_or("-", |entry| entry.outcome).to_owned(),
            last.map(|entry| entry.text.clone()).unwrap_or_default(),
        ]
    }
}

/// A message in a listing, whatever its state.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct ListedView(MessageView);

impl ListedView {
    pub(super) fn new(info: pb::MessageInfo) -> Self {
        Self(MessageView::new(info))
    }
}

impl Row for ListedView {
    const COLUMNS: &'static [&'static str] = &["id", "key", "state", "due at", "attempts", "deliveries", "consumer"];

    fn cells(&self) -> Vec<String> {
        let Self(view) = self;
        let dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let counters = |text: fn(&Counters) -> String| view.counters.as_ref().map(text).unwrap_or_default();
        vec![
            view.id.clone(),
            dash(&view.key),
            view.state.to_owned(),
            dash(&view.due_at),
            counters(|counters| format!("{}/{}", counters.attempts, counters.max_attempts)),
            counters(|counters| counters.deliveries.to_string()),
            dash(&view.consumer),
        ]
    }
}

impl HistoryView {
    fn new(entry: pb::HistoryEntry) -> Self {
        Self {
            delivery: entry.delivery,
            attempt: entry.attempt,
            delivered_at: at(entry.delivered_at.as_ref()),
            ended_at: at(entry.ended_at.as_ref()),
            outcome: short(entry.outcome().as_str_name(), "DELIVERY_OUTCOME_"),
            next_due_at: at(entry.next_due_at.as_ref()),
            consumer: entry.consumer,
            text: entry.text,
        }
    }

    pub(super) fn cells(&self) -> Vec<String> {
        vec![
            self.delivery.to_string(),
            self.attempt.to_string(),
            self.delivered_at.clone().unwrap_or_default(),
            self.outcome.to_owned(),
            self.consumer.clone(),
            self.text.clone(),
            self.next_due_at.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    }
}

/// The name of an outcome, such as `ACKED`.
pub(super) fn outcome_name(outcome: pb::Outcome) -> &'static str {
    short(outcome.as_str_name(), "OUTCOME_")
}

fn dead_reason_name(reason: pb::DeadReason) -> &'static str {
    short(reason.as_str_name(), "DEAD_REASON_")
}

fn short(name: &'static str, prefix: &str) -> &'static str {
    name.strip_prefix(prefix).unwrap_or(name)
}

fn at(at: Option<&prost_types::Timestamp>) -> Option<String> {
    at.map(timestamp).map(Timestamp::to_rfc3339)
}

fn filled(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}
