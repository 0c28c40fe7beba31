//! Settings that are read again while the server runs.

use std::error::Error;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use evring_httpd::Handle;
use evring_httpd::options::User;
use rustix::process::geteuid;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGUSR1};
use signal_hook::iterator::Signals;
use tracing::level_filters::LevelFilter;
use tracing::{error, info, warn};
use tracing_subscriber::{Registry, reload};

use crate::arguments::{Arguments, Settings};
use crate::descriptors::{InheritedSockets, open_descriptors};
use crate::end::End;
use crate::threads;
use crate::{advice, arrivals, backends, notify_manager, ready_line, settings};

/// Maximum time until a signal is processed while a reload is deferred.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(500);

/// A reload that waits for the end of workers.
struct Deferral {
    /// The time at which the oldest ones are stopped; `None` afterwards.
    until: Option<Instant>,
}

impl Deferral {
    fn new(now: Instant, timeout: Duration) -> Self {
        Deferral { until: now.checked_add(timeout) }
    }

    /// Returns the time until they are stopped, in seconds with one decimal.
    fn seconds_left(&self, now: Instant) -> Option<f64> {
        let left = self.until?.saturating_duration_since(now);
        Some((left.as_secs_f64() * 10.0).ceil() / 10.0)
    }

    /// Returns whether the oldest workers have to be stopped, once.
    fn ends(&mut self, now: Instant) -> bool {
        self.until.take_if(|until| now >= *until).is_some()
    }
}

/// The parts that a reload needs, and the settings of the program rather than the server.
#[derive(Clone)]
pub(crate) struct Reload {
    /// The command line.
    pub(crate) arguments: Vec<OsString>,
    /// The number of descriptors that were open before the first workers started.
    pub(crate) open: u64,
    /// The sockets that were given to the process.
    pub(crate) inherited: InheritedSockets,
    pub(crate) log_level: reload::Handle<LevelFilter, Registry>,
    /// The file with the number of the process, which stays.
    pub(crate) pid_file: Option<PathBuf>,
    /// The user that the process has become.
    pub(crate) user: Option<User>,
    pub(crate) end: Arc<End>,
    /// Time after which a deferred reload stops the oldest workers.
    pub(crate) timeout: Duration,
    /// The status that the service manager shows while no reload is deferred; each reload makes it anew.
    pub(crate) status: String,
}

impl Reload {
    /// Receives the signals for [`Reload::at_signals`], which would end the process otherwise.
    pub(crate) fn signals() -> io::Result<Signals> {
        arrivals::count()?;
        Signals::new([SIGHUP, SIGUSR1])
    }

    /// Reads the settings again at SIGHUP; if they cannot be used, the old ones stay. Opens the access log again at
    /// SIGHUP and SIGUSR1, also while a reload waits for the writer of a pipe.
    pub(crate) fn at_signals(
        mut self,
        mut signals: Signals,
        handle: Handle,
    ) -> Result<(), evring_httpd::Error> {
        // Further signals during a reload are one.
        let (hangup, hangups) = mpsc::sync_channel(1);
        let server = handle.clone();
        threads::start("log signals", move || {
            for signal in signals.forever() {
                server.reopen_log();
                if signal == SIGHUP {
                    let _ = hangup.try_send(());
                }
            }
        })?;
        threads::start("reload", move || {
            let mut deferral: Option<Deferral> = None;
            loop {
                let has_arrived = if deferral.is_some() {
                    handle.wait_for_room(SIGNAL_INTERVAL);
                    hangups.try_recv().is_ok()
                } else {
                    // The sender lives as long as the process.
                    let Ok(()) = hangups.recv() else { return };
                    true
                };
                if deferral.as_mut().is_some_and(|deferral| deferral.ends(Instant::now())) {
                    warn!(
                        "the deferred reload stops the oldest workers, which have `shutdown-timeout`"
                    );
                    handle.stop_oldest();
                }
                if self.end.has_successor() {
                    // The settings are those of the successor.
                    deferral = None;
                } else if has_arrived || deferral.is_some() && handle.can_reload() {
                    deferral = self.reload(&handle, deferral.take());
                }
            }
        })
    }

