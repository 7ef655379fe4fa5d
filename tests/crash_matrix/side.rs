//! What happens beside the load: topics that come and go with their messages, commits larger than a segment, and backups
//! that are read slowly, so that folds happen meanwhile.

use std::net::SocketAddr;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use duewheel::client::{Client, Due, Error, NewMessage, Options};
use duewheel::pb;

/// Between two looks at the count of folds.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
const FAR: Duration = Duration::from_hours(30);

/// Starts it; it ends when nobody answers any more.
pub(crate) fn start(address: SocketAddr) -> JoinHandle<()> {
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let ended = runtime.block_on(async {
            let client = Client::connect_lazy(Options::new(format!("http://{address}")))?;
            for n in 0.. {
                round(&client, &format!("side-{n}")).await?;
            }
            Ok::<(), Error>(())
        });
        drop(ended);
    })
}

async fn round(client: &Client, topic: &str) -> Result<(), Error> {
    client.create_topic(topic, pb::TopicSettings::default()).await?;
    let message = |bytes| NewMessage::new(vec![7; bytes]).due(Due::In(FAR));
    client.produce_all(topic, vec![message(1_000); 40]).await?;
    // Together larger than a segment.
    client.produce_all(topic, vec![message(40_000); 9]).await?;
    folds(client, 1).await?;
    let mut backup = client.backup().await?;
    folds(client, 2).await?;
    while backup.next().await?.is_some() {}
    let mut deletion = client.delete_topic(topic, true).await?;
    while deletion.next().await?.is_some() {}
    Ok(())
}

/// Waits for so many folds.
async fn folds(client: &Client, count: u64) -> Result<(), Error> {
    let done = async || Ok::<u64, Error>(client.stats(None).await?.broker.map_or(0, |broker| broker.folds));
    let wanted = done().await? + count;
    while done().await? < wanted {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    Ok(())
}
