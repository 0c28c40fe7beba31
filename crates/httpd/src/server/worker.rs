//! The start of a worker: a thread with a mechanism, and a site with the settings.

#[cfg(feature = "tls")]
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use evring::sockets::ListeningSocket;
use evring::{AnyMechanism, Config, KernelError, RemoteHandle, Root, Stats};

use crate::server::builder::Builder;
use crate::server::error::Error;
use crate::server::generation::Worker;
use crate::server::running::Handle;
use crate::server::sockets::WorkerSockets;
#[cfg(feature = "tls")]
use crate::server::tls;
use crate::site::Site;
#[cfg(feature = "compression")]
use crate::site::compressor::Compressor;
use crate::site::hosts::FileHost;
#[cfg(feature = "tls")]
use crate::site::https_redirect::{HTTPS, HttpsRedirect};
use crate::site::log::LogSender;
#[cfg(feature = "basic-auth")]
use crate::site::login::Logins;
use crate::site::metrics::Metrics;
#[cfg(feature = "sandbox")]
use crate::site::sandbox::Sandbox;

impl Builder {
    /// Starts a worker, with its sockets for each address, and returns when it listens. Mechanisms cannot move
    /// between threads, so the worker creates its own.
    pub(super) fn start_worker(
        self: &Arc<Self>,
        sockets: WorkerSockets,
        end: EndOnDrop,
        metrics: Metrics,
        log: Option<LogSender>,
    ) -> Result<Worker, Error> {
        let builder = Arc::clone(self);
        let (start, may_start) = channel();
        let (ready, is_ready) = channel();
        let thread = thread::Builder::new().name("worker".to_owned()).spawn(move || {
            #[cfg(feature = "tokio")]
            let tokio = builder.tokio.clone();
            #[cfg(feature = "tokio")]
            let _entered = tokio.as_ref().map(tokio::runtime::Handle::enter);
            #[cfg(feature = "tls")]
            let tls = builder.loaded_tls.as_ref().map(|tls| tls.config.clone());
            let own = metrics.clone();
            let (mechanism, site) = builder.mechanism_and_site(sockets, metrics, log)?;
            drop(builder);
            let remote = mechanism.remote();
            let _ = ready.send((mechanism.name(), remote.clone()));
            let _end = end;
            #[cfg(feature = "tls")]
            let run = || tls::run(mechanism, site, tls);
            #[cfg(not(feature = "tls"))]
            let run = || mechanism.run(site);
            serve(run, &may_start, (&own, remote))
        });
        let thread = thread.map_err(Error::Thread)?;
        match is_ready.recv() {
            Ok((backend, remote)) => Ok(Worker { backend, remote, start, thread: Some(thread) }),
            Err(_) => {
                Err(thread.join().map_or(Error::Panic, |end| end.err().unwrap_or(Error::Panic)))
            }
        }
    }

    /// Sets up a worker's mechanism on clones of its sockets, and its site.
    fn mechanism_and_site(
        &self,
        sockets: WorkerSockets,
        metrics: Metrics,
        log: Option<LogSender>,
    ) -> Result<(AnyMechanism, Site), Error> {
        let config = self.worker_config(&sockets);
        #[cfg(feature = "sandbox")]
        let mut sandbox = {
            let listeners: Vec<_> = sockets.iter().map(Vec::len).collect();
            Sandbox::new(&self.sandbox, &listeners)
                .map_err(|(name, rejection)| Error::Handler(name, rejection))?
        };
        #[cfg_attr(not(feature = "sandbox"), expect(unused_mut))]
        let mut mechanism = AnyMechanism::new(&self.backend, &config).map_err(Error::Start)?;
        #[cfg(feature = "sandbox")]
        sandbox.land(&mut mechanism).map_err(|(name, error)| Error::HandlerBuffers(name, error))?;
        #[cfg_attr(not(any(feature = "sandbox", feature = "tls")), expect(unused_mut))]
        let mut site = self.site(&mechanism, metrics, log);
        #[cfg(feature = "sandbox")]
        {
            site.sandbox = sandbox;
        }
        #[cfg(feature = "tls")]
        {
            let redirected = self.loaded_tls.as_ref().map(|tls| tls.first_redirecting);
            site.redirect =
                redirected.map(|first| redirect(&sockets, first, self.tls.redirect_port));
        }
        Ok((mechanism, site))
    }

