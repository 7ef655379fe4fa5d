//! After a command that named an unknown topic: what to do, which depends on the command.

use std::time::Duration;

use super::exit::Failure;
use super::nearest::nearest;
use super::session::Session;

/// A command that has failed does not make anybody wait longer than this for a suggestion.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a command does to the topic that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// It fills or empties it: a topic that is missing may have to be created.
    Use,
    /// It looks at it, or at what is in it, or changes a part.
    Look,
    /// It deletes for good: another name is nothing to be copied from a suggestion.
    Delete,
}

/// The failure with advice, if it is about a topic that does not exist. The broker bounds the number of topics, and so
/// what is asked for.
pub(super) async fn topic(session: &Session, deed: Deed, failure: Failure) -> Failure {
    let Some(unknown) = failure.unknown_topic().map(str::to_owned) else { return failure };
    if deed == Deed::Delete {
        return failure;
    }
    let asked = tokio::time::timeout(PATIENCE, async { session.connect().await.ok()?.topics().await.ok() });
    let Ok(Some(topics)) = asked.await else { return failure };
    let near = nearest(&unknown, topics.iter().map(|topic| topic.name.as_str()));
    match (near, deed) {
        _ if topics.is_empty() && deed == Deed::Use => {
            failure.next(format!("there is no topic yet; create it: duewheel topic create {unknown}"))
        }
        _ if topics.is_empty() => failure.next("there is no topic yet"),
        (Some(near), Deed::Use) => {
            failure.next(format!("did you mean '{near}'? Otherwise: duewheel topic create {unknown}"))
        }
        (Some(near), _) => failure.next(format!("did you mean '{near}'? All there are: duewheel topic list")),
        (None, Deed::Use) => {
            failure.next(format!("see duewheel topic list, or create it: duewheel topic create {unknown}"))
        }
        (None, _) => failure,
    }
}
