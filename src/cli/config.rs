//! The configuration of `serve`: flags, over the environment, over a file, over defaults.
//!
//! Every source gives text under the same names, so one parser per setting serves all three, and a value that is
//! wrong is told with the place where it stands. Unknown names in the file are refused: a misspelt limit that is
//! silently ignored is found out in the worst moment.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::args::{bytes, duration_ms};
use super::exit::{Exit, Failure};
use crate::queue::limits::Limits;
use crate::queue::schedule::format_duration;
use crate::server::{self, StoreOptions};

/// Name of the variable that names the configuration file.
const CONFIG_VARIABLE: &str = "DUEWHEEL_CONFIG";

/// Arguments of `serve`. They are read as text here and parsed together with the other sources.
#[derive(Debug, Default, Args)]
#[command(after_long_help = "\
Every setting can also be given in the environment (DUEWHEEL_DATA_DIR, DUEWHEEL_LISTEN, ...) and in the \
configuration file (data_dir = \"...\", listen = \"...\"). Flags win over the environment, the environment over the \
file. SIGTERM and SIGINT end the broker in order; a second one ends it at once.

Examples:
  duewheel serve
  duewheel serve --data-dir /var/lib/duewheel --log-format json
  duewheel serve --config /etc/duewheel.toml
  duewheel serve --listen 0.0.0.0:7383 --insecure")]
pub(super) struct ServeArgs {
    #[arg(long, value_name = "FILE.toml", help = "Configuration file (TOML) [env: DUEWHEEL_CONFIG]")]
    config: Option<PathBuf>,
    /// Directory of the store [default: ./duewheel-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Address for gRPC; port 0 takes a free port [default: 127.0.0.1:7383]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Address for HTTP (/healthz) [default: 127.0.0.1:7384]
    #[arg(long, value_name = "ADDRESS")]
    http_listen: Option<String>,
    /// Allow addresses that other machines can reach, without encryption and without identities
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    insecure: Option<String>,
    /// How long a shutdown may take [default: 10s]
    #[arg(long, value_name = "SPAN")]
    drain_timeout: Option<String>,
    /// Longest delay that is accepted [default: 400d]
    #[arg(long, value_name = "SPAN")]
    max_delay: Option<String>,
    /// Largest body that is accepted, at most 1MiB [default: 256KiB]
    #[arg(long, value_name = "BYTES")]
    max_body: Option<String>,
    /// How much goes to the journal between two folds; folding costs less and memory more, the larger it is
    /// [default: 32MiB]
    #[arg(long, value_name = "BYTES")]
    journal_generation: Option<String>,
    /// Cache of the page store [default: 32MiB]
    #[arg(long, value_name = "BYTES")]
    page_cache: Option<String>,
    /// Free bytes of the data file system below which produce is refused, so that acks and cancels go on; 0 for none
    /// [default: 5 % of the file system, 256MiB to 1GiB]
    #[arg(long, value_name = "BYTES")]
    disk_reserve: Option<String>,
    /// What is logged: error, warn, info, debug, trace, or a filter such as info,duewheel=debug [default: info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Form of the log: auto (text on a terminal, JSON otherwise), text or json [default: auto]
    #[arg(long, value_name = "FORM")]
    log_format: Option<String>,
}

/// Everything that `serve` needs to know.
#[derive(Clone, Debug)]
pub(super) struct Config {
    /// Settings of the broker.
    pub(super) server: server::Settings,
    /// A filter of `tracing`.
    pub(super) log_level: String,
    /// How the log is written.
    pub(super) log_format: LogFormat,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    Auto,
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The configuration file: every value as text or in the natural form of TOML.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    data_dir: Option<String>,
    listen: Option<String>,
    http_listen: Option<String>,
    insecure: Option<bool>,
    drain_timeout: Option<String>,
    max_delay: Option<String>,
    max_body: Option<Size>,
    journal_generation: Option<Size>,
    page_cache: Option<Size>,
    disk_reserve: Option<Size>,
    log_level: Option<String>,
    log_format: Option<String>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(untagged)]
enum Size {
    Bytes(u64),
    Text(String),
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl Config {
    /// The configuration from all sources; `variable` reads the environment.
    ///
    /// # Errors
    /// A failure with exit code 78 that names the source and the setting.
    pub(super) fn read(args: &ServeArgs, variable: impl Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        let path = args.config.clone().or_else(|| variable(CONFIG_VARIABLE).map(PathBuf::from));
        let file = path.as_deref().map(read_file).transpose()?.unwrap_or_default();
        let place = path.map(|path| path.display().to_string()).unwrap_or_default();
        let sources = Sources { variable: &variable, file: &place };

        let defaults = server::Settings::default();
        let limits = Limits {
            max_delay_ms: sources
                .setting("max_delay", args.max_delay.as_ref(), file.max_delay, max_delay)?
                .unwrap_or(defaults.limits.max_delay_ms),
            max_body_bytes: sources
                .setting("max_body", args.max_body.as_ref(), file.max_body.map(|size| size.to_string()), max_body)?
                .unwrap_or(defaults.limits.max_body_bytes),
            ..defaults.limits
        };
        let generation = file.journal_generation.map(|size| size.to_string());
        let generation =
            sources.setting("journal_generation", args.journal_generation.as_ref(), generation, journal_generation)?;
        let cache = file.page_cache.map(|size| size.to_string());
        let cache = sources.setting("page_cache", args.page_cache.as_ref(), cache, page_cache)?;
        let store = StoreOptions {
            cache_bytes: cache.unwrap_or(defaults.store.cache_bytes),
            ..generation.map_or(defaults.store, |bytes| defaults.store.with_generation(bytes))
        };
        let reserve = file.disk_reserve.map(|size| size.to_string());
        let disk_reserve = sources.setting("disk_reserve", args.disk_reserve.as_ref(), reserve, disk_reserve)?;
        let insecure = file.insecure.map(|insecure| insecure.to_string());
        let server = server::Settings {
            data_dir: sources
                .setting("data_dir", args.data_dir.as_ref(), file.data_dir, data_dir)?
                .unwrap_or(defaults.data_dir),
            listen: sources.setting("listen", args.listen.as_ref(), file.listen, address)?.unwrap_or(defaults.listen),
            http_listen: sources
                .setting("http_listen", args.http_listen.as_ref(), file.http_listen, address)?
                .unwrap_or(defaults.http_listen),
            insecure: sources
                .setting("insecure", args.insecure.as_ref(), insecure, boolean)?
                .unwrap_or(defaults.insecure),
            drain_deadline: sources
                .setting("drain_timeout", args.drain_timeout.as_ref(), file.drain_timeout, span)?
                .unwrap_or(defaults.drain_deadline),
            limits,
            store,
            disk_reserve,
            ..defaults
        };
        let log_level = sources.setting("log_level", args.log_level.as_ref(), file.log_level, log_filter)?;
        let log_format = sources.setting("log_format", args.log_format.as_ref(), file.log_format, log_format)?;
        Ok(Self {
            server,
            log_level: log_level.unwrap_or_else(|| "info".to_owned()),
            log_format: log_format.unwrap_or(LogFormat::Auto),
        })
    }
}

/// Where settings come from, strongest first: a flag, the environment, the file.
struct Sources<'a, V> {
    variable: &'a V,
    file: &'a str,
}

impl<V: Fn(&str) -> Option<String>> Sources<'_, V> {
    /// The value of the setting `name` from the strongest source that has it.
    fn setting<T>(
        &self,
        name: &str,
        flag: Option<&String>,
        file: Option<String>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Failure> {
        let variable_name = format!("DUEWHEEL_{}", name.to_uppercase());
        let (text, place) = if let Some(text) = flag {
            (text.clone(), format!("--{}", name.replace('_', "-")))
        } else if let Some(text) = (self.variable)(&variable_name) {
            (text, variable_name)
        } else if let Some(text) = file {
            (text, format!("{name} in {}", self.file))
        } else {
            return Ok(None);
        };
        parse(&text).map(Some).map_err(|problem| Failure::new(Exit::Config, format!("{place}: {problem}")))
    }
}

fn read_file(path: &Path) -> Result<File, Failure> {
    let problem = |text: &dyn fmt::Display| Failure::new(Exit::Config, format!("{}: {text}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| problem(&error))?;
    toml::from_str(&text).map_err(|error| problem(&error.to_string().trim_end()))
}

fn data_dir(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() { Err("a directory is needed".to_owned()) } else { Ok(PathBuf::from(text)) }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("'{text}' is not an address; write it as 127.0.0.1:7383 or [::1]:7383"))
}

fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "true" | "1" | "yes" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        _ => Err(format!("'{text}' is neither true nor false")),
    }
}

