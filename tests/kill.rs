//! The real program killed again and again under load: `duewheel verify`, as a user runs it.
//!
//! Its clients write down what they ask for before they ask, and what they are answered. The broker is killed with
//! SIGKILL at random moments and started again on the same data. In the end their ledger must agree with what the broker
//! did. That `verify` sees a broken promise is proved by `tests/verify.rs`.
//!
//! `DUEWHEEL_KILLS` sets the number of kills (default 30), `DUEWHEEL_SEED` the seed of the load.

mod support;

use std::process::Stdio;

use serde_json::{Value, json};

use support::{Broker, KillHolder, Ran, arg, program};

/// Mean time between two kills. The moment of each is random, from half of it to one and a half.
const ROUND_MS: u64 = 250;
/// Produces that are confirmed between two kills, on average, even if a sync takes 100 ms; less is hardly any load.
const PRODUCES_PER_KILL: u64 = 10;

fn number_from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_settled_comes_back_over_many_kills() {
    let kills = number_from_env("DUEWHEEL_KILLS").unwrap_or(30);
    let seed = number_from_env("DUEWHEEL_SEED").unwrap_or_else(|| fastrand::u64(0..1 << 40));
    println!("DUEWHEEL_SEED={seed} DUEWHEEL_KILLS={kills}");

    // Small generations, so that folds fall between and into the kills.
    let broker = Broker::start_with(&["--journal-generation", "256KiB"]);
    let data = broker.data_dir.path().join("data");
    let _successor = KillHolder(data.clone());
    let data = arg(&data);
    let kill = format!("kill -9 $(cat '{data}/LOCK')");
    let start = format!(
        "'{}' serve --listen {} --http-listen 127.0.0.1:0 --data-dir '{data}' --journal-generation 256KiB",
        program().display(),
        broker.grpc
    );
    let (rounds, duration) = (kills.to_string(), format!("{}ms", kills * ROUND_MS));
    let (seed, generous) = (seed.to_string(), "2m");
    let args = [
        ["verify", "--json", "--seed", &seed, "--duration", &duration, "--rounds", &rounds].as_slice(),
        &["--kill-cmd", &kill, "--start-cmd", &start, "--drain-timeout", generous],
    ]
    .concat();
    let output = broker.command(&args).stderr(Stdio::inherit()).output().expect("the program runs");

    let ran = Ran::of(output, &args);
    let verdict: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    println!("{verdict}");
    let count = |value: &Value| value.as_u64().expect("a count");
    assert_eq!(verdict["violations"], json!({}), "{verdict:#}");
    assert_eq!((ran.code, &verdict["verdict"]), (0, &json!("kept")), "{verdict:#}");
    assert_eq!(count(&verdict["kills"]), kills);
    assert!(count(&verdict["duplicates"]) <= count(&verdict["duplicates_bound"]), "{verdict:#}");
    let confirmed = count(&verdict["operations"]["produce"]["ok"]);
    assert!(confirmed > PRODUCES_PER_KILL * kills, "hardly any load: {confirmed} produces");
}
