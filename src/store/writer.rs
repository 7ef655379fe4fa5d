//! Writing the data of a run before anything lists it. Every batch holds, beside the data, the *intent*: the keys
//! that it writes. So a fold or compaction that does not finish leaves no garbage for ever, and never more than
//! one batch is held in memory.

use std::ops::ControlFlow;

use super::codec::{Malformed, Reader, put_bytes, seal, unseal};
use super::keys::{INTENT, MAX_VALUE_BYTES, intent_key};
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
            self.kv.apply(std::mem::take(&mut self.batch))?;
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

/// Removes what a fold or compaction that did not finish has written.
pub(super) fn remove_unfinished(kv: &mut dyn Kv) -> Result<(), PagesError> {
    let mut batch = Batch::default();
    let mut problem: Option<Malformed> = None;
    kv.scan(&[INTENT], &mut |key, value| {
        batch.remove(key.to_vec());
        let read = || -> Result<Vec<Vec<u8>>, Malformed> {
            let mut input = Reader::new(unseal(key, value)?);
            let mut keys = Vec::new();
            while !input.is_empty() {
                keys.push(input.bytes()?.to_vec());
            }
            Ok(keys)
        };
        match read() {
            Ok(keys) => keys.into_iter().for_each(|key| batch.remove(key)),
            Err(error) => problem = Some(error),
        }
        ControlFlow::Continue(())
    })?;
    if let Some(problem) = problem {
        return Err(PagesError::damaged("the intent of a fold")(problem));
    }
    if !batch.is_empty() {
        kv.apply(batch)?;
    }
    Ok(())
}
