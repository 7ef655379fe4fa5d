//! One sync for all who wait for one: what a thread has written before it asks is covered by any sync that begins
//! later, whoever begins it.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Condvar, Mutex, PoisonError};

/// Syncs of files, by descriptor.
#[derive(Debug)]
pub(super) struct SharedSyncs {
    files: Mutex<BTreeMap<c_int, Syncs>>,
    ended: Condvar,
}

/// The syncs of one descriptor, numbered from 1 on.
#[derive(Clone, Copy, Debug, Default)]
struct Syncs {
    begun: u64,
    ended: u64,
    /// The last one that failed, and the error number.
    failed: Option<(u64, i32)>,
}

impl Syncs {
    fn is_running(self) -> bool {
        self.begun > self.ended
    }

    /// How the syncs from `number` on have ended.
    fn result(self, number: u64) -> Result<(), i32> {
        self.failed.filter(|&(failed, _)| failed >= number).map_or(Ok(()), |(_, code)| Err(code))
    }
}

impl SharedSyncs {
    pub(super) const fn new() -> Self {
        Self { files: Mutex::new(BTreeMap::new()), ended: Condvar::new() }
    }

    /// Returns when a sync of the file that has begun after this call has ended: one of another thread, or `sync`.
    ///
    /// # Errors
    /// The error number of that sync.
    pub(super) fn sync(&self, file: c_int, sync: impl FnOnce() -> Result<(), i32>) -> Result<(), i32> {
        // Nothing panics while it holds the lock.
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let awaited = files.entry(file).or_default().begun + 1;
        loop {
            let syncs = files[&file];
            if syncs.ended >= awaited {
                return syncs.result(awaited);
            }
            if !syncs.is_running() {
                break;
            }
            files = self.ended.wait(files).unwrap_or_else(PoisonError::into_inner);
        }
        let known = files[&file];
        let number = known.begun + 1;
        files.insert(file, Syncs { begun: number, ..known });
        drop(files);
        let result = sync();
        let failed = result.err().map(|code| (number, code)).or(known.failed);
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.insert(file, Syncs { begun: number, ended: number, failed });
        self.ended.notify_all();
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn a_sync_that_runs_is_not_enough_and_the_next_one_is_for_all_who_wait() {
        const THREADS: usize = 8;
        let (syncs, runs) = (SharedSyncs::new(), AtomicU64::new(0));
        let (begun, all_ask) = (Barrier::new(2), Barrier::new(THREADS + 1));
        thread::scope(|scope| {
            scope.spawn(|| {
                syncs.sync(3, || {
                    runs.fetch_add(1, Ordering::SeqCst);
                    begun.wait();
                    all_ask.wait();
                    // Those who ask now have written while this one ran.
                    thread::sleep(std::time::Duration::from_millis(20));
                    Err(5)
                })
            });
            begun.wait();
            for _ in 0..THREADS {
                scope.spawn(|| {
                    all_ask.wait();
                    let before = runs.load(Ordering::SeqCst);
                    let result = syncs.sync(3, || {
                        runs.fetch_add(1, Ordering::SeqCst);
                        Ok(())
                    });
                    assert_eq!(result, Ok(()), "the one before failed, not the one that was waited for");
                    assert!(runs.load(Ordering::SeqCst) > before, "no sync began after the question");
                });
            }
        });
        assert!(runs.into_inner() < 1 + THREADS as u64, "each had a sync of its own");
    }

    #[test]
    fn whoever_waited_for_a_sync_that_failed_hears_of_it_and_the_next_one_does_not() {
        let syncs = SharedSyncs::new();
        assert_eq!(syncs.sync(3, || Err(28)), Err(28));
        assert_eq!(syncs.sync(3, || Ok(())), Ok(()));
        assert_eq!(syncs.sync(4, || Ok(())), Ok(()));
        let known = *syncs.files.lock().expect("nobody panicked").get(&3).expect("it was synced");
        assert_eq!((known.result(1), known.result(2)), (Err(28), Ok(())));
    }
}
