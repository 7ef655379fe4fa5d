//! SIGINT and SIGTERM: the first asks to finish what is begun, the second to stop at once. SIGHUP asks to read the
//! configuration again.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

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
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                count.send_modify(|count| *count += 1);
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
