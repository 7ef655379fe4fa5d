//! Starting the broker on what a crash or a clean stop has left; the power may be cut again meanwhile.

use std::sync::Arc;

use duewheel::clock::StepPolicy;
use duewheel::engine::{EngineSettings, Folds, Parts, stepped};
use duewheel::queue::change::Change;
use duewheel::queue::time::Timestamp;
use duewheel::queue::{Queue, Restore};
use duewheel::store::{Identity, Reader, open_with};

use crate::compare;
use crate::coverage::Coverage;
use crate::fault::Fault;
use crate::media::{FoldRecorder, Forgetful, Recorder};
use crate::shadow::Violation;
use crate::world::{Broker, LIMITS, TINY, World};

const IDENTITY: Identity = Identity { store: [7; 16], secret: [9; 16] };

/// How far ahead a broken clock is.
const AHEAD_MS: i64 = 1_500;

impl World {
    /// Starts the broker, however often that takes.
    pub(crate) fn recover(&mut self) -> Result<(), Violation> {
        let mut may_fail = self.rng.u32(0..3) == 0;
        loop {
            if may_fail {
                let calls = self.rng.u64(0..7);
                let (log, kv) = if self.rng.bool() { (Some(calls), None) } else { (None, Some(calls)) };
                self.media.fail_after(log, kv);
                self.say(format!("it starts, and writes fail after {calls}"));
            }
            let is_open = self.try_to_open(may_fail)?;
            if is_open && !may_fail {
                return Ok(());
            }
            if is_open && self.rng.bool() {
                // It serves on media that will fail soon, or be cut off.
                self.media.fail_after(None, None);
                return Ok(());
            }
            self.coverage.mark(if is_open { "crash right after a start" } else { "crash during a start" });
            self.absorb()?;
            self.forget_broker();
            self.media.crash(&mut self.chance);
            may_fail = self.rng.u32(0..3) == 0;
        }
    }

    /// False if the start has failed, as it may on failing media.
    fn try_to_open(&mut self, may_fail: bool) -> Result<bool, Violation> {
        let mut restore = Restore::new(LIMITS);
        let (log, kv) = self.media.doubles(self.fault);
        let opened = match open_with(log, kv, IDENTITY, TINY, &mut |restored| restore.record(restored)) {
            Ok(opened) => opened,
            Err(_) if may_fail => return Ok(false),
            Err(error) => return Err(format!("the store does not open: {error}")),
        };
        let is_clean = self.shadow.closing.is_some() && self.in_doubt.is_none();
        if is_clean && !opened.clean {
            return Err("a clean stop is not recognized".to_owned());
        }
        let reader = opened.folder.reader();
        self.say(format!(
            "it starts: clean={} torn={:?} repeated={:?}",
            opened.clean, opened.torn, opened.repeated_fold
        ));
        self.coverage.mark(format!("opened clean={}", opened.clean));
        if opened.torn.is_some() {
            self.coverage.mark("opened with a torn end");
        }
        if opened.repeated_fold.is_some() {
            self.coverage.mark("opened with a fold to repeat");
        }
        let truth = self.time.clock(StepPolicy::Report);
        let clock = if self.fault == Fault::ClockAhead {
            let ahead = self.time.clone();
            ahead.step_wall_ms(AHEAD_MS);
            let clock = ahead.clock(StepPolicy::Report);
            ahead.step_wall_ms(-AHEAD_MS);
            clock
        } else {
            truth.clone()
        };
        let Parts { queue, opening, commits, folds, pages, receipt_key } = Parts::on_store(opened, restore, &clock);
        if Folds::is_cleaning_up(&folds) {
            self.coverage.mark("opened with a deletion to finish");
        }
        self.resolve(&queue, &opening, reader, clock.now())?;
        let [own, loads, looks] = pages;
        let loads = if self.fault == Fault::LoadForgetsMessage { Box::new(Forgetful(loads)) } else { loads };
        let book = Arc::clone(&self.book);
        let parts = Parts {
            queue,
            opening,
            commits: Recorder { journal: commits, book: Arc::clone(&book), fault: self.fault, owed: Vec::new() },
            folds: FoldRecorder { folder: folds, kv: self.media.kv.clone(), book },
            pages: [own, loads, looks],
            receipt_key,
        };
        let started = stepped(EngineSettings::default(), parts, clock.clone());
        let is_started = started.is_ok();
        if is_started {
            self.note_leases(clock.now());
            // A commit in doubt may have brought another cap.
            self.shadow.topics.values().for_each(|record| self.caps.put(record, clock.now()));
        }
        if is_started && clock.now() < self.latest {
            self.set_back_epoch = self.shadow.epoch + 1;
            self.caps.forget(clock.now());
            self.coverage.mark("started with the clock set back");
        }
        if let Ok((handle, stepped)) = started {
            self.broker = Some(Broker { stepped, handle, clock, truth, closing: None });
        } else if !may_fail {
            return Err("the start cannot be written down".to_owned());
        }
        self.absorb()?;
        Ok(is_started)
    }

    /// After a clean stop the leases go on, with no more time left than they had. After a crash there are none.
    fn note_leases(&mut self, now: Timestamp) {
        if let Some(closing) = &self.shadow.closing {
            let set_back_ms = closing.at.since(now);
            self.asked.deadlines.values_mut().for_each(|deadline| *deadline = deadline.minus(set_back_ms));
        } else {
            self.asked.deadlines.clear();
            self.voided_epoch = self.shadow.epoch + 1;
        }
    }

    /// What was restored must be what was committed; of a commit that failed all or nothing.
    fn resolve(
        &mut self,
        queue: &Queue,
        opening: &[Change],
        mut reader: Reader,
        now: Timestamp,
    ) -> Result<(), Violation> {
        let mut judge = |shadow: &crate::shadow::Shadow| {
            let mut opened = shadow.clone();
            opened.commit(opening, &self.asked, self.latest.max(now), &mut Coverage::default())?;
            compare::store(queue, &mut reader, &opened, now, self.latest)
        };
        let without = judge(&self.shadow);
        let Some(changes) = self.in_doubt.take() else {
            return without.map_err(|problem| format!("after a start: {problem}"));
        };
        // The start of a run changes nothing else that can be seen.
        let survived = |change: &Change| matches!(change, Change::Opened { epoch, .. } if *epoch < queue.epoch());
        if without.is_ok() && !changes.iter().any(survived) {
            self.coverage.mark("a commit that failed is lost");
            return Ok(());
        }
        let mut with = self.shadow.clone();
        let applied = with.commit(&changes, &self.asked, self.latest, &mut self.coverage);
        applied.and_then(|()| judge(&with)).map_err(|problem| {
            format!("after a start, neither without the commit that failed: {without:?}\nnor with it: {problem}")
        })?;
        self.coverage.mark("a commit that failed has survived");
        self.shadow = with;
        Ok(())
    }
}
