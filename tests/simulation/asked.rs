//! What clients have asked for, answered or not: nothing else may happen to a message.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use duewheel::queue::command::{Command, Target};
use duewheel::queue::time::Timestamp;

/// Everything ever asked for.
#[derive(Default)]
pub(crate) struct Asked {
    /// Bodies of produces, each of its own, with the number of times that it was sent.
    pub(crate) bodies: BTreeMap<Bytes, u32>,
    /// Arrival, delivery and epoch of receipts to ack.
    pub(crate) acks: BTreeSet<(u64, u32, u32)>,
    /// Arrival and delivery of receipts to nack.
    pub(crate) nacks: BTreeSet<(u64, u32)>,
    pub(crate) cancelled: BTreeSet<u64>,
    pub(crate) cancelled_keys: BTreeSet<String>,
    pub(crate) purged: BTreeSet<u64>,
    /// Names of consumers that have gone away or whose topic was to be deleted.
    pub(crate) gone: BTreeSet<String>,
    /// Known deadlines of leases, by arrival and delivery. It is unknown while an extension is not answered.
    pub(crate) deadlines: BTreeMap<(u64, u32), Timestamp>,
    /// How often a lease was to be extended, by arrival, delivery and epoch.
    pub(crate) extensions: BTreeMap<(u64, u32, u32), u32>,
}

impl Asked {
    pub(crate) fn note(&mut self, command: &Command) {
        match command {
            Command::Produce(produce) => *self.bodies.entry(produce.body.clone()).or_default() += 1,
            Command::Ack(receipt) => drop(self.acks.insert((receipt.id.arrival, receipt.delivery, receipt.epoch))),
            Command::Nack(nack) => drop(self.nacks.insert((nack.receipt.id.arrival, nack.receipt.delivery))),
            Command::Extend { receipt, .. } => {
                self.deadlines.remove(&(receipt.id.arrival, receipt.delivery));
                *self.extensions.entry((receipt.id.arrival, receipt.delivery, receipt.epoch)).or_default() += 1;
            }
            Command::Cancel { target: Target::Id(id), .. } => drop(self.cancelled.insert(id.arrival)),
            Command::Cancel { target: Target::Key(key), .. } => {
                self.cancelled_keys.insert(key.as_str().to_owned());
            }
            Command::Purge(letter) => drop(self.purged.insert(letter.id.arrival)),
            _ => {}
        }
    }
}
