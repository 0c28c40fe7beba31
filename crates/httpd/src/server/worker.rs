//! The start of a worker: a thread with a mechanism, and a site with the settings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use evring::sockets::ListeningSocket;
use evring::{AnyMechanism, KernelError, RemoteHandle, Root, Stats};

use crate::server::builder::Builder;
use crate::server::error::Error;
use crate::server::generation::Worker;
use crate::server::running::Handle;
#[cfg(feature = "tls")]
use crate::server::tls;
use crate::site::Site;
#[cfg(feature = "compression")]
use crate::site::compressor::Compressor;
use crate::site::hosts::FileHost;
#[cfg(feature = "tls")]
use crate::site::https_redirect::HttpsRedirect;
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
        &self,
        sockets: Vec<Vec<ListeningSocket>>,
        end: EndOnDrop,
        metrics: Metrics,
        log: Option<LogSender>,
    ) -> Result<Worker, Error> {
        #[cfg(feature = "tls")]
        let redirect =
            self.loaded_tls.as_ref().map(|tls| redirect(&sockets, tls.first_redirecting));
        #[cfg(feature = "sandbox")]
        let listeners: Vec<_> = sockets.iter().map(Vec::len).collect();
        let (backend, mut config, routes) =
            (self.backend.clone(), self.config.clone(), self.routes.clone());
        config.inherited = sockets.into_iter().flatten().collect();
        config.listen = config.inherited.iter().map(ListeningSocket::address).collect();
        let (limits, file_options) = (self.limits.clone(), self.file_options.clone());
        let hosts = self.hosts.clone();
        let first_root = config.roots.len() as u16;
        config.roots.extend(hosts.iter().filter_map(|host| host.root.clone()));
        #[cfg(feature = "basic-auth")]
        let login_threads = self.login_threads.clone();
        #[cfg(feature = "compression")]
        let compressor_threads = self.compressor_threads.clone();
        #[cfg(feature = "tls")]
        let tls = self.loaded_tls.clone();
        let (status, error_pages) = (self.status, self.loaded_error_pages.clone());
        let status_thread = self.status_thread.clone();
        #[cfg(feature = "metrics")]
        let measures = self.metrics_listen.is_some();
        #[cfg(not(feature = "metrics"))]
        let measures = false;
        #[cfg(feature = "sandbox")]
        let handlers = self.sandbox.clone();
        #[cfg(feature = "tokio")]
        let tokio = self.tokio.clone();
        let (start, may_start) = channel();
        let (ready, is_ready) = channel();
        let thread = thread::Builder::new().name("worker".to_owned()).spawn(move || {
            #[cfg(feature = "tokio")]
            let _entered = tokio.as_ref().map(tokio::runtime::Handle::enter);
            #[cfg(feature = "sandbox")]
            let mut sandbox = Sandbox::new(&handlers, &listeners)
                .map_err(|(name, rejection)| Error::Handler(name, rejection))?;
            #[cfg_attr(not(feature = "sandbox"), expect(unused_mut))]
            let mut mechanism = AnyMechanism::new(&backend, &config).map_err(Error::Start)?;
            #[cfg(feature = "sandbox")]
            sandbox
                .land(&mut mechanism)
                .map_err(|(name, error)| Error::HandlerBuffers(name, error))?;
            // Its clones of the sockets would keep them open.
            drop(config);
            let _ = ready.send((mechanism.name(), mechanism.remote()));
            let _end = end;
            let root = (first_root > 0).then_some(Root(0));
            let site = Site::new(root).backend(mechanism.name()).limits(limits);
            let mut site = site.remote(&mechanism.remote());
            #[cfg(feature = "compression")]
            {
                site.files.compressor =
                    compressor_threads.map(|threads| Compressor::new(threads, &mechanism.remote()));
            }
            #[cfg(feature = "basic-auth")]
            {
                site.logins =
                    login_threads.map(|threads| Logins::new(threads, &mechanism.remote()));
            }
            site.context.measures = measures || log.is_some();
            site.files.hosts.first_mut().options = file_options;
            let mut roots = (first_root..).map(Root);
            for host in hosts {
                let root = host.root.and_then(|_| roots.next());
                site.files.hosts.add(&host.names, FileHost { root, options: host.files });
            }
            site.context.responder.with_fallback = site.files.hosts.with_fallback();
            site.context.responder.fields = site.files.hosts.fields_of_errors();
            site.handlers.routes = routes;
            let (own, remote) = (metrics.clone(), mechanism.remote());
            (site.status, site.status_thread) = (status, status_thread);
            (site.context.metrics, site.context.log) = (metrics, log);
            site.context.responder.error_pages = error_pages;
            #[cfg(feature = "sandbox")]
            {
                site.sandbox = sandbox;
            }
            #[cfg(feature = "tls")]
            {
                site.redirect = redirect;
                serve(
                    || tls::run(mechanism, site, tls.map(|tls| tls.config)),
                    &may_start,
                    (&own, remote),
                )
            }
            #[cfg(not(feature = "tls"))]
            serve(|| mechanism.run(site), &may_start, (&own, remote))
        });
        let thread = thread.map_err(Error::Thread)?;
        match is_ready.recv() {
            Ok((backend, remote)) => Ok(Worker { backend, remote, start, thread: Some(thread) }),
            Err(_) => {
                Err(thread.join().map_or(Error::Panic, |end| end.err().unwrap_or(Error::Panic)))
            }
        }
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

/// Returns what a site needs to redirect to https, from its listeners at the addresses from number `first`.
#[cfg(feature = "tls")]
fn redirect(sockets: &[Vec<ListeningSocket>], first: usize) -> HttpsRedirect {
    let count = |sockets: &[Vec<ListeningSocket>]| sockets.iter().flatten().count() as u16;
    let listeners = count(&sockets[..first])..count(sockets);
    HttpsRedirect { listeners, port: sockets[0][0].address().port() }
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
