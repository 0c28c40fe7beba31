//! Workers that serve with the same settings.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

use evring::sockets::ListeningSocket;
use evring::{RemoteHandle, Stats};

use crate::server::error::Error;
#[cfg(feature = "tls")]
use crate::server::tls::LoadedTls;
use crate::site::log::LogWriter;
use crate::site::{DRAIN_TAG, RETIRE_TAG};

/// A thread that serves.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) backend: &'static str,
    pub(crate) remote: RemoteHandle,
    /// Starts serving. If it is dropped instead, the worker ends.
    pub(crate) start: Sender<()>,
    /// Taken by the thread that waits for it.
    pub(crate) thread: Option<JoinHandle<Result<Stats, Error>>>,
}

/// Workers that serve with the same settings, until others replace them.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) workers: Vec<Worker>,
    /// The addresses of the listeners, those that redirect to https last.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Whether these workers accept connections: the server ends with them.
    pub(crate) is_current: Arc<AtomicBool>,
    /// The workers have been notified that others take their place.
    pub(crate) is_retired: bool,
    /// Number of workers that have ended.
    pub(crate) ended: Arc<AtomicUsize>,
    /// Time for which the server still serves after a signal to stop.
    pub(crate) drain_delay: Duration,
    /// Clones of the sockets of all workers, while they accept.
    pub(crate) sockets: Vec<ListeningSocket>,
    /// Outlives the workers.
    pub(crate) writer: Option<LogWriter>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<LoadedTls>,
}

impl Generation {
    /// Returns the addresses of the listeners, without those that redirect to https.
    pub(crate) fn listen(&self) -> &[SocketAddr] {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return &self.addresses[..tls.first_redirecting];
        }
        &self.addresses
    }

    /// Returns whether all workers have ended; their threads then end at once.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire) == self.workers.len()
    }

    /// Makes the workers serve, as the current ones or not.
    pub(crate) fn start(&self, is_current: bool) {
        self.is_current.store(is_current, Ordering::Relaxed);
        for worker in &self.workers {
            // A worker that has failed meanwhile returns its error from `wait`.
            let _ = worker.start.send(());
        }
    }

    /// Ends each connection with its next response.
    pub(crate) fn drain(&self) {
        self.wake(DRAIN_TAG);
    }

    fn wake(&self, tag: u64) {
        for worker in &self.workers {
            // A worker with too many pending wake-ups drains when it stops.
            let _ = worker.remote.wake(tag);
        }
    }

    /// Opens the access logs again.
    pub(crate) fn reopen_log(&self) {
        self.writer.iter().for_each(LogWriter::reopen);
    }

    /// Stops accepting. The workers end when their last connections have closed; idle ones close soon. Further calls
    /// have no effect.
    pub(crate) fn retire(&mut self) {
        if std::mem::replace(&mut self.is_retired, true) {
            return;
        }
        self.is_current.store(false, Ordering::Relaxed);
        self.wake(RETIRE_TAG);
        self.workers.iter().for_each(|worker| worker.remote.retire());
        self.sockets.clear();
    }

    /// Stops the workers.
    pub(crate) fn stop(&mut self) {
        self.drain();
        // The workers accept what waits in the queues, and close them.
        self.sockets.clear();
        self.workers.iter().for_each(|worker| worker.remote.stop());
    }
}
