//! The broker without file descriptors. Alone in its process, because the limit holds for all of it.

mod grpc_harness;

use duewheel::pb;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpSocket;

use grpc_harness::{Running, message, produce, until, within};

/// The lowest descriptor that is free, or the one after it.
fn next_descriptor() -> u64 {
    let open: Vec<u64> = std::fs::read_dir("/proc/self/fd")
        .expect("a list of descriptors")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().parse().expect("a number"))
        .collect();
    (0..=open.len() as u64).find(|number| !open.contains(number)).expect("so many numbers are not all in use")
}

fn allow(descriptors: Option<u64>) {
    let limit = Rlimit { current: descriptors, maximum: getrlimit(Resource::Nofile).maximum };
    setrlimit(Resource::Nofile, limit).expect("lowering the soft limit is allowed");
}

#[tokio::test]
async fn the_broker_survives_running_out_of_file_descriptors() {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let mut queue = broker.queue().await;
    let before = getrlimit(Resource::Nofile).current;
    // Their descriptors exist already; only the broker needs new ones when they connect.
    let sockets: Vec<_> = (0..10).map(|_| TcpSocket::new_v4().expect("a socket")).collect();
    allow(Some(next_descriptor()));
    let mut connected = Vec::new();
    for socket in sockets {
        connected.push(within(socket.connect(broker.grpc)).await.expect("the system completes the connection"));
    }
    // A connection that is open goes on being served while the broker cannot accept others.
    for n in 0..20 {
        within(produce(&mut queue, "orders", vec![message(&format!("k-{n}"), "b")])).await;
    }
    allow(before);
    drop(connected);
    until(|| async { broker.stats("orders").await.produced == 20 }).await;
    broker.stop().await.expect("a clean end");
}
