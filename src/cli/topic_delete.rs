//! `duewheel topic delete`: asks, deletes, and watches the disk space being given back.

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::confirm::confirm;
use super::exit::{Exit, Failure, say};
use super::output::{Sheet, print_sheet};
use super::progress::Progress;
use super::session::Session;
use super::signals::Stop;
use crate::client::{Answers, Client, Error};
use crate::clock::Stopwatch;
use crate::pb::{DeleteTopicResponse, TopicStats};

/// After this long without progress nobody watches any more: a backup holds the pages, or the disk is busy.
const STALLED: Duration = Duration::from_secs(10);

/// Arguments of `topic delete`.
#[derive(Debug, Args)]
pub(super) struct DeleteArgs {
    /// Name of the topic
    name: String,
    /// Delete it with all its messages
    #[arg(long)]
    purge: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// Runs the command.
pub(super) async fn run(session: &Session, client: &Client, args: &DeleteArgs) -> Result<(), Failure> {
    let name = &args.name;
    let failed = |error: Error| Failure::call(format!("delete topic '{name}'"), &error);
    let stats = client.stats(Some(name)).await.map_err(failed)?.topics.into_iter().next().unwrap_or_default();
    let messages = live(&stats);
    // What has messages and is not to be purged is refused without a question.
    if messages == 0 || args.purge {
        confirm(&question(name, &stats), args.yes, "add --yes to delete it")?;
    }
    let mut answers = client.delete_topic(name, args.purge).await.map_err(failed)?;
    let first = answers.next().await.map_err(failed)?;
    let Some(first) = first else {
        return Err(Failure::new(Exit::Failed, format!("the broker did not say that topic '{name}' is deleted")));
    };
    print_sheet(session.format, &DeletedView { topic: name.clone(), messages: first.messages })?;
    // The rest is only to be watched.
    let stop = Stop::listen().map_err(|error| Failure::new(Exit::Failed, format!("cannot watch signals: {error}")))?;
    if !first.reclaimed
        && let Some(pages) = watch(&stop, &mut answers, first).await
    {
        say(&format!(
            "topic '{name}' is deleted; the broker goes on giving back its disk space, {pages} pages when last seen"
        ));
    }
    Ok(())
}

fn live(stats: &TopicStats) -> u64 {
    stats.scheduled + stats.ready + stats.leased + stats.dead
}

fn question(name: &str, stats: &TopicStats) -> String {
    let TopicStats { scheduled, ready, leased, dead, .. } = stats;
    match live(stats) {
        0 => format!("delete topic '{name}', which is empty?"),
        messages => format!(
            "delete topic '{name}' with all its {messages} messages ({scheduled} scheduled, {ready} ready, {leased} leased, \
             {dead} dead) for good?"
        ),
    }
}

/// Watches until nothing of the topic is left, or the pages that were left when last seen, if that was not to be seen.
async fn watch(stop: &Stop, answers: &mut Answers<DeleteTopicResponse>, first: DeleteTopicResponse) -> Option<u64> {
    let (mut most, mut left) = (first.pages_left, first.pages_left);
    let mut since_progress = Stopwatch::start();
    let mut progress = Progress::new("pages given back", None);
    let unseen = loop {
        let answer = tokio::select! {
            biased;
            () = stop.requested() => break Some(left),
            answer = answers.next() => answer,
        };
        // The topic is gone whatever happens to the call.
        let Ok(Some(answer)) = answer else { break Some(left) };
        if answer.pages_left != left {
            since_progress = Stopwatch::start();
        }
        left = answer.pages_left;
        most = most.max(left);
        progress.to(most - left, most - left);
        if answer.reclaimed {
            break None;
        }
        if since_progress.elapsed() >= STALLED {
            break Some(left);
        }
    };
    progress.finish();
    unseen
}

#[derive(Serialize)]
struct DeletedView {
    topic: String,
    messages: u64,
}

impl Sheet for DeletedView {
    fn lines(&self) -> Vec<(&'static str, String)> {
        vec![("deleted", self.topic.clone()), ("messages", self.messages.to_string())]
    }
}
