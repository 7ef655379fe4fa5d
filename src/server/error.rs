//! Why a broker does not start, or does not end well.

use std::error::Error;
use std::io;
use std::net::SocketAddr;

use super::topics::DeclareError;

/// Why a broker does not start, or does not end well.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address can be reached by others, and that was not allowed.
    #[error(
        "refusing to listen on {address}: connections are neither encrypted nor authenticated, so anybody who \
         reaches that address could read and settle messages; listen on 127.0.0.1, or pass --insecure if the \
         network is closed to others"
    )]
    NotLoopback {
        /// The address.
        address: SocketAddr,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The store or the engine does not start.
    #[error(transparent)]
    Open(#[from] OpenFailure),
    /// A topic that the configuration declares is refused.
    #[error(transparent)]
    Topic(#[from] DeclareError),
    /// A commit failed, so that memory is ahead of the disk. Recovery at the next start finds what is durable.
    #[error("the broker stopped because a commit failed: {0}; callers were told that the outcome is unknown")]
    CommitFailed(String),
    /// The shutdown took too long.
    #[error("the engine did not stop within the drain deadline; leases that were open are void after the restart")]
    DrainDeadline,
}

impl ServeError {
    /// The exit code of the process: 78 if the configuration is wrong and a restart alone does not help, else 1.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotLoopback { .. }
            | Self::Open(OpenFailure::Configuration(_))
            | Self::Topic(DeclareError::Refused { .. }) => CONFIGURATION,
            Self::Bind { source, .. } if source.kind() != io::ErrorKind::AddrInUse => CONFIGURATION,
            Self::Bind { .. } | Self::Open(_) | Self::Topic(_) | Self::CommitFailed(_) | Self::DrainDeadline => FAILED,
        }
    }
}

/// Why the store cannot be opened or the engine does not start.
#[derive(Debug, thiserror::Error)]
pub enum OpenFailure {
    /// An operator has to change something: another directory, its permissions, another program version.
    #[error(transparent)]
    Configuration(Box<dyn Error + Send + Sync>),
    /// Anything else, such as a broken disk.
    #[error(transparent)]
    Failed(Box<dyn Error + Send + Sync>),
}

const FAILED: u8 = 1;
/// `EX_CONFIG` of `sysexits.h`.
const CONFIGURATION: u8 = 78;
