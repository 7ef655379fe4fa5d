//! The life of a message in the pure queue, in one straight line: a first check that the parts fit.

use duewheel::queue::change::Restored;
use duewheel::queue::command::{Command, ConsumerId, Due, LeaseRequest, Nack, NackReason, Nacked, Produce, Reply};
use duewheel::queue::limits::Limits;
use duewheel::queue::settings::TopicSettings;
use duewheel::queue::time::Timestamp;
use duewheel::queue::values::{ConsumerName, Headers, Key, NackText, TopicName};
use duewheel::queue::{Effects, Queue, Restore};

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(1_790_000_000_000 + ms)
}

fn apply(queue: &mut Queue, now: Timestamp, command: Command, effects: &mut Effects) -> Reply {
    let reply = queue.apply(now, command, None, effects).expect("accepted");
    queue.check(now).expect("the invariants hold");
    reply
}

#[test]
fn a_message_waits_its_tiers_and_ends_dead_and_a_restart_restores_it() {
    let mut effects = Effects::default();
    let mut queue = Restore::new(Limits::default()).finish(at(0), &mut effects);
    let topic = TopicName::parse("orders").expect("a good name");
    let create = Command::CreateTopic { name: topic.clone(), settings: TopicSettings::default() };
    apply(&mut queue, at(0), create, &mut effects);
    let produce = Produce {
        topic: topic.clone(),
        key: Some(Key::parse("o-1").expect("a good key")),
        headers: Headers::default(),
        body: "body".into(),
        due: Some(Due::After(500)),
        schedule: None,
        max_attempts: None,
        key_policy: duewheel::queue::command::KeyPolicy::Reject,
        dedup_id: None,
    };
    apply(&mut queue, at(0), Command::Produce(produce), &mut effects);
    let mut now = at(0);
    let mut waits = Vec::new();
    loop {
        let wakeup = queue.next_wakeup().expect("the message waits");
        while queue.advance(wakeup, 1, &mut effects) {}
        queue.check(wakeup).expect("the invariants hold");
        let lease = LeaseRequest {
            topic: topic.clone(),
            consumer: ConsumerId(1),
            consumer_name: ConsumerName::parse("c").expect("a good name"),
            max: 10,
            lease_ms: None,
        };
        let Reply::Leased(deliveries) = apply(&mut queue, wakeup, Command::Lease(lease), &mut effects) else {
            panic!("a lease answers with deliveries")
        };
        let [delivery] = &deliveries[..] else { continue };
        waits.push(wakeup.since(now));
        now = wakeup;
        let nack = Nack { receipt: delivery.receipt, reason: NackReason::NotYet(None), text: NackText::none() };
        if apply(&mut queue, now, Command::Nack(nack), &mut effects) == Reply::Nacked(Nacked::Dead) {
            break;
        }
    }
    assert_eq!(waits, [500, 1_000, 2_000, 5_000, 10_000, 20_000, 40_000, 100_000]);

    let mut restore = Restore::new(Limits::default());
    effects.changes.drain(..).for_each(|change| restore.record(Restored::Change(change)));
    let restored = restore.finish(now, &mut Effects::default());
    restored.check(now).expect("the invariants hold");
    assert_eq!(restored.snapshot(now), queue.snapshot(now));
}
