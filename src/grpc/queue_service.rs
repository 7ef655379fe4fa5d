//! `duewheel.v1.QueueService`.

use tonic::{Request, Response, Status, Streaming};

use super::batch::Batch;
use super::broker::Broker;
use super::errors::Fault;
use super::to_wire::{delivery, produce_results, settlement_results};
use super::{batch::Results, consume, from_wire, produce, to_wire};
use crate::engine::EngineHandle;
use crate::pb::queue_service_server::QueueService;
use crate::pb::{
    AckRequest, AckResponse, CancelRequest, CancelResponse, ConsumeRequest, ExtendRequest, ExtendResponse,
    FetchRequest, FetchResponse, GetMessageRequest, GetMessageResponse, NackRequest, NackResponse, ProduceRequest,
    ProduceResponse, ProduceStreamRequest, RescheduleRequest, RescheduleResponse,
};
use crate::queue::command::{Command, Reply};

/// Serves `QueueService` on a broker.
pub struct Queue {
    broker: Broker,
}

impl Queue {
    /// The service on `broker`.
    #[must_use]
    pub fn new(broker: Broker) -> Self {
        Self { broker }
    }
}

#[tonic::async_trait]
impl QueueService for Queue {
    async fn produce(&self, request: Request<ProduceRequest>) -> Result<Response<ProduceResponse>, Status> {
        let (engine, request) = (self.broker.engine()?, request.into_inner());
        let batch = from_wire::produce(&request.topic, request.messages)?;
        let results = produce_results(apply_all(engine, batch).await?);
        Ok(Response::new(ProduceResponse { results }))
    }

    type ProduceStreamStream = produce::Responses;

    async fn produce_stream(
        &self,
        request: Request<Streaming<ProduceStreamRequest>>,
    ) -> Result<Response<Self::ProduceStreamStream>, Status> {
        Ok(Response::new(produce::serve(self.broker.engine()?.clone(), request.into_inner())))
    }

    type ConsumeStream = consume::Responses;

    async fn consume(
        &self,
        request: Request<Streaming<ConsumeRequest>>,
    ) -> Result<Response<Self::ConsumeStream>, Status> {
        Ok(Response::new(consume::serve(self.broker.engine()?.clone(), request.into_inner())))
    }

    async fn fetch(&self, request: Request<FetchRequest>) -> Result<Response<FetchResponse>, Status> {
        let engine = self.broker.engine()?;
        let fetch = from_wire::fetch(request.get_ref())?;
        let leased = engine.fetch(fetch).await.map_err(Fault::from)?.map_err(Fault::from)?;
        let deliveries = leased.iter().map(|leased| delivery(leased, engine.receipt_key())).collect();
        Ok(Response::new(FetchResponse { deliveries }))
    }

    async fn ack(&self, request: Request<AckRequest>) -> Result<Response<AckResponse>, Status> {
        let engine = self.broker.engine()?;
        let batch = from_wire::acks(request.into_inner().receipts, engine.receipt_key())?;
        let results = settlement_results(apply_all(engine, batch).await?);
        Ok(Response::new(AckResponse { results }))
    }

    async fn nack(&self, request: Request<NackRequest>) -> Result<Response<NackResponse>, Status> {
        let engine = self.broker.engine()?;
        let batch = from_wire::nacks(request.into_inner().nacks, engine.receipt_key())?;
        let results = settlement_results(apply_all(engine, batch).await?);
        Ok(Response::new(NackResponse { results }))
    }

    async fn extend(&self, request: Request<ExtendRequest>) -> Result<Response<ExtendResponse>, Status> {
        let engine = self.broker.engine()?;
        let batch = from_wire::extends(request.into_inner().extends, engine.receipt_key())?;
        let results = settlement_results(apply_all(engine, batch).await?);
        Ok(Response::new(ExtendResponse { results }))
    }

    async fn cancel(&self, request: Request<CancelRequest>) -> Result<Response<CancelResponse>, Status> {
        let engine = self.broker.engine()?;
        match apply(engine, from_wire::cancel(request.into_inner())?).await? {
            Reply::Cancel(reply) => Ok(Response::new(to_wire::cancelled(reply))),
            other => unreachable!("a cancel is not answered by {other:?}"),
        }
    }

    async fn reschedule(&self, request: Request<RescheduleRequest>) -> Result<Response<RescheduleResponse>, Status> {
        let engine = self.broker.engine()?;
        match apply(engine, from_wire::reschedule(request.into_inner())?).await? {
            Reply::Reschedule(reply) => Ok(Response::new(to_wire::rescheduled(reply))),
            other => unreachable!("a reschedule is not answered by {other:?}"),
        }
    }

    async fn get_message(&self, request: Request<GetMessageRequest>) -> Result<Response<GetMessageResponse>, Status> {
        let (engine, request) = (self.broker.engine()?, request.into_inner());
        let (topic, target) = from_wire::target(&request.topic, request.message)?;
        let seen = engine.message(topic.clone(), target).await.map_err(Fault::from)?.map_err(Fault::from)?;
        let seen = seen.ok_or_else(Fault::message_not_found)?;
        let message = Some(to_wire::seen(&topic, &seen, request.omit_body));
        Ok(Response::new(GetMessageResponse { message }))
    }
}

/// Applies one command.
pub(super) async fn apply(engine: &EngineHandle, command: Command) -> Result<Reply, Fault> {
    Ok(engine.apply(command).await??)
}

async fn apply_all(engine: &EngineHandle, mut batch: Batch) -> Result<Results, Fault> {
    let commands = batch.take_commands();
    let answers = if commands.is_empty() { Vec::new() } else { engine.apply_all(commands).await? };
    Ok(batch.answered(answers))
}
