//! What the owner knows of damaged pages: each is told and set aside once.

use std::collections::BTreeSet;

use crate::queue::Queue;
use crate::queue::far::Load;
use crate::queue::message::TopicId;
use crate::queue::quarantine::DamagedPart;
use crate::queue::time::Timestamp;
use crate::store::{ReadError, SetAside};

/// Damage that was found in this run of the broker.
#[derive(Debug, Default)]
pub(super) struct Damage {
    found: BTreeSet<DamagedPart>,
    /// Topics of which the load thread may be reading a damaged page that it took for a good one.
    loading: BTreeSet<TopicId>,
    /// Loads that failed for another reason than a damaged page.
    blocked: Vec<Load>,
}

impl Damage {
    /// Takes note of a damaged part; false if it was known.
    pub(super) fn is_new(&mut self, part: DamagedPart, queue: &Queue) -> bool {
        let is_new = self.found.insert(part);
        if is_new {
            tracing::error!(
                topic = part.topic.0,
                level = part.level,
                slot = part.slot_start,
                run = part.run,
                page = part.page,
                "damaged: {part}; it is set aside, and everything else is served"
            );
            if queue.is_loading(part.topic) {
                self.loading.insert(part.topic);
            }
        }
        is_new
    }

    /// True if a load of the topic that has ended now may have begun before the damage was known: it is dropped.
    pub(super) fn is_before(&mut self, topic: TopicId) -> bool {
        self.loading.remove(&topic)
    }

    /// A load has failed for good.
    pub(super) fn block(&mut self, load: Load, error: &ReadError) {
        tracing::error!(%error, topic = load.topic.0, "messages of the topic cannot be read from {:?} on", load.from);
        self.blocked.push(load);
    }

    /// The pages have changed: a fold has set damaged parts aside, and what failed is tried again.
    pub(super) fn folded(&mut self, queue: &mut Queue, set_aside: &[SetAside]) {
        self.blocked.drain(..).for_each(|load| queue.load_failed(load, Timestamp::ZERO));
        for SetAside { part, messages, known } in set_aside {
            let known: Vec<String> = known.iter().map(ToString::to_string).collect();
            tracing::error!(topic = part.topic.0, messages, known = known.join(" "), "in quarantine: {part}");
            let (waiting, dead) = if part.is_of_dead() { (0, *messages) } else { (*messages, 0) };
            queue.quarantined(part.topic, waiting, dead);
        }
    }
}
