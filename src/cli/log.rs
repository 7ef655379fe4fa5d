//! The log, on stderr: text for people, JSON for machines.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use super::config::LogFormat;

/// Changes what is logged while the process runs.
pub(super) struct LogLevel(reload::Handle<EnvFilter, Registry>);

impl LogLevel {
    /// Logs by another filter from now on; its text was checked when the configuration was read.
    pub(super) fn set(&self, filter: &str) {
        if let Err(error) = self.0.reload(parsed(filter)) {
            tracing::error!(%error, "the log level stays as it is");
        }
    }
}

/// Starts logging for the rest of the process.
pub(super) fn start(filter: &str, format: LogFormat) -> LogLevel {
    let terminal = io::stderr().is_terminal();
    let json = match format {
        LogFormat::Auto => !terminal,
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    // A log that has lost its reader must not end the broker: the complaint about it would go to stderr too, and panic.
    let lines = fmt::layer().with_writer(io::stderr).log_internal_errors(false);
    let lines = if json {
        lines.json().flatten_event(true).boxed()
    } else {
        lines.with_ansi(terminal && wants_colours()).boxed()
    };
    let (filter, handle) = reload::Layer::new(parsed(filter));
    tracing_subscriber::registry().with(filter).with(lines).init();
    LogLevel(handle)
}

/// Logging of client commands: only what `RUST_LOG` asks for, and warnings.
pub(super) fn start_quiet() {
    let filter = std::env::var("RUST_LOG").unwrap_or_else(|_| "warn".to_owned());
    let _fixed = start(&filter, LogFormat::Text);
}

fn parsed(filter: &str) -> EnvFilter {
    EnvFilter::builder().parse_lossy(filter)
}

/// What the person at the terminal has asked for: <https://no-color.org>, and terminals that say they have none.
fn wants_colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && std::env::var_os("TERM").is_none_or(|terminal| terminal != "dumb")
}
