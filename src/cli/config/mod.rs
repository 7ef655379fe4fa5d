//! The configuration of `serve`: flags, over the environment, over a file, over defaults.
//!
//! ```text
//!  SETTINGS (a table: key, help, parser, writer)
//!     │ flag of each      │ DUEWHEEL_ variable of each      │ key of each, and [topics."NAME"]
//!     ▼                   ▼                                 ▼
//!  ServeArgs           environment                       File (with line and column)
//!     └───────────────────┴──────────── Config ────────────┘   the value of each, and its source
//! ```
//!
//! Every source gives text under the same names, so one parser per setting serves all three; a new setting is one row of
//! the table. All sources are read, also where a stronger one overrules them, and every problem is told with its
//! place: a misspelt limit that is silently ignored is found out in the worst moment.

mod args;
mod file;
mod print;
mod settings;
mod topics;
mod values;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use self::file::{File, Place};
use self::settings::{SETTINGS, Setting, setting};
use self::topics::DeclaredTopic;
use super::exit::{Exit, Failure};
use super::nearest::nearest;
use crate::server;

pub(super) use self::args::{SERVE_HELP, ServeArgs};
pub(super) use self::print::print;

/// Name of the variable that names the configuration file.
const CONFIG_VARIABLE: &str = "DUEWHEEL_CONFIG";

/// What the names of all variables begin with.
const VARIABLE_PREFIX: &str = "DUEWHEEL_";

/// Everything that `serve` needs to know.
#[derive(Clone, Debug)]
pub(super) struct Config {
    /// Settings of the broker.
    pub(super) server: server::Settings,
    /// A filter of `tracing`.
    pub(super) log_level: String,
    /// How the log is written.
    pub(super) log_format: LogFormat,
    /// Path of the file, if there is one.
    file: Option<String>,
    /// Where the value of each setting comes from, in the order of [`SETTINGS`].
    sources: Vec<Source>,
    /// The topics of the file, with their places.
    topics: Vec<DeclaredTopic>,
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

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Default,
    /// The file, at a line.
    File(Place),
    /// A variable of the environment.
    Variable(String),
    /// A flag.
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(place) => write!(f, "{}:{}", place.file, place.line),
            Self::Variable(name) => write!(f, "environment {name}"),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// What is wrong with a configuration, each with its place.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Problems(pub(super) Vec<String>);

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Self {
        let failure = Self::new(Exit::Config, problems.0.join("\n       "));
        failure.next("put it right; duewheel serve --help says what each setting is for, docs/duewheel.toml its range")
    }
}

/// Problems as they are found, to be told in the order of the file and then of the other sources.
#[derive(Debug, Default)]
struct Findings(Vec<((usize, usize), String)>);

impl Findings {
    /// A problem at a place of the file.
    fn at(&mut self, place: &Place, problem: impl fmt::Display) {
        self.0.push(((place.line, place.column), format!("{place}: {problem}")));
    }

    /// A problem of the file as a whole, or of another source.
    fn elsewhere(&mut self, problem: String) {
        self.0.push(((usize::MAX, usize::MAX), problem));
    }

    fn into_result(mut self) -> Result<(), Problems> {
        if self.0.is_empty() {
            return Ok(());
        }
        self.0.sort_by_key(|&(at, _)| at);
        Err(Problems(self.0.into_iter().map(|(_, problem)| problem).collect()))
    }
}

/// A setting whose value differs between two configurations.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Difference {
    /// The setting.
    pub(super) key: &'static str,
    /// Its value before.
    pub(super) old: String,
    /// Its value now.
    pub(super) new: String,
    /// A running broker takes it over.
    pub(super) is_reloadable: bool,
}

