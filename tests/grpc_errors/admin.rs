//! Bad topics and settings, listings, and jobs on dead letters.

use duewheel::pb;
use prost_types::Timestamp;
use tonic::Code;

use super::call::{Call, Case, DAY_S, invalid, over, refused, span};

pub(crate) fn topic_cases() -> Vec<Case> {
    let named = |name: &str| Call::CreateTopic(pb::CreateTopicRequest { name: name.to_owned(), settings: None });
    let update = |name: &str, paths: &[&str], settings: pb::TopicSettings| {
        let update_mask = Some(prost_types::FieldMask { paths: paths.iter().map(|&path| path.to_owned()).collect() });
        Call::UpdateTopic(pb::UpdateTopicRequest { name: name.to_owned(), settings: Some(settings), update_mask })
    };
    let none = pb::TopicSettings::default;
    vec![
        invalid(named(""), "name"),
        invalid(named("-x"), "name"),
        refused(named("orders"), Code::AlreadyExists, "TOPIC_EXISTS"),
        invalid(update("orders", &[], none()), "update_mask"),
        invalid(update("orders", &["max_attempts", "color"], none()), "update_mask"),
        over(
            update("orders", &["lease"], pb::TopicSettings { lease: Some(span(0, 1)), ..none() }),
            "settings.lease",
            "must be 100ms to 12h",
        ),
        refused(update("missing", &["lease"], none()), Code::NotFound, "TOPIC_NOT_FOUND"),
        refused(Call::GetTopic(pb::GetTopicRequest { name: "missing".to_owned() }), Code::NotFound, "TOPIC_NOT_FOUND"),
        invalid(Call::PauseTopic(pb::PauseTopicRequest { name: "a b".to_owned() }), "name"),
        refused(
            Call::GetStats(pb::GetStatsRequest { topic: "missing".to_owned(), timeline: true, ..Default::default() }),
            Code::NotFound,
            "TOPIC_NOT_FOUND",
        ),
    ]
}

pub(crate) fn settings_cases() -> Vec<Case> {
    let create = |change: &dyn Fn(&mut pb::TopicSettings)| {
        let mut settings = pb::TopicSettings::default();
        change(&mut settings);
        Call::CreateTopic(pb::CreateTopicRequest { name: "new".to_owned(), settings: Some(settings) })
    };
    let tiers = |tiers| Some(pb::RetrySchedule { tiers });
    vec![
        invalid(create(&|settings| settings.schedule = tiers(vec![])), "settings.schedule"),
        invalid(create(&|settings| settings.schedule = tiers(vec![span(0, -5)])), "settings.schedule.tiers[0]"),
        over(create(&|settings| settings.max_attempts = 10_001), "settings.max_attempts", "must be 1 to 10000"),
        over(create(&|settings| settings.max_deliveries = 100_001), "settings.max_deliveries", "must be 1 to 100000"),
        over(create(&|settings| settings.lease = Some(span(0, 1))), "settings.lease", "must be 100ms to 12h"),
        over(
            create(&|settings| settings.min_redelivery_gap = Some(span(3_601, 0))),
            "settings.min_redelivery_gap",
            "must be 0s to 1h",
        ),
        over(create(&|settings| settings.max_returns = 1_001), "settings.max_returns", "must be 1 to 1000"),
        over(
            create(&|settings| settings.rate = Some(pb::RateCap { deliveries: 0, period: None })),
            "settings.rate.deliveries",
            "must be 1 to 1000000",
        ),
        invalid(
            create(&|settings| settings.rate = Some(pb::RateCap { deliveries: 1, period: Some(span(-1, 0)) })),
            "settings.rate.period",
        ),
        invalid(
            create(&|settings| settings.rate = Some(pb::RateCap { deliveries: 1_000_000, period: Some(span(0, 1)) })),
            "settings.rate",
        ),
        over(create(&|settings| settings.concurrency = 1_000_001), "settings.concurrency", "must be 1 to 1000000"),
        over(create(&|settings| settings.jitter_percent = 101), "settings.jitter_percent", "must be 0 to 100"),
        over(
            create(&|settings| settings.dedup_window = Some(span(0, 1))),
            "settings.dedup_window",
            "must be 1s to 30d",
        ),
        over(
            create(&|settings| settings.dedup_capacity = 10_000_001),
            "settings.dedup_capacity",
            "must be 1 to 10000000",
        ),
        over(
            create(&|settings| settings.history_count = Some(1_000_001)),
            "settings.history_count",
            "must be 0 to 1000000",
        ),
        over(
            create(&|settings| settings.history_age = Some(span(31 * DAY_S, 0))),
            "settings.history_age",
            "must be 0s to 30d",
        ),
    ]
}

