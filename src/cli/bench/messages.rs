//! The messages that are measured: 256 bytes that say which one it is and when it was to be due.
//!
//! The rest of a body is noise, so that nothing on the way gains by compressing it. Everything is computed from
//! the number of the message: two runs of a workload send the same bodies.

use bytes::{BufMut as _, BytesMut};

use crate::cli::random::mix;
use crate::client::instant;
use crate::clock::wall_now;
use crate::pb;
use crate::queue::time::Timestamp;

/// Bytes of a body.
pub(super) const BODY_BYTES: usize = 256;

/// Messages with this number or a higher one only warm up: they are acked and not counted.
pub(super) const WARM_UP: u64 = 1 << 60;

/// When the messages of a load are due, by the wall clock that broker and load generator share.
#[derive(Clone, Copy, Debug)]
pub(super) enum Due {
    /// All at one instant, milliseconds since 1970.
    At(u64),
    /// Each so many milliseconds after it is sent.
    After(u64),
    /// Each at a random moment within so many milliseconds after it is sent.
    Within(u64),
    /// At random moments of a span, in no order.
    Scattered {
        /// Start of the span, milliseconds since 1970.
        from_ms: u64,
        /// Length of the span, milliseconds.
        span_ms: u64,
    },
}

impl Due {
    fn of(self, number: u64, now_ms: u64) -> u64 {
        match self {
            Self::At(at_ms) => at_ms,
            Self::After(delay_ms) => now_ms + delay_ms,
            Self::Within(span_ms) => now_ms + 1 + mix(number) % span_ms.max(1),
            Self::Scattered { from_ms, span_ms } => from_ms + mix(number) % span_ms.max(1),
        }
    }
}

/// Messages number `first` to `first + count`; their bodies share one allocation.
pub(super) fn messages(first: u64, count: u64, due: Due, keyed: bool) -> Vec<pb::NewMessage> {
    let now_ms = wall_now().as_millis();
    let mut bodies = BytesMut::with_capacity(usize::try_from(count).unwrap_or(0) * BODY_BYTES);
    let numbers = first..first + count;
    let dues: Vec<u64> = numbers.clone().map(|number| due.of(number, now_ms)).collect();
    for (number, &due_ms) in numbers.clone().zip(&dues) {
        put_body(&mut bodies, number, due_ms);
    }
    let mut bodies = bodies.freeze();
    let message = |(number, due_ms): (u64, u64)| pb::NewMessage {
        key: if keyed { key(number) } else { String::new() },
        body: bodies.split_to(BODY_BYTES),
        first_wait: Some(pb::new_message::FirstWait::DueAt(instant(Timestamp::from_millis(due_ms)))),
        ..pb::NewMessage::default()
    };
    numbers.zip(dues).map(message).collect()
}

/// The business key of a message.
pub(super) fn key(number: u64) -> String {
    format!("order-{number}")
}

/// Number and due time (milliseconds since 1970) that a body states; `None` for a body of somebody else.
pub(super) fn stated(body: &[u8]) -> Option<(u64, u64)> {
    let word = |at: usize| body.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    (body.len() == BODY_BYTES).then_some((word(0)?, word(8)?))
}

fn put_body(bodies: &mut BytesMut, number: u64, due_ms: u64) {
    bodies.put_u64_le(number);
    bodies.put_u64_le(due_ms);
    let mut noise = number;
    for _ in 2..BODY_BYTES / 8 {
        noise = mix(noise);
        bodies.put_u64_le(noise);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_states_number_and_due_time_and_is_full() {
        let sent = messages(7, 3, Due::At(1_000), true);
        let stated: Vec<_> = sent.iter().map(|message| stated(&message.body)).collect();
        assert_eq!(stated, [Some((7, 1_000)), Some((8, 1_000)), Some((9, 1_000))]);
        assert_eq!(sent[2].key, "order-9");
        assert_ne!(sent[0].body[16..], sent[1].body[16..]);
    }

    #[test]
    fn scattered_due_times_cover_the_span_out_of_order() {
        let due = Due::Scattered { from_ms: 100, span_ms: 1_000 };
        let dues: Vec<u64> = (0..1_000).map(|number| due.of(number, 0)).collect();
        assert!(dues.iter().all(|due| (100..1_100).contains(due)));
        assert!(!dues.is_sorted());
        let early = dues.iter().filter(|&&due| due < 600).count();
        assert!((400..600).contains(&early), "{early} of 1,000 in the first half");
    }
}
