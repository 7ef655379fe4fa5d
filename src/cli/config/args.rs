//! The arguments of `serve`: a flag for each setting of the table, and what is about the configuration itself.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches, value_parser};

use super::settings::{Form, SETTINGS, Setting};
use super::{CONFIG_VARIABLE, Config};

/// Arguments of `serve`. Values are read as text here and parsed together with the other sources.
#[derive(Clone, Debug, Default)]
pub(in crate::cli) struct ServeArgs {
    /// The configuration file.
    pub(super) config: Option<PathBuf>,
    /// Show the configuration instead of running the broker.
    pub(in crate::cli) print_config: bool,
    /// The settings that were given, with their values.
    pub(super) flags: Vec<(&'static Setting, String)>,
}

/// What the help says after the flags.
pub(in crate::cli) const SERVE_HELP: &str = "\
Every setting can also be given in the environment (DUEWHEEL_DATA_DIR, DUEWHEEL_LISTEN, ...) and in the \
configuration file (data_dir = \"...\", listen = \"...\"), which can declare topics too. Flags win over the \
environment, the environment over the file. docs/duewheel.toml shows the file with every key.

SIGTERM and SIGINT end the broker in order; a second one ends it at once. SIGHUP reads the configuration again: \
the topics of the file and the settings marked [reload] take effect at once, others are logged as needing a restart.

Examples:
  duewheel serve
  duewheel serve --data-dir /var/lib/duewheel --log-format json
  duewheel serve --config /etc/duewheel.toml
  duewheel serve --config /etc/duewheel.toml --print-config
  duewheel serve --listen 0.0.0.0:7383 --insecure";

impl Args for ServeArgs {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE.toml")
            .value_parser(value_parser!(PathBuf))
            .help(format!("Configuration file (TOML) [env: {CONFIG_VARIABLE}]"));
        let print = Arg::new("print_config")
            .long("print-config")
            .action(ArgAction::SetTrue)
            .help("Show each setting with its source, as a configuration file, and exit: with 78 if anything is wrong");
        let defaults = Config::default();
        command.args([config, print]).args(SETTINGS.iter().map(|setting| flag(setting, &defaults)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ServeArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = |setting: &'static Setting| Some((setting, matches.get_one::<String>(setting.key)?.clone()));
        Ok(Self {
            config: matches.get_one::<PathBuf>("config").cloned(),
            print_config: matches.get_flag("print_config"),
            flags: SETTINGS.iter().filter_map(given).collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn flag(setting: &'static Setting, defaults: &Config) -> Arg {
    let reload = if setting.is_reloadable { " [reload]" } else { "" };
    let help = format!("{} [default: {}]{reload}", setting.help, (setting.text)(defaults));
    let flag = Arg::new(setting.key)
        .long(setting.long())
        .value_name(setting.value_name)
        .help_heading(setting.group)
        .help(help)
        .action(ArgAction::Set);
    if setting.form == Form::Boolean {
        return flag.num_args(0..=1).default_missing_value("true").require_equals(true);
    }
    flag
}
