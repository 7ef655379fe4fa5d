//! Dead letters: which of them are meant, a look at them in order, and the end of those that are purged.
//!
//! They are read in bounded pieces, in the order of (time of death, arrival number). Whoever works through many of
//! them takes a [`DeadSnapshot`] first, so that what dies later is left alone.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::change::Outcome;
use super::command::{DeadLetter, FindRejection, PurgeReply, Target};
use super::entry::State;
use super::message::{DeadReason, Message};
use super::state::{Effects, Found, Queue};
use super::time::Timestamp;
use super::topic::Order;
use super::values::{Key, NackText, TopicName};
use super::view::LiveView;

/// Dead letters in memory that one look examines at most.
const MAX_EXAMINED: usize = 1_000;

/// Which dead letters are meant: those for which everything that is set holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadFilter {
    /// Died for that reason.
    pub reason: Option<DeadReason>,
    /// Produced with that key.
    pub key: Option<Key>,
    /// The text of an attempt that its history keeps contains that.
    pub text: Option<NackText>,
    /// Died then or later.
    pub died_from: Option<Timestamp>,
    /// Died before.
    pub died_before: Option<Timestamp>,
}

/// The dead letters of a topic at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadSnapshot {
    /// How many there were.
    pub count: u64,
    /// The instant.
    taken_at: Timestamp,
    /// Arrival numbers of those that had died at that very instant: others may follow within it.
    died_then: BTreeSet<u64>,
}

/// What a look at the dead letters asks for.
#[derive(Clone, Debug, Default)]
pub struct DeadQuery {
    /// After this place (time of death, arrival number).
    pub after: Option<(Timestamp, u64)>,
    /// Which.
    pub filter: DeadFilter,
    /// Only those that it has.
    pub snapshot: Option<DeadSnapshot>,
    /// At most so many.
    pub limit: usize,
}

/// Dead letters of a topic on disk after some place, in order.
#[derive(Clone, Debug, Default)]
pub struct StoredDead {
    /// The messages.
    pub messages: Vec<Message>,
    /// The place up to which that is complete; `None` if nothing is left.
    pub frontier: Option<(Timestamp, u64)>,
}

/// What a look at the dead letters found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadPage {
    /// In order; may be empty although there is more.
    pub letters: Vec<LiveView>,
    /// Go on after this place; `None`: that was all.
    pub next: Option<(Timestamp, u64)>,
}

impl DeadFilter {
    /// True if a dead letter is meant.
    pub fn is_match(&self, message: &Message) -> bool {
        let Some((reason, died_at)) = message.progress.dead else { return false };
        let has_text = |text: &NackText| {
            let mut entries = message.history.iter().flat_map(|history| history.iter());
            entries.any(|entry| entry.text.as_str().contains(text.as_str()))
        };
        self.reason.is_none_or(|wanted| wanted == reason)
            && self.key.as_ref().is_none_or(|key| message.content.key.as_ref() == Some(key))
            && self.died_from.is_none_or(|from| died_at >= from)
            && self.died_before.is_none_or(|before| died_at < before)
            && self.text.as_ref().is_none_or(has_text)
    }

    /// True if every dead letter is meant.
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }
}

impl DeadSnapshot {
    fn has(&self, (died_at, arrival): Order) -> bool {
        died_at < self.taken_at || (died_at == self.taken_at && self.died_then.contains(&arrival))
    }
}

impl DeadQuery {
    /// The place after which the look begins.
    pub fn begins_after(&self) -> Option<(Timestamp, u64)> {
        let from = self.filter.died_from.and_then(|from| just_before((from, 0)));
        self.after.max(from)
    }

    /// True if nothing at or after that instant is asked for.
    fn is_over(&self, died_at: Timestamp) -> bool {
        self.filter.died_before.is_some_and(|before| died_at >= before)
            || self.snapshot.as_ref().is_some_and(|snapshot| died_at > snapshot.taken_at)
    }
}

