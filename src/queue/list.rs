//! Listing the waiting messages of a topic in their order, part by part, from memory and disk together.

use std::ops::Range;

use super::command::FindRejection;
use super::entry::{Entry, State};
use super::far::Loaded;
use super::message::TopicId;
use super::state::Queue;
use super::time::Timestamp;
use super::topic::{Order, Topic};
use super::values::TopicName;
use super::view::LiveView;

/// Messages that one part of a listing looks at, at most, whether they are listed or not.
const MOST_LOOKED_AT: usize = 10_000;

/// A state that a listing may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingState {
    /// Until the due time.
    Scheduled,
    /// For a consumer.
    Ready,
    /// For a settlement.
    Leased,
}

/// A part of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListQuery {
    /// The topic.
    pub topic: TopicName,
    /// Only messages in this state; `None`: all that are not dead.
    pub state: Option<WaitingState>,
    /// Only messages at or after this place in the topic's order.
    pub from: (Timestamp, u64),
    /// Only messages that are due before this instant.
    pub until: Timestamp,
    /// At most so many.
    pub limit: usize,
}

/// A part of a listing that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// In the topic's order.
    pub views: Vec<LiveView>,
    /// Where the next part begins; `None`: there is nothing more.
    pub next: Option<(Timestamp, u64)>,
}

impl ListQuery {
    /// The part of the topic's order in which such messages are at `now`, with an exclusive end; `None`: in none.
    fn range(&self, now: Timestamp) -> Option<(Order, Order)> {
        let after_now = (now.plus(1), 0);
        let (start, end) = match self.state {
            Some(WaitingState::Scheduled) => (self.from.max(after_now), (self.until, 0)),
            Some(WaitingState::Ready) => (self.from, after_now.min((self.until, 0))),
            Some(WaitingState::Leased) | None => (self.from, (self.until, 0)),
        };
        (start < end).then_some((start, end))
    }

    fn wants(&self, state: WaitingState) -> bool {
        self.state.is_none_or(|wanted| wanted == state)
    }
}

impl Queue {
    /// From where on a part of a listing needs what is on disk; `None`: memory has all of it.
    pub fn list_from_disk(&self, now: Timestamp, query: &ListQuery) -> Option<(TopicId, (Timestamp, u64))> {
        let topic = self.topic_id(&query.topic)?;
        let (start, end) = query.range(now)?;
        // What is leased is in memory, and so is everything before the frontier.
        let frontier = self.frontier(topic).filter(|_| query.state != Some(WaitingState::Leased))?;
        (frontier < end).then_some((topic, start.max(frontier)))
    }

    /// A part of a listing. `on_disk` is what the pages hold from the place on that [`Queue::list_from_disk`] has told;
    /// what memory knows overrules it. The part ends where that ends, or where enough was looked at, even if nothing was
    /// found.
    ///
    /// # Errors
    /// [`FindRejection::TopicNotFound`].
    pub fn list(&self, now: Timestamp, query: &ListQuery, on_disk: Option<&Loaded>) -> Result<Listed, FindRejection> {
        let topic = &self.topics[&self.existing(&query.topic)?];
        let mut listed = Listed::default();
        let Some((start, end)) = query.range(now) else { return Ok(listed) };
        let order = |message: &super::message::Message| (message.progress.due_at, message.id.arrival);
        let mut memory = self.listed_of_memory(topic, query, start..end).into_iter().peekable();
        let stored = on_disk.into_iter().flat_map(|loaded| &loaded.messages).map(|message| (order(message), message));
        let stored = stored.filter(|(at, message)| (start..end).contains(at) && !self.overrules(message.id.arrival));
        let mut stored = stored.peekable();
        let known = on_disk.and_then(|loaded| loaded.frontier).unwrap_or(end).min(end);
        for looked_at in 0.. {
            let (in_memory, on_disk) = (memory.peek().map(|item| item.0), stored.peek().map(|item| item.0));
            let first = in_memory.into_iter().chain(on_disk).min().filter(|&at| at < known);
            let Some(first) = first else {
                listed.next = (known < end).then_some(known);
                break;
            };
            if listed.views.len() == query.limit || looked_at == MOST_LOOKED_AT {
                listed.next = Some(first);
                break;
            }
            if let Some((_, index)) = memory.next_if(|item| item.0 == first) {
                listed.views.push(self.live_view(now, index, false));
            } else if let Some((_, message)) = stored.next() {
                listed.views.push(self.stored_view(now, message));
            }
        }
        Ok(listed)
    }

    /// The first messages in memory that a part of a listing wants, in order: one more than it holds.
    fn listed_of_memory(&self, topic: &Topic, query: &ListQuery, range: Range<Order>) -> Vec<(Order, u32)> {
        let enough = query.limit + 1;
        let mut found = Vec::new();
        for (state, index) in [(WaitingState::Ready, &topic.ready), (WaitingState::Leased, &topic.leased)] {
            if query.wants(state) {
                found.extend(index.range(range.clone()).take(enough).map(|(&at, &index)| (at, index)));
            }
        }
        if query.wants(WaitingState::Scheduled) {
            found.extend(self.first_scheduled(topic, range, enough));
        }
        found.sort_unstable();
        found.truncate(enough);
        found
    }

    /// The first `enough` scheduled messages of a topic in memory, or some more, in any order.
    fn first_scheduled(&self, topic: &Topic, range: Range<Order>, enough: usize) -> Vec<(Order, u32)> {
        let mut found = Vec::new();
        for group in self.wheel.groups_from(range.start.0.as_millis()) {
            let earliest = group.iter().map(|&(at, _)| at).min();
            if found.len() >= enough || earliest.is_some_and(|at| at > range.end.0.as_millis()) {
                break;
            }
            found.extend(group.into_iter().filter_map(|(_, index)| {
                let Entry { message, state, .. } = &self.entries[index as usize];
                let order = (message.progress.due_at, message.id.arrival);
                let is_scheduled = matches!(state, State::Scheduled(_)) && message.id.topic == topic.record.id;
                (is_scheduled && range.contains(&order)).then_some((order, index))
            }));
        }
        found
    }
}
