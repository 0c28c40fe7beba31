//! The loop over a kernel.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use shared_ring::{Fault, File, Host, Kernel, ListenOptions, Submit};

use super::io::after;
use super::{Driver, Gate, Io};
use crate::{Application, Commands, Config, Remote, StartError, Stats};

/// Opens the listeners that the configuration asks for.
pub(crate) fn gates(
    host: &mut impl Host,
    config: &Config,
) -> Result<(Vec<Gate>, Vec<SocketAddr>), StartError> {
    let options = ListenOptions {
        backlog: config.backlog,
        reuse_port: config.reuse_port,
        buffers: config.sockets,
    };
    let mut gates: Vec<Gate> = Vec::new();
    let mut addresses = Vec::new();
    for at in &config.listen {
        match host.listen(*at, &options) {
            Ok((socket, address)) => {
                gates.push(Gate::new(gates.len() as u32, socket, config.backlog));
                addresses.push(address);
            }
            Err(error) => {
                let listeners = gates.iter_mut().filter_map(Gate::take);
                listeners.for_each(|socket| host.discard(socket));
                return Err(StartError::Listen(*at, error));
            }
        }
    }
    Ok((gates, addresses))
}

/// Opens the directories that the configuration names.
pub(crate) fn roots(host: &mut impl Host, config: &Config) -> Result<Vec<File>, StartError> {
    let open = |path: &std::path::PathBuf| {
        host.directory(path).map_err(|error| StartError::Root(path.clone(), error))
    };
    config.roots.iter().map(open).collect()
}

/// How often a stopping server looks for what could not end at once.
const REST: Duration = Duration::from_millis(100);

/// How long it does so: file work on a file system that hangs does not end at all.
pub(super) const GRACE: Duration = Duration::from_secs(1);

/// Serves until stopped.
pub(crate) fn drive<K: Kernel, A: Application>(
    io: Io<K>,
    remote: Remote,
    app: A,
) -> Result<Stats, Fault> {
    let mut driver = Driver::new(app, io, remote);
    let served = driver.serve();
    driver.abandon(served.as_ref().err());
    served.map(|()| driver.io.stats())
}

impl<K: Kernel, A: Application> Driver<K, A> {
    fn serve(&mut self) -> Result<(), Fault> {
        let mut drain_ends = None;
        self.end_turn();
        while !self.is_done() {
            let until = self.until(drain_ends);
            self.io.kernel.turn(until)?;
            while let Some(completion) = self.io.kernel.next() {
                self.complete(completion);
                #[cfg(feature = "sim")]
                self.inspect();
            }
            self.end_turn();
            #[cfg(feature = "sim")]
            self.inspect();
            self.drain(&mut drain_ends);
        }
        Ok(())
    }
}

impl<K: Submit, A: Application> Driver<K, A> {
    /// Bounds the time that a stopping server gives its connections; `ends` is when it is over.
    pub(crate) fn drain(&mut self, ends: &mut Option<Instant>) {
        if self.io.stopping {
            let now = self.io.kernel.now();
            let end = *self.io.drained.get_or_insert(after(now, self.io.config.drain));
            if now >= *ends.get_or_insert(end) {
                self.stop_now();
                *ends = Some(now + REST);
            }
        }
    }

    /// Until when to wait at most.
    pub(crate) fn until(&self, drain_ends: Option<Instant>) -> Option<Instant> {
        let io = &self.io;
        let lets_in = io.has_room() && !io.aside.is_empty();
        if !io.again.is_empty() || !io.ended_works.is_empty() || lets_in {
            return Some(io.kernel.now());
        }
        let search = (!io.aside.is_empty() && !io.stopping).then_some(io.next_search);
        let retries = io.gates.iter().filter_map(Gate::retry);
        retries.chain(search).chain(io.wheel.next()).chain(drain_ends).chain(io.load.ends()).min()
    }
}
