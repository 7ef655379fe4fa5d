//! Compares the queue with the model: answers, and everything that can be seen.

use duewheel::queue::command::{
    Command, ConsumerId, FindRejection, ProduceRejection, Rejection, Reply, SettleRejection, Target, TopicRejection,
};
use duewheel::queue::dead::{DeadFilter, DeadQuery, DeadSnapshot, StoredDead};
use duewheel::queue::due::{FirstInPages, timeline_edges};
use duewheel::queue::message::{DeadReason, Message, MessageId, TopicId};
use duewheel::queue::receipt::Receipt;
use duewheel::queue::time::Timestamp;
use duewheel::queue::values::{NackText, TopicName};
use duewheel::queue::view::{Hindrance, MessageView, StateView};

use crate::driver::{Answer, Run};
use crate::model::Model;
use crate::parts::{Entry, State, Topic};

/// The answers are the same, apart from the wording of complaints and from what only the queue may know.
pub(crate) fn answers(model: &Model, command: &Command, answer: &Answer, expected: &Answer) {
    let (mut answer, expected) = (without_wording(answer.clone()), without_wording(expected.clone()));
    if let (Ok(Reply::Leased(got)), Ok(Reply::Leased(want))) = (&mut answer, &expected) {
        for (got, want) in got.iter_mut().zip(want) {
            // The queue tells it by the due time, which may also have been set to an instant before the crash since,
            // if the clock was set back.
            let entry = model.entries.get(&got.receipt.id.arrival).expect("a leased message is live");
            let is_before_crash = model.voided_at.is_some_and(|voided_at| entry.progress.due_at <= voided_at);
            let certain = entry.suspected_now || entry.progress.deliveries > 0;
            assert!(!certain || got.redelivered, "{} was delivered before, unflagged now", got.receipt.id);
            assert!(
                got.redelivered <= (certain || want.redelivered || entry.due_at_opening || is_before_crash),
                "{} is flagged without cause",
                got.receipt.id
            );
            got.redelivered = want.redelivered;
        }
    }
    // Between two advances a message that has come due is called scheduled or ready.
    if let (Err(Rejection::Settle(SettleRejection::LeaseLost { state: got })), Err(Rejection::Settle(want))) =
        (&mut answer, &expected)
    {
        let waiting = ["scheduled", "ready"];
        if let SettleRejection::LeaseLost { state: want } = want
            && waiting.contains(got)
            && waiting.contains(want)
        {
            *got = want;
        }
    }
    assert_eq!(answer, expected, "left: the queue, right: the model\n{command:?}");
}

/// Each lease that ended is told once, so that its stream gets room.
pub(crate) fn ended_leases(
    before: &[(ConsumerId, TopicId, Receipt)],
    after: &[(ConsumerId, TopicId, Receipt)],
    told: &[(ConsumerId, TopicId)],
    command: &Command,
) {
    let gone = |lease: &&(ConsumerId, TopicId, Receipt)| !after.contains(lease);
    let mut want: Vec<(ConsumerId, TopicId)> = before.iter().filter(gone).map(|lease| (lease.0, lease.1)).collect();
    let mut told = told.to_vec();
    // A lease without a stream frees no window; whether it is told does not matter. Nor for a stream that ended.
    let ended = if let Command::ReturnAll(consumer) = command { *consumer } else { ConsumerId::NONE };
    want.retain(|&(consumer, _)| consumer != ConsumerId::NONE && consumer != ended);
    told.retain(|&(consumer, _)| consumer != ConsumerId::NONE && consumer != ended);
    want.sort_unstable();
    told.sort_unstable();
    assert_eq!(told, want, "ended leases; left: told by the queue, right: the model");
}

