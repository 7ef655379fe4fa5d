//! `duewheel dead`: list, show, redrive, purge and export dead letters.

use clap::{Args, Subcommand};

use super::args::at_least_one;
use super::dead_export::{self, ExportArgs};
use super::dead_filter::FilterArgs;
use super::dead_job::{self, Deed, JobArgs};
use super::exit::{Exit, Failure, say_more};
use super::message::print_message;
use super::message_view::MessageView;
use super::output::print_rows;
use super::session::Session;
use crate::client::{Client, Error, MessageRef};
use crate::pb;
use crate::queue::limits::MAX_PAGE_SIZE;

/// The commands about dead letters.
#[derive(Debug, Subcommand)]
pub(super) enum DeadCommand {
    /// List dead letters, oldest first
    #[command(after_long_help = "\
Examples:
  duewheel dead list dropped-orders
  duewheel dead list dropped-orders --reason max-attempts --error timeout
  duewheel dead list dropped-orders --limit 100000 -o jsonl > dead.jsonl")]
    List(ListArgs),
    /// Show a dead letter with body, headers and history
    #[command(after_long_help = "\
Examples:
  duewheel dead show dropped-orders ID
  duewheel dead show dropped-orders ID -o json")]
    Show(ShowArgs),
    /// Make dead letters ready again, with all their attempts
    #[command(after_long_help = "\
Selects by --id, by a filter or with --all; with a filter the dead letters are those of the moment the command starts: \
what dies later, or again, is not touched. Prints how many were REDRIVEN, and how many were skipped because another live \
message holds the key (KEY_IN_USE), because they are no longer dead (NOT_DEAD) or gone (NOT_FOUND); the exit code is 1 \
if any was skipped. Ctrl-C stops after the step under way; what is redriven stays redriven.

Examples:
  duewheel dead redrive dropped-orders --id ID
  duewheel dead redrive dropped-orders --error timeout --dry-run
  duewheel dead redrive dropped-orders --died-from 2026-12-01T00:00:00Z
  duewheel dead redrive dropped-orders --all --rate 50/s --yes")]
    Redrive(JobArgs),
    /// Delete dead letters for good
    #[command(after_long_help = "\
Selects as dead redrive does, and asks first, or takes --yes. The history remembers them as purged for a time; their \
bodies are gone: export them before. Prints how many were PURGED, and how many were skipped because they are no longer \
dead (NOT_DEAD) or gone (NOT_FOUND); the exit code is 1 if any was skipped. Ctrl-C stops after the step under way.

Examples:
  duewheel dead purge dropped-orders --id ID
  duewheel dead purge dropped-orders --reason consumer --dry-run
  duewheel dead purge dropped-orders --all --yes")]
    Purge(JobArgs),
    /// Export whole dead letters, with bodies and history
    #[command(after_long_help = "\
Writes the dead letters of the moment the command starts, oldest first, with body, headers and history. With --to the \
file appears under its name only when it is whole; after Ctrl-C or an error nothing is left of it. A body that is no text \
is in body_base64.

Examples:
  duewheel dead export dropped-orders -o csv --to dead.csv
  duewheel dead export dropped-orders --reason consumer > dead.jsonl
  duewheel dead export orders --died-from 2026-12-01T00:00:00Z --to dead.jsonl")]
    Export(ExportArgs),
}

/// Arguments of `dead list`.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Topic of the dead letters
    topic: String,
    #[command(flatten)]
    filter: FilterArgs,
    /// List at most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = at_least_one::<usize>)]
    limit: usize,
}

/// Arguments of `dead show`.
#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// Topic of the dead letter
    topic: String,
    /// Its id, as dead list prints it
    id: String,
}

/// Runs a command about dead letters.
pub(super) async fn run(session: &Session, command: DeadCommand) -> Result<(), Failure> {
    match command {
        DeadCommand::List(args) => {
            let (letters, is_all) = letters(&session.connect().await?, &args).await?;
            let views: Vec<MessageView> = letters.into_iter().map(MessageView::new).collect();
            print_rows(session.format, &views)?;
            if !is_all {
                say_more(args.limit);
            }
            Ok(())
        }
        DeadCommand::Show(args) => show(session, &session.connect().await?, &args).await,
        DeadCommand::Redrive(args) => job(session, Deed::Redrive, &args).await,
        DeadCommand::Purge(args) => job(session, Deed::Purge, &args).await,
        DeadCommand::Export(args) => dead_export::run(&session.connect().await?, &args).await,
    }
}

async fn job(session: &Session, deed: Deed, args: &JobArgs) -> Result<(), Failure> {
    let checked = dead_job::check(args)?;
    dead_job::run(session, &session.connect().await?, deed, checked).await
}

/// The oldest dead letters, at most `limit`, and whether these are all.
async fn letters(client: &Client, args: &ListArgs) -> Result<(Vec<pb::MessageInfo>, bool), Failure> {
    let ListArgs { topic, filter, limit } = args;
    let failed = |error: Error| Failure::call(format!("list the dead letters of '{topic}'"), &error);
    let mut letters = Vec::new();
    let mut token = Some(String::new());
    while letters.len() < *limit
        && let Some(at) = token.take()
    {
        let left = u32::try_from(limit - letters.len()).unwrap_or(MAX_PAGE_SIZE).min(MAX_PAGE_SIZE);
        let (page, next) = client.dead_letters(topic, filter.to_wire(), left, &at).await.map_err(failed)?;
        letters.extend(page);
        token = next;
    }
    Ok((letters, token.is_none()))
}

async fn show(session: &Session, client: &Client, args: &ShowArgs) -> Result<(), Failure> {
    let ShowArgs { topic, id } = args;
    let failed = |error: Error| Failure::call(format!("show the dead letter {id} of '{topic}'"), &error);
    let info = client.message(topic, MessageRef::id(id), false).await.map_err(failed)?;
    if info.state() != pb::MessageState::Dead {
        let failure = Failure::new(Exit::Failed, format!("message {id} of '{topic}' is no dead letter"));
        return Err(failure.next(format!("see it with duewheel message show {topic} --id {id}")));
    }
    print_message(session.format, &MessageView::new(info))
}
