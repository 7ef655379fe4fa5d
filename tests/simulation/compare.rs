//! What the broker knows, compared with what was committed.

use std::collections::BTreeMap;

use duewheel::queue::Queue;
use duewheel::queue::check::Snapshot;
use duewheel::queue::command::Target;
use duewheel::queue::far::Load;
use duewheel::queue::message::{Message, TopicId};
use duewheel::queue::time::Timestamp;
use duewheel::queue::view::MessageView;
use duewheel::store::Reader;

use crate::shadow::{Shadow, Violation, ensure};

/// Memory against the commits, when nothing is on its way.
pub(crate) fn memory(queue: &Queue, shadow: &Shadow, now: Timestamp) -> Result<Snapshot, Violation> {
    let snapshot = queue.snapshot(now);
    let topics = shadow.topics.values().map(|record| (record.clone(), shadow.totals[&record.id]));
    let topics: Vec<_> = topics.collect();
    ensure!(snapshot.topics == topics, "topics and totals: {:?}, but committed were {topics:?}", snapshot.topics);
    for message in &snapshot.messages {
        let committed = shadow.live.get(&message.id.arrival);
        ensure!(committed == Some(message), "in memory: {message:?}, but committed was {committed:?}");
    }
    for (id, record) in &shadow.topics {
        let counts = queue.counts(now, &record.name).expect("it was compared above");
        let live = shadow.live.values().filter(|message| message.id.topic == *id);
        let dead = live.clone().filter(|message| message.progress.dead.is_some()).count() as u64;
        let waiting = live.count() as u64 - dead;
        let counted = counts.scheduled + counts.ready + counts.stored + counts.leased;
        ensure!(counted == waiting, "{counted} waiting or leased are counted, {waiting} there are: {counts:?}");
        ensure!(counts.dead == dead, "{} dead letters are counted, {dead} there are", counts.dead);
    }
    Ok(snapshot)
}

/// Everything that a start has found against the commits.
pub(crate) fn store(
    queue: &Queue,
    reader: &mut Reader,
    shadow: &Shadow,
    now: Timestamp,
    latest: Timestamp,
) -> Result<(), Violation> {
    queue.check(now).map_err(|problem| format!("an invariant of the queue: {problem}"))?;
    let snapshot = memory(queue, shadow, now)?;
    for message in shadow.live.values() {
        let (topic, target) = (&shadow.topics[&message.id.topic].name, Target::Id(message.id));
        let missing = queue.missing_target(topic, &target);
        let found = missing.map(|missing| reader.find(&missing)).transpose().map_err(|error| error.to_string())?;
        let view = queue.look_up(now, topic, &target, found.flatten().as_ref()).map_err(|error| error.to_string())?;
        match view {
            Some(MessageView::Live(view)) if view.message == *message => {}
            other => return Err(format!("committed was {message:?}, but found is {other:?}")),
        }
    }
    for topic in shadow.topics.values() {
        for (arrival, stored) in in_pages(reader, topic.id)? {
            let view = queue.look_up(now, &topic.name, &Target::Id(stored.id), Some(&stored));
            let is_live = matches!(view, Ok(Some(MessageView::Live(_))));
            ensure!(is_live == shadow.live.contains_key(&arrival), "live: {is_live}, in the pages: {stored:?}");
        }
    }
    for finished in &snapshot.ended {
        let end = shadow.ends.get(&finished.id.arrival).map(|end| &end.finished);
        ensure!(end == Some(finished), "remembered as ended: {finished:?}, but committed was {end:?}");
    }
    for record in shadow.dedups.values() {
        let is_wanted = record.expires_at > latest.max(now) && shadow.topics.contains_key(&record.topic);
        ensure!(!is_wanted || snapshot.dedup.contains(record), "a dedup id is forgotten: {record:?}");
    }
    Ok(())
}

fn in_pages(reader: &mut Reader, topic: TopicId) -> Result<BTreeMap<u64, Message>, Violation> {
    let mut messages = BTreeMap::new();
    let mut from = Some((Timestamp::ZERO, 0));
    while let Some(place) = from {
        let load = Load { topic, from: place, max: 100, fold: reader.fold() };
        let loaded = reader.load(load).map_err(|error| error.to_string())?;
        messages.extend(loaded.messages.into_iter().map(|message| (message.id.arrival, message)));
        from = loaded.frontier;
    }
    let mut after = None;
    loop {
        let read = reader.dead(topic, after, 100).map_err(|error| error.to_string())?;
        messages.extend(read.messages.into_iter().map(|message| (message.id.arrival, message)));
        // A frontier is the first place that was not read.
        let Some((at, arrival)) = read.frontier else { break };
        after = Some(if arrival == 0 { (at.minus(1), u64::MAX) } else { (at, arrival - 1) });
    }
    let damaged = reader.take_damaged();
    ensure!(damaged.is_empty(), "damaged: {damaged:?}");
    Ok(messages)
}
