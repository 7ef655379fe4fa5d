//! The conservation check: asks the broker how every single payment ended, and compares that with the orders
//! table and with what the channel knows.

use std::sync::Arc;

use duewheel::client::{Error, MessageRef};
use duewheel::pb::{MessageInfo, MessageState, Outcome};
use tokio::task::JoinSet;

use crate::intake::until_answered;
use crate::orders::OrderState;
use crate::payment::{Answer, Payment};
use crate::{Shop, TOPIC};

/// Questions on the way at once.
const QUESTIONS: usize = 32;

/// How the payments ended.
#[derive(Default)]
pub(crate) struct Conservation {
    /// Settled as paid by the compensator.
    pub(crate) paid: u64,
    /// Settled as failed by the compensator.
    pub(crate) failed: u64,
    /// The compensation was cancelled, because a notification came first.
    pub(crate) cancelled: u64,
    /// To be reconciled.
    pub(crate) dead: u64,
    /// What does not add up, one sentence each.
    pub(crate) wrong: Vec<String>,
}

impl Conservation {
    /// Payments that ended in a known way.
    pub(crate) fn total(&self) -> u64 {
        self.paid + self.failed + self.cancelled + self.dead
    }

    fn count(&mut self, order: &str, payment: &Payment, state: Option<OrderState>, info: &MessageInfo) {
        let settled = match state {
            Some(OrderState::Settled(answer)) => Some(answer),
            _ => None,
        };
        match (info.state(), info.outcome(), settled) {
            (MessageState::Done, Outcome::Acked, Some(Answer::Paid)) => self.paid += 1,
            (MessageState::Done, Outcome::Acked, Some(Answer::Failed)) => self.failed += 1,
            (MessageState::Done, Outcome::Cancelled, Some(_)) => self.cancelled += 1,
            (MessageState::Dead, _, None) => self.dead += 1,
            (state, outcome, settled) => {
                self.wrong.push(format!("{order}: the message is {state:?} {outcome:?}, the order {settled:?}"));
            }
        }
        if settled != payment.result {
            self.wrong.push(format!("{order}: the order is {settled:?}, the channel knows {:?}", payment.result));
        }
    }
}

/// Asks for every payment.
pub(crate) async fn run(shop: &Arc<Shop>, payments: &[Payment]) -> Result<Conservation, Error> {
    let mut conservation = Conservation::default();
    let mut asking = JoinSet::new();
    let mut rest = payments.iter();
    loop {
        while asking.len() < QUESTIONS
            && let Some(payment) = rest.next()
        {
            asking.spawn(ask(Arc::clone(shop), payment.clone()));
        }
        let Some(asked) = asking.join_next().await else { return Ok(conservation) };
        let (payment, answer) = asked.expect("a question does not panic");
        let order = shop.key(&payment);
        match answer {
            Ok(info) => conservation.count(&order, &payment, shop.orders.state(&order), &info),
            Err(error) if error.reason() == Some("MESSAGE_NOT_FOUND") => {
                conservation.wrong.push(format!("{order}: the broker does not know the message"));
            }
            Err(error) => return Err(error),
        }
    }
}

async fn ask(shop: Arc<Shop>, payment: Payment) -> (Payment, Result<MessageInfo, Error>) {
    let key = MessageRef::key(shop.key(&payment));
    let answer = until_answered(|| shop.client.message(TOPIC, key.clone(), true)).await;
    (payment, answer)
}
