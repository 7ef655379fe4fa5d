//! What an operator sees and does over a real connection: when messages are due, which they are, what runs and by which
//! limits, and the clock.

mod grpc_harness;

use std::collections::BTreeMap;

use duewheel::client::{Client, Options};
use duewheel::clock::StepPolicy;
use duewheel::engine::EngineSettings;
use duewheel::pb::{self, MessageState};
use prost::Message as _;
use prost_types::{Duration, FileDescriptorSet, Timestamp};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use grpc_harness::engine_support::{Journal, START_MS, open};
use grpc_harness::{Running, fields, message, produce, reason, settings};

#[expect(clippy::unnecessary_wraps, reason = "fields of the wire are optional")]
fn span(seconds: i64) -> Option<Duration> {
    Some(Duration { seconds, nanos: 0 })
}

#[expect(clippy::unnecessary_wraps, reason = "fields of the wire are optional")]
fn start_plus(seconds: i64) -> Option<Timestamp> {
    Some(Timestamp { seconds: i64::try_from(START_MS / 1_000).expect("small") + seconds, nanos: 0 })
}

/// Message `n` of a few, due after so many seconds.
fn due_after(n: usize, seconds: i64) -> pb::NewMessage {
    let wait = pb::new_message::FirstWait::Delay(Duration { seconds, nanos: 0 });
    pb::NewMessage { first_wait: Some(wait), ..message(&format!("k{n}"), "body") }
}

/// A broker with messages due now (0, 1), in ten minutes (2), an hour and a half (3), three days (4) and a year (5).
async fn broker_with_messages() -> Running {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let delays = [0, 0, 600, 5_400, 3 * 86_400, 365 * 86_400];
    let messages = delays.into_iter().enumerate().map(|(n, seconds)| due_after(n, seconds)).collect();
    produce(&mut broker.queue().await, "orders", messages).await;
    broker
}

async fn list(broker: &Running, query: pb::ListMessagesRequest) -> Result<(Vec<String>, String), Status> {
    let query = pb::ListMessagesRequest { topic: "orders".to_owned(), ..query };
    let page = broker.admin().await.list_messages(query).await?.into_inner();
    assert!(page.messages.iter().all(|info| info.body.is_empty() && info.headers.is_empty() && !info.why.is_empty()));
    Ok((page.messages.into_iter().map(|info| info.key).collect(), page.next_page_token))
}

async fn keys(broker: &Running, query: pb::ListMessagesRequest) -> Vec<String> {
    let (keys, token) = list(broker, query).await.expect("a good query");
    assert_eq!(token, "", "one page is enough");
    keys
}

#[tokio::test]
async fn the_timeline_tells_exactly_when_messages_fall_due() {
    let broker = broker_with_messages().await;
    let request = pb::GetStatsRequest { topic: "orders".to_owned(), timeline: true, ..Default::default() };
    let stats = broker.admin().await.get_stats(request).await.expect("stats").into_inner().topics.remove(0);
    assert_eq!((stats.scheduled, stats.ready, stats.oldest_ready_due_at), (4, 2, start_plus(0)));
    assert_eq!(stats.timeline.len(), 60 + 48 + 35 + 1);
    assert_eq!(stats.timeline.last().and_then(|span| span.until), None);
    let in_span = |seconds: i64| {
        let at = start_plus(seconds).map(|at| (at.seconds, at.nanos)).expect("an instant");
        let begins = |span: &&pb::DueSpan| span.from.is_some_and(|from| (from.seconds, from.nanos) <= at);
        stats.timeline.iter().rfind(begins).map(|span| span.count)
    };
    for seconds in [600, 5_400, 3 * 86_400, 365 * 86_400] {
        assert_eq!(in_span(seconds), Some(1), "{seconds} s");
    }
    assert_eq!(stats.timeline.iter().map(|span| span.count).sum::<u64>(), 4);
    assert!(broker.stats("orders").await.timeline.is_empty(), "only when it is asked for");

    let all = pb::GetStatsRequest { topic: String::new(), timeline: true, ..Default::default() };
    let refused = broker.admin().await.get_stats(all).await.expect_err("a timeline needs a topic");
    assert_eq!((refused.code(), fields(&refused)), (Code::InvalidArgument, vec!["timeline".to_owned()]));
}

