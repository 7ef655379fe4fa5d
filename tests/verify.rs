//! `duewheel verify` against a broker that breaks a promise: it finds exactly that.
//!
//! A proxy stands between the command and a real broker and breaks one promise on purpose. Each test names the kinds
//! of violation that must be reported, and those that may be: what else the one broken promise makes untrue. Anything
//! else is a false alarm, and so is any report through the honest proxy.
//!
//! `DUEWHEEL_SEED` repeats the load and the moments of the sabotage, not the timing of the machine.

#[path = "verify/proxy.rs"]
mod proxy;
#[path = "verify/sabotage.rs"]
mod sabotage;
mod support;

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use proxy::Proxy;
use sabotage::Sabotage;
use support::{Broker, KillHolder, Ran, arg, duewheel, program, send_signal, until};

/// What one sabotage makes `verify` report.
struct Expected {
    sabotage: Sabotage,
    /// Must be reported, at least once.
    must: &'static str,
    /// May be reported as well.
    may: &'static [&'static str],
}

const fn expected(sabotage: Sabotage, must: &'static str, may: &'static [&'static str]) -> Expected {
    Expected { sabotage, must, may }
}

/// Every sabotage of the proxy.
const EXPECTED: &[Expected] = &[
    // The broker counts fewer than were confirmed.
    expected(Sabotage::DropProduce, "lost", &["not_conserved"]),
    expected(Sabotage::DropResult, "unexpected", &[]),
    expected(Sabotage::ShortenDelay, "early", &[]),
    expected(Sabotage::ShortenNack, "early", &[]),
    // It may end in another way than by an ack.
    expected(Sabotage::DropAck, "resurrected", &["not_conserved"]),
    expected(Sabotage::DropNackAsDead, "resurrected", &[]),
    expected(Sabotage::DropExtend, "lease_cut", &[]),
    expected(Sabotage::DropCancel, "resurrected", &["not_conserved"]),
    expected(Sabotage::DropReschedule, "stuck", &[]),
    expected(Sabotage::RepeatDelivery, "not_flagged", &["too_many_duplicates"]),
    expected(Sabotage::RepeatFlagged, "too_many_duplicates", &[]),
    // A message that comes again is taken for alive, so an ack of it that nobody answered no longer explains its end.
    expected(Sabotage::RepeatSettled, "settled_again", &["too_many_duplicates", "resurrected", "lost"]),
    expected(Sabotage::RaiseAttempt, "attempt_skipped", &[]),
    expected(Sabotage::KillAtNack, "dead_too_soon", &[]),
    expected(Sabotage::RaiseCap, "beyond_cap", &[]),
    expected(Sabotage::ChangeBody, "wrong_content", &[]),
    expected(Sabotage::CountAck, "not_conserved", &[]),
    expected(Sabotage::KeepKeys, "key_leaked", &[]),
];

fn seed() -> u64 {
    let given = std::env::var("DUEWHEEL_SEED").ok().map(|seed| seed.parse().expect("DUEWHEEL_SEED is a number"));
    let seed = given.unwrap_or_else(|| fastrand::u64(0..1 << 40));
    println!("DUEWHEEL_SEED={seed}");
    seed
}

/// Runs `verify` and gives its exit code, and the verdict.
async fn verify(mut command: Command, args: &[&str], seed: u64) -> (i32, Value) {
    command.args(["verify", "--json", "--seed", &seed.to_string()]).args(args);
    let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
    let ran = tokio::task::spawn_blocking(move || {
        let output = command.output().expect("the program runs");
        Ran::of(output, &args.iter().map(String::as_str).collect::<Vec<_>>())
    });
    let ran = ran.await.expect("it does not panic");
    let verdict = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("no verdict ({error}): {ran:?}"));
    println!("{verdict}");
    (ran.code, verdict)
}

