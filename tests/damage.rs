//! Single flipped bits and truncations all over the files of a store: none of them may be silent.
//!
//! Each case takes a copy of a store in use, changes one thing in one file, and starts an engine on it. Then one of these must
//! come of it, and the test counts which: no effect at all; pages in quarantine, as many messages counted as are missing, and
//! all others delivered, in time and unchanged; a fold that the page store had lost, repeated from the journal; the end of the
//! journal that counts as torn, reported; or a refusal, which names what is wrong, tells the steps of
//! `docs/operations.md`, and has changed no file. What was acked or cancelled never comes back, nothing comes before it
//! is due, and an engine that has done all that does nothing any more.
//!
//! `DUEWHEEL_DAMAGES` sets the number of flips, and of truncations (default 60 each); `DUEWHEEL_SEED` repeats the choice.

mod durability;
mod engine_support;
#[path = "damage/files.rs"]
mod files;
#[path = "damage/harm.rs"]
mod harm;
#[path = "damage/sample.rs"]
mod sample;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use tempfile::TempDir;

use duewheel::client::{Client, Fetch, Options};
use duewheel::clock::{ManualTime, StepPolicy};
use duewheel::engine::{EngineHandle, EngineSettings, Parts, start};
use duewheel::queue::Restore;
use duewheel::queue::command::Command;
use duewheel::queue::limits::Limits;
use duewheel::queue::message::MessageId;
use duewheel::queue::settings::TopicSettings;
use duewheel::queue::time::Timestamp;
use duewheel::store::{self, OpenError};

use durability::process::Process;
use files::{contents, copy};
use harm::{Damage, Way};
use sample::{DEAD, HOUR_MS, Sample, produce_one, sample, until_it_rests};
use support::{Ran, arg, duewheel};

use engine_support::serving::{counts, deliver_until, look_up};
use engine_support::{START_MS, fetch, produce, small_store, start_on, topic};

/// What came of one damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    NoEffect,
    Quarantined,
    FoldRepeated,
    TornEndReported,
    /// The topic comes no further than to damaged tombstones, as documented; the log and `check` tell.
    TopicHeldUp,
    Refused,
}

/// Starts an engine; also whether a fold was repeated, and whether the journal's end was torn.
fn open(directory: &Path, time: &ManualTime) -> Result<(EngineHandle, bool, bool), OpenError> {
    let clock = time.clock(StepPolicy::Report);
    let mut restore = Restore::new(Limits::default());
    let opened = store::open(directory, small_store(), &mut |restored| restore.record(restored))?;
    let (is_repeated, is_torn) = (opened.repeated_fold.is_some(), opened.torn.is_some());
    let parts = Parts::on_store(opened, restore, &clock);
    Ok((start(EngineSettings::default(), parts, clock).expect("it starts"), is_repeated, is_torn))
}

/// Damages a copy of the sample and looks what comes of it; the kind of file, and that.
async fn suffer(sample: &Sample, what: &str, damage: impl FnOnce(&Path)) -> Outcome {
    let directory = TempDir::new().expect("there is room");
    copy(sample.directory.path(), directory.path());
    damage(directory.path());
    let before = contents(directory.path());
    let time = ManualTime::new(Timestamp::from_millis(START_MS + 1_000));
    let (engine, is_repeated, is_torn) = match open(directory.path(), &time) {
        Ok(opened) => opened,
        Err(error) => {
            let text = error.to_string();
            let has_steps = text.contains("duewheel check") || text.contains("use a newer version");
            assert!(has_steps, "{what}: no steps of recovery: {text}");
            // The page store cuts its own file off where it is damaged.
            let is_ours = |(path, _): &&(PathBuf, Vec<u8>)| !path.starts_with(directory.path().join("pages"));
            let after = contents(directory.path());
            assert!(
                after.iter().filter(is_ours).eq(before.iter().filter(is_ours)),
                "{what}: a file was changed: {text}"
            );
            return Outcome::Refused;
        }
    };
    let Some(lost) = serve(&engine, sample, what, &time).await else {
        assert!(what.contains("of tombstones"), "{what}: something that is due never comes");
        assert!(serves_others(&engine).await, "{what}: other topics suffer");
        engine.shutdown().await;
        drop(engine);
        let report = store::check(directory.path(), &mut |_, _| {}).expect("it can be checked");
        assert!(!report.findings.is_empty(), "{what}: a check finds nothing");
        return Outcome::TopicHeldUp;
    };
    let quarantined = counts(&engine).await.quarantined;
    engine.shutdown().await;
    if is_torn && lost.contains(&sample.last) && quarantined + 1 == lost.len() as u64 {
        return Outcome::TornEndReported;
    }
    assert_eq!(quarantined, lost.len() as u64, "{what}: so many are in quarantine, and others missing: {lost:?}");
    match (quarantined, is_repeated, is_torn) {
        (1.., _, _) => Outcome::Quarantined,
        (0, true, _) => Outcome::FoldRepeated,
        (0, false, true) => Outcome::TornEndReported,
        (0, false, false) => Outcome::NoEffect,
    }
}

