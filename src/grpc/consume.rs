//! A consume stream: deliveries go out, settlements come in, and their answers go out in order.
//!
//! One task serves a stream. Deliveries and answers that come together share a frame, and while the client
//! does not read, the frame fills up to its bound; then nothing more is taken from the engine or from the
//! client. So an unread stream holds its window and one frame, and blocks nobody else.
//!
//! Dropping the engine's `Consumer` gives the leases back. That happens when the client's side ends, after
//! the settlements it had sent are applied; if the broker stops, the engine keeps the leases. When a topic of a stream is
//! deleted, the stream ends as a whole.

use std::collections::VecDeque;
use std::time::Duration;

use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::batch::Batch;
use super::broker::stopped;
use super::errors::Fault;
use super::pipeline::Pipeline;
use super::to_wire::{delivery, settlement_results};
use super::{FRAME_BYTES, from_wire};
use crate::engine::{Consumer, EngineHandle};
use crate::pb::consume_request::Frame;
use crate::pb::{ConsumeRequest, ConsumeResponse, SettlementResults};
use crate::queue::command::Delivery;
use crate::queue::values::TopicName;

/// Frames that wait for the connection.
const WAITING_FRAMES: usize = 2;
/// Most deliveries of a frame.
const FRAME_DELIVERIES: usize = 1_000;
/// A client that opens a stream must say within this time what it wants.
const START_WITHIN: Duration = Duration::from_secs(10);

/// The frames of a consume stream.
pub(super) type Responses = ReceiverStream<Result<ConsumeResponse, Status>>;

/// Serves a consume stream in a task of its own, which ends with the stream.
pub(super) fn serve(engine: EngineHandle, requests: Streaming<ConsumeRequest>) -> Responses {
    let (frames, received) = mpsc::channel(WAITING_FRAMES);
    tokio::spawn(async move {
        // The client may be gone before it hears why its stream ended.
        if let Err(fault) = run(engine, requests, &frames).await {
            let _ = frames.send(Err(fault.into())).await;
        }
    });
    ReceiverStream::new(received)
}

type Frames = mpsc::Sender<Result<ConsumeResponse, Status>>;

async fn run(engine: EngineHandle, mut requests: Streaming<ConsumeRequest>, frames: &Frames) -> Result<(), Fault> {
    let Some(consumer) = open(&engine, &mut requests).await? else {
        return Ok(());
    };
    let mut stream = Stream {
        pipeline: Pipeline::new(engine.clone()),
        engine,
        consumer,
        taken: VecDeque::new(),
        response: ConsumeResponse::default(),
        response_bytes: 0,
    };
    match stream.exchange(&mut requests, frames).await {
        Ending::Gone => Ok(()),
        Ending::Client(result) => {
            stream.drop_deliveries();
            stream.flush(frames).await;
            result
        }
        Ending::Deleted(topic) => {
            stream.flush(frames).await;
            Err(Fault::topic_not_found(&topic))
        }
        Ending::Broker => {
            stream.flush(frames).await;
            Err(stopped(stream.engine.clone()).await)
        }
    }
}

/// Reads the first frame and opens the stream; `None` if the client has gone.
async fn open(engine: &EngineHandle, requests: &mut Streaming<ConsumeRequest>) -> Result<Option<Consumer>, Fault> {
    let first = tokio::select! {
        first = tokio::time::timeout(START_WITHIN, requests.message()) => first,
        fault = stopped(engine.clone()) => return Err(fault),
    };
    let start = match first {
        Ok(Ok(Some(ConsumeRequest { frame: Some(Frame::Start(start)) }))) => start,
        Ok(Ok(_)) => return Err(Fault::invalid("start", "must be the first frame")),
        Ok(Err(_)) => return Ok(None),
        Err(_) => {
            let problem = format!("must come within {} s", START_WITHIN.as_secs());
            return Err(Fault::invalid("start", problem));
        }
    };
    let (name, windows) = from_wire::start(&start).map_err(|fault| fault.under("start"))?;
    let consumer = engine.consume(name, windows).await?.map_err(Fault::from)?;
    Ok(Some(consumer))
}