    /// Returns the configuration of a worker's mechanism.
    fn worker_config(&self, sockets: &WorkerSockets) -> Config {
        let mut config = self.config.clone();
        config.inherited = sockets.iter().flatten().cloned().collect();
        config.listen = config.inherited.iter().map(ListeningSocket::address).collect();
        config.roots.extend(self.hosts.iter().filter_map(|host| host.root.clone()));
        // A lookup, whose reads may be deferred behind a response, has to end within the interval.
        config.max_read_delay = config.max_read_delay.min(self.limits.progress_interval / 4);
        config
    }

    /// Makes a worker's site, with the settings.
    fn site(&self, mechanism: &AnyMechanism, metrics: Metrics, log: Option<LogSender>) -> Site {
        let first_root = self.config.roots.len() as u16;
        let root = (first_root > 0).then_some(Root(0));
        let remote = &mechanism.remote();
        let site = Site::new(root).backend(mechanism.name()).limits(self.limits.clone());
        let mut site = site.remote(remote);
        #[cfg(feature = "compression")]
        {
            let threads = self.compressor_threads.clone();
            site.files.compressor = threads.map(|threads| Compressor::new(threads, remote));
        }
        #[cfg(feature = "basic-auth")]
        {
            let threads = self.login_threads.clone();
            site.logins = threads.map(|threads| Logins::new(threads, remote));
        }
        site.files.hosts.first_mut().options = self.file_options.clone();
        let mut roots = (first_root..).map(Root);
        for host in &self.hosts {
            let root = host.root.as_ref().and_then(|_| roots.next());
            site.files.hosts.add(&host.names, FileHost { root, options: host.files.clone() });
        }
        site.handlers.routes = self.routes.clone();
        (site.status, site.status_thread) = (self.status, self.status_thread.clone());
        let context = &mut site.context;
        context.responder.with_fallback = site.files.hosts.with_fallback();
        context.responder.fields = site.files.hosts.fields_of_errors();
        context.responder.error_pages = self.loaded_error_pages.clone();
        context.measures = log.is_some();
        #[cfg(feature = "metrics")]
        {
            context.measures |= self.metrics_listen.is_some();
        }
        (context.metrics, context.log) = (metrics, log);
        site
    }
}

/// Serves when started; if another worker could not start, the channel is closed and it ends.
fn serve(
    run: impl FnOnce() -> Result<Stats, KernelError>,
    may_start: &Receiver<()>,
    (metrics, remote): (&Metrics, RemoteHandle),
) -> Result<Stats, Error> {
    if may_start.recv().is_err() {
        return Ok(Stats::default());
    }
    metrics.set_remote(Some(remote));
    let outcome = run();
    metrics.set_remote(None);
    let stats = outcome.map_err(Error::Kernel)?;
    // Those of the last second, and of the connections that the end has closed.
    metrics.copy_for_scrape(&stats);
    Ok(stats)
}

/// Returns what a site needs to redirect to https, from its listeners at the addresses from number `first`, to `port` if it
/// is set.
#[cfg(feature = "tls")]
fn redirect(
    sockets: &[Vec<ListeningSocket>],
    first: usize,
    port: Option<NonZeroU16>,
) -> HttpsRedirect {
    let ports = |sockets: &[Vec<ListeningSocket>]| -> Vec<u16> {
        sockets.iter().flatten().map(|socket| socket.address().port()).collect()
    };
    let (tls, redirecting) = (ports(&sockets[..first]), ports(&sockets[first..]));
    let listeners = tls.len() as u16..(tls.len() + redirecting.len()) as u16;
    let (tls_port, mapped_port) = match port {
        Some(port) => (port.get(), port.get()),
        None if tls.contains(&HTTPS) => (HTTPS, HTTPS),
        None => (tls[0], HTTPS),
    };
    HttpsRedirect { listeners, ports: redirecting, tls_port, mapped_port }
}

/// Reports the end of a worker, also by a panic. Stops the server if the worker was a current one.
pub(super) struct EndOnDrop {
    pub(super) handle: Handle,
    pub(super) is_current: Arc<AtomicBool>,
    pub(super) ended: Arc<AtomicUsize>,
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        if self.is_current.load(Ordering::Relaxed) {
            self.handle.stop();
        }
        self.ended.fetch_add(1, Ordering::Release);
        self.handle.0.notify_of_end();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::Server;
    use crate::limits::Limits;

    use super::*;

    #[test]
    fn lookup_whose_read_was_deferred_took_longer_than_its_timeout() {
        let mut limits = Limits::default();
        for (interval, delay) in [(60, 10), (20, 5)] {
            limits.progress_interval = Duration::from_secs(interval);
            let builder = Server::builder().limits(limits.clone());
            let config = builder.worker_config(&WorkerSockets::default());
            assert_eq!(config.max_read_delay, Duration::from_secs(delay));
        }
    }
}
