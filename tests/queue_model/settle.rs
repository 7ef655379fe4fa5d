//! The model's half of consuming: leases, and every way in which one ends.

use duewheel::queue::change::{Change, Outcome};
use duewheel::queue::command::{
    ConsumerId, Delivery, FindRejection, LeaseRequest, Nack, NackReason, Nacked, Reply, SettleRejection, Target,
};
use duewheel::queue::limits::{MAX_LEASE_MS, MIN_LEASE_MS};
use duewheel::queue::message::{DeadReason, DeliveryOutcome, HistoryEntry, Progress, TopicId};
use duewheel::queue::receipt::Receipt;
use duewheel::queue::schedule::RetrySchedule;
use duewheel::queue::settings::TopicSettings;
use duewheel::queue::time::Timestamp;
use duewheel::queue::values::{Invalid, NackText};

use crate::model::{Did, Model, find_topic, jittered};
use crate::parts::{CATCH_UP_MS, Lease, State};

/// How a lease ends without an ack. Spans are the waits that a nack asks for instead of the tier.
#[derive(Clone, Copy)]
enum End {
    NotYet(Option<u64>),
    Failed(Option<u64>),
    Dead,
    Expired,
    Returned,
}

impl Model {
    pub(crate) fn lease(
        &mut self,
        now: Timestamp,
        request: &LeaseRequest,
        did: &Did,
    ) -> Result<Vec<Delivery>, FindRejection> {
        let topic = find_topic(self, &request.topic)?;
        check_lease(request.lease_ms)?;
        let settings = self.settings(topic);
        let leased = self.count(topic, State::Leased);
        let room = settings.concurrency.map_or(usize::MAX, |cap| (cap as usize).saturating_sub(leased));
        let paused = self.topic_mut(topic).record.paused;
        let ready: Vec<u64> = self.ready(topic).iter().map(|entry| entry.id.arrival).collect();
        let mut take = if paused { 0 } else { request.max.min(room).min(ready.len()) };
        let Some(Ok(Reply::Leased(taken))) = did.answer else { panic!("a lease is answered with deliveries") };
        if self.interrupted {
            // The first of what is due, as far as the queue has got; nothing may be passed over.
            assert!(taken.len() <= take, "{} deliveries of {take} possible", taken.len());
            take = taken.len();
        }
        if settings.rate.is_some() {
            take = self.paced(now, topic, take, taken.len());
        }
        let deadline = now.plus(request.lease_ms.unwrap_or(settings.lease_ms));
        let epoch = self.epoch;
        let mut deliveries = Vec::new();
        for arrival in ready.into_iter().take(take) {
            let entry = self.entries.get_mut(&arrival).expect("ready messages are live");
            let receipt = Receipt { id: entry.id, delivery: entry.progress.deliveries + 1, epoch };
            deliveries.push(Delivery {
                topic: request.topic.clone(),
                message: entry.message(),
                receipt,
                attempt: entry.progress.attempts + 1,
                max_attempts: entry.max_attempts(&settings),
                delivered_at: now,
                deadline,
                redelivered: entry.progress.deliveries > 0 || entry.suspected,
            });
            let (consumer, name) = (request.consumer, request.consumer_name.clone());
            entry.lease = Some(Lease { receipt, consumer, name, delivered_at: now, deadline });
        }
        Ok(deliveries)
    }

    /// Checks how many of `able` deliveries a rate cap let go: never more than the cap in any period, evenly paced,
    /// and never none when a token is certain to be there.
    fn paced(&mut self, now: Timestamp, topic: TopicId, able: usize, taken: usize) -> usize {
        let topic = self.topic_mut(topic);
        let rate = topic.record.settings.rate.expect("called for a rate cap");
        let (period, most) = (rate.period_ms, u64::from(rate.deliveries));
        let certain = topic.token_by().is_some_and(|at| at <= now);
        assert!(taken <= able, "{taken} deliveries of {able} possible");
        assert!(!(certain && able > 0 && taken == 0), "the rate cap held back a delivery that it allows at {now}");
        topic.rate_wanted = taken < able;
        topic.delivered.extend(std::iter::repeat_n(now, taken));
        let within = topic.delivered.iter().filter(|at| at.plus(period) > now).count() as u64;
        assert!(within <= most, "{within} deliveries within {period} ms; the cap is {most}");
        let tick = topic.delivered.iter().filter(|&&at| at == now).count() as u64;
        let catch_up = ((CATCH_UP_MS + 1) * most).div_ceil(period) + 1;
        assert!(tick <= catch_up, "{tick} deliveries in one millisecond are a burst");
        let first = topic.delivered.first().filter(|&&first| first == now && taken > 0);
        if first.is_some() && period >= most {
            assert!(now.since(topic.paced_since) >= period / most, "the first token came before one interval");
        }
        taken
    }

