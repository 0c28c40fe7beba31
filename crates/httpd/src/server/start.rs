//! The start of a server, and of workers that replace those of a running one.

#[cfg(feature = "metrics")]
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::time::Instant;
#[cfg(feature = "tls")]
use std::time::SystemTime;

#[cfg(feature = "metrics")]
use evring::Config;
use evring::sockets::ListeningSocket;
#[cfg(any(feature = "metrics", feature = "tls"))]
use tracing::warn;

use crate::server::builder::Builder;
use crate::server::error::Error;
use crate::server::generation::Generation;
#[cfg(feature = "sandbox")]
use crate::server::modules;
#[cfg(feature = "metrics")]
use crate::server::monitor;
use crate::server::running::{Handle, Server};
#[cfg(feature = "metrics")]
use crate::server::running::{Monitor, MonitorSettings};
use crate::server::socket_list::add;
use crate::server::sockets::{
    WorkerSockets, check_not_held, is_free, retry_while_in_use, sockets_for, warn_of_unused,
};
#[cfg(feature = "tls")]
use crate::server::tls;
use crate::server::worker::EndOnDrop;
#[cfg(feature = "compression")]
use crate::site::compressor::CompressorThreads;
#[cfg(feature = "metrics")]
use crate::site::handler::Request;
use crate::site::log::{LogSender, LogWriter};
#[cfg(feature = "basic-auth")]
use crate::site::login::LoginThreads;
#[cfg(feature = "sandbox")]
use crate::site::sandbox::Sandbox;

/// The purpose of the server of the metrics, as the log names it.
#[cfg(feature = "metrics")]
const MONITOR: &str = " of the metrics listener";

/// The server of the metrics after a reload.
#[cfg(feature = "metrics")]
enum NextMonitor {
    /// The one of before.
    Same,
    /// The same with other settings, as the builder sets it up.
    Changed(Box<(Handle, Builder, MonitorSettings)>),
    Other(Option<Box<Monitor>>),
}

impl Builder {
    /// Starts the server. When this returns, it accepts connections.
    ///
    /// # Errors
    /// The first setting that is wrong or contradicts another, the file that cannot be read, or the reason why no worker has
    /// started: an address, the mechanism or a thread.
    pub fn start(self) -> Result<Server, Error> {
        self.start_with_purpose("")
    }

    /// Starts a server for a purpose, which the log names.
    fn start_with_purpose(self, purpose: &str) -> Result<Server, Error> {
        let handle = Handle::new();
        handle.0.metrics.set_started(Instant::now());
        self.start_generation(&handle, purpose)?;
        let server = Server::new(handle);
        #[cfg(feature = "tls")]
        if let Some(certificates) = server.certificates() {
            tls::warn_of_invalid(&certificates);
        }
        Ok(server)
    }

    /// Starts workers that serve in the place of those before.
    fn start_generation(mut self, handle: &Handle, purpose: &str) -> Result<(), Error> {
        let _one = handle.0.starting.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_values()?;
        self.prepare_site()?;
        let mut of_manager = handle.0.of_manager();
        let more = std::mem::take(&mut self.config.inherited);
        more.into_iter().for_each(|socket| add(&mut of_manager, socket));
        let mut inherited = of_manager.clone();
        inherited.append(&mut self.taken_over);
        // Those of the workers before.
        inherited.append(&mut handle.listening_sockets());
        let given: Vec<_> = of_manager.iter().map(ListeningSocket::address).collect();
        let listeners = self.listeners(&inherited, &given, &handle.0.addresses())?;
        listeners.check_distinct()?;
        self.config.listen = listeners.listen;
        #[cfg(feature = "sandbox")]
        {
            self.sandbox.extend(modules::load(&self.modules, self.handler_cache.as_deref())?);
            // One that no worker could instantiate, before there are new sockets.
            Sandbox::new(&self.sandbox, &[])
                .map_err(|(name, rejection)| Error::Handler(name, rejection))?;
            modules::find_listeners(&mut self.sandbox, &self.config.listen, &inherited)?;
        }
        // Before the files that may be pipes, which are empty at the next try.
        if !handle.0.has_room() {
            return Err(Error::StillEnding);
        }
        #[cfg(feature = "basic-auth")]
        self.warn_of_plain_passwords(&self.config.listen);
        #[cfg(feature = "tls")]
        {
            self.prepare_tls(handle)?;
            self.config.listen.extend(listeners.redirecting);
        }
        let shares_addresses = self.config.reuse_port;
        self.config.reuse_port |= self.workers > 1;
        self.config.workers = self.workers;
        // The same progress rule for open and closing connections.
        self.config.progress_interval = self.limits.progress_interval;
        self.config.min_rate = self.limits.min_rate;
        let given = sockets_for(&self.config.listen, &inherited);
        warn_of_unused(&of_manager, &given, &listeners.metrics);
        if !shares_addresses {
            check_not_held(&self.config.listen, &given, &inherited)?;
        }
        if self.config.reuse_port && !shares_addresses {
            self.check_new_addresses(&given)?;
        }
        self.log_memory(purpose);
        let metrics = &handle.0.metrics;
        #[cfg(feature = "basic-auth")]
        self.start_logins()?;
        #[cfg(feature = "user")]
        self.create_logs()?;
        #[cfg(feature = "compression")]
        self.start_compressors()?;
        self.status_thread = self.start_status()?;
        let sockets = self.sockets_of_workers(&given)?;
        #[cfg(feature = "metrics")]
        let monitor = self.next_monitor(handle, listeners.metrics, inherited)?;
        #[cfg(feature = "user")]
        if let Some(user) = &self.user {
            user.assume().map_err(|error| Error::User(user.clone(), error))?;
        }
        // As this user, which may have made links to what it may not read or write.
        self.loaded_error_pages = self.load_error_pages().map_err(|error| match error {
            Error::Page(path, reason) => Error::Page(path, self.with_user(reason)),
            other => other,
        })?;
        let reopenings = handle.0.reopenings();
        let logs = self.start_logs(metrics)?;
        let workers = self.workers.into();
        let generation = self.start_workers(handle, sockets, logs)?;
        metrics.set_workers(workers);
        handle.0.replace(generation, reopenings)?;
        handle.0.keep(of_manager);
        #[cfg(all(feature = "metrics", feature = "tls"))]
        metrics.set_certificates(handle.0.tls().map(|tls| tls.certificates));
        #[cfg(feature = "metrics")]
        match monitor {
            NextMonitor::Same => {}
            NextMonitor::Other(monitor) => handle.0.set_monitor(monitor.map(|monitor| *monitor)),
            // The settings of the others have changed, so this is no error of the reload.
            NextMonitor::Changed(change) => {
                let (same, builder, settings) = *change;
                match builder.start_generation(&same, MONITOR) {
                    Ok(()) => handle.0.set_monitor_settings(settings),
                    Err(error) => warn!("the metrics keep their limits: {error}"),
                }
            }
        }
        Ok(())
    }

