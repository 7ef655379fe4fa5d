//! What a reader gives, compared with the messages that must be in pages.

use std::collections::{BTreeMap, BTreeSet};

use crate::queue::change::Restored;
use crate::queue::dead::StoredDead;
use crate::queue::due::timeline_edges;
use crate::queue::far::{Load, Missing};
use crate::queue::key_hash;
use crate::queue::message::{Message, MessageId, Place, TopicId};
use crate::queue::time::Timestamp;
use crate::store::doubles::Chance;
use crate::store::{OpenError, Opened, ReadError, Reader};

use super::model::Model;

/// Messages in pages, by arrival number.
pub(super) type Paged = BTreeMap<u64, Message>;

type Order = (Timestamp, u64);

fn order(message: &Message) -> Order {
    let (Place::Due(at) | Place::Dead(at)) = message.place();
    (at, message.id.arrival)
}

fn is_waiting(message: &Message) -> bool {
    matches!(message.place(), Place::Due(_))
}

/// Everything that the pages of a topic hold, read in steps of `max` messages.
pub(super) fn read_topic(reader: &mut Reader, topic: TopicId, max: usize) -> Result<Vec<Message>, ReadError> {
    let mut messages: Vec<Message> = Vec::new();
    let mut next = Some((Timestamp::ZERO, 0));
    while let Some(from) = next {
        let load = Load { topic, from, max, fold: reader.fold() };
        let loaded = reader.load(load)?;
        assert_eq!(loaded.load, load);
        assert!(loaded.messages.len() <= max && loaded.messages.iter().all(|message| order(message) >= from));
        let last = loaded.messages.last().map(order);
        assert!(loaded.frontier.is_none_or(|frontier| last.is_none_or(|last| frontier > last) && frontier >= from));
        messages.extend(loaded.messages);
        next = loaded.frontier;
    }
    assert!(messages.is_sorted_by(|a, b| order(a) < order(b)) && messages.iter().all(is_waiting));
    let waiting = messages.len();
    let mut after = None;
    loop {
        let StoredDead { messages: dead, frontier } = reader.dead(topic, after, max)?;
        let before = after;
        assert!(dead.iter().all(|message| !is_waiting(message) && after.is_none_or(|after| order(message) > after)));
        // It may stop anywhere, and says where.
        let end = dead.last().map(order);
        after = frontier.map(|(at, arrival)| if arrival == 0 { (at.minus(1), u64::MAX) } else { (at, arrival - 1) });
        messages.extend(dead);
        if after.is_none() {
            break;
        }
        assert!(after >= end && after > before, "it goes on");
    }
    assert!(messages[waiting..].is_sorted_by(|a, b| order(a) < order(b)));
    Ok(messages)
}

/// What was restored as a model: the pages are read, and what was said of them must be so.
pub(super) fn restore(opened: &Opened, all: Vec<Restored>) -> Result<Model, OpenError> {
    let mut model = Model::default();
    let damaged = |error: ReadError| OpenError::PagesDamaged { what: error.to_string() };
    let mut reader = opened.folder.reader();
    let (mut paged, mut index) = (Paged::new(), BTreeMap::new());
    let (changes, state): (Vec<_>, Vec<_>) = all.into_iter().partition(|item| matches!(item, Restored::Change(_)));
    for item in state {
        match item {
            Restored::Fold(fold) => assert_eq!(fold, reader.fold()),
            Restored::Stored { topic, waiting, dead, first } => {
                let messages = read_topic(&mut reader, topic, 7).map_err(damaged)?;
                if let Some(part) = reader.take_damaged().first() {
                    return Err(OpenError::PagesDamaged { what: part.to_string() });
                }
                let count = messages.iter().filter(|message| is_waiting(message)).count();
                assert_eq!((waiting, dead), (count as u64, (messages.len() - count) as u64));
                let found = messages.iter().filter(|message| is_waiting(message)).map(order).min();
                assert!(first.is_some() == found.is_some() && first <= found, "{first:?} and {found:?}");
                paged.extend(messages.into_iter().map(|message| (message.id.arrival, message)));
            }
            Restored::IndexSize { .. } => {}
            Restored::Index { id, place, key_hash } => {
                assert!(index.insert(id, (place, key_hash)).is_none(), "{id} twice in the index");
            }
            item => model.restore(item),
        }
    }
    assert_eq!(index, expected_index(&paged));
    for item in paged.into_values().map(Restored::Message).chain(changes) {
        model.restore(item);
    }
    Ok(model)
}

fn expected_index(paged: &Paged) -> BTreeMap<MessageId, (Place, Option<u64>)> {
    let entry = |message: &Message| {
        let key = message.content.key.as_ref().filter(|_| message.progress.holds_key).map(key_hash);
        let is_needed = key.is_some() || message.place() != Place::Due(message.id.birth_due);
        is_needed.then(|| (message.id, (message.place(), key)))
    };
    paged.values().filter_map(entry).collect()
}

