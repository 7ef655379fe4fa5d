//! The log, on stderr: text for people, JSON for machines.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use super::config::LogFormat;

/// Starts logging for the rest of the process.
pub(super) fn start(filter: &str, format: LogFormat) {
    let filter = EnvFilter::builder().parse_lossy(filter);
    let terminal = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A log that has lost its reader must not end the broker: the complaint about it would go to stderr too, and panic.
    let log = log.log_internal_errors(false);
    let json = match format {
        LogFormat::Auto => !terminal,
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    if json {
        log.json().flatten_event(true).init();
    } else {
        let colours = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        log.with_ansi(colours).init();
    }
}

/// Logging of client commands: only what `RUST_LOG` asks for, and warnings.
pub(super) fn start_quiet() {
    start(&std::env::var("RUST_LOG").unwrap_or_else(|_| "warn".to_owned()), LogFormat::Text);
}
