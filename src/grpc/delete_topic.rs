//! Deleting a topic: at once, and then news of how its disk space is given back.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::clock::Stopwatch;
use crate::engine::{EngineHandle, Reclaiming};
use crate::pb::DeleteTopicResponse;
use crate::queue::command::DeletedTopic;

/// Answers that wait for the connection.
const WAITING_ANSWERS: usize = 2;
/// Time between two answers.
const ANSWER_EVERY: Duration = Duration::from_secs(1);
/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Tells of a topic that is deleted, durably, until nothing of it is left or nobody listens.
pub(super) fn tell(engine: EngineHandle, deleted: DeletedTopic) -> ReceiverStream<Result<DeleteTopicResponse, Status>> {
    let (answers, received) = mpsc::channel(WAITING_ANSWERS);
    tokio::spawn(async move {
        let answer = |left: Reclaiming| DeleteTopicResponse {
            messages: deleted.messages,
            pages_left: left.pages,
            reclaimed: left.is_done(),
        };
        let mut since_answer: Option<Stopwatch> = None;
        // An engine that stops goes on with it when it starts again; then there is no more to tell.
        while let Ok(left) = engine.reclaiming(deleted).await {
            if left.is_done() || since_answer.as_ref().is_none_or(|since| since.elapsed() >= ANSWER_EVERY) {
                since_answer = Some(Stopwatch::start());
                if answers.send(Ok(answer(left))).await.is_err() || left.is_done() {
                    return;
                }
            }
            tokio::select! {
                () = answers.closed() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
        if since_answer.is_none() {
            let unknown = DeleteTopicResponse { messages: deleted.messages, ..Default::default() };
            let _ = answers.send(Ok(unknown)).await;
        }
    });
    ReceiverStream::new(received)
}