fn span(text: &str) -> Result<Duration, String> {
    duration_ms(text).map(Duration::from_millis)
}

fn max_delay(text: &str) -> Result<u64, String> {
    let ms = duration_ms(text)?;
    if (1..=Limits::LARGEST_MAX_DELAY_MS).contains(&ms) {
        return Ok(ms);
    }
    Err(format!("'{text}' is out of range; at most {}", format_duration(Limits::LARGEST_MAX_DELAY_MS)))
}

fn max_body(text: &str) -> Result<usize, String> {
    let size = bytes(text)?;
    if (1..=Limits::LARGEST_MAX_BODY_BYTES).contains(&size) {
        return Ok(size);
    }
    Err(format!("'{text}' is out of range; 1 to {} bytes", Limits::LARGEST_MAX_BODY_BYTES))
}

fn journal_generation(text: &str) -> Result<u64, String> {
    size_within(text, StoreOptions::MIN_GENERATION_BYTES, StoreOptions::MAX_GENERATION_BYTES)
}

fn page_cache(text: &str) -> Result<u64, String> {
    size_within(text, StoreOptions::MIN_CACHE_BYTES, StoreOptions::MAX_CACHE_BYTES)
}

fn disk_reserve(text: &str) -> Result<u64, String> {
    bytes(text).map(|bytes| bytes as u64)
}