    /// Reloads, and returns the deferral if workers have to end first. `before` is that of an earlier try.
    fn reload(&mut self, handle: &Handle, before: Option<Deferral>) -> Option<Deferral> {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => notify_manager(&[NotifyState::Reloading, now]),
            Err(error) => warn!("cannot notify the service manager: {error}"),
        }
        let mut deferral = None;
        match self.replace(handle) {
            Ok(log_level) => {
                // The subscriber lives as long as the process.
                let _ = self.log_level.reload(log_level);
                match before {
                    None => info!("settings reloaded"),
                    Some(_) => warn!("settings reloaded after a deferral"),
                }
            }
            Err(error) => match error.downcast_ref() {
                Some(evring_httpd::Error::Ended) => {}
                Some(evring_httpd::Error::StillEnding) => {
                    let now = Instant::now();
                    let waits = before.unwrap_or_else(|| Deferral::new(now, self.timeout));
                    match waits.seconds_left(now) {
                        Some(seconds) => {
                            warn!("the reload waits, for at most {seconds} s: {error}")
                        }
                        None => warn!("the reload waits: {error}"),
                    }
                    deferral = Some(waits);
                }
                _ => error!("the settings stay as they were: {error}"),
            },
        }
        let status = match deferral {
            Some(_) => "a reload waits for the workers of earlier ones",
            None => &self.status,
        };
        notify_manager(&[NotifyState::Ready, NotifyState::Status(status)]);
        deferral
    }

    /// Reads and checks the settings, and replaces those of the server. Returns the log level.
    fn replace(&mut self, handle: &Handle) -> Result<LevelFilter, Box<dyn Error>> {
        let mut arguments: Arguments = settings::parse(&self.arguments)?;
        let log_level = arguments.log_level;
        if arguments.pid_file != self.pid_file {
            warn!("another `pid-file` is used after a restart, or by a successor");
        }
        let positions = std::mem::take(&mut arguments.positions);
        let mut settings = Settings(arguments.into_options());
        // Files that were opened as root are the user's only if it is so from the start.
        if self.user.is_none()
            && geteuid().is_root()
            && let Some(user) = settings.0.user.take()
        {
            warn!("the process becomes that of `user` {user} after a restart");
        }
        let settings = settings;
        self.timeout = settings.0.connections.reload_timeout;
        let located = |error: evring_httpd::Error| -> Box<dyn Error> {
            match error {
                evring_httpd::Error::Ended | evring_httpd::Error::StillEnding => error.into(),
                error => {
                    let message = advice::with_advice(&error, &settings.0);
                    positions.locate(&error, message).into()
                }
            }
        };
        let checked = settings.check_logs(self.pid_file.as_deref());
        checked.map_err(|error| positions.locate_setting("pid-file", error))?;
        let (backend, _) = backends::choose(&settings.0.backend)
            .map_err(|error| located(evring_httpd::Error::Start(error)))?;
        // The workers of before keep theirs until their last connections have closed.
        let open = open_descriptors().max(self.open);
        let demand = settings.descriptor_demand(&self.inherited);
        let budget = demand.budget_of_process(open, " until the next reload")?;
        let workers = budget.workers;
        handle.reload(settings.server(&backend, budget)).map_err(located)?;
        advice::warn_of_unused(&settings.0);
        match (settings.0.user, &self.user) {
            (None, Some(user)) => warn!("the process stays that of `user` {user} until a restart"),
            (user, _) => self.user = user,
        }
        self.status = ready_line(handle, workers);
        Ok(log_level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deferred_reload_waited_for_ever() {
        let (begin, timeout) = (Instant::now(), Duration::from_secs(600));
        let mut deferral = Deferral::new(begin, timeout);
        assert!(!deferral.ends(begin + timeout - Duration::from_millis(1)));
        assert!(deferral.ends(begin + timeout));
        assert!(!deferral.ends(begin + 2 * timeout), "the workers were stopped twice");
    }

    #[test]
    fn another_signal_announced_the_whole_time_again() {
        let begin = Instant::now();
        let mut deferral = Deferral::new(begin, Duration::from_secs(600));
        let left =
            |deferral: &Deferral, ms| deferral.seconds_left(begin + Duration::from_millis(ms));
        assert_eq!(left(&deferral, 0), Some(600.0));
        assert_eq!(left(&deferral, 500_010), Some(100.0));
        assert_eq!(left(&deferral, 700_000), Some(0.0));
        assert!(deferral.ends(begin + Duration::from_secs(600)));
        assert_eq!(left(&deferral, 700_000), None);
    }
}
