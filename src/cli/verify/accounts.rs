//! The accounts in the end: the broker has run empty but for the dead letters, and everything must add up.

use std::collections::HashMap;

use super::ledger::Book;
use super::order::{Order, Produced};
use super::tally::{Tally, Violation};
use crate::pb;

/// The dead letters by order, with the number of deliveries that the broker counts.
pub(super) type Dead = HashMap<u64, u32>;

/// Every confirmed order must have ended in a way that somebody asked for, and the counts of the broker must agree.
pub(super) fn settle(book: &mut Book, stats: &pb::TopicStats, dead: &Dead) {
    let Book { orders, tally, .. } = book;
    let (mut confirmed, mut acked, mut cancelled) = (0, 0, 0);
    let places = stats.scheduled + stats.ready + stats.leased;
    let mut unended = Vec::new();
    for (number, order) in (1..).zip(orders.iter()) {
        confirmed += u64::from(order.produced == Produced::Confirmed);
        acked += u64::from(order.acked);
        cancelled += u64::from(order.cancelled);
        if !order.dead && !dead.contains_key(&number) && !order.may_be_over() {
            unended.push(number);
        }
        check_order(number, order, dead.get(&number).copied(), tally);
    }
    // If the broker is stuck, as many as are live in it are not lost. Which ones cannot be told, so none is named then.
    if places == 0 {
        for number in unended {
            tally.violation(Violation::Lost, number, "its produce was confirmed and nobody ended it");
        }
    } else if unended.len() as u64 > places {
        let text = format!("{} confirmed and ended by nobody, {places} live", unended.len());
        tally.violation(Violation::Lost, 0, &text);
    }
    let mut not_conserved = |text: String| tally.violation(Violation::NotConserved, 0, &text);
    let ends = stats.acked + stats.cancelled + stats.dead + stats.purged + stats.replaced + stats.quarantined;
    if stats.produced != ends + places {
        let text = format!("{} produced, but {ends} over and {places} live: {stats:?}", stats.produced);
        not_conserved(text);
    }
    let opened = orders.len() as u64;
    if !(confirmed..=opened).contains(&stats.produced) {
        not_conserved(format!("{} produced, {confirmed} confirmed of {opened}", stats.produced));
    }
    if stats.acked < acked {
        not_conserved(format!("the broker counts {} acks, its clients {acked}", stats.acked));
    }
    if stats.cancelled < cancelled {
        not_conserved(format!("the broker counts {} cancels, its clients {cancelled}", stats.cancelled));
    }
    if stats.dead != dead.len() as u64 {
        not_conserved(format!("the broker counts {} dead letters and lists {}", stats.dead, dead.len()));
    }
    if tally.duplicates > tally.in_flight_at_breaks {
        let text = format!("{}, but {} in flight when connections broke", tally.duplicates, tally.in_flight_at_breaks);
        tally.violation(Violation::TooManyDuplicates, 0, &text);
    }
}

fn check_order(number: u64, order: &Order, died_after: Option<u32>, tally: &mut Tally) {
    if let Some(deliveries) = died_after {
        if let Some(end) = order.end().filter(|&end| end != "dead") {
            tally.violation(Violation::Resurrected, number, &format!("it was {end} and is a dead letter"));
        }
        let left = order.attempts_left(deliveries);
        if left > 0 {
            tally.violation(Violation::DeadTooSoon, number, &format!("{left} attempts were left"));
        }
    } else if order.dead && !order.acked && !order.may_be_cancelled() {
        tally.violation(Violation::Lost, number, "its death was confirmed and it is not a dead letter");
    }
    let skipped = order.attempts_skipped();
    if skipped > 0 {
        tally.violation(Violation::AttemptSkipped, number, &format!("{skipped} attempts were left out"));
    }
}
