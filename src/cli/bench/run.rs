//! What every workload has at hand: the broker, its place on this machine, the signals, the progress.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::machine::Place;
use crate::cli::broker_command::BrokerLog;
use crate::cli::exit::Failure;
use crate::cli::live::Live;
use crate::cli::signals::Stop;
use crate::client::{Client, Error, Options};
use crate::clock::{Stopwatch, wall_now};
use crate::pb;

/// Between two looks at something that is waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A run.
pub(super) struct Bench {
    client: Client,
    /// Where the broker is on this machine.
    pub(super) place: Place,
    stop: Stop,
    live: Live,
    /// The topics that it has created.
    topics: Mutex<Vec<String>>,
    /// Where the brokers that it starts write to.
    broker_log: Option<BrokerLog>,
}

impl Bench {
    /// A run against the broker of `client`.
    pub(super) fn new(client: Client, place: Place, stop: Stop) -> Self {
        Self { client, place, stop, live: Live::start(), topics: Mutex::default(), broker_log: None }
    }

    /// Nothing more is measured: where the broker is, the topics of the run, and the log of the brokers it has started.
    pub(super) fn end(self) -> (Place, Vec<String>, Option<BrokerLog>) {
        let topics = self.topics.into_inner().expect("nothing panics while it holds the topics");
        (self.place, topics, self.broker_log)
    }

    /// Where a broker that is started writes to; named after a topic of the run.
    pub(super) fn broker_log(&mut self, topic: &str) -> Result<&BrokerLog, Failure> {
        if self.broker_log.is_none() {
            self.broker_log = Some(BrokerLog::create(topic)?);
        }
        Ok(self.broker_log.as_ref().expect("it was just made"))
    }

    /// URL of the broker.
    pub(super) fn endpoint(&self) -> &str {
        &self.client.options().endpoint
    }

    /// A connection for calls.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Another connection for calls.
    pub(super) async fn another_client(&self) -> Result<Client, Failure> {
        let options = Options::new(self.endpoint());
        Client::connect(options).await.map_err(|error| Failure::call("connect again", &error))
    }

    /// The signals.
    pub(super) fn stop(&self) -> &Stop {
        &self.stop
    }

    /// The next part of the run begins; returns its counter.
    pub(super) fn phase(&self, verb: &'static str, total: Option<u64>) -> Arc<AtomicU64> {
        self.live.phase(verb, total)
    }

    /// Creates a topic that nothing has used before, named after the workload.
    pub(super) async fn create_topic(&self, name: &str) -> Result<String, Failure> {
        static CREATED: AtomicU64 = AtomicU64::new(0);
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let topic = format!("bench-{name}-{:x}-{:x}{number}", wall_now().as_millis(), std::process::id());
        let created = self.client.create_topic(&topic, pb::TopicSettings::default()).await;
        created.map_err(|error| Failure::call(format!("create the topic '{topic}'"), &error))?;
        self.topics.lock().expect("nothing panics while it holds the topics").push(topic.clone());
        Ok(topic)
    }

    /// Messages of a topic that are live, due or not.
    pub(super) async fn pending(&self, topic: &str) -> Result<u64, Failure> {
        pending(&self.client, topic).await.map_err(|error| Failure::call("read the statistics", &error))
    }

    /// Waits until `condition` holds, for `limit` at most, or until a signal asks to stop.
    pub(super) async fn wait_until(&self, limit: Duration, mut condition: impl FnMut() -> bool) {
        let watch = Stopwatch::start();
        while !condition() && watch.elapsed() < limit && !self.stop.is_requested() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Waits `span`, or until a signal asks to stop.
    pub(super) async fn pause(&self, span: Duration) {
        tokio::select! {
            () = tokio::time::sleep(span) => {}
            () = self.stop.requested() => {}
        }
    }
}

/// Messages of a topic that are live, due or not.
pub(super) async fn pending(client: &Client, topic: &str) -> Result<u64, Error> {
    let stats = client.stats(Some(topic)).await?;
    Ok(stats.topics.iter().map(|topic| topic.scheduled + topic.ready + topic.leased).sum())
}

/// A flag that is set when this is dropped, on whatever way out.
pub(super) struct HaltOnDrop(pub(super) Arc<AtomicBool>);

impl Drop for HaltOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
