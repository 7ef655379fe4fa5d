//! A request of any method, and how it must be refused.

use duewheel::pb::admin_service_client::AdminServiceClient;
use duewheel::pb::queue_service_client::QueueServiceClient;
use duewheel::pb::{self, produce_result, settlement_result};
use prost_types::Duration;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::grpc_harness::item_status;

/// Seconds of a day.
pub(crate) const DAY_S: i64 = 24 * 60 * 60;

/// A request of any method.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Produce(pb::ProduceRequest),
    Fetch(pb::FetchRequest),
    Ack(pb::AckRequest),
    Nack(pb::NackRequest),
    Extend(pb::ExtendRequest),
    Cancel(pb::CancelRequest),
    Reschedule(pb::RescheduleRequest),
    GetMessage(pb::GetMessageRequest),
    CreateTopic(pb::CreateTopicRequest),
    UpdateTopic(pb::UpdateTopicRequest),
    GetTopic(pb::GetTopicRequest),
    PauseTopic(pb::PauseTopicRequest),
    ListTopics(pb::ListTopicsRequest),
    GetStats(pb::GetStatsRequest),
    ListDeadLetters(pb::ListDeadLettersRequest),
    Redrive(pb::RedriveDeadLettersRequest),
    Purge(pb::PurgeDeadLettersRequest),
    Export(pb::ExportDeadLettersRequest),
    DeleteTopic(pb::DeleteTopicRequest),
    ListMessages(pb::ListMessagesRequest),
    AdoptClock(pb::AdoptClockRequest),
}

impl Call {
    /// Makes the call; an error of the last item counts as the error of the call.
    pub(crate) async fn make(self, channel: &Channel) -> Result<(), Status> {
        let mut queue = QueueServiceClient::new(channel.clone());
        let mut admin = AdminServiceClient::new(channel.clone());
        match self {
            Self::Produce(request) => match queue.produce(request).await?.into_inner().results.pop() {
                Some(pb::ProduceResult { result: Some(produce_result::Result::Error(item)) }) => {
                    Err(item_status(&item))
                }
                _ => Ok(()),
            },
            Self::Ack(request) => settled(queue.ack(request).await?.into_inner().results),
            Self::Nack(request) => settled(queue.nack(request).await?.into_inner().results),
            Self::Extend(request) => settled(queue.extend(request).await?.into_inner().results),
            Self::Fetch(request) => queue.fetch(request).await.map(drop),
            Self::Cancel(request) => queue.cancel(request).await.map(drop),
            Self::Reschedule(request) => queue.reschedule(request).await.map(drop),
            Self::GetMessage(request) => queue.get_message(request).await.map(drop),
            Self::CreateTopic(request) => admin.create_topic(request).await.map(drop),
            Self::UpdateTopic(request) => admin.update_topic(request).await.map(drop),
            Self::GetTopic(request) => admin.get_topic(request).await.map(drop),
            Self::PauseTopic(request) => admin.pause_topic(request).await.map(drop),
            Self::ListTopics(request) => admin.list_topics(request).await.map(drop),
            Self::GetStats(request) => admin.get_stats(request).await.map(drop),
            Self::ListDeadLetters(request) => admin.list_dead_letters(request).await.map(drop),
            Self::Redrive(request) => admin.redrive_dead_letters(request).await.map(drop),
            Self::Purge(request) => admin.purge_dead_letters(request).await.map(drop),
            Self::Export(request) => admin.export_dead_letters(request).await.map(drop),
            Self::DeleteTopic(request) => admin.delete_topic(request).await.map(drop),
            Self::ListMessages(request) => admin.list_messages(request).await.map(drop),
            Self::AdoptClock(request) => admin.adopt_clock(request).await.map(drop),
        }
    }
}

fn settled(mut results: Vec<pb::SettlementResult>) -> Result<(), Status> {
    match results.pop() {
        Some(pb::SettlementResult { result: Some(settlement_result::Result::Error(item)) }) => Err(item_status(&item)),
        _ => Ok(()),
    }
}

/// What is sent, and how it must be refused.
pub(crate) struct Case {
    pub(crate) call: Call,
    pub(crate) code: Code,
    pub(crate) reason: &'static str,
    /// The field that is named; empty: none.
    pub(crate) field: &'static str,
    /// A part of the text: the limit, if there is one.
    pub(crate) says: &'static str,
}

pub(crate) fn span(seconds: i64, nanos: i32) -> Duration {
    Duration { seconds, nanos }
}

/// Refused for no field of it.
pub(crate) fn refused(call: Call, code: Code, reason: &'static str) -> Case {
    Case { call, code, reason, field: "", says: "" }
}

/// Refused for a field that is malformed.
pub(crate) fn invalid(call: Call, field: &'static str) -> Case {
    Case { call, code: Code::InvalidArgument, reason: "INVALID_FIELD", field, says: "" }
}

/// Refused for a field that is beyond a limit, which is told.
pub(crate) fn over(call: Call, field: &'static str, limit: &'static str) -> Case {
    Case { says: limit, ..invalid(call, field) }
}
