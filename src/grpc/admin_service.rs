//! `duewheel.v1.AdminService`.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::broker::Broker;
use super::dead_job::{Doing, Job};
use super::errors::Fault;
use super::{
    audit, backup, broker_info, dead_export, dead_job, dead_letters, delete_topic, from_wire, list, page_token, stats,
    time, to_wire, topic_settings,
};
use crate::engine::EngineHandle;
use crate::pb;
use crate::pb::admin_service_server::AdminService;
use crate::queue::change::TopicRecord;
use crate::queue::command::{Command, Reply};
use crate::queue::limits::{DEFAULT_PURGE_RATE, DEFAULT_REDRIVE_RATE};
use crate::queue::values::TopicName;

/// Answers of a call that is answered more than once.
type Answers<T> = ReceiverStream<Result<T, Status>>;

/// Serves `AdminService` on a broker.
pub struct Admin {
    broker: Broker,
    /// Held from reading a topic's settings until they are replaced, so that of two updates of different
    /// fields neither undoes the other.
    updates: Arc<Mutex<()>>,
}

impl Admin {
    /// The service on `broker`.
    #[must_use]
    pub fn new(broker: Broker) -> Self {
        Self { broker, updates: Arc::default() }
    }

    async fn set_paused(&self, name: &str, paused: bool) -> Result<Option<pb::Topic>, Fault> {
        let engine = self.broker.engine()?;
        let name = from_wire::topic("name", name)?;
        put_topic(engine, Command::SetPaused { name, paused }, audit::paused).await
    }
}

#[tonic::async_trait]
impl AdminService for Admin {
    async fn create_topic(
        &self,
        request: Request<pb::CreateTopicRequest>,
    ) -> Result<Response<pb::CreateTopicResponse>, Status> {
        let (engine, request) = (self.broker.engine()?, request.into_inner());
        let name = from_wire::topic("name", &request.name)?;
        let settings = topic_settings::created(request.settings.as_ref())?;
        let topic = put_topic(engine, Command::CreateTopic { name, settings }, audit::created).await?;
        Ok(Response::new(pb::CreateTopicResponse { topic }))
    }

    async fn get_topic(&self, request: Request<pb::GetTopicRequest>) -> Result<Response<pb::GetTopicResponse>, Status> {
        let engine = self.broker.engine()?;
        let record = find_topic(engine, &from_wire::topic("name", &request.get_ref().name)?).await?;
        Ok(Response::new(pb::GetTopicResponse { topic: Some(to_wire::topic(&record)) }))
    }

    async fn update_topic(
        &self,
        request: Request<pb::UpdateTopicRequest>,
    ) -> Result<Response<pb::UpdateTopicResponse>, Status> {
        let (engine, request) = (self.broker.engine()?, request.into_inner());
        let name = from_wire::topic("name", &request.name)?;
        let updating = Arc::clone(&self.updates).lock_owned().await;
        let present = find_topic(engine, &name).await?.settings;
        let mask = request.update_mask.unwrap_or_default();
        let settings = topic_settings::updated(present.clone(), request.settings.as_ref(), &mask)?;
        let tell = move |topic: &TopicRecord| {
            audit::updated(topic, &present);
            drop(updating);
        };
        let topic = put_topic(engine, Command::UpdateTopic { name, settings }, tell).await?;
        Ok(Response::new(pb::UpdateTopicResponse { topic }))
    }

    async fn list_topics(
        &self,
        request: Request<pb::ListTopicsRequest>,
    ) -> Result<Response<pb::ListTopicsResponse>, Status> {
        let (engine, request) = (self.broker.engine()?, request.into_inner());
        let size = page_token::page_size(request.page_size)?;
        let after = page_token::parse_topics(&request.page_token)?;
        let mut records = engine.topics(after, size + 1).await.map_err(Fault::from)?;
        let next = page_token::cut(&mut records, size).map(|record| page_token::topics_after(&record.name));
        let topics = records.iter().map(to_wire::topic).collect();
        Ok(Response::new(pb::ListTopicsResponse { topics, next_page_token: next.unwrap_or_default() }))
    }

