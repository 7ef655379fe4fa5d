//! Exporting dead letters: whole, in order, piece by piece as the client reads.

use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::dead_letters::{look, snapshot};
use super::errors::Fault;
use super::{FRAME_BYTES, to_wire};
use crate::engine::EngineHandle;
use crate::pb::ExportDeadLettersResponse;
use crate::queue::dead::{DeadFilter, DeadQuery};
use crate::queue::limits::MAX_PAGE_SIZE;
use crate::queue::values::TopicName;

/// Frames that wait for the connection.
const WAITING_FRAMES: usize = 2;

type Frames = mpsc::Sender<Result<ExportDeadLettersResponse, Status>>;

/// Starts an export; it stops when nobody reads it any more.
pub(super) fn start(
    engine: EngineHandle,
    topic: TopicName,
    filter: DeadFilter,
) -> ReceiverStream<Result<ExportDeadLettersResponse, Status>> {
    let (frames, received) = mpsc::channel(WAITING_FRAMES);
    tokio::spawn(async move {
        if let Err(fault) = run(&engine, &topic, filter, &frames).await {
            // The client may be gone before it hears why its export ended.
            let _ = frames.send(Err(fault.into())).await;
        }
    });
    ReceiverStream::new(received)
}

async fn run(engine: &EngineHandle, topic: &TopicName, filter: DeadFilter, frames: &Frames) -> Result<(), Fault> {
    let snapshot = Some(snapshot(engine, topic).await?);
    let mut query = DeadQuery { after: None, filter, snapshot, limit: MAX_PAGE_SIZE as usize };
    let (mut frame, mut bytes) = (ExportDeadLettersResponse::default(), 0);
    loop {
        let page = look(engine, topic, &query).await?;
        for view in page.letters {
            let info = to_wire::dead_letter(view, engine.now(), false);
            bytes += info.encoded_len();
            frame.messages.push(info);
            if bytes >= FRAME_BYTES {
                bytes = 0;
                if frames.send(Ok(std::mem::take(&mut frame))).await.is_err() {
                    return Ok(());
                }
            }
        }
        query.after = page.next;
        if page.next.is_none() || frames.is_closed() {
            break;
        }
    }
    if !frame.messages.is_empty() {
        // A client that is gone needs no last frame.
        let _ = frames.send(Ok(frame)).await;
    }
    Ok(())
}
