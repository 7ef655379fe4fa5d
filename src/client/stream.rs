//! The task behind a consumer: opens the stream, pumps frames both ways, opens it again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::backoff::Backoff;
use super::consume::{Arrived, Pending, Unanswered, answer, frame, in_frame_order};
use super::{Client, Error};
use crate::pb;
use crate::queue::limits::MAX_BATCH;

/// Most settlement frames sent and not answered. The channel to the connection holds as many and the opening
/// frames, so the task never waits to write and never stops reading.
const MAX_FRAMES_IN_FLIGHT: usize = 32;
/// The start, and the question whether it was accepted.
const OPENING_FRAMES: usize = 2;

/// Reason of a status by which the broker announces that it shuts down in order.
const DRAINING: &str = "BROKER_DRAINING";

/// An open stream.
pub(super) struct Stream {
    out: mpsc::Sender<pb::ConsumeRequest>,
    frames: tonic::Streaming<pb::ConsumeResponse>,
    /// Frames that came up to the answer that the stream is open.
    first: Vec<pb::ConsumeResponse>,
}

/// Why pumping stopped.
enum End {
    /// The program has dropped the consumer and everything it handed out.
    Finished,
    /// The stream broke; open another.
    Broken(Error),
}

pub(super) struct Driver {
    client: Client,
    start: pb::ConsumeStart,
    arrived: mpsc::UnboundedSender<Arrived>,
    waiting: mpsc::Receiver<Pending>,
    /// Deliveries of streams before this number are void.
    void_before: Arc<AtomicU64>,
    /// Number of the present stream, from 1.
    stream: u64,
    unanswered: Unanswered,
    backoff: Backoff,
}

impl Driver {
    pub(super) fn new(
        client: Client,
        start: pb::ConsumeStart,
        arrived: mpsc::UnboundedSender<Arrived>,
        waiting: mpsc::Receiver<Pending>,
        void_before: Arc<AtomicU64>,
    ) -> Self {
        let unanswered = Unanswered::new();
        Self { client, start, arrived, waiting, void_before, stream: 0, unanswered, backoff: Backoff::default() }
    }

    /// Opens a stream, once, and waits until the broker has accepted it.
    pub(super) async fn open(&mut self) -> Result<Stream, Error> {
        let stream = tokio::time::timeout(self.client.options().request_timeout, self.try_open())
            .await
            .map_err(|_| Error::unanswered("the broker did not open the consume stream in time"))??;
        self.stream += 1;
        Ok(stream)
    }

    async fn try_open(&self) -> Result<Stream, Error> {
        let (out, requests) = mpsc::channel(MAX_FRAMES_IN_FLIGHT + OPENING_FRAMES);
        let start = pb::consume_request::Frame::Start(self.start.clone());
        let sent = out.try_send(pb::ConsumeRequest { frame: Some(start) });
        sent.expect("an empty channel takes the start");
        // The broker says nothing to a start that it accepts, but it answers every settlement frame. So one without
        // settlements tells an open stream from one that is about to be refused.
        assert!(send(&out, &[]), "a channel that is read from takes the opening frames");
        let mut frames = self.client.queue().consume(ReceiverStream::new(requests)).await?.into_inner();
        let mut first = Vec::new();
        loop {
            let ended = || Error::unanswered("the broker ended the consume stream");
            let mut frame = frames.message().await?.ok_or_else(ended)?;
            let is_accepted = !frame.settled.is_empty();
            if is_accepted {
                frame.settled.remove(0);
            }
            first.push(frame);
            if is_accepted {
                return Ok(Stream { out, frames, first });
            }
        }
    }

    /// Pumps one stream after the other until the program is done or the broker refuses for good.
    pub(super) async fn run(mut self, first: Stream) {
        let mut stream = first;
        loop {
            let error = match self.pump(stream).await {
                End::Finished => return,
                End::Broken(error) => error,
            };
            if error.reason() != Some(DRAINING) {
                self.void_before.store(self.stream + 1, Ordering::Release);
            }
            stream = match self.reopen(error).await {
                Ok(Some(stream)) => stream,
                Ok(None) => return,
                Err(error) => {
                    // Nobody is left to tell if the consumer was dropped.
                    let _ = self.arrived.send(Arrived::Failed(error));
                    return;
                }
            };
        }
    }

    /// Opens another stream, with waits, until it works; `None` when the program is done meanwhile.
    async fn reopen(&mut self, mut error: Error) -> Result<Option<Stream>, Error> {
        loop {
            if !error.is_temporary() {
                return Err(error);
            }
            let wait = self.backoff.next_wait();
            tracing::debug!(%error, ?wait, "the consume stream ended; opening it again");
            tokio::time::sleep(wait).await;
            let settled = self.unanswered.iter().flatten().all(|pending| pending.reply.is_closed());
            if self.waiting.is_closed() && self.waiting.is_empty() && settled {
                return Ok(None);
            }
            match self.open().await {
                Ok(stream) => return Ok(Some(stream)),
                Err(again) => error = again,
            }
        }
    }

    async fn pump(&mut self, stream: Stream) -> End {
        let Stream { out, mut frames, first } = stream;
        for frame in first {
            if let Err(error) = self.take(frame) {
                return End::Broken(error);
            }
        }
        for pending in &self.unanswered {
            if !send(&out, pending) {
                return End::Broken(Error::unanswered("the consume stream broke"));
            }
        }
        let mut batch = Vec::new();
        let mut open = true;
        loop {
            if !open && self.unanswered.is_empty() {
                return End::Finished;
            }
            let room = open && self.unanswered.len() < MAX_FRAMES_IN_FLIGHT;
            tokio::select! {
                taken = self.waiting.recv_many(&mut batch, MAX_BATCH), if room => {
                    if taken == 0 {
                        open = false;
                        continue;
                    }
                    let pending = in_frame_order(std::mem::take(&mut batch));
                    let sent = send(&out, &pending);
                    self.unanswered.push_back(pending);
                    if !sent {
                        return End::Broken(Error::unanswered("the consume stream broke"));
                    }
                }
                frame = frames.message() => match frame {
                    Ok(Some(frame)) => {
                        if let Err(error) = self.take(frame) {
                            return End::Broken(error);
                        }
                    }
                    Ok(None) => return End::Broken(Error::unanswered("the broker ended the consume stream")),
                    Err(status) => return End::Broken(status.into()),
                },
            }
        }
    }

    /// Hands on what one frame of the broker carries.
    fn take(&mut self, frame: pb::ConsumeResponse) -> Result<(), Error> {
        self.backoff.reset();
        for delivery in frame.deliveries {
            // Deliveries that come after the consumer was dropped go back when the stream ends.
            let _ = self.arrived.send(Arrived::Delivery(self.stream, Box::new(delivery)));
        }
        for settled in frame.settled {
            let pending = self.unanswered.pop_front().ok_or_else(|| Error::protocol("an answer to no settlement"))?;
            if !answer(pending, settled.results) {
                return Err(Error::protocol("a settlement frame was answered with another number of results"));
            }
        }
        Ok(())
    }
}

/// Puts a settlement frame on its way; `false` if the connection is gone.
fn send(out: &mpsc::Sender<pb::ConsumeRequest>, pending: &[Pending]) -> bool {
    let frame = pb::consume_request::Frame::Settlements(frame(pending));
    out.try_send(pb::ConsumeRequest { frame: Some(frame) }).is_ok()
}
