//! Connections of the load generator: frames of the wire, with as little as possible between them and the load.
//!
//! The typed client hands every settlement to its own caller. Here a frame is settled by one frame, so that on a
//! machine that broker and load generator share most of the time goes to the broker.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use crate::client::Error;
use crate::pb;
use crate::pb::queue_service_client::QueueServiceClient;

/// Frames that may wait to be written to a connection.
const FRAMES_WAITING: usize = 64;
/// Larger than any frame of the broker.
const MAX_FRAME_BYTES: usize = 64 * 1024 * 1024;
/// Receive windows of HTTP/2, bytes: a stream, and a connection.
const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;

/// Opens a connection of its own.
pub(super) async fn connect(endpoint: &str) -> Result<QueueServiceClient<Channel>, Error> {
    let endpoint = Endpoint::from_shared(endpoint.to_owned()).map_err(|error| Error::from(unreachable(&error)))?;
    let channel = endpoint
        .tcp_nodelay(true)
        .connect_timeout(Duration::from_secs(5))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .connect()
        .await
        .map_err(|error| Error::from(unreachable(&error)))?;
    Ok(QueueServiceClient::new(channel).max_decoding_message_size(MAX_FRAME_BYTES))
}

fn unreachable(error: &tonic::transport::Error) -> tonic::Status {
    tonic::Status::unavailable(error.to_string())
}

/// A connection that produces to one topic: over a stream, or by calls.
pub(super) struct ProduceLink {
    topic: String,
    how: How,
}

enum How {
    Stream { frames: mpsc::Sender<pb::ProduceStreamRequest>, answers: Streaming<pb::ProduceStreamResponse> },
    Calls { queue: QueueServiceClient<Channel>, answered: Option<Vec<pb::ProduceResult>> },
}

impl ProduceLink {
    /// Opens a connection; with `unary`, one that makes a call for each frame.
    pub(super) async fn open(endpoint: &str, topic: &str, unary: bool) -> Result<Self, Error> {
        let mut queue = connect(endpoint).await?;
        let how = if unary {
            How::Calls { queue, answered: None }
        } else {
            let (frames, waiting) = mpsc::channel(FRAMES_WAITING);
            let answers = queue.produce_stream(ReceiverStream::new(waiting)).await?.into_inner();
            How::Stream { frames, answers }
        };
        Ok(Self { topic: topic.to_owned(), how })
    }

    /// Sends a frame. By calls there is one frame on the way at a time: this waits for its answer.
    pub(super) async fn send(&mut self, messages: Vec<pb::NewMessage>) -> Result<(), Error> {
        let topic = self.topic.clone();
        match &mut self.how {
            How::Stream { frames, answers } => {
                let sent = frames.send(pb::ProduceStreamRequest { topic, messages }).await;
                if sent.is_err() {
                    // The stream has ended; what it ended with says why.
                    answers.message().await?;
                    return Err(ended());
                }
            }
            How::Calls { queue, answered } => {
                let response = queue.produce(pb::ProduceRequest { topic, messages }).await?;
                *answered = Some(response.into_inner().results);
            }
        }
        Ok(())
    }

    /// The results of the oldest frame that was not answered.
    pub(super) async fn answer(&mut self) -> Result<Vec<pb::ProduceResult>, Error> {
        match &mut self.how {
            How::Stream { answers, .. } => Ok(answers.message().await?.ok_or_else(ended)?.results),
            How::Calls { answered, .. } => answered.take().ok_or_else(ended),
        }
    }

    /// Frames that can be on the way at once.
    pub(super) fn max_frames(&self) -> usize {
        match self.how {
            How::Stream { .. } => FRAMES_WAITING,
            How::Calls { .. } => 1,
        }
    }
}

/// A connection that consumes one topic over a stream.
pub(super) struct ConsumeLink {
    frames: mpsc::UnboundedSender<pb::ConsumeRequest>,
    incoming: Streaming<pb::ConsumeResponse>,
}

impl ConsumeLink {
    /// Opens a connection with a stream on an empty topic that holds up to `window` messages, and waits until the
    /// broker serves it.
    pub(super) async fn open(endpoint: &str, topic: &str, window: u32) -> Result<Self, Error> {
        let mut link = Self::ask(endpoint, topic, window).await?;
        // Every settlement frame is answered, so an empty one tells when the stream is open. The topic is empty yet:
        // nothing but this answer can come.
        link.settle(pb::Settlements::default())?;
        link.receive().await?;
        Ok(link)
    }

    /// Opens a connection with a stream that holds up to `window` messages.
    pub(super) async fn ask(endpoint: &str, topic: &str, window: u32) -> Result<Self, Error> {
        let mut queue = connect(endpoint).await?;
        let (frames, outgoing) = mpsc::unbounded_channel();
        let topics = vec![pb::TopicWindow { topic: topic.to_owned(), window, lease: None }];
        let start = pb::ConsumeStart { consumer: "bench".to_owned(), topics };
        send(&frames, pb::consume_request::Frame::Start(start))?;
        let incoming = queue.consume(UnboundedReceiverStream::new(outgoing)).await?.into_inner();
        Ok(Self { frames, incoming })
    }

    /// The next frame of the broker. Cancel safe.
    pub(super) async fn receive(&mut self) -> Result<pb::ConsumeResponse, Error> {
        self.incoming.message().await?.ok_or_else(ended)
    }

    /// Sends settlements; the windows bound how many can be waiting.
    pub(super) fn settle(&self, settlements: pb::Settlements) -> Result<(), Error> {
        send(&self.frames, pb::consume_request::Frame::Settlements(settlements))
    }
}

fn send(frames: &mpsc::UnboundedSender<pb::ConsumeRequest>, frame: pb::consume_request::Frame) -> Result<(), Error> {
    frames.send(pb::ConsumeRequest { frame: Some(frame) }).map_err(|_| ended())
}

fn ended() -> Error {
    tonic::Status::unavailable("the broker has ended the stream").into()
}
