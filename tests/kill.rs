//! The real program killed again and again under load, with ledgers kept by its clients.
//!
//! Producers, consumers and a canceller write down what they ask for before they ask, and what they are answered.
//! The broker is killed with SIGKILL at random moments and started again on the same data. In the end the ledger
//! must agree with what the broker did: no acknowledged produce lost, nothing acked or cancelled comes back,
//! nothing early, and no more duplicates than deliveries were in flight at the kills.
//!
//! `DUEWHEEL_KILLS` sets the number of kills (default 30), `DUEWHEEL_SEED` the seed of the load.

#[path = "kill/canceller.rs"]
mod canceller;
#[path = "kill/consumer.rs"]
mod consumer;
#[path = "kill/ledger.rs"]
mod ledger;
#[path = "kill/producer.rs"]
mod producer;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use duewheel::pb::admin_service_client::AdminServiceClient;
use duewheel::pb::{GetStatsRequest, TopicStats};
use fastrand::Rng;
use ledger::Ledger;
use support::Broker;
use tonic::transport::{Channel, Endpoint};

const TOPIC: &str = "orders";

/// What all clients share.
struct World {
    endpoint: Endpoint,
    ledger: Ledger,
    /// Producers and the canceller stop; consumers only ack.
    is_draining: AtomicBool,
    /// Everybody stops.
    is_over: AtomicBool,
}

impl World {
    /// A connection to the broker, as soon as there is one; `None` if everything is over first.
    async fn connect(&self) -> Option<Channel> {
        while !self.is_over.load(Ordering::Relaxed) {
            match self.endpoint.connect().await {
                Ok(channel) => return Some(channel),
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
        None
    }
}

fn number_from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_and_nothing_settled_comes_back_over_many_kills() {
    let kills = number_from_env("DUEWHEEL_KILLS").unwrap_or(30);
    let seed = number_from_env("DUEWHEEL_SEED").unwrap_or_else(|| fastrand::u64(0..1 << 40));
    println!("DUEWHEEL_SEED={seed} DUEWHEEL_KILLS={kills}");
    let mut random = Rng::with_seed(seed);

    // Small generations, so that folds fall between and into the kills.
    let mut broker = Broker::start_with(&["--journal-generation", "256KiB"]);
    broker.ok(&[
        "topic",
        "create",
        TOPIC,
        "--schedule",
        "50ms,100ms,200ms",
        "--max-attempts",
        "10000",
        "--error-schedule",
        "20ms",
        "--lease",
        "1s",
        "--min-redelivery-gap",
        "10ms",
        "--max-returns",
        "1000",
        "--max-deliveries",
        "100000",
    ]);
    let endpoint = Endpoint::from_shared(broker.endpoint()).expect("a good address").tcp_nodelay(true);
    let world = Arc::new(World {
        endpoint,
        ledger: Ledger::default(),
        is_draining: AtomicBool::new(false),
        is_over: AtomicBool::new(false),
    });
    let mut clients = tokio::task::JoinSet::new();
    for n in 0..2 {
        clients.spawn(producer::run(Arc::clone(&world), seed ^ (n + 1)));
        clients.spawn(consumer::run(Arc::clone(&world), seed ^ (n + 100)));
    }
    clients.spawn(canceller::run(Arc::clone(&world), seed ^ 0x1_000));

    for _ in 0..kills {
        // The moment of the kill is what is random here.
        tokio::time::sleep(Duration::from_millis(random.u64(50..400))).await;
        world.ledger.note_kill();
        broker = tokio::task::spawn_blocking(move || broker.kill_and_restart()).await.expect("the broker starts again");
    }
    world.is_draining.store(true, Ordering::Relaxed);
    let stats = drained(&world).await;
    world.is_over.store(true, Ordering::Relaxed);
    while let Some(ended) = clients.join_next().await {
        ended.expect("a client panicked");
    }
    world.ledger.settle_accounts(&stats, kills);
    drop(broker);
}

/// Waits until no message waits or is worked on, and gives the counts.
async fn drained(world: &World) -> TopicStats {
    for _ in 0..6_000 {
        let channel = world.connect().await.expect("not over yet");
        let request = GetStatsRequest { topic: TOPIC.to_owned(), timeline: false };
        if let Ok(response) = AdminServiceClient::new(channel).get_stats(request).await {
            let stats = response.into_inner().topics.pop().expect("the topic exists");
            if stats.scheduled + stats.ready + stats.leased == 0 && world.ledger.all_retries_answered() {
                return stats;
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the broker does not run empty");
}
