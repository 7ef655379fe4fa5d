//! Dead letters in bulk, and the deletion of topics, over a real connection.

mod grpc_harness;

use duewheel::pb::{self, admin_service_client::AdminServiceClient, queue_service_client::QueueServiceClient};
use prost_types::Timestamp;
use tonic::transport::Channel;
use tonic::{Code, Streaming};
use tonic_types::StatusExt;

use grpc_harness::{Consuming, Running, item_status, message, produce, reason, until, within};

type Admin = AdminServiceClient<Channel>;
type Queue = QueueServiceClient<Channel>;

fn fetch(max_messages: u32) -> pb::FetchRequest {
    pb::FetchRequest { topic: "orders".to_owned(), max_messages, ..Default::default() }
}

async fn all<T>(mut answers: Streaming<T>) -> Vec<T> {
    let mut all = Vec::new();
    while let Some(answer) = within(answers.message()).await.expect("an answer") {
        all.push(answer);
    }
    all
}

/// Makes dead letters of these keys, with a text each; returns their ids.
async fn dead(queue: &mut Queue, letters: &[(&str, &str)]) -> Vec<String> {
    let messages = letters.iter().map(|(key, _)| message(key, &format!("body of {key}"))).collect();
    let ids = produce(queue, "orders", messages).await;
    let count = u32::try_from(letters.len()).expect("few");
    let deliveries = queue.fetch(fetch(count)).await.expect("ready").into_inner().deliveries;
    assert_eq!(deliveries.iter().map(|delivery| &delivery.id).collect::<Vec<_>>(), ids.iter().collect::<Vec<_>>());
    let nack = |(delivery, (_, text)): (&pb::Delivery, &(&str, &str))| pb::NackItem {
        receipt: delivery.receipt.clone(),
        reason: pb::NackReason::Dead.into(),
        text: (*text).to_owned(),
        ..Default::default()
    };
    let nacks = deliveries.iter().zip(letters).map(nack).collect();
    queue.nack(pb::NackRequest { nacks }).await.expect("well-formed");
    ids
}

fn redrive_of(filter: pb::DeadLetterFilter) -> pb::RedriveDeadLettersRequest {
    let topic = "orders".to_owned();
    pb::RedriveDeadLettersRequest { topic, filter: Some(filter), rate_per_second: 10_000, ..Default::default() }
}

async fn redrive(admin: &mut Admin, request: pb::RedriveDeadLettersRequest) -> pb::RedriveDeadLettersResponse {
    all(admin.redrive_dead_letters(request).await.expect("well-formed").into_inner()).await.pop().expect("an end")
}

fn text(error_text: &str) -> pb::DeadLetterFilter {
    pb::DeadLetterFilter { error_text: error_text.to_owned(), ..Default::default() }
}

