//! Who waits for messages: consume streams with their windows, and fetches with their deadlines.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use tokio::sync::oneshot;

use super::consumer::Delivered;
use super::handle::{Fetch, Window};
use super::input::{FetchId, Fetched};
use super::ring::{Ring, Turn, Waiter};
use super::round::Release;
use crate::queue::Queue;
use crate::queue::command::{ConsumerId, Delivery, FindRejection};
use crate::queue::limits::{
    MAX_BATCH, MAX_FETCH_WAIT_MS, MAX_LEASE_BYTES, MAX_LEASE_MS, MAX_STREAM_TOPICS, MAX_WINDOW, MIN_LEASE_MS,
};
use crate::queue::message::TopicId;
use crate::queue::schedule::format_duration;
use crate::queue::time::Timestamp;
use crate::queue::values::{ConsumerName, Invalid, TopicName};

/// All who wait. A waiter has a turn in the ring of a topic if and only if it may have room for its messages.
#[derive(Default)]
pub(super) struct Service {
    pub(super) streams: BTreeMap<ConsumerId, Stream>,
    pub(super) fetches: BTreeMap<FetchId, WaitingFetch>,
    /// Of the fetches.
    deadlines: BTreeSet<(Timestamp, FetchId)>,
    /// Of the topics that somebody is interested in.
    pub(super) rings: BTreeMap<TopicId, Ring>,
    /// The topics after this one come first in the next round.
    pub(super) last_served: Option<TopicId>,
}

/// A consume stream.
pub(super) struct Stream {
    pub(super) name: ConsumerName,
    pub(super) delivered: Delivered,
    /// All windows together: the most deliveries that may be unread.
    pub(super) most_unread: usize,
    pub(super) windows: BTreeMap<TopicId, OpenWindow>,
    /// Leased in this round.
    pub(super) batch: Vec<Delivery>,
}

/// A window of a stream on a topic.
pub(super) struct OpenWindow {
    size: usize,
    pub(super) leased: usize,
    pub(super) lease_ms: Option<u64>,
    pub(super) turn: Option<Turn>,
}

/// A fetch that waits.
pub(super) struct WaitingFetch {
    pub(super) fetch: Fetch,
    pub(super) topic: TopicId,
    pub(super) deadline: Timestamp,
    pub(super) reply: oneshot::Sender<Fetched>,
    pub(super) turn: Option<Turn>,
    /// Leased in this round.
    pub(super) batch: Vec<Delivery>,
    /// Bytes of their content.
    pub(super) batch_bytes: usize,
}

impl WaitingFetch {
    pub(super) fn has_room(&self) -> bool {
        self.batch.len() < self.fetch.max && self.batch_bytes < MAX_LEASE_BYTES
    }
}

impl OpenWindow {
    pub(super) fn room(&self) -> usize {
        self.size.saturating_sub(self.leased)
    }
}

impl Service {
    /// Begins a stream. A refusal changes nothing.
    pub(super) fn attach(
        &mut self,
        queue: &Queue,
        consumer: ConsumerId,
        name: ConsumerName,
        windows: Vec<Window>,
        delivered: Delivered,
    ) -> Result<(), FindRejection> {
        check_windows(&windows)?;
        let topics = windows.iter().map(|window| existing(queue, &window.topic)).collect::<Result<Vec<_>, _>>()?;
        if topics.iter().collect::<BTreeSet<_>>().len() < topics.len() {
            return Err(Invalid::new("topics", "a topic is named twice").into());
        }
        let mut stream = Stream { name, delivered, most_unread: 0, windows: BTreeMap::new(), batch: Vec::new() };
        for (topic, window) in topics.into_iter().zip(windows) {
            let ring = self.rings.entry(topic).or_insert_with(|| Ring::new(window.topic));
            ring.streams += 1;
            let turn = Some(ring.join(Waiter::Stream(consumer)));
            let size = window.window as usize;
            stream.most_unread += size;
            stream.windows.insert(topic, OpenWindow { size, leased: 0, lease_ms: window.lease_ms, turn });
        }
        self.streams.insert(consumer, stream);
        Ok(())
    }

    /// Ends a stream; unknown ones were refused or ended before.
    pub(super) fn detach(&mut self, consumer: ConsumerId) -> Option<Stream> {
        let mut stream = self.streams.remove(&consumer)?;
        for (topic, window) in mem::take(&mut stream.windows) {
            self.leave(topic, window.turn, |ring| ring.streams -= 1);
        }
        Some(stream)
    }

    /// A topic is gone: fetches on it are answered, and streams with a window on it end. Gives what is to be let out
    /// when that is durable, and the streams, whose leases are to be given back.
    pub(super) fn topic_deleted(&mut self, topic: TopicId, name: &TopicName) -> (Vec<Release>, Vec<ConsumerId>) {
        let fetches = self.fetches.iter().filter(|(_, fetch)| fetch.topic == topic);
        let fetches: Vec<FetchId> = fetches.map(|(&id, _)| id).collect();
        let mut releases = Vec::new();
        for id in fetches {
            let fetch = self.end_fetch(id).expect("it was just seen");
            releases.push(Release::Fetched(fetch.reply, Err(FindRejection::TopicNotFound(name.clone()))));
        }
        let streams = self.streams.iter().filter(|(_, stream)| stream.windows.contains_key(&topic));
        let consumers: Vec<ConsumerId> = streams.map(|(&id, _)| id).collect();
        for &id in &consumers {
            let stream = self.detach(id).expect("it was just seen");
            let name = name.clone();
            // The reader sees the end when the last sender is gone.
            releases.push(Release::Show(Box::new(move || stream.delivered.end(name)), None));
        }
        (releases, consumers)
    }

