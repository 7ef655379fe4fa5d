//! The pure queue without store and network: the wheel by distance, and a whole life of a message.
//!
//! `cargo bench --bench queue`. Each figure is the time of one message; quote medians.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use duewheel::queue::command::{Command, ConsumerId, Due, KeyPolicy, LeaseRequest, Produce, Reply};
use duewheel::queue::limits::Limits;
use duewheel::queue::settings::TopicSettings;
use duewheel::queue::time::Timestamp;
use duewheel::queue::values::{ConsumerName, Headers, Key, TopicName};
use duewheel::queue::wheel::Wheel;
use duewheel::queue::{Effects, Queue, Restore};

/// Messages handled in one measured batch.
const BATCH: u64 = 10_000;
const START_MS: u64 = 1_790_000_000_000;
/// Spans that due times are spread over: within a level, and over a week.
const SPREADS: [(&str, u64); 3] = [("50ms", 50), ("30min", 1_800_000), ("7d", 604_800_000)];

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(START_MS + ms)
}

fn topic() -> TopicName {
    TopicName::parse("bench").expect("a good name")
}

fn queue() -> Queue {
    let mut effects = Effects::default();
    let mut queue = Restore::new(Limits::default()).finish(at(0), &mut effects);
    let create = Command::CreateTopic { name: topic(), settings: TopicSettings::default() };
    queue.apply(at(0), create, None, &mut effects).expect("a fresh topic");
    queue
}

fn produce(queue: &mut Queue, key: Option<u64>, delay_ms: u64, effects: &mut Effects) {
    let command = Command::Produce(Produce {
        topic: topic(),
        key: key.map(|number| Key::parse(&format!("order-{number}")).expect("a good key")),
        headers: Headers::default(),
        body: bytes::Bytes::from_static(&[7; 256]),
        due: Some(Due::After(delay_ms)),
        schedule: None,
        max_attempts: None,
        key_policy: KeyPolicy::Reject,
        dedup_id: None,
    });
    black_box(queue.apply(at(0), command, None, effects).expect("a good message"));
}

fn wheel(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wheel");
    group.throughput(Throughput::Elements(BATCH));
    for (name, spread) in SPREADS {
        let dues = move || {
            let mut random = fastrand::Rng::with_seed(1);
            (0..BATCH).map(move |_| START_MS + 1 + random.u64(0..spread)).collect::<Vec<_>>()
        };
        let filled = move || {
            let mut wheel = Wheel::new(START_MS);
            let timers: Vec<_> = dues().into_iter().map(|due| wheel.insert(due, due)).collect();
            (wheel, timers)
        };
        group.bench_function(format!("insert/{name}"), |bencher| {
            bencher.iter_batched(
                || (Wheel::new(START_MS), dues()),
                |(mut wheel, dues)| {
                    for due in dues {
                        wheel.insert(due, due);
                    }
                    wheel
                },
                BatchSize::LargeInput,
            );
        });
        group.bench_function(format!("cascade and fire/{name}"), |bencher| {
            bencher.iter_batched(
                || filled().0,
                |mut wheel| {
                    wheel.advance(START_MS + spread + 1, usize::MAX, |due| {
                        black_box(due);
                    });
                    wheel
                },
                BatchSize::LargeInput,
            );
        });
        group.bench_function(format!("remove/{name}"), |bencher| {
            bencher.iter_batched(
                filled,
                |(mut wheel, timers)| {
                    for timer in timers {
                        black_box(wheel.remove(timer));
                    }
                    wheel
                },
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

fn life(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("queue");
    group.throughput(Throughput::Elements(BATCH));
    for keyed in [false, true] {
        let name = if keyed { "produce, fire, lease, ack; keyed" } else { "produce, fire, lease, ack" };
        group.bench_function(name, |bencher| {
            bencher.iter_batched(queue, |queue| one_life(queue, keyed), BatchSize::LargeInput);
        });
    }
    group.finish();
}

fn one_life(mut queue: Queue, keyed: bool) -> Queue {
    let mut effects = Effects::default();
    for number in 0..BATCH {
        produce(&mut queue, keyed.then_some(number), 1_000, &mut effects);
    }
    queue.advance(at(1_000), usize::MAX, &mut effects);
    let lease = LeaseRequest {
        topic: topic(),
        consumer: ConsumerId(1),
        consumer_name: ConsumerName::parse("bench").expect("a good name"),
        max: usize::MAX,
        lease_ms: None,
    };
    let reply = queue.apply(at(1_000), Command::Lease(lease), None, &mut effects).expect("the topic exists");
    let Reply::Leased(deliveries) = reply else { unreachable!("a lease answers with deliveries") };
    assert_eq!(deliveries.len() as u64, BATCH);
    for delivery in deliveries {
        queue.apply(at(1_001), Command::Ack(delivery.receipt), None, &mut effects).expect("a live lease");
    }
    black_box(effects);
    queue
}

criterion_group!(benches, wheel, life);
criterion_main!(benches);
