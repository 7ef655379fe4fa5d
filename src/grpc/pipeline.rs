//! Batches of a stream on their way through the engine: admitted in order, answered in order.
//!
//! A stream may have many batches under way, so that its next frame need not wait for the commit of the last
//! one. Their number is bounded, and a stream whose answers are not read stops taking new ones.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::batch::{Batch, Results};
use crate::engine::{EngineError, EngineHandle, Pending};

/// Most batches of one stream that are under way at once.
const MAX_UNDER_WAY: usize = 64;

type Admission = Pin<Box<dyn Future<Output = Result<Pending, EngineError>> + Send>>;

/// The batches of one stream.
pub(super) struct Pipeline {
    engine: EngineHandle,
    /// The youngest batch, which the engine has not admitted yet.
    admitting: Option<(Admission, Batch)>,
    /// Oldest first.
    under_way: VecDeque<UnderWay>,
}

enum UnderWay {
    Admitted(Pin<Box<Pending>>, Batch),
    /// Nothing of it goes to the engine, or the engine refused it.
    Settled(Results),
}

impl Pipeline {
    /// An empty pipeline into `engine`.
    pub(super) fn new(engine: EngineHandle) -> Self {
        Self { engine, admitting: None, under_way: VecDeque::new() }
    }

    /// True if another batch may be pushed.
    pub(super) fn has_room(&self) -> bool {
        self.admitting.is_none() && self.under_way.len() < MAX_UNDER_WAY
    }

    /// True if no batch is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.admitting.is_none() && self.under_way.is_empty()
    }

    /// Sends a batch. There must be room.
    pub(super) fn push(&mut self, mut batch: Batch) {
        assert!(self.has_room(), "a stream takes a frame only while its pipeline has room");
        let commands = batch.take_commands();
        if commands.is_empty() {
            self.under_way.push_back(UnderWay::Settled(batch.answered(Vec::new())));
            return;
        }
        let engine = self.engine.clone();
        let admission = Box::pin(async move { engine.submit(commands).await });
        self.admitting = Some((admission, batch));
    }

    /// The results of the oldest batch, or `None` if there may be room for another batch now, since the youngest was
    /// admitted. Pends while none is under way; nothing is lost if it is dropped.
    pub(super) async fn progress(&mut self) -> Option<Results> {
        poll_fn(|cx| {
            let is_admitted = self.poll_admission(cx);
            match self.poll_oldest(cx) {
                Poll::Ready(results) => Poll::Ready(Some(results)),
                // The frame after it must not wait for the commit of the oldest.
                Poll::Pending if is_admitted => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// The results of the oldest batch, when no other batch comes.
    pub(super) async fn next(&mut self) -> Results {
        loop {
            if let Some(results) = self.progress().await {
                return results;
            }
        }
    }

    /// True if the youngest batch has just been admitted.
    fn poll_admission(&mut self, cx: &mut Context<'_>) -> bool {
        let Some((mut admission, batch)) = self.admitting.take() else { return false };
        match admission.as_mut().poll(cx) {
            Poll::Ready(Ok(pending)) => self.under_way.push_back(UnderWay::Admitted(Box::pin(pending), batch)),
            Poll::Ready(Err(error)) => self.under_way.push_back(UnderWay::Settled(batch.failed(&error))),
            Poll::Pending => self.admitting = Some((admission, batch)),
        }
        self.admitting.is_none()
    }

    fn poll_oldest(&mut self, cx: &mut Context<'_>) -> Poll<Results> {
        let answer = match self.under_way.front_mut() {
            None => return Poll::Pending,
            Some(UnderWay::Admitted(pending, _)) => Some(ready!(pending.as_mut().poll(cx))),
            Some(UnderWay::Settled(_)) => None,
        };
        let oldest = self.under_way.pop_front().expect("the oldest batch was just looked at");
        Poll::Ready(match (oldest, answer) {
            (UnderWay::Admitted(_, batch), Some(Ok(answers))) => batch.answered(answers),
            (UnderWay::Admitted(_, batch), Some(Err(error))) => batch.failed(&error),
            (UnderWay::Settled(results), _) => results,
            (UnderWay::Admitted(..), None) => unreachable!("an admitted batch was polled"),
        })
    }
}
