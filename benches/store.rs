//! The store with much in its pages: what a start, a load, a look-up and a fold cost, and what it takes in memory.
//!
//! `cargo bench --bench store`. `DUEWHEEL_BENCH_MESSAGES` sets how many messages are pending (default one million)
//! and `DUEWHEEL_BENCH_KEYED` how many of a hundred have a key (default none). They are due over seven days. With
//! `DUEWHEEL_BENCH_DIRECTORY` the store is kept there, and a second run shows what a start alone takes.

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use duewheel::clock::Stopwatch;
use duewheel::queue::change::{Change, Finished, Outcome, Restored, TopicRecord};
use duewheel::queue::due::timeline_edges;
use duewheel::queue::far::{Load, Missing};
use duewheel::queue::message::{Content, Message, MessageId, Place, Progress, TopicId};
use duewheel::queue::settings::TopicSettings;
use duewheel::queue::time::Timestamp;
use duewheel::queue::values::{Headers, Key, TopicName};
use duewheel::store::{Opened, Reader, StoreOptions, open};

const TOPIC: TopicId = TopicId(1);
const START: Timestamp = Timestamp::from_millis(1_790_000_000_000);
const WEEK_MS: u64 = 7 * 86_400_000;
const PER_COMMIT: u64 = 1_000;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// Message number `arrival`: the same each time.
fn message(arrival: u64, keyed_percent: u64) -> Message {
    let mut random = fastrand::Rng::with_seed(arrival);
    let due = START.plus(60_000 + random.u64(0..WEEK_MS));
    let key =
        (random.u64(0..100) < keyed_percent).then(|| Key::parse(&format!("order-{arrival}")).expect("a good key"));
    let content = Content {
        key,
        headers: Headers::default(),
        body: (0..256).map(|_| random.u8(..)).collect(),
        schedule: None,
        max_attempts: None,
        explicit_first_wait: true,
        produced_at: START,
    };
    let id = MessageId { topic: TOPIC, birth_due: due, arrival };
    Message { id, content: Arc::new(content), progress: Progress::new(due), history: None }
}

/// Resident memory of this process, MB.
fn resident_mb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok()).map_or(0, |kb| kb / 1024)
}

fn open_at(path: &Path) -> (Opened, u64) {
    let mut indexed = 0;
    let opened = open(path, StoreOptions::default(), &mut |restored| {
        indexed += u64::from(matches!(restored, Restored::Index { .. }));
    });
    (opened.expect("opens"), indexed)
}

fn fold(opened: &mut Opened, now: Timestamp) -> Option<f64> {
    let job = opened.committer.freeze(now)?;
    let watch = Stopwatch::start();
    let done = opened.folder.run(job).expect("folds");
    let took = watch.elapsed().as_secs_f64();
    opened.committer.folded(done).expect("completes");
    Some(took)
}

fn fill(path: &Path, count: u64, keyed_percent: u64) {
    let (mut opened, _) = open_at(path);
    let topic = TopicRecord {
        id: TOPIC,
        name: TopicName::parse("bench").expect("a good name"),
        settings: TopicSettings::default(),
        paused: false,
        created_at: START,
    };
    let opening = [Change::Opened { epoch: 1, at: START }, Change::TopicPut(topic), Change::ArrivalsReserved(1 << 40)];
    opened.committer.commit(&opening).expect("commits");
    let (watch, mut folds) = (Stopwatch::start(), Vec::new());
    for first in (0..count).step_by(usize::try_from(PER_COMMIT).expect("small")) {
        let changes: Vec<Change> =
            (first..first + PER_COMMIT).map(|arrival| Change::Produced(message(arrival, keyed_percent))).collect();
        opened.committer.commit(&changes).expect("commits");
        if opened.committer.is_generation_full() {
            folds.extend(fold(&mut opened, START));
        }
    }
    folds.extend(fold(&mut opened, START));
    folds.sort_by(f64::total_cmp);
    println!(
        "{count} messages, {keyed_percent} % keyed: {:.1} s, {} folds of {:.2} s (longest {:.2} s), {} pages, {} MB on \
         disk, {} MB resident",
        watch.elapsed().as_secs_f64(),
        folds.len(),
        folds[folds.len() / 2],
        folds[folds.len() - 1],
        opened.folder.pages(),
        opened.folder.disk_bytes() >> 20,
        resident_mb(),
    );
}

fn missing(message: &Message) -> Missing {
    let candidates = vec![(message.id.arrival, message.place())];
    Missing { topic: TOPIC, candidates, key: message.content.key.clone() }
}

