//! Connections: bounded in number, and cut when a shutdown cannot wait for them any longer.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::error::ServeError;
use super::settings::Settings;

/// Pause after the system refuses to accept, for example because all file descriptors are in use.
const REFUSED_PAUSE: Duration = Duration::from_millis(200);

/// The bound sockets of a broker.
#[derive(Debug)]
pub struct Listeners {
    pub(super) grpc: TcpListener,
    pub(super) http: TcpListener,
}

impl Listeners {
    /// Binds the addresses of `settings`; port 0 takes a free port.
    ///
    /// # Errors
    /// [`ServeError::NotLoopback`] for an address that others can reach, unless `insecure` is set, and
    /// [`ServeError::Bind`].
    pub async fn bind(settings: &Settings) -> Result<Self, ServeError> {
        check_addresses(settings)?;
        Ok(Self { grpc: bind(settings.listen).await?, http: bind(settings.http_listen).await? })
    }

    /// The address of the gRPC listener.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn grpc_address(&self) -> io::Result<SocketAddr> {
        self.grpc.local_addr()
    }

    /// The address of the HTTP listener.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn http_address(&self) -> io::Result<SocketAddr> {
        self.http.local_addr()
    }
}

/// Refuses addresses that others can reach, unless `insecure` is set.
///
/// # Errors
/// [`ServeError::NotLoopback`].
pub fn check_addresses(settings: &Settings) -> Result<(), ServeError> {
    let addresses = [settings.listen, settings.http_listen];
    let reachable = addresses.into_iter().find(|address| !address.ip().is_loopback());
    match reachable.filter(|_| !settings.insecure) {
        Some(address) => Err(ServeError::NotLoopback { address }),
        None => Ok(()),
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|source| ServeError::Bind { address, source })
}

/// Accepts connections while there are places for them.
pub(super) struct Acceptor {
    listener: TcpListener,
    places: Arc<Semaphore>,
    cut: CancellationToken,
    /// Connections are cut after this time.
    life: Option<Duration>,
}

impl Acceptor {
    /// Accepts up to `max` connections at once, which live at most `life` and are cut by `cut`.
    pub(super) fn new(listener: TcpListener, max: usize, life: Option<Duration>, cut: CancellationToken) -> Self {
        Self { listener, places: Arc::new(Semaphore::new(max)), cut, life }
    }

    /// The connections, for ever.
    pub(super) fn into_stream(self) -> Accepted {
        Accepted { next: Box::pin(self.accept_one()) }
    }

    async fn accept_one(mut self) -> (Connection, Self) {
        let (connection, _) = axum::serve::Listener::accept(&mut self).await;
        (connection, self)
    }

    async fn end(cut: CancellationToken, life: Option<Duration>) {
        match life {
            // Over or cut, the connection ends either way.
            Some(life) => drop(tokio::time::timeout(life, cut.cancelled()).await),
            None => cut.cancelled().await,
        }
    }
}

impl axum::serve::Listener for Acceptor {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let place = Arc::clone(&self.places).acquire_owned().await.expect("the places are never closed");
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%error, %address, "a connection ended before it was served");
                        continue;
                    }
                    let end = Box::pin(Self::end(self.cut.clone(), self.life));
                    return (Connection { stream, end, _place: place }, address);
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections; trying again");
                    tokio::time::sleep(REFUSED_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// The connections of an [`Acceptor`].
pub(super) struct Accepted {
    next: Pin<Box<dyn Future<Output = (Connection, Acceptor)> + Send>>,
}

impl Stream for Accepted {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let (connection, acceptor) = ready!(self.next.as_mut().poll(cx));
        self.next = Box::pin(acceptor.accept_one());
        Poll::Ready(Some(Ok(connection)))
    }
}

/// A connection that occupies a place and fails once it is cut.
pub(super) struct Connection {
    stream: TcpStream,
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    /// Fails if the connection is cut; otherwise the task is woken when that happens.
    fn poll_cut(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.end.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_cut(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_cut(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_cut(cx)?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_cut(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_cut(cx)?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