    async fn pause_topic(
        &self,
        request: Request<pb::PauseTopicRequest>,
    ) -> Result<Response<pb::PauseTopicResponse>, Status> {
        let topic = self.set_paused(&request.get_ref().name, true).await?;
        Ok(Response::new(pb::PauseTopicResponse { topic }))
    }

    async fn resume_topic(
        &self,
        request: Request<pb::ResumeTopicRequest>,
    ) -> Result<Response<pb::ResumeTopicResponse>, Status> {
        let topic = self.set_paused(&request.get_ref().name, false).await?;
        Ok(Response::new(pb::ResumeTopicResponse { topic }))
    }

    async fn get_stats(&self, request: Request<pb::GetStatsRequest>) -> Result<Response<pb::GetStatsResponse>, Status> {
        let engine = self.broker.engine()?;
        let pb::GetStatsRequest { topic: name, timeline, page_size, page_token } = request.get_ref();
        if name.is_empty() {
            if *timeline {
                return Err(Fault::invalid("timeline", "needs a topic; name one in 'topic'").into());
            }
            return Ok(Response::new(stats::page(engine, *page_size, page_token).await?));
        }
        let topic = from_wire::topic("topic", name)?;
        if !page_token.is_empty() {
            return Err(Fault::invalid("page_token", "is of no use with a topic: one topic has no pages").into());
        }
        let stats = if *timeline { engine.stats_with_timeline(topic).await } else { engine.stats(Some(topic)).await };
        let stats = stats.map_err(Fault::from)?.map_err(Fault::from)?;
        Ok(Response::new(to_wire::stats(&stats, String::new())))
    }

    async fn list_dead_letters(
        &self,
        request: Request<pb::ListDeadLettersRequest>,
    ) -> Result<Response<pb::ListDeadLettersResponse>, Status> {
        Ok(Response::new(dead_letters::list(self.broker.engine()?, request.get_ref()).await?))
    }

    type RedriveDeadLettersStream = Answers<pb::RedriveDeadLettersResponse>;

    async fn redrive_dead_letters(
        &self,
        request: Request<pb::RedriveDeadLettersRequest>,
    ) -> Result<Response<Self::RedriveDeadLettersStream>, Status> {
        let (engine, request) = (self.broker.engine()?, request.into_inner());
        let topic = from_wire::topic("topic", &request.topic)?;
        let job = Job {
            engine: engine.clone(),
            selection: dead_letters::selection(&request.ids, request.filter.as_ref(), request.limit)?,
            rate: dead_job::rate(request.rate_per_second, DEFAULT_REDRIVE_RATE)?,
            dry_run: request.dry_run,
            doing: Doing::Redrive,
            answer: to_wire::redrive_progress,
            topic,
        };
        find_topic(engine, &job.topic).await?;
        Ok(Response::new(dead_job::start(job)))
    }

    type PurgeDeadLettersStream = Answers<pb::PurgeDeadLettersResponse>;

    async fn purge_dead_letters(
        &self,
        request: Request<pb::PurgeDeadLettersRequest>,
    ) -> Result<Response<Self::PurgeDeadLettersStream>, Status> {
        let (engine, request) = (self.broker.engine()?, request.into_inner());
        let topic = from_wire::topic("topic", &request.topic)?;
        let job = Job {
            engine: engine.clone(),
            selection: dead_letters::selection(&request.ids, request.filter.as_ref(), request.limit)?,
            rate: dead_job::rate(request.rate_per_second, DEFAULT_PURGE_RATE)?,
            dry_run: request.dry_run,
            doing: Doing::Purge,
            answer: to_wire::purge_progress,
            topic,
        };
        find_topic(engine, &job.topic).await?;
        Ok(Response::new(dead_job::start(job)))
    }

    type ExportDeadLettersStream = Answers<pb::ExportDeadLettersResponse>;

