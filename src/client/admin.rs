//! Administration: topics, statistics, health.

use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::{Client, Error};
use crate::pb;
use crate::queue::limits::MAX_PAGE_SIZE;

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

    /// Counts and lateness of one topic, or of all when `topic` is `None`, and the state of the broker.
    ///
    /// # Errors
    /// `TOPIC_NOT_FOUND`, or a call that broke.
    pub async fn stats(&self, topic: Option<&str>) -> Result<pb::GetStatsResponse, Error> {
        let request = self.request(pb::GetStatsRequest { topic: topic.unwrap_or_default().to_owned() });
        Ok(self.admin().get_stats(request).await?.into_inner())
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
