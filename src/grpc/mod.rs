//! The gRPC adapter: requests in, domain commands to the engine, answers out.
//!
//! Every method is short: parse the request into domain types (`from_wire`), ask the engine, write the answer
//! (`to_wire`). A field of the wrong form is refused here, one that is over a limit by the queue or the engine; both
//! by the full path of the field, and before anything is done. Every refusal of every layer becomes a status in
//! one file, [`errors`].
//!
//! Invariants. Items of a batch are independent and answered in their order. Answers of a stream come in the
//! order of its frames. Every stream is bounded in what it has under way, in what waits for the connection and in
//! the size of its frames, and is served by a task of its own, so a client that does not read holds up nobody
//! else. Bodies are passed on as shared bytes, never copied.
//!
//! What this layer is not: it does not listen on sockets and knows no health and no shutdown (`server`), and it
//! decides nothing about messages (`queue`).

mod admin_service;
mod audit;
mod backup;
mod batch;
mod broker;
mod broker_info;
mod consume;
mod dead_export;
mod dead_job;
mod dead_letters;
mod deadline;
mod delete_topic;
pub mod errors;
mod from_wire;
mod list;
mod page_token;
mod pipeline;
mod produce;
mod queue_service;
mod stats;
mod time;
mod to_wire;
mod topic_settings;
mod why;

pub use admin_service::Admin;
pub use broker::Broker;
pub use deadline::Deadlines;
pub use queue_service::Queue;

/// Largest request that is decoded, bytes: room for 16 MiB of messages in one request. Larger ones end with
/// `OUT_OF_RANGE` before they are read in full.
pub const MAX_REQUEST_BYTES: usize = 16 * 1024 * 1024 + 64 * 1024;
/// Largest response, bytes. Frames, fetches and pages stay far below it.
pub const MAX_RESPONSE_BYTES: usize = 16 * 1024 * 1024;
/// A frame or page is closed when it has this many bytes, so that the one item which goes over it still
/// leaves it below the 4 MiB that clients accept by default.
const FRAME_BYTES: usize = 1024 * 1024;