/// Everything that can be seen, after an advance.
pub(crate) fn everything(run: &mut Run) {
    let checked = run.queue.check(run.now);
    assert_eq!(checked, Ok(()), "the queue's own invariants");
    for topic in &run.model.topics {
        counts(run, topic);
        due(run, topic);
        dead_letters(run, topic);
    }
    for entry in run.model.entries.values() {
        live(run, entry);
    }
    keys(run);
    gone(run);
    durable(run);
    wake_up(run);
}

fn counts(run: &Run, topic: &Topic) {
    let (model, id) = (&run.model, topic.record.id);
    let counts = run.queue.counts(run.now, &topic.record.name).expect("the topic exists");
    // What waits on disk beyond a frontier that has passed may be scheduled or ready.
    let is_split = counts.frontier.is_none_or(|frontier| frontier > run.now);
    let waiting = counts.scheduled + counts.ready + counts.stored;
    let model_waiting = model.count(id, State::Scheduled) + model.count(id, State::Ready);
    assert_eq!(waiting, model_waiting as u64, "waiting messages of {}", topic.record.name);
    assert_eq!(counts.topic, topic.record);
    for (state, got) in [
        (
            State::Scheduled,
            if is_split { counts.scheduled + counts.stored } else { model.count(id, State::Scheduled) as u64 },
        ),
        (State::Ready, if is_split { counts.ready } else { model.count(id, State::Ready) as u64 }),
        (State::Leased, counts.leased),
        (State::Dead, counts.dead),
    ] {
        assert_eq!(got, model.count(id, state) as u64, "{state:?} messages of {}", topic.record.name);
    }
    assert_eq!(counts.totals, topic.totals, "totals of {}", topic.record.name);
    let oldest = model.ready(id).first().map(|entry| entry.progress.due_at);
    let exact = is_split || counts.oldest_ready_due_at != counts.frontier;
    assert!(!exact || counts.oldest_ready_due_at == oldest, "oldest ready of {}", topic.record.name);
    model.assert_conserved(id, &counts.totals);
    let cap = topic.record.settings.concurrency.map(u64::from);
    // A cap that was lowered lets the leases it found run out.
    assert!(cap.is_none_or(|cap| counts.leased <= cap) || topic.updated, "over the concurrency cap");
}

/// What is due when: what the pages say, joined with what has changed since, is a recount of the model.
fn due(run: &Run, topic: &Topic) {
    let (model, name, id) = (&run.model, &topic.record.name, topic.record.id);
    let mut edges = timeline_edges(run.now);
    // Ends of spans where messages are, too.
    edges.extend(model.entries.values().map(|entry| entry.progress.due_at).filter(|&at| at > run.now).take(20));
    edges.sort_unstable();
    edges.dedup();
    let is_scheduled = |entry: &&Entry| entry.id.topic == id && entry.state(model.advanced_to) == State::Scheduled;
    let scheduled = model.entries.values().filter(is_scheduled);
    let scheduled: Vec<Timestamp> = scheduled.map(|entry| entry.progress.due_at).collect();
    let count = |ends: &[Timestamp]| scheduled.iter().filter(|&&at| ends[0] <= at && at < ends[1]).count() as u64;
    let want: Vec<u64> = edges.windows(2).map(count).collect();
    let got = run.queue.due_between(name, &edges, &run.store.due(id, &edges)).expect("the topic exists");
    assert_eq!(got, want, "due counts of {name}");
    let oldest = model.ready(id).first().map(|entry| entry.progress.due_at);
    let first = |max| match run.queue.frontier(id) {
        Some(frontier) => run.store.first_due(id, (frontier.0, 0), max),
        None => FirstInPages { due: Vec::new(), is_all: true },
    };
    let got = run.queue.oldest_overdue(run.now, name, &first(usize::MAX));
    let is_leased = |at| {
        let mut entries = model.entries.values();
        entries.any(|entry| entry.state(model.advanced_to) == State::Leased && entry.progress.due_at == at)
    };
    assert!(got == oldest || got.is_some_and(is_leased), "oldest overdue of {name}: {got:?}, {oldest:?}");
    let got = run.queue.oldest_overdue(run.now, name, &first(2));
    // What was read has ended or moved: not before the last of it.
    assert!(
        oldest.is_none() || got <= oldest || got.is_some_and(is_leased),
        "oldest overdue of {name}, of few: {got:?}, {oldest:?}"
    );
}