    async fn export_dead_letters(
        &self,
        request: Request<pb::ExportDeadLettersRequest>,
    ) -> Result<Response<Self::ExportDeadLettersStream>, Status> {
        let (engine, request) = (self.broker.engine()?, request.into_inner());
        let topic = from_wire::topic("topic", &request.topic)?;
        let filter = dead_letters::filter_from_wire(&request.filter.unwrap_or_default());
        let filter = filter.map_err(|fault| fault.under("filter"))?;
        find_topic(engine, &topic).await?;
        Ok(Response::new(dead_export::start(engine.clone(), topic, filter)))
    }

    type DeleteTopicStream = Answers<pb::DeleteTopicResponse>;

    async fn delete_topic(
        &self,
        request: Request<pb::DeleteTopicRequest>,
    ) -> Result<Response<Self::DeleteTopicStream>, Status> {
        let (engine, purge) = (self.broker.engine()?, request.get_ref().purge);
        let name = from_wire::topic("name", &request.get_ref().name)?;
        let topic = name.clone();
        let tell = move |reply: &Reply| {
            if let Reply::TopicDeleted(deleted) = reply {
                audit::deleted(&topic, purge, deleted);
            }
        };
        match audit::apply(engine, Command::DeleteTopic { name, purge }, tell).await? {
            Reply::TopicDeleted(deleted) => Ok(Response::new(delete_topic::tell(engine.clone(), deleted))),
            other => unreachable!("a deletion is not answered by {other:?}"),
        }
    }

    async fn list_messages(
        &self,
        request: Request<pb::ListMessagesRequest>,
    ) -> Result<Response<pb::ListMessagesResponse>, Status> {
        Ok(Response::new(list::messages(self.broker.engine()?, request.into_inner()).await?))
    }

    async fn get_broker(&self, _: Request<pb::GetBrokerRequest>) -> Result<Response<pb::GetBrokerResponse>, Status> {
        let view = self.broker.engine()?.broker().await.map_err(Fault::from)?;
        Ok(Response::new(pb::GetBrokerResponse { broker: Some(broker_info::info(&view)) }))
    }

    async fn adopt_clock(
        &self,
        request: Request<pb::AdoptClockRequest>,
    ) -> Result<Response<pb::AdoptClockResponse>, Status> {
        let engine = self.broker.engine()?.clone();
        let expected = request.get_ref().expected_offset;
        let expected = expected.map(|span| time::signed_span_ms("expected_offset", span)).transpose()?;
        let adoption = audit::to_its_end(async move {
            let adoption = engine.adopt_clock(expected).await??;
            audit::clock_adopted(&adoption);
            Ok(adoption)
        });
        let adoption = adoption.await?;
        Ok(Response::new(broker_info::adopted(&adoption)))
    }

    type BackupStream = backup::Responses;

    async fn backup(&self, _request: Request<pb::BackupRequest>) -> Result<Response<Self::BackupStream>, Status> {
        Ok(Response::new(backup::serve(self.broker.engine()?).await?))
    }
}

async fn find_topic(engine: &EngineHandle, name: &TopicName) -> Result<TopicRecord, Fault> {
    engine.topic(name.clone()).await?.ok_or_else(|| Fault::topic_not_found(name))
}

/// Applies a command that is answered by a topic, which `tell` tells. Of its fields only the settings can be out of
/// range.
async fn put_topic(
    engine: &EngineHandle,
    command: Command,
    tell: impl FnOnce(&TopicRecord) + Send + 'static,
) -> Result<Option<pb::Topic>, Fault> {
    let tell = |reply: &Reply| {
        if let Reply::Topic(topic) = reply {
            tell(topic);
        }
    };
    match audit::apply(engine, command, tell).await.map_err(|fault| fault.under("settings"))? {
        Reply::Topic(record) => Ok(Some(to_wire::topic(&record))),
        other => unreachable!("a topic command is not answered by {other:?}"),
    }
}
