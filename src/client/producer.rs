//! A pipelined produce stream: many frames on the way before the first answer.
//!
//! One task owns the stream. It takes frames while fewer than [`MAX_FRAMES_IN_FLIGHT`] are unanswered, so that
//! its channel to the connection always has room and the task never stops reading answers: two sides that both
//! wait to write would wait for ever.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;

use super::produce::results;
use super::{Client, Error, NewMessage, Produced};
use crate::pb;

/// Most frames sent and not answered.
const MAX_FRAMES_IN_FLIGHT: usize = 64;

type FrameResult = Result<Vec<Result<Produced, Error>>, Error>;

struct Frame {
    request: pb::ProduceStreamRequest,
    reply: oneshot::Sender<FrameResult>,
}

/// A produce stream. Dropping it ends the stream after the frames that were sent have been answered.
#[derive(Debug)]
pub struct Producer {
    topic: String,
    frames: mpsc::Sender<Frame>,
}

/// The answer to one frame of a [`Producer`]; await it for one result per message, in order.
#[derive(Debug)]
pub struct PendingProduce(oneshot::Receiver<FrameResult>);

impl Future for PendingProduce {
    type Output = FrameResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<FrameResult> {
        Pin::new(&mut self.0)
            .poll(context)
            .map(|answer| answer.unwrap_or_else(|_| Err(Error::unanswered("the produce stream ended"))))
    }
}

impl Client {
    /// Opens a pipelined produce stream for a topic.
    ///
    /// # Errors
    /// The stream could not be opened.
    pub async fn producer(&self, topic: &str) -> Result<Producer, Error> {
        let (out, requests) = mpsc::channel(MAX_FRAMES_IN_FLIGHT);
        let mut queue = self.queue();
        let opening = queue.produce_stream(ReceiverStream::new(requests));
        let answers = tokio::time::timeout(self.options.request_timeout, opening)
            .await
            .map_err(|_| Error::unanswered("the broker did not open the produce stream in time"))??
            .into_inner();
        let (frames, taken) = mpsc::channel(1);
        tokio::spawn(drive(taken, out, answers));
        Ok(Producer { topic: topic.to_owned(), frames })
    }
}

impl Producer {
    /// Sends 1 to 1,000 messages; waits only while too many frames are unanswered.
    ///
    /// # Errors
    /// The stream has ended before; these messages were not sent. Open another one.
    pub async fn send(&self, messages: Vec<NewMessage>) -> Result<PendingProduce, Error> {
        let messages = messages.into_iter().map(NewMessage::into_wire).collect();
        let request = pb::ProduceStreamRequest { topic: self.topic.clone(), messages };
        let (reply, answer) = oneshot::channel();
        self.frames.send(Frame { request, reply }).await.map_err(|_| Error::ended("the produce stream has ended"))?;
        Ok(PendingProduce(answer))
    }
}

/// Sends frames and hands each answer to the frame that it belongs to, until either side ends.
async fn drive(
    mut frames: mpsc::Receiver<Frame>,
    out: mpsc::Sender<pb::ProduceStreamRequest>,
    mut answers: tonic::Streaming<pb::ProduceStreamResponse>,
) {
    let mut out = Some(out);
    let mut waiting: VecDeque<(usize, oneshot::Sender<FrameResult>)> = VecDeque::new();
    let end = loop {
        let room = out.is_some() && waiting.len() < MAX_FRAMES_IN_FLIGHT;
        tokio::select! {
            frame = frames.recv(), if room => match (frame, &out) {
                (Some(frame), Some(sender)) => {
                    waiting.push_back((frame.request.messages.len(), frame.reply));
                    if sender.try_send(frame.request).is_err() {
                        break Error::unanswered("the produce stream broke");
                    }
                }
                _ => out = None,
            },
            answer = answers.message() => match answer {
                Ok(Some(answer)) => {
                    let Some((expected, reply)) = waiting.pop_front() else {
                        break Error::protocol("an answer to no request");
                    };
                    // The caller may have stopped waiting; the messages are stored all the same.
                    let _ = reply.send(results(answer.results, expected));
                }
                Ok(None) => break Error::unanswered("the broker ended the produce stream"),
                Err(status) => break status.into(),
            },
        }
    };
    for (_, reply) in waiting {
        let _ = reply.send(Err(end.clone().made_unknown()));
    }
}
