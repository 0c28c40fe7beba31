//! A running server, and its control from any thread.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use evring::sockets::ListeningSocket;
use evring::{RemoteHandle, Stats};
#[cfg(feature = "tls")]
use evring_tls::Certificates;

#[cfg(feature = "metrics")]
use crate::limits::Limits;
use crate::server::error::Error;
use crate::server::generation::Generation;
use crate::server::socket_list::add;
#[cfg(feature = "tls")]
use crate::server::tls::{LoadedTls, Tickets};
use crate::site::metrics::Metrics;

/// A running server. Dropping it stops it and waits until it has ended.
#[must_use = "dropping it stops the server"]
#[derive(Debug)]
pub struct Server {
    handle: Handle,
}

/// Stops a server from any thread, or changes its settings.
///
/// ```no_run
/// use evring_httpd::Server;
///
/// fn main() -> Result<(), evring_httpd::Error> {
///     let server = Server::builder().files("public").start()?;
///     let handle = server.handle();
///     std::thread::spawn(move || {
///         // on a signal, for example:
///         handle.stop();
///     });
///     server.wait()?; // returns when all connections are closed
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Handle(pub(crate) Arc<ServerState>);

/// The state that all handles of a server share.
#[derive(Debug, Default)]
pub(crate) struct ServerState {
    /// The server is about to stop.
    pub(crate) drains: Arc<AtomicBool>,
    pub(crate) metrics: Metrics,
    /// Held while a generation starts.
    pub(crate) starting: Mutex<()>,
    #[cfg(feature = "tls")]
    pub(crate) tickets: Tickets,
    state: Mutex<Generations>,
    /// A worker has ended.
    ended: Condvar,
    /// Held while a thread is joined.
    outcomes: Mutex<Outcomes>,
}

/// The results of workers whose threads have ended, of all generations together.
#[derive(Debug, Default)]
struct Outcomes {
    /// By position in their generation.
    stats: Vec<Stats>,
    /// The first error.
    error: Option<Error>,
}

impl Outcomes {
    /// Adds the result of a worker at a position in its generation.
    fn add(&mut self, at: usize, outcome: Result<Stats, Error>) {
        match (outcome, self.stats.get_mut(at)) {
            (Ok(stats), Some(before)) => before.add(&stats),
            (Ok(stats), None) => self.stats.push(stats),
            (Err(error), _) => {
                self.error.get_or_insert(error);
            }
        }
    }
}

/// The generations of workers, and what ends with the last of them.
#[derive(Debug, Default)]
struct Generations {
    /// Oldest first. All but the last one retire.
    generations: VecDeque<Generation>,
    /// No generation may follow.
    ends: bool,
    /// The sockets that a service manager gave to the server, which listens on those that its settings name.
    of_manager: Vec<ListeningSocket>,
    /// Number of calls of [`Handle::reopen_log`].
    reopenings: usize,
    #[cfg(feature = "metrics")]
    monitor: Option<Monitor>,
}

/// The server of the metrics.
#[cfg(feature = "metrics")]
#[derive(Debug)]
pub(crate) struct Monitor {
    pub(crate) settings: MonitorSettings,
    pub(crate) server: Server,
}

#[cfg(feature = "metrics")]
impl Monitor {
    /// Maximum number of connections. Slow clients of some addresses leave places for the others.
    pub(crate) const MAX_CONNECTIONS: u32 = 256;

    /// Maximum time to finish responses when the server has ended.
    pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
}

/// The settings of the server of the metrics.
#[cfg(feature = "metrics")]
#[derive(Debug, PartialEq)]
pub(crate) struct MonitorSettings {
    /// The addresses that it was set to listen on.
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) limits: Limits,
    /// Maximum connections per client address and per network.
    pub(crate) caps: (Option<u32>, Option<u32>),
}

impl Generations {
    /// Maximum number of generations that have not ended, including the one that accepts.
    const MAX: usize = 4;

    /// Returns whether another generation may start: those before keep their memory and descriptors until their last
    /// responses end.
    fn has_room(&self) -> bool {
        #[cfg(feature = "metrics")]
        if self.monitor.as_ref().is_some_and(|monitor| !monitor.server.handle.can_reload()) {
            return false;
        }
        self.has_own_room()
    }

    /// Starts no further generation, and closes what no generation uses.
    fn end(&mut self) {
        self.ends = true;
        self.of_manager.clear();
    }

    /// The same, without the server of the metrics.
    fn has_own_room(&self) -> bool {
        let living = self.generations.iter().filter(|generation| !generation.has_ended());
        living.count() < Self::MAX
    }
}