    /// Checks what the site sends instead of files, and wraps its handlers.
    fn prepare_site(&mut self) -> Result<(), Error> {
        self.check_pages()?;
        for function in &self.around {
            self.routes.map(|handler| Arc::new(function.wrap(handler)));
        }
        Ok(())
    }

    /// Loads the certificates for the addresses of [`Config::listen`](evring::Config::listen).
    #[cfg(feature = "tls")]
    fn prepare_tls(&mut self, handle: &Handle) -> Result<(), Error> {
        let before = handle.0.tls();
        let made = before.as_ref().filter(|tls| tls.is_self_signed);
        let made = made.map(|tls| Arc::clone(&tls.certificates));
        if self.tls.self_signed && made.is_none() {
            warn!("the certificate for localhost was made for this run; clients do not trust it");
        }
        self.loaded_tls = self.load_tls(self.config.listen.len(), made, &handle.0.tickets)?;
        if let (Some(before), Some(next)) = (before, &self.loaded_tls) {
            next.certificates.check_replaces(&before.certificates, SystemTime::now())?;
        }
        Ok(())
    }

    /// Checks that no other program listens on the addresses for which there is no socket yet: `SO_REUSEPORT` would
    /// share them.
    fn check_new_addresses(&self, given: &[Vec<ListeningSocket>]) -> Result<(), Error> {
        let new = given.iter().zip(&self.config.listen).filter(|(given, _)| given.is_empty());
        let is_free = |at| retry_while_in_use(|| is_free(at)).map_err(Error::Start);
        new.map(|(_, at)| at).try_for_each(is_free)
    }

    /// Makes the sockets of each worker.
    fn sockets_of_workers(
        &mut self,
        given: &[Vec<ListeningSocket>],
    ) -> Result<Vec<WorkerSockets>, Error> {
        let mut sockets = Vec::new();
        for n in 0..self.workers.into() {
            let of_worker = self.listening_sockets(given, n)?;
            // For port 0, all workers use the port of the first one.
            self.config.listen = of_worker.iter().map(|same| same[0].address()).collect();
            sockets.push(of_worker);
        }
        Ok(sockets)
    }

    /// Starts a worker for each list of sockets, with the log that it writes to.
    fn start_workers(
        self,
        handle: &Handle,
        sockets: Vec<WorkerSockets>,
        (senders, writer): (Vec<Option<LogSender>>, Option<LogWriter>),
    ) -> Result<Generation, Error> {
        let mut generation = Generation {
            workers: Vec::new(),
            addresses: Vec::new(),
            is_current: Arc::default(),
            is_retired: false,
            ended: Arc::default(),
            drain_delay: self.drain_delay,
            sockets: Vec::new(),
            writer,
            #[cfg(feature = "tls")]
            tls: self.loaded_tls.clone(),
        };
        let builder = Arc::new(self);
        for (sockets, log) in sockets.into_iter().zip(senders) {
            generation.sockets.extend(sockets.iter().flatten().cloned());
            let end = EndOnDrop {
                handle: handle.clone(),
                is_current: Arc::clone(&generation.is_current),
                ended: Arc::clone(&generation.ended),
            };
            let worker = builder.start_worker(sockets, end, handle.0.metrics.another(), log)?;
            generation.workers.push(worker);
        }
        generation.addresses = builder.config.listen.clone();
        Ok(generation)
    }