pub(crate) fn listing_cases(topics_token: &str) -> Vec<Case> {
    let topics =
        |page_size, token: &str| Call::ListTopics(pb::ListTopicsRequest { page_size, page_token: token.to_owned() });
    let dead = |topic: &str, page_size, token: &str| {
        let page_token = token.to_owned();
        Call::ListDeadLetters(pb::ListDeadLettersRequest {
            topic: topic.to_owned(),
            page_size,
            page_token,
            filter: None,
        })
    };
    let stats = |change: &dyn Fn(&mut pb::GetStatsRequest)| {
        let mut request = pb::GetStatsRequest::default();
        change(&mut request);
        Call::GetStats(request)
    };
    let messages = |change: &dyn Fn(&mut pb::ListMessagesRequest)| {
        let mut request = pb::ListMessagesRequest { topic: "orders".to_owned(), ..Default::default() };
        change(&mut request);
        Call::ListMessages(request)
    };
    let redrive = |topic: &str, ids: Vec<String>| {
        Call::Redrive(pb::RedriveDeadLettersRequest { topic: topic.to_owned(), ids, ..Default::default() })
    };
    vec![
        over(topics(1_001, ""), "page_size", "must be 1 to 1000"),
        invalid(topics(1, "zz"), "page_token"),
        invalid(topics(1, &topics_token[2..]), "page_token"),
        over(dead("orders", 1_001, ""), "page_size", "must be 1 to 1000"),
        invalid(dead("orders", 1, topics_token), "page_token"),
        refused(dead("missing", 1, ""), Code::NotFound, "TOPIC_NOT_FOUND"),
        invalid(redrive("orders", vec![]), "ids"),
        invalid(redrive("orders", vec!["x".to_owned()]), "ids[0]"),
        over(stats(&|request| request.page_size = 1_001), "page_size", "must be 1 to 1000"),
        invalid(stats(&|request| "00".clone_into(&mut request.page_token)), "page_token"),
        invalid(stats(&|request| topics_token.clone_into(&mut request.page_token)), "page_token"),
        invalid(
            stats(&|request| (request.topic, request.page_token) = ("orders".to_owned(), topics_token.to_owned())),
            "page_token",
        ),
        invalid(stats(&|request| request.timeline = true), "timeline"),
        over(messages(&|request| request.page_size = 1_001), "page_size", "must be 1 to 1000"),
        invalid(messages(&|request| topics_token.clone_into(&mut request.page_token)), "page_token"),
        invalid(messages(&|request| request.state = 99), "state"),
        invalid(messages(&|request| request.state = pb::MessageState::Done.into()), "state"),
        over(messages(&|request| request.key = "k".repeat(257)), "key", "at most 256"),
        invalid(messages(&|request| request.due_from = Some(Timestamp { seconds: 0, nanos: -1 })), "due_from"),
        refused(messages(&|request| "missing".clone_into(&mut request.topic)), Code::NotFound, "TOPIC_NOT_FOUND"),
        invalid(Call::AdoptClock(pb::AdoptClockRequest { expected_offset: Some(span(1, -1)) }), "expected_offset"),
        over(redrive("orders", vec![String::new(); 1_001]), "ids", "must be 1 to 1000"),
        refused(redrive("missing", vec!["0".repeat(36)]), Code::NotFound, "TOPIC_NOT_FOUND"),
    ]
}

pub(crate) fn dead_letter_cases() -> Vec<Case> {
    let filter = |change: &dyn Fn(&mut pb::DeadLetterFilter)| {
        let mut filter = pb::DeadLetterFilter::default();
        change(&mut filter);
        Some(filter)
    };
    let all = || filter(&|_| {});
    let redrive = |change: &dyn Fn(&mut pb::RedriveDeadLettersRequest)| {
        let mut request = pb::RedriveDeadLettersRequest { topic: "orders".to_owned(), ..Default::default() };
        change(&mut request);
        Call::Redrive(request)
    };
    let filtered = |filter| redrive(&|request| request.filter.clone_from(&filter));
    let purge = |topic: &str, filter, rate_per_second| {
        let topic = topic.to_owned();
        Call::Purge(pb::PurgeDeadLettersRequest { topic, filter, rate_per_second, ..Default::default() })
    };
    let export = |topic: &str, filter| Call::Export(pb::ExportDeadLettersRequest { topic: topic.to_owned(), filter });
    let list = |filter| {
        Call::ListDeadLetters(pb::ListDeadLettersRequest { topic: "orders".to_owned(), filter, ..Default::default() })
    };
    let delete = |name: &str| Call::DeleteTopic(pb::DeleteTopicRequest { name: name.to_owned(), purge: true });
    let id = || vec!["0".repeat(36)];
    vec![
        invalid(redrive(&|request| (request.ids, request.filter) = (id(), all())), "filter"),
        invalid(redrive(&|request| (request.ids, request.limit) = (id(), 1)), "limit"),
        over(
            redrive(&|request| (request.ids, request.rate_per_second) = (id(), 10_001)),
            "rate_per_second",
            "must be 1 to 10000",
        ),
        invalid(filtered(filter(&|filter| filter.reason = 99)), "filter.reason"),
        over(filtered(filter(&|filter| filter.key = "k".repeat(257))), "filter.key", "at most 256"),
        over(filtered(filter(&|filter| filter.error_text = "t".repeat(257))), "filter.error_text", "at most 256"),
        invalid(
            filtered(filter(&|filter| {
                filter.died_from = Some(Timestamp { seconds: 0, nanos: -1 });
            })),
            "filter.died_from",
        ),
        invalid(
            filtered(filter(&|filter| {
                filter.died_from = Some(Timestamp { seconds: 9, nanos: 0 });
                filter.died_before = filter.died_from;
            })),
            "filter.died_before",
        ),
        invalid(list(filter(&|filter| filter.reason = -1)), "filter.reason"),
        invalid(purge("orders", None, 0), "ids"),
        over(purge("orders", all(), u32::MAX), "rate_per_second", "must be 1 to 10000"),
        refused(purge("missing", all(), 0), Code::NotFound, "TOPIC_NOT_FOUND"),
        invalid(export("a b", None), "topic"),
        over(export("orders", filter(&|filter| filter.key = "k".repeat(257))), "filter.key", "at most 256"),
        refused(export("missing", None), Code::NotFound, "TOPIC_NOT_FOUND"),
        invalid(delete(""), "name"),
        refused(delete("missing"), Code::NotFound, "TOPIC_NOT_FOUND"),
    ]
}
