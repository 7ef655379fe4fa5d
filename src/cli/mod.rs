//! The command line: `duewheel NOUN VERB`, or a verb alone where there is one noun.
//!
//! What is asked for goes to stdout, in the format of `-o`; everything else goes to stderr. A failure says what
//! failed, whether it was done, and what to do next; its exit code is one of the list in `exit.rs`. Values are
//! written as people write them: spans as `30m`, instants in RFC 3339, schedules as `1s,2s,5x10s`.
//!
//! The commands only translate: arguments into calls of [`crate::client`], answers into rows. `serve` alone is
//! about this process; it translates the configuration into the settings of [`crate::server`].

mod args;
mod backup;
mod bench;
mod body;
mod broker;
mod broker_command;
mod check;
mod clock;
mod config;
mod confirm;
mod consume;
mod dead;
mod dead_export;
mod dead_filter;
mod dead_job;
mod exec;
mod exit;
mod file_name;
mod last_words;
mod limits_view;
mod live;
mod log;
mod message;
mod message_list;
mod message_view;
mod nearest;
mod output;
mod produce;
mod produce_file;
mod progress;
mod random;
mod reload;
mod restore;
mod scratch_topic;
mod serve;
mod session;
mod shell;
mod signals;
mod stats;
mod suggest;
mod timeline;
mod topic;
mod topic_delete;
mod verify;
mod visible;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use self::exit::{Exit, Failure, exit_codes};
use self::session::Session;
use self::suggest::Deed;

/// A durable delayed-message queue: produce now, deliver when due, retry along delay tiers until settled.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 120, after_help = exit_codes!(), after_long_help = HELP, propagate_version = true)]
struct Cli {
    #[command(flatten)]
    session: Session,
    #[command(subcommand)]
    command: Command,
}

const HELP: &str = concat!(
    "\
Spans are written as 250ms, 30s, 5m, 1h30m or 2d; instants in RFC 3339, such as 2026-12-01T09:30:00Z; retry \
schedules as 1s,2s,5x10s.

Examples:
  duewheel serve
  duewheel topic create dropped-orders --schedule 1s,2s,5s,10s
  duewheel produce dropped-orders '{\"amount\":1999}' --key ORD-1
  duewheel consume dropped-orders --max 1
  duewheel message show dropped-orders --key ORD-1

",
    exit_codes!()
);

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the broker
    #[command(after_long_help = config::SERVE_HELP)]
    Serve(config::ServeArgs),
    /// Check a data directory that no broker uses
    Check(check::CheckArgs),
    /// Rewrite the page database of a data directory that no broker uses, without what is dead
    Compact(check::CompactArgs),
    /// Make a data directory from a backup, or check a backup
    Restore(restore::RestoreArgs),
    /// Print the completion script of a shell
    Completions(shell::CompletionsArgs),
    /// Write the man pages of all commands to a directory
    Man(shell::ManArgs),
    #[command(flatten)]
    Client(ClientCommand),
}

/// The commands that talk to a broker.
#[derive(Debug, Subcommand)]
enum ClientCommand {
    /// Create, list, show, update, pause, resume or delete topics
    #[command(subcommand, after_long_help = "Examples:\n  duewheel topic create dropped-orders\n  duewheel topic list")]
    Topic(topic::TopicCommand),
    /// Produce a message, or every line of a file
    Produce(produce::ProduceArgs),
    /// Consume messages: print them, or run a command for each
    Consume(consume::ConsumeArgs),
    /// Show, cancel or reschedule one message, or list those of a topic
    #[command(
        subcommand,
        after_long_help = "Examples:\n  duewheel message show dropped-orders --key ORD-1\n  duewheel message list dropped-orders"
    )]
    Message(message::MessageCommand),
    /// List, show, redrive, purge or export dead letters
    #[command(subcommand, after_long_help = "Examples:\n  duewheel dead list dropped-orders")]
    Dead(dead::DeadCommand),
    /// Show counts, lateness and the state of the broker
    Stats(stats::StatsArgs),
    /// Show what runs: version, start, clock, limits, room on the disk
    #[command(after_long_help = "Examples:\n  duewheel broker\n  duewheel broker -o json")]
    Broker,
    /// Show the broker's clock, or make it follow a wall clock that was set
    #[command(subcommand, after_long_help = "Examples:\n  duewheel clock show\n  duewheel clock adopt")]
    Clock(clock::ClockCommand),
    /// Write everything the broker holds to a file, while it goes on serving
    Backup(backup::BackupArgs),
    /// Measure a running broker with a defined workload
    Bench(bench::BenchArgs),
    /// Put load on a broker, and prove that it keeps its promises
    Verify(verify::VerifyArgs),
    /// Ask whether the broker serves: exit code 0 if it does, 75 if it does not, 69 if no broker answers
    #[command(after_long_help = "Examples:\n  duewheel health\n  duewheel health --endpoint http://10.0.0.7:7383")]
    Health,
}

impl ClientCommand {
    /// What it does to the topic that it names.
    fn deed(&self) -> Deed {
        match self {
            Self::Produce(_) | Self::Consume(_) => Deed::Use,
            Self::Topic(topic::TopicCommand::Delete(_)) | Self::Dead(dead::DeadCommand::Purge(_)) => Deed::Delete,
            _ => Deed::Look,
        }
    }

