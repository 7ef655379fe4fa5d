//! The life of one payment as the shop sees it: paid, produced, perhaps notified, perhaps asked about.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use duewheel::client::{Backoff, CancelAnswer, Client, Due, Error, MessageRef, NewMessage, RescheduleAnswer};
use duewheel::clock::Stopwatch;
use tokio::sync::watch;

use crate::payment::Payment;
use crate::{Shop, TOPIC};

/// What the calls of the shop were answered.
#[derive(Default)]
pub(crate) struct Answers {
    /// Produced, first answers and repeated ones alike.
    pub(crate) produced: AtomicU64,
    /// Of these: a repeat found that the first try had been stored.
    pub(crate) found_stored: AtomicU64,
    /// Notifications that came before any query had settled the order.
    pub(crate) notified_first: AtomicU64,
    /// Cancels answered CANCELLED.
    pub(crate) cancelled: AtomicU64,
    /// Cancels answered `IN_FLIGHT`: a query was running.
    pub(crate) in_flight: AtomicU64,
    /// Cancels that came too late.
    pub(crate) too_late: AtomicU64,
    /// "Query now" that moved the message.
    pub(crate) query_now: AtomicU64,
    /// "Query now" that found it in flight or done.
    pub(crate) query_now_void: AtomicU64,
}

/// Plays one payment, from the moment it is made to the last that the shop does about it.
pub(crate) async fn play(shop: Arc<Shop>, payment: Payment) -> Result<(), Error> {
    tokio::time::sleep(payment.at.scaled(shop.scale)).await;
    let order = shop.key(&payment);
    let paid = Stopwatch::start();
    shop.orders.open(&order);
    shop.channels.pay(&order, &payment);
    let (stored, is_stored) = watch::channel(false);
    let produced = async {
        produce(&shop, &order, &payment).await?;
        stored.send_replace(true);
        Ok(())
    };
    let notified = notification(&shop, &order, &payment, paid, is_stored.clone());
    let asked = query_now(&shop, &order, &payment, paid, is_stored);
    tokio::try_join!(produced, notified, asked).map(drop)
}

/// Hands the dropped order to the broker. The same `dedup_id` makes it safe to repeat until it is answered.
async fn produce(shop: &Shop, order: &str, payment: &Payment) -> Result<(), Error> {
    let body = serde_json::to_vec(payment).expect("a payment can be written");
    let message =
        NewMessage::new(body).key(order).dedup_id(order).header("channel", &payment.channel).schedule(&shop.schedule);
    let produced = until_answered(|| shop.client.produce(TOPIC, message.clone())).await?;
    shop.answers.produced.fetch_add(1, Ordering::Relaxed);
    shop.answers.found_stored.fetch_add(u64::from(produced.existing), Ordering::Relaxed);
    Ok(())
}

/// The channel's notification settles the order and cancels its compensation, also while a query is running.
async fn notification(
    shop: &Shop,
    order: &str,
    payment: &Payment,
    paid: Stopwatch,
    mut is_stored: watch::Receiver<bool>,
) -> Result<(), Error> {
    let (Some(after), Some(result)) = (payment.notified_after, payment.result) else { return Ok(()) };
    sleep_from(paid, after.scaled(shop.scale)).await;
    if !shop.orders.settle(order, result) {
        return Ok(());
    }
    shop.answers.notified_first.fetch_add(1, Ordering::Relaxed);
    if is_stored.wait_for(|&stored| stored).await.is_err() {
        return Ok(());
    }
    let answer = until_answered(|| shop.client.cancel(TOPIC, MessageRef::key(order), true)).await?;
    let counter = match answer {
        CancelAnswer::Cancelled { .. } => &shop.answers.cancelled,
        CancelAnswer::InFlight { .. } => &shop.answers.in_flight,
        CancelAnswer::AlreadyDone { .. } | CancelAnswer::NotFound => &shop.answers.too_late,
    };
    counter.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Somebody looks at the order and wants to know now: due at once, without spending a tier.
async fn query_now(
    shop: &Shop,
    order: &str,
    payment: &Payment,
    paid: Stopwatch,
    mut is_stored: watch::Receiver<bool>,
) -> Result<(), Error> {
    let Some(after) = payment.query_now_after else { return Ok(()) };
    sleep_from(paid, after.scaled(shop.scale)).await;
    if is_stored.wait_for(|&stored| stored).await.is_err() {
        return Ok(());
    }
    let now = Due::In(Duration::ZERO);
    let answer = until_answered(|| shop.client.reschedule(TOPIC, MessageRef::key(order), now)).await?;
    let moved = matches!(answer, RescheduleAnswer::Rescheduled { .. });
    let counter = if moved { &shop.answers.query_now } else { &shop.answers.query_now_void };
    counter.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Sleeps until `after` has passed since `start`.
async fn sleep_from(start: Stopwatch, after: Duration) {
    tokio::time::sleep(after.saturating_sub(start.elapsed())).await;
}

/// Repeats a call until the broker answers it: through a restart, and when the outcome is unknown.
pub(crate) async fn until_answered<T, F>(call: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut backoff = Backoff::default();
    loop {
        match call().await {
            Err(error) if error.is_temporary() => tokio::time::sleep(backoff.next_wait()).await,
            answer => return answer,
        }
    }
}

/// Creates the topic if it is missing.
pub(crate) async fn ensure_topic(client: &Client, settings: duewheel::pb::TopicSettings) -> Result<(), Error> {
    match until_answered(|| client.create_topic(TOPIC, settings.clone())).await {
        Err(error) if error.reason() == Some("TOPIC_EXISTS") => Ok(()),
        answer => answer.map(drop),
    }
}
