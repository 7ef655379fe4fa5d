//! `duewheel produce`: one message from an argument, a file or stdin; many from a JSON lines file.

use std::collections::BTreeSet;
use std::io::{IsTerminal as _, Read as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::args::{duration_ms, header, instant, not_empty, number_to, schedule};
use super::exit::{Exit, Failure, say};
use super::output::{Sheet, print_sheet};
use super::produce_file;
use super::session::Session;
use crate::client::{Due, NewMessage, Produced};
use crate::pb;
use crate::queue::limits::MAX_ATTEMPTS;
use crate::queue::schedule::RetrySchedule;
use crate::queue::time::Timestamp;

/// Arguments of `produce`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Without --delay and --at the message is due after the first delay of the retry schedule.

A line of --from is a JSON object; all fields are optional. A body that is JSON is kept as it is written:
  {\"body\": \"text or any JSON\", \"body_base64\": \"...\", \"key\": \"ORD-1\", \"headers\": {\"a\": \"b\"},
   \"delay\": \"30m\", \"due_at\": \"2026-12-01T09:30:00Z\", \"schedule\": \"1s,5s\", \"max_attempts\": 3,
   \"key_policy\": \"reject\", \"dedup_id\": \"ORD-1\"}

Examples:
  duewheel produce dropped-orders '{\"amount\":1999}' --key ORD-1 --dedup-id D1
  duewheel produce close-unpaid --key ORD-1 --delay 30m < order.json
  duewheel produce reminders --file note.txt --at 2026-12-01T09:30:00+01:00
  duewheel produce reminders 'hello' --header lang=en --header trace=t1
  duewheel produce dropped-orders --from payments.jsonl")]
pub(super) struct ProduceArgs {
    /// Topic to produce to
    topic: String,
    /// Body; without it, --file and --from the body is read from stdin
    #[arg(conflicts_with_all = ["file", "from"])]
    body: Option<String>,
    /// Read the body from a file
    #[arg(long, value_name = "PATH", conflicts_with = "from")]
    file: Option<PathBuf>,
    /// Produce every line of a JSON lines file ('-': stdin); the options below are defaults of its lines
    #[arg(long, value_name = "FILE.jsonl", conflicts_with_all = ["key", "dedup_id"])]
    from: Option<PathBuf>,
    /// Business key, unique among the live messages of the topic
    #[arg(long, value_parser = not_empty)]
    key: Option<String>,
    /// Makes the produce idempotent: a repeat returns the first answer
    #[arg(long, value_name = "ID", value_parser = not_empty)]
    dedup_id: Option<String>,
    #[command(flatten)]
    defaults: Defaults,
}

/// What holds for one message, or for every line that does not say otherwise.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct Defaults {
    /// Wait this long first, such as 30m
    #[arg(long, value_name = "SPAN", value_parser = duration_ms, conflicts_with = "at")]
    pub(super) delay: Option<u64>,
    /// Due at this instant (RFC 3339); one in the past means now
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    pub(super) at: Option<Timestamp>,
    /// Add a header; may be repeated, with another name each time
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    pub(super) headers: Vec<(String, String)>,
    /// Retry schedule instead of the topic's, such as 1s,5s,5x1m
    #[arg(long, value_name = "DELAYS", value_parser = schedule)]
    pub(super) schedule: Option<RetrySchedule>,
    /// Retry cap instead of the topic's
    #[arg(long, value_name = "N", value_parser = number_to(MAX_ATTEMPTS))]
    pub(super) max_attempts: Option<u32>,
    /// What to do when the key is taken [default: reject]
    #[arg(long, value_enum, value_name = "POLICY")]
    pub(super) key_policy: Option<KeyPolicy>,
}

/// What to do when the key is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum KeyPolicy {
    /// Refuse
    Reject,
    /// Remove the holder and store the new message
    Replace,
    /// Keep the holder and answer its id
    Keep,
}

impl KeyPolicy {
    pub(super) fn to_wire(self) -> pb::KeyPolicy {
        match self {
            Self::Reject => pb::KeyPolicy::Reject,
            Self::Replace => pb::KeyPolicy::Replace,
            Self::Keep => pb::KeyPolicy::Keep,
        }
    }
}

impl Defaults {
    /// Refuses a header of which only the last value would be kept.
    fn check(&self) -> Result<(), Failure> {
        let mut names = BTreeSet::new();
        match self.headers.iter().find(|(name, _)| !names.insert(name)) {
            Some((name, _)) => Err(Failure::new(Exit::Usage, format!("--header {name}= is given twice"))
                .next("a message has one value for each header; give it once")),
            None => Ok(()),
        }
    }

    /// Gives `message` everything that was asked for.
    pub(super) fn apply(&self, mut message: NewMessage) -> NewMessage {
        if let Some(ms) = self.delay {
            message = message.due(Due::In(Duration::from_millis(ms)));
        }
        if let Some(at) = self.at {
            message = message.due(Due::At(at));
        }
        for (name, value) in &self.headers {
            message = message.header(name, value);
        }
        if let Some(schedule) = &self.schedule {
            message = message.schedule(schedule);
        }
        if let Some(max_attempts) = self.max_attempts {
            message = message.max_attempts(max_attempts);
        }
        if let Some(policy) = self.key_policy {
            message = message.key_policy(policy.to_wire());
        }
        message
    }
}

/// Runs `produce`.
pub(super) async fn run(session: &Session, args: ProduceArgs) -> Result<(), Failure> {
    args.defaults.check()?;
    match &args.from {
        Some(path) => produce_file::run(session, &args.topic, path, &args.defaults).await,
        None => one(session, &args).await,
    }
}

async fn one(session: &Session, args: &ProduceArgs) -> Result<(), Failure> {
    let mut message = args.defaults.apply(NewMessage::new(body(args)?));
    if let Some(key) = &args.key {
        message = message.key(key);
    }
    if let Some(dedup_id) = &args.dedup_id {
        message = message.dedup_id(dedup_id);
    }
    let client = session.connect().await?;
    let produced = client
        .produce(&args.topic, message)
        .await
        .map_err(|error| Failure::call(format!("produce to '{}'", args.topic), &error))?;
    Ok(print_sheet(session.format, &ProducedView::from(produced))?)
}

fn body(args: &ProduceArgs) -> Result<Vec<u8>, Failure> {
    if let Some(body) = &args.body {
        return Ok(body.clone().into_bytes());
    }
    if let Some(path) = &args.file {
        let problem = |error| Failure::new(Exit::Failed, format!("cannot read {}: {error}", path.display()));
        return std::fs::read(path).map_err(problem);
    }
    if std::io::stdin().is_terminal() {
        say("reading the body from the terminal; end it with Ctrl-D");
    }
    let mut body = Vec::new();
    let problem = |error| Failure::new(Exit::Failed, format!("cannot read stdin: {error}"));
    std::io::stdin().read_to_end(&mut body).map_err(problem)?;
    Ok(body)
}

#[derive(Serialize)]
struct ProducedView {
    id: String,
    due_at: String,
    existing: bool,
}

impl From<Produced> for ProducedView {
    fn from(produced: Produced) -> Self {
        Self { id: produced.id, due_at: produced.due_at.to_rfc3339(), existing: produced.existing }
    }
}

impl Sheet for ProducedView {
    fn lines(&self) -> Vec<(&'static str, String)> {
        let existing = if self.existing { "yes" } else { "no" };
        vec![("id", self.id.clone()), ("due at", self.due_at.clone()), ("existing", existing.to_owned())]
    }
}