#[tokio::test]
async fn messages_are_listed_by_state_time_and_key() {
    let broker = broker_with_messages().await;
    let fetch = pb::FetchRequest { topic: "orders".to_owned(), max_messages: 1, wait: span(1), ..Default::default() };
    let leased = broker.queue().await.fetch(fetch).await.expect("ready").into_inner().deliveries.remove(0);
    let query = pb::ListMessagesRequest::default;
    let in_state = |state: MessageState| pb::ListMessagesRequest { state: state.into(), ..query() };
    assert_eq!(keys(&broker, query()).await, ["k0", "k1", "k2", "k3", "k4", "k5"]);
    assert_eq!(keys(&broker, in_state(MessageState::Leased)).await, ["k0"]);
    assert_eq!(keys(&broker, in_state(MessageState::Ready)).await, ["k1"]);
    assert_eq!(keys(&broker, in_state(MessageState::Scheduled)).await, ["k2", "k3", "k4", "k5"]);
    let range = pb::ListMessagesRequest { due_from: start_plus(600), due_until: start_plus(3 * 86_400), ..query() };
    assert_eq!(keys(&broker, range).await, ["k2", "k3"], "from is included, until is not");
    let by_key = |key: &str, state: MessageState| pb::ListMessagesRequest { key: key.to_owned(), ..in_state(state) };
    assert_eq!(keys(&broker, by_key("k3", MessageState::Unspecified)).await, ["k3"]);
    assert_eq!(keys(&broker, by_key("k3", MessageState::Ready)).await, Vec::<String>::new());
    assert_eq!(keys(&broker, by_key("k9", MessageState::Unspecified)).await, Vec::<String>::new());

    let dead = pb::NackItem { receipt: leased.receipt, reason: pb::NackReason::Dead.into(), ..Default::default() };
    broker.queue().await.nack(pb::NackRequest { nacks: vec![dead] }).await.expect("well-formed");
    assert_eq!(keys(&broker, in_state(MessageState::Dead)).await, ["k0"]);
    assert_eq!(keys(&broker, by_key("k0", MessageState::Dead)).await, ["k0"]);
    assert_eq!(keys(&broker, query()).await, ["k1", "k2", "k3", "k4", "k5"]);
}

#[tokio::test]
async fn pages_of_a_listing_join_and_their_tokens_belong_to_one_query() {
    let broker = broker_with_messages().await;
    let query = |page_size, token: &str| pb::ListMessagesRequest {
        page_size,
        page_token: token.to_owned(),
        state: MessageState::Scheduled.into(),
        ..Default::default()
    };
    let (mut listed, mut token) = (Vec::new(), String::new());
    for size in [1, 2, 1, 5] {
        let (page, next) = list(&broker, query(size, &token)).await.expect("a good query");
        listed.extend(page);
        if next.is_empty() {
            break;
        }
        token = next;
    }
    assert_eq!(listed, ["k2", "k3", "k4", "k5"]);

    let other = |change: fn(&mut pb::ListMessagesRequest)| {
        let mut query = query(2, &token);
        change(&mut query);
        query
    };
    for (what, query) in [
        ("state", other(|query| query.state = MessageState::Ready.into())),
        ("from", other(|query| query.due_from = start_plus(0))),
        ("until", other(|query| query.due_until = start_plus(1))),
        ("no listing", other(|query| query.page_token = "00".to_owned())),
        ("key", other(|query| query.key = "k2".to_owned())),
    ] {
        let refused = list(&broker, query).await.expect_err(what);
        assert_eq!(
            (refused.code(), fields(&refused)),
            (Code::InvalidArgument, vec!["page_token".to_owned()]),
            "{what}"
        );
    }
}