fn dead_letters(run: &Run, topic: &Topic) {
    let want = run.model.dead_letters(topic.record.id, |_| true);
    let name = &topic.record.name;
    let disk = run.store.dead(topic.record.id);
    let stored = |after: Option<(Timestamp, u64)>| {
        let is_after = |m: &&Message| m.progress.dead.map(|(_, at)| (at, m.id.arrival)) > after;
        disk.iter().filter(is_after).cloned().collect::<Vec<_>>()
    };
    // Page by page gives the same, also if the disk gives few at a time.
    let list = |filter: &DeadFilter, snapshot: Option<&DeadSnapshot>, limit: usize, most: usize| {
        let (mut ids, mut after, mut looks) = (Vec::new(), None, 0);
        loop {
            let query = DeadQuery { after, filter: filter.clone(), snapshot: snapshot.cloned(), limit };
            let mut messages = stored(query.begins_after());
            let order = |m: &Message| (m.progress.dead.expect("it is dead").1, m.id.arrival);
            let frontier = messages.get(most).map(order);
            messages.truncate(most);
            let stored = StoredDead { messages, frontier };
            let page = run.queue.dead_letters(run.now, name, &query, &stored).expect("the topic exists");
            assert!(page.letters.len() <= limit);
            ids.extend(page.letters.iter().map(|view| view.message.id));
            looks += 1;
            assert!(looks < 1_000, "it comes to an end");
            assert!(page.next.is_none_or(|next| after.is_none_or(|after| next > after)), "it goes on");
            after = page.next;
            if after.is_none() {
                return ids;
            }
        }
    };
    let all = DeadFilter::default();
    for (limit, most) in [(1_000, 1_000), (1, 1_000), (2, 1), (1_000, 2)] {
        assert_eq!(list(&all, None, limit, most), want, "dead letters of {name}, {limit} and {most} at a time");
    }
    let snapshot = run.queue.dead_snapshot(run.now, name).expect("the topic exists");
    assert_eq!(snapshot.count, want.len() as u64);
    filtered(run, topic, &list);
}

type Meant = Box<dyn Fn(&Entry) -> bool>;

/// Dead letters by each filter.
fn filtered(
    run: &Run,
    topic: &Topic,
    list: &impl Fn(&DeadFilter, Option<&DeadSnapshot>, usize, usize) -> Vec<MessageId>,
) {
    let died_at = |entry: &Entry| entry.progress.dead.expect("it is dead").1;
    let middle = run.model.in_topic(topic.record.id).filter(|entry| entry.progress.dead.is_some()).map(died_at).max();
    let text = "timeout";
    let key = duewheel::queue::values::Key::parse("k1").expect("a short key");
    let of_key = key.clone();
    let mut cases: Vec<(DeadFilter, Meant)> = vec![
        (
            DeadFilter { reason: Some(DeadReason::MaxAttempts), ..DeadFilter::default() },
            Box::new(|entry| entry.progress.dead.is_some_and(|(reason, _)| reason == DeadReason::MaxAttempts)),
        ),
        (
            DeadFilter { key: Some(key), ..DeadFilter::default() },
            Box::new(move |entry| entry.content.key.as_ref() == Some(&of_key)),
        ),
        (
            DeadFilter { text: NackText::parse(&text[2..5]).ok(), ..DeadFilter::default() },
            Box::new(move |entry| {
                let history = entry.message().history;
                history.iter().flat_map(|history| history.iter()).any(|entry| entry.text.as_str() == text)
            }),
        ),
    ];
    if let Some(at) = middle {
        cases.push((
            DeadFilter { died_before: Some(at), ..DeadFilter::default() },
            Box::new(move |entry| entry.progress.dead.is_some_and(|(_, died)| died < at)),
        ));
        cases.push((
            DeadFilter { died_from: Some(at), ..DeadFilter::default() },
            Box::new(move |entry| entry.progress.dead.is_some_and(|(_, died)| died >= at)),
        ));
    }
    for (filter, is_meant) in cases {
        let want = run.model.dead_letters(topic.record.id, is_meant);
        for (limit, most) in [(1_000, 1_000), (1, 1)] {
            assert_eq!(list(&filter, None, limit, most), want, "{filter:?} of {}", topic.record.name);
        }
    }
}

