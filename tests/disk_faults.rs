//! A disk that fails once: the n-th write or sync of the real program fails, or writes half, for many n; and a disk whose syncs
//! take seconds.
//!
//! A library in front of the C library strikes one call in the life of the process and passes all others on, so a later
//! sync would succeed: who tries again is found out. The broker must end with 1 and name the error; who waited must hear that
//! the outcome is unknown; a later start must find all that was confirmed. The clients and their ledger are those of the
//! power cuts.
//!
//! Some of the faults strike while a broker makes its store or works on it, others while it recovers one that was killed.
//!
//! The gate takes a few faults, others every time; `DUEWHEEL_FAULTS` sets their number, `DUEWHEEL_FAULT` names one, such as
//! `pwrite:EIO:17` or `recovery:pwrite:EIO:2`, and `DUEWHEEL_SEED` repeats the choice.

mod durability;
mod support;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use duewheel::client::{Acked, Client, Due, Error, NewMessage, Options, Outcome, Window};
use duewheel::clock::Stopwatch;
use duewheel::pb;
use durability::TOPIC;
use durability::ledger::{Ledger, Wrongs};
use durability::load::Load;
use durability::process::Process;
use durability::verify::{take_what_is_due, verify};
use fastrand::Rng;
use support::{Broker, Ran, arg, duewheel, preload, until};
use tempfile::TempDir;

/// Faults of the gate.
const FAULTS: usize = 5;
/// What a short write must not disturb.
const ENOUGH: usize = 1_500;
/// Each kind of fault, and up to which call: some twenty are those of the first start, most of the others come under load.
const KINDS: [(&str, u64); 7] = [
    ("fdatasync:EIO", 120),
    ("pwrite:EIO", 160),
    ("pwrite:ENOSPC", 160),
    ("pwrite:short", 160),
    ("fsync:EIO", 14),
    ("fsync:ENOSPC", 14),
    ("rename:EIO", 7),
];
/// Up to which call a fault strikes a recovery; what comes later is as on a fresh store.
const RECOVERY_CALLS: u64 = 12;
const RECOVERY: &str = "recovery:";
/// The disk takes two seconds for a sync; what does not wait for it takes far less.
const AT_ONCE: Duration = Duration::from_millis(1_500);

#[test]
fn a_write_or_sync_that_fails_once_ends_the_broker_and_loses_nothing() {
    let seed = std::env::var("DUEWHEEL_SEED")
        .map_or_else(|_| fastrand::u64(0..1 << 40), |seed| seed.parse().expect("a number"));
    println!("DUEWHEEL_SEED={seed}");
    let mut random = Rng::with_seed(seed);
    let mut faults: Vec<String> =
        KINDS.iter().flat_map(|(kind, most)| (1..=*most).map(move |n| format!("{kind}:{n}"))).collect();
    for (kind, most) in KINDS {
        faults.extend((1..=most.min(RECOVERY_CALLS)).map(|n| format!("{RECOVERY}{kind}:{n}")));
    }
    random.shuffle(&mut faults);
    let count = std::env::var("DUEWHEEL_FAULTS").map_or(FAULTS, |count| count.parse().expect("a number"));
    faults.truncate(count);
    if let Ok(fault) = std::env::var("DUEWHEEL_FAULT") {
        faults = vec![fault];
    }
    let directory = TempDir::new().expect("a temporary directory");
    let library = preload::compile("tests/disk_faults/faults.c", directory.path());
    let mut outcomes: BTreeMap<(String, Seen), u64> = BTreeMap::new();
    for fault in faults {
        let took = Stopwatch::start();
        println!("{fault}");
        let what = survive(&library, &fault, &mut random);
        println!("{fault}: {what:?}, {} ms", took.elapsed_ms());
        let kind = fault.rsplit_once(':').expect("it ends with its number").0.to_owned();
        *outcomes.entry((kind, what)).or_default() += 1;
    }
    println!("{outcomes:#?}");
}

/// What became of a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    /// It did not start, and named the error.
    RefusedToStart,
    /// It ended under load; somebody was told so.
    EndedAndSaidUnknown,
    /// It ended under load; its connections broke before anybody was told.
    EndedAndBroke,
    /// It went on: after half a write, or when it could not make a file that it only made in advance.
    WentOn,
}

