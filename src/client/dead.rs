//! Dead letters, and the deletion of topics: the calls that are answered more than once.

use super::{Client, Error};
use crate::pb;

/// The answers to a call that is answered more than once. Dropping it cancels the call.
#[derive(Debug)]
pub struct Answers<T>(tonic::Streaming<T>);

impl<T> Answers<T> {
    /// The next answer; `None`: that was the last one.
    ///
    /// # Errors
    /// The call broke, or the broker ended it; what was answered before holds.
    pub async fn next(&mut self) -> Result<Option<T>, Error> {
        Ok(self.0.message().await?)
    }
}

impl Client {
    /// A page of the dead letters of a topic that `filter` selects, oldest first, and the token of the next page unless
    /// this is the last. `page_size` is 1 to 1,000; start with an empty token.
    ///
    /// # Errors
    /// `TOPIC_NOT_FOUND`, a bad field or token, or a call that broke.
    pub async fn dead_letters(
        &self,
        topic: &str,
        filter: pb::DeadLetterFilter,
        page_size: u32,
        page_token: &str,
    ) -> Result<(Vec<pb::MessageInfo>, Option<String>), Error> {
        let (topic, page_token) = (topic.to_owned(), page_token.to_owned());
        let request = pb::ListDeadLettersRequest { topic, page_size, page_token, filter: Some(filter) };
        let page = self.admin().list_dead_letters(self.request(request)).await?.into_inner();
        Ok((page.messages, Some(page.next_page_token).filter(|token| !token.is_empty())))
    }

    /// Makes dead letters ready again, with all their attempts. Dropping the answers stops that after the step under
    /// way.
    ///
    /// # Errors
    /// `TOPIC_NOT_FOUND`, a bad field, or a call that broke; a redrive may be repeated.
    pub async fn redrive(
        &self,
        request: pb::RedriveDeadLettersRequest,
    ) -> Result<Answers<pb::RedriveDeadLettersResponse>, Error> {
        Ok(Answers(self.admin().redrive_dead_letters(request).await?.into_inner()))
    }

    /// Deletes dead letters for good. Dropping the answers stops that after the step under way.
    ///
    /// # Errors
    /// `TOPIC_NOT_FOUND`, a bad field, or a call that broke; a purge may be repeated.
    pub async fn purge(
        &self,
        request: pb::PurgeDeadLettersRequest,
    ) -> Result<Answers<pb::PurgeDeadLettersResponse>, Error> {
        Ok(Answers(self.admin().purge_dead_letters(request).await?.into_inner()))
    }

    /// Whole dead letters of a topic that `filter` selects, as of now, oldest first.
    ///
    /// # Errors
    /// `TOPIC_NOT_FOUND`, a bad field, or a call that broke.
    pub async fn export_dead_letters(
        &self,
        topic: &str,
        filter: pb::DeadLetterFilter,
    ) -> Result<Answers<pb::ExportDeadLettersResponse>, Error> {
        let request = pb::ExportDeadLettersRequest { topic: topic.to_owned(), filter: Some(filter) };
        Ok(Answers(self.admin().export_dead_letters(request).await?.into_inner()))
    }

    /// Deletes a topic, with all its messages if `purge` says so. The first answer means that it is gone, durably; the
    /// others tell how its disk space is given back, which goes on without them.
    ///
    /// # Errors
    /// `TOPIC_NOT_FOUND`, `TOPIC_NOT_EMPTY`, or a call that broke; a deletion may be repeated.
    pub async fn delete_topic(&self, name: &str, purge: bool) -> Result<Answers<pb::DeleteTopicResponse>, Error> {
        let request = pb::DeleteTopicRequest { name: name.to_owned(), purge };
        Ok(Answers(self.admin().delete_topic(request).await?.into_inner()))
    }
}