fn size_within(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let size = bytes(text)? as u64;
    if (min..=max).contains(&size) { Ok(size) } else { Err(format!("'{text}' is out of range; {min} to {max} bytes")) }
}

fn log_filter(text: &str) -> Result<String, String> {
    match text.parse::<tracing_subscriber::filter::EnvFilter>() {
        Ok(_) if !text.is_empty() => Ok(text.to_owned()),
        _ => Err(format!("'{text}' is not a log filter; write it as info or info,duewheel=debug")),
    }
}

fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "auto" => Ok(LogFormat::Auto),
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err(format!("'{text}' is not a log format; auto, text or json")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn a_flag_wins_over_the_environment_and_that_over_the_file() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("duewheel.toml");
        std::fs::write(&path, "listen = '127.0.0.1:1'\nhttp_listen = '127.0.0.1:2'\ndata_dir = 'f'\nmax_body = 7\n")
            .expect("a writable directory");
        let args = ServeArgs { config: Some(path), listen: Some("127.0.0.1:3".to_owned()), ..ServeArgs::default() };
        let variable = |name: &str| match name {
            "DUEWHEEL_LISTEN" => Some("127.0.0.1:4".to_owned()),
            "DUEWHEEL_HTTP_LISTEN" => Some("127.0.0.1:5".to_owned()),
            _ => None,
        };
        let config = Config::read(&args, variable).expect("well formed").server;
        assert_eq!((config.listen.port(), config.http_listen.port()), (3, 5));
        assert_eq!(config.data_dir, PathBuf::from("f"));
        assert_eq!(config.limits.max_body_bytes, 7);
        assert_eq!(config.drain_deadline, server::Settings::default().drain_deadline);
    }

    #[test]
    fn an_unknown_or_wrong_entry_of_the_file_is_refused_with_its_place() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("duewheel.toml");
        for (text, want) in [
            ("lisen = '127.0.0.1:1'", "lisen"),
            ("listen = 'here'", "listen in"),
            ("max_body = '9MiB'", "out of range"),
            ("max_delay = '9999d'", "out of range"),
            ("insecure = 'maybe'", "insecure"),
        ] {
            std::fs::write(&path, text).expect("a writable directory");
            let args = ServeArgs { config: Some(path.clone()), ..ServeArgs::default() };
            let failure = Config::read(&args, nothing).expect_err(text);
            assert_eq!(failure.exit, Exit::Config, "{text}");
            assert!(format!("{failure:?}").contains(want), "{text}: {failure:?}");
        }
    }

    #[test]
    fn a_wrong_value_names_its_flag_or_variable() {
        let args = ServeArgs { drain_timeout: Some("soon".to_owned()), ..ServeArgs::default() };
        assert!(format!("{:?}", Config::read(&args, nothing).expect_err("no span")).contains("--drain-timeout"));
        let variable = |name: &str| (name == "DUEWHEEL_INSECURE").then(|| "perhaps".to_owned());
        let failure = Config::read(&ServeArgs::default(), variable).expect_err("no boolean");
        assert!(format!("{failure:?}").contains("DUEWHEEL_INSECURE"));
    }
}