impl Config {
    /// The configuration from all sources; `variable` reads the environment.
    ///
    /// # Errors
    /// Every problem of every source.
    pub(super) fn read(args: &ServeArgs, variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, Problems> {
        let path = args.config.clone().or_else(|| variable(CONFIG_VARIABLE).map(PathBuf::from));
        let mut findings = Findings::default();
        let file = path.as_deref().map(|path| File::read(path, &mut findings)).unwrap_or_default();
        let mut config =
            Self { file: path.map(|path| path.display().to_string()), topics: file.topics, ..Self::default() };
        for (setting, text, place) in file.entries {
            config.set(setting, &text, Source::File(place), &mut findings);
        }
        for setting in SETTINGS {
            let name = setting.variable();
            match variable(&name).map(OsString::into_string) {
                None => {}
                Some(Ok(text)) => config.set(setting, &text, Source::Variable(name), &mut findings),
                Some(Err(_)) => findings.elsewhere(format!("environment {name}: is not UTF-8 text")),
            }
        }
        for (setting, text) in &args.flags {
            config.set(setting, text, Source::Flag(setting.flag()), &mut findings);
        }
        config.declare_topics(&mut findings);
        findings.into_result().map(|()| config)
    }

    /// The settings in which `new` differs.
    pub(super) fn differences(&self, new: &Self) -> Vec<Difference> {
        let difference = |setting: &Setting| {
            let (old, new) = ((setting.text)(self), (setting.text)(new));
            let is_reloadable = setting.is_reloadable;
            (old != new).then_some(Difference { key: setting.key, old, new, is_reloadable })
        };
        SETTINGS.iter().filter_map(difference).collect()
    }

    /// Takes over from `new` what a running broker can.
    pub(super) fn reload(&mut self, new: Self) {
        for (at, setting) in SETTINGS.iter().enumerate().filter(|(_, setting)| setting.is_reloadable) {
            (setting.set)(self, &(setting.text)(&new)).expect("the text of a value is read as that value");
            self.sources[at] = new.sources[at].clone();
        }
        self.server.topics = new.server.topics;
        (self.file, self.topics) = (new.file, new.topics);
    }

    /// Where the value of a setting comes from.
    pub(super) fn source(&self, key: &str) -> String {
        self.sources[place_of(key)].to_string()
    }

    /// True if a file was read.
    pub(super) fn has_file(&self) -> bool {
        self.file.is_some()
    }

    fn set(&mut self, setting: &'static Setting, text: &str, source: Source, findings: &mut Findings) {
        match (setting.set)(self, text) {
            Ok(()) => {
                self.sources[place_of(setting.key)] = source;
            }
            Err(problem) => match &source {
                Source::File(place) => findings.at(place, format!("{}: {problem}", setting.key)),
                source => findings.elsewhere(format!("{source}: {problem}")),
            },
        }
    }

    /// Checks the declared topics against the limits, which may come from any source.
    fn declare_topics(&mut self, findings: &mut Findings) {
        let limits = self.server.limits;
        for topic in &self.topics {
            topic.check(&limits, findings);
        }
        if self.topics.len() > limits.max_topics {
            let (declared, max) = (self.topics.len(), limits.max_topics);
            let file = self.file.as_deref().unwrap_or_default();
            findings.elsewhere(format!("{file}: topics: {declared} are declared; max_topics allows {max}"));
        }
        self.server.topics = self.topics.iter().map(DeclaredTopic::declaration).collect();
    }
}

/// The place of a setting in the table.
fn place_of(key: &str) -> usize {
    SETTINGS.iter().position(|setting| setting.key == key).expect("a setting is in the table")
}

impl Default for Config {
    fn default() -> Self {
        Self {
            server: server::Settings::default(),
            log_level: "info".to_owned(),
            log_format: LogFormat::Auto,
            file: None,
            sources: vec![Source::Default; SETTINGS.len()],
            topics: Vec::new(),
        }
    }
}

/// Variables that nothing reads and that look like a misspelt one of a setting, with that one. Others are left alone:
/// some environments put `DUEWHEEL_PORT` and the like there by themselves.
pub(super) fn misspelt_variables(names: impl Iterator<Item = String>) -> Vec<(String, String)> {
    let known: Vec<String> = SETTINGS.iter().map(Setting::variable).collect();
    let others = [CONFIG_VARIABLE, "DUEWHEEL_ENDPOINT"];
    let misspelt = |name: String| {
        if known.contains(&name) || others.contains(&name.as_str()) {
            return None;
        }
        // All begin alike; what follows tells them apart.
        let key = name.strip_prefix(VARIABLE_PREFIX)?.to_lowercase();
        let meant = setting(nearest(&key, SETTINGS.iter().map(|setting| setting.key))?)?;
        Some((name, meant.variable()))
    };
    names.filter_map(misspelt).collect()
}

#[cfg(test)]
mod tests;
