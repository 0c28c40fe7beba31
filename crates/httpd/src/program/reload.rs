//! Settings that are read again while the server runs.

use std::error::Error;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
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
    pub(crate) drain_delay: Arc<Mutex<Duration>>,
    /// The file with the number of the process, which stays.
    pub(crate) pid_file: Option<PathBuf>,
}

impl Reload {
    /// Returns the time for which the server still serves after a signal to stop.
    pub(crate) fn drain_delay(&self) -> Duration {
        *self.drain_delay.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receives the signals for [`Reload::at_signals`], which would end the process otherwise.
    pub(crate) fn signals() -> io::Result<Signals> {
        Signals::new([SIGHUP, SIGUSR1])
    }

    /// Reads the settings again at SIGHUP; if they cannot be used, the old ones stay. Opens the access log again at
    /// SIGHUP and SIGUSR1.
    pub(crate) fn at_signals(self, mut signals: Signals, handle: Handle) -> io::Result<()> {
        thread::Builder::new().name("reload".to_owned()).spawn(move || {
            for signal in signals.forever() {
                handle.reopen_log();
                if signal == SIGHUP {
                    self.reload(&handle);
                }
            }
        })?;
        Ok(())
    }

    fn reload(&self, handle: &Handle) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => notify_manager(&[NotifyState::Reloading, now]),
            Err(error) => warn!("cannot notify the service manager: {error}"),
        }
        match self.replace(handle) {
            Ok((log_level, drain_delay)) => {
                // The subscriber lives as long as the process.
                let _ = self.log_level.reload(log_level);
                *self.drain_delay.lock().unwrap_or_else(PoisonError::into_inner) = drain_delay;
                info!("settings reloaded");
            }
            Err(error) if matches!(error.downcast_ref(), Some(evring_httpd::Error::Ended)) => {}
            Err(error) => error!("the settings stay as they were: {error}"),
        }
        notify_manager(&[NotifyState::Ready]);
    }

    /// Reads and checks the settings, and replaces those of the server. Returns those of the program.
    fn replace(&self, handle: &Handle) -> Result<(LevelFilter, Duration), Box<dyn Error>> {
        let mut arguments: Arguments = settings::parse(&self.arguments)?;
        let of_program = (arguments.log_level, arguments.drain_delay);
        if arguments.pid_file != self.pid_file {
            warn!("another `pid-file` is used after a restart or an upgrade");
        }
        let positions = std::mem::take(&mut arguments.positions);
        let settings = Settings(arguments.into_options());
        let located = |error: evring_httpd::Error| -> Box<dyn Error> {
            match error {
                evring_httpd::Error::Ended => error.into(),
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
        Ok(of_program)
    }
}
