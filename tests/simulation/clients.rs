//! The clients: calls that wait for an answer, consume streams and fetches; and what is checked when something
//! reaches them.

use std::future::Future;
use std::task::{Context, Poll, Waker};

use duewheel::engine::{Consumer, EngineError, Fetch, Window};
use duewheel::queue::command::{Command, Delivery, FindRejection, Rejection, Reply};
use duewheel::queue::values::{ConsumerName, TopicName};

use crate::coverage::kind;
use crate::shadow::{Violation, ensure};
use crate::world::{Boxed, World, poll};

type Answer = Result<Vec<Result<Reply, Rejection>>, EngineError>;
type Opened = Result<Result<Consumer, FindRejection>, EngineError>;
type Fetched = Result<Result<Vec<Delivery>, FindRejection>, EngineError>;

/// Commands that wait for their answer.
pub(crate) struct Call {
    pub(crate) commands: Vec<Command>,
    answer: Boxed<Answer>,
}

/// A consume stream.
pub(crate) struct Connection {
    pub(crate) name: String,
    state: State,
}

enum State {
    Opening(Boxed<Opened>),
    Open(Consumer),
}

/// A fetch that waits.
pub(crate) struct Fetching {
    pub(crate) name: String,
    answer: Boxed<Fetched>,
}

impl World {
    /// Sends commands; they are with the broker when this returns.
    pub(crate) fn send(&mut self, commands: Vec<Command>) -> Result<(), Violation> {
        // From 1.5 on a produce waits in real time, of which there is none here.
        let is_produce = commands.iter().any(|command| matches!(command, Command::Produce(_)));
        let Some(broker) = &self.broker else { return Ok(()) };
        if is_produce && broker.stepped.pressure() >= 1.5 {
            self.coverage.mark("produce held back");
            return Ok(());
        }
        let handle = broker.handle.clone();
        for command in &commands {
            self.asked.note(command);
            if matches!(command, Command::DeleteTopic { .. }) {
                self.asked.gone.extend(self.connections.iter().map(|connection| connection.name.clone()));
            }
            self.log.push(format!("  {}", crate::describe(command)));
        }
        let sent = commands.clone();
        let mut answer: Boxed<Answer> = Box::pin(async move { handle.apply_all(sent).await });
        if let Some(answered) = poll(&mut answer) {
            return self.answered(&commands, answered);
        }
        self.calls.push(Call { commands, answer });
        Ok(())
    }

    /// Somebody looks whether an answer has come; or gives up waiting.
    pub(crate) fn read_answer(&mut self) -> Result<(), Violation> {
        self.go_on_closing()?;
        if self.calls.is_empty() {
            return Ok(());
        }
        let index = self.rng.usize(..self.calls.len());
        if self.rng.u32(0..40) == 0 {
            let call = self.calls.swap_remove(index);
            self.give_up(call);
            return Ok(());
        }
        self.read_answer_of(index)
    }

    pub(crate) fn read_answer_of(&mut self, index: usize) -> Result<(), Violation> {
        let Some(answered) = poll(&mut self.calls[index].answer) else { return Ok(()) };
        let call = self.calls.swap_remove(index);
        self.answered(&call.commands, answered)
    }

    /// A timeout: the outcome is not known. What can be repeated is repeated later.
    fn give_up(&mut self, call: Call) {
        self.coverage.mark("timeout");
        self.say("  a client gives up waiting");
        self.repeats.extend(call.commands.into_iter().filter_map(|command| match command {
            Command::Produce(produce) if produce.dedup_id.is_some() => Some(produce),
            _ => None,
        }));
    }

