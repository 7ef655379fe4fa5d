//! `duewheel serve`: runs the broker until a signal ends it.

use super::config::{Config, ServeArgs};
use super::exit::{Exit, Failure};
use super::log;
use super::signals::Stop;
use crate::server::{self, Listeners, ServeError};

/// Runs `serve`.
pub(super) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let config = Config::read(args, |name| std::env::var(name).ok())?;
    log::start(&config.log_level, config.log_format);
    let runtime = server::runtime(&config.server)
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot start threads: {error}")))?;
    runtime.block_on(serve(config))
}

async fn serve(config: Config) -> Result<(), Failure> {
    let settings = config.server;
    let stop = Stop::listen().map_err(|error| Failure::new(Exit::Failed, format!("cannot watch signals: {error}")))?;
    let listeners = Listeners::bind(&settings).await.map_err(|error| failure(&error))?;
    let told = |error| Failure::new(Exit::Failed, format!("cannot read the bound address: {error}"));
    let (grpc, http) = (listeners.grpc_address().map_err(told)?, listeners.http_address().map_err(told)?);
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        grpc_address = %grpc,
        http_address = %http,
        data_dir = %settings.data_dir.display(),
        "listening"
    );
    let requested = stop.clone();
    let served = server::serve(settings, listeners, async move {
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

fn failure(error: &ServeError) -> Failure {
    let exit = if error.exit_code() == Exit::Config as u8 { Exit::Config } else { Exit::Failed };
    Failure::new(exit, error.to_string())
}
