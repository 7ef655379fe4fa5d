//! Connections that are cut, silent, slow, or not read: what was sent is done or not done as a whole, leases come back,
//! and nobody else waits.

mod grpc_harness;
#[path = "network/proxy.rs"]
mod proxy;
mod support;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use duewheel::pb;
use duewheel::pb::queue_service_client::QueueServiceClient;
use duewheel::server::Settings;
use grpc_harness::{Consuming, Running, is_pending, message, produce, settings, within};
use proxy::{OPEN, Proxy, Way, Ways};
use support::Broker;
use tempfile::TempDir;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

const TOPIC: &str = "orders";

/// A broker on a real store and its clock; the directory goes with it.
async fn broker(own: Settings) -> (Running, TempDir) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let running = Running::serving(Settings { data_dir: directory.path().join("data"), ..own }).await;
    running.wait_until_serving().await;
    running.create_topic(TOPIC, pb::TopicSettings::default()).await;
    (running, directory)
}

async fn connect(address: SocketAddr) -> Result<QueueServiceClient<Channel>, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    Ok(QueueServiceClient::new(endpoint.connect().await?))
}

/// A batch whose messages each have a dedup id.
fn batch(name: &str) -> pb::ProduceRequest {
    let one = |n: usize| pb::NewMessage {
        dedup_id: format!("{name}-{n}"),
        ..message(&format!("{name}-{n}"), &"order ".repeat(40))
    };
    pb::ProduceRequest { topic: TOPIC.to_owned(), messages: (0..3).map(one).collect() }
}

async fn send(client: &mut QueueServiceClient<Channel>, request: pb::ProduceRequest) -> Result<Vec<String>, Status> {
    let results = client.produce(request).await?.into_inner().results;
    let id = |result: pb::ProduceResult| match result.result {
        Some(pb::produce_result::Result::Produced(produced)) => produced.id,
        other => panic!("not produced: {other:?}"),
    };
    Ok(results.into_iter().map(id).collect())
}

