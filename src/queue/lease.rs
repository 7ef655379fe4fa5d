//! Leasing ready messages, extending leases, and giving them back.

use super::change::{Change, Closing, OpenLease};
use super::command::{ConsumerId, Delivery, FindRejection, LeaseRequest, SettleRejection};
use super::entry::{Entry, Lease, State};
use super::limits::{MAX_LEASE_BYTES, MAX_LEASE_MS, MIN_LEASE_MS};
use super::message::TopicId;
use super::receipt::Receipt;
use super::schedule::format_duration;
use super::state::{Effects, Queue};
use super::time::Timestamp;
use super::transition::{LeaseEnd, attempt, max_attempts};
use super::values::{Invalid, TopicName};
use super::view::Hindrance;

impl Queue {
    pub(super) fn lease(&mut self, now: Timestamp, request: &LeaseRequest) -> Result<Vec<Delivery>, FindRejection> {
        let id = self.topic_id(&request.topic).ok_or_else(|| FindRejection::TopicNotFound(request.topic.clone()))?;
        if let Some(ms) = request.lease_ms {
            check_lease(ms)?;
        }
        let (mut deliveries, mut bytes) = (Vec::new(), 0);
        while deliveries.len() < request.max && bytes < MAX_LEASE_BYTES {
            let Some(index) = self.next_leasable(now, id) else { break };
            let delivery = self.lease_one(now, index, request);
            bytes += delivery.message.content.bytes();
            deliveries.push(delivery);
        }
        Ok(deliveries)
    }

    /// True if a lease of this topic would return at least one message.
    pub fn has_leasable(&mut self, now: Timestamp, topic: &TopicName) -> bool {
        self.topic_id(topic).is_some_and(|id| self.next_leasable(now, id).is_some())
    }

    /// The first ready message of the topic, if nothing hinders its delivery.
    fn next_leasable(&mut self, now: Timestamp, topic: TopicId) -> Option<u32> {
        let fired_through = self.fired_through();
        let topic = self.topic_mut(topic);
        let (&(due_at, arrival), &index) = topic.ready.first_key_value()?;
        if due_at > fired_through || (due_at, arrival) >= topic.stored.frontier {
            return None;
        }
        match hindrance(topic, now) {
            None => Some(index),
            Some(Hindrance::RateCap(token_at)) => {
                let id = topic.record.id;
                self.token_waits.insert((token_at, id));
                None
            }
            Some(Hindrance::Paused | Hindrance::ConcurrencyCap(_)) => None,
        }
    }

    fn lease_one(&mut self, now: Timestamp, index: u32, request: &LeaseRequest) -> Delivery {
        let epoch = self.epoch;
        let Entry { message, state, maybe_delivered, .. } = &mut self.entries[index as usize];
        let (id, due_at) = (message.id, message.progress.due_at);
        assert!(due_at <= now && matches!(state, State::Ready), "only due, ready messages are leased");
        let topic = self.topics.get_mut(&id.topic).expect("a live message's topic exists");
        topic.ready.remove(&(due_at, id.arrival));
        topic.leased.insert((due_at, id.arrival), index);
        topic.pacer.take(now);
        let settings = &topic.record.settings;
        let deadline = now.plus(request.lease_ms.unwrap_or(settings.lease_ms));
        let receipt = Receipt { id, delivery: message.progress.deliveries + 1, epoch };
        *state = State::Leased(Box::new(Lease {
            delivery: receipt.delivery,
            epoch,
            consumer: request.consumer,
            consumer_name: request.consumer_name.clone(),
            delivered_at: now,
            deadline,
            timer: Some(self.wheel.insert(deadline.as_millis(), index)),
        }));
        self.leases.insert((request.consumer, id.arrival));
        Delivery {
            topic: topic.record.name.clone(),
            attempt: attempt(message),
            max_attempts: max_attempts(message, settings),
            redelivered: *maybe_delivered || message.progress.deliveries > 0,
            message: message.clone(),
            receipt,
            delivered_at: now,
            deadline,
        }
    }

    pub(super) fn extend(
        &mut self,
        now: Timestamp,
        receipt: &Receipt,
        lease_ms: Option<u64>,
    ) -> Result<Timestamp, SettleRejection> {
        if let Some(ms) = lease_ms {
            check_lease(ms)?;
        }
        let index = self.leased(now, receipt)?;
        let topic_lease_ms = self.topics[&receipt.id.topic].record.settings.lease_ms;
        let deadline = now.plus(lease_ms.unwrap_or(topic_lease_ms));
        self.set_deadline(index, deadline);
        Ok(deadline)
    }

