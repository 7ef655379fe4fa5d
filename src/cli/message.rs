//! `duewheel message`: show, cancel, reschedule one message by id or key, or list those of a topic.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::args::{duration_ms, instant, not_empty};
use super::exit::{Exit, Failure};
use super::message_list::{self, ListArgs};
use super::message_view::{MessageView, outcome_name};
use super::output::{Format, Sheet, print_sheet, table};
use super::session::Session;
use crate::client::{CancelAnswer, Client, Due, Ended, Error, MessageRef, RescheduleAnswer};
use crate::queue::time::Timestamp;

/// The commands about one message.
#[derive(Debug, Subcommand)]
pub(super) enum MessageCommand {
    /// Tell where a message is, why it has not been delivered yet, and what happened to it
    #[command(after_long_help = "\
Examples:
  duewheel message show dropped-orders --key ORD-1
  duewheel message show dropped-orders --id ID -o json")]
    Show(ShowArgs),
    /// List the messages of a topic in the order in which they are due
    #[command(after_long_help = "\
Without --state: scheduled, ready and leased messages. Dead letters come by time of death. Bodies are left out; \
`message show` has them.

Examples:
  duewheel message list dropped-orders
  duewheel message list dropped-orders --state ready --limit 20
  duewheel message list close-unpaid --due-to 2026-12-01T10:00:00Z
  duewheel message list close-unpaid --key ORD-1 -o json
  duewheel message list close-unpaid --limit 1000000 -o jsonl > all.jsonl")]
    List(ListArgs),
    /// Cancel a message: after CANCELLED it is never delivered
    #[command(after_long_help = "\
Prints the definite answer: CANCELLED (exit code 0), IN_FLIGHT (75; 0 with --when-lease-ends), ALREADY_DONE with \
how it ended, or NOT_FOUND (1).

Examples:
  duewheel message cancel close-unpaid --key ORD-1
  duewheel message cancel dropped-orders --key ORD-1 --when-lease-ends")]
    Cancel(CancelArgs),
    /// Give a waiting message another due time; spends no attempt
    #[command(after_long_help = "\
Prints the definite answer: RESCHEDULED (exit code 0), IN_FLIGHT (75), ALREADY_DONE with how it ended, or \
NOT_FOUND (1).

Examples:
  duewheel message reschedule dropped-orders --key ORD-1 --now
  duewheel message reschedule close-unpaid --key ORD-1 --delay 15m
  duewheel message reschedule reminders --id ID --at 2026-12-01T09:30:00Z")]
    Reschedule(RescheduleArgs),
}

#[derive(Debug, Args)]
struct Message {
    /// Topic of the message
    topic: String,
    #[command(flatten)]
    by: By,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct By {
    /// The id that produce returned
    #[arg(long, value_parser = not_empty)]
    id: Option<String>,
    /// The business key
    #[arg(long, value_parser = not_empty)]
    key: Option<String>,
}

impl By {
    fn message(&self) -> MessageRef {
        match (&self.id, &self.key) {
            (Some(id), _) => MessageRef::id(id),
            (None, key) => MessageRef::key(key.clone().expect("one of them is required")),
        }
    }
}

/// Arguments of `message show`.
#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    message: Message,
    /// Leave out body and headers
    #[arg(long)]
    omit_body: bool,
}

/// Arguments of `message cancel`.
#[derive(Debug, Args)]
pub(super) struct CancelArgs {
    #[command(flatten)]
    message: Message,
    /// If a consumer is working on it: cancel it when the lease ends without an ack
    #[arg(long)]
    when_lease_ends: bool,
}

