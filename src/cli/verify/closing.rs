//! The end of a run: the broker runs empty, and is asked for its counts, its dead letters, and for keys that are free.

use std::time::Duration;

use tokio::task::JoinSet;

use super::accounts::Dead;
use super::producer::key;
use super::tally::Violation;
use super::world::World;
use crate::cli::exit::{Exit, Failure};
use crate::cli::session::Session;
use crate::client::{CancelAnswer, Client, Due, Error, MessageRef, NewMessage};
use crate::clock::Stopwatch;
use crate::pb;

/// Between two looks whether the broker has run empty.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Keys of ended messages that are used again.
const KEYS_TRIED: usize = 200;
/// Dead letters of a page.
const PAGE: u32 = 1_000;

/// Waits until no message waits or is worked on, and gives the counts. A broker that is away or refuses for a time is
/// asked again; one that gets no emptier within `patience` is stuck. One that does not know the topic has lost all.
pub(super) async fn drained(session: &Session, world: &World, patience: Duration) -> Result<pb::TopicStats, Failure> {
    let (mut client, mut watch, mut least) = (None, Stopwatch::start(), u64::MAX);
    loop {
        match stats(session, &mut client, &world.topic).await {
            Ok(stats) => {
                let left = stats.scheduled + stats.ready + stats.leased;
                if left == 0 && world.are_producers_done() {
                    return Ok(stats);
                }
                if left < least {
                    (least, watch) = (left, Stopwatch::start());
                }
                if watch.elapsed() > patience && !world.are_producers_done() {
                    let text = "produces that are repeated until they are answered were refused within --drain-timeout";
                    return Err(
                        Failure::new(Exit::Failed, text).next("see duewheel stats: is the disk of the broker full?")
                    );
                }
                if watch.elapsed() > patience {
                    if left > 0 {
                        let text = format!("{left} messages do not come to an end");
                        world.ledger.violation(Violation::Stuck, 0, &text);
                    }
                    return Ok(stats);
                }
            }
            Err(error) if error.is_temporary() && watch.elapsed() <= patience => client = None,
            Err(error) if error.reason() == Some("TOPIC_NOT_FOUND") => {
                world.ledger.refusal(0, "statistics", &error);
                return Ok(pb::TopicStats::default());
            }
            Err(error) => return Err(Failure::call("read the statistics", &error)),
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

async fn stats(session: &Session, client: &mut Option<Client>, topic: &str) -> Result<pb::TopicStats, Error> {
    let connected = match client.take() {
        Some(connected) => connected,
        None => Client::connect(session.options()).await?,
    };
    let mut stats = connected.stats(Some(topic)).await?;
    *client = Some(connected);
    Ok(stats.topics.pop().unwrap_or_default())
}

/// The orders that are dead letters.
pub(super) async fn dead(client: &Client, topic: &str) -> Result<Dead, Failure> {
    let (mut dead, mut token) = (Dead::new(), String::new());
    loop {
        let page = client.dead_letters(topic, pb::DeadLetterFilter::default(), PAGE, &token).await;
        let (messages, next) = match page {
            Ok(page) => page,
            // This has been noted before.
            Err(error) if error.reason() == Some("TOPIC_NOT_FOUND") => return Ok(dead),
            Err(error) => return Err(Failure::call("list the dead letters", &error)),
        };
        let order = |message: &pb::MessageInfo| {
            let number = message.key.strip_prefix("order-")?.parse::<u64>().ok()?;
            Some((number, message.deliveries))
        };
        dead.extend(messages.iter().filter_map(order));
        let Some(next) = next else { return Ok(dead) };
        token = next;
    }
}

/// The keys of messages that are over can be used again.
pub(super) async fn use_keys_again(client: &Client, world: &World, dead: &Dead) -> Result<(), Failure> {
    let ended = world.ledger.ended(KEYS_TRIED, dead);
    let failed = |error| Failure::call("use keys again", &error);
    let again = |&number: &u64| NewMessage::new(Vec::new()).key(key(number)).due(Due::In(Duration::from_hours(1)));
    if ended.is_empty() {
        return Ok(());
    }
    let results = client.produce_all(&world.topic, ended.iter().map(again).collect()).await;
    let results = match results {
        Ok(results) => results,
        Err(error) if error.reason() == Some("TOPIC_NOT_FOUND") => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    let mut cancels = JoinSet::new();
    for (number, result) in ended.into_iter().zip(results) {
        match result {
            Ok(_) => {}
            Err(error) if matches!(error.reason(), Some("KEY_IN_USE" | "KEY_IN_FLIGHT")) => {
                world.ledger.violation(Violation::KeyLeaked, number, &error.to_string());
                continue;
            }
            // This has been noted before.
            Err(error) if error.reason() == Some("TOPIC_NOT_FOUND") => continue,
            // No room for it, or a broken commit: says nothing of the key.
            Err(error) if error.is_temporary() => continue,
            Err(error) => {
                world.ledger.refusal(number, "produce with a key that is free", &error);
                continue;
            }
        }
        let (client, topic) = (client.clone(), world.topic.clone());
        cancels.spawn(async move { (number, client.cancel(&topic, MessageRef::key(key(number)), false).await) });
    }
    while let Some(cancelled) = cancels.join_next().await {
        let (number, answer) = cancelled.expect("a cancel does not panic");
        let answer = answer.map_err(failed)?;
        if !matches!(answer, CancelAnswer::Cancelled { .. }) {
            let text = format!("its key was used again and confirmed, and then: {answer:?}");
            world.ledger.violation(Violation::Lost, number, &text);
        }
    }
    Ok(())
}
