//! SIGINT and SIGTERM: the first asks to finish what is begun, the second to stop at once, unless it is the same one a
//! moment later. SIGHUP asks to read the configuration again.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::clock::Stopwatch;

/// A signal of the same kind that comes this soon after the first is the same request: `timeout` sends one to the
/// process and one to its group.
const SAME_REQUEST: Duration = Duration::from_millis(500);

/// How urgently the process was asked to stop. Clones see the same signals.
#[derive(Clone, Debug)]
pub(super) struct Stop(watch::Receiver<u32>);

impl Stop {
    /// Takes over both signals for the rest of the process; until then they end it at once.
    pub(super) fn listen() -> io::Result<Self> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let (count, seen) = watch::channel(0);
        tokio::spawn(async move {
            let (watch, mut requests) = (Stopwatch::start(), Requests::default());
            loop {
                let kind = tokio::select! {
                    _ = interrupt.recv() => SignalKind::interrupt(),
                    _ = terminate.recv() => SignalKind::terminate(),
                };
                requests.note(kind, watch.elapsed());
                count.send_replace(requests.count);
            }
        });
        Ok(Self(seen))
    }

    /// Waits for the first signal.
    pub(super) async fn requested(&self) {
        self.reached(1).await;
    }

    /// Waits for the second signal.
    pub(super) async fn forced(&self) {
        self.reached(2).await;
    }

    /// The first signal has come.
    pub(super) fn is_requested(&self) -> bool {
        *self.0.borrow() >= 1
    }

    async fn reached(&self, count: u32) {
        let mut seen = self.0.clone();
        // The sender lives as long as the runtime; without it no signal comes any more.
        if seen.wait_for(|&signals| signals >= count).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// The signals so far.
#[derive(Debug, Default)]
struct Requests {
    count: u32,
    first: Option<(SignalKind, Duration)>,
}

impl Requests {
    /// A signal has come at that time.
    fn note(&mut self, kind: SignalKind, at: Duration) {
        let is_same = |(first, since): (SignalKind, Duration)| first == kind && at.saturating_sub(since) < SAME_REQUEST;
        if !self.first.is_some_and(is_same) {
            self.count += 1;
        }
        self.first.get_or_insert((kind, at));
    }
}

/// SIGHUPs. Several that come before they are looked at count as one.
pub(super) struct Hangups(Signal);

impl Hangups {
    /// Takes the signal over for the rest of the process.
    pub(super) fn listen() -> io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            // Without the runtime no signal comes any more.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_comes_twice_in_a_moment_is_one_request() {
        let (term, int) = (SignalKind::terminate(), SignalKind::interrupt());
        for (signals, want) in [
            (&[(term, 1_000), (term, 1_001)][..], 1),
            (&[(term, 1_000), (term, 1_499), (term, 1_499)], 1),
            (&[(term, 1_000), (term, 1_500)], 2),
            (&[(term, 1_000), (term, 1_001), (term, 2_000)], 2),
            (&[(term, 1_000), (int, 1_001)], 2),
        ] {
            let mut requests = Requests::default();
            for &(kind, ms) in signals {
                requests.note(kind, Duration::from_millis(ms));
            }
            assert_eq!(requests.count, want, "{signals:?}");
        }
    }
}