/// Runs `verify` through a proxy.
async fn verify_through(sabotage: Sabotage) -> (i32, Value) {
    let seed = seed();
    let broker = tokio::task::spawn_blocking(Broker::start).await.expect("the broker starts");
    let proxy = Proxy::start(broker.grpc, sabotage, seed).await;
    let mut command = duewheel();
    command.env("DUEWHEEL_ENDPOINT", format!("http://{}", proxy.address));
    // A message needs more than two seconds to go through all its attempts.
    let duration = if sabotage == Sabotage::RaiseCap { "4s" } else { "2s" };
    verify(command, &["--duration", duration, "--drain-timeout", "5s"], seed).await
}

fn kinds(verdict: &Value) -> BTreeSet<String> {
    verdict["violations"].as_object().expect("violations by kind").keys().cloned().collect()
}

fn assert_found((code, verdict): &(i32, Value), must: &[&str], may: &[&str]) {
    let found = kinds(verdict);
    for &kind in must {
        assert!(found.contains(kind), "{kind} was not found: {verdict:#}");
        let examples = verdict["violations"][kind]["examples"].as_array().expect("examples");
        assert!(!examples.is_empty(), "{verdict:#}");
    }
    let others: Vec<_> = found.iter().filter(|kind| !must.iter().chain(may).any(|known| known == kind)).collect();
    assert!(others.is_empty(), "false alarms {others:?}: {verdict:#}");
    assert_eq!((*code, &verdict["verdict"]), (1, &"broken".into()), "{verdict:#}");
}

