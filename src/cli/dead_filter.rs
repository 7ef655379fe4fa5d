//! Which dead letters a command means.

use clap::{Args, ValueEnum};

use super::args::{at_least_one, instant, not_empty};
use super::exit::{Exit, Failure};
use crate::client::instant as to_wire;
use crate::pb;
use crate::queue::time::Timestamp;

/// What selects dead letters; all that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(super) struct FilterArgs {
    /// Only those that died for this reason
    #[arg(long, value_enum, value_name = "REASON")]
    reason: Option<Reason>,
    /// Only the one with this business key
    #[arg(long, value_name = "KEY", value_parser = not_empty)]
    key: Option<String>,
    /// Only those with this in the text of a nack
    #[arg(long, value_name = "TEXT", value_parser = not_empty)]
    error: Option<String>,
    /// Only those that died at this instant or later (RFC 3339)
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    died_from: Option<Timestamp>,
    /// Only those that died before this instant (RFC 3339)
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    died_before: Option<Timestamp>,
}

/// Why a message is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Reason {
    /// The retry cap was reached
    MaxAttempts,
    /// The cap on all leases was reached
    MaxDeliveries,
    /// A consumer gave up
    Consumer,
}

impl FilterArgs {
    /// The filter of a request.
    pub(super) fn to_wire(&self) -> pb::DeadLetterFilter {
        let reason = match self.reason {
            None => pb::DeadReason::Unspecified,
            Some(Reason::MaxAttempts) => pb::DeadReason::MaxAttempts,
            Some(Reason::MaxDeliveries) => pb::DeadReason::MaxDeliveries,
            Some(Reason::Consumer) => pb::DeadReason::Consumer,
        };
        pb::DeadLetterFilter {
            reason: reason.into(),
            key: self.key.clone().unwrap_or_default(),
            error_text: self.error.clone().unwrap_or_default(),
            died_from: self.died_from.map(to_wire),
            died_before: self.died_before.map(to_wire),
        }
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Dead letters to be changed: they have to be named, or all of them asked for.
#[derive(Debug, Args)]
pub(super) struct Which {
    /// The message with this id; may be repeated
    #[arg(long = "id", value_name = "ID", value_parser = not_empty)]
    ids: Vec<String>,
    /// Every dead letter of the topic
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    filter: FilterArgs,
    /// At most this many, oldest first; not with --id
    #[arg(long, value_name = "N", conflicts_with = "ids", value_parser = at_least_one::<u64>)]
    limit: Option<u64>,
}

/// The selection of a request.
pub(super) struct Selected {
    pub(super) ids: Vec<String>,
    pub(super) filter: Option<pb::DeadLetterFilter>,
    /// 0: no limit.
    pub(super) limit: u64,
}

impl Which {
    /// What is selected; refuses to guess.
    pub(super) fn selected(&self) -> Result<Selected, Failure> {
        let ways = [!self.ids.is_empty(), self.all, !self.filter.is_empty()];
        let problem = match ways.into_iter().filter(|&given| given).count() {
            1 => {
                let filter = (self.ids.is_empty()).then(|| self.filter.to_wire());
                return Ok(Selected { ids: self.ids.clone(), filter, limit: self.limit.unwrap_or(0) });
            }
            0 => "say which dead letters",
            _ => "--id, --all and the filters exclude each other",
        };
        let next = "give --id ID, or a filter (--reason, --key, --error, --died-from, --died-before), or --all";
        Err(Failure::new(Exit::Usage, problem).next(next))
    }
}
