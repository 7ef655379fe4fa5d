//! The ordered key-value store under the pages.

use std::ops::ControlFlow;

/// An error of the key-value store, in its own words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// This call cannot be done; a value that cannot be read is damaged.
    #[error("{0}")]
    Refused(String),
    /// The store has failed and does nothing any more: what it does not read says nothing about what is stored.
    #[error("{0}")]
    Failed(String),
}

/// Puts and removes that are applied together or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    items: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    bytes: usize,
}

impl Batch {
    /// Sets a value.
    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.bytes += key.len() + value.len();
        self.items.push((key, Some(value)));
    }

    /// Removes a value, if it is there.
    pub fn remove(&mut self, key: Vec<u8>) {
        self.bytes += key.len();
        self.items.push((key, None));
    }

    /// Takes out what removes a key that `is_taken`; gives these keys.
    pub(super) fn take_removals(&mut self, is_taken: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
        let is_removal = |(key, value): &mut (Vec<u8>, Option<Vec<u8>>)| value.is_none() && is_taken(key);
        let taken: Vec<Vec<u8>> = self.items.extract_if(.., is_removal).map(|(key, _)| key).collect();
        self.bytes -= taken.iter().map(Vec::len).sum::<usize>();
        taken
    }

    /// True if there is nothing to apply.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Bytes of all keys and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The items in order.
    #[must_use]
    pub fn items(&self) -> &[(Vec<u8>, Option<Vec<u8>>)] {
        &self.items
    }

    /// The items in order; a later item of the same key wins. `None` removes.
    #[must_use]
    pub fn into_items(self) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        self.items
    }
}

/// Visits a key and its value, and says whether to go on.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

/// An ordered map of bytes, for reading.
pub trait KvRead: Send {
    /// The value of a key.
    ///
    /// # Errors
    /// [`KvError`] if the medium fails or is damaged there.
    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError>;
    /// Visits the keys that start with `prefix`, in order.
    ///
    /// # Errors
    /// [`KvError`] if the medium fails or is damaged on the way.
    fn scan(&self, prefix: &[u8], visit: Visit<'_>) -> Result<(), KvError>;
}

/// An ordered map of bytes. Batches become durable in the order of their application: what survives a power
/// cut is the state after some batch, and not an earlier one than the last that [`Kv::make_durable`] covered.
pub trait Kv: KvRead {
    /// A second handle, for reading from another thread what has been applied. A batch shows as a whole.
    fn reader(&self) -> Box<dyn KvRead>;
    /// Applies a batch atomically.
    ///
    /// # Errors
    /// [`KvError`] if the medium fails.
    fn apply(&mut self, batch: Batch) -> Result<(), KvError>;
    /// Makes every applied batch durable.
    ///
    /// # Errors
    /// [`KvError`] if the medium fails; what is durable is then unknown.
    fn make_durable(&mut self) -> Result<(), KvError>;
    /// Bytes on disk, as far as known.
    fn disk_bytes(&self) -> u64 {
        0
    }
}