/// Cancels three of five of the first million messages in ten folds, each followed by compaction.
fn wear(opened: &mut Opened, reader: &mut Reader, count: u64, keyed_percent: u64) {
    let end = |message: Message| {
        Change::Finished(Finished {
            id: message.id,
            key: message.content.key.clone(),
            outcome: Outcome::Cancelled,
            at: START,
            receipt: None,
            previous: Place::Due(message.id.birth_due),
        })
    };
    let arrivals: Vec<u64> = (0..count.min(1_000_000)).filter(|arrival| arrival % 5 < 3).collect();
    let (mut folds, mut steps) = (0.0, 0);
    let mut compaction = 0.0;
    for part in arrivals.chunks(arrivals.len() / 10 + 1) {
        for changes in part.chunks(10_000) {
            let changes: Vec<Change> = changes.iter().map(|&arrival| end(message(arrival, keyed_percent))).collect();
            opened.committer.commit(&changes).expect("commits");
        }
        let job = opened.committer.freeze(START).expect("there is something to fold");
        let watch = Stopwatch::start();
        let done = opened.folder.run(job).expect("folds");
        folds += watch.elapsed().as_secs_f64();
        reader.apply(&done.delta);
        opened.committer.folded(done).expect("completes");
        let watch = Stopwatch::start();
        while let Some(delta) = opened.folder.compact().expect("compacts") {
            reader.apply(&delta);
            steps += 1;
        }
        compaction += watch.elapsed().as_secs_f64();
    }
    println!(
        "{} cancelled: 10 folds took {folds:.2} s, {steps} steps of compaction {compaction:.2} s; {} pages, {} MB \
         resident",
        arrivals.len(),
        opened.folder.pages(),
        resident_mb(),
    );
}

fn store(criterion: &mut Criterion) {
    let (count, keyed) = (setting("DUEWHEEL_BENCH_MESSAGES", 1_000_000), setting("DUEWHEEL_BENCH_KEYED", 0));
    let temporary = tempfile::TempDir::new().expect("a directory");
    let kept = std::env::var_os("DUEWHEEL_BENCH_DIRECTORY").map(PathBuf::from);
    let directory = kept.as_deref().unwrap_or(temporary.path());
    let is_new = !directory.join("FORMAT").exists();
    if is_new {
        fill(directory, count, keyed);
    }
    let before = resident_mb();
    let watch = Stopwatch::start();
    let (mut opened, indexed) = open_at(directory);
    let took = watch.elapsed().as_secs_f64();
    println!(
        "opened in {took:.2} s, {indexed} index entries, {before} MB resident before and {} MB after",
        resident_mb()
    );
    let mut reader = opened.folder.reader();
    let mut random = fastrand::Rng::with_seed(7);
    let mut group = criterion.benchmark_group("store");
    group.sample_size(10);
    group.throughput(Throughput::Elements(10_000));
    group.bench_function("load 10,000 in order", |bencher| {
        bencher.iter_batched(
            || START.plus(random.u64(0..WEEK_MS - 86_400_000)),
            |at| {
                let mut from = (at, 0);
                let mut loaded = 0;
                while loaded < 10_000 {
                    let load = Load { topic: TOPIC, from, max: 10_000 - loaded, fold: reader.fold() };
                    let part = reader.load(load).expect("reads");
                    loaded += part.messages.len();
                    let Some(frontier) = part.frontier else { break };
                    from = frontier;
                }
                loaded
            },
            BatchSize::PerIteration,
        );
    });
    group.throughput(Throughput::Elements(1));
    group.bench_function("find", |bencher| {
        bencher.iter_batched(
            || missing(&message(random.u64(0..count), keyed)),
            |missing| reader.find(&missing).expect("reads").expect("is there"),
            BatchSize::SmallInput,
        );
    });
    group.bench_function("count what is due from an instant on", |bencher| {
        let mut now = START;
        bencher.iter(|| {
            now = now.plus(1);
            black_box(reader.due(TOPIC, &[now, Timestamp::MAX]))
        });
    });
    group.bench_function("timeline", |bencher| {
        bencher.iter(|| black_box(reader.due(TOPIC, &timeline_edges(START))));
    });
    group.finish();
    // A store that is kept is worn once: nothing is cancelled twice.
    if is_new {
        wear(&mut opened, &mut reader, count, keyed);
    }
}

criterion_group!(benches, store);
criterion_main!(benches);
