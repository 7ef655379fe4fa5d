//! How to connect, with the defaults that suit a broker on the same network.

use std::time::Duration;

use tonic::transport::Endpoint;

use super::error::Error;

/// Where a broker listens unless it was told otherwise.
pub const DEFAULT_ENDPOINT: &str = "http://127.0.0.1:7383";

/// Largest frame taken from the broker, bytes: a full frame of deliveries with full bodies.
pub(super) const MAX_FRAME_BYTES: usize = 64 * 1024 * 1024;

/// Most calls and streams that a broker serves at once on one connection.
const MAX_STREAMS: u32 = 200;
/// What the broker may send on one stream before it is read, bytes: a frame of deliveries, so that it never waits for
/// this side in the middle of one. What HTTP/2 says by default, 64 KiB, would cost a round trip per few messages.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// What the broker may send on all streams before it is read, bytes. It is enough for every stream: with less, a few
/// streams that the program does not read for a while would hold up all others of the connection, acks included. It is
/// a bound, not memory that is taken.
const CONNECTION_WINDOW: u32 = MAX_STREAMS * STREAM_WINDOW;

/// How to reach a broker.
#[derive(Clone, Debug)]
pub struct Options {
    /// URL of the broker, `http://host:port`.
    pub endpoint: String,
    /// How long making a connection may take. Default 5 s.
    pub connect_timeout: Duration,
    /// How long one call may take; the wait of a fetch is added to it. Streams have no limit. Default 30 s.
    pub request_timeout: Duration,
    /// Sends small packets at once. Default true; without it a small call may wait 40 ms.
    pub tcp_nodelay: bool,
    /// After this long without traffic the connection is probed, also between calls. Default 10 s.
    pub keepalive_interval: Duration,
    /// A probe without an answer for this long ends the connection. Default 5 s.
    pub keepalive_timeout: Duration,
}

impl Options {
    /// The defaults, for the broker at `endpoint`.
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            tcp_nodelay: true,
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(5),
        }
    }

    pub(crate) fn to_endpoint(&self) -> Result<Endpoint, Error> {
        let bad = |problem: &str| {
            Error::invalid(
                "endpoint",
                format!("'{}' is not an endpoint: {problem}; write http://host:port", self.endpoint),
            )
        };
        let endpoint = Endpoint::from_shared(self.endpoint.clone()).map_err(|error| bad(&error.to_string()))?;
        match endpoint.uri().scheme_str() {
            Some("http") if endpoint.uri().host().is_some() => {}
            Some("https") => return Err(bad("TLS is not supported")),
            _ => return Err(bad("the scheme must be http")),
        }
        Ok(endpoint
            .connect_timeout(self.connect_timeout)
            .tcp_nodelay(self.tcp_nodelay)
            .http2_keep_alive_interval(self.keepalive_interval)
            .keep_alive_timeout(self.keepalive_timeout)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW))
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new(DEFAULT_ENDPOINT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_that_is_not_a_plain_http_url_is_refused_by_name() {
        for bad in ["", "localhost:7383", "ftp://host:1", "https://host:1", "http://"] {
            let error = Options::new(bad).to_endpoint().expect_err(bad);
            assert_eq!(error.field(), Some("endpoint"), "{bad}");
        }
        assert!(Options::default().to_endpoint().is_ok());
    }
}