    /// Starts the threads that compress files, if any is compressed.
    #[cfg(feature = "compression")]
    fn start_compressors(&mut self) -> Result<(), Error> {
        if self.max_compressed_file().is_some() {
            let max_memory = self.limits.max_compressed_memory;
            let threads = CompressorThreads::start(max_memory, self.workers.into());
            self.compressor_threads = Some(threads.map_err(Error::Thread)?);
        }
        Ok(())
    }

    /// Starts the threads that check passwords, if any path needs one.
    #[cfg(feature = "basic-auth")]
    fn start_logins(&mut self) -> Result<(), Error> {
        let realms = self.load_realms()?;
        if !realms.is_empty() {
            let threads = LoginThreads::start(realms, self.workers.into());
            self.login_threads = Some(threads.map_err(Error::Thread)?);
        }
        Ok(())
    }

    /// Starts the server of the metrics, or returns how to change that at the same addresses. Its clients have the limits
    /// and caps of the others.
    #[cfg(feature = "metrics")]
    fn next_monitor(
        &self,
        handle: &Handle,
        addresses: Vec<SocketAddr>,
        mut given: Vec<ListeningSocket>,
    ) -> Result<NextMonitor, Error> {
        // `Builder::listeners` has returned the error of an unknown address.
        let Some(Ok(listen)) = &self.metrics_listen else { return Ok(NextMonitor::Other(None)) };
        if listen.is_empty() {
            return Ok(NextMonitor::Other(None));
        }
        let caps = (self.config.max_per_address, self.config.max_per_network);
        let settings =
            MonitorSettings { listen: listen.clone(), limits: self.limits.clone(), caps };
        let same = handle.0.monitor_at(&settings.listen);
        if same.is_some() && handle.0.has_monitor(&settings) {
            return Ok(NextMonitor::Same);
        }
        let backend = if evring::mechanisms::NAMES.contains(&"epoll") { "epoll" } else { "auto" };
        check_not_held(&addresses, &sockets_for(&addresses, &given), &given)?;
        given.retain(|socket| addresses.contains(&socket.address()));
        let mut config = Config::default().with(|c| c.listen = addresses);
        config.max_connections = Monitor::MAX_CONNECTIONS;
        (config.max_per_address, config.max_per_network) = settings.caps;
        config.max_buffered_bytes = self.config.max_buffered_bytes;
        // It stops when the other workers have ended, which had all of the time.
        config.drain_timeout = self.config.drain_timeout.min(Monitor::DRAIN_TIMEOUT);
        let builder = Server::builder()
            .backend(backend)
            .config(config)
            .limits(settings.limits.clone())
            .status(false)
            .route("/metrics", monitor::metrics(handle.0.metrics.clone()))
            .route("/healthz", |_: Request| "alive\n")
            .route("/readyz", monitor::readiness(Arc::clone(&handle.0.drains)));
        let Some(same) = same else {
            let server = builder.take_over(given).start_with_purpose(MONITOR)?;
            return Ok(NextMonitor::Other(Some(Box::new(Monitor { settings, server }))));
        };
        Ok(NextMonitor::Changed(Box::new((same, builder, settings))))
    }

    /// Starts the server and waits until it ends. It handles no signals, unlike
    /// `Builder::run_until_signal` with the feature `signals`.
    ///
    /// # Errors
    /// Those of [`Builder::start`] and [`Server::wait`].
    pub fn run(self) -> Result<(), Error> {
        self.start()?.wait().map(drop)
    }
}

impl Handle {
    /// Replaces the settings of the server. New workers take its listening sockets, when those before them have stopped
    /// accepting. These end when their last connections have closed, which keep the old settings and end with their
    /// next response, or after 5 s without a request. No connection is refused, and no request that has arrived is
    /// lost. Until all have ended, the server needs memory for both.
    ///
    /// A certificate that is not valid now does not replace a valid one.
    ///
    /// A builder of [`Server::builder`] without addresses keeps those of the server; one that is made from
    /// [`Options`](crate::options::Options) returns to the default.
    ///
    /// # Errors
    /// Those of [`Builder::start`], and [`Error::StillEnding`] if the workers of three earlier reloads are still running;
    /// then the settings stay, and [`Handle::stop_oldest`] makes room; only the program waits for
    /// [`ConnectionLimits::reload_timeout`](crate::options::ConnectionLimits::reload_timeout). Also [`Error::Ended`] if the server ends: the new workers
    /// may have started then, and serve the clients that wait in the queues of their sockets.
    pub fn reload(&self, builder: Builder) -> Result<(), Error> {
        builder.check_paths()?;
        builder.start_generation(self, "")?;
        #[cfg(feature = "tls")]
        if let Some(tls) = self.0.tls() {
            tls::warn_of_invalid(&tls.certificates);
        }
        Ok(())
    }
}