#[tokio::test]
async fn a_bad_listing_is_refused_by_field() {
    let broker = broker_with_messages().await;
    let dead = || pb::ListMessagesRequest { state: MessageState::Dead.into(), ..Default::default() };
    let range = |from, until| pb::ListMessagesRequest { due_from: from, due_until: until, ..Default::default() };
    let invalid = Some(Timestamp { seconds: 0, nanos: -1 });
    for (query, field) in [
        (pb::ListMessagesRequest { state: 5, ..Default::default() }, "state"),
        (pb::ListMessagesRequest { state: 77, ..Default::default() }, "state"),
        (pb::ListMessagesRequest { page_size: 1_001, ..Default::default() }, "page_size"),
        (pb::ListMessagesRequest { key: "k".repeat(257), ..Default::default() }, "key"),
        (range(start_plus(1), start_plus(1)), "due_until"),
        (range(invalid, None), "due_from"),
        (range(None, invalid), "due_until"),
        (pb::ListMessagesRequest { due_from: start_plus(1), ..dead() }, "due_from"),
        (pb::ListMessagesRequest { due_until: start_plus(1), ..dead() }, "due_until"),
    ] {
        let refused = list(&broker, query).await.expect_err(field);
        assert_eq!((refused.code(), fields(&refused)), (Code::InvalidArgument, vec![field.to_owned()]));
    }
    let missing = pb::ListMessagesRequest { topic: "missing".to_owned(), ..Default::default() };
    let refused = broker.admin().await.list_messages(missing).await.expect_err("no such topic");
    assert_eq!(reason(&refused).0, "TOPIC_NOT_FOUND");
}

async fn clock(broker: &Running) -> pb::ClockState {
    let answer = broker.admin().await.get_broker(pb::GetBrokerRequest {}).await.expect("it serves").into_inner();
    answer.broker.expect("a broker").clock.expect("a clock")
}

async fn adopt(broker: &Running, expected: Option<Duration>) -> Result<pb::AdoptClockResponse, Status> {
    let request = pb::AdoptClockRequest { expected_offset: expected };
    Ok(broker.admin().await.adopt_clock(request).await?.into_inner())
}

#[tokio::test]
async fn adopting_a_wall_clock_that_is_ahead_makes_messages_due_in_order_and_keeps_live_leases() {
    let broker = broker_with_messages().await;
    let mut queue = broker.queue().await;
    let lease = span(60);
    let fetch = |max| pb::FetchRequest {
        topic: "orders".to_owned(),
        max_messages: max,
        wait: span(1),
        lease,
        ..Default::default()
    };
    let leased = queue.fetch(fetch(1)).await.expect("ready").into_inner().deliveries.remove(0);
    broker.time.step_wall_ms(6_000_000);
    let seen = clock(&broker).await;
    assert_eq!((seen.now, seen.offset, seen.stepped, seen.steps), (start_plus(0), span(6_000), true, 1));
    assert_eq!((seen.policy(), seen.slewing, seen.hold), (pb::ClockPolicy::Report, false, None));

    let refused = adopt(&broker, span(5_990)).await.expect_err("it is another offset");
    assert_eq!(
        (refused.code(), reason(&refused)),
        (Code::FailedPrecondition, ("CLOCK_OFFSET_CHANGED".to_owned(), "not_done".to_owned()))
    );
    assert_eq!(refused.get_details_error_info().expect("an error info").metadata["offset_ms"], "6000000");
    let invalid = adopt(&broker, Some(Duration { seconds: 1, nanos: -1 })).await.expect_err("no span");
    assert_eq!((invalid.code(), fields(&invalid)), (Code::InvalidArgument, vec!["expected_offset".to_owned()]));
    assert_eq!(clock(&broker).await.now, start_plus(0), "a refusal changes nothing");

    let adopted = adopt(&broker, seen.offset).await.expect("the offset is the expected one");
    let (before, after) = (adopted.before.expect("a clock"), adopted.after.expect("a clock"));
    assert_eq!((before.now, before.stepped), (start_plus(0), true));
    assert_eq!((after.now, after.offset, after.stepped, after.steps), (start_plus(6_000), span(0), false, 1));
    // The lease had 60 s and the clock went on by 6,000: it got a grace.
    let acked = queue.ack(pb::AckRequest { receipts: vec![leased.receipt] }).await.expect("well-formed").into_inner();
    assert!(grpc_harness::is_acked(&acked.results[0]), "{acked:?}");
    let due = queue.fetch(fetch(10)).await.expect("ready").into_inner().deliveries;
    assert_eq!(due.iter().map(|delivery| &*delivery.key).collect::<Vec<_>>(), ["k1", "k2", "k3"]);
}

