//! Receipts: the token of one lease. A receipt names the message, the delivery and the run of the broker
//! that issued it, and carries a keyed MAC, so that it can be neither guessed nor reused.

use siphasher::sip::SipHasher24;

use super::message::{MessageId, TopicId};
use super::time::Timestamp;

/// The right of one consumer to settle one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receipt {
    /// The message.
    pub id: MessageId,
    /// The delivery number.
    pub delivery: u32,
    /// The run of the broker that issued it.
    pub epoch: u32,
}

/// The secret of a store, with which receipts are sealed.
#[derive(Clone)]
pub struct ReceiptKey([u8; 16]);

/// Length of a sealed receipt, bytes.
pub const SEALED_BYTES: usize = BODY_BYTES + 8;
const BODY_BYTES: usize = 4 + 8 + 8 + 4 + 4;

/// The bytes are not a receipt that this broker issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a receipt of this broker")]
pub struct ForeignReceipt;

impl ReceiptKey {
    /// A key from 16 secret bytes.
    #[must_use]
    pub fn new(secret: [u8; 16]) -> Self {
        Self(secret)
    }

    /// The wire form of a receipt.
    #[must_use]
    pub fn seal(&self, receipt: &Receipt) -> [u8; SEALED_BYTES] {
        let mut sealed = [0; SEALED_BYTES];
        sealed[0..4].copy_from_slice(&receipt.id.topic.0.to_be_bytes());
        sealed[4..12].copy_from_slice(&receipt.id.birth_due.as_millis().to_be_bytes());
        sealed[12..20].copy_from_slice(&receipt.id.arrival.to_be_bytes());
        sealed[20..24].copy_from_slice(&receipt.delivery.to_be_bytes());
        sealed[24..28].copy_from_slice(&receipt.epoch.to_be_bytes());
        let mac = self.mac(&sealed[..BODY_BYTES]);
        sealed[BODY_BYTES..].copy_from_slice(&mac.to_be_bytes());
        sealed
    }

    /// Reads a receipt from its wire form.
    ///
    /// # Errors
    /// [`ForeignReceipt`] if the bytes were not sealed with this key.
    pub fn open(&self, sealed: &[u8]) -> Result<Receipt, ForeignReceipt> {
        let sealed: &[u8; SEALED_BYTES] = sealed.try_into().map_err(|_| ForeignReceipt)?;
        let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| sealed[at + i]));
        let long = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| sealed[at + i]));
        if long(BODY_BYTES) != self.mac(&sealed[..BODY_BYTES]) {
            return Err(ForeignReceipt);
        }
        let id = MessageId { topic: TopicId(word(0)), birth_due: Timestamp::from_millis(long(4)), arrival: long(12) };
        Ok(Receipt { id, delivery: word(20), epoch: word(24) })
    }

    fn mac(&self, body: &[u8]) -> u64 {
        SipHasher24::new_with_key(&self.0).hash(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_opens_only_under_its_key_and_unchanged() {
        let key = ReceiptKey::new([7; 16]);
        let id = MessageId { topic: TopicId(3), birth_due: Timestamp::from_millis(5), arrival: 1 << 40 };
        let receipt = Receipt { id, delivery: 2, epoch: 9 };
        let sealed = key.seal(&receipt);
        assert_eq!(key.open(&sealed), Ok(receipt));
        assert_eq!(ReceiptKey::new([8; 16]).open(&sealed), Err(ForeignReceipt));
        for byte in 0..SEALED_BYTES {
            let mut changed = sealed;
            changed[byte] ^= 1;
            assert_eq!(key.open(&changed), Err(ForeignReceipt), "byte {byte}");
        }
        assert_eq!(key.open(&sealed[1..]), Err(ForeignReceipt));
    }
}
