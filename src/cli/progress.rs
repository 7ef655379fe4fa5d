//! How far a long command is: a bar on a terminal, a plain line now and then elsewhere. Always on stderr.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::exit::say;
use crate::clock::Stopwatch;

/// Time between plain lines.
const PLAIN_EVERY: Duration = Duration::from_secs(5);

/// How far a command is.
pub(super) struct Progress {
    verb: &'static str,
    bar: Option<ProgressBar>,
    done: u64,
    since_line: Stopwatch,
}

impl Progress {
    /// Progress through `bytes` of input, or through input of unknown size; `verb` says what is done to each
    /// item.
    pub(super) fn new(verb: &'static str, bytes: Option<u64>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(bytes, ProgressDrawTarget::stderr_with_hz(10));
            let template = match bytes {
                Some(_) => "{bar:40} {percent:>3} %  {msg}  {elapsed}, {eta} left",
                None => "{spinner} {msg}  {elapsed}",
            };
            bar.with_style(ProgressStyle::with_template(template).expect("the template is well formed"))
        });
        Self { verb, bar, done: 0, since_line: Stopwatch::start() }
    }

    /// `bytes` more of the input were read.
    pub(super) fn read(&self, bytes: usize) {
        if let Some(bar) = &self.bar {
            bar.inc(bytes as u64);
        }
    }

    /// One more item is done.
    pub(super) fn done(&mut self) {
        self.done += 1;
        self.tell();
    }

    /// A count of bytes has come from one to another: each whole MiB of it is an item.
    pub(super) fn done_bytes(&mut self, before: u64, after: u64) {
        (before >> 20..after >> 20).for_each(|_| self.done());
    }

    fn tell(&mut self) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{} {}", self.done, self.verb));
        } else if self.since_line.elapsed() >= PLAIN_EVERY {
            self.since_line = Stopwatch::start();
            say(&format!("{} {} so far", self.done, self.verb));
        }
    }

    /// So many of the whole are through, and so many of these are done.
    pub(super) fn to(&mut self, through: u64, done: u64) {
        self.done = done;
        if let Some(bar) = &self.bar {
            bar.set_position(through);
        }
        self.tell();
    }

    /// Says something without breaking the bar.
    pub(super) fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say(text)),
            None => say(text),
        }
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