#[tokio::test]
async fn a_wall_clock_that_is_behind_is_waited_for_or_refused() {
    let broker = broker_with_messages().await;
    broker.time.step_wall_ms(-30_000);
    let after = adopt(&broker, span(-30)).await.expect("within the bound").after.expect("a clock");
    assert_eq!((after.now, after.offset, after.hold, after.stepped), (start_plus(0), span(-30), span(30), false));
    broker.time.advance_ms(30_000);
    let caught_up = clock(&broker).await;
    assert_eq!((caught_up.now, caught_up.offset, caught_up.hold), (start_plus(0), span(0), None));
    broker.time.step_wall_ms(-61_000);
    let refused = adopt(&broker, None).await.expect_err("too far behind");
    assert_eq!((refused.code(), reason(&refused).0.as_str()), (Code::FailedPrecondition, "CLOCK_TOO_FAR_BEHIND"));
    let metadata = refused.get_details_error_info().expect("an error info").metadata;
    assert_eq!((&*metadata["behind_ms"], &*metadata["limit"]), ("61000", "60000"));
    assert_eq!(clock(&broker).await.now, start_plus(0));
}

#[tokio::test]
async fn a_broker_with_the_policy_adopt_follows_a_step_forward_by_itself() {
    let time = duewheel::clock::ManualTime::new(duewheel::queue::time::Timestamp::from_millis(START_MS));
    let (clock_of_broker, journal) = (time.clock(StepPolicy::Adopt), Journal::default());
    let opened = journal.clone();
    let open = move || Ok(open(&opened, clock_of_broker, EngineSettings::default()));
    let broker = Running::opening(settings(), time, journal, open).await;
    broker.wait_until_serving().await;
    broker.time.step_wall_ms(3_600_000);
    let followed = clock(&broker).await;
    assert_eq!(
        (followed.now, followed.offset, followed.policy()),
        (start_plus(3_600), span(0), pb::ClockPolicy::Adopt)
    );
    broker.time.step_wall_ms(-3_600_000);
    let reported = clock(&broker).await;
    assert_eq!((reported.now, reported.offset, reported.stepped), (start_plus(3_600), span(-3_600), true));
}

/// Names and values of all limits by the definition of the message, so that none is left out.
fn flat(limits: &pb::Limits) -> BTreeMap<String, String> {
    let files = FileDescriptorSet::decode(pb::DESCRIPTORS).expect("descriptors");
    let message = files.file.iter().flat_map(|file| &file.message_type).find(|message| message.name() == "Limits");
    let json = format!("{limits:?}");
    let fields = message.expect("it is defined").field.iter().map(|field| field.name().to_owned());
    let value = |name: &str| {
        let text = json.split(&format!("{name}: ")).nth(1).unwrap_or_else(|| panic!("{name} in {json}"));
        match text.strip_prefix("Some(Duration { seconds: ") {
            Some(rest) => {
                let seconds: u64 = rest.split(',').next().and_then(|n| n.parse().ok()).expect("a number");
                let nanos = rest.split("nanos: ").nth(1).and_then(|n| n.split(' ').next()).expect("nanoseconds");
                let ms = seconds * 1_000 + nanos.parse::<u64>().expect("a number") / 1_000_000;
                duewheel::queue::schedule::format_duration(ms)
            }
            None => text.split([',', ' ']).next().expect("a number").to_owned(),
        }
    };
    fields.map(|name| (name.clone(), value(&name))).collect()
}