impl Queue {
    /// The dead letters of a topic at this instant.
    ///
    /// # Errors
    /// [`FindRejection::TopicNotFound`].
    pub fn dead_snapshot(&self, now: Timestamp, topic: &TopicName) -> Result<DeadSnapshot, FindRejection> {
        let topic = &self.topics[&self.existing(topic)?];
        // What has died in this millisecond is in memory: no fold is that fast.
        let died_then = topic.dead.range((now, 0)..=(now, u64::MAX)).map(|(&(_, arrival), _)| arrival).collect();
        Ok(DeadSnapshot { count: topic.dead.len() as u64 + topic.stored.dead, taken_at: now, died_then })
    }

    /// Dead letters of a topic in order. `stored` are those on disk from the place on where the query begins; what memory
    /// knows overrules them. A bounded number is examined, so there may be fewer than asked for and than there are.
    ///
    /// # Errors
    /// [`FindRejection::TopicNotFound`].
    pub fn dead_letters(
        &self,
        now: Timestamp,
        topic: &TopicName,
        query: &DeadQuery,
        stored: &StoredDead,
    ) -> Result<DeadPage, FindRejection> {
        let topic = &self.topics[&self.existing(topic)?];
        let start = query.begins_after().map_or(Bound::Unbounded, Bound::Excluded);
        let end = stored.frontier.map_or(Bound::Unbounded, Bound::Excluded);
        // A frontier never lies before the place where its reading began.
        let memory = topic.dead.range((start, end)).take(MAX_EXAMINED);
        let mut found: Vec<(Order, LetterIn<'_>)> = memory.map(|(&at, &index)| (at, LetterIn::Memory(index))).collect();
        let is_cut = found.len() == MAX_EXAMINED;
        let through = if is_cut { found.last().map(|&(at, _)| at) } else { stored.frontier.and_then(just_before) };
        let on_disk = stored.messages.iter().filter(|message| !self.overrules(message.id.arrival));
        found.extend(on_disk.filter_map(|message| {
            let (_, died_at) = message.progress.dead?;
            Some(((died_at, message.id.arrival), LetterIn::Pages(message)))
        }));
        found.retain(|&(at, _)| through.is_none_or(|through| at <= through));
        found.sort_unstable_by_key(|&(at, _)| at);
        let mut page = DeadPage { letters: Vec::new(), next: through };
        for (at, letter) in found {
            if query.is_over(at.0) {
                page.next = None;
                break;
            }
            let message = match letter {
                LetterIn::Memory(index) => self.message(index),
                LetterIn::Pages(message) => message,
            };
            let is_in = query.snapshot.as_ref().is_none_or(|snapshot| snapshot.has(at));
            if !is_in || !query.filter.is_match(message) {
                continue;
            }
            page.letters.push(match letter {
                LetterIn::Memory(index) => self.live_view(now, index, false),
                LetterIn::Pages(message) => self.stored_view(now, message),
            });
            if page.letters.len() == query.limit {
                page.next = Some(at);
                break;
            }
        }
        Ok(page)
    }

    pub(super) fn purge(
        &mut self,
        now: Timestamp,
        letter: &DeadLetter,
        effects: &mut Effects,
    ) -> Result<PurgeReply, FindRejection> {
        let topic = self.existing(&letter.topic)?;
        let Found::Live(index) = self.find(topic, &Target::Id(letter.id), now) else { return Ok(PurgeReply::NotFound) };
        if !self.is_that_letter(index, letter) {
            return Ok(PurgeReply::NotDead);
        }
        self.lift(index, effects);
        self.finish(now, index, Outcome::Purged, None, effects);
        Ok(PurgeReply::Purged)
    }

    /// True if the message is dead, and died when the letter says.
    pub(super) fn is_that_letter(&self, index: u32, letter: &DeadLetter) -> bool {
        let died_at = self.message(index).progress.dead.map(|(_, at)| at);
        let is_dead = matches!(self.entries[index as usize].state, State::Dead);
        is_dead && letter.died_at.is_none_or(|at| died_at == Some(at))
    }
}

/// Where a dead letter was found.
#[derive(Clone, Copy)]
enum LetterIn<'a> {
    Memory(u32),
    Pages(&'a Message),
}

/// The last place before one; `None`: there is none.
fn just_before((at, arrival): Order) -> Option<Order> {
    match (at, arrival) {
        (Timestamp::ZERO, 0) => None,
        (at, 0) => Some((at.minus(1), u64::MAX)),
        (at, arrival) => Some((at, arrival - 1)),
    }
}