    pub(crate) fn ack(&mut self, now: Timestamp, receipt: &Receipt) -> Result<bool, SettleRejection> {
        if self.leased_by(receipt).is_ok() {
            let winner = Some((receipt.delivery, receipt.epoch));
            self.finish(now, receipt.id.arrival, Outcome::Acked, winner);
            return Ok(false);
        }
        let gone = self.gone(receipt.id.topic, &Target::Id(receipt.id));
        if gone.is_some_and(|finished| finished.receipt == Some((receipt.delivery, receipt.epoch))) {
            return Ok(true);
        }
        self.leased_by(receipt).map(|_| false)
    }

    pub(crate) fn nack(&mut self, now: Timestamp, nack: &Nack, did: &Did) -> Result<Nacked, SettleRejection> {
        let end = match nack.reason {
            NackReason::NotYet(delay) => End::NotYet(delay),
            NackReason::Failed(delay) => End::Failed(delay),
            NackReason::Dead => End::Dead,
        };
        let (End::NotYet(delay) | End::Failed(delay)) = end else {
            return self.settle(now, nack, end, did);
        };
        if delay.is_some_and(|delay| delay > self.limits.max_delay_ms) {
            return Err(Invalid::new("delay", "out of range").into());
        }
        self.settle(now, nack, end, did)
    }

    fn settle(&mut self, now: Timestamp, nack: &Nack, end: End, did: &Did) -> Result<Nacked, SettleRejection> {
        let arrival = self.leased_by(&nack.receipt)?;
        Ok(self.end_lease(now, arrival, end, &nack.text, did))
    }

    pub(crate) fn extend(
        &mut self,
        now: Timestamp,
        receipt: &Receipt,
        lease_ms: Option<u64>,
    ) -> Result<Timestamp, SettleRejection> {
        check_lease(lease_ms)?;
        let arrival = self.leased_by(receipt)?;
        let settings = self.settings(receipt.id.topic);
        let deadline = now.plus(lease_ms.unwrap_or(settings.lease_ms));
        self.lease_mut(arrival).deadline = deadline;
        Ok(deadline)
    }

    pub(crate) fn return_one(&mut self, now: Timestamp, receipt: &Receipt, did: &Did) -> Result<(), SettleRejection> {
        let arrival = self.leased_by(receipt)?;
        self.end_lease(now, arrival, End::Returned, &no_text(), did);
        Ok(())
    }

