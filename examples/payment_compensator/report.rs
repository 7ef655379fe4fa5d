//! What the run came to, as a table for people.

use std::sync::atomic::{AtomicU64, Ordering};

use duewheel::queue::schedule::format_duration;

use crate::Shop;
use crate::check::Conservation;
use crate::compensator::locked;

/// Prints the report; whether everything adds up.
pub(crate) fn print(shop: &Shop, payments: usize, conservation: &Conservation) -> bool {
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let answers = &shop.answers;
    let produced = count(&answers.produced);
    println!("OUTCOMES");
    println!("  payments   {payments:>6}");
    println!("  produced   {produced:>6}   {} found stored when repeated", count(&answers.found_stored));
    println!("  paid       {:>6}", conservation.paid);
    println!("  failed     {:>6}", conservation.failed);
    println!(
        "  cancelled  {:>6}   {} notifications came first: {} cancelled, {} in flight, {} too late",
        conservation.cancelled,
        count(&answers.notified_first),
        count(&answers.cancelled),
        count(&answers.in_flight),
        count(&answers.too_late),
    );
    println!("  dead       {:>6}   to be reconciled", conservation.dead);
    println!(
        "  query now  {:>6}   {} found nothing waiting",
        count(&answers.query_now),
        count(&answers.query_now_void)
    );

    let tally = locked(&shop.tally);
    println!("\nATTEMPTS  WAIT     DELIVERED  ANSWERED  NOT YET  QUERY BROKE  SETTLED BEFORE");
    for (index, tier) in tally.tiers.iter().enumerate() {
        let number = u32::try_from(index + 1).expect("the number of attempts is small");
        let wait = shop.schedule.wait(number).map(format_duration).unwrap_or_default();
        println!(
            "{number:>8}  {wait:<7}  {:>9}  {:>8}  {:>7}  {:>11}  {:>14}",
            tier.delivered, tier.answered, tier.not_yet, tier.failed, tier.settled_before
        );
    }
    println!(
        "\nLATENESS  p50 {} ms, p99 {} ms, max {} ms over {} deliveries",
        tally.lateness_ms.value_at_quantile(0.50),
        tally.lateness_ms.value_at_quantile(0.99),
        tally.lateness_ms.max(),
        tally.lateness_ms.len(),
    );
    println!(
        "RESTARTS  {} leases void and delivered again, {} settlements without effect",
        tally.redelivered, tally.unsettled
    );

    for problem in conservation.wrong.iter().take(10) {
        println!("WRONG     {problem}");
    }
    let total = conservation.total();
    let holds = produced == total && produced == payments as u64 && conservation.wrong.is_empty();
    let verdict = if holds { "holds" } else { "DOES NOT HOLD" };
    println!(
        "\nconservation {verdict}: {produced} produced = {} paid + {} failed + {} cancelled + {} dead, {} wrong",
        conservation.paid,
        conservation.failed,
        conservation.cancelled,
        conservation.dead,
        conservation.wrong.len()
    );
    holds
}
