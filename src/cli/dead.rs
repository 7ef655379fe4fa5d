//! `duewheel dead`: list and redrive dead letters.

use std::collections::BTreeMap;
use std::io::{BufRead as _, IsTerminal as _};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use tokio::time::MissedTickBehavior;

use super::args::{Rate, rate};
use super::exit::{Exit, Failure, say};
use super::message_view::{MessageView, redrive_name};
use super::output::{Row, print_rows};
use super::session::Session;
use super::signals::Stop;
use crate::client::{Client, Error};
use crate::pb;
use crate::queue::limits::{MAX_BATCH, MAX_PAGE_SIZE};

/// Redrives are sent this often, so that a rate is kept without bursts that matter.
const PACE_MS: u64 = 100;

/// The commands about dead letters.
#[derive(Debug, Subcommand)]
pub(super) enum DeadCommand {
    /// List dead letters, oldest first
    #[command(after_long_help = "\
Examples:
  duewheel dead list dropped-orders
  duewheel dead list dropped-orders --limit 100000 -o jsonl > to-reconcile.jsonl")]
    List(ListArgs),
    /// Make dead letters ready again, with all their attempts
    #[command(after_long_help = "\
With --all the dead letters are those of the moment the command starts: one that dies again while it runs is not \
redriven twice. Prints how many were REDRIVEN, and how many were skipped because another live message holds the \
key (KEY_IN_USE), because they are no longer dead (NOT_DEAD) or gone (NOT_FOUND); the exit code is 1 if any was \
skipped. Ctrl-C stops between two batches.

Examples:
  duewheel dead redrive dropped-orders --id ID
  duewheel dead redrive dropped-orders --all --dry-run
  duewheel dead redrive dropped-orders --all --rate 50/s --yes")]
    Redrive(RedriveArgs),
}

/// Arguments of `dead list`.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Topic of the dead letters
    topic: String,
    /// List at most this many
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
}

/// Arguments of `dead redrive`.
#[derive(Debug, Args)]
pub(super) struct RedriveArgs {
    /// Topic of the dead letters
    topic: String,
    #[command(flatten)]
    which: Which,
    /// With --all: at most this many, oldest first
    #[arg(long, value_name = "N", conflicts_with = "ids")]
    limit: Option<usize>,
    /// How fast
    #[arg(long, value_name = "RATE", value_parser = rate, default_value = "100/s")]
    rate: Rate,
    /// Only tell what would be redriven
    #[arg(long)]
    dry_run: bool,
    /// With --all: do not ask
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// The message with this id; may be repeated
    #[arg(long = "id", value_name = "ID")]
    ids: Vec<String>,
    /// Every dead letter of the topic
    #[arg(long)]
    all: bool,
}

/// Runs a command about dead letters.
pub(super) async fn run(session: &Session, command: DeadCommand) -> Result<(), Failure> {
    let client = session.connect().await?;
    match command {
        DeadCommand::List(args) => {
            let letters = letters(&client, &args.topic, args.limit).await?;
            let views: Vec<MessageView> = letters.into_iter().map(MessageView::new).collect();
            Ok(print_rows(session.format, &views)?)
        }
        DeadCommand::Redrive(args) => redrive(session, &client, args).await,
    }
}

/// The oldest dead letters, at most `limit`.
async fn letters(client: &Client, topic: &str, limit: usize) -> Result<Vec<pb::MessageInfo>, Failure> {
    let failed = |error: Error| Failure::call(format!("list the dead letters of '{topic}'"), &error);
    let mut letters = Vec::new();
    let mut token = String::new();
    while letters.len() < limit {
        let left = u32::try_from(limit - letters.len()).unwrap_or(MAX_PAGE_SIZE).min(MAX_PAGE_SIZE);
        let (page, next) = client.dead_letters(topic, left, &token).await.map_err(failed)?;
        letters.extend(page);
        match next {
            Some(next) => token = next,
            None => break,
        }
    }
    Ok(letters)
}

