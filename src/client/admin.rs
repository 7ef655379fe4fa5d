//! Administration: topics, statistics, health.

use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::convert::{instant, signed_span};
use super::{Client, Error};
use crate::pb;
use crate::queue::limits::MAX_PAGE_SIZE;
use crate::queue::time::Timestamp;

/// Which messages are listed.
#[derive(Clone, Debug, Default)]
pub struct MessageFilter {
    /// Only in this state; `None`: scheduled, ready and leased.
    pub state: Option<pb::MessageState>,
    /// Only due at this instant or later.
    pub due_from: Option<Timestamp>,
    /// Only due before this instant.
    pub due_until: Option<Timestamp>,
    /// Only the live message that holds this key.
    pub key: Option<String>,
}

impl Client {
    /// Creates a topic; unset settings take their defaults.
    ///
    /// # Errors
    /// `TOPIC_EXISTS`, `TOO_MANY_TOPICS`, a bad field, or a call that broke.
    pub async fn create_topic(&self, name: &str, settings: pb::TopicSettings) -> Result<pb::Topic, Error> {
        let request = self.request(pb::CreateTopicRequest { name: name.to_owned(), settings: Some(settings) });
        topic(self.admin().create_topic(request).await?.into_inner().topic)
    }

    /// A topic with its settings.
    ///
    /// # Errors
    /// `TOPIC_NOT_FOUND`, or a call that broke.
    pub async fn topic(&self, name: &str) -> Result<pb::Topic, Error> {
        let request = self.request(pb::GetTopicRequest { name: name.to_owned() });
        topic(self.admin().get_topic(request).await?.into_inner().topic)
    }

    /// Changes the named settings; one that is named and unset goes back to its default.
    ///
    /// # Errors
    /// `TOPIC_NOT_FOUND`, a bad field, or a call that broke.
    pub async fn update_topic(
        &self,
        name: &str,
        settings: pb::TopicSettings,
        fields: &[&str],
    ) -> Result<pb::Topic, Error> {
        let paths = fields.iter().map(|&field| field.to_owned()).collect();
        let update_mask = Some(prost_types::FieldMask { paths });
        let request = pb::UpdateTopicRequest { name: name.to_owned(), settings: Some(settings), update_mask };
        topic(self.admin().update_topic(self.request(request)).await?.into_inner().topic)
    }

