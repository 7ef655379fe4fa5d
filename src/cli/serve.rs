//! `duewheel serve`: runs the broker until a signal ends it.

use super::config::{self, Config, Problems, ServeArgs, misspelt_variables};
use super::exit::{Exit, Failure};
use super::log::{self, LogLevel};
use super::output::print_text;
use super::reload::ConfigReloader;
use super::signals::{Hangups, Stop};
use crate::server::{self, Listeners, ServeError, offline};

/// Runs `serve`.
pub(super) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let config = read(args)?;
    if args.print_config {
        print_text(&config::print(&config))?;
        return server::check_addresses(&config.server).map_err(|error| failure(&error));
    }
    let level = log::start(&config.log_level, config.log_format);
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for (name, meant) in misspelt_variables(names) {
        tracing::warn!("the variable {name} is not read; did you mean {meant}?");
    }
    let runtime = server::runtime(&config.server)
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot start threads: {error}")))?;
    runtime.block_on(serve(args.clone(), config, level))
}

/// The configuration as the sources give it now.
pub(super) fn read(args: &ServeArgs) -> Result<Config, Problems> {
    Config::read(args, |name| std::env::var_os(name))
}

async fn serve(args: ServeArgs, config: Config, level: LogLevel) -> Result<(), Failure> {
    let settings = config.server.clone();
    let watch = |error| Failure::new(Exit::Failed, format!("cannot watch signals: {error}"));
    // A hangup that comes while the store is read must wait for it, not end the process.
    let (stop, hangups) = (Stop::listen().map_err(watch)?, Hangups::listen().map_err(watch)?);
    let listeners = Listeners::bind(&settings).await.map_err(|error| not_bound(&config, &error))?;
    let told = |error| Failure::new(Exit::Failed, format!("cannot read the bound address: {error}"));
    let (grpc, http) = (listeners.grpc_address().map_err(told)?, listeners.http_address().map_err(told)?);
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        grpc_address = %grpc,
        http_address = %http,
        data_dir = %settings.data_dir.display(),
        "listening"
    );
    let (broker, reloads) = server::reloads();
    tokio::spawn(ConfigReloader::new(args, config, level, broker).run(hangups));
    let requested = stop.clone();
    let served = server::serve_reloading(settings, listeners, reloads, async move {
        requested.requested().await;
        tracing::info!("a signal asks to stop; a second one stops at once");
    });
    tokio::select! {
        served = served => {
            served.map_err(|error| failure(&error))?;
            tracing::info!("stopped");
            Ok(())
        }
        () = stop.forced() => {
            tracing::warn!("stopped at once by a second signal; open leases are void after the restart");
            // Returning would wait for the threads of the store.
            std::process::exit(Exit::Failed as i32)
        }
    }
}

/// The failure with the place that the address comes from, and with the broker that probably has it.
fn not_bound(config: &Config, error: &ServeError) -> Failure {
    let told = failure(error);
    let ServeError::Bind { address, source } = error else { return told };
    let settings = &config.server;
    let key = if *address == settings.listen { "listen" } else { "http_listen" };
    let (flag, source_of) = (key.replace('_', "-"), config.source(key));
    let message = format!("cannot listen on {address} ({key}, from {source_of}): {source}");
    let told = Failure::new(told.exit, message);
    if settings.listen == settings.http_listen {
        return told.next("give listen and http_listen different ports");
    }
    match offline::user_of(&settings.data_dir) {
        Some(process) => {
            let process = process.map_or_else(|| "another process".to_owned(), |id| format!("process {id}"));
            let directory = settings.data_dir.display();
            told.next(format!(
                "{process} is a broker on {directory} already: use it (duewheel health), or stop it first"
            ))
        }
        None => told.next(format!("see what listens there (ss -ltnp), or give another address with --{flag}")),
    }
}

fn failure(error: &ServeError) -> Failure {
    let exit = if error.exit_code() == Exit::Config as u8 { Exit::Config } else { Exit::Failed };
    Failure::new(exit, error.to_string())
}
