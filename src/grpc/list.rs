//! Listing messages: the query, and a page of it.

use prost::Message as _;

use super::errors::Fault;
use super::{FRAME_BYTES, dead_letters, from_wire, page_token, time, to_wire};
use crate::engine::{Audience, EngineHandle, ListedPart};
use crate::pb;
use crate::queue::command::Target;
use crate::queue::dead::DeadQuery;
use crate::queue::list::{ListQuery, WaitingState};
use crate::queue::time::Timestamp;
use crate::queue::values::{Key, TopicName};
use crate::queue::view::{LiveView, MessageView, StateView};

/// What is listed.
enum Listing {
    /// The one message that holds a key.
    Key(Key),
    /// Waiting messages.
    Waiting,
    /// Dead letters.
    Dead,
}

/// A query that is in order.
struct Query {
    topic: TopicName,
    listing: Listing,
    state: Option<WaitingState>,
    is_dead: bool,
    from: Timestamp,
    until: Timestamp,
    size: usize,
    /// Everything but the page, for its tokens.
    identity: Vec<u8>,
}

/// Answers a request.
pub(super) async fn messages(
    engine: &EngineHandle,
    request: pb::ListMessagesRequest,
) -> Result<pb::ListMessagesResponse, Fault> {
    let query = Query::parse(&request)?;
    let start = page_token::parse_messages(&request.page_token, &query.identity)?;
    match &query.listing {
        Listing::Key(_) if start.is_some() => {
            Err(Fault::invalid("page_token", "a listing by key has one page; leave it empty"))
        }
        Listing::Key(key) => by_key(engine, &query, key.clone()).await,
        Listing::Dead => dead(engine, &query, start).await,
        Listing::Waiting => waiting(engine, &query, start).await,
    }
}

impl Query {
    fn parse(request: &pb::ListMessagesRequest) -> Result<Self, Fault> {
        let topic = from_wire::topic("topic", &request.topic)?;
        let wanted = pb::MessageState::try_from(request.state);
        let (state, is_dead) = match wanted {
            Ok(pb::MessageState::Unspecified) => (None, false),
            Ok(pb::MessageState::Scheduled) => (Some(WaitingState::Scheduled), false),
            Ok(pb::MessageState::Ready) => (Some(WaitingState::Ready), false),
            Ok(pb::MessageState::Leased) => (Some(WaitingState::Leased), false),
            Ok(pb::MessageState::Dead) => (None, true),
            Ok(pb::MessageState::Done) => {
                return Err(Fault::invalid("state", "messages that are gone are not listed; look one up by id or key"));
            }
            Err(_) => return Err(Fault::invalid("state", format!("{} is not a MessageState", request.state))),
        };
        let instant = |path, at: Option<prost_types::Timestamp>| at.map(|at| time::instant(path, at)).transpose();
        let from = instant("due_from", request.due_from)?;
        let until = instant("due_until", request.due_until)?;
        if is_dead && (from.is_some() || until.is_some()) {
            let path = if from.is_some() { "due_from" } else { "due_until" };
            return Err(Fault::invalid(path, "dead letters are listed by time of death; leave it unset"));
        }
        if from.zip(until).is_some_and(|(from, until)| from >= until) {
            return Err(Fault::invalid("due_until", "must be after due_from"));
        }
        let listing = match (request.key.as_str(), is_dead) {
            ("", false) => Listing::Waiting,
            ("", true) => Listing::Dead,
            (key, _) => Listing::Key(Key::parse(key)?),
        };
        let size = page_token::page_size(request.page_size)?;
        let page = pb::ListMessagesRequest { page_size: 0, page_token: String::new(), ..request.clone() };
        Ok(Self {
            topic,
            listing,
            state,
            is_dead,
            from: from.unwrap_or(Timestamp::ZERO),
            until: until.unwrap_or(Timestamp::MAX),
            size,
            identity: page.encode_to_vec(),
        })
    }

    /// True if a message that was found by its key is in the state and range.
    fn wants(&self, view: &LiveView) -> bool {
        let due_at = view.message.progress.due_at;
        let in_state = match (&view.state, self.state) {
            (StateView::Dead, _) => self.is_dead,
            (_, None) => !self.is_dead,
            (StateView::Scheduled, Some(state)) => state == WaitingState::Scheduled,
            (StateView::Ready { .. }, Some(state)) => state == WaitingState::Ready,
            (StateView::Leased { .. }, Some(state)) => state == WaitingState::Leased,
        };
        in_state && (self.is_dead || (self.from..self.until).contains(&due_at))
    }
}

async fn by_key(engine: &EngineHandle, query: &Query, key: Key) -> Result<pb::ListMessagesResponse, Fault> {
    let found = engine.message(query.topic.clone(), Target::Key(key)).await??;
    let found = found.filter(|seen| matches!(&seen.view, MessageView::Live(view) if query.wants(view)));
    let messages = found.iter().map(|seen| to_wire::seen(&query.topic, seen, true)).collect();
    Ok(pb::ListMessagesResponse { messages, next_page_token: String::new() })
}

async fn dead(
    engine: &EngineHandle,
    query: &Query,
    after: Option<(Timestamp, u64)>,
) -> Result<pb::ListMessagesResponse, Fault> {
    let look = DeadQuery { after, limit: query.size, ..DeadQuery::default() };
    let found = dead_letters::look(engine, &query.topic, &look).await?;
    let died_at = |view: &LiveView| view.message.progress.dead.map_or(Timestamp::ZERO, |(_, at)| at);
    let mut page = Page::default();
    let mut last = None;
    for view in found.letters {
        if page.is_full() {
            return Ok(page.finish(query, last));
        }
        last = Some((died_at(&view), view.message.id.arrival));
        page.add(view, Audience::default(), engine.now());
    }
    let next = match found.next {
        Some(at) => dead_letters::is_more(engine, &query.topic, look, at).await?,
        None => None,
    };
    Ok(page.finish(query, next))
}

async fn waiting(
    engine: &EngineHandle,
    query: &Query,
    start: Option<(Timestamp, u64)>,
) -> Result<pb::ListMessagesResponse, Fault> {
    let Query { topic, state, from, until, size, .. } = query;
    let from = start.unwrap_or((*from, 0)).max((*from, 0));
    let part = ListQuery { topic: topic.clone(), state: *state, from, until: *until, limit: *size };
    let ListedPart { listed, audience, now } = engine.list(part).await??;
    let mut page = Page::default();
    for view in listed.views {
        if page.is_full() {
            let next = (view.message.progress.due_at, view.message.id.arrival);
            return Ok(page.finish(query, Some(next)));
        }
        page.add(view, audience, now);
    }
    Ok(page.finish(query, listed.next))
}

/// A page being filled.
#[derive(Default)]
struct Page {
    messages: Vec<pb::MessageInfo>,
    bytes: usize,
}

impl Page {
    fn is_full(&self) -> bool {
        self.bytes >= FRAME_BYTES
    }

    fn add(&mut self, view: LiveView, audience: Audience, now: Timestamp) {
        let info = to_wire::listed(view, audience, now);
        self.bytes += info.encoded_len();
        self.messages.push(info);
    }

    fn finish(self, query: &Query, next: Option<(Timestamp, u64)>) -> pb::ListMessagesResponse {
        let next = next.map(|at| page_token::messages_from(&query.identity, at));
        pb::ListMessagesResponse { messages: self.messages, next_page_token: next.unwrap_or_default() }
    }
}
