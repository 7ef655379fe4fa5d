//! `duewheel.v1.AdminService`.

use prost::Message as _;
use tokio::sync::Mutex;
use tonic::{Request, Response, Status};

use super::broker::Broker;
use super::errors::Fault;
use super::queue_service::apply;
use super::{FRAME_BYTES, backup, from_wire, page_token, to_wire, topic_settings};
use crate::engine::EngineHandle;
use crate::pb;
use crate::pb::admin_service_server::AdminService;
use crate::queue::change::TopicRecord;
use crate::queue::command::{Command, Reply};
use crate::queue::values::TopicName;
use crate::queue::view::LiveView;

/// Serves `AdminService` on a broker.
pub struct Admin {
    broker: Broker,
    /// Held from reading a topic's settings until they are replaced, so that of two updates of different
    /// fields neither undoes the other.
    updates: Mutex<()>,
}

impl Admin {
    /// The service on `broker`.
    #[must_use]
    pub fn new(broker: Broker) -> Self {
        Self { broker, updates: Mutex::new(()) }
    }

    async fn set_paused(&self, name: &str, paused: bool) -> Result<Option<pb::Topic>, Fault> {
        let engine = self.broker.engine()?;
        let name = from_wire::topic("name", name)?;
        put_topic(engine, Command::SetPaused { name, paused }).await
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
        let topic = put_topic(engine, Command::CreateTopic { name, settings }).await?;
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
        let _updating = self.updates.lock().await;
        let present = find_topic(engine, &name).await?.settings;
        let mask = request.update_mask.unwrap_or_default();
        let settings = topic_settings::updated(present, request.settings.as_ref(), &mask)?;
        let topic = put_topic(engine, Command::UpdateTopic { name, settings }).await?;
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
        let is_last = records.len() <= size;
        records.truncate(size);
        let next = records.last().filter(|_| !is_last).map(|record| page_token::topics_after(&record.name));
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
        let (engine, name) = (self.broker.engine()?, &request.get_ref().topic);
        let topic = if name.is_empty() { None } else { Some(from_wire::topic("topic", name)?) };
        let stats = engine.stats(topic).await.map_err(Fault::from)?.map_err(Fault::from)?;
        let topics = stats.topics.iter().map(to_wire::topic_stats).collect();
        Ok(Response::new(pb::GetStatsResponse { topics, broker: Some(to_wire::broker_stats(&stats.broker)) }))
    }

    async fn list_dead_letters(
        &self,
        request: Request<pb::ListDeadLettersRequest>,
    ) -> Result<Response<pb::ListDeadLettersResponse>, Status> {
        let (engine, request) = (self.broker.engine()?, request.into_inner());
        let topic = from_wire::topic("topic", &request.topic)?;
        let size = page_token::page_size(request.page_size)?;
        let after = page_token::parse_dead_letters(&request.page_token, &topic)?;
        let listed = engine.dead_letters(topic.clone(), after, size + 1).await;
        let views = listed.map_err(Fault::from)?.map_err(Fault::from)?;
        Ok(Response::new(dead_letter_page(engine, &topic, views, size)))
    }

    async fn redrive_dead_letters(
        &self,
        request: Request<pb::RedriveDeadLettersRequest>,
    ) -> Result<Response<pb::RedriveDeadLettersResponse>, Status> {
        let engine = self.broker.engine()?;
        let commands = from_wire::redrive(request.get_ref())?;
        let is_batch = commands.len() > 1;
        let mut results = Vec::with_capacity(commands.len());
        for answer in engine.apply_all(commands).await.map_err(Fault::from)? {
            let answer = answer.map_err(Fault::from);
            match answer.map_err(|fault| if is_batch { fault.of_batch() } else { fault })? {
                Reply::Redrive(reply) => results.push(to_wire::redriven(reply).into()),
                other => unreachable!("a redrive is not answered by {other:?}"),
            }
        }
        Ok(Response::new(pb::RedriveDeadLettersResponse { results }))
    }

    type BackupStream = backup::Responses;

    async fn backup(&self, _request: Request<pb::BackupRequest>) -> Result<Response<Self::BackupStream>, Status> {
        Ok(Response::new(backup::serve(self.broker.engine()?).await?))
    }
}

async fn find_topic(engine: &EngineHandle, name: &TopicName) -> Result<TopicRecord, Fault> {
    engine.topic(name.clone()).await?.ok_or_else(|| Fault::topic_not_found(name))
}

/// Applies a command that is answered by a topic. Of its fields only the settings can be out of range.
async fn put_topic(engine: &EngineHandle, command: Command) -> Result<Option<pb::Topic>, Fault> {
    match apply(engine, command).await.map_err(|fault| fault.under("settings"))? {
        Reply::Topic(record) => Ok(Some(to_wire::topic(&record))),
        other => unreachable!("a topic command is not answered by {other:?}"),
    }
}

/// A page of up to `size` dead letters; shorter if their histories are long.
fn dead_letter_page(
    engine: &EngineHandle,
    topic: &TopicName,
    views: Vec<LiveView>,
    size: usize,
) -> pb::ListDeadLettersResponse {
    let mut page = pb::ListDeadLettersResponse::default();
    let (mut bytes, mut last, count) = (0, None, views.len());
    for view in views.into_iter().take(size) {
        if bytes >= FRAME_BYTES {
            break;
        }
        last = view.message.progress.dead.map(|(_, at)| (at, view.message.id.arrival));
        let info = to_wire::dead_letter(view, engine.now());
        bytes += info.encoded_len();
        page.messages.push(info);
    }
    if page.messages.len() < count
        && let Some((at, arrival)) = last
    {
        page.next_page_token = page_token::dead_letters_after(topic, at, arrival);
    }
    page
}
