//! `duewheel dead redrive` and `duewheel dead purge`: jobs of the broker, watched and stopped from here.

use clap::Args;
use serde::Serialize;

use super::args::{Rate, rate};
use super::confirm::confirm;
use super::dead_filter::{Selected, Which};
use super::exit::{Exit, Failure, say};
use super::output::{Format, Row, print_rows};
use super::progress::Progress;
use super::session::Session;
use super::signals::Stop;
use crate::client::{Answers, Client, Error};
use crate::pb;
use crate::queue::limits::MAX_DEAD_RATE;

/// Arguments of `dead redrive` and `dead purge`.
#[derive(Debug, Args)]
pub(super) struct JobArgs {
    /// Topic of the dead letters
    topic: String,
    #[command(flatten)]
    which: Which,
    /// How fast at most, 1/s to 10000/s [default: 100/s for redrive, 1000/s for purge]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<Rate>,
    /// Only tell how many it would be
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// What is done to dead letters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    Redrive,
    Purge,
}

/// A request, for either call.
#[derive(Clone)]
struct Request {
    topic: String,
    ids: Vec<String>,
    filter: Option<pb::DeadLetterFilter>,
    rate_per_second: u32,
    dry_run: bool,
    limit: u64,
}

/// Numbers of an answer.
#[derive(Clone, Copy, Default)]
struct Numbers {
    matched: u64,
    done: u64,
    key_in_use: u64,
    not_dead: u64,
    not_found: u64,
    remaining: u64,
}

/// The answers of either call.
enum Job {
    Redrive(Answers<pb::RedriveDeadLettersResponse>),
    Purge(Answers<pb::PurgeDeadLettersResponse>),
}

/// The request that the arguments make, checked as far as it can be without a broker.
pub(super) struct Checked {
    request: Request,
    is_dry_run: bool,
    yes: bool,
}

/// Checks the arguments.
pub(super) fn check(args: &JobArgs) -> Result<Checked, Failure> {
    let Selected { ids, filter, limit } = args.which.selected()?;
    let rate_per_second = args.rate.map_or(Ok(0), per_second)?;
    let request = Request { topic: args.topic.clone(), ids, filter, rate_per_second, dry_run: true, limit };
    Ok(Checked { request, is_dry_run: args.dry_run, yes: args.yes })
}

fn per_second(rate: Rate) -> Result<u32, Failure> {
    let count = u64::from(rate.count) * 1_000 / rate.period_ms;
    let in_range = u32::try_from(count).ok().filter(|count| (1..=MAX_DEAD_RATE).contains(count));
    in_range.ok_or_else(|| {
        Failure::new(Exit::Usage, format!("--rate {rate} is out of range; it must be 1/s to {MAX_DEAD_RATE}/s"))
    })
}

/// Runs a job.
pub(super) async fn run(session: &Session, client: &Client, deed: Deed, checked: Checked) -> Result<(), Failure> {
    let Checked { mut request, is_dry_run, yes } = checked;
    // To name a message is to mean it; but what is purged does not come back.
    let must_ask = !yes && (deed == Deed::Purge || request.ids.is_empty());
    if is_dry_run || must_ask {
        let found = finish(deed, client, &request).await?;
        let count = if request.ids.is_empty() { found.matched } else { found.done };
        if is_dry_run {
            say(&format!("{count} dead letters of '{}' would be {}", request.topic, deed.participle()));
            return Ok(print_rows(session.format, &[CountView { status: "MATCHED", count }])?);
        }
        if count > 0 {
            let question = deed.question(count, &request.topic);
            confirm(&question, false, "add --yes, or look first with --dry-run")?;
        }
    }
    request.dry_run = false;
    let (numbers, ended) = watch(deed, client, &request).await?;
    let views: Vec<CountView> = numbers.rows(deed);
    if ended.is_ok() && views.is_empty() {
        say(&format!("no dead letters of '{}' match; nothing was {}", request.topic, deed.participle()));
    }
    // A table of nothing but its head would tell less than that.
    let is_told = views.is_empty() && session.format == Format::Table;
    if !is_told && (ended.is_ok() || numbers.done > 0) {
        print_rows(session.format, &views)?;
    }
    let Numbers { matched, remaining, .. } = numbers;
    match ended {
        Err(Some(error)) => {
            if remaining > 0 {
                say(&format!("{remaining} of {matched} were not answered"));
            }
            Err(Failure::call(format!("{} dead letters of '{}'", deed.verb(), request.topic), &error))
        }
        Err(None) => {
            let text = format!("interrupted; when the broker last told, {remaining} of {matched} were not tried");
            Err(Failure::new(Exit::Failed, text).next("run it again for the rest"))
        }
        Ok(()) if numbers.done < matched => Err(Failure::silent(Exit::Failed)),
        Ok(()) => Ok(()),
    }
}

