//! The event loop over a kernel.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use shared_ring::files::File;
use shared_ring::sockets::{ListenOptions, ListeningSocket};
use shared_ring::{Host, Kernel, KernelError, Submit};

use super::{Driver, FILE_OP_GRACE, Io, ListenerState};
use crate::wheel::after;
use crate::{Application, Commands, Config, RemoteHandle, StartError, Stats};

/// Opens the configured listeners.
pub(crate) fn open_listeners(
    host: &mut impl Host,
    config: &Config,
) -> Result<(Vec<ListenerState>, Vec<SocketAddr>), StartError> {
    let mut options = ListenOptions::new(config.backlog);
    options.reuse_port = config.reuse_port;
    options.buffers = config.socket_buffers;
    let mut listeners: Vec<ListenerState> = Vec::new();
    let mut addresses = Vec::new();
    let mut inherited = config.inherited.clone();
    for at in &config.listen {
        let (index, backlog) = (listeners.len() as u32, config.backlog);
        let position = inherited.iter().position(|socket| socket.address() == *at);
        let socket = position.map(|n| inherited.swap_remove(n));
        let is_shared = socket.as_ref().map(ListeningSocket::is_shared);
        let opened = match socket {
            Some(socket) => host.adopt(socket).map(|socket| (socket, *at)),
            None => host.listen(*at, &options),
        };
        match opened {
            Ok((socket, address)) => {
                // One that is adopted may have the limit of another configuration; 0 stands for none.
                let limit = config.max_unsent_bytes.or(position.map(|_| 0));
                if let Some(bytes) = limit {
                    // Without the option, connections have room until their buffers are full.
                    let _ = host.set_unsent_limit(&socket, bytes);
                }
                listeners.push(match is_shared {
                    Some(is_shared) => ListenerState::adopted(index, socket, backlog, is_shared),
                    None => ListenerState::new(index, socket, backlog),
                });
                addresses.push(address);
            }
            Err(error) => {
                let listeners = listeners.iter_mut().filter_map(ListenerState::take);
                listeners.for_each(|socket| host.close_unused(socket));
                return Err(StartError::Listen(*at, error));
            }
        }
    }
    Ok((listeners, addresses))
}

/// Opens the configured root directories.
pub(crate) fn open_roots(host: &mut impl Host, config: &Config) -> Result<Vec<File>, StartError> {
    let open = |path: &std::path::PathBuf| {
        host.open_directory(path).map_err(|error| StartError::Root(path.clone(), error))
    };
    config.roots.iter().map(open).collect()
}

/// Interval at which a stopping server resets remaining connections.
const DRAIN_RETRY: Duration = Duration::from_millis(100);

/// Runs a server until it is stopped. Calls `inspect` after each completion and each turn.
pub(crate) fn drive<K: Kernel, A: Application>(
    io: Io<K>,
    remote: RemoteHandle,
    app: A,
    inspect: impl FnMut(&Driver<K, A>),
) -> Result<Stats, KernelError> {
    let mut driver = Driver::new(app, io, remote);
    let served = driver.serve(inspect);
    driver.abandon(served.as_ref().err());
    served.map(|()| driver.io.stats())
}

impl<K: Kernel, A: Application> Driver<K, A> {
    fn serve(&mut self, mut inspect: impl FnMut(&Self)) -> Result<(), KernelError> {
        let mut drain_ends = None;
        self.set_backlogs();
        self.end_turn();
        while !self.is_done() {
            let now = self.io.kernel.now();
            let is_polling = now < self.io.busy_poll_ends;
            let until = if is_polling { Some(now) } else { self.until(drain_ends) };
            self.io.kernel.turn(until)?;
            while let Some(completion) = self.io.kernel.next() {
                self.complete(completion);
                inspect(self);
            }
            self.end_turn();
            inspect(self);
            self.drain(&mut drain_ends);
        }
        Ok(())
    }
}

impl<K: Submit, A: Application> Driver<K, A> {
    /// Sets the lengths of the backlogs of adopted sockets, when the server begins to serve.
    pub(crate) fn set_backlogs(&mut self) {
        for listener in &mut self.io.listeners {
            listener.set_adopted_backlog(&mut self.io.kernel);
        }
    }

    /// Resets the connections of a stopping server when the drain timeout is over; `ends` is the time of
    /// the next attempt. A server that retires waits for the last file operations as long as one that stops.
    pub(crate) fn drain(&mut self, ends: &mut Option<Instant>) {
        if self.io.stopping {
            let now = self.io.kernel.now();
            if self.io.drain_deadline.is_none() {
                self.io.drain_deadline = Some(after(now, self.io.config.drain_timeout));
                *ends = self.io.drain_deadline;
            }
            if ends.is_some_and(|at| now >= at) {
                self.stop_now();
                *ends = Some(now + DRAIN_RETRY);
            }
        } else if self.io.retiring {
            let since = self.io.empty_since.unwrap_or_else(|| self.io.kernel.now());
            self.io.empty_since = self.io.is_empty().then_some(since);
            *ends = self.io.empty_since.map(|at| at + FILE_OP_GRACE);
        }
    }

    /// Returns when the next wait must end.
    pub(crate) fn until(&self, drain_ends: Option<Instant>) -> Option<Instant> {
        let io = &self.io;
        let admit_per_turn = io.has_room() && !io.deferred.is_empty();
        if !io.revisits.is_empty() || !io.file_ops.finished.is_empty() || admit_per_turn {
            return Some(io.kernel.now());
        }
        let search = (!io.deferred.is_empty() && !io.stopping).then_some(io.next_search);
        let mut earliest = drain_ends;
        let mut note = |deadline: Option<Instant>| {
            if let Some(at) = deadline {
                earliest = Some(earliest.map_or(at, |earliest| earliest.min(at)));
            }
        };
        note(search);
        note(io.wheel.next());
        note(io.pause_ends.next());
        note(io.file_ops.next_look());
        note(io.deferred_reads.as_ref().and_then(|reads| reads.next_deadline()));
        note(io.load.overload_ends());
        io.listeners.iter().for_each(|listener| note(listener.retry()));
        earliest
    }
}
