//! What an operator may set, and the limits of the network that are fixed.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::clock::StepPolicy;
use crate::engine::EngineSettings;
use crate::queue::limits::Limits;
use crate::store::StoreOptions;

use super::topics::TopicDeclaration;

/// Settings of a broker.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address of the gRPC listener. Default 127.0.0.1:7383.
    pub listen: SocketAddr,
    /// Address of the HTTP listener, which serves `/healthz`. Default 127.0.0.1:7384.
    pub http_listen: SocketAddr,
    /// Allows addresses that other machines can reach, although nothing is encrypted and nobody is asked who
    /// they are. Default false.
    pub insecure: bool,
    /// The directory of the store; created if it does not exist. Default `./duewheel-data`.
    pub data_dir: PathBuf,
    /// How long a shutdown may take. Connections that are open then are cut. Default 10 s.
    pub drain_deadline: Duration,
    /// Threads that serve the network. The engine and the store have their own. Default 1.
    pub network_threads: usize,
    /// Most gRPC connections at once; more wait to be accepted. Default 1,024.
    pub max_connections: usize,
    /// A gRPC connection is pinged when nothing came for this time. Default 30 s.
    pub keepalive_interval: Duration,
    /// It is cut, and its leases are given back, if the answer does not come within this time. Default 10 s.
    pub keepalive_timeout: Duration,
    /// Limits of the queue.
    pub limits: Limits,
    /// Bounds of the engine: waiting fetches, consume streams, memory of requests.
    pub engine: EngineSettings,
    /// Sizes of the store.
    pub store: StoreOptions,
    /// Produce is refused while the file system of the data directory has fewer free bytes; `None`: [`disk_reserve`] of
    /// its size. Default `None`.
    pub disk_reserve: Option<u64>,
    /// Topics that exist, with these settings, before anything is served. Default none.
    pub topics: Vec<TopicDeclaration>,
    /// What to do when the wall clock is set. Default: report it and go on by the broker's clock.
    pub step_policy: StepPolicy,
}

impl Settings {
    /// No configuration may allow more connections: each takes a file descriptor, and memory.
    pub const LARGEST_MAX_CONNECTIONS: usize = 65_536;
    /// No configuration may start more network threads.
    pub const LARGEST_NETWORK_THREADS: usize = 64;
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 7383).into(),
            http_listen: (Ipv4Addr::LOCALHOST, 7384).into(),
            insecure: false,
            data_dir: PathBuf::from("./duewheel-data"),
            drain_deadline: Duration::from_secs(10),
            network_threads: 1,
            max_connections: 1_024,
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(10),
            limits: Limits::default(),
            engine: EngineSettings::default(),
            store: StoreOptions::default(),
            disk_reserve: None,
            topics: Vec::new(),
            step_policy: StepPolicy::Report,
        }
    }
}

/// The default disk reserve of a file system of that size, bytes: 5 percent of it, at least 256 MiB and at most 1 GiB,
/// but never more than a quarter of it.
#[must_use]
pub fn disk_reserve(file_system_bytes: u64) -> u64 {
    (file_system_bytes / 20).clamp(256 << 20, 1 << 30).min(file_system_bytes / 4)
}

/// Most HTTP connections at once.
pub(super) const MAX_HTTP_CONNECTIONS: usize = 64;
/// An HTTP connection is cut after this time, so that idle and slow ones cannot hold all places.
pub(super) const HTTP_CONNECTION_LIFE: Duration = Duration::from_mins(1);
/// Most calls and streams at once on one gRPC connection; a client's further ones wait.
pub(super) const MAX_STREAMS: u32 = 200;
/// What a client may send on one stream before it is read, bytes.
pub(super) const STREAM_WINDOW: u32 = 256 * 1024;
/// What a client may send on all streams of a connection before it is read, bytes. It is enough for every stream,
/// so a stream that the broker does not read for a while never holds up another one.
pub(super) const CONNECTION_WINDOW: u32 = MAX_STREAMS * STREAM_WINDOW;
/// Most bytes of a request's header list.
pub(super) const MAX_HEADER_LIST_BYTES: u32 = 16 * 1024;
/// Largest HTTP/2 frame, bytes.
pub(super) const MAX_FRAME_BYTES: u32 = 64 * 1024;
/// Resets of streams that were not served yet, after which a connection is cut (the "rapid reset" attack).
pub(super) const MAX_PENDING_RESETS: usize = 100;
/// Streams that were reset for the peer's errors, after which a connection is cut.
pub(super) const MAX_LOCAL_RESETS: usize = 1_024;
/// A call must be answered, and a stream be opened, within this time: more than the longest wait of a fetch.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(90);
/// How long replies may still flow after a failed commit.
pub(super) const FAILED_DEADLINE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_reserve_follows_the_size_of_the_file_system() {
        let (mib, gib) = (1_u64 << 20, 1_u64 << 30);
        for (size, reserve) in [(0, 0), (64 * mib, 16 * mib), (2 * gib, 256 * mib), (20 * gib, gib), (1 << 40, gib)] {
            assert_eq!(disk_reserve(size), reserve, "{size}");
        }
    }
}