async fn finds(sabotage: Sabotage) {
    let expected = EXPECTED.iter().find(|expected| expected.sabotage == sabotage).expect("it is listed");
    assert_found(&verify_through(sabotage).await, &[expected.must], expected.may);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_the_honest_proxy_every_promise_is_kept() {
    let (code, verdict) = verify_through(Sabotage::None).await;
    assert_eq!(kinds(&verdict), BTreeSet::new(), "{verdict:#}");
    assert_eq!((code, &verdict["verdict"]), (0, &"kept".into()), "{verdict:#}");
    // The load goes everywhere: what never happened has proved nothing.
    for operation in ["produce", "ack", "nack", "extend", "cancel", "reschedule"] {
        assert!(verdict["operations"][operation]["ok"].as_u64().expect("a count") > 0, "{operation}: {verdict:#}");
    }
    assert!(verdict["extended_leases_kept"].as_u64().expect("a count") > 0, "{verdict:#}");
    // By chance there may be none.
    assert_eq!(verdict["operations"]["late_extend"]["ok"].as_u64().unwrap_or(0), 0, "{verdict:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_produce_that_is_stored_while_the_broker_runs_empty_is_no_violation() {
    let (code, verdict) = verify_through(Sabotage::Slow).await;
    assert_eq!((code, &verdict["verdict"]), (0, &"kept".into()), "{verdict:#}");
}

macro_rules! finds {
    ($($name:ident: $sabotage:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                finds(Sabotage::$sabotage).await;
            }
        )*
    };
}

finds! {
    a_produce_that_was_answered_and_not_stored_is_found: DropProduce,
    an_answer_that_lacks_a_result_is_found: DropResult,
    messages_that_are_due_before_their_time_are_found: ShortenDelay,
    nacked_messages_that_come_before_their_tier_are_found: ShortenNack,
    an_ack_that_was_answered_and_not_done_is_found: DropAck,
    a_message_that_was_said_to_be_dead_and_comes_again_is_found: DropNackAsDead,
    an_extend_that_was_answered_and_not_done_is_found: DropExtend,
    a_cancel_that_was_answered_and_not_done_is_found: DropCancel,
    messages_that_never_become_due_are_found: DropReschedule,
    a_delivery_that_comes_twice_without_the_flag_is_found: RepeatDelivery,
    more_repeated_deliveries_than_were_in_flight_are_found: RepeatFlagged,
    a_delivery_that_comes_again_after_its_settlement_is_found: RepeatSettled,
    attempts_that_are_left_out_are_found: RaiseAttempt,
    messages_that_die_with_attempts_left_are_found: KillAtNack,
    attempts_beyond_the_cap_are_found: RaiseCap,
    changed_bodies_are_found: ChangeBody,
    counts_that_do_not_add_up_are_found: CountAck,
    keys_that_stay_in_use_are_found: KeepKeys,
}

/// A broker that is killed by a shell command that does more to its data than that.
async fn verify_over_kills(kill: &str, rounds: &str) -> (i32, Value) {
    let seed = seed();
    let broker = tokio::task::spawn_blocking(Broker::start).await.expect("the broker starts");
    let _successor = KillHolder(broker.data_dir.path().join("data"));
    let data = arg(broker.data_dir.path());
    let kill = format!("cd '{data}' && kill -9 $(cat data/LOCK) && {kill}");
    let start = format!(
        "'{}' serve --listen {} --http-listen 127.0.0.1:0 --data-dir '{data}/data'",
        program().display(),
        broker.grpc
    );
    let args = ["--duration", "3s", "--drain-timeout", "5s", "--rounds", rounds, "--kill-cmd", &kill];
    let args = [args.as_slice(), &["--start-cmd", &start]].concat();
    let mut command = broker.command(&[]);
    // The log of the brokers that are started goes there.
    let logs = tempfile::tempdir().expect("a temporary directory");
    command.env("TMPDIR", logs.path());
    let verdict = verify(command, &args, seed).await;
    let log = std::fs::read_dir(logs.path()).expect("it can be listed").next().expect("a log").expect("a file");
    let log = std::fs::read_to_string(log.path()).expect("the log is text");
    let starts = log.lines().filter(|line| line.contains("listening")).count();
    // A start that comes too early is tried again.
    assert!(starts >= rounds.parse().expect("a number"), "{log}");
    verdict
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_comes_back_empty_is_found() {
    let verdict = verify_over_kills("rm -rf data", "1").await;
    assert_found(&verdict, &["lost", "not_conserved"], &[]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_comes_back_as_it_was_before_is_found() {
    let kill = "if [ -d before ]; then rm -rf data && mv before data; else cp -r data before; fi";
    let verdict = verify_over_kills(kill, "2").await;
    // What was over and waits for an hour again does not end and holds its key; deliveries have the numbers of others
    // before; and a nack that was forgotten has no wait.
    let may = ["not_conserved", "settled_again", "too_many_duplicates", "not_flagged", "stuck", "key_leaked", "early"];
    assert_found(&verdict, &["lost", "resurrected"], &may);
}

/// Starts `verify` against a broker and waits until its load has begun.
fn begin(broker: &Broker, args: &[&str]) -> Child {
    let mut command = broker.command(&["verify", "--json"]);
    let running = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program runs");
    until("something is produced", || {
        let stats = broker.json(&["stats"]);
        stats["topics"].as_array().is_some_and(|topics| topics.iter().any(|topic| topic["acked"].as_u64() > Some(0)))
    });
    running
}

fn end(running: Child) -> (i32, Value) {
    let ran = Ran::of(running.wait_with_output().expect("it ends"), &["verify"]);
    (ran.code, serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("no verdict ({error}): {ran:?}")))
}

#[test]
fn an_interrupted_run_settles_its_accounts_and_says_that_it_was_interrupted() {
    let broker = Broker::start();
    let running = begin(&broker, &["--duration", "1h"]);
    send_signal(&running, Signal::INT);
    let (code, verdict) = end(running);
    assert_eq!((code, &verdict["verdict"]), (1, &"interrupted".into()), "{verdict:#}");
    assert_eq!(broker.json(&["topic", "list"]), serde_json::json!([]), "the topic is deleted");
}

#[test]
fn a_restart_that_verify_has_not_asked_for_is_no_violation() {
    let broker = Broker::start();
    let running = begin(&broker, &["--duration", "2s"]);
    let _restarted = broker.kill_and_restart();
    let (code, verdict) = end(running);
    assert_eq!((code, &verdict["verdict"]), (0, &"kept".into()), "{verdict:#}");
    assert_eq!(verdict["kills"], 0);
}

#[test]
fn a_full_ledger_ends_the_load_and_the_topic_can_be_kept() {
    let broker = Broker::start();
    let args = ["verify", "--json", "--duration", "1h", "--max-messages", "100", "--keep-topic"];
    let verdict: Value = serde_json::from_str(&broker.ok(&args)).expect("a verdict");
    assert_eq!((&verdict["full"], &verdict["verdict"]), (&true.into(), &"kept".into()), "{verdict:#}");
    assert_eq!(verdict["operations"]["produce"]["ok"], 100);
    let topic = verdict["topic"].as_str().expect("a name");
    let stats = &broker.json(&["stats", topic])["topics"][0];
    assert_eq!((&stats["scheduled"], &stats["ready"]), (&0.into(), &0.into()), "{stats:#}");
}

#[test]
fn a_start_command_that_fails_is_told_with_what_was_seen_until_then() {
    let broker = Broker::start();
    let data = broker.data_dir.path().join("data");
    let kill = format!("kill -9 $(cat '{}')", data.join("LOCK").display());
    let args = ["verify", "--duration", "1s", "--rounds", "1", "--kill-cmd", &kill, "--start-cmd", "exit 3"];
    let mut command = broker.command(&args);
    let output = command.env("TMPDIR", broker.data_dir.path()).output().expect("the program runs");
    let ran = Ran::of(output, &args);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("is left; delete it with: duewheel topic delete verify-"), "{ran:?}");
    assert!(!ran.stderr.contains("goes on running"), "none was started: {ran:?}");
    assert!(ran.stdout.contains("the run was not finished"), "{ran:?}");
    assert!(ran.stderr.contains("starts the broker ended: exit status: 3"), "{ran:?}");
}

#[test]
fn a_run_that_cannot_be_finished_leaves_no_topic() {
    let broker = Broker::start();
    let kill = "cat nowhere/LOCK";
    let args = ["verify", "--duration", "1s", "--rounds", "1", "--kill-cmd", kill, "--start-cmd", "true"];
    let mut command = broker.command(&args);
    let output = command.env("TMPDIR", broker.data_dir.path()).output().expect("the program runs");
    let ran = Ran::of(output, &args);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("the command that kills the broker ended"), "{ran:?}");
    assert_eq!(broker.json(&["topic", "list"]), serde_json::json!([]), "{ran:?}");
}

#[test]
fn every_kind_of_violation_is_provoked_and_explained_in_the_operations_page() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("a text file");
    let source = read("src/cli/verify/tally.rs");
    let kinds = source.split_once("enum Violation {").and_then(|(_, rest)| rest.split_once('}')).expect("the kinds").0;
    let kinds: BTreeSet<String> = kinds.lines().filter_map(|line| line.trim().strip_suffix(',')).map(snake).collect();
    let provoked: BTreeSet<String> = EXPECTED.iter().map(|expected| expected.must.to_owned()).collect();
    assert_eq!(kinds, provoked);
    let page = read("docs/operations.md");
    let missing: Vec<_> = kinds.iter().filter(|kind| !page.contains(&format!("| `{kind}` |"))).collect();
    assert!(missing.is_empty(), "docs/operations.md does not explain {missing:?}");
}

/// `SettledAgain` as `settled_again`.
fn snake(name: &str) -> String {
    let lower = |letter: char| {
        if letter.is_uppercase() { format!("_{}", letter.to_lowercase()) } else { letter.to_string() }
    };
    name.chars().map(lower).collect::<String>().trim_start_matches('_').to_owned()
}