fn live(run: &Run, entry: &Entry) {
    let model = &run.model;
    let topic = model.topics.iter().find(|topic| topic.record.id == entry.id.topic).expect("the topic exists");
    let view = look_up(run, &topic.record.name, &Target::Id(entry.id));
    let Some(MessageView::Live(view)) = view else { panic!("{} is live, not {view:?}", entry.id) };
    assert_eq!(view.message, entry.message(), "left: the queue, right: the model");
    assert_eq!(view.topic, topic.record);
    let settings = &topic.record.settings;
    assert_eq!(view.max_attempts, entry.max_attempts(settings), "max attempts of {}", entry.id);
    let progress = &entry.progress;
    if !topic.updated {
        let since_redrive = progress.deliveries - progress.deliveries_before_redrive;
        assert!(progress.attempts <= view.max_attempts, "more attempts than allowed");
        assert!(since_redrive <= settings.max_deliveries, "more deliveries than allowed");
        let spent = progress.attempts == view.max_attempts || since_redrive == settings.max_deliveries;
        assert!(!spent || progress.dead.is_some(), "{} has used up its caps and lives", entry.id);
    }
    match (entry.state(model.advanced_to), &view.state) {
        (State::Scheduled, StateView::Scheduled) | (State::Dead, StateView::Dead) => {}
        (State::Leased, StateView::Leased { consumer, delivered_at, deadline }) => {
            let lease = entry.lease.as_ref().expect("leased");
            assert_eq!((consumer, *delivered_at, *deadline), (&lease.name, lease.delivered_at, lease.deadline));
        }
        (State::Ready, StateView::Ready { hindrance, ahead }) => {
            let ready = model.ready(entry.id.topic);
            let before = ready.iter().position(|other| other.id == entry.id).expect("ready") as u64;
            let counts = run.queue.counts(run.now, &topic.record.name).expect("the topic exists");
            let all_in_memory = counts.frontier.is_none_or(|frontier| frontier > run.now);
            assert!(!all_in_memory || ahead.is_none_or(|ahead| ahead == before), "{ahead:?} ahead, not {before}");
            let at_cap =
                settings.concurrency.is_some_and(|cap| model.count(entry.id.topic, State::Leased) >= cap as usize);
            match hindrance {
                Some(Hindrance::Paused) => assert!(topic.record.paused),
                Some(Hindrance::ConcurrencyCap(cap)) => assert!(at_cap && settings.concurrency == Some(*cap)),
                Some(Hindrance::RateCap(_)) => assert!(settings.rate.is_some()),
                None => assert!(!topic.record.paused && !at_cap, "a hindrance is not told"),
            }
        }
        (state, view) => panic!("{} is {state:?}, the queue says {view:?}", entry.id),
    }
}

/// What the queue says of a message, with its record from disk if memory does not know it.
fn look_up(run: &Run, topic: &TopicName, target: &Target) -> Option<MessageView> {
    let found = run.queue.missing_target(topic, target).and_then(|missing| run.store.find(&missing));
    run.queue.look_up(run.now, topic, target, found.as_ref()).expect("the topic exists")
}

