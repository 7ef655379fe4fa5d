//! The load, and the rounds in which the broker is killed and started under it.

use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::VerifyArgs;
use super::world::World;
use crate::cli::broker_command::{self, BrokerLog};
use crate::cli::exit::Failure;
use crate::cli::random::Random;
use crate::cli::signals::Stop;
use crate::clock::Stopwatch;

/// Times that the start command is tried: the killed process may hold its directory for a moment.
const START_TRIES: u32 = 5;
/// Between two tries.
const START_AGAIN: Duration = Duration::from_millis(200);

/// What the load works with.
pub(super) struct Rounds<'a> {
    pub(super) world: &'a World,
    pub(super) endpoint: &'a str,
    pub(super) args: &'a VerifyArgs,
    pub(super) stop: &'a Stop,
    /// How often the broker was killed and came back.
    pub(super) kills: &'a AtomicU64,
    /// Where the brokers that are started write to.
    pub(super) broker_log: Option<&'a BrokerLog>,
}

impl Rounds<'_> {
    /// Lets the clients work until the time is over, the ledger full or a signal came.
    pub(super) async fn run(&self, seed: u64) -> Result<(), Failure> {
        let (Some(kill), Some(start), Some(log)) = (&self.args.kill_cmd, &self.args.start_cmd, self.broker_log) else {
            self.pause(Duration::from_millis(self.args.duration)).await;
            return Ok(());
        };
        let mut random = Random::new(seed);
        let round_ms = (self.args.duration / self.args.rounds).max(2);
        let mut started = Vec::new();
        for _ in 0..self.args.rounds {
            self.pause(Duration::from_millis(round_ms / 2 + random.below(round_ms))).await;
            if self.stop.is_requested() || self.world.full.is_cancelled() {
                break;
            }
            broker_command::kill(kill).await?;
            self.start(start, log, &mut started).await?;
            self.kills.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn pause(&self, span: Duration) {
        tokio::select! {
            () = tokio::time::sleep(span) => {}
            () = self.stop.requested() => {}
            () = self.world.full.cancelled() => {}
        }
    }

    async fn start(&self, command: &str, log: &BrokerLog, started: &mut Vec<Child>) -> Result<(), Failure> {
        let mut tries = START_TRIES;
        loop {
            // Those that have ended are waited for, or as many dead processes stay as there are rounds.
            started.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
            let mut child = broker_command::start(command, log)?;
            let watch = Stopwatch::start();
            let (topic, patience) = (&self.world.topic, (&watch, self.stop));
            let serves = broker_command::serves(self.endpoint, topic, &mut child, patience).await;
            started.push(child);
            match serves {
                // It serves, without the topic: a matter for the accounts.
                Err(failure) if failure.unknown_topic().is_some() => return Ok(()),
                Err(failure) if tries == 1 || self.stop.is_requested() => return Err(failure),
                Err(_) => tries -= 1,
                Ok(_) => return Ok(()),
            }
            tokio::time::sleep(START_AGAIN).await;
        }
    }
}
