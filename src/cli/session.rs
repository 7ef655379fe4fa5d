//! What every client command shares: where the broker is, and how to print.

use clap::{Arg, Args};

use super::args::variable_or;
use super::exit::{Exit, Failure, exit_of};
use super::output::Format;
use crate::client::{Client, DEFAULT_ENDPOINT, Options};

/// Names the broker to commands that do not.
const ENDPOINT_VARIABLE: &str = "DUEWHEEL_ENDPOINT";

/// The heading of these options in the help of each command.
const EVERYWHERE: &str = "Everywhere";

/// Why a command refuses an option of all commands, and the long name of that.
pub(super) fn refusal(id: &str) -> (&'static str, &'static str) {
    match id {
        "endpoint" => ("endpoint", "this command asks no broker: --endpoint means nothing to it"),
        "format" => ("output", "this command prints text only: --output means nothing to it"),
        _ => unreachable!("'{id}' is not an option of every command"),
    }
}

/// Options that a command refuses, since it asks no broker, or prints nothing but text.
pub(super) fn refused(id: &'static str) -> Arg {
    let (long, problem) = refusal(id);
    let arg = Arg::new(id).long(long);
    let arg = if id == "format" { arg.short('o') } else { arg };
    arg.hide(true).value_parser(move |_: &str| Err::<String, _>(problem))
}

/// Options of every client command.
#[derive(Clone, Debug, Args)]
pub(super) struct Session {
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "URL", hide_default_value = true,
        default_value = variable_or(ENDPOINT_VARIABLE, DEFAULT_ENDPOINT),
        help = format!("URL of the broker [env: {ENDPOINT_VARIABLE}] [default: {DEFAULT_ENDPOINT}]"))]
    pub(super) endpoint: String,
    /// How to print data on stdout
    #[arg(short = 'o', long = "output", global = true, help_heading = EVERYWHERE, value_enum, value_name = "FORMAT", default_value = "table")]
    pub(super) format: Format,
}

impl Session {
    /// How to reach the broker.
    pub(super) fn options(&self) -> Options {
        Options::new(&self.endpoint)
    }

    /// Connects to the broker.
    pub(super) async fn connect(&self) -> Result<Client, Failure> {
        Client::connect(self.options()).await.map_err(|error| {
            if exit_of(&error) == Exit::Unreachable {
                Failure::call(format!("reach a broker at {}", self.endpoint), &error)
            } else {
                Failure::new(Exit::Usage, error.message())
            }
        })
    }
}