    /// A lease of the stream has ended: its window has room again.
    pub(super) fn lease_ended(&mut self, consumer: ConsumerId, topic: TopicId) {
        let Some(stream) = self.streams.get_mut(&consumer) else { return };
        let window = stream.windows.get_mut(&topic).expect("a stream holds leases of its topics only");
        window.leased -= 1;
        if window.turn.is_none() {
            window.turn = Some(ring(&mut self.rings, topic).join(Waiter::Stream(consumer)));
        }
    }

    /// A stream that was behind may be served again.
    pub(super) fn caught_up(&mut self, consumer: ConsumerId) {
        let Some(stream) = self.streams.get_mut(&consumer) else { return };
        for (&topic, window) in &mut stream.windows {
            if window.turn.is_none() && window.room() > 0 {
                window.turn = Some(ring(&mut self.rings, topic).join(Waiter::Stream(consumer)));
            }
        }
    }

    /// Begins a fetch, or answers it at once if it is refused.
    pub(super) fn fetch(
        &mut self,
        now: Timestamp,
        queue: &Queue,
        id: FetchId,
        fetch: Fetch,
        reply: oneshot::Sender<Fetched>,
    ) -> Option<Release> {
        let topic = match check_fetch(&fetch).and_then(|()| existing(queue, &fetch.topic)) {
            Ok(topic) => topic,
            Err(rejection) => return Some(Release::Fetched(reply, Err(rejection))),
        };
        let ring = self.rings.entry(topic).or_insert_with(|| Ring::new(fetch.topic.clone()));
        ring.fetches += 1;
        let turn = Some(ring.join(Waiter::Fetch(id)));
        let deadline = now.plus(fetch.wait_ms);
        self.deadlines.insert((deadline, id));
        self.fetches
            .insert(id, WaitingFetch { fetch, topic, deadline, reply, turn, batch: Vec::new(), batch_bytes: 0 });
        None
    }

    /// Takes a fetch out; unknown ones are over.
    pub(super) fn end_fetch(&mut self, id: FetchId) -> Option<WaitingFetch> {
        let fetch = self.fetches.remove(&id)?;
        self.deadlines.remove(&(fetch.deadline, id));
        self.leave(fetch.topic, fetch.turn, |ring| ring.fetches -= 1);
        Some(fetch)
    }

    /// The next fetch whose wait is over.
    pub(super) fn next_overdue(&self, now: Timestamp) -> Option<FetchId> {
        self.deadlines.first().filter(|(deadline, _)| *deadline <= now).map(|&(_, id)| id)
    }

    /// When the wait of a fetch is over next.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    /// Ends all streams and fetches. Streams that have deliveries on their way get these first.
    pub(super) fn end(&mut self) -> impl Iterator<Item = Release> + use<> {
        let Self { fetches, .. } = mem::take(self);
        fetches.into_values().map(|fetch| Release::Fetched(fetch.reply, Ok(Vec::new())))
    }

    /// Streams with a window and fetches on the topic.
    pub(super) fn interested(&self, topic: TopicId) -> (usize, usize) {
        self.rings.get(&topic).map_or((0, 0), |ring| (ring.streams, ring.fetches))
    }

    fn leave(&mut self, topic: TopicId, turn: Option<Turn>, uncount: impl FnOnce(&mut Ring)) {
        let ring = ring(&mut self.rings, topic);
        if let Some(turn) = turn {
            ring.leave(turn);
        }
        uncount(ring);
        if ring.is_deserted() {
            self.rings.remove(&topic);
        }
    }
}

/// The ring of a topic that somebody is interested in.
pub(super) fn ring(rings: &mut BTreeMap<TopicId, Ring>, topic: TopicId) -> &mut Ring {
    rings.get_mut(&topic).expect("a topic that somebody is interested in has a ring")
}

fn existing(queue: &Queue, name: &TopicName) -> Result<TopicId, FindRejection> {
    let topic = queue.topic(name).ok_or_else(|| FindRejection::TopicNotFound(name.clone()))?;
    Ok(topic.id)
}

fn check_windows(windows: &[Window]) -> Result<(), Invalid> {
    if windows.is_empty() || windows.len() > MAX_STREAM_TOPICS {
        return Err(Invalid::new("topics", format!("{} topics; must be 1 to {MAX_STREAM_TOPICS}", windows.len())));
    }
    for window in windows {
        if !(1..=MAX_WINDOW).contains(&window.window) {
            return Err(Invalid::new("window", format!("{}; must be 1 to {MAX_WINDOW}", window.window)));
        }
        check_lease(window.lease_ms)?;
    }
    Ok(())
}

fn check_fetch(fetch: &Fetch) -> Result<(), FindRejection> {
    if !(1..=MAX_BATCH).contains(&fetch.max) {
        return Err(Invalid::new("max_messages", format!("{}; must be 1 to {MAX_BATCH}", fetch.max)).into());
    }
    if fetch.wait_ms > MAX_FETCH_WAIT_MS {
        let (value, max) = (format_duration(fetch.wait_ms), format_duration(MAX_FETCH_WAIT_MS));
        return Err(Invalid::new("wait", format!("{value}; at most {max}")).into());
    }
    Ok(check_lease(fetch.lease_ms)?)
}

fn check_lease(lease_ms: Option<u64>) -> Result<(), Invalid> {
    match lease_ms.filter(|ms| !(MIN_LEASE_MS..=MAX_LEASE_MS).contains(ms)) {
        None => Ok(()),
        Some(ms) => {
            let (value, min, max) = (format_duration(ms), format_duration(MIN_LEASE_MS), format_duration(MAX_LEASE_MS));
            Err(Invalid::new("lease", format!("{value}; must be {min} to {max}")))
        }
    }
}