fn survive(library: &Path, fault: &str, random: &mut Rng) -> Seen {
    let directory = TempDir::new().expect("a temporary directory");
    let (data, injected) = (directory.path().join("data"), directory.path().join("injected"));
    let ledger = Arc::new(Ledger::default());
    let plan = fault.trim_start_matches(RECOVERY);
    if plan != fault {
        fill_and_kill(&data, &ledger);
    }
    let mut program = duewheel();
    program.env("LD_PRELOAD", library).env("DUEWHEEL_TEST_FAULT", plan).env("DUEWHEEL_TEST_INJECTED", &injected);
    let mut broker = Process::start(program, &data);
    let (seen, ended) = match broker.serves() {
        Err(_) => (Seen::RefusedToStart, broker.ends()),
        Ok((address, _)) => {
            create_topic(address);
            let (witness, load) = (Witness::start(address), Load::start(address, &ledger));
            let has_ended = ends_or_goes_on(&mut broker, &injected, &ledger);
            broker.kill();
            let ended = broker.ends();
            load.is_over();
            load.join();
            let seen = match witness.heard() {
                _ if !has_ended => Seen::WentOn,
                Some(reason) => {
                    assert_eq!(reason, "OUTCOME_UNKNOWN", "{fault}");
                    Seen::EndedAndSaidUnknown
                }
                None => Seen::EndedAndBroke,
            };
            (seen, ended)
        }
    };
    let struck = std::fs::read_to_string(&injected).unwrap_or_else(|_| panic!("{fault}: there was no such call"));
    if seen == Seen::WentOn {
        // A segment that is made before it is wanted is made again when it is.
        let is_in_advance = struck.ends_with(".segment.new") || struck.ends_with("/journal");
        // A thread of sled syncs the file as well. The system tells each descriptor of a failed sync; this library strikes one.
        let is_of_sled = plan.starts_with("fsync") && struck.ends_with("pages/db");
        let may_go_on = plan.starts_with("pwrite:short") || is_in_advance || is_of_sled;
        assert!(may_go_on, "{fault} on {struck}: it went on");
    } else {
        let (status, log) = ended;
        assert_eq!(status.code(), Some(1), "{fault}: {log}");
        let errors = if fault.contains("EIO") { ["os error 5", "code: 5,"] } else { ["os error 28", "code: 28,"] };
        assert!(errors.iter().any(|error| log.contains(error)), "{fault}: it does not name the error:\n{log}");
    }
    let mut broker = Process::start(duewheel(), &data);
    let (address, _) = broker.serves().unwrap_or_else(|log| panic!("{fault}: it does not open again:\n{log}"));
    verify(address, &ledger, &ledger.to_verify(random, true));
    if ledger.confirmed() > 0 {
        take_what_is_due(address, &ledger);
    }
    broker.kill();
    assert_eq!(ledger.wrongs(), Wrongs::default(), "{fault}: of {} confirmed", ledger.confirmed());
    let args = ["check", "--data-dir", arg(&data)];
    let checked = Ran::of(duewheel().args(args).output().expect("the program runs"), &args);
    assert_eq!(checked.code, 0, "{fault}: {checked:?}");
    seen
}

/// Waits until the broker has ended, or has gone on for a while after the fault; true if it has ended.
fn ends_or_goes_on(broker: &mut Process, injected: &Path, ledger: &Ledger) -> bool {
    let mut enough = None;
    let mut has_ended = false;
    until("the broker ends, or goes on after the fault", || {
        has_ended = broker.has_ended();
        if injected.exists() {
            enough.get_or_insert_with(|| ledger.confirmed() + ENOUGH);
        }
        has_ended || enough.is_some_and(|enough| ledger.confirmed() > enough)
    });
    has_ended
}

/// A store that has been used, and was not stopped.
fn fill_and_kill(data: &Path, ledger: &Arc<Ledger>) {
    let mut broker = Process::start(duewheel(), data);
    let (address, _) = broker.serves().unwrap_or_else(|log| panic!("it does not open:\n{log}"));
    create_topic(address);
    let load = Load::start(address, ledger);
    until("it has folded", || ledger.confirmed() > ENOUGH);
    broker.kill();
    load.is_over();
    load.join();
}