async fn redrive(session: &Session, client: &Client, args: RedriveArgs) -> Result<(), Failure> {
    let ids = if args.which.all {
        let letters = letters(client, &args.topic, args.limit.unwrap_or(usize::MAX)).await?;
        letters.into_iter().map(|letter| letter.id).collect()
    } else {
        args.which.ids
    };
    if args.dry_run {
        say(&format!("{} dead letters of '{}' would be redriven", ids.len(), args.topic));
        let views: Vec<IdView> = ids.into_iter().map(|id| IdView { id }).collect();
        return Ok(print_rows(session.format, &views)?);
    }
    if args.which.all && !ids.is_empty() && !args.yes {
        confirm(ids.len(), &args.topic)?;
    }
    let total = ids.len();
    let (counts, result) = redrive_paced(client, &args.topic, ids, args.rate).await?;
    let done: u64 = counts.values().sum();
    let views: Vec<CountView> = counts.into_iter().map(|(status, count)| CountView { status, count }).collect();
    if done > 0 || result.is_ok() {
        print_rows(session.format, &views)?;
    }
    if let Err(error) = result {
        if done > 0 {
            say(&format!("{} of {total} were not answered", total as u64 - done));
        }
        return Err(Failure::call(format!("redrive dead letters of '{}'", args.topic), &error));
    }
    if done < total as u64 {
        return Err(Failure::new(
            Exit::Failed,
            format!("interrupted; {} of {total} were not tried", total as u64 - done),
        ));
    }
    let skipped = views.iter().any(|view| view.status != "REDRIVEN");
    if skipped { Err(Failure::silent(Exit::Failed)) } else { Ok(()) }
}

/// Asks on the terminal.
fn confirm(count: usize, topic: &str) -> Result<(), Failure> {
    if !std::io::stdin().is_terminal() {
        let failure =
            Failure::new(Exit::Usage, format!("redriving {count} dead letters of '{topic}' has to be confirmed"));
        return Err(failure.next("add --yes, or look first with --dry-run"));
    }
    eprint!("redrive {count} dead letters of '{topic}'? [y/N] ");
    let mut answer = String::new();
    let problem = |error| Failure::new(Exit::Failed, format!("cannot read the answer: {error}"));
    std::io::stdin().lock().read_line(&mut answer).map_err(problem)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new(Exit::Failed, "not confirmed; nothing was changed")),
    }
}

type Counts = BTreeMap<&'static str, u64>;

/// Redrives batch by batch at the rate, until the end, an error or a signal.
async fn redrive_paced(
    client: &Client,
    topic: &str,
    ids: Vec<String>,
    rate: Rate,
) -> Result<(Counts, Result<(), Error>), Failure> {
    let stop = Stop::listen().map_err(|error| Failure::new(Exit::Failed, format!("cannot watch signals: {error}")))?;
    let (batch, pause) = pacing(rate);
    let mut ticks = tokio::time::interval(pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut counts = Counts::new();
    let mut result = Ok(());
    for batch in ids.chunks(batch) {
        tokio::select! {
            biased;
            () = stop.requested() => break,
            _ = ticks.tick() => {}
        }
        match client.redrive(topic, batch.to_vec()).await {
            Ok(statuses) => {
                for status in statuses {
                    *counts.entry(redrive_name(status)).or_default() += 1;
                }
            }
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    Ok((counts, result))
}

/// How many at once and how long between, so that the rate is never exceeded.
fn pacing(rate: Rate) -> (usize, Duration) {
    let in_pace = u64::from(rate.count) * PACE_MS / rate.period_ms;
    let batch = in_pace.clamp(1, MAX_BATCH as u64);
    let nanos = u128::from(batch) * u128::from(rate.period_ms) * 1_000_000;
    let pause = nanos.div_ceil(u128::from(rate.count));
    let pause = Duration::from_nanos(u64::try_from(pause).unwrap_or(u64::MAX).max(1));
    (usize::try_from(batch).expect("at most a batch"), pause)
}

#[derive(Serialize)]
struct IdView {
    id: String,
}

impl Row for IdView {
    const COLUMNS: &'static [&'static str] = &["id"];

    fn cells(&self) -> Vec<String> {
        vec![self.id.clone()]
    }
}

#[derive(Serialize)]
struct CountView {
    status: &'static str,
    count: u64,
}

impl Row for CountView {
    const COLUMNS: &'static [&'static str] = &["status", "count"];

    fn cells(&self) -> Vec<String> {
        vec![self.status.to_owned(), self.count.to_string()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pacing_keeps_the_rate_with_batches_of_a_tenth_of_a_second() {
        for (count, period_ms, batch, pause_ms) in
            [(100, 1_000, 10, 100), (1, 3_000, 1, 3_000), (20, 1_000, 2, 100), (1_000_000, 1_000, 1_000, 1)]
        {
            assert_eq!(pacing(Rate { count, period_ms }), (batch, Duration::from_millis(pause_ms)));
        }
    }
}