fn keys(run: &Run) {
    for topic in &run.model.topics {
        for key in ["k0", "k1", "k2", "k3"] {
            let target = Target::Key(duewheel::queue::values::Key::parse(key).expect("a short key"));
            let view = look_up(run, &topic.record.name, &target);
            let live = run.model.live(topic.record.id, &target).map(|entry| entry.id);
            let gone = run.model.gone(topic.record.id, &target);
            match view {
                Some(MessageView::Live(view)) => assert_eq!(Some(view.message.id), live, "the holder of {key}"),
                Some(MessageView::Gone(finished)) => assert_eq!((None, Some(&finished)), (live, gone), "{key}"),
                None => assert_eq!((None, None), (live, gone), "{key}"),
            }
        }
    }
}

fn gone(run: &Run) {
    for id in run.ids.iter().rev().take(30) {
        let Some(topic) = run.model.topics.iter().find(|topic| topic.record.id == id.topic) else { continue };
        let target = Target::Id(*id);
        if run.model.live(id.topic, &target).is_some() {
            continue;
        }
        let want = run.model.gone(id.topic, &target).cloned();
        match look_up(run, &topic.record.name, &target) {
            Some(MessageView::Gone(got)) => assert_eq!(Some(got), want, "what the history says of {id}"),
            Some(MessageView::Live(view)) => panic!("{id} has ended, the queue says {view:?}"),
            None => assert_eq!(None, want, "the history has forgotten {id}"),
        }
    }
    let nowhere = TopicName::parse("nowhere").expect("a good name");
    if let Some(id) = run.ids.last() {
        let answer = run.queue.look_up(run.now, &nowhere, &Target::Id(*id), None);
        assert_eq!(answer, Err(FindRejection::TopicNotFound(nowhere)));
    }
}

/// What is durable is the durable part of the model.
fn durable(run: &Run) {
    let stored: Vec<&Message> = run.store.records.messages.values().collect();
    let model: Vec<Message> = run.model.entries.values().map(Entry::message).collect();
    assert_eq!(stored, model.iter().collect::<Vec<_>>(), "left: the store, right: the model");
    for topic in &run.model.topics {
        let id = topic.record.id;
        assert_eq!(run.store.records.topics.get(&id), Some(&topic.record));
        assert_eq!(run.store.records.totals.get(&id), Some(&topic.totals));
    }
}

fn wake_up(run: &Run) {
    let (wake, event) = (run.queue.next_wakeup(), run.model.next_event());
    assert!(wake.is_none_or(|wake| wake > run.now), "{wake:?} is past, and everything was advanced");
    assert!(event.is_none_or(|event| wake.is_some_and(|wake| wake <= event)), "{wake:?} sleeps over {event:?}");
    let mut token: Option<Timestamp> = None;
    for topic in run.model.topics.iter().filter(|topic| topic.rate_wanted && !topic.record.paused) {
        let Some(at) = topic.token_by().filter(|_| !run.model.ready(topic.record.id).is_empty()) else { continue };
        if at > run.now {
            token = Some(token.map_or(at, |token| token.min(at)));
        }
    }
    assert!(
        token.is_none_or(|token| wake.is_some_and(|wake| wake <= token)),
        "{wake:?} sleeps over a token at {token:?}"
    );
}

/// Complaints about fields compare by field, everything else as it is.
fn without_wording(answer: Answer) -> Answer {
    answer.map_err(|rejection| match rejection {
        Rejection::Topic(TopicRejection::Invalid(mut invalid)) => {
            invalid.problem = String::new();
            TopicRejection::Invalid(invalid).into()
        }
        Rejection::Produce(ProduceRejection::Invalid(mut invalid)) => {
            invalid.problem = String::new();
            ProduceRejection::Invalid(invalid).into()
        }
        Rejection::Settle(SettleRejection::Invalid(mut invalid)) => {
            invalid.problem = String::new();
            SettleRejection::Invalid(invalid).into()
        }
        Rejection::Find(FindRejection::Invalid(mut invalid)) => {
            invalid.problem = String::new();
            FindRejection::Invalid(invalid).into()
        }
        other => other,
    })
}
