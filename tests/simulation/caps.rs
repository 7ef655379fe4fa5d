//! The rate cap: no window of its period has more deliveries than it allows.

use std::collections::BTreeMap;

use duewheel::queue::change::TopicRecord;
use duewheel::queue::message::TopicId;
use duewheel::queue::settings::RateCap;
use duewheel::queue::time::Timestamp;

use crate::shadow::{Violation, ensure};

/// Deliveries under the rate caps that are in force.
#[derive(Default)]
pub(crate) struct Caps(BTreeMap<TopicId, Under>);

struct Under {
    cap: Option<RateCap>,
    /// Not before all that was delivered without it.
    since: Timestamp,
    delivered: Vec<Timestamp>,
}

impl Caps {
    /// The topic has these settings.
    pub(crate) fn put(&mut self, record: &TopicRecord, now: Timestamp) {
        let cap = record.settings.rate;
        let under = self.0.entry(record.id).or_insert_with(|| Under { cap: None, since: now, delivered: Vec::new() });
        if under.cap != cap {
            *under = Under { cap, since: now, delivered: Vec::new() };
        }
    }

    /// The clock was set back: what was delivered by the old one cannot be compared.
    pub(crate) fn forget(&mut self, now: Timestamp) {
        for under in self.0.values_mut() {
            (under.since, under.delivered) = (now, Vec::new());
        }
    }

    /// A delivery has come. True if it was under a cap.
    pub(crate) fn delivered(&mut self, topic: TopicId, at: Timestamp) -> Result<bool, Violation> {
        let Some(under) = self.0.get_mut(&topic) else { return Ok(false) };
        let Some(cap) = under.cap.filter(|_| at > under.since) else { return Ok(false) };
        let place = under.delivered.partition_point(|&other| other <= at);
        under.delivered.insert(place, at);
        let most = cap.deliveries as usize;
        for window in under.delivered.windows(most + 1) {
            let span_ms = window[most].since(window[0]);
            // Deliveries are told in whole milliseconds.
            ensure!(span_ms + 1 >= cap.period_ms, "{} deliveries within {span_ms} ms, over {cap}", most + 1);
        }
        Ok(true)
    }
}
