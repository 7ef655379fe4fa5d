//! The table of settings: one row is a key of the file, a flag, a variable, a line of the help and of `--print-config`.

use std::path::PathBuf;

use super::values::{
    address, boolean, bytes_text, drain_timeout, log_filter, log_format, log_format_text, millis, number_within,
    size_within, span_within, step_policy, step_policy_text,
};
use super::{Config, VARIABLE_PREFIX};
use crate::queue::limits::Limits;
use crate::queue::schedule::format_duration;
use crate::server::{EngineSettings, Settings, StoreOptions};

/// The text of a disk reserve that follows the size of the file system.
const AUTO: &str = "auto";

/// A setting of `serve`.
#[derive(Debug)]
pub(super) struct Setting {
    /// The key in the file.
    pub(super) key: &'static str,
    /// The form of its value in TOML.
    pub(super) form: Form,
    /// The heading under which the help shows it.
    pub(super) group: &'static str,
    /// What stands for the value in the help.
    pub(super) value_name: &'static str,
    /// What it is for.
    pub(super) help: &'static str,
    /// A running broker takes it over on SIGHUP.
    pub(super) is_reloadable: bool,
    /// Reads the value from text, or says what is wrong with it.
    pub(super) set: fn(&mut Config, &str) -> Result<(), String>,
    /// The value as text that `set` reads.
    pub(super) text: fn(&Config) -> String,
}

/// The forms that a value may have in TOML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A string.
    Text,
    /// A boolean.
    Boolean,
    /// An integer.
    Number,
    /// An integer, or a string such as "64KiB" or "none".
    NumberOrText,
}

impl Setting {
    /// The flag, such as `--data-dir`.
    pub(super) fn flag(&self) -> String {
        format!("--{}", self.long())
    }

    /// The flag without its dashes.
    pub(super) fn long(&self) -> String {
        self.key.replace('_', "-")
    }

    /// The variable, such as `DUEWHEEL_DATA_DIR`.
    pub(super) fn variable(&self) -> String {
        format!("{VARIABLE_PREFIX}{}", self.key.to_uppercase())
    }
}

const GENERAL: &str = "Store";
const NETWORK: &str = "Network";
const LIMITS: &str = "Limits";
const RUNNING: &str = "Running";

