//! The loop over a kernel.

use std::collections::VecDeque;
use std::iter;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use shared_ring::{Completion, Fault, File, Host, Kernel, Kind, ListenOptions, Outcome, Submit};

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
            Ok((fd, address)) => {
                gates.push(Gate::new(gates.len() as u32, fd));
                addresses.push(address);
            }
            Err(error) => {
                gates.iter().for_each(|gate| host.discard(gate.fd));
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

/// Whether a batch should be left for what has landed since.
pub trait Interrupts {
    /// Asked between two callbacks; no system call.
    fn wanted(&mut self) -> bool;
}

/// A mechanism whose loop works through each batch to its end.
pub(crate) struct Never;

impl Interrupts for Never {
    fn wanted(&mut self) -> bool {
        false
    }
}

/// Room for the rest of a batch that was left for new connections.
const BATCH: usize = 512;

/// How many connections may come before the rest of a batch.
const AHEAD: usize = 16;

/// How long a stopping server waits for what can't end at once.
const REST: Duration = Duration::from_millis(100);

/// Serves until stopped.
pub(crate) fn drive<K: Kernel, A: Application>(
    io: Io<K>,
    remote: Remote,
    app: A,
    interrupts: &mut impl Interrupts,
) -> Result<Stats, Fault> {
    let mut driver = Driver::new(app, io, remote);
    let (mut urgent, mut rest) = (VecDeque::with_capacity(AHEAD), VecDeque::with_capacity(BATCH));
    let mut drain_ends = None;
    driver.end_turn();
    while !driver.is_done() {
        let until = driver.until(drain_ends);
        driver.io.kernel.turn(until)?;
        let mut ahead = 0;
        while let Some(completion) =
            urgent.pop_front().or_else(|| rest.pop_front()).or_else(|| driver.io.kernel.next())
        {
            driver.complete(completion);
            if ahead < AHEAD && interrupts.wanted() {
                driver.io.stats.interruptions += 1;
                driver.io.kernel.reap();
                let landed = iter::from_fn(|| driver.io.kernel.next());
                ahead += accepts_first(landed, &mut urgent, &mut rest);
            }
        }
        driver.end_turn();
        driver.drain(&mut drain_ends);
    }
    Ok(driver.io.stats())
}

/// Parts new connections from the rest, of this turn and of what has landed since, and returns how
/// many those are.
fn accepts_first(
    landed: impl Iterator<Item = Completion>,
    urgent: &mut VecDeque<Completion>,
    rest: &mut VecDeque<Completion>,
) -> usize {
    let before = urgent.len();
    for completion in landed {
        let accept = completion.token.kind() == Kind::Accept;
        if accept && matches!(completion.outcome, Outcome::Accepted(_)) && !completion.last {
            urgent.push_back(completion);
        } else {
            rest.push_back(completion);
        }
    }
    urgent.len() - before
}

impl<K: Submit, A: Application> Driver<K, A> {
    /// Bounds the time that a stopping server gives its connections; `ends` is when it is over.
    pub(crate) fn drain(&mut self, ends: &mut Option<Instant>) {
        if self.io.stopping {
            let now = self.io.kernel.now();
            let end = after(now, self.io.config.drain);
            if now >= *ends.get_or_insert(end) {
                self.stop_now();
                // What can't end at once is looked at again then.
                *ends = Some(end.max(now + REST));
            }
        }
    }

    /// Until when to wait at most.
    pub(crate) fn until(&self, drain_ends: Option<Instant>) -> Option<Instant> {
        let io = &self.io;
        if !io.again.is_empty() || !io.ended_works.is_empty() {
            return Some(io.kernel.now());
        }
        let retries = io.gates.iter().filter_map(Gate::retry);
        retries.chain(io.wheel.next()).chain(drain_ends).min()
    }
}
