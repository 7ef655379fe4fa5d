//! A restart after `kill -9`: how long until the broker answers again, and what it holds then.

use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::machine::{holder, is_alive};
use super::report::{Report, rounded};
use super::run::{Bench, pending};
use crate::cli::broker_command;
use crate::cli::exit::{Exit, Failure};
use crate::client::Client;
use crate::clock::Stopwatch;

/// How long the process may take to end.
const END_LIMIT: Duration = Duration::from_secs(30);
/// How long its count may stay behind.
const COUNT_LIMIT: Duration = Duration::from_secs(30);

/// Kills the broker, starts it by `command`, waits until it answers and counts `topic`, which held `before`.
pub(super) async fn run(
    bench: &mut Bench,
    topic: &str,
    before: u64,
    data_dir: &Path,
    command: &str,
    report: &mut Report,
) -> Result<(), Failure> {
    kill(bench).await?;
    let client = start_and_wait(bench, topic, data_dir, command, report).await?;
    let counting = Stopwatch::start();
    let mut after = 0;
    while counting.elapsed() < COUNT_LIMIT && !bench.stop().is_requested() {
        after = pending(&client, topic).await.map_err(|error| Failure::call("read the statistics", &error))?;
        if after >= before {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    report.put("after_kill9", after);
    report.put("counted_s", rounded(counting.elapsed().as_secs_f64()));
    report.put("mem_after_restart_mb", bench.place.memory_mb());
    Ok(())
}

/// Starts the broker by `command` and waits until it answers a question about `topic`.
pub(super) async fn start_and_wait(
    bench: &mut Bench,
    topic: &str,
    data_dir: &Path,
    command: &str,
    report: &mut Report,
) -> Result<Client, Failure> {
    bench.phase("waiting until the broker serves", None);
    let watch = Stopwatch::start();
    let mut started = broker_command::start(command, bench.broker_log(topic)?)?;
    let client = broker_command::serves(bench.endpoint(), topic, &mut started, (&watch, bench.stop())).await?;
    report.put("restart_s", rounded(watch.elapsed().as_secs_f64()));
    bench.place.process = holder(data_dir);
    Ok(client)
}

/// Kills the broker and waits until its process has ended.
pub(super) async fn kill(bench: &Bench) -> Result<(), Failure> {
    bench.phase("killing the broker", None);
    let process = bench.place.process.expect("checked before the load");
    let failed =
        |text: String| Failure::new(Exit::Failed, format!("cannot kill the broker, process {process}: {text}"));
    let id = i32::try_from(process).ok().and_then(Pid::from_raw).ok_or_else(|| failed("not a process".to_owned()))?;
    kill_process(id, Signal::KILL).map_err(|error| failed(error.to_string()))?;
    bench.wait_until(END_LIMIT, || !is_alive(process)).await;
    if is_alive(process) { Err(failed("it does not end".to_owned())) } else { Ok(()) }
}
