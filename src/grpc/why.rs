//! One sentence for people: why a message has not been delivered yet, or how it ended.

use crate::engine::{Audience, Seen};
use crate::queue::change::Outcome;
use crate::queue::message::{DeadReason, DeliveryOutcome, Message};
use crate::queue::schedule::format_duration;
use crate::queue::time::Timestamp;
use crate::queue::view::{Hindrance, LiveView, MessageView, StateView};

/// Why the message has not been delivered yet, or how it ended.
pub(super) fn why(seen: &Seen) -> String {
    match &seen.view {
        MessageView::Live(view) => live(view, seen.audience, seen.now),
        MessageView::Gone(finished) => {
            let ending = match finished.outcome {
                Outcome::Acked => "It is done: a consumer acknowledged it",
                Outcome::Cancelled => "It was cancelled",
                Outcome::Replaced => "It was replaced by a later message with its key",
                Outcome::Purged => "It was purged from the dead letters",
            };
            format!("{ending} at {}.", finished.at.to_rfc3339())
        }
    }
}

fn live(view: &LiveView, audience: Audience, now: Timestamp) -> String {
    let progress = &view.message.progress;
    match &view.state {
        StateView::Scheduled => {
            let (wait, at) = (format_duration(progress.due_at.since(now)), progress.due_at.to_rfc3339());
            format!("It is due in {wait}, at {at}: {}.", waits_for(&view.message))
        }
        StateView::Ready { hindrance: Some(hindrance), .. } => match hindrance {
            Hindrance::Paused => "It is ready, but its topic is paused.".to_owned(),
            Hindrance::RateCap(at) => {
                let wait = format_duration(at.since(now));
                format!("It is ready, but the rate cap of its topic allows the next delivery in {wait}.")
            }
            Hindrance::ConcurrencyCap(cap) => {
                format!(
                    "It is ready, but {cap} messages of its topic are leased, as many as its concurrency cap allows."
                )
            }
        },
        StateView::Ready { hindrance: None, .. } if audience.waiting == 0 => {
            let leased = match audience.leased {
                0 => String::new(),
                1 => "; 1 message of the topic is leased".to_owned(),
                leased => format!("; {leased} messages of the topic are leased"),
            };
            format!("It is ready, but no stream is open on its topic and no fetch waits{leased}.")
        }
        StateView::Ready { hindrance: None, ahead } => {
            let ahead = match ahead {
                Some(0) => "no message is ahead of it".to_owned(),
                Some(1) => "1 message is ahead of it".to_owned(),
                Some(ahead) => format!("{ahead} messages are ahead of it"),
                None => "how many are ahead of it was not counted".to_owned(),
            };
            format!("It is ready and waits for a consumer with room in its window; {ahead}.")
        }
        StateView::Leased { consumer, delivered_at, deadline } => {
            let name =
                if consumer.as_str().is_empty() { "A consumer".to_owned() } else { format!("Consumer '{consumer}'") };
            let (since, left) = (format_duration(now.since(*delivered_at)), format_duration(deadline.since(now)));
            let then =
                if progress.cancel_on_lease_end { ", then it is cancelled unless it is acknowledged" } else { "" };
            format!("{name} has been working on it for {since}; the lease ends in {left}{then}.")
        }
        StateView::Dead => dead(view),
    }
}

fn waits_for(message: &Message) -> String {
    let progress = &message.progress;
    let last = message.history.as_ref().and_then(|history| history.iter().last());
    match last {
        None => "it has not been delivered yet".to_owned(),
        Some(entry) => {
            let outcome = match entry.outcome {
                DeliveryOutcome::NotYet => "there was no definite answer yet",
                DeliveryOutcome::Failed => "the check failed",
                DeliveryOutcome::Dead => "a consumer gave up and it was redriven",
                DeliveryOutcome::LeaseExpired => "the lease expired",
                DeliveryOutcome::Returned => "the consumer went away",
            };
            let spent = match progress.attempts {
                1 => "1 attempt is spent".to_owned(),
                spent => format!("{spent} attempts are spent"),
            };
            format!("delivery {} ended because {outcome}; {spent}", entry.delivery)
        }
    }
}

fn dead(view: &LiveView) -> String {
    let progress = &view.message.progress;
    let Some((reason, at)) = progress.dead else {
        unreachable!("a message in state dead has a time of death");
    };
    let reason = match reason {
        DeadReason::MaxAttempts => format!("all {} attempts are spent", view.max_attempts),
        DeadReason::MaxDeliveries => {
            format!(
                "it was leased {} times, as often as it may be",
                progress.deliveries - progress.deliveries_before_redrive
            )
        }
        DeadReason::Consumer => "a consumer gave up".to_owned(),
    };
    format!("It is dead since {}: {reason}. It waits for reconciliation or a redrive.", at.to_rfc3339())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use crate::queue::change::TopicRecord;
    use crate::queue::message::{Content, MessageId, Progress, TopicId};
    use crate::queue::settings::TopicSettings;
    use crate::queue::values::{ConsumerName, Headers, TopicName};

    fn view(state: StateView) -> LiveView {
        let due_at = Timestamp::from_millis(1_800_000_000_000);
        let content = Content {
            key: None,
            headers: Headers::default(),
            body: Bytes::new(),
            schedule: None,
            max_attempts: None,
            explicit_first_wait: true,
            produced_at: due_at.minus(60_000),
        };
        let topic = TopicRecord {
            id: TopicId(1),
            name: TopicName::parse("orders").expect("a name"),
            settings: TopicSettings::default(),
            paused: false,
            created_at: Timestamp::ZERO,
        };
        let id = MessageId { topic: topic.id, birth_due: due_at, arrival: 1 };
        let message = Message { id, content: Arc::new(content), progress: Progress::new(due_at), history: None };
        LiveView { topic, message, state, max_attempts: 7 }
    }

    #[test]
    fn each_place_is_explained_in_a_sentence() {
        let due_at = Timestamp::from_millis(1_800_000_000_000);
        let ready = |hindrance, ahead| StateView::Ready { hindrance, ahead };
        let consumer = ConsumerName::parse("pay-1").expect("a name");
        let leased = StateView::Leased { consumer, delivered_at: due_at.minus(6_000), deadline: due_at.plus(20_000) };
        let cases = [
            (
                StateView::Scheduled,
                (1, 0),
                "It is due in 5s, at 2027-01-15T08:00:00.000Z: it has not been delivered yet.",
            ),
            (ready(Some(Hindrance::Paused), None), (1, 0), "It is ready, but its topic is paused."),
            (ready(None, Some(0)), (0, 0), "It is ready, but no stream is open on its topic and no fetch waits."),
            (
                ready(None, Some(0)),
                (0, 1),
                "It is ready, but no stream is open on its topic and no fetch waits; 1 message of the topic is leased.",
            ),
            (
                ready(None, Some(2)),
                (1, 0),
                "It is ready and waits for a consumer with room in its window; 2 messages are ahead of it.",
            ),
            (leased, (1, 1), "Consumer 'pay-1' has been working on it for 1s; the lease ends in 25s."),
        ];
        for (state, (waiting, leased), want) in cases {
            assert_eq!(live(&view(state), Audience { waiting, leased }, due_at.minus(5_000)), want);
        }
    }
}
