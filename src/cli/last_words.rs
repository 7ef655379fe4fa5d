//! What a command says on stderr: shown as it comes, and its last line kept, which tells best why it did not succeed.

use std::convert::Infallible;
use std::io::{self, Write as _};

use tokio::io::AsyncReadExt as _;
use tokio::process::ChildStderr;

use crate::queue::limits::MAX_NACK_TEXT_BYTES;

/// The stderr of a command.
pub(super) struct LastWords {
    pipe: ChildStderr,
    line: LastLine,
}

impl LastWords {
    /// Listens to a command.
    pub(super) fn of(pipe: ChildStderr) -> Self {
        Self { pipe, line: LastLine::default() }
    }

    /// Shows what the command says, for ever. May be given up at any time.
    pub(super) async fn show(&mut self) -> Infallible {
        let mut buffer = [0; 4096];
        loop {
            match self.pipe.read(&mut buffer).await {
                Ok(0) | Err(_) => return std::future::pending().await,
                Ok(read) => self.heard(&buffer[..read]),
            }
        }
    }

    /// The last line that is not empty, once the command has ended: all that it has said is in the pipe by then.
    pub(super) fn finish(mut self) -> Option<String> {
        let mut buffer = [0; 4096];
        let goes_on = loop {
            match rustix::io::read(&self.pipe, &mut buffer) {
                Ok(0) => break false,
                Ok(read) => self.heard(&buffer[..read]),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => break error == rustix::io::Errno::WOULDBLOCK,
            }
        };
        if goes_on {
            // The command has left processes behind, which may go on talking.
            let mut pipe = self.pipe;
            tokio::spawn(async move { tokio::io::copy(&mut pipe, &mut tokio::io::stderr()).await });
        }
        self.line.text()
    }

    fn heard(&mut self, bytes: &[u8]) {
        // A stderr that nobody reads any more is no reason to stop.
        let _ = io::stderr().write_all(bytes);
        self.line.add(bytes);
    }
}

/// The last line of a text that is not empty, as far as it has room in a nack.
#[derive(Default)]
struct LastLine {
    last: Vec<u8>,
    current: Vec<u8>,
}

impl LastLine {
    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte == b'\n' {
                self.end();
            } else if self.current.len() < MAX_NACK_TEXT_BYTES {
                self.current.push(byte);
            }
        }
    }

    fn end(&mut self) {
        if !self.current.trim_ascii().is_empty() {
            std::mem::swap(&mut self.last, &mut self.current);
        }
        self.current.clear();
    }

    fn text(mut self) -> Option<String> {
        self.end();
        let text = String::from_utf8_lossy(self.last.trim_ascii());
        // What is no text has become longer.
        let room = text.floor_char_boundary(MAX_NACK_TEXT_BYTES);
        (!text.is_empty()).then(|| text[..room].to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_line(parts: &[&[u8]]) -> Option<String> {
        let mut line = LastLine::default();
        for part in parts {
            line.add(part);
        }
        line.text()
    }

    #[test]
    fn the_last_line_that_is_not_empty_counts_and_has_an_end() {
        for (parts, want) in [
            (&[][..], None),
            (&[&b"\n \n"[..]], None),
            (&[b"one\ntw", b"o\n"], Some("two")),
            (&[b"one\ntwo\r\n\n  \n"], Some("two")),
            (&[b"one\n", b"without an end"], Some("without an end")),
        ] {
            assert_eq!(last_line(parts).as_deref(), want, "{parts:?}");
        }
        let long = "ä".repeat(MAX_NACK_TEXT_BYTES);
        for bytes in [long.as_bytes(), &vec![0xff; 2 * MAX_NACK_TEXT_BYTES]] {
            let text = last_line(&[bytes, b"\n"]).expect("a line");
            assert!((MAX_NACK_TEXT_BYTES - 3..=MAX_NACK_TEXT_BYTES).contains(&text.len()), "{}", text.len());
        }
    }
}
