//! Settings that are read again while the server runs.

use std::error::Error;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use evring_httpd::Handle;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGUSR1};
use signal_hook::iterator::Signals;
use tracing::level_filters::LevelFilter;
use tracing::{error, info, warn};
use tracing_subscriber::{Registry, reload};

use crate::arguments::{Arguments, Settings};
use crate::descriptors::open_descriptors;
use crate::{backends, notify_manager, settings};

/// Interval at which a deferred reload is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// Time after which a deferred reload stops the oldest workers.
const MAX_DEFERRAL: Duration = Duration::from_secs(600);

/// A reload that waits for the end of workers.
struct Deferral {
    /// The time at which the oldest ones are stopped; `None` afterwards.
    until: Option<Instant>,
}

impl Deferral {
    fn new(now: Instant) -> Self {
        Deferral { until: Some(now + MAX_DEFERRAL) }
    }

    /// Returns whether the oldest workers have to be stopped, once.
    fn ends(&mut self, now: Instant) -> bool {
        self.until.take_if(|until| now >= *until).is_some()
    }
}

/// What a reload needs, and settings of the program rather than the server.
#[derive(Clone)]
pub(crate) struct Reload {
    /// The command line.
    pub(crate) arguments: Vec<OsString>,
    /// The number of descriptors that were open before the first workers started.
    pub(crate) open: u64,
    /// The number of sockets that were given to the process.
    pub(crate) inherited: usize,
    pub(crate) log_level: reload::Handle<LevelFilter, Registry>,
    /// The file with the number of the process, which stays.
    pub(crate) pid_file: Option<PathBuf>,
}

impl Reload {
    /// Receives the signals for [`Reload::at_signals`], which would end the process otherwise.
    pub(crate) fn signals() -> io::Result<Signals> {
        Signals::new([SIGHUP, SIGUSR1])
    }

    /// Reads the settings again at SIGHUP; if they cannot be used, the old ones stay. Opens the access log again at
    /// SIGHUP and SIGUSR1.
    pub(crate) fn at_signals(self, mut signals: Signals, handle: Handle) -> io::Result<()> {
        thread::Builder::new().name("reload".to_owned()).spawn(move || {
            let mut deferral: Option<Deferral> = None;
            loop {
                let arrived: Vec<_> = if deferral.is_some() {
                    thread::sleep(RETRY);
                    signals.pending().collect()
                } else {
                    signals.wait().collect()
                };
                if !arrived.is_empty() {
                    handle.reopen_log();
                }
                if deferral.as_mut().is_some_and(|deferral| deferral.ends(Instant::now())) {
                    warn!("the deferred reload stops the oldest workers, which have `shutdown-timeout`");
                    handle.stop_oldest();
                }
                if arrived.contains(&SIGHUP) || deferral.is_some() && handle.can_reload() {
                    deferral = self.reload(&handle, deferral.take());
                }
            }
        })?;
        Ok(())
    }

    /// Reloads, and returns the deferral if workers have to end first. `before` is that of an earlier try.
    fn reload(&self, handle: &Handle, before: Option<Deferral>) -> Option<Deferral> {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => notify_manager(&[NotifyState::Reloading, now]),
            Err(error) => warn!("cannot notify the service manager: {error}"),
        }
        let mut deferral = None;
        let mut status = "";
        match self.replace(handle) {
            Ok(log_level) => {
                // The subscriber lives as long as the process.
                let _ = self.log_level.reload(log_level);
                match before {
                    None => info!("settings reloaded"),
                    Some(_) => {
                        status = "settings reloaded after a deferral";
                        warn!("{status}");
                    }
                }
            }
            Err(error) => match error.downcast_ref() {
                Some(evring_httpd::Error::Ended) => {}
                Some(evring_httpd::Error::StillEnding) => {
                    deferral = Some(before.unwrap_or_else(|| Deferral::new(Instant::now())));
                    status = "a reload waits for the workers of earlier ones";
                    let minutes = MAX_DEFERRAL.as_secs() / 60;
                    warn!("the reload waits, for at most {minutes} minutes: {error}");
                }
                _ => error!("the settings stay as they were: {error}"),
            },
        }
        notify_manager(&[NotifyState::Ready]);
        if !status.is_empty() {
            notify_manager(&[NotifyState::Status(status)]);
        }
        deferral
    }

    /// Reads and checks the settings, and replaces those of the server. Returns the log level.
    fn replace(&self, handle: &Handle) -> Result<LevelFilter, Box<dyn Error>> {
        let mut arguments: Arguments = settings::parse(&self.arguments)?;
        let log_level = arguments.log_level;
        if arguments.pid_file != self.pid_file {
            warn!("another `pid-file` is used after a restart, or by a successor");
        }
        let positions = std::mem::take(&mut arguments.positions);
        let settings = Settings(arguments.into_options());
        let located = |error: evring_httpd::Error| -> Box<dyn Error> {
            match error {
                evring_httpd::Error::Ended | evring_httpd::Error::StillEnding => error.into(),
                error => positions.locate(&error, error.to_string()).into(),
            }
        };
        settings.check().map_err(located)?;
        let (backend, _) = backends::choose(&settings.0.backend)?;
        // The workers of before keep theirs until their last connections have closed.
        let open = open_descriptors().max(self.open);
        let demand = settings.descriptor_demand(self.inherited);
        let budget = demand.budget_of_process(open, " until the next reload")?;
        handle.reload(settings.server(&backend, budget)).map_err(located)?;
        Ok(log_level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deferred_reload_waited_for_ever() {
        let begin = Instant::now();
        let mut deferral = Deferral::new(begin);
        assert!(!deferral.ends(begin + MAX_DEFERRAL - Duration::from_millis(1)));
        assert!(deferral.ends(begin + MAX_DEFERRAL));
        assert!(!deferral.ends(begin + 2 * MAX_DEFERRAL), "the workers were stopped twice");
    }
}
