//! A produce stream: requests are pipelined, responses come in the order of the requests.

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::broker::stopped;
use super::errors::Fault;
use super::from_wire;
use super::pipeline::Pipeline;
use super::to_wire::produce_results;
use crate::engine::EngineHandle;
use crate::pb::{ProduceStreamRequest, ProduceStreamResponse};

/// Responses that wait for the connection. Beyond it nothing more is taken from the client.
const WAITING_RESPONSES: usize = 4;

/// The responses of a produce stream.
pub(super) type Responses = ReceiverStream<Result<ProduceStreamResponse, Status>>;

/// Serves a produce stream in a task of its own, which ends with the stream.
pub(super) fn serve(engine: EngineHandle, requests: Streaming<ProduceStreamRequest>) -> Responses {
    let (responses, received) = mpsc::channel(WAITING_RESPONSES);
    let stream = Stream { pipeline: Pipeline::new(engine.clone()), engine, response: None, responses };
    tokio::spawn(stream.run(requests));
    ReceiverStream::new(received)
}

struct Stream {
    engine: EngineHandle,
    pipeline: Pipeline,
    /// Answered, but the channel has no room for it yet.
    response: Option<ProduceStreamResponse>,
    responses: mpsc::Sender<Result<ProduceStreamResponse, Status>>,
}

impl Stream {
    async fn run(mut self, mut requests: Streaming<ProduceStreamRequest>) {
        let mut stopped = std::pin::pin!(stopped(self.engine.clone()));
        let ending = loop {
            let (may_take, may_answer) = (self.pipeline.has_room(), self.response.is_none());
            tokio::select! {
                biased;
                () = self.responses.closed() => return,
                permit = self.responses.reserve(), if !may_answer => {
                    let Ok(permit) = permit else { return };
                    permit.send(Ok(self.response.take().expect("a response waits")));
                }
                progress = self.pipeline.progress(), if may_answer => if let Some(results) = progress {
                    self.response = Some(ProduceStreamResponse { results: produce_results(results) });
                },
                fault = &mut stopped => break Some(fault),
                request = requests.message(), if may_take => match request {
                    Ok(Some(request)) => {
                        match from_wire::produce(&request.topic, request.messages) {
                            Ok(batch) => self.pipeline.push(batch),
                            Err(fault) => break Some(fault),
                        }
                    }
                    Ok(None) => break None,
                    Err(_) => return,
                },
            }
        };
        self.finish(ending).await;
    }

    /// Answers what was taken, then ends the stream.
    async fn finish(mut self, ending: Option<Fault>) {
        loop {
            if let Some(response) = self.response.take()
                && self.responses.send(Ok(response)).await.is_err()
            {
                return;
            }
            if self.pipeline.is_idle() {
                break;
            }
            self.response = Some(ProduceStreamResponse { results: produce_results(self.pipeline.next().await) });
        }
        if let Some(fault) = ending {
            // The client may be gone; then nobody needs the status.
            let _ = self.responses.send(Err(fault.into())).await;
        }
    }
}
