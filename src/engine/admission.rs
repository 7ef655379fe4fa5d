//! Admission: how much work may be under way. What is over the bound waits, in the order of its arrival.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::queue::command::{Command, Produce};

/// What a command costs beside the bytes that it carries; so the bound on bytes bounds the number too.
const COMMAND_BYTES: usize = 1024;

/// Bytes of memory that a request is reckoned to hold from its admission to its answer.
pub(super) fn cost(commands: &[Command]) -> usize {
    commands.iter().map(|command| COMMAND_BYTES + carried_bytes(command)).sum()
}

/// The cost of a question.
pub(super) const VIEW_BYTES: usize = COMMAND_BYTES;

fn carried_bytes(command: &Command) -> usize {
    match command {
        Command::Produce(Produce { body, headers, .. }) => {
            body.len() + headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
        }
        _ => 0,
    }
}

/// Waits until work of that cost may begin; `None` if nothing is admitted any more. Work that costs more than
/// there is at all waits until it is alone.
pub(super) async fn admit(admission: &Arc<Semaphore>, bytes: usize, capacity: u32) -> Option<OwnedSemaphorePermit> {
    let permits = u32::try_from(bytes).unwrap_or(capacity).min(capacity);
    Arc::clone(admission).acquire_many_owned(permits).await.ok()
}
