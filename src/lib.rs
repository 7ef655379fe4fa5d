//! duewheel: a durable delayed-message queue broker.
//!
//! Layers, each importing only those below it: `cli` and `main`; `client`; `server`; `grpc`; `engine`; `store`;
//! `queue`; `clock`, the only reader of time; and `crash`, where tests let the process die. `tests/tidy.rs` holds this to be true.

pub mod cli;
pub mod client;
pub mod clock;
mod crash;
pub mod engine;
pub mod grpc;
pub mod queue;
pub mod server;
pub mod store;

/// The generated types and services of `proto/duewheel/v1`.
#[allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub, unused_qualifications, rustdoc::all)]
pub mod pb {
    tonic::include_proto!("duewheel.v1");

    /// The definitions themselves, as an encoded `google.protobuf.FileDescriptorSet`.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/duewheel_descriptors.bin"));
}
