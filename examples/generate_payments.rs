//! Writes the payments of the compensator example to stdout; the same seed gives the same file.
//!
//! ```text
//! cargo run --example generate_payments > examples/data/payments.jsonl
//! ```

#[path = "payment_compensator/payment.rs"]
mod payment;

use std::io::Write as _;

use self::payment::{Answer, Glitch, Payment, Span};

const SEED: u64 = 20_261_130;
const PAYMENTS: usize = 2_400;
/// The payments are made over this time.
const DAY_MS: u64 = 10 * 60_000;
/// The first delay tier of the compensator: a notification before it arrives first.
const FIRST_QUERY_MS: u64 = 5_000;

/// Channels, the currency they settle in, and how often they are used, in percent.
const CHANNELS: [(&str, &str, u32); 5] = [
    ("mobile-wallet", "CNY", 38),
    ("qr-code", "CNY", 24),
    ("bank-direct", "EUR", 18),
    ("card-gateway", "USD", 14),
    ("instalments", "EUR", 6),
];

fn main() -> anyhow::Result<()> {
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut out = std::io::stdout().lock();
    for number in 0..PAYMENTS {
        serde_json::to_writer(&mut out, &payment(&mut random, number))?;
        writeln!(out)?;
    }
    Ok(())
}

fn payment(random: &mut fastrand::Rng, number: usize) -> Payment {
    let (channel, currency) = channel(random);
    let at = DAY_MS * number as u64 / PAYMENTS as u64 + random.u64(0..200);
    let mut payment = Payment {
        order: format!("20261130{:02}{:06}", random.u32(10..40), number * 7 + 1_003),
        channel: channel.to_owned(),
        amount: amount(random),
        currency: currency.to_owned(),
        at: Span(at),
        result: None,
        settles_after: None,
        glitches: glitches(random),
        notified_after: None,
        query_now_after: None,
    };
    if let Some(settles_ms) = settles(random) {
        payment.result = Some(if chance(random, 87) { Answer::Paid } else { Answer::Failed });
        payment.settles_after = Some(Span(settles_ms));
        notify(random, &mut payment, settles_ms);
    }
    if chance(random, 6) {
        payment.query_now_after = Some(Span(random.u64(2_000..120_000)));
    }
    payment
}

fn channel(random: &mut fastrand::Rng) -> (&'static str, &'static str) {
    let mut draw = random.u32(0..100);
    for (name, currency, share) in CHANNELS {
        if draw < share {
            return (name, currency);
        }
        draw -= share;
    }
    unreachable!("the shares add up to 100")
}

/// Mostly small amounts, some large, often a round number or just below one.
fn amount(random: &mut fastrand::Rng) -> u64 {
    let hundreds = match random.u32(0..100) {
        0..50 => random.u64(3..50),
        50..85 => random.u64(50..300),
        85..97 => random.u64(300..2_000),
        _ => random.u64(2_000..20_000),
    };
    let rest = match random.u32(0..6) {
        0..2 => 0,
        2 => 90,
        3 => 99,
        4 => 50,
        _ => random.u64(0..100),
    };
    hundreds * 100 + rest
}

/// When the channel knows the result: mostly soon, sometimes late, for a few payments never.
fn settles(random: &mut fastrand::Rng) -> Option<u64> {
    match random.u32(0..100) {
        0..44 => Some(random.u64(1_000..20_000)),
        44..72 => Some(random.u64(20_000..180_000)),
        72..88 => Some(random.u64(180_000..900_000)),
        88..95 => Some(random.u64(900_000..3_000_000)),
        _ => None,
    }
}

fn glitches(random: &mut fastrand::Rng) -> Vec<Glitch> {
    let one = |random: &mut fastrand::Rng| if chance(random, 40) { Glitch::Timeout } else { Glitch::Error };
    let count = match random.u32(0..100) {
        0..82 => 0,
        82..93 => 1,
        93..97 => 2,
        97..99 => 3,
        // More than the error schedule holds: the attempt is spent.
        _ => random.usize(5..9),
    };
    (0..count).map(|_| one(random)).collect()
}

/// Some payments are notified: before the first query, while a query hangs, or some time after they settle.
fn notify(random: &mut fastrand::Rng, payment: &mut Payment, settles_ms: u64) {
    match random.u32(0..100) {
        0..12 => {
            let at = random.u64(300..FIRST_QUERY_MS - 500);
            payment.settles_after = Some(Span(at - 100));
            payment.notified_after = Some(Span(at));
        }
        12..16 => {
            let at = FIRST_QUERY_MS + random.u64(500..2_500);
            payment.settles_after = Some(Span(at - 100));
            payment.glitches.insert(0, Glitch::Timeout);
            payment.notified_after = Some(Span(at));
        }
        16..30 => payment.notified_after = Some(Span(settles_ms + random.u64(100..30_000))),
        _ => {}
    }
}

fn chance(random: &mut fastrand::Rng, percent: u32) -> bool {
    random.u32(0..100) < percent
}
