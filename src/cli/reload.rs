//! SIGHUP: the configuration is read again, and what a running broker can take over takes effect.
//!
//! A configuration with a problem changes nothing. What cannot change in a running broker is named in the log each
//! time, until a restart brings it.

use super::config::{Config, ServeArgs};
use super::log::LogLevel;
use super::serve::read;
use super::signals::Hangups;
use crate::server::{Reload, Reloader};

/// Reads the configuration again when it is told to.
pub(super) struct ConfigReloader {
    args: ServeArgs,
    /// The configuration in force.
    current: Config,
    level: LogLevel,
    broker: Reloader,
}

impl ConfigReloader {
    /// For the `broker` that was started with `current`, which came from `args`.
    pub(super) fn new(args: ServeArgs, current: Config, level: LogLevel, broker: Reloader) -> Self {
        Self { args, current, level, broker }
    }

    /// Reloads at each hangup, for ever.
    pub(super) async fn run(mut self, mut hangups: Hangups) {
        loop {
            hangups.next().await;
            self.reload().await;
        }
    }

    async fn reload(&mut self) {
        let new = match read(&self.args) {
            Ok(new) => new,
            Err(problems) => {
                for problem in &problems.0 {
                    tracing::error!("configuration not reloaded, nothing was changed: {problem}");
                }
                return;
            }
        };
        let reload = Reload {
            drain_deadline: new.server.drain_deadline,
            disk_reserve: new.server.disk_reserve,
            topics: new.server.topics.clone(),
        };
        if let Err(error) = self.broker.reload(reload).await {
            tracing::error!("configuration not reloaded: {error}");
            return;
        }
        let differences = self.current.differences(&new);
        // Told before the level changes, so that a quieter level does not hide it.
        for difference in &differences {
            let (setting, old, new) = (difference.key, &difference.old, &difference.new);
            if difference.is_reloadable {
                tracing::info!(setting, old, new, "setting changed");
            } else {
                tracing::warn!(setting, running = old, new, "needs a restart: the setting stays as it is until then");
            }
        }
        let changed = differences.iter().filter(|difference| difference.is_reloadable).count();
        let needs_restart = differences.len() - changed;
        tracing::info!(changed, needs_restart, file = new.has_file(), "configuration reloaded");
        self.current.reload(new);
        self.level.set(&self.current.log_level);
    }
}