#[tokio::test]
async fn every_limit_is_told_as_it_is_documented_and_enforced() {
    let broker = Running::start().await;
    let answer = broker.admin().await.get_broker(pb::GetBrokerRequest {}).await.expect("it serves").into_inner();
    let info = answer.broker.expect("a broker");
    assert_eq!(
        (info.version.as_str(), info.epoch, info.data_format),
        (env!("CARGO_PKG_VERSION"), 1, duewheel::store::FORMAT_VERSION)
    );
    assert_eq!((info.started_at, info.produce_refused), (start_plus(0), false));
    let told = flat(&info.limits.expect("limits"));
    assert!(told.len() > 30, "{told:?}");
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md")).expect("the docs");
    let table =
        docs.split("\n## Limits\n").nth(1).expect("a section on limits").split("\n## ").next().expect("a section");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")).map(|row| {
        let mut cells = row.split('|').map(str::trim);
        let name = cells.next().expect("a name").trim_end_matches('`').to_owned();
        (name, cells.next().expect("a value").replace(',', ""))
    });
    assert_eq!(rows.collect::<BTreeMap<_, _>>(), told, "left: docs/operations.md, right: GetBroker");

    // What is told is what is enforced.
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let most = usize::try_from(told["max_key_bytes"].parse::<u64>().expect("a number")).expect("small");
    produce(&mut broker.queue().await, "orders", vec![message(&"k".repeat(most), "b")]).await;
    let request =
        pb::ProduceRequest { topic: "orders".to_owned(), messages: vec![message(&"k".repeat(most + 1), "b")] };
    let result = broker.queue().await.produce(request).await.expect("well-formed").into_inner().results.remove(0);
    assert!(matches!(result.result, Some(pb::produce_result::Result::Error(_))), "{result:?}");
}

#[tokio::test]
async fn statistics_of_more_topics_than_a_page_holds_come_in_pages_and_the_client_reads_all_of_them() {
    let broker = Running::start().await;
    let mut admin = broker.admin().await;
    let mut names: Vec<String> = (0..1_005).map(|n| format!("topic-{n}")).collect();
    for name in &names {
        let request = pb::CreateTopicRequest { name: name.clone(), settings: None };
        admin.create_topic(request).await.expect("a new topic");
    }
    names.sort();
    produce(&mut broker.queue().await, "topic-7", vec![message("k", "body")]).await;

    let mut pages = Vec::new();
    let mut request = pb::GetStatsRequest::default();
    loop {
        let page = admin.get_stats(request.clone()).await.expect("a page").into_inner();
        assert!(page.broker.is_some());
        request.page_token.clone_from(&page.next_page_token);
        pages.push(page.topics);
        if request.page_token.is_empty() {
            break;
        }
    }
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [1_000, 5], "a page has a thousand at most");
    let topics = pages.concat();
    assert_eq!(topics.iter().map(|topic| topic.topic.clone()).collect::<Vec<_>>(), names);
    assert_eq!(topics.iter().map(|topic| topic.produced).sum::<u64>(), 1);
    let small = pb::GetStatsRequest { page_size: 2, ..Default::default() };
    let small = admin.get_stats(small).await.expect("a page").into_inner();
    assert_eq!((small.topics.len(), small.next_page_token.is_empty()), (2, false));

    let client = Client::connect(Options::new(format!("http://{}", broker.grpc))).await.expect("the broker accepts");
    let all = client.stats(None).await.expect("statistics");
    assert_eq!(all.topics.into_iter().map(|topic| topic.topic).collect::<Vec<_>>(), names);
    broker.stop().await.expect("a clean end");
}