/// Why a stream ends.
enum Ending {
    /// Nobody reads the stream any more.
    Gone,
    /// The client has finished, or has sent what cannot be served.
    Client(Result<(), Fault>),
    /// A topic of the stream was deleted.
    Deleted(TopicName),
    /// The broker drains or has failed.
    Broker,
}

struct Stream {
    engine: EngineHandle,
    consumer: Consumer,
    pipeline: Pipeline,
    /// Deliveries taken from the engine that do not fit the next frame.
    taken: VecDeque<Delivery>,
    /// The next frame.
    response: ConsumeResponse,
    response_bytes: usize,
}

impl Stream {
    async fn exchange(&mut self, requests: &mut Streaming<ConsumeRequest>, frames: &Frames) -> Ending {
        loop {
            self.fill();
            let (may_answer, may_deliver) = (self.has_room(), self.has_room() && self.taken.is_empty());
            let (may_take, may_send) = (self.pipeline.has_room(), !self.is_response_empty());
            // Sending comes last: what is there already goes into the same frame.
            tokio::select! {
                biased;
                () = frames.closed() => return Ending::Gone,
                progress = self.pipeline.progress(), if may_answer => if let Some(results) = progress {
                    self.settled(settlement_results(results));
                },
                batch = self.consumer.next(), if may_deliver => match batch {
                    Some(batch) => self.taken.extend(batch),
                    None => return self.ending(),
                },
                request = requests.message(), if may_take => match request.map(|request| request.map(|r| r.frame)) {
                    Ok(Some(frame)) => match self.settlements(frame) {
                        Ok(batch) => self.pipeline.push(batch),
                        Err(fault) => return Ending::Client(Err(fault)),
                    },
                    Ok(None) => return Ending::Client(Ok(())),
                    Err(_) => return Ending::Gone,
                },
                permit = frames.reserve(), if may_send => match permit {
                    Ok(permit) => permit.send(Ok(self.take_response())),
                    Err(_) => return Ending::Gone,
                },
            }
        }
    }

    /// Why the engine has ended the stream.
    fn ending(&self) -> Ending {
        self.consumer.deleted_topic().map_or(Ending::Broker, |topic| Ending::Deleted(topic.clone()))
    }

    fn settlements(&self, frame: Option<Frame>) -> Result<Batch, Fault> {
        match frame {
            Some(Frame::Settlements(frame)) => from_wire::settlements(frame, self.engine.receipt_key()),
            Some(Frame::Start(_)) => Err(Fault::invalid("start", "must be the first frame only")),
            None => Err(Fault::invalid("frame", "is required: settlements")),
        }
    }

    /// Sends what is taken and answers what is under way.
    async fn flush(&mut self, frames: &Frames) {
        loop {
            self.fill();
            let may_answer = self.has_room() && !self.pipeline.is_idle();
            let may_send = !self.is_response_empty();
            if !may_answer && !may_send {
                return;
            }
            tokio::select! {
                biased;
                () = frames.closed() => return,
                results = self.pipeline.next(), if may_answer => self.settled(settlement_results(results)),
                permit = frames.reserve(), if may_send => match permit {
                    Ok(permit) => permit.send(Ok(self.take_response())),
                    Err(_) => return,
                },
            }
        }
    }

    /// Forgets the deliveries that the client has not been sent: their leases are about to be given back.
    fn drop_deliveries(&mut self) {
        self.taken.clear();
        self.response.deliveries.clear();
    }

    fn fill(&mut self) {
        while self.has_room() {
            let Some(next) = self.taken.pop_front() else { return };
            let next = delivery(&next, self.engine.receipt_key());
            self.response_bytes += next.encoded_len();
            self.response.deliveries.push(next);
        }
    }

    fn settled(&mut self, results: Vec<crate::pb::SettlementResult>) {
        let results = SettlementResults { results };
        self.response_bytes += results.encoded_len();
        self.response.settled.push(results);
    }

    fn has_room(&self) -> bool {
        self.response_bytes < FRAME_BYTES && self.response.deliveries.len() < FRAME_DELIVERIES
    }

    fn is_response_empty(&self) -> bool {
        self.response.deliveries.is_empty() && self.response.settled.is_empty()
    }

    fn take_response(&mut self) -> ConsumeResponse {
        self.response_bytes = 0;
        std::mem::take(&mut self.response)
    }
}
