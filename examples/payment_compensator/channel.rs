//! A simulated payment channel: a query API that answers as the data file says.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use duewheel::clock::Stopwatch;

use crate::payment::{Answer, Glitch, Payment};

/// After this long a query is given up; scaled like everything else.
const QUERY_TIMEOUT: Duration = Duration::from_secs(3);
/// How long an answer takes.
const QUERY_TIME: Duration = Duration::from_millis(80);

/// The channels of all payments.
pub(crate) struct Channels {
    scale: f64,
    payments: Mutex<HashMap<String, Record>>,
}

struct Record {
    payment: Payment,
    paid: Stopwatch,
    queries: usize,
}

/// A query that broke: it says nothing about the payment.
#[derive(Clone, Copy, Debug)]
pub(crate) enum QueryError {
    /// No answer in time.
    Timeout,
    /// An error of the channel's gateway.
    Gateway,
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Timeout => "the query timed out",
            Self::Gateway => "502 from the channel's gateway",
        })
    }
}

impl Channels {
    /// Channels that live `scale` times faster.
    pub(crate) fn new(scale: f64) -> Self {
        Self { scale, payments: Mutex::default() }
    }

    /// The customer pays now; the channel answers "accepted" and nothing more.
    pub(crate) fn pay(&self, order: &str, payment: &Payment) {
        let record = Record { payment: payment.clone(), paid: Stopwatch::start(), queries: 0 };
        self.payments.lock().expect("no holder panics").insert(order.to_owned(), record);
    }

    /// Asks how a payment ended; `None`: still processing.
    pub(crate) async fn query(&self, order: &str) -> Result<Option<Answer>, QueryError> {
        let glitch = {
            let mut payments = self.payments.lock().expect("no holder panics");
            let Some(record) = payments.get_mut(order) else { return Ok(None) };
            record.queries += 1;
            record.payment.glitches.get(record.queries - 1).copied()
        };
        let takes = if glitch == Some(Glitch::Timeout) { QUERY_TIMEOUT } else { QUERY_TIME };
        tokio::time::sleep(takes.div_f64(self.scale)).await;
        match glitch {
            Some(Glitch::Timeout) => Err(QueryError::Timeout),
            Some(Glitch::Error) => Err(QueryError::Gateway),
            None => Ok(self.result(order)),
        }
    }

    /// What the channel knows by now.
    fn result(&self, order: &str) -> Option<Answer> {
        let payments = self.payments.lock().expect("no holder panics");
        let Record { payment, paid, .. } = payments.get(order)?;
        let settles = payment.settles_after?.scaled(self.scale);
        payment.result.filter(|_| paid.elapsed() >= settles)
    }
}
