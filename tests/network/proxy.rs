//! A TCP proxy that treats connections badly.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What happens to one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Everything goes through.
    Open,
    /// Nothing is read any more: the sender's buffers fill up.
    Stalled,
    /// Everything is read and nothing arrives, as behind a dead link.
    Silent,
    /// One byte at a time goes through.
    Trickle,
    /// Both directions end after so many bytes of this one.
    CutAfter(usize),
}

/// What happens to what the client sends, and to what the broker sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ways {
    pub(crate) up: Way,
    pub(crate) down: Way,
}

pub(crate) const OPEN: Ways = Ways { up: Way::Open, down: Way::Open };

/// A proxy before a broker. Dropping it ends its connections.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    ways: watch::Sender<Ways>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn before(broker: SocketAddr, ways: Ways) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (sender, ways) = watch::channel(ways);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(broker).await.expect("the broker accepts");
                tokio::spawn(connection(client, server, ways.clone()));
            }
        });
        Self { address, ways: sender, accepting }
    }

    /// Changes what happens to its connections from now on.
    pub(crate) fn set(&self, ways: Ways) {
        self.ways.send_replace(ways);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Ends when one direction ends; then both are closed.
async fn connection(client: TcpStream, server: TcpStream, ways: watch::Receiver<Ways>) {
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("a TCP stream");
    }
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let (up, down) = (ways.clone(), ways);
    tokio::select! {
        () = pass(from_client, to_server, up, |ways| ways.up) => {}
        () = pass(from_server, to_client, down, |ways| ways.down) => {}
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut ways: watch::Receiver<Ways>,
    way: impl Fn(&Ways) -> Way,
) {
    let mut buffer = [0; 4_096];
    let mut passed = 0;
    loop {
        let now = way(&ways.borrow_and_update());
        if now == Way::Stalled {
            if ways.changed().await.is_err() {
                return;
            }
            continue;
        }
        let read = tokio::select! {
            read = from.read(&mut buffer) => read,
            changed = ways.changed() => if changed.is_ok() { continue } else { return },
        };
        let Ok(count @ 1..) = read else { return };
        let written = match now {
            Way::Open => to.write_all(&buffer[..count]).await,
            Way::Silent | Way::Stalled => Ok(()),
            Way::Trickle => trickle(&mut to, &buffer[..count]).await,
            Way::CutAfter(limit) => {
                let rest = limit - passed;
                let written = to.write_all(&buffer[..count.min(rest)]).await;
                if count >= rest {
                    return;
                }
                written
            }
        };
        if written.is_err() {
            return;
        }
        passed += count;
    }
}

async fn trickle(to: &mut OwnedWriteHalf, bytes: &[u8]) -> std::io::Result<()> {
    for byte in bytes {
        to.write_all(&[*byte]).await?;
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    Ok(())
}
