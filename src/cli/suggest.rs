//! After a command that named an unknown topic: the topic that was probably meant.

use std::time::Duration;

use super::exit::Failure;
use super::nearest::nearest;
use super::session::Session;

/// A command that has failed does not make anybody wait longer than this for a suggestion.
const PATIENCE: Duration = Duration::from_secs(1);

/// The failure with the topic that was probably meant, if it is about a topic that does not exist. The broker bounds
/// the number of topics, and so what is asked for.
pub(super) async fn topic(session: &Session, failure: Failure) -> Failure {
    let Some(unknown) = failure.unknown_topic().map(str::to_owned) else { return failure };
    let asked = tokio::time::timeout(PATIENCE, async { session.connect().await.ok()?.topics().await.ok() });
    let Ok(Some(topics)) = asked.await else { return failure };
    if topics.is_empty() {
        return failure.next(format!("there is no topic yet; create it: duewheel topic create {unknown}"));
    }
    match nearest(&unknown, topics.iter().map(|topic| topic.name.as_str())) {
        Some(near) => failure.next(format!("did you mean '{near}'? Otherwise: duewheel topic create {unknown}")),
        None => failure,
    }
}