/// Every setting, in the order of the help.
pub(super) static SETTINGS: &[Setting] = &[
    Setting {
        key: "data_dir",
        form: Form::Text,
        group: GENERAL,
        value_name: "DIR",
        help: "Directory of the store; created if it does not exist",
        is_reloadable: false,
        set: |config, text| {
            if text.is_empty() {
                return Err("a directory is needed".to_owned());
            }
            config.server.data_dir = PathBuf::from(text);
            Ok(())
        },
        text: |config| config.server.data_dir.display().to_string(),
    },
    Setting {
        key: "disk_reserve",
        form: Form::NumberOrText,
        group: GENERAL,
        value_name: "BYTES",
        help: "Free bytes of the data file system below which produce is refused, so that acks and cancels go on; 0 for \
               none; auto: 5 % of the file system, 256MiB to 1GiB",
        is_reloadable: true,
        set: |config, text| {
            config.server.disk_reserve = if text == AUTO {
                None
            } else {
                Some(size_within(text, 0, 1 << 50).map_err(|e| format!("{e}, or auto"))?)
            };
            Ok(())
        },
        text: |config| config.server.disk_reserve.map_or_else(|| AUTO.to_owned(), bytes_text),
    },
    Setting {
        key: "journal_generation",
        form: Form::NumberOrText,
        group: GENERAL,
        value_name: "BYTES",
        help: "How much goes to the journal between two folds; folding costs less and memory more, the larger it is",
        is_reloadable: false,
        set: |config, text| {
            let (min, max) = (StoreOptions::MIN_GENERATION_BYTES, StoreOptions::MAX_GENERATION_BYTES);
            config.server.store = config.server.store.with_generation(size_within(text, min, max)?);
            Ok(())
        },
        text: |config| bytes_text(config.server.store.generation_bytes),
    },
    Setting {
        key: "page_cache",
        form: Form::NumberOrText,
        group: GENERAL,
        value_name: "BYTES",
        help: "Cache of the page store",
        is_reloadable: false,
        set: |config, text| {
            let (min, max) = (StoreOptions::MIN_CACHE_BYTES, StoreOptions::MAX_CACHE_BYTES);
            config.server.store.cache_bytes = size_within(text, min, max)?;
            Ok(())
        },
        text: |config| bytes_text(config.server.store.cache_bytes),
    },
    Setting {
        key: "listen",
        form: Form::Text,
        group: NETWORK,
        value_name: "ADDRESS",
        help: "Address for gRPC; port 0 takes a free port",
        is_reloadable: false,
        set: |config, text| {
            config.server.listen = address(text)?;
            Ok(())
        },
        text: |config| config.server.listen.to_string(),
    },
    Setting {
        key: "http_listen",
        form: Form::Text,
        group: NETWORK,
        value_name: "ADDRESS",
        help: "Address for HTTP (/healthz); port 0 takes a free port",
        is_reloadable: false,
        set: |config, text| {
            config.server.http_listen = address(text)?;
            Ok(())
        },
        text: |config| config.server.http_listen.to_string(),
    },
    Setting {
        key: "insecure",
        form: Form::Boolean,
        group: NETWORK,
        value_name: "BOOL",
        help: "Allow addresses that other machines can reach, without encryption and without identities",
        is_reloadable: false,
        set: |config, text| {
            config.server.insecure = boolean(text)?;
            Ok(())
        },
        text: |config| config.server.insecure.to_string(),
    },
    Setting {
        key: "max_connections",
        form: Form::Number,
        group: NETWORK,
        value_name: "N",
        help: "Most gRPC connections at once; more wait to be accepted",
        is_reloadable: false,
        set: |config, text| {
            config.server.max_connections = number_within(text, 1, Settings::LARGEST_MAX_CONNECTIONS)?;
            Ok(())
        },
        text: |config| config.server.max_connections.to_string(),
    },
    Setting {
        key: "network_threads",
        form: Form::Number,
        group: NETWORK,
        value_name: "N",
        help: "Threads that serve the network; the engine and the store have their own",
        is_reloadable: false,
        set: |config, text| {
            config.server.network_threads = number_within(text, 1, Settings::LARGEST_NETWORK_THREADS)?;
            Ok(())
        },
        text: |config| config.server.network_threads.to_string(),
    },
    Setting {
        key: "max_delay",
        form: Form::Text,
        group: LIMITS,
        value_name: "SPAN",
        help: "Longest delay that is accepted, and the farthest due time from now; at most 3653d",
        is_reloadable: false,
        set: |config, text| {
            config.server.limits.max_delay_ms = span_within(text, 1, Limits::LARGEST_MAX_DELAY_MS)?;
            Ok(())
        },
        text: |config| format_duration(config.server.limits.max_delay_ms),
    },
    Setting {
        key: "max_body",
        form: Form::NumberOrText,
        group: LIMITS,
        value_name: "BYTES",
        help: "Largest body that is accepted; at most 1MiB",
        is_reloadable: false,
        set: |config, text| {
            let size = size_within(text, 1, Limits::LARGEST_MAX_BODY_BYTES as u64)?;
            config.server.limits.max_body_bytes = usize::try_from(size).expect("1 MiB fits");
            Ok(())
        },
        text: |config| bytes_text(config.server.limits.max_body_bytes as u64),
    },
    Setting {
        key: "max_topics",
        form: Form::Number,
        group: LIMITS,
        value_name: "N",
        help: "Most topics",
        is_reloadable: false,
        set: |config, text| {
            config.server.limits.max_topics = number_within(text, 1, Limits::LARGEST_MAX_TOPICS)?;
            Ok(())
        },
        text: |config| config.server.limits.max_topics.to_string(),
    },
    Setting {
        key: "max_fetches",
        form: Form::Number,
        group: LIMITS,
        value_name: "N",
        help: "Most long polls that wait at once",
        is_reloadable: false,
        set: |config, text| {
            config.server.engine.max_waiters = number_within(text, 1, EngineSettings::LARGEST_MAX_WAITERS)?;
            Ok(())
        },
        text: |config| config.server.engine.max_waiters.to_string(),
    },
    Setting {
        key: "max_streams",
        form: Form::Number,
        group: LIMITS,
        value_name: "N",
        help: "Most consume streams at once",
        is_reloadable: false,
        set: |config, text| {
            config.server.engine.max_streams = number_within(text, 1, EngineSettings::LARGEST_MAX_STREAMS)?;
            Ok(())
        },
        text: |config| config.server.engine.max_streams.to_string(),
    },
    Setting {
        key: "request_memory",
        form: Form::NumberOrText,
        group: LIMITS,
        value_name: "BYTES",
        help: "Memory of the requests that are admitted and not answered; more wait",
        is_reloadable: false,
        set: |config, text| {
            let (min, max) = (EngineSettings::MIN_ADMISSION_BYTES, EngineSettings::MAX_ADMISSION_BYTES);
            let size = size_within(text, min.into(), max.into())?;
            config.server.engine.admission_bytes = u32::try_from(size).expect("the maximum fits");
            Ok(())
        },
        text: |config| bytes_text(config.server.engine.admission_bytes.into()),
    },
    Setting {
        key: "clock_policy",
        form: Form::Text,
        group: RUNNING,
        value_name: "POLICY",
        help: "What to do when the wall clock is set: report it, or adopt it if it leads forward",
        is_reloadable: false,
        set: |config, text| {
            config.server.step_policy = step_policy(text)?;
            Ok(())
        },
        text: |config| step_policy_text(config.server.step_policy).to_owned(),
    },
    Setting {
        key: "drain_timeout",
        form: Form::Text,
        group: RUNNING,
        value_name: "SPAN",
        help: "How long a shutdown may take; connections that are open then are cut",
        is_reloadable: true,
        set: |config, text| {
            config.server.drain_deadline = drain_timeout(text)?;
            Ok(())
        },
        text: |config| format_duration(millis(config.server.drain_deadline)),
    },
    Setting {
        key: "log_level",
        form: Form::Text,
        group: RUNNING,
        value_name: "LEVEL",
        help: "What is logged: error, warn, info, debug, trace, or a filter such as info,duewheel=debug",
        is_reloadable: true,
        set: |config, text| {
            config.log_level = log_filter(text)?;
            Ok(())
        },
        text: |config| config.log_level.clone(),
    },
    Setting {
        key: "log_format",
        form: Form::Text,
        group: RUNNING,
        value_name: "FORM",
        help: "Form of the log: auto (text on a terminal, JSON otherwise), text or json",
        is_reloadable: false,
        set: |config, text| {
            config.log_format = log_format(text)?;
            Ok(())
        },
        text: |config| log_format_text(config.log_format).to_owned(),
    },
];

/// The setting with that key.
pub(super) fn setting(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == key)
}