    /// True if it changes nothing in the broker.
    fn only_reads(&self) -> bool {
        match self {
            Self::Topic(command) => matches!(command, topic::TopicCommand::List | topic::TopicCommand::Show(_)),
            Self::Message(command) => {
                matches!(command, message::MessageCommand::List(_) | message::MessageCommand::Show(_))
            }
            Self::Dead(command) => !matches!(command, dead::DeadCommand::Redrive(_) | dead::DeadCommand::Purge(_)),
            Self::Clock(command) => matches!(command, clock::ClockCommand::Show),
            Self::Stats(_) | Self::Broker | Self::Backup(_) | Self::Health => true,
            Self::Produce(_) | Self::Consume(_) | Self::Bench(_) | Self::Verify(_) => false,
        }
    }
}

/// The command line: all commands, each with the options that mean something to it.
fn command_line() -> clap::Command {
    let refusing = |command: clap::Command, (name, ids): (&str, &[&'static str])| {
        command.mut_subcommand(name, |sub| sub.args(ids.iter().copied().map(session::refused)))
    };
    let command = REFUSED.into_iter().fold(Cli::command(), refusing);
    args::with_negative_values(command.mut_subcommand("topic", |topic| {
        topic.mut_subcommand("update", |update| update.mut_args(args::without_default))
    }))
}

/// The options of all commands that each of these refuses.
const REFUSED: [(&str, &[&str]); 6] = [
    ("check", &["endpoint"]),
    ("compact", &["endpoint"]),
    ("restore", &["endpoint"]),
    ("serve", &["endpoint", "format"]),
    ("completions", &["endpoint", "format"]),
    ("man", &["endpoint", "format"]),
];

/// Refuses an option of all commands that stands before a command that refuses it; after it, its parser does.
fn check_place(matches: &clap::ArgMatches) -> Result<(), clap::Error> {
    let Some((_, ids)) = REFUSED.iter().find(|(name, _)| matches.subcommand_name() == Some(name)) else {
        return Ok(());
    };
    let given = |id: &&&str| matches.value_source(id) == Some(ValueSource::CommandLine);
    match ids.iter().find(given) {
        Some(id) => Err(command_line().error(ErrorKind::ArgumentConflict, session::refusal(id).1)),
        None => Ok(()),
    }
}

/// Parses the command line, runs the command and returns the exit code of the process.
pub fn run() -> ExitCode {
    let parsed = command_line().try_get_matches().and_then(|matches| check_place(&matches).map(|()| matches));
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            // Help that cannot be printed has no reader.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage.into() } else { Exit::Ok.into() };
        }
    };
    let result = match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::Check(args) => check::check(cli.session.format, &args),
        Command::Compact(args) => check::compact(cli.session.format, &args),
        Command::Restore(args) => restore::run(cli.session.format, &args),
        Command::Completions(args) => shell::completions(command_line(), &args),
        Command::Man(args) => shell::man(command_line(), &args),
        Command::Client(command) => run_client(&cli.session, command),
    };
    match result {
        Ok(()) => Exit::Ok.into(),
        Err(failure) => {
            failure.report();
            failure.exit.into()
        }
    }
}

fn run_client(session: &Session, command: ClientCommand) -> Result<(), Failure> {
    log::start_quiet();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot start threads: {error}")))?;
    let (deed, only_reads) = (command.deed(), command.only_reads());
    let result = runtime.block_on(async {
        match command {
            ClientCommand::Topic(command) => topic::run(session, command).await,
            ClientCommand::Produce(args) => produce::run(session, args).await,
            ClientCommand::Consume(args) => consume::run(session, args).await,
            ClientCommand::Message(command) => message::run(session, command).await,
            ClientCommand::Dead(command) => dead::run(session, command).await,
            ClientCommand::Stats(args) => stats::run(session, &args).await,
            ClientCommand::Broker => broker::run(session).await,
            ClientCommand::Clock(command) => clock::run(session, command).await,
            ClientCommand::Backup(args) => backup::run(session, &args).await,
            ClientCommand::Bench(args) => bench::run(session, args).await,
            ClientCommand::Verify(args) => verify::run(session, args).await,
            ClientCommand::Health => stats::health(session).await,
        }
    });
    let result = result.map_err(|failure| runtime.block_on(suggest::topic(session, deed, failure)));
    let result = result.map_err(|failure| if only_reads { failure.of_reading() } else { failure });
    // A thread that still reads stdin must not hold the process.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_well_formed_and_each_help_has_examples() {
        let mut cli = command_line();
        cli.build();
        cli.clone().debug_assert();
        check(&cli, "duewheel");
    }

    fn check(command: &clap::Command, path: &str) {
        let help = command.clone().render_long_help().to_string();
        let (_, examples) = help.split_once("Examples:").unwrap_or_else(|| panic!("{path} --help has no examples"));
        // A longer line would be broken where it is shown, and could not be copied.
        let long =
            examples.lines().take_while(|line| line.is_empty() || line.starts_with(' ')).find(|line| line.len() > 79);
        assert_eq!(long, None, "{path} --help has an example that is too long");
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            check(sub, &format!("{path} {}", sub.get_name()));
        }
    }
}