fn create_topic(address: SocketAddr) {
    let endpoint = format!("http://{address}");
    // It may end on the way.
    let _unknown = duewheel().args(["topic", "create", TOPIC, "--endpoint", &endpoint]).output();
}

/// A client that produces one message after the other, until one fails, and remembers why.
struct Witness(JoinHandle<Option<String>>);

impl Witness {
    fn start(address: SocketAddr) -> Self {
        Self(thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let client = Client::connect(Options::new(format!("http://{address}"))).await.ok()?;
                if let Err(error) = client.create_topic("witness", pb::TopicSettings::default()).await {
                    return unknown(&error);
                }
                loop {
                    let message = NewMessage::new("x").due(Due::In(Duration::from_hours(1)));
                    if let Err(error) = client.produce("witness", message).await {
                        return unknown(&error);
                    }
                }
            })
        }))
    }

    /// The reason that the broker gave; `None` if it was gone before it gave one.
    fn heard(self) -> Option<String> {
        self.0.join().expect("it does not panic")
    }
}

/// The reason of a failure, whose outcome must be unknown unless nothing left this process.
fn unknown(error: &Error) -> Option<String> {
    assert!(error.outcome() == Outcome::Unknown || error.is_unreachable(), "{error:?}");
    error.reason().map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_syncs_of_two_seconds_health_answers_and_no_lease_is_lost() {
    let directory = Arc::new(TempDir::new().expect("a temporary directory"));
    let slow = directory.path().join("slow");
    let mut program = duewheel();
    program
        .env("LD_PRELOAD", preload::compile("tests/disk_faults/faults.c", directory.path()))
        .env("DUEWHEEL_TEST_SLOW", &slow);
    let broker = Arc::new(Broker::start_by(program, Arc::clone(&directory), ([127, 0, 0, 1], 0).into(), &[]));
    broker.ok(&["topic", "create", TOPIC, "--lease", "5s"]);
    let client = Client::connect(Options::new(broker.endpoint())).await.expect("it serves");
    let message = |n| NewMessage::new("x").key(format!("order-{n}")).due(Due::In(Duration::ZERO));
    client.produce_all(TOPIC, (0..50).map(message).collect()).await.expect("a call");

    let is_over = Arc::new(AtomicBool::new(false));
    std::fs::write(&slow, "").expect("it can be written");
    let asking = {
        let (broker, is_over) = (Arc::clone(&broker), Arc::clone(&is_over));
        thread::spawn(move || ask_for_health(&broker, &is_over))
    };
    let mut consumer = client.consume("tester", [Window::new(TOPIC, 100)]).await.expect("a stream");
    let mut tasks = tokio::task::JoinSet::new();
    for n in 50..100 {
        let client = client.clone();
        tasks.spawn(async move { client.produce(TOPIC, message(n)).await.map(|_| ()).expect("produced") });
    }
    for _ in 0..100 {
        let delivery = consumer.next().await.expect("a delivery");
        assert!(!delivery.redelivered, "a lease was lost: {delivery:?}");
        tasks.spawn(async move { assert_eq!(delivery.ack().await.expect("acked"), Acked { repeated: false }) });
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("it does not panic");
    }
    is_over.store(true, Ordering::SeqCst);
    let asked = asking.join().expect("health always answers at once");
    assert!(asked > 3, "it was asked {asked} times");
    std::fs::remove_file(&slow).expect("it is there");
    let stats = client.stats(Some(TOPIC)).await.expect("it serves").topics.remove(0);
    assert_eq!((stats.acked, stats.produced), (100, 100), "{stats:?}");
    assert!(broker.log().contains("the disk is slow"), "{}", broker.log());
}

/// Asks until it is over, and gives how often; no answer may wait for the disk.
fn ask_for_health(broker: &Broker, is_over: &AtomicBool) -> usize {
    let mut asked = 0;
    while !is_over.load(Ordering::SeqCst) {
        let took = Stopwatch::start();
        assert_eq!(broker.healthz().map(|(code, _)| code), Some(200));
        assert!(took.elapsed() < AT_ONCE, "health took {} ms", took.elapsed_ms());
        asked += 1;
        thread::sleep(Duration::from_millis(100));
    }
    asked
}