impl ServerState {
    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maximum time for the workers before to stop accepting. One may be busy in a handler.
    const RETIRE_TIMEOUT: Duration = Duration::from_secs(1);

    /// Returns whether another generation may start.
    pub(crate) fn has_room(&self) -> bool {
        self.lock().has_room()
    }

    /// Makes a generation serve in the place of the one before, which stops accepting first: with some mechanisms, one
    /// thread at a time can wait for a socket's connections. If the logs were reopened since `reopenings`, it reopens its
    /// own.
    ///
    /// # Errors
    /// If the server ends.
    pub(crate) fn replace(&self, generation: Generation, reopenings: usize) -> Result<(), Error> {
        let mut state = self.lock();
        if state.ends {
            return Err(Error::Ended);
        }
        let mut before = Vec::new();
        for old in &mut state.generations {
            old.retire();
            before.extend(old.workers.iter().map(|worker| worker.remote.clone()));
        }
        if state.reopenings != reopenings {
            generation.reopen_log();
        }
        // At once, as the server ends with its last generation.
        state.generations.push_back(generation);
        drop(state);
        let until = Instant::now() + Self::RETIRE_TIMEOUT;
        while !before.iter().all(RemoteHandle::are_listeners_closed) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        let state = self.lock();
        // If the server ends since, the generation still serves the clients that wait in the queues of its sockets.
        // Its end is no reason to stop the others.
        if let Some(generation) = state.generations.back() {
            generation.start(!state.ends);
            if self.drains.load(Ordering::Relaxed) {
                generation.drain();
            }
        }
        let ends = state.ends;
        drop(state);
        // Else all stay until a call of `Server::wait`.
        self.join_ended();
        if ends { Err(Error::Ended) } else { Ok(()) }
    }

    /// Returns whether no generation may follow.
    #[cfg(feature = "metrics")]
    fn ends(&self) -> bool {
        self.lock().ends
    }

    /// Returns how often the logs were reopened.
    pub(crate) fn reopenings(&self) -> usize {
        self.lock().reopenings
    }

    /// Keeps the sockets of a service manager until the server ends.
    pub(crate) fn keep(&self, of_manager: Vec<ListeningSocket>) {
        let mut state = self.lock();
        if !state.ends {
            state.of_manager = of_manager;
        }
    }

    /// Returns clones of the sockets of a service manager that the server keeps.
    pub(crate) fn of_manager(&self) -> Vec<ListeningSocket> {
        self.lock().of_manager.clone()
    }

    /// Returns clones of the sockets of the workers; none after a stop.
    fn sockets(&self) -> Vec<ListeningSocket> {
        let state = self.lock();
        let current = state.generations.back().filter(|_| !state.ends);
        current.map_or(Vec::new(), |generation| generation.sockets.clone())
    }