#[tokio::test]
async fn a_connection_cut_anywhere_in_a_call_leaves_the_call_done_or_not_done_and_a_repeat_changes_nothing() {
    let (running, _directory) = broker(settings()).await;
    let mut direct = running.queue().await;
    let (mut ids, mut lost, mut done) = (BTreeSet::new(), 0, 0);
    let cuts = (1..1_300).step_by(61).map(|at| Ways { up: Way::CutAfter(at), down: Way::Open });
    let answers = (1..400).step_by(23).map(|at| Ways { up: Way::Open, down: Way::CutAfter(at) });
    for (n, ways) in cuts.chain(answers).enumerate() {
        let proxy = Proxy::before(running.grpc, ways).await;
        let request = batch(&n.to_string());
        let first = match within(connect(proxy.address)).await {
            Ok(mut client) => within(send(&mut client, request.clone())).await.ok(),
            Err(_) => None,
        };
        let before = running.stats(TOPIC).await.produced;
        let again = within(send(&mut direct, request)).await.expect("the way is open");
        let added = running.stats(TOPIC).await.produced - before;
        assert!(added == 0 || added == 3, "{ways:?}: {added} of 3 were new");
        assert!(first.is_none() || first.as_ref() == Some(&again), "{ways:?}: another answer");
        lost += u32::from(first.is_none() && added == 0);
        done += u32::from(first.is_some());
        ids.extend(again);
    }
    assert!(lost > 3 && done > 3, "{lost} answers were lost after the deed, {done} came");
    assert_eq!(running.stats(TOPIC).await.produced, ids.len() as u64);
    running.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn a_peer_that_has_gone_silent_loses_its_leases_when_the_keep_alive_fails() {
    let beat = Duration::from_millis(300);
    let (running, _directory) =
        broker(Settings { keepalive_interval: beat, keepalive_timeout: beat, ..settings() }).await;
    let proxy = Proxy::before(running.grpc, OPEN).await;
    let mut far = connect(proxy.address).await.expect("the way is open");
    let mut near = running.queue().await;
    let mut silent = Consuming::start(&mut far, TOPIC, 10).await;
    produce(&mut near, TOPIC, vec![message("", "body")]).await;
    let leased = silent.deliveries(1).await;
    // A peer that answers keeps its lease over any number of beats.
    let mut other = Consuming::start(&mut near, TOPIC, 10).await;
    let waiting = tokio::time::timeout(beat * 4, other.next()).await;
    assert!(waiting.is_err() || waiting.is_ok_and(|frame| frame.expect("a frame").deliveries.is_empty()));
    proxy.set(Ways { up: Way::Silent, down: Way::Silent });
    let again = other.deliveries(1).await;
    assert_eq!(again[0].id, leased[0].id);
    assert!(again[0].redelivered);
    assert_eq!(again[0].attempt, leased[0].attempt, "a lease that was given back spends no attempt");
    drop(silent);
    drop(other);
    running.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn a_call_that_trickles_in_is_served_and_nobody_waits_for_it() {
    let (running, _directory) = broker(settings()).await;
    let slowly = Ways { up: Way::Trickle, down: Way::Trickle };
    let proxy = Proxy::before(running.grpc, slowly).await;
    let mut slow = within(connect(proxy.address)).await.expect("slowly");
    let mut trickling = tokio::spawn(async move { send(&mut slow, batch("slow")).await });
    let mut quick = running.queue().await;
    for n in 0..20 {
        within(send(&mut quick, batch(&n.to_string()))).await.expect("the way is open");
    }
    assert!(is_pending(&mut trickling).await || trickling.is_finished());
    assert_eq!(within(trickling).await.expect("no panic").expect("it is served").len(), 3);
    assert_eq!(running.stats(TOPIC).await.produced, 63);
    running.stop().await.expect("a clean stop");
}

/// Streams that are not read hold what fits their buffers, not their windows.
#[tokio::test]
async fn streams_that_nobody_reads_cost_little_memory_and_hold_nobody_up() {
    const STREAMS: usize = 12;
    const BODY: usize = 16 << 10;
    let broker = Broker::start();
    broker.ok(&["topic", "create", TOPIC]);
    broker.ok(&["topic", "create", "others"]);
    let mut direct = connect(broker.grpc).await.expect("the broker accepts");
    for _ in 0..100 {
        let messages = (0..60).map(|_| message("", &"x".repeat(BODY))).collect();
        produce(&mut direct, TOPIC, messages).await;
    }
    let before = resident_mib(&broker);
    let (mut streams, mut proxies) = (Vec::new(), Vec::new());
    for _ in 0..STREAMS {
        let proxy = Proxy::before(broker.grpc, OPEN).await;
        let mut client = connect(proxy.address).await.expect("the way is open");
        let stream = Consuming::start(&mut client, TOPIC, 500).await;
        proxy.set(Ways { up: Way::Open, down: Way::Stalled });
        streams.push(stream);
        proxies.push(proxy);
    }
    // All of it is leased, or waits; and the other topic is served as if they were not there.
    let mut reader = Consuming::start(&mut direct, "others", 10).await;
    for n in 0..50 {
        produce(&mut direct, "others", vec![message(&n.to_string(), "body")]).await;
        let delivery = reader.deliveries(1).await.remove(0);
        reader.ack(vec![delivery.receipt]).await;
    }
    let grown = resident_mib(&broker).saturating_sub(before);
    // The windows of all streams hold 94 MiB.
    assert!(grown < 64, "{grown} MiB more for {STREAMS} streams");
    drop((streams, proxies));
    // Their leases are given back: one reader gets everything.
    let mut rest = Consuming::start(&mut direct, TOPIC, 1_000).await;
    let mut seen = BTreeSet::new();
    while seen.len() < 6_000 {
        let deliveries = rest.deliveries(1).await;
        let receipts = deliveries.iter().map(|delivery| delivery.receipt.clone()).collect();
        seen.extend(deliveries.into_iter().map(|delivery| delivery.id));
        rest.ack(receipts).await;
    }
}

fn resident_mib(broker: &Broker) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", broker.process_id())).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line");
    line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("a number") / 1_024
}