/// A topic without damage is served.
async fn serves_others(engine: &EngineHandle) -> bool {
    let create = Command::CreateTopic { name: topic("u"), settings: TopicSettings::default() };
    engine.apply(create).await.expect("it serves").expect("the topic is new");
    engine.apply(produce("u", 0)).await.expect("it serves").expect("it is taken");
    engine.fetch(fetch("u", 1, 0)).await.expect("it serves").expect("the topic exists").len() == 1
}

/// Serves everything in time; what is missing. `None` if something that is due never comes.
async fn serve(engine: &EngineHandle, sample: &Sample, what: &str, time: &ManualTime) -> Option<BTreeSet<MessageId>> {
    let mut lost = BTreeSet::new();
    for &id in &sample.dead {
        if !matches!(look_up(engine, id).await, Ok(Some(_))) {
            lost.insert(id);
        }
    }
    let mut came = BTreeSet::new();
    // In steps, so that what is early shows.
    for hours in [3, 60, 90] {
        let now = Timestamp::from_millis(START_MS + hours * HOUR_MS);
        time.advance_ms(now.as_millis() - engine.now().as_millis());
        engine.wake();
        let later = sample.waiting.values().filter(|(due, _)| *due > now).count() as u64;
        // Only damaged tombstones are known to hold a topic up.
        let patience = Duration::from_secs(if what.contains("of tombstones") { 1 } else { 30 });
        let (messages, is_all) = deliver_until(engine, time, later, patience).await;
        for message in messages {
            let now = engine.now();
            let Some((due, body)) = sample.waiting.get(&message.id) else { panic!("{what}: it was over: {message:?}") };
            assert!(*due <= now && message.progress.due_at == *due, "{what}: {message:?} at {now:?}");
            assert_eq!(message.content.body, *body, "{what}");
            assert!(came.insert(message.id), "{what}: it comes twice: {message:?}");
        }
        if !is_all {
            return None;
        }
    }
    lost.extend(sample.waiting.keys().filter(|id| !came.contains(id)));
    until_it_is_idle(engine, what).await;
    Some(lost)
}

/// An engine that has nothing to do commits and folds nothing.
async fn until_it_is_idle(engine: &EngineHandle, what: &str) {
    let mut last = None;
    for _ in 0..200 {
        engine.wake();
        let now = engine.stats(None).await.expect("it serves").expect("no topic was named").broker;
        let now = Some((now.commits, now.folds));
        if now == last {
            return;
        }
        last = now;
        thread::sleep(Duration::from_millis(20));
    }
    panic!("{what}: it never comes to rest");
}

fn number_from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_flipped_bit_and_no_truncation_is_silent() {
    let damages = number_from_env("DUEWHEEL_DAMAGES").unwrap_or(60);
    let seed = number_from_env("DUEWHEEL_SEED").unwrap_or_else(|| fastrand::u64(0..1 << 40));
    println!("DUEWHEEL_SEED={seed} DUEWHEEL_DAMAGES={damages}");
    let mut random = Rng::with_seed(seed);
    let samples = [sample(false).await, sample(true).await];
    let mut table: BTreeMap<(&str, &str, Outcome), u64> = BTreeMap::new();
    for n in 0..3 * damages {
        let sample = &samples[random.usize(..2)];
        let damage = Damage::choose(n, sample.directory.path(), &mut random);
        println!("{damage}");
        let outcome = suffer(sample, &damage.to_string(), |copy| damage.strike(copy)).await;
        *table.entry((damage.way.name(), damage.kind, outcome)).or_default() += 1;
    }
    for ((damage, kind, outcome), count) in &table {
        println!("{damage:5} {kind:12} {outcome:?} {count}");
    }
    let of =
        |outcome: Outcome| table.iter().filter(|((_, _, found), _)| *found == outcome).map(|(_, n)| n).sum::<u64>();
    assert!(of(Outcome::Refused) > 0, "nothing was refused: nothing was damaged");
}