/// Everything that `reader` answers, compared with the messages that must be in pages and with some that were there
/// once.
pub(super) fn check(reader: &mut Reader, paged: &Paged, gone: &[Message], chance: &mut Chance) {
    let topics: BTreeSet<TopicId> = paged.values().chain(gone).map(|message| message.id.topic).collect();
    for topic in topics {
        let of_topic = || paged.values().filter(|message| message.id.topic == topic);
        let max = 1 + usize::try_from(chance.below(30)).expect("small");
        let read = read_topic(reader, topic, max).expect("reads");
        let (mut waiting, mut dead): (Vec<&Message>, Vec<_>) = of_topic().partition(|message| is_waiting(message));
        waiting.sort_by_key(|message| order(message));
        dead.sort_by_key(|message| order(message));
        assert!(read.iter().eq(waiting.iter().copied().chain(dead)), "topic {}", topic.0);
        check_counts(reader, topic, &waiting, chance);
        if !waiting.is_empty() {
            // From the middle, and so not where the last load ended.
            let at = usize::try_from(chance.below(waiting.len() as u64)).expect("small");
            let load = Load { topic, from: order(waiting[at]), max, fold: reader.fold() };
            let loaded = reader.load(load).expect("reads");
            assert!(loaded.messages.iter().eq(waiting[at..].iter().copied().take(loaded.messages.len())));
            assert!(!loaded.messages.is_empty());
        }
    }
    // All of a few, some of many.
    let stride = paged.len() / 100 + 1;
    let first = usize::try_from(chance.below(stride as u64)).expect("small");
    for message in paged.values().skip(first).step_by(stride) {
        check_find(reader, message, true);
    }
    for message in gone {
        let is_there = paged.get(&message.id.arrival).is_some_and(|paged| paged.place() == message.place());
        if !is_there {
            check_find(reader, message, false);
        }
    }
}

fn check_find(reader: &mut Reader, message: &Message, is_there: bool) {
    let candidate = (message.id.arrival, message.place());
    let elsewhere = (message.id.arrival ^ 1, message.place());
    let missing = |candidates, key| Missing { topic: message.id.topic, candidates, key };
    let expected = is_there.then_some(message);
    let key = message.content.key.clone();
    for missing in [missing(vec![candidate], None), missing(vec![elsewhere, candidate], key.clone())] {
        assert_eq!(reader.find(&missing).expect("reads").as_ref(), expected, "{missing:?}");
    }
    let other = crate::queue::values::Key::parse("another key").expect("a key");
    assert_eq!(reader.find(&missing(vec![candidate], Some(other))), Ok(None));
}

/// The counts of any spans are those of a recount, asked for twice: what is kept of the first time is right, too.
fn check_counts(reader: &mut Reader, topic: TopicId, waiting: &[&Message], chance: &mut Chance) {
    let mut ends = Vec::new();
    for _ in 0..3.min(waiting.len()) {
        let (at, arrival) = order(waiting[usize::try_from(chance.below(waiting.len() as u64)).expect("small")]);
        ends.extend([at.plus(chance.below(3)), at.plus(chance.below(2) * (arrival % 3))]);
    }
    // The histories must not depend on how much is checked.
    let mut own = Chance::new(chance.below(4) + waiting.len() as u64);
    let start = Timestamp::from_millis(super::samples::START.as_millis() - 1_000_000);
    let mut edges = timeline_edges(start.plus(own.below(3_000_000)));
    edges.extend(ends);
    edges.push(Timestamp::ZERO);
    edges.sort_unstable();
    edges.dedup();
    let cut = usize::try_from(own.below(edges.len() as u64)).expect("small");
    let recount = |edges: &[Timestamp]| -> Vec<u64> {
        let between = |from, until| waiting.iter().map(|m| order(m).0).filter(|at| (from..until).contains(at)).count();
        edges.windows(2).map(|ends| between(ends[0], ends[1]) as u64).collect()
    };
    for edges in [&edges[..], &edges[..], &edges[cut..], &edges[..cut]] {
        assert_eq!(reader.due(topic, edges), Ok(recount(edges)), "topic {}, {edges:?}", topic.0);
    }
    let from = waiting.get(waiting.len() / 3).map_or((Timestamp::ZERO, 0), |message| order(message));
    let first = reader.first_due(topic, from).expect("reads");
    let rest: Vec<Timestamp> = waiting.iter().map(|m| order(m)).filter(|at| *at >= from).map(|at| at.0).collect();
    let read: Vec<Timestamp> = first.due.iter().flat_map(|&(at, n)| vec![at; n as usize]).collect();
    assert_eq!(read, rest[..read.len()]);
    assert!(!first.is_all || read.len() == rest.len());
    assert!(!read.is_empty() || rest.is_empty());
}
