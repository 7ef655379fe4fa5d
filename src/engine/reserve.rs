//! The disk reserve: produce is refused while the disk has too little room, so that acks, nacks and cancels still
//! find some. A disk that is really full ends the broker.
//!
//! A thread of its own looks at the free space several times a second, and when the journal has grown. No commit
//! waits for it.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

use super::handle::EngineError;
use super::signals::Signals;

/// Between two looks at the free space.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What must be free beside the reserve before produce is accepted again: this part of the reserve, so that it does
/// not go back and forth.
const MARGIN_PART: u64 = 16;

/// The space of the data file system as it was seen last.
#[derive(Debug, Default)]
pub(super) struct Disk {
    /// Something is watching.
    is_watched: AtomicBool,
    free: AtomicU64,
    reserve: AtomicU64,
    is_short: AtomicBool,
    watcher: OnceLock<Thread>,
}

/// Free space and what is made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskView {
    /// Free bytes of the data file system.
    pub free_bytes: u64,
    /// Below this, produce is refused.
    pub reserve_bytes: u64,
    /// Produce is refused.
    pub is_short: bool,
}

impl Disk {
    /// The last look; `None`: nobody looks.
    pub(super) fn view(&self) -> Option<DiskView> {
        self.is_watched.load(Ordering::Relaxed).then(|| DiskView {
            free_bytes: self.free.load(Ordering::Relaxed),
            reserve_bytes: self.reserve.load(Ordering::Relaxed),
            is_short: self.is_short.load(Ordering::Relaxed),
        })
    }

    /// Refuses while the disk is short.
    ///
    /// # Errors
    /// [`EngineError::DiskReserve`].
    pub(super) fn admit_produce(&self) -> Result<(), EngineError> {
        if !self.is_short.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (free, reserve) = (self.free.load(Ordering::Relaxed), self.reserve.load(Ordering::Relaxed));
        Err(EngineError::DiskReserve { free, reserve })
    }

    /// Another reserve, from the next look on, which is soon.
    pub(super) fn set_reserve(&self, reserve: u64) {
        self.reserve.store(reserve, Ordering::Relaxed);
        self.look_soon();
    }

    /// Looks soon: something has grown.
    pub(super) fn look_soon(&self) {
        if let Some(watcher) = self.watcher.get() {
            watcher.unpark();
        }
    }

    /// Takes note of the free space; tells a change once.
    fn note(&self, free: u64) {
        let (reserve, was_short) = (self.reserve.load(Ordering::Relaxed), self.is_short.load(Ordering::Relaxed));
        self.free.store(free, Ordering::Relaxed);
        let needed = if was_short { reserve.saturating_add(reserve / MARGIN_PART) } else { reserve };
        let is_short = free < needed;
        self.is_short.store(is_short, Ordering::Relaxed);
        self.is_watched.store(true, Ordering::Relaxed);
        match (was_short, is_short) {
            (false, true) => tracing::error!(
                free,
                reserve,
                "the disk has less room than the reserve: produce is refused; acks, nacks and cancels still work"
            ),
            (true, false) => tracing::info!(free, reserve, "the disk has room again: produce is accepted"),
            _ => {}
        }
    }
}

/// Watches the free space until the engine is gone. The first look is done when this returns.
///
/// # Errors
/// If the system gives no thread.
pub(super) fn watch(
    signals: &Arc<Signals>,
    reserve: u64,
    mut free_bytes: impl FnMut() -> io::Result<u64> + Send + 'static,
) -> io::Result<()> {
    signals.disk.reserve.store(reserve, Ordering::Relaxed);
    let mut is_unknown = false;
    let mut look = move |disk: &Disk| match free_bytes() {
        Ok(free) => {
            is_unknown = false;
            disk.note(free);
        }
        Err(error) if !is_unknown => {
            is_unknown = true;
            tracing::warn!(%error, "the free space of the data file system is unknown");
        }
        Err(_) => {}
    };
    look(&signals.disk);
    let seen = Arc::downgrade(signals);
    let body = move || {
        while let Some(signals) = seen.upgrade() {
            look(&signals.disk);
            drop(signals);
            thread::park_timeout(LOOK_EVERY);
        }
    };
    let watcher = thread::Builder::new().name("duewheel-disk".to_owned()).spawn(body)?;
    // A second watch of the same engine looks for itself only.
    let _second = signals.disk.watcher.set(watcher.thread().clone());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn produce_is_refused_below_the_reserve_and_accepted_again_with_a_margin() {
        let disk = Disk::default();
        assert_eq!(disk.view(), None);
        disk.reserve.store(1_600, Ordering::Relaxed);
        for (free, is_short) in [(1_600, false), (1_599, true), (1_650, true), (1_699, true), (1_700, false), (0, true)]
        {
            disk.note(free);
            let view = disk.view().expect("it was looked at");
            assert_eq!((view.free_bytes, view.is_short), (free, is_short));
            let refused = disk.admit_produce() == Err(EngineError::DiskReserve { free, reserve: 1_600 });
            assert_eq!(refused, is_short, "{free}");
        }
    }

    #[test]
    fn another_reserve_counts_from_the_next_look_on() {
        let disk = Disk::default();
        disk.set_reserve(1_600);
        disk.note(1_000);
        assert!(disk.admit_produce().is_err());
        disk.set_reserve(160);
        disk.note(1_000);
        assert_eq!(disk.admit_produce(), Ok(()));
    }
}