/// Runs a request to its end.
async fn finish(deed: Deed, client: &Client, request: &Request) -> Result<Numbers, Failure> {
    let failed = |error: Error| Failure::call(format!("look at the dead letters of '{}'", request.topic), &error);
    let mut job = Job::start(deed, client, request).await.map_err(failed)?;
    let (mut last, mut would_be_done) = (Numbers::default(), 0);
    while let Some((numbers, done)) = job.next().await.map_err(failed)? {
        (last, would_be_done) = (numbers, would_be_done + done);
    }
    Ok(Numbers { done: would_be_done, ..last })
}

/// Runs a request and shows its progress, until the end, an error or a signal (`Err(None)`).
async fn watch(
    deed: Deed,
    client: &Client,
    request: &Request,
) -> Result<(Numbers, Result<(), Option<Error>>), Failure> {
    let failed = |error: Error| Failure::call(format!("{} dead letters of '{}'", deed.verb(), request.topic), &error);
    let mut job = Job::start(deed, client, request).await.map_err(failed)?;
    let stop = Stop::listen().map_err(|error| Failure::new(Exit::Failed, format!("cannot watch signals: {error}")))?;
    let (mut numbers, mut progress) = (Numbers::default(), None);
    let ended = loop {
        tokio::select! {
            biased;
            () = stop.requested() => break Err(None),
            answer = job.next() => match answer {
                Ok(Some((answered, _))) => numbers = answered,
                Ok(None) => break Ok(()),
                Err(error) => break Err(Some(error)),
            },
        }
        let progress = progress.get_or_insert_with(|| Progress::new(deed.participle(), Some(numbers.matched)));
        progress.to(numbers.matched - numbers.remaining, numbers.done);
    };
    if let Some(progress) = progress {
        progress.finish();
    }
    Ok((numbers, ended))
}

impl Job {
    async fn start(deed: Deed, client: &Client, request: &Request) -> Result<Self, Error> {
        let Request { topic, ids, filter, rate_per_second, dry_run, limit } = request.clone();
        Ok(match deed {
            Deed::Redrive => {
                let request = pb::RedriveDeadLettersRequest { topic, ids, filter, rate_per_second, dry_run, limit };
                Self::Redrive(client.redrive(request).await?)
            }
            Deed::Purge => {
                let request = pb::PurgeDeadLettersRequest { topic, ids, filter, rate_per_second, dry_run, limit };
                Self::Purge(client.purge(request).await?)
            }
        })
    }

    /// The numbers of the next answer, and how many results of it say that the deed was done.
    async fn next(&mut self) -> Result<Option<(Numbers, u64)>, Error> {
        Ok(match self {
            Self::Redrive(answers) => answers.next().await?.map(|answer| {
                let done = answer.results().filter(|&status| status == pb::RedriveStatus::Redriven).count();
                let numbers = Numbers {
                    matched: answer.matched,
                    done: answer.redriven,
                    key_in_use: answer.key_in_use,
                    not_dead: answer.not_dead,
                    not_found: answer.not_found,
                    remaining: answer.remaining,
                };
                (numbers, done as u64)
            }),
            Self::Purge(answers) => answers.next().await?.map(|answer| {
                let done = answer.results().filter(|&status| status == pb::PurgeStatus::Purged).count();
                let numbers = Numbers {
                    matched: answer.matched,
                    done: answer.purged,
                    key_in_use: 0,
                    not_dead: answer.not_dead,
                    not_found: answer.not_found,
                    remaining: answer.remaining,
                };
                (numbers, done as u64)
            }),
        })
    }
}

impl Deed {
    fn verb(self) -> &'static str {
        match self {
            Self::Redrive => "redrive",
            Self::Purge => "purge",
        }
    }

    fn participle(self) -> &'static str {
        match self {
            Self::Redrive => "redriven",
            Self::Purge => "purged",
        }
    }

    fn question(self, count: u64, topic: &str) -> String {
        match self {
            Self::Redrive => format!("redrive {count} dead letters of '{topic}'?"),
            Self::Purge => format!("delete {count} dead letters of '{topic}' for good?"),
        }
    }
}

impl Numbers {
    /// What has happened, as rows.
    fn rows(&self, deed: Deed) -> Vec<CountView> {
        let done = if deed == Deed::Redrive { "REDRIVEN" } else { "PURGED" };
        let rows = [
            (done, self.done),
            ("KEY_IN_USE", self.key_in_use),
            ("NOT_DEAD", self.not_dead),
            ("NOT_FOUND", self.not_found),
        ];
        rows.into_iter().filter(|&(_, count)| count > 0).map(|(status, count)| CountView { status, count }).collect()
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
