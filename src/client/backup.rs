//! Taking a backup.

use tonic::Streaming;

use super::{Client, Error};
use crate::pb;
use crate::pb::backup_response::Item;

/// A backup that is being taken. To be read without long pauses; dropping it gives it up.
#[derive(Debug)]
pub struct Backup {
    header: pb::BackupHeader,
    items: Streaming<pb::BackupResponse>,
    trailer: Option<pb::BackupTrailer>,
}

impl Client {
    /// Begins a backup of everything the broker holds; what was confirmed before is in it.
    ///
    /// # Errors
    /// `BACKUP_RUNNING`, or a call that broke.
    pub async fn backup(&self) -> Result<Backup, Error> {
        // It takes as long as it takes: no timeout.
        let mut items = self.admin().backup(pb::BackupRequest {}).await?.into_inner();
        match items.message().await?.and_then(|response| response.item) {
            Some(Item::Header(header)) => Ok(Backup { header, items, trailer: None }),
            _ => Err(Error::protocol("a backup without a header")),
        }
    }
}

impl Backup {
    /// What it is of.
    #[must_use]
    pub fn header(&self) -> &pb::BackupHeader {
        &self.header
    }

    /// The next bytes; `None` at its end.
    ///
    /// # Errors
    /// `BACKUP_OVERTAKEN`, `RECORD_DAMAGED`, or a stream that broke: what was read so far is of no use.
    pub async fn next(&mut self) -> Result<Option<bytes::Bytes>, Error> {
        if self.trailer.is_some() {
            return Ok(None);
        }
        match self.items.message().await?.and_then(|response| response.item) {
            Some(Item::Chunk(chunk)) => Ok(Some(chunk.data)),
            Some(Item::Trailer(trailer)) => {
                self.trailer = Some(trailer);
                Ok(None)
            }
            _ => Err(Error::protocol("a backup that ends without its trailer")),
        }
    }

    /// Its counts; `None` before its end.
    #[must_use]
    pub fn trailer(&self) -> Option<&pb::BackupTrailer> {
        self.trailer.as_ref()
    }
}
