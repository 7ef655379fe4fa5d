//! Which dead letters a request means, and looking at them piece by piece.

use std::time::Duration;

use prost::Message as _;

use super::errors::Fault;
use super::time::instant;
use super::{FRAME_BYTES, from_wire, page_token, to_wire};
use crate::engine::EngineHandle;
use crate::pb;
use crate::queue::command::FindRejection;
use crate::queue::dead::{DeadFilter, DeadPage, DeadQuery, DeadSnapshot};
use crate::queue::limits::MAX_BATCH;
use crate::queue::message::{DeadReason, MessageId};
use crate::queue::time::Timestamp;
use crate::queue::values::{Key, NackText, TopicName};

/// Most looks at the dead letters of one call of `ListDeadLetters`.
const MAX_LOOKS: usize = 64;
/// How long to wait while a fold moves what is looked for, and how often.
pub(super) const MOVING_WAIT: Duration = Duration::from_millis(20);
pub(super) const MOVING_TRIES: usize = 250;

/// The dead letters that a job is to work on.
#[derive(Clone, Debug)]
pub(super) enum Selection {
    /// These.
    Ids(Vec<MessageId>),
    /// Those of the moment it starts; at most so many.
    Filter(DeadFilter, u64),
}

/// The selection of a request: exactly one of `ids` and `filter`.
pub(super) fn selection(ids: &[String], filter: Option<&pb::DeadLetterFilter>, limit: u64) -> Result<Selection, Fault> {
    match (ids, filter) {
        ([], None) => Err(Fault::invalid("ids", "either ids or filter is required; an empty filter selects all")),
        (ids, Some(_)) if !ids.is_empty() => Err(Fault::invalid("filter", "is not allowed together with ids")),
        (_, Some(wire)) => {
            let limit = if limit == 0 { u64::MAX } else { limit };
            Ok(Selection::Filter(filter_from_wire(wire).map_err(|fault| fault.under("filter"))?, limit))
        }
        (_, None) if limit > 0 => Err(Fault::invalid("limit", "is allowed with a filter only")),
        (ids, None) => {
            if ids.len() > MAX_BATCH {
                return Err(Fault::invalid("ids", format!("{} items; must be 1 to {MAX_BATCH}", ids.len())));
            }
            let parse = |(index, id): (usize, &String)| {
                id.parse().map_err(|_| Fault::invalid(format!("ids[{index}]"), "is not a message id"))
            };
            Ok(Selection::Ids(ids.iter().enumerate().map(parse).collect::<Result<_, _>>()?))
        }
    }
}

/// A filter; paths are relative to it.
pub(super) fn filter_from_wire(wire: &pb::DeadLetterFilter) -> Result<DeadFilter, Fault> {
    let reason = match pb::DeadReason::try_from(wire.reason) {
        Ok(pb::DeadReason::Unspecified) => None,
        Ok(pb::DeadReason::MaxAttempts) => Some(DeadReason::MaxAttempts),
        Ok(pb::DeadReason::MaxDeliveries) => Some(DeadReason::MaxDeliveries),
        Ok(pb::DeadReason::Consumer) => Some(DeadReason::Consumer),
        Err(_) => return Err(from_wire::unknown("reason", wire.reason)),
    };
    let text = NackText::parse(&wire.error_text).map_err(|invalid| Fault::invalid("error_text", invalid.problem))?;
    let died_from = wire.died_from.map(|at| instant("died_from", at)).transpose()?;
    let died_before = wire.died_before.map(|at| instant("died_before", at)).transpose()?;
    if died_from.zip(died_before).is_some_and(|(from, before)| from >= before) {
        return Err(Fault::invalid("died_before", "must be after died_from"));
    }
    Ok(DeadFilter {
        reason,
        key: from_wire::optional(&wire.key, Key::parse)?,
        text: Some(text).filter(|_| !wire.error_text.is_empty()),
        died_from,
        died_before,
    })
}

/// A look at the dead letters of a topic; waits while a fold moves them.
pub(super) async fn look(engine: &EngineHandle, topic: &TopicName, query: &DeadQuery) -> Result<DeadPage, Fault> {
    for _ in 0..MOVING_TRIES {
        match engine.dead_letters(topic.clone(), query.clone()).await? {
            Err(FindRejection::PagesMoving) => tokio::time::sleep(MOVING_WAIT).await,
            result => return Ok(result?),
        }
    }
    Err(FindRejection::PagesMoving.into())
}

/// The dead letters of a topic at this instant.
pub(super) async fn snapshot(engine: &EngineHandle, topic: &TopicName) -> Result<DeadSnapshot, Fault> {
    Ok(engine.dead_snapshot(topic.clone()).await??)
}

/// A page of dead letters.
pub(super) async fn list(
    engine: &EngineHandle,
    request: &pb::ListDeadLettersRequest,
) -> Result<pb::ListDeadLettersResponse, Fault> {
    let topic = from_wire::topic("topic", &request.topic)?;
    let size = page_token::page_size(request.page_size)?;
    let wire = request.filter.clone().unwrap_or_default();
    let filter = filter_from_wire(&wire).map_err(|fault| fault.under("filter"))?;
    // A query with another filter is another query.
    let query_sum = crc32c::crc32c(&wire.encode_to_vec());
    let after = page_token::parse_dead_letters(&request.page_token, &topic, query_sum)?;
    let mut query = DeadQuery { after, filter, snapshot: None, limit: size };
    let (mut page, mut bytes) = (pb::ListDeadLettersResponse::default(), 0);
    let mut looks = 0;
    let next = 'page: loop {
        query.limit = size - page.messages.len();
        let found = look(engine, &topic, &query).await?;
        for view in found.letters {
            let at = view.message.progress.dead.map(|(_, died_at)| (died_at, view.message.id.arrival));
            let info = to_wire::dead_letter(view, engine.now(), true);
            bytes += info.encoded_len();
            page.messages.push(info);
            // Pages are shorter if histories are long.
            if bytes >= FRAME_BYTES {
                break 'page at;
            }
        }
        looks += 1;
        query.after = found.next;
        if found.next.is_none() || page.messages.len() == size || looks == MAX_LOOKS {
            break found.next;
        }
    };
    let next = match next {
        // The last page is one that nothing follows.
        Some(at) if page.messages.len() == size || bytes >= FRAME_BYTES => is_more(engine, &topic, query, at).await?,
        next => next,
    };
    page.next_page_token = next.map_or(String::new(), |at| page_token::dead_letters_after(&topic, query_sum, at));
    Ok(page)
}

/// The place to go on from, if something may follow it.
pub(super) async fn is_more(
    engine: &EngineHandle,
    topic: &TopicName,
    query: DeadQuery,
    after: (Timestamp, u64),
) -> Result<Option<(Timestamp, u64)>, Fault> {
    let found = look(engine, topic, &DeadQuery { after: Some(after), limit: 1, ..query }).await?;
    Ok(Some(after).filter(|_| !found.letters.is_empty() || found.next.is_some()))
}
