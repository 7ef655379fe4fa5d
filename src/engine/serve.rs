//! Serving: leasing ready messages to those who wait, so that nobody's burst is somebody else's delay.
//!
//! Topics take turns, and so do the consumers of a topic; a turn is one bounded chunk. When the round's bound is
//! reached, the next round goes on with the topic whose turn it is, after the settlements that came in meanwhile.

use std::collections::VecDeque;
use std::mem;
use std::ops::Bound;

use super::ring::Waiter;
use super::round::Release;
use super::service::{Service, ring};
use super::stats::Tally;
use crate::queue::command::{Command, ConsumerId, Delivery, LeaseRequest, Reply};
use crate::queue::message::TopicId;
use crate::queue::time::Timestamp;
use crate::queue::{Effects, Queue};

/// Most deliveries of one turn.
const TURN_DELIVERIES: usize = 64;

/// Most deliveries of one round.
const ROUND_DELIVERIES: usize = 4_096;

/// What a round of serving works with.
pub(super) struct Serving<'a> {
    pub(super) now: Timestamp,
    pub(super) queue: &'a mut Queue,
    pub(super) effects: &'a mut Effects,
    pub(super) tally: &'a mut Tally,
    pub(super) releases: &'a mut Vec<Release>,
}

impl Service {
    /// Leases what can be leased, within the round's bound, and ends fetches whose wait is over. True if there
    /// may be more to lease at this instant.
    pub(super) fn serve(&mut self, mut serving: Serving<'_>) -> bool {
        let mut topics = self.topics_in_turn();
        let mut served = Vec::new();
        let mut left = ROUND_DELIVERIES;
        while left > 0
            && let Some(topic) = topics.pop_front()
        {
            if let Some((waiter, count)) = self.take_turn(topic, left.min(TURN_DELIVERIES), &mut serving) {
                left -= count;
                self.last_served = Some(topic);
                topics.push_back(topic);
                served.push(waiter);
            }
        }
        for waiter in served {
            self.flush(waiter, serving.releases);
        }
        while let Some(id) = self.next_overdue(serving.now) {
            let over = self.end_fetch(id).expect("a fetch with a deadline waits");
            serving.releases.push(Release::Fetched(over.reply, Ok(Vec::new())));
        }
        !topics.is_empty()
    }

    /// Topics that somebody has room for, beginning after the one that was served last.
    fn topics_in_turn(&self) -> VecDeque<TopicId> {
        let after = self.last_served.map_or(Bound::Unbounded, Bound::Excluded);
        let until = self.last_served.map_or(Bound::Excluded(TopicId(0)), Bound::Included);
        let rings = self.rings.range((after, Bound::Unbounded)).chain(self.rings.range((Bound::Unbounded, until)));
        rings.filter(|(_, ring)| ring.is_waiting()).map(|(&topic, _)| topic).collect()
    }

    /// Leases one chunk to whose turn it is. `None` if nothing can be leased or nobody has room.
    fn take_turn(&mut self, topic: TopicId, most: usize, serving: &mut Serving<'_>) -> Option<(Waiter, usize)> {
        while ring(&mut self.rings, topic).is_waiting() {
            let ring = ring(&mut self.rings, topic);
            if !serving.queue.has_leasable(serving.now, &ring.name) {
                return None;
            }
            let waiter = ring.take_first()?;
            let request = self.request(waiter, topic, most);
            if let Some(request) = request {
                let deliveries = lease(request, serving);
                serving.tally.count(topic, &deliveries);
                let count = deliveries.len();
                self.deliver(waiter, topic, deliveries);
                return Some((waiter, count));
            }
        }
        None
    }

    /// What the waiter, whose turn in the topic has just come, asks for; `None` if it has no room after all.
    fn request(&mut self, waiter: Waiter, topic: TopicId, most: usize) -> Option<LeaseRequest> {
        let name = ring(&mut self.rings, topic).name.clone();
        match waiter {
            Waiter::Stream(id) => {
                let stream = self.streams.get_mut(&id).expect("a stream leaves its rings when it ends");
                let window = stream.windows.get_mut(&topic).expect("a stream waits for its topics only");
                window.turn = None;
                let max = most.min(window.room()).min(stream.delivered.room(stream.most_unread));
                let (consumer_name, lease_ms) = (stream.name.clone(), window.lease_ms);
                (max > 0).then_some(LeaseRequest { topic: name, consumer: id, consumer_name, max, lease_ms })
            }
            Waiter::Fetch(id) => {
                let waiting = self.fetches.get_mut(&id).expect("a fetch leaves its ring when it ends");
                waiting.turn = None;
                // Nobody waits for it any more; it ends as soon as the owner is told.
                let is_dropped = waiting.reply.is_closed();
                let max = if is_dropped { 0 } else { most.min(waiting.fetch.max - waiting.batch.len()) };
                let (consumer_name, lease_ms) = (waiting.fetch.consumer_name.clone(), waiting.fetch.lease_ms);
                let consumer = ConsumerId::NONE;
                (max > 0).then_some(LeaseRequest { topic: name, consumer, consumer_name, max, lease_ms })
            }
        }
    }

    /// Adds deliveries to the waiter's batch; it queues up again if it has room for more.
    fn deliver(&mut self, waiter: Waiter, topic: TopicId, deliveries: Vec<Delivery>) {
        let ring = ring(&mut self.rings, topic);
        match waiter {
            Waiter::Stream(id) => {
                let stream = self.streams.get_mut(&id).expect("it was just asked");
                let window = stream.windows.get_mut(&topic).expect("it was just asked");
                stream.delivered.leased(deliveries.len());
                window.leased += deliveries.len();
                window.turn = (window.room() > 0).then(|| ring.join(waiter));
                stream.batch.extend(deliveries);
            }
            Waiter::Fetch(id) => {
                let waiting = self.fetches.get_mut(&id).expect("it was just asked");
                waiting.batch_bytes += deliveries.iter().map(|leased| leased.message.content.bytes()).sum::<usize>();
                waiting.batch.extend(deliveries);
                waiting.turn = waiting.has_room().then(|| ring.join(waiter));
            }
        }
    }

    /// Sends off what the waiter was leased in this round, once.
    fn flush(&mut self, waiter: Waiter, releases: &mut Vec<Release>) {
        match waiter {
            Waiter::Stream(id) => {
                let stream = self.streams.get_mut(&id).expect("it was just served");
                if !stream.batch.is_empty() {
                    releases.push(Release::Batch(stream.delivered.batches.clone(), mem::take(&mut stream.batch)));
                }
            }
            Waiter::Fetch(id) => {
                if let Some(served) = self.end_fetch(id) {
                    releases.push(Release::Fetched(served.reply, Ok(served.batch)));
                }
            }
        }
    }
}

fn lease(request: LeaseRequest, serving: &mut Serving<'_>) -> Vec<Delivery> {
    match serving.queue.apply(serving.now, Command::Lease(request), None, serving.effects) {
        Ok(Reply::Leased(deliveries)) => deliveries,
        other => unreachable!("the request was checked when its waiter came, but the queue says {other:?}"),
    }
}