    fn answered(&mut self, commands: &[Command], answer: Answer) -> Result<(), Violation> {
        match answer {
            Ok(results) => {
                ensure!(results.len() == commands.len(), "{} answers to {}", results.len(), commands.len());
                for (command, result) in commands.iter().zip(results) {
                    self.coverage.mark(kind(&result));
                    self.say(format!("  answer to {}: {result:?}", crate::describe(command)));
                    self.judge(command, &result).map_err(|problem| {
                        format!("{problem}\n  the answer to {} was {result:?}", crate::describe(command))
                    })?;
                }
            }
            Err(EngineError::Draining) => {
                self.coverage.mark("refused while draining");
                self.not_done.extend(commands.iter().filter_map(|command| match command {
                    Command::Produce(produce) => Some(produce.body.clone()),
                    _ => None,
                }));
            }
            Err(EngineError::OutcomeUnknown) => self.coverage.mark("outcome unknown"),
            Err(error) => return Err(format!("refused: {error}")),
        }
        Ok(())
    }

    pub(crate) fn next_name(&mut self) -> String {
        self.names += 1;
        format!("c{}", self.names)
    }

    /// Opens a consume stream.
    pub(crate) fn connect(&mut self, windows: Vec<Window>) {
        let Some(handle) = self.broker.as_ref().map(|broker| broker.handle.clone()) else { return };
        let name = self.next_name();
        let consumer_name = ConsumerName::parse(&name).expect("a short name");
        let topics: Vec<_> = windows.iter().map(|window| (window.topic.as_str().to_owned(), window.window)).collect();
        self.say(format!("  {name} connects to {topics:?}"));
        let mut opening: Boxed<Opened> = Box::pin(async move { handle.consume(consumer_name, windows).await });
        // It is on its way now, if the broker serves.
        if poll(&mut opening).is_none() {
            self.connections.push(Connection { name, state: State::Opening(opening) });
        }
    }

