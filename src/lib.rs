//! duewheel: a durable delayed-message queue broker.
//!
//! Layers, each importing only those below it: `cli` and `main`; `client`; `server`; `grpc`; `engine`; `store`;
//! `queue`; and `clock`, the only reader of time. `tests/tidy.rs` holds this to be true.

pub mod clock;
pub mod engine;
pub mod queue;

/// The generated types and services of `proto/duewheel/v1`.
#[allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub, unused_qualifications, rustdoc::all)]
pub mod pb {
    tonic::include_proto!("duewheel.v1");
}
