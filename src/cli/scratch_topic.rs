//! The topics that `bench` and `verify` make for themselves: deleted in the end, or named with how to delete them.

use super::exit::{is_unknown_topic, say};
use super::session::Session;
use crate::client::{Client, Error};

/// Deletes the topics with all that is in them. Those that cannot be deleted are named.
pub(super) async fn delete(session: &Session, topics: &[String]) {
    if topics.is_empty() {
        return;
    }
    let mut left = Vec::new();
    match session.connect().await {
        Ok(client) => {
            for topic in topics {
                match delete_one(&client, topic).await {
                    Ok(()) => {}
                    Err(error) if is_unknown_topic(&error) => {}
                    Err(_) => left.push(topic.clone()),
                }
            }
        }
        Err(_) => left = topics.to_vec(),
    }
    tell_left(&left);
}

/// Says which topics are left, and how to delete them.
pub(super) fn tell_left(topics: &[String]) {
    for topic in topics {
        say(&format!("topic {topic} is left; delete it with: duewheel topic delete {topic} --purge --yes"));
    }
}

/// The first answer says that it is gone; that its disk space is given back may take the broker until its next fold, and
/// is not waited for.
async fn delete_one(client: &Client, topic: &str) -> Result<(), Error> {
    client.delete_topic(topic, true).await?.next().await?;
    Ok(())
}
