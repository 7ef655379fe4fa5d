//! Writing the data of a run before anything lists it, and removing what nothing lists any more.
//!
//! Every batch of data holds beside it the *intent*: the keys that it writes. So a fold or compaction that does not
//! finish leaves no garbage for ever, and never more than one batch is held in memory. The batch that makes a run
//! count replaces that intent by one that names what the run has made useless, often very much; that is then removed
//! in small batches, since sled holds all that a batch touches in memory until its end. A start removes whatever an
//! intent still names.

use std::ops::ControlFlow;

use crate::crash::crash_point;

use super::codec::{Malformed, Reader, put_bytes, seal, unseal};
use super::keys::{DATA, INTENT, MAX_VALUE_BYTES, intent_key};
use super::kv::{Batch, Kv};
use super::page::PagesError;

/// About this many bytes are applied at once.
const WRITE_BYTES: usize = 512 << 10;

/// Writes values under keys of one run.
pub(super) struct RunWriter<'a> {
    kv: &'a mut dyn Kv,
    run: u64,
    batch: Batch,
    intent: Vec<u8>,
    intents: u32,
}

impl<'a> RunWriter<'a> {
    pub(super) fn new(kv: &'a mut dyn Kv, run: u64) -> Self {
        Self { kv, run, batch: Batch::default(), intent: Vec::new(), intents: 0 }
    }

    pub(super) fn put(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<(), PagesError> {
        put_bytes(&mut self.intent, &key);
        self.batch.put(key, value);
        if self.intent.len() > MAX_VALUE_BYTES - 64 {
            self.close_intent();
        }
        if self.batch.bytes() >= WRITE_BYTES { self.apply() } else { Ok(()) }
    }

    fn close_intent(&mut self) {
        let key = intent_key(self.run, self.intents);
        let value = seal(&key, &self.intent);
        self.batch.put(key, value);
        self.intent.clear();
        self.intents += 1;
    }

    fn apply(&mut self) -> Result<(), PagesError> {
        if !self.intent.is_empty() {
            self.close_intent();
        }
        if !self.batch.is_empty() {
            crash_point!("run.before_batch");
            self.kv.apply(std::mem::take(&mut self.batch))?;
            crash_point!("run.after_batch");
        }
        Ok(())
    }

    /// Makes everything durable, and puts the end of the intent into the batch that lists it.
    pub(super) fn finish(mut self, last: &mut Batch) -> Result<(), PagesError> {
        self.apply()?;
        for part in 0..self.intents {
            last.remove(intent_key(self.run, part));
        }
        Ok(self.kv.make_durable()?)
    }
}

/// Data that nothing lists once the last batch of a run is applied.
pub(super) struct Useless {
    /// Batches that remove it, each with its part of the intent.
    batches: Vec<Batch>,
}

impl Useless {
    /// Moves the removals of data out of the last batch of run `run`, and puts the intent to do them into it.
    pub(super) fn of(last: &mut Batch, run: u64) -> Self {
        let keys = last.take_removals(|key| key.first().is_some_and(|kind| DATA.contains(kind)));
        let mut useless = Self { batches: Vec::new() };
        let mut intent = Vec::new();
        let mut batch = Batch::default();
        for key in keys {
            put_bytes(&mut intent, &key);
            batch.remove(key);
            if intent.len() > MAX_VALUE_BYTES - 64 {
                useless.close(run, (&mut intent, &mut batch), last);
            }
        }
        if !intent.is_empty() {
            useless.close(run, (&mut intent, &mut batch), last);
        }
        useless
    }

    fn close(&mut self, run: u64, (intent, batch): (&mut Vec<u8>, &mut Batch), last: &mut Batch) {
        let key = intent_key(run, u32::try_from(self.batches.len()).expect("a run makes less than 2^32 keys useless"));
        last.put(key.clone(), seal(&key, intent));
        batch.remove(key);
        intent.clear();
        self.batches.push(std::mem::take(batch));
    }

    /// Removes it, once the last batch is durable.
    pub(super) fn remove(self, kv: &mut dyn Kv) -> Result<(), PagesError> {
        for batch in self.batches {
            crash_point!("removal.before_batch");
            kv.apply(batch)?;
            crash_point!("removal.after_batch");
        }
        Ok(())
    }

    /// Leaves it to its intents: gives their keys, and how many keys they remove.
    pub(super) fn into_intents(self) -> (Vec<Vec<u8>>, usize) {
        let removed = self.batches.iter().map(|batch| batch.items().len() - 1).sum();
        let intents = self.batches.into_iter().map(|batch| {
            let (intent, _) = batch.into_items().pop().expect("a batch ends with its intent");
            intent
        });
        (intents.collect(), removed)
    }
}

/// Removes what a fold or compaction has left that did not get to its end.
pub(super) fn remove_unfinished(kv: &mut dyn Kv) -> Result<(), PagesError> {
    let mut batches = Vec::new();
    let mut problem: Option<Malformed> = None;
    kv.scan(&[INTENT], &mut |key, value| {
        match removals(key, value) {
            Ok(batch) => batches.push(batch),
            Err(error) => problem = Some(error),
        }
        ControlFlow::Continue(())
    })?;
    if let Some(problem) = problem {
        return Err(PagesError::damaged("the intent of a fold")(problem));
    }
    for batch in batches {
        crash_point!("recovery.before_removal");
        kv.apply(batch)?;
        crash_point!("recovery.after_removal");
    }
    Ok(())
}

/// Removes what an intent names, if it is there.
pub(super) fn remove_by(kv: &mut dyn Kv, intent: &[u8]) -> Result<(), PagesError> {
    let Some(value) = kv.value(intent)? else { return Ok(()) };
    let batch = removals(intent, &value).map_err(PagesError::damaged("what was kept for a backup"))?;
    kv.apply(batch)?;
    crash_point!("hold.removed");
    Ok(())
}

/// What an intent names is removed, and the intent itself.
fn removals(intent: &[u8], value: &[u8]) -> Result<Batch, Malformed> {
    let mut batch = Batch::default();
    let mut input = Reader::new(unseal(intent, value)?);
    while !input.is_empty() {
        batch.remove(input.bytes()?.to_vec());
    }
    batch.remove(intent.to_vec());
    Ok(batch)
}