    /// A stream reads what has come; one batch.
    pub(crate) fn read_stream(&mut self, index: usize) -> Result<bool, Violation> {
        let connection = &mut self.connections[index];
        let batch = match &mut connection.state {
            State::Opening(opening) => match poll(opening) {
                Some(Ok(Ok(consumer))) => {
                    connection.state = State::Open(consumer);
                    return Ok(true);
                }
                Some(_) => None,
                None => return Ok(false),
            },
            State::Open(consumer) => {
                let next = std::pin::pin!(consumer.next());
                match next.poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(batch) => batch,
                    Poll::Pending => return Ok(false),
                }
            }
        };
        if let Some(deliveries) = batch {
            let name = connection.name.clone();
            self.delivered(&name, deliveries)?;
        } else {
            self.coverage.mark("stream ended by the broker");
            self.disconnect(index);
        }
        Ok(true)
    }

    /// A stream ends.
    pub(crate) fn disconnect(&mut self, index: usize) {
        let connection = self.connections.swap_remove(index);
        self.say(format!("  {} goes away", connection.name));
        self.asked.gone.insert(connection.name.clone());
        drop(connection);
    }

    /// Begins a fetch.
    pub(crate) fn fetch(&mut self, topic: TopicName, max: usize, wait_ms: u64, lease_ms: Option<u64>) {
        let Some(handle) = self.broker.as_ref().map(|broker| broker.handle.clone()) else { return };
        let name = self.next_name();
        let consumer_name = ConsumerName::parse(&name).expect("a short name");
        self.say(format!("  {name} fetches {max} from {} for {wait_ms} ms", topic.as_str()));
        let fetch = Fetch { topic, consumer_name, max, wait_ms, lease_ms };
        let mut answer: Boxed<Fetched> = Box::pin(async move { handle.fetch(fetch).await });
        if poll(&mut answer).is_none() {
            self.fetches.push(Fetching { name, answer });
        }
    }

    pub(crate) fn read_fetch(&mut self, index: usize) -> Result<(), Violation> {
        let Some(answer) = poll(&mut self.fetches[index].answer) else { return Ok(()) };
        let fetching = self.fetches.swap_remove(index);
        match answer {
            Ok(Ok(deliveries)) if deliveries.is_empty() => self.coverage.mark("fetched nothing"),
            Ok(Ok(deliveries)) => {
                self.coverage.mark("fetched");
                self.delivered(&fetching.name, deliveries)?;
            }
            Ok(Err(_)) => self.coverage.mark("fetch refused"),
            Err(_) => self.coverage.mark("fetch ended by the broker"),
        }
        Ok(())
    }

    /// A fetch is given up; what was leased for it goes back.
    pub(crate) fn drop_fetch(&mut self, index: usize) {
        let fetching = self.fetches.swap_remove(index);
        self.say(format!("  {} gives up", fetching.name));
        self.coverage.mark("fetch dropped");
        self.asked.gone.insert(fetching.name.clone());
        drop(fetching);
    }

    fn delivered(&mut self, name: &str, deliveries: Vec<Delivery>) -> Result<(), Violation> {
        let order = |delivery: &Delivery| {
            let message = &delivery.message;
            (message.id.topic, message.progress.due_at, message.id.arrival)
        };
        let mut orders: Vec<_> = deliveries.iter().map(order).collect();
        orders.sort_by_key(|&(topic, ..)| topic);
        ensure!(orders.is_sorted(), "not in due order: {orders:?}");
        for delivery in deliveries {
            let arrival = delivery.message.id.arrival;
            self.say(format!("  {name} gets {arrival} delivery {}", delivery.receipt.delivery));
            self.coverage.mark(if delivery.redelivered { "redelivered" } else { "delivered" });
            self.judge_delivery(&delivery).map_err(|problem| format!("{problem}\n  in the {delivery:?}"))?;
            if self.caps.delivered(delivery.message.id.topic, delivery.delivered_at)? {
                self.coverage.mark("delivered under a rate cap");
            }
            let lease = (arrival, delivery.receipt.delivery);
            self.asked.deadlines.insert(lease, delivery.deadline);
            self.receipts.push(delivery.receipt);
            self.held.push(delivery);
        }
        Ok(())
    }

    fn judge_delivery(&mut self, delivery: &Delivery) -> Result<(), Violation> {
        let (message, receipt) = (&delivery.message, delivery.receipt);
        let (arrival, progress) = (message.id.arrival, message.progress);
        let now = self.now();
        ensure!(delivery.delivered_at >= progress.due_at, "delivered before it was due");
        ensure!(now >= delivery.delivered_at, "delivered at {now}, before the time that the broker says");
        ensure!(receipt.id == message.id && receipt.epoch == self.shadow.epoch, "a receipt of something else");
        ensure!(receipt.delivery == progress.deliveries + 1, "a delivery number was skipped");
        ensure!(delivery.attempt == progress.attempts + 1, "an attempt was skipped");
        let born = self.shadow.born.get(&arrival).ok_or("delivered before it was durable")?;
        ensure!(born.content == message.content, "delivered with other content");
        let states = &self.shadow.states[&arrival];
        ensure!(states.contains(&progress), "delivered before its last change was durable");
        if let Some(end) = self.shadow.ends.get(&arrival) {
            let is_before = end.epoch == receipt.epoch && delivery.delivered_at <= end.finished.at;
            ensure!(is_before, "delivered after its end: {end:?}");
        }
        for earlier in 1..receipt.delivery {
            ensure!(self.shadow.ended.contains_key(&(arrival, earlier)), "delivery {earlier} has not ended");
        }
        let numbers = (arrival, receipt.delivery, receipt.epoch);
        // Of two streams one may read late, so the numbers decide what came before.
        let mut known = self.receipts_seen.range((arrival, 0, 0)..=(arrival, u32::MAX, u32::MAX));
        let is_known = known.any(|&(_, number, epoch)| {
            // The due time tells after a start what may have been delivered: not if it was changed since.
            let rescheduled = self.shadow.rescheduled.get(&arrival).copied().unwrap_or_default();
            let is_told = epoch >= self.set_back_epoch.max(rescheduled);
            is_told && (epoch, number) < (receipt.epoch, receipt.delivery)
        });
        ensure!(!is_known || delivery.redelivered, "delivered again without saying so");
        let is_held = |&(_, number, epoch): &(u64, u32, u32)| number == receipt.delivery && epoch >= self.voided_epoch;
        let is_twice = self.receipts_seen.range((arrival, 0, 0)..=(arrival, u32::MAX, u32::MAX)).any(is_held);
        ensure!(!is_twice, "delivered while another has it");
        ensure!(self.receipts_seen.insert(numbers), "the same receipt twice");
        Ok(())
    }
}