#[tokio::test]
async fn a_redrive_by_filter_counts_first_skips_used_keys_and_tells_what_became_of_each() {
    let broker = Running::start().await;
    let settings = pb::TopicSettings { dead_releases_key: true, ..Default::default() };
    broker.create_topic("orders", settings).await;
    let (mut queue, mut admin) = (broker.queue().await, broker.admin().await);
    let letters = [("a", "channel timeout"), ("b", "bad request"), ("c", "read timeout")];
    let ids = dead(&mut queue, &letters).await;
    // The key of the third has another holder by now.
    produce(&mut queue, "orders", vec![message("c", "again")]).await;

    let dry = redrive(&mut admin, pb::RedriveDeadLettersRequest { dry_run: true, ..redrive_of(text("timeout")) }).await;
    assert_eq!((dry.matched, dry.redriven, dry.remaining), (2, 0, 2));
    let by_id = pb::RedriveDeadLettersRequest {
        topic: "orders".to_owned(),
        ids: [&ids[..], &["0".repeat(36)]].concat(),
        dry_run: true,
        ..Default::default()
    };
    let foreseen = redrive(&mut admin, by_id).await;
    let (done, used) = (pb::RedriveStatus::Redriven, pb::RedriveStatus::KeyInUse);
    let want = [done, done, used, pb::RedriveStatus::NotFound];
    assert_eq!(foreseen.results().collect::<Vec<_>>(), want);
    assert_eq!(broker.stats("orders").await.dead, 3, "a dry run changes nothing");

    let one = redrive(&mut admin, pb::RedriveDeadLettersRequest { limit: 1, ..redrive_of(text("timeout")) }).await;
    assert_eq!((one.matched, one.redriven, one.remaining), (1, 1, 0));
    let rest = redrive(&mut admin, redrive_of(text("timeout"))).await;
    assert_eq!((rest.matched, rest.redriven, rest.key_in_use, rest.remaining), (1, 0, 1, 0));
    let all = redrive(&mut admin, redrive_of(pb::DeadLetterFilter::default())).await;
    assert_eq!((all.matched, all.redriven, all.key_in_use), (2, 1, 1));
    let by_id = pb::MessageRef { r#ref: Some(pb::message_ref::Ref::Id(ids[0].clone())) };
    let request = pb::GetMessageRequest { topic: "orders".to_owned(), message: Some(by_id), omit_body: true };
    let info = queue.get_message(request).await.expect("live").into_inner().message.expect("a message");
    assert_eq!((info.state(), info.redrives), (pb::MessageState::Ready, 1));
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn a_job_that_is_cancelled_stops_after_its_step() {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let (mut queue, mut admin) = (broker.queue().await, broker.admin().await);
    let ids = dead(&mut queue, &[("a", ""), ("b", ""), ("c", ""), ("d", "")]).await;
    let slow = pb::RedriveDeadLettersRequest {
        topic: "orders".to_owned(),
        ids: ids.clone(),
        rate_per_second: 1,
        ..Default::default()
    };
    let mut answers = admin.redrive_dead_letters(slow).await.expect("well-formed").into_inner();
    let first = within(answers.message()).await.expect("an answer").expect("the first step");
    assert_eq!((first.matched, first.redriven, first.remaining), (4, 1, 3));
    drop(answers);
    let again = pb::RedriveDeadLettersRequest { topic: "orders".to_owned(), ids, ..Default::default() };
    let answers = all(admin.redrive_dead_letters(again).await.expect("well-formed").into_inner()).await;
    let results: Vec<_> = answers.iter().flat_map(pb::RedriveDeadLettersResponse::results).collect();
    let done = pb::RedriveStatus::Redriven;
    assert_eq!(results, [pb::RedriveStatus::NotDead, done, done, done], "the others had been left alone");
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn what_is_purged_is_gone_and_remembered_as_purged() {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let (mut queue, mut admin) = (broker.queue().await, broker.admin().await);
    let early = dead(&mut queue, &[("a", ""), ("b", "")]).await;
    broker.time.advance_ms(60_000);
    dead(&mut queue, &[("c", "")]).await;
    let live = produce(&mut queue, "orders", vec![message("d", "")]).await.remove(0);

    let request = |ids: Vec<String>| pb::PurgeDeadLettersRequest {
        topic: "orders".to_owned(),
        ids,
        rate_per_second: 10_000,
        ..Default::default()
    };
    let named = request(vec![early[0].clone(), early[0].clone(), live]);
    let answers = all(admin.purge_dead_letters(named).await.expect("well-formed").into_inner()).await;
    let results: Vec<_> = answers.iter().flat_map(pb::PurgeDeadLettersResponse::results).collect();
    assert_eq!(results, [pb::PurgeStatus::Purged, pb::PurgeStatus::NotFound, pb::PurgeStatus::NotDead]);
    let started_s = i64::try_from(grpc_harness::engine_support::START_MS / 1_000).expect("an instant");
    let before = pb::DeadLetterFilter {
        died_before: Some(Timestamp { seconds: started_s + 30, nanos: 0 }),
        ..Default::default()
    };
    let old = pb::PurgeDeadLettersRequest { filter: Some(before), ..request(Vec::new()) };
    let end = all(admin.purge_dead_letters(old).await.expect("well-formed").into_inner()).await.pop().expect("an end");
    assert_eq!((end.matched, end.purged, end.not_dead, end.remaining), (1, 1, 0, 0));
    let stats = broker.stats("orders").await;
    assert_eq!((stats.dead, stats.purged, stats.ready), (1, 2, 1));
    let by_key = pb::MessageRef { r#ref: Some(pb::message_ref::Ref::Key("b".to_owned())) };
    let request = pb::GetMessageRequest { topic: "orders".to_owned(), message: Some(by_key), omit_body: false };
    let info = queue.get_message(request).await.expect("remembered").into_inner().message.expect("a message");
    assert_eq!(info.outcome(), pb::Outcome::Purged);
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn dead_letters_are_listed_by_filter_and_a_token_belongs_to_its_query() {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let (mut queue, mut admin) = (broker.queue().await, broker.admin().await);
    let letters: Vec<(String, &str)> =
        (0..10).map(|n| (format!("o-{n}"), if n % 2 == 0 { "timeout" } else { "refused" })).collect();
    dead(&mut queue, &letters.iter().map(|(key, text)| (&**key, *text)).collect::<Vec<_>>()).await;
    let request = |filter, page_token| pb::ListDeadLettersRequest {
        topic: "orders".to_owned(),
        page_size: 2,
        page_token,
        filter: Some(filter),
    };
    let (mut keys, mut token) = (Vec::new(), String::new());
    let mut first_token = None;
    loop {
        let page = admin.list_dead_letters(request(text("time"), token)).await.expect("a page").into_inner();
        keys.extend(page.messages.into_iter().map(|info| info.key));
        token = page.next_page_token;
        first_token.get_or_insert_with(|| token.clone());
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(keys, ["o-0", "o-2", "o-4", "o-6", "o-8"]);
    let token = first_token.expect("more than one page");
    let other = admin.list_dead_letters(request(text("refused"), token)).await.expect_err("another query");
    assert_eq!(other.code(), Code::InvalidArgument);
    assert_eq!(grpc_harness::fields(&other), ["page_token"]);
    let key = pb::DeadLetterFilter { key: "o-3".to_owned(), ..Default::default() };
    let page = admin.list_dead_letters(request(key, String::new())).await.expect("a page").into_inner();
    assert_eq!((page.messages.len(), &*page.messages[0].key), (1, "o-3"));
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn an_export_has_whole_dead_letters_in_order() {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let (mut queue, mut admin) = (broker.queue().await, broker.admin().await);
    let letters: Vec<(String, &str)> = (0..400).map(|n| (format!("o-{n:03}"), "channel timeout")).collect();
    dead(&mut queue, &letters.iter().map(|(key, text)| (&**key, *text)).collect::<Vec<_>>()).await;
    let request = pb::ExportDeadLettersRequest { topic: "orders".to_owned(), filter: None };
    let frames = all(admin.export_dead_letters(request.clone()).await.expect("well-formed").into_inner()).await;
    let exported: Vec<pb::MessageInfo> = frames.into_iter().flat_map(|frame| frame.messages).collect();
    assert_eq!(exported.len(), 400);
    for (n, info) in exported.iter().enumerate() {
        assert_eq!((&*info.key, info.dead_reason()), (&*format!("o-{n:03}"), pb::DeadReason::Consumer));
        assert_eq!(&*info.body, format!("body of o-{n:03}").as_bytes());
        assert_eq!((info.history.len(), &*info.history[0].text), (1, "channel timeout"));
    }
    let none = pb::ExportDeadLettersRequest { filter: Some(text("no such text")), ..request };
    assert_eq!(all(admin.export_dead_letters(none).await.expect("well-formed").into_inner()).await, []);
    broker.stop().await.expect("a clean end");
}

async fn delete(admin: &mut Admin, purge: bool) -> Result<Vec<pb::DeleteTopicResponse>, tonic::Status> {
    let request = pb::DeleteTopicRequest { name: "orders".to_owned(), purge };
    Ok(all(admin.delete_topic(request).await?.into_inner()).await)
}

#[tokio::test]
async fn a_topic_with_messages_is_deleted_only_when_it_is_to_be_purged() {
    let broker = Running::start().await;
    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let (mut queue, mut admin) = (broker.queue().await, broker.admin().await);
    dead(&mut queue, &[("a", "")]).await;
    produce(&mut queue, "orders", vec![message("b", ""), message("c", "")]).await;
    let leased = queue.fetch(fetch(1)).await.expect("ready").into_inner().deliveries.remove(0);

    let refused = delete(&mut admin, false).await.expect_err("it is not empty");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(reason(&refused), ("TOPIC_NOT_EMPTY".to_owned(), "not_done".to_owned()));
    let counts = refused.get_details_error_info().expect("error info").metadata;
    assert_eq!([&counts["waiting"], &counts["leased"], &counts["dead"]], ["1", "1", "1"]);
    assert!(refused.message().contains("purge"), "{}", refused.message());

    let answers = delete(&mut admin, true).await.expect("it is purged");
    let end = answers.last().expect("an end");
    assert_eq!((end.messages, end.pages_left, end.reclaimed), (3, 0, true));
    let gone = delete(&mut admin, true).await.expect_err("it is gone");
    assert_eq!(reason(&gone).0, "TOPIC_NOT_FOUND");
    let ack = queue.ack(pb::AckRequest { receipts: vec![leased.receipt.clone()] }).await.expect("well-formed");
    let Some(pb::settlement_result::Result::Error(item)) = &ack.into_inner().results[0].result else {
        panic!("a receipt of a deleted topic settles nothing")
    };
    assert_eq!(reason(&item_status(item)).0, "MESSAGE_NOT_FOUND");

    broker.create_topic("orders", pb::TopicSettings::default()).await;
    let stats = broker.stats("orders").await;
    assert_eq!((stats.produced, stats.ready, stats.dead, stats.deliveries), (0, 0, 0, 0));
    produce(&mut queue, "orders", vec![message("a", "anew")]).await;
    assert_eq!(queue.fetch(fetch(10)).await.expect("ready").into_inner().deliveries.len(), 1);
    broker.stop().await.expect("a clean end");
}

#[tokio::test]
async fn whoever_waits_on_a_deleted_topic_hears_that_it_is_gone() {
    let broker = Running::start().await;
    for topic in ["orders", "payments"] {
        broker.create_topic(topic, pb::TopicSettings::default()).await;
    }
    let (mut queue, mut admin) = (broker.queue().await, broker.admin().await);
    let mut stream = Consuming::open(&mut queue).await;
    let window = |topic: &str| pb::TopicWindow { topic: topic.to_owned(), window: 5, lease: None };
    let start = pb::ConsumeStart { consumer: "c".to_owned(), topics: vec![window("orders"), window("payments")] };
    stream.send(pb::consume_request::Frame::Start(start)).await;
    produce(&mut queue, "payments", vec![message("p", "")]).await;
    assert_eq!(stream.deliveries(1).await[0].topic, "payments");
    let mut waiting = broker.queue().await;
    let wait = Some(prost_types::Duration { seconds: 60, nanos: 0 });
    let fetching = tokio::spawn(async move { waiting.fetch(pb::FetchRequest { wait, ..fetch(1) }).await });
    until(|| async { broker.stats("orders").await.waiting_fetches == 1 }).await;

    delete(&mut admin, false).await.expect("it is empty");
    let fetched = within(fetching).await.expect("it does not panic").expect_err("the topic is gone");
    assert_eq!((fetched.code(), reason(&fetched).0), (Code::NotFound, "TOPIC_NOT_FOUND".to_owned()));
    let ended = loop {
        if let Err(ended) = stream.next().await {
            break ended;
        }
    };
    assert_eq!((ended.code(), reason(&ended).0), (Code::NotFound, "TOPIC_NOT_FOUND".to_owned()));
    // What it had leased of other topics is given back.
    broker.time.advance_ms(2_000);
    until(|| async { broker.stats("payments").await.leased == 0 }).await;
    broker.stop().await.expect("a clean end");
}