/// Arguments of `message reschedule`.
#[derive(Debug, Args)]
pub(super) struct RescheduleArgs {
    #[command(flatten)]
    message: Message,
    #[command(flatten)]
    due: NewDue,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct NewDue {
    /// Due this long from now
    #[arg(long, value_name = "SPAN", value_parser = duration_ms)]
    delay: Option<u64>,
    /// Due at this instant (RFC 3339)
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    at: Option<Timestamp>,
    /// Due now
    #[arg(long)]
    now: bool,
}

impl NewDue {
    fn due(&self) -> Due {
        match self.at {
            Some(at) => Due::At(at),
            None => Due::In(Duration::from_millis(self.delay.unwrap_or(0))),
        }
    }
}

/// Runs a command about one message.
pub(super) async fn run(session: &Session, command: MessageCommand) -> Result<(), Failure> {
    let client = session.connect().await?;
    match command {
        MessageCommand::Show(args) => show(session, &client, &args).await,
        MessageCommand::List(args) => message_list::run(session, &client, args).await,
        MessageCommand::Cancel(args) => cancel(session, &client, &args).await,
        MessageCommand::Reschedule(args) => reschedule(session, &client, &args).await,
    }
}

async fn show(session: &Session, client: &Client, args: &ShowArgs) -> Result<(), Failure> {
    let Message { topic, by } = &args.message;
    let message = by.message();
    let failed = |error: Error| Failure::call(format!("show the message with {message} of '{topic}'"), &error);
    let info = client.message(topic, message.clone(), args.omit_body).await.map_err(failed)?;
    print_message(session.format, &MessageView::new(info))
}

/// Prints a message with its history.
pub(super) fn print_message(format: Format, view: &MessageView) -> Result<(), Failure> {
    print_sheet(format, view)?;
    if format == Format::Table && !view.history.is_empty() {
        let columns = ["delivery", "attempt", "delivered at", "outcome", "consumer", "text", "next due at"];
        println!("\n{}", table(&columns, view.history.iter().map(super::message_view::HistoryView::cells)));
        if view.history_omitted > 0 {
            println!("{} entries after the fourth are left out", view.history_omitted);
        }
    }
    Ok(())
}

async fn cancel(session: &Session, client: &Client, args: &CancelArgs) -> Result<(), Failure> {
    let Message { topic, by } = &args.message;
    let message = by.message();
    let failed = |error: Error| Failure::call(format!("cancel the message with {message} of '{topic}'"), &error);
    let answer = client.cancel(topic, message.clone(), args.when_lease_ends).await.map_err(failed)?;
    let (status, id, ended) = match answer {
        CancelAnswer::Cancelled { id } => ("CANCELLED", Some(id), None),
        CancelAnswer::InFlight { id } => ("IN_FLIGHT", Some(id), None),
        CancelAnswer::AlreadyDone { id, ended } => ("ALREADY_DONE", Some(id), Some(ended)),
        CancelAnswer::NotFound => ("NOT_FOUND", None, None),
    };
    let exit = match status {
        "IN_FLIGHT" if args.when_lease_ends => Exit::Ok,
        _ => exit_of_answer(status),
    };
    tell(session, exit, AnswerView { status, id, due_at: None, ended: ended.map(ended_name) })
}

async fn reschedule(session: &Session, client: &Client, args: &RescheduleArgs) -> Result<(), Failure> {
    let Message { topic, by } = &args.message;
    let message = by.message();
    let failed = |error: Error| Failure::call(format!("reschedule the message with {message} of '{topic}'"), &error);
    let answer = client.reschedule(topic, message.clone(), args.due.due()).await.map_err(failed)?;
    let (status, id, due_at, ended) = match answer {
        RescheduleAnswer::Rescheduled { id, due_at } => ("RESCHEDULED", Some(id), Some(due_at), None),
        RescheduleAnswer::InFlight { id } => ("IN_FLIGHT", Some(id), None, None),
        RescheduleAnswer::AlreadyDone { id, ended } => ("ALREADY_DONE", Some(id), None, Some(ended)),
        RescheduleAnswer::NotFound => ("NOT_FOUND", None, None, None),
    };
    let view = AnswerView { status, id, due_at: due_at.map(Timestamp::to_rfc3339), ended: ended.map(ended_name) };
    tell(session, exit_of_answer(status), view)
}

fn exit_of_answer(status: &str) -> Exit {
    match status {
        "CANCELLED" | "RESCHEDULED" => Exit::Ok,
        "IN_FLIGHT" => Exit::Temporary,
        _ => Exit::Failed,
    }
}

/// Prints the answer: it is the data that was asked for, whatever the exit code.
fn tell(session: &Session, exit: Exit, view: AnswerView) -> Result<(), Failure> {
    if session.format == Format::Table {
        let AnswerView { status, id, due_at, ended } = view;
        let words: Vec<String> = [Some(status.to_owned()), ended, id, due_at].into_iter().flatten().collect();
        println!("{}", words.join("  "));
    } else {
        print_sheet(session.format, &view)?;
    }
    if exit == Exit::Ok { Ok(()) } else { Err(Failure::silent(exit)) }
}

fn ended_name(ended: Ended) -> String {
    match ended {
        Ended::Dead => "DEAD".to_owned(),
        Ended::Gone(outcome) => outcome_name(outcome).to_owned(),
    }
}

#[derive(serde::Serialize)]
struct AnswerView {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
}

impl Sheet for AnswerView {
    fn lines(&self) -> Vec<(&'static str, String)> {
        vec![("status", self.status.to_owned())]
    }
}
