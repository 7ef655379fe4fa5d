//! A part of a listing: the pages are read by the look thread, and joined with what memory knows.

use super::handle::{EngineError, EngineHandle, MAX_LOOKS, OVERTAKEN_WAIT};
use super::pages::Reads;
use super::sight::{Sight, unreadable};
use super::stats::Audience;
use crate::queue::command::FindRejection;
use crate::queue::far::{Load, Loaded};
use crate::queue::list::{ListQuery, Listed};
use crate::queue::message::TopicId;
use crate::queue::time::Timestamp;
use crate::store::ReadError;

/// Messages that are read from the pages beyond those asked for, since memory may overrule some.
const SPARE: usize = 64;

/// Readings of one part at most. Each goes on where the one before it has ended, even if that has found no message yet.
const MAX_READINGS: usize = 16;

/// What was read for a part of a listing.
struct Read {
    loaded: Loaded,
    /// The last change of the pages before it was read.
    run: u64,
}

/// A part of a listing as it was seen.
#[derive(Clone, Debug)]
pub struct ListedPart {
    /// The part.
    pub listed: Listed,
    /// Who takes messages of the topic.
    pub audience: Audience,
    /// When it was seen.
    pub now: Timestamp,
}

/// A part of a listing, or what is to be read first.
enum Seen {
    Whole(ListedPart),
    Needs(TopicId, (Timestamp, u64)),
}

impl EngineHandle {
    /// A part of a listing of the waiting messages of a topic, in their order.
    ///
    /// # Errors
    /// [`EngineError::Draining`] or [`EngineError::OutcomeUnknown`].
    pub async fn list(&self, query: ListQuery) -> Result<Result<ListedPart, FindRejection>, EngineError> {
        let mut read: Option<Read> = None;
        let max = query.limit.saturating_add(SPARE);
        for _ in 0..MAX_LOOKS {
            let (asked, known) = (query.clone(), read.take());
            let (topic, from) = match self.ask(move |sight| list(sight, &asked, known.as_ref())).await? {
                Ok(Seen::Whole(listed)) => return Ok(Ok(listed)),
                Ok(Seen::Needs(topic, from)) => (topic, from),
                Err(rejection) => return Ok(Err(rejection)),
            };
            match self.look(move |pages| read_part(pages, topic, from, max)).await? {
                Ok(part) => read = Some(part),
                Err(ReadError::Overtaken) => tokio::time::sleep(OVERTAKEN_WAIT).await,
                Err(error) => return Ok(Err(unreadable(&error))),
            }
        }
        Ok(Err(FindRejection::PagesMoving))
    }
}

fn list(sight: &Sight<'_>, query: &ListQuery, read: Option<&Read>) -> Result<Seen, FindRejection> {
    let Some((topic, from)) = sight.queue.list_from_disk(sight.now, query) else {
        return whole(sight, query, None);
    };
    // What was read is of use if it begins early enough and the pages are still the same: nothing can have left
    // memory for pages that were not read.
    let run = sight.pages.borrow().run();
    let valid = read.filter(|read| read.run == run && read.loaded.load.from <= from);
    let Some(read) = valid else { return Ok(Seen::Needs(topic, from)) };
    whole(sight, query, Some(&read.loaded))
}

fn whole(sight: &Sight<'_>, query: &ListQuery, on_disk: Option<&Loaded>) -> Result<Seen, FindRejection> {
    let listed = sight.queue.list(sight.now, query, on_disk)?;
    Ok(Seen::Whole(ListedPart { listed, audience: sight.audience(&query.topic), now: sight.now }))
}

fn read_part(pages: &mut dyn Reads, topic: TopicId, from: (Timestamp, u64), max: usize) -> Result<Read, ReadError> {
    let load = Load { topic, from, max, fold: 0 };
    let mut loaded = pages.load(load)?;
    for _ in 1..MAX_READINGS {
        match loaded.frontier {
            Some(next) if loaded.messages.is_empty() => {
                loaded = Loaded { load, ..pages.load(Load { from: next, ..load })? };
            }
            _ => break,
        }
    }
    Ok(Read { loaded, run: pages.run() })
}