    /// Gives back all leases of a stream that ended; returns how many.
    pub(super) fn return_all(&mut self, now: Timestamp, consumer: ConsumerId, effects: &mut Effects) -> usize {
        if consumer == ConsumerId::NONE {
            return 0;
        }
        let held: Vec<u64> =
            self.leases.range((consumer, 0)..=(consumer, u64::MAX)).map(|&(_, arrival)| arrival).collect();
        for arrival in &held {
            let index = self.by_arrival[arrival];
            self.end_lease(now, index, LeaseEnd::Returned, None, effects);
        }
        held.len()
    }

    pub(super) fn return_one(
        &mut self,
        now: Timestamp,
        receipt: &Receipt,
        effects: &mut Effects,
    ) -> Result<usize, SettleRejection> {
        let index = self.leased(now, receipt)?;
        self.end_lease(now, index, LeaseEnd::Returned, None, effects);
        Ok(1)
    }

    /// After a pause of the broker: leases that would end within `grace_ms` of `now` end then instead, so that
    /// settlements still on their way are not too late.
    pub fn grant_grace(&mut self, now: Timestamp, grace_ms: u64) {
        let deadline = now.plus(grace_ms);
        let held: Vec<u32> = self.leases.iter().map(|(_, arrival)| self.by_arrival[arrival]).collect();
        for index in held {
            if self.held_lease(index).deadline < deadline {
                self.set_deadline(index, deadline);
            }
        }
    }

    /// The last changes of a clean stop: the open leases, whose receipts stay valid. Their messages are written
    /// once more, so that they are in memory after the restart.
    pub fn close(&self, now: Timestamp, effects: &mut Effects) {
        for (_, arrival) in &self.leases {
            let Entry { message, changed, .. } = &self.entries[self.by_arrival[arrival] as usize];
            if *changed < self.generation {
                let change = Change::Moved { message: message.clone(), previous: message.place(), entry: None };
                effects.changes.push(change);
            }
        }
        let open = |arrival: &u64| {
            let index = self.by_arrival[arrival];
            let lease = self.held_lease(index);
            OpenLease {
                id: self.message(index).id,
                delivery: lease.delivery,
                epoch: lease.epoch,
                delivered_at: lease.delivered_at,
                deadline: lease.deadline,
                consumer: lease.consumer_name.clone(),
            }
        };
        let leases = self.leases.iter().map(|(_, arrival)| open(arrival)).collect();
        effects.changes.push(Change::Closed(Closing { at: now, leases, suspected: self.voided }));
    }

    pub(super) fn held_lease(&self, index: u32) -> &Lease {
        match &self.entries[index as usize].state {
            State::Leased(lease) => lease,
            _ => unreachable!("the lease index names leased messages only"),
        }
    }

    fn set_deadline(&mut self, index: u32, deadline: Timestamp) {
        let State::Leased(lease) = &mut self.entries[index as usize].state else {
            unreachable!("the lease index names leased messages only")
        };
        lease.timer.map(|timer| self.wheel.remove(timer));
        lease.timer = Some(self.wheel.insert(deadline.as_millis(), index));
        lease.deadline = deadline;
    }
}

/// What keeps the ready messages of a topic from being leased, apart from consumers' windows.
pub(super) fn hindrance(topic: &super::topic::Topic, now: Timestamp) -> Option<Hindrance> {
    if topic.record.paused {
        return Some(Hindrance::Paused);
    }
    if topic.at_concurrency_cap() {
        return topic.record.settings.concurrency.map(Hindrance::ConcurrencyCap);
    }
    topic.pacer.wait_until(now).map(Hindrance::RateCap)
}

fn check_lease(ms: u64) -> Result<(), Invalid> {
    if (MIN_LEASE_MS..=MAX_LEASE_MS).contains(&ms) {
        return Ok(());
    }
    let (value, min, max) = (format_duration(ms), format_duration(MIN_LEASE_MS), format_duration(MAX_LEASE_MS));
    Err(Invalid::new("lease", format!("{value}; must be {min} to {max}")))
}