/// The page store alone goes back in time, whole and in itself consistent, as by a restored snapshot of its volume.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_store_that_went_back_in_time_is_repeated_or_refused_and_never_believed() {
    let (directory, kept) = (TempDir::new().expect("there is room"), TempDir::new().expect("there is room"));
    let time = ManualTime::new(Timestamp::from_millis(START_MS));
    // Copies of the page store after each stop, with the fold that it holds.
    let mut past: Vec<(u64, PathBuf)> = Vec::new();
    let (mut produced, mut folds) = (0, 0);
    for stop in 0..8 {
        let engine = start_on(directory.path(), small_store(), Limits::default(), &time).expect("it opens");
        if stop == 0 {
            let create = Command::CreateTopic { name: topic("t"), settings: TopicSettings::default() };
            engine.apply(create).await.expect("it serves").expect("the topic is new");
        }
        let before = engine.stats(None).await.expect("it serves").expect("no topic was named").broker.folds;
        // One fold at the most between two stops.
        for _ in 0..45 {
            produce_one(&engine, produced, HOUR_MS + produced * 1_000).await;
            produced += 1;
        }
        until_it_rests(&engine).await;
        folds += engine.stats(None).await.expect("it serves").expect("no topic was named").broker.folds - before;
        engine.shutdown().await;
        drop(engine);
        let copied = kept.path().join(stop.to_string());
        fs::create_dir(&copied).expect("there is room");
        copy(&directory.path().join("pages"), &copied);
        past.push((folds, copied));
    }
    let (mut repeated, mut refused) = (0, 0);
    for (fold, pages) in &past {
        let tried = TempDir::new().expect("there is room");
        copy(directory.path(), tried.path());
        fs::remove_dir_all(tried.path().join("pages")).expect("it is there");
        fs::create_dir(tried.path().join("pages")).expect("there is room");
        copy(pages, &tried.path().join("pages"));
        match open(tried.path(), &time) {
            Ok((engine, is_repeated, _)) => {
                assert!(folds - fold <= 1, "pages of fold {fold} of {folds} are believed");
                assert_eq!(is_repeated, folds > *fold);
                assert_eq!(counts(&engine).await.waiting, produced, "fold {fold} of {folds}");
                repeated += u64::from(is_repeated);
                engine.shutdown().await;
            }
            Err(error @ OpenError::PagesRolledBack { .. }) => {
                assert!(folds - fold > 1, "fold {fold} of {folds}: {error}");
                refused += 1;
            }
            Err(other) => panic!("fold {fold} of {folds}: {other}"),
        }
    }
    println!("{folds} folds: {repeated} repeated, {refused} refused");
    assert!(repeated > 0 && refused > 0, "{repeated} repeated, {refused} refused");
}

/// A few through the program: it refuses with the steps, or serves all but what is in quarantine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_program_refuses_a_damaged_store_with_the_steps_of_recovery_or_serves_the_rest() {
    let seed = number_from_env("DUEWHEEL_SEED").unwrap_or_else(|| fastrand::u64(0..1 << 40));
    println!("DUEWHEEL_SEED={seed}");
    let mut random = Rng::with_seed(seed);
    let sample = sample(true).await;
    let page =
        Damage { file: "pages".into(), kind: "page", way: Way::Value { nth: random.usize(..), bit: random.usize(..) } };
    let others = (0..6).map(|n| Damage::choose(n, sample.directory.path(), &mut random)).collect::<Vec<_>>();
    for damage in [page].into_iter().chain(others).filter(|damage| damage.kind != "tombstones") {
        let directory = TempDir::new().expect("there is room");
        let data = directory.path().join("data");
        fs::create_dir(&data).expect("there is room");
        copy(sample.directory.path(), &data);
        damage.strike(&data);
        let mut broker = Process::start(duewheel(), &data);
        match broker.serves() {
            Err(log) => {
                let (status, _) = broker.ends();
                assert!(
                    matches!(status.code(), Some(1 | 78)) && log.contains("duewheel check"),
                    "{damage}: {status} {log}"
                );
                println!("{damage}: refused");
            }
            Ok((address, _)) => {
                let quarantined = serve_all(&format!("http://{address}"), &sample).await;
                broker.kill();
                let args = ["check", "--data-dir", arg(&data)];
                let checked = Ran::of(duewheel().args(args).output().expect("the program runs"), &args);
                assert_eq!(checked.code, 0, "{damage}: {checked:?}");
                println!("{damage}: {quarantined} in quarantine");
            }
        }
    }
}

/// Takes and acks everything, which is overdue by the real clock; how much is in quarantine instead.
async fn serve_all(endpoint: &str, sample: &Sample) -> u64 {
    let client = Client::connect(Options::new(endpoint)).await.expect("it serves");
    let mut came = 0;
    loop {
        let stats = client.stats(Some("t")).await.expect("it serves").topics.remove(0);
        if stats.scheduled + stats.ready + stats.leased == 0 {
            let waiting = sample.waiting.len() as u64;
            let lost = waiting - came + DEAD - stats.dead;
            // A torn end of the journal is that of the stop, which holds no message.
            assert_eq!(lost, stats.quarantined, "{stats:?}");
            return stats.quarantined;
        }
        let (topic, consumer, wait) = ("t".to_owned(), "tester".to_owned(), Duration::from_millis(10));
        let fetch = Fetch { topic, max_messages: 100, wait, lease: None, consumer };
        for delivery in client.fetch(fetch).await.expect("a call") {
            delivery.ack().await.expect("acked");
            came += 1;
        }
    }
}