    /// Returns the addresses that the workers listen on, without those that redirect to https.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        let state = self.lock();
        state.generations.back().map_or(Vec::new(), |generation| generation.listen().to_vec())
    }

    /// Waits until a generation has ended. Returns false at the end of the server.
    fn wait_for_ended(&self) -> bool {
        let mut state = self.lock();
        while !state.generations.iter().any(Generation::has_ended) {
            if state.generations.is_empty() {
                state.end();
                return false;
            }
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    /// Removes the generations that have ended, waits for their threads, and adds up what these return.
    fn join_ended(&self) {
        // They are dropped after the lock, as a log may wait for its reader.
        let mut ended = Vec::new();
        let mut outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(mut generation) = self.remove_ended() {
            let threads = generation.workers.iter_mut().filter_map(|worker| worker.thread.take());
            for (at, thread) in threads.enumerate() {
                outcomes.add(at, thread.join().unwrap_or(Err(Error::Panic)));
            }
            ended.push(generation);
        }
    }

    fn remove_ended(&self) -> Option<Generation> {
        let mut state = self.lock();
        let ended = state.generations.iter().position(Generation::has_ended)?;
        state.generations.remove(ended)
    }

    /// Notifies [`ServerState::wait_for_ended`] that a worker has ended.
    pub(crate) fn notify_of_end(&self) {
        // With the lock: else the end could fall between the check and the wait.
        let _state = self.lock();
        self.ended.notify_all();
    }

    /// Returns the certificates of the workers that accept.
    #[cfg(feature = "tls")]
    pub(crate) fn tls(&self) -> Option<LoadedTls> {
        self.lock().generations.back()?.tls.clone()
    }

    /// Returns whether the metrics are served with these settings.
    #[cfg(feature = "metrics")]
    pub(crate) fn has_monitor(&self, settings: &MonitorSettings) -> bool {
        self.lock().monitor.as_ref().is_some_and(|monitor| monitor.settings == *settings)
    }

    /// Sets what the settings of the server of the metrics are now.
    #[cfg(feature = "metrics")]
    pub(crate) fn set_monitor_settings(&self, settings: MonitorSettings) {
        if let Some(monitor) = &mut self.lock().monitor {
            monitor.settings = settings;
        }
    }

    /// Returns the server of the metrics if it was set to listen on these addresses.
    #[cfg(feature = "metrics")]
    pub(crate) fn monitor_at(&self, listen: &[SocketAddr]) -> Option<Handle> {
        let state = self.lock();
        let same = state.monitor.as_ref().filter(|monitor| monitor.settings.listen == listen);
        // One that has failed leaves its place to another.
        same.map(|monitor| monitor.server.handle()).filter(|same| !same.0.ends())
    }

    /// Replaces the server of the metrics.
    #[cfg(feature = "metrics")]
    pub(crate) fn set_monitor(&self, monitor: Option<Monitor>) {
        let before = std::mem::replace(&mut self.lock().monitor, monitor);
        // Without the lock: it stops.
        drop(before);
    }
}

impl Handle {
    pub(crate) fn new() -> Self {
        Handle(Arc::default())
    }

    /// Announces that the server is about to stop: `/readyz` answers with 503 from now on, so that load balancers
    /// send new clients elsewhere. All requests are still served, with `Connection: close`.
    pub fn drain(&self) {
        self.0.drains.store(true, Ordering::Relaxed);
        self.0.lock().generations.iter().for_each(Generation::drain);
    }

    /// Returns clones of the listening sockets, to be passed to another process, with those of a service manager that no
    /// setting names; none after a stop.
    pub fn listening_sockets(&self) -> Vec<ListeningSocket> {
        let mut sockets = self.0.sockets();
        #[cfg(feature = "metrics")]
        if let Some(monitor) = &self.0.lock().monitor
            && !sockets.is_empty()
        {
            sockets.extend(monitor.server.handle.listening_sockets());
        }
        self.0.of_manager().into_iter().for_each(|socket| add(&mut sockets, socket));
        sockets
    }

    /// Stops accepting, for good: another process does. The server ends when the last connection has closed; each
    /// ends with its next response.
    pub fn retire(&self) {
        let mut state = self.0.lock();
        state.end();
        state.generations.iter_mut().for_each(Generation::retire);
        #[cfg(feature = "metrics")]
        if let Some(monitor) = &state.monitor {
            monitor.server.handle.retire();
        }
    }

    /// Stops the server: it closes its listeners and idle connections; other connections have
    /// [`Config::drain_timeout`](evring::Config::drain_timeout) to finish. Further calls have no effect.
    pub fn stop(&self) {
        self.0.drains.store(true, Ordering::Relaxed);
        let mut state = self.0.lock();
        state.end();
        state.generations.iter_mut().for_each(Generation::stop);
    }

    /// Returns false while the workers of three earlier reloads are still running; then [`Handle::reload`] fails.
    pub fn can_reload(&self) -> bool {
        self.0.has_room()
    }

    /// Waits until [`Handle::can_reload`] is true, for this time at most. Returns whether it is.
    pub fn wait_for_room(&self, time: Duration) -> bool {
        let state = self.0.lock();
        let wait = self.0.ended.wait_timeout_while(state, time, |state| !state.has_room());
        let (state, _) = wait.unwrap_or_else(PoisonError::into_inner);
        state.has_room()
    }

    /// Stops the oldest workers that keep another reload from starting, with the
    /// [`Config::drain_timeout`](evring::Config::drain_timeout) of their settings for their responses.
    pub fn stop_oldest(&self) {
        let mut state = self.0.lock();
        #[cfg(feature = "metrics")]
        if let Some(monitor) = &state.monitor {
            monitor.server.handle.stop_oldest();
        }
        if state.has_own_room() {
            return;
        }
        let mut living = state.generations.iter_mut().filter(|generation| !generation.has_ended());
        if let Some(oldest) = living.next().filter(|oldest| oldest.is_retired) {
            oldest.stop();
        }
    }

    /// Returns the time for which the server still serves after a signal to stop; see
    /// [`Builder::drain_delay`](crate::Builder::drain_delay).
    pub fn drain_delay(&self) -> Duration {
        let state = self.0.lock();
        state.generations.back().map_or(Duration::ZERO, |generation| generation.drain_delay)
    }

    /// Returns the addresses that the server listens on, without those that redirect to https.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.0.addresses()
    }

    /// Returns the addresses that redirect to https.
    #[cfg(feature = "tls")]
    pub fn redirecting_addresses(&self) -> Vec<SocketAddr> {
        self.of_current(|generation| {
            let tls = generation.tls.as_ref();
            tls.map_or(Vec::new(), |tls| generation.addresses[tls.first_redirecting..].to_vec())
        })
    }

    /// Returns the scheme of the server's URLs, `http` or `https`.
    pub fn scheme(&self) -> &'static str {
        #[cfg(feature = "tls")]
        if self.0.tls().is_some() {
            return "https";
        }
        "http"
    }

    /// Returns the name of the mechanism.
    pub fn backend(&self) -> &'static str {
        self.of_current(|generation| generation.workers.first().map_or("", |worker| worker.backend))
    }

    fn of_current<T: Default>(&self, value: impl FnOnce(&Generation) -> T) -> T {
        self.0.lock().generations.back().map_or_else(T::default, value)
    }

    /// Counts lines of the program's own log that were lost, as the metric `messages_lost`.
    pub fn count_lost_messages(&self, lines: u64) {
        self.0.metrics.count_lost_messages(lines);
    }

    /// Opens the access log again, for example after its file was renamed.
    pub fn reopen_log(&self) {
        let mut state = self.0.lock();
        state.reopenings += 1;
        state.generations.iter().for_each(Generation::reopen_log);
    }
}