    /// All topics by name.
    ///
    /// # Errors
    /// A call that broke.
    pub async fn topics(&self) -> Result<Vec<pb::Topic>, Error> {
        let mut topics = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = self.request(pb::ListTopicsRequest { page_size: MAX_PAGE_SIZE, page_token });
            let page = self.admin().list_topics(request).await?.into_inner();
            topics.extend(page.topics);
            if page.next_page_token.is_empty() {
                return Ok(topics);
            }
            page_token = page.next_page_token;
        }
    }

    /// Stops new leases of a topic; leased messages and producing go on.
    ///
    /// # Errors
    /// `TOPIC_NOT_FOUND`, or a call that broke.
    pub async fn pause_topic(&self, name: &str) -> Result<pb::Topic, Error> {
        let request = self.request(pb::PauseTopicRequest { name: name.to_owned() });
        topic(self.admin().pause_topic(request).await?.into_inner().topic)
    }

    /// Allows leases of a topic again.
    ///
    /// # Errors
    /// `TOPIC_NOT_FOUND`, or a call that broke.
    pub async fn resume_topic(&self, name: &str) -> Result<pb::Topic, Error> {
        let request = self.request(pb::ResumeTopicRequest { name: name.to_owned() });
        topic(self.admin().resume_topic(request).await?.into_inner().topic)
    }

    /// Counts and lateness of one topic, or of all by name when `topic` is `None`, and the state of the broker. A
    /// thousand topics are asked for at a time.
    ///
    /// # Errors
    /// `TOPIC_NOT_FOUND`, or a call that broke.
    pub async fn stats(&self, topic: Option<&str>) -> Result<pb::GetStatsResponse, Error> {
        let mut request = pb::GetStatsRequest { topic: topic.unwrap_or_default().to_owned(), ..Default::default() };
        let mut topics = Vec::new();
        loop {
            let mut page = self.admin().get_stats(self.request(request.clone())).await?.into_inner();
            topics.append(&mut page.topics);
            request.page_token = std::mem::take(&mut page.next_page_token);
            if request.page_token.is_empty() {
                return Ok(pb::GetStatsResponse { topics, ..page });
            }
        }
    }

    /// As [`Client::stats`] of one topic, with the number of messages that fall due in each of the next minutes, hours
    /// and days.
    ///
    /// # Errors
    /// `TOPIC_NOT_FOUND`, or a call that broke.
    pub async fn stats_with_timeline(&self, topic: &str) -> Result<pb::GetStatsResponse, Error> {
        let request =
            self.request(pb::GetStatsRequest { topic: topic.to_owned(), timeline: true, ..Default::default() });
        Ok(self.admin().get_stats(request).await?.into_inner())
    }

    /// What runs: version, start, clock, limits, room on the disk.
    ///
    /// # Errors
    /// A call that broke.
    pub async fn broker(&self) -> Result<pb::BrokerInfo, Error> {
        let answer = self.admin().get_broker(self.request(pb::GetBrokerRequest {})).await?.into_inner();
        answer.broker.ok_or_else(|| Error::protocol("an answer without a broker"))
    }

    /// Makes the broker's clock follow the wall clock of its machine: forward at once, back by standing still for a
    /// minute at most. With `expected_offset_ms` (wall clock minus broker's clock) only if that is still so, to within a
    /// second. Returns the clock before and after.
    ///
    /// # Errors
    /// `CLOCK_OFFSET_CHANGED`, `CLOCK_TOO_FAR_BEHIND`, or a call that broke.
    pub async fn adopt_clock(
        &self,
        expected_offset_ms: Option<i64>,
    ) -> Result<(pb::ClockState, pb::ClockState), Error> {
        let request = pb::AdoptClockRequest { expected_offset: expected_offset_ms.map(signed_span) };
        let answer = self.admin().adopt_clock(self.request(request)).await?.into_inner();
        answer.before.zip(answer.after).ok_or_else(|| Error::protocol("an answer without a clock"))
    }

    /// A page of the messages of a topic that the filter lets through, by due time, and the token of the next page
    /// unless this is the last. A page may be empty and have a next one. `page_size` is 1 to 1,000; start with an
    /// empty token, and keep the filter.
    ///
    /// # Errors
    /// `TOPIC_NOT_FOUND`, a bad field or token, `PAGES_MOVING`, or a call that broke.
    pub async fn messages(
        &self,
        topic: &str,
        filter: &MessageFilter,
        page_size: u32,
        page_token: &str,
    ) -> Result<(Vec<pb::MessageInfo>, Option<String>), Error> {
        let request = pb::ListMessagesRequest {
            topic: topic.to_owned(),
            state: filter.state.unwrap_or_default().into(),
            due_from: filter.due_from.map(instant),
            due_until: filter.due_until.map(instant),
            key: filter.key.clone().unwrap_or_default(),
            page_size,
            page_token: page_token.to_owned(),
        };
        let page = self.admin().list_messages(self.request(request)).await?.into_inner();
        Ok((page.messages, Some(page.next_page_token).filter(|token| !token.is_empty())))
    }

    /// Whether the broker serves. It does not while it recovers, drains, or after a failed commit.
    ///
    /// # Errors
    /// A call that broke.
    pub async fn is_serving(&self) -> Result<bool, Error> {
        let request = self.request(HealthCheckRequest { service: String::new() });
        let answer = HealthClient::new(self.channel.clone()).check(request).await?.into_inner();
        Ok(answer.status() == ServingStatus::Serving)
    }
}

fn topic(topic: Option<pb::Topic>) -> Result<pb::Topic, Error> {
    topic.ok_or_else(|| Error::protocol("an answer without a topic"))
}
