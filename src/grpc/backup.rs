//! A backup as a stream: read on a thread of its own, as fast as the client takes it.
//!
//! While a client does not read, a few chunks wait and nothing more is read. A client that stops reading for
//! [`STALLED`], and a broker that shuts down, end the backup: what it reads must not be kept for ever.

use std::fmt::Write as _;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::audit;
use super::errors::Fault;
use super::time::to_wire;
use crate::engine::Status as EngineStatus;
use crate::engine::{BACKUP_VERSION, Backup, BackupCounts, BackupError, BackupHeader, EngineError, EngineHandle};
use crate::pb;
use crate::pb::backup_response::Item;

/// Chunks that wait for the connection.
const WAITING_CHUNKS: usize = 4;
/// A client that takes nothing for so long is taken for gone.
const STALLED: Duration = Duration::from_mins(1);

/// The items of a backup.
pub(super) type Responses = ReceiverStream<Result<pb::BackupResponse, Status>>;

type Items = mpsc::Sender<Result<pb::BackupResponse, Status>>;

/// Begins a backup, and sends it from a thread that ends with it.
pub(super) async fn serve(engine: &EngineHandle) -> Result<Responses, Fault> {
    let backup = engine.backup().await?;
    audit::backup_begun(backup.header().topics, backup.header().live);
    let (items, received) = mpsc::channel(WAITING_CHUNKS);
    let sending = Sending { items, runtime: Handle::current(), engine: engine.clone(), fault: None };
    tokio::task::spawn_blocking(move || sending.run(&backup));
    Ok(ReceiverStream::new(received))
}

struct Sending {
    items: Items,
    runtime: Handle,
    engine: EngineHandle,
    /// Why nothing more can be sent.
    fault: Option<Fault>,
}

impl Sending {
    fn run(mut self, backup: &Backup) {
        let (bytes, fault) = self.write(backup);
        audit::backup_ended(bytes, fault.as_ref().map_or("complete", Fault::reason));
        if let Some(fault) = fault {
            // Whoever reads nothing does not read this either.
            let _unread = self.items.try_send(Err(fault.into()));
        }
    }

    /// Sends all of it. Gives the bytes of the backup that were sent, and why it is not complete.
    fn write(&mut self, backup: &Backup) -> (u64, Option<Fault>) {
        let mut bytes = 0;
        if !self.send(Item::Header(header(backup.header()))) {
            return (bytes, Some(self.stopped()));
        }
        let written = backup.write(&mut |data| {
            let length = data.len() as u64;
            let is_sent = self.send(Item::Chunk(pb::BackupChunk { data: data.into() }));
            bytes += if is_sent { length } else { 0 };
            is_sent
        });
        let is_sent = match written {
            Ok((counts, checksum)) => self.send(Item::Trailer(trailer(&counts, bytes, checksum))),
            Err(BackupError::Stopped) => false,
            Err(error) => return (bytes, Some(error.into())),
        };
        (bytes, (!is_sent).then(|| self.stopped()))
    }

    /// Why nothing more was sent.
    fn stopped(&mut self) -> Fault {
        self.fault.take().unwrap_or_else(|| BackupError::Stopped.into())
    }

    /// False if the client is gone or too slow, or the broker is ending.
    fn send(&mut self, item: Item) -> bool {
        let response = Ok(pb::BackupResponse { item: Some(item) });
        let mut status = self.engine.status();
        let sent = self.runtime.block_on(async {
            tokio::select! {
                sent = tokio::time::timeout(STALLED, self.items.send(response)) => match sent {
                    Ok(sent) => Ok(sent.is_ok()),
                    Err(_) => Err(BackupError::Overtaken.into()),
                },
                _ = status.wait_for(|status| *status != EngineStatus::Serving) => Err(EngineError::Draining.into()),
            }
        });
        match sent {
            Ok(is_there) => is_there,
            Err(fault) => {
                self.fault = Some(fault);
                false
            }
        }
    }
}

fn header(header: &BackupHeader) -> pb::BackupHeader {
    let store_id = header.store.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a text can be written");
        text
    });
    pb::BackupHeader {
        format: BACKUP_VERSION,
        store_id,
        epoch: header.epoch,
        taken_at: Some(to_wire(header.taken_at)),
        topics: header.topics,
        live_messages: header.live,
    }
}

fn trailer(counts: &BackupCounts, bytes: u64, checksum: u32) -> pb::BackupTrailer {
    let BackupCounts { topics, waiting, dead, ended, dedup_ids } = *counts;
    pb::BackupTrailer { topics, waiting, dead, ended, dedup_ids, bytes, checksum }
}