impl Server {
    pub(crate) fn new(handle: Handle) -> Self {
        Server { handle }
    }

    /// Returns the addresses that the server listens on, without those that redirect to https.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.handle.addresses()
    }

    /// Returns the addresses that redirect to https.
    #[cfg(feature = "tls")]
    pub fn redirecting_addresses(&self) -> Vec<SocketAddr> {
        self.handle.redirecting_addresses()
    }

    /// Returns the certificates of a server with TLS, which can be read again while it runs.
    #[cfg(feature = "tls")]
    pub fn certificates(&self) -> Option<Arc<Certificates>> {
        self.handle.0.tls().map(|tls| tls.certificates)
    }

    /// Returns the scheme of the server's URLs, `http` or `https`.
    pub fn scheme(&self) -> &'static str {
        self.handle.scheme()
    }

    /// Returns the addresses of the metrics.
    #[cfg(feature = "metrics")]
    pub fn metrics_addresses(&self) -> Vec<SocketAddr> {
        let state = self.handle.0.lock();
        state.monitor.as_ref().map_or(Vec::new(), |monitor| monitor.server.addresses())
    }

    /// Returns the name of the mechanism.
    pub fn backend(&self) -> &'static str {
        self.handle.backend()
    }

    /// Returns a handle that controls the server from other threads.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits until the server has stopped and all connections are closed. Returns each worker's
    /// statistics, with those of the workers that it has replaced in reloads.
    ///
    /// # Errors
    /// If a worker failed; the other workers are stopped, too.
    pub fn wait(mut self) -> Result<Vec<Stats>, Error> {
        self.join()
    }

    fn join(&mut self) -> Result<Vec<Stats>, Error> {
        let server = &self.handle.0;
        while server.wait_for_ended() {
            server.join_ended();
        }
        #[cfg(feature = "metrics")]
        server.set_monitor(None);
        // Waits for a reload that joins some.
        let mut outcomes = server.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        let Outcomes { stats, error } = std::mem::take(&mut *outcomes);
        error.map_or(Ok(stats), Err)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.handle.stop();
        let _ = self.join();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::access_log::AccessLog;
    use crate::site::log::LogWriter;

    #[test]
    fn log_that_was_reopened_while_workers_start_stayed_the_old_file_for_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let (handle, metrics) = (Handle::new(), Metrics::default());
        let reopenings = handle.0.reopenings();
        let log = AccessLog::from(path.clone());
        let (writer, senders) = LogWriter::start(&[log], None, 1, &metrics).ok().unwrap();
        fs::remove_file(&path).unwrap();
        handle.reopen_log();
        let generation = Generation {
            workers: Vec::new(),
            addresses: Vec::new(),
            is_current: Arc::default(),
            is_retired: false,
            ended: Arc::default(),
            drain_delay: Duration::ZERO,
            sockets: Vec::new(),
            writer: Some(writer),
            #[cfg(feature = "tls")]
            tls: None,
        };
        handle.0.replace(generation, reopenings).unwrap();
        let start = Instant::now();
        while !path.exists() {
            assert!(start.elapsed() < Duration::from_secs(20), "the log was not opened again");
            thread::yield_now();
        }
        drop(senders);
    }
}
