//! The items of one request: some go to the engine, some are refused before, and the results are put back
//! in the order of the items.

use super::errors::Fault;
use crate::engine::EngineError;
use crate::queue::command::{Command, Rejection, Reply};
use crate::queue::limits::MAX_BATCH;

/// What became of each item, in the order of the request.
pub(super) type Results = Vec<Result<Reply, Fault>>;

/// The items of one request, parsed.
pub(super) struct Batch {
    commands: Vec<Command>,
    items: Vec<Item>,
}

struct Item {
    /// The path of the item in the request, such as `messages[3]`.
    list: &'static str,
    index: usize,
    /// Why it does not go to the engine.
    refused: Option<Fault>,
}

impl Item {
    fn path(&self) -> String {
        format!("{}[{}]", self.list, self.index)
    }
}

impl Batch {
    /// A batch of up to `capacity` items.
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self { commands: Vec::with_capacity(capacity), items: Vec::with_capacity(capacity) }
    }

    /// Parses the items of the list at path `list` one by one.
    pub(super) fn extend<T>(
        &mut self,
        list: &'static str,
        items: Vec<T>,
        mut parse: impl FnMut(T) -> Result<Command, Fault>,
    ) {
        for (index, item) in items.into_iter().enumerate() {
            let mut item = Item { list, index, refused: parse(item).map(|command| self.commands.push(command)).err() };
            item.refused = item.refused.take().map(|fault| fault.under(&item.path()));
            self.items.push(item);
        }
    }

    /// Takes the commands to be sent to the engine.
    pub(super) fn take_commands(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.commands)
    }

    /// Puts the engine's answers in the places of the items that were sent.
    pub(super) fn answered(self, answers: Vec<Result<Reply, Rejection>>) -> Results {
        let mut answers = answers.into_iter();
        let mut answer = |item: &Item| {
            let answer = answers.next().expect("the engine answers every command");
            answer.map_err(|rejection| Fault::from(rejection).under(&item.path()))
        };
        self.items
            .into_iter()
            .map(|mut item| match item.refused.take() {
                Some(fault) => Err(fault),
                None => answer(&item),
            })
            .collect()
    }

    /// The engine has failed for all items that were sent.
    pub(super) fn failed(self, error: &EngineError) -> Results {
        self.items.into_iter().map(|item| Err(item.refused.unwrap_or_else(|| error.clone().into()))).collect()
    }
}

/// Refuses a list at `path` that is empty or too long.
pub(super) fn check_count(path: &str, count: usize) -> Result<(), Fault> {
    if (1..=MAX_BATCH).contains(&count) {
        return Ok(());
    }
    Err(Fault::invalid(path, format!("{count} items; must be 1 to {MAX_BATCH}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::command::{ConsumerId, FindRejection, SettleRejection};
    use crate::queue::values::{Invalid, TopicName};

    #[test]
    fn answers_come_back_in_the_order_of_the_items_with_their_paths() {
        let mut batch = Batch::with_capacity(3);
        batch.extend("acks", vec![1, 2, 3], |n| match n {
            2 => Err(Fault::invalid("field", "is bad")),
            _ => Ok(Command::SetPaused { name: TopicName::parse("t").expect("a topic name"), paused: true }),
        });
        assert_eq!(batch.take_commands().len(), 2);
        let refused = Rejection::Settle(SettleRejection::Invalid(Invalid::new("lease", "is long")));
        let texts: Vec<String> = batch
            .answered(vec![Ok(Reply::Returned(7)), Err(refused)])
            .into_iter()
            .map(|result| result.map_or_else(|fault| fault.into_item().message, |reply| format!("{reply:?}")))
            .collect();
        assert_eq!(texts, ["Returned(7)", "acks[1].field: is bad", "acks[2].lease: is long"]);
    }

    #[test]
    fn a_failed_engine_does_not_hide_what_was_refused_before() {
        let mut batch = Batch::with_capacity(2);
        batch.extend("acks", vec![false, true], |good| {
            let bad = FindRejection::Invalid(Invalid::new("field", "is bad"));
            if good { Ok(Command::ReturnAll(ConsumerId::NONE)) } else { Err(bad.into()) }
        });
        let codes: Vec<i32> = batch
            .failed(&EngineError::Draining)
            .into_iter()
            .map(|result| result.expect_err("all items fail").into_item().code)
            .collect();
        assert_eq!(codes, [i32::from(tonic::Code::InvalidArgument), i32::from(tonic::Code::Unavailable)]);
    }
}