    pub(crate) fn return_all(&mut self, now: Timestamp, consumer: ConsumerId, did: &Did) -> usize {
        let holds = |lease: &Lease| lease.consumer == consumer && consumer != ConsumerId::NONE;
        let held: Vec<u64> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.lease.as_ref().is_some_and(holds))
            .map(|(&arrival, _)| arrival)
            .collect();
        for &arrival in &held {
            self.end_lease(now, arrival, End::Returned, &no_text(), did);
        }
        held.len()
    }

    pub(crate) fn expire(&mut self, now: Timestamp, arrival: u64, did: &Did) {
        self.end_lease(now, arrival, End::Expired, &no_text(), did);
    }

    /// No lease ends before `grace_ms` from now.
    pub(crate) fn grant_grace(&mut self, now: Timestamp, grace_ms: u64) {
        for lease in self.entries.values_mut().filter_map(|entry| entry.lease.as_mut()) {
            lease.deadline = lease.deadline.max(now.plus(grace_ms));
        }
    }

    /// The one transition out of a lease that is not an ack.
    fn end_lease(&mut self, now: Timestamp, arrival: u64, end: End, text: &NackText, did: &Did) -> Nacked {
        let lease = self.lease_mut(arrival).clone();
        let topic = lease.receipt.id.topic;
        let settings = self.settings(topic);
        let entry = self.entries.get_mut(&arrival).expect("a leased message is live");
        entry.lease = None;
        if entry.progress.cancel_on_lease_end {
            self.finish(now, arrival, Outcome::Cancelled, None);
            return Nacked::Cancelled;
        }
        let attempt = entry.progress.attempts + 1;
        let chosen = did.changes.iter().find_map(|change| match change {
            Change::Moved { message, .. } if message.id == lease.receipt.id => Some(message.progress.due_at),
            _ => None,
        });
        let rules = Rules {
            now,
            schedule: entry.schedule(&settings),
            max_attempts: entry.max_attempts(&settings),
            first_tier: u32::from(!entry.starts_before_tier_1()),
            chosen: chosen.unwrap_or(now),
            settings: &settings,
        };
        let progress = &mut entry.progress;
        progress.deliveries += 1;
        let (due_at, mut dead) = rules.next(progress, end);
        if !matches!(end, End::Returned) {
            progress.returns = 0;
        }
        if dead.is_none() && progress.deliveries - progress.deliveries_before_redrive >= settings.max_deliveries {
            dead = Some(DeadReason::MaxDeliveries);
        }
        match dead {
            Some(reason) => {
                progress.dead = Some((reason, now));
                progress.holds_key = !settings.dead_releases_key;
            }
            None => progress.due_at = due_at,
        }
        let next_due_at = dead.is_none().then_some(due_at);
        entry.history.push(HistoryEntry {
            delivery: lease.receipt.delivery,
            attempt,
            delivered_at: lease.delivered_at,
            ended_at: now,
            consumer: lease.name,
            outcome: match end {
                End::NotYet(_) => DeliveryOutcome::NotYet,
                End::Failed(_) => DeliveryOutcome::Failed,
                End::Dead => DeliveryOutcome::Dead,
                End::Expired => DeliveryOutcome::LeaseExpired,
                End::Returned => DeliveryOutcome::Returned,
            },
            text: text.clone(),
            next_due_at,
        });
        next_due_at.map_or(Nacked::Dead, Nacked::Waits)
    }

    /// The message that a receipt has the right to settle, or why it has not.
    fn leased_by(&self, receipt: &Receipt) -> Result<u64, SettleRejection> {
        let target = Target::Id(receipt.id);
        if let Some(entry) = self.live(receipt.id.topic, &target) {
            if entry.lease.as_ref().is_some_and(|lease| lease.receipt == *receipt) {
                return Ok(receipt.id.arrival);
            }
            return Err(SettleRejection::LeaseLost { state: entry.state(self.advanced_to).name() });
        }
        match self.gone(receipt.id.topic, &target) {
            Some(finished) => Err(SettleRejection::Gone(finished.outcome)),
            None => Err(SettleRejection::NotFound),
        }
    }

    fn lease_mut(&mut self, arrival: u64) -> &mut Lease {
        let entry = self.entries.get_mut(&arrival).expect("a live message");
        entry.lease.as_mut().expect("a leased message")
    }
}

/// What a transition depends on.
struct Rules<'a> {
    now: Timestamp,
    schedule: RetrySchedule,
    max_attempts: u32,
    /// The tier that the first attempt waits after it, less one.
    first_tier: u32,
    /// The due time that the queue chose.
    chosen: Timestamp,
    settings: &'a TopicSettings,
}

impl Rules<'_> {
    /// The next due time, and the reason if the message is dead instead.
    fn next(&self, progress: &mut Progress, end: End) -> (Timestamp, Option<DeadReason>) {
        let gap = self.now.plus(self.settings.min_redelivery_gap_ms);
        match end {
            End::NotYet(delay) => self.spend(progress, delay),
            End::Expired => self.spend(progress, None),
            End::Failed(delay) => match self.settings.error_schedule.tiers().get(progress.failures as usize) {
                Some(&tier) => {
                    progress.failures += 1;
                    (self.after(delay, tier), None)
                }
                None => self.spend(progress, delay),
            },
            End::Returned => {
                progress.returns += 1;
                if progress.returns < self.settings.max_returns {
                    return (gap, None);
                }
                progress.returns = 0;
                let (due_at, dead) = self.spend(progress, None);
                (due_at.max(gap), dead)
            }
            End::Dead => (self.now, Some(DeadReason::Consumer)),
        }
    }

    fn spend(&self, progress: &mut Progress, delay: Option<u64>) -> (Timestamp, Option<DeadReason>) {
        progress.attempts += 1;
        progress.failures = 0;
        let tier = self.schedule.wait(progress.attempts + self.first_tier).expect("schedules are not empty");
        let dead = progress.attempts >= self.max_attempts;
        (self.after(delay, tier), dead.then_some(DeadReason::MaxAttempts))
    }

    /// An explicit wait replaces the tier.
    fn after(&self, delay: Option<u64>, tier: u64) -> Timestamp {
        delay.map_or_else(|| jittered(self.now, tier, self.settings, self.chosen), |delay| self.now.plus(delay))
    }
}

fn check_lease(lease_ms: Option<u64>) -> Result<(), Invalid> {
    if lease_ms.is_some_and(|ms| !(MIN_LEASE_MS..=MAX_LEASE_MS).contains(&ms)) {
        return Err(Invalid::new("lease", "out of range"));
    }
    Ok(())
}

fn no_text() -> NackText {
    NackText::parse("").expect("the empty text is a text")
}
