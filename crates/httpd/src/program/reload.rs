//! Settings that are read again while the server runs.

use std::error::Error;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

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

/// Time between two looks at whether a deferred reload can be made.
const RETRY: Duration = Duration::from_millis(500);

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
            let mut is_deferred = false;
            loop {
                let arrived: Vec<_> = if is_deferred {
                    thread::sleep(RETRY);
                    signals.pending().collect()
                } else {
                    signals.wait().collect()
                };
                if !arrived.is_empty() {
                    handle.reopen_log();
                }
                if arrived.contains(&SIGHUP) || is_deferred && handle.can_reload() {
                    is_deferred = self.reload(&handle);
                }
            }
        })?;
        Ok(())
    }

    /// Returns whether the reload is deferred until workers have ended.
    fn reload(&self, handle: &Handle) -> bool {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => notify_manager(&[NotifyState::Reloading, now]),
            Err(error) => warn!("cannot notify the service manager: {error}"),
        }
        let mut is_deferred = false;
        match self.replace(handle) {
            Ok(log_level) => {
                // The subscriber lives as long as the process.
                let _ = self.log_level.reload(log_level);
                info!("settings reloaded");
            }
            Err(error) => match error.downcast_ref() {
                Some(evring_httpd::Error::Ended) => {}
                Some(evring_httpd::Error::StillEnding) => {
                    is_deferred = true;
                    warn!("the reload waits: {error}");
                }
                _ => error!("the settings stay as they were: {error}"),
            },
        }
        notify_manager(&[NotifyState::Ready]);
        is_deferred
    }

    /// Reads and checks the settings, and replaces those of the server. Returns the log level.
    fn replace(&self, handle: &Handle) -> Result<LevelFilter, Box<dyn Error>> {
        let mut arguments: Arguments = settings::parse(&self.arguments)?;
        let log_level = arguments.log_level;
        if arguments.pid_file != self.pid_file {
            warn!("another `pid-file` is used after a restart or an upgrade");
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
