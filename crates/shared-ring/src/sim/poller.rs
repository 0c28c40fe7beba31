//! A poller that plays epoll, level-triggered or edge-triggered.

use std::io;
use std::time::Duration;

use super::fault::Fault;
use super::machine::Machine;
use super::state::{DescriptorKind, Passed, SimState};
use super::stream::End;
use crate::interest::HintSource;
use crate::poller::{DevPoll, InterestPoller, PollNow, Poller, Readiness};
use crate::{Errno, Fd, Table};

/// A simulated interest set.
pub struct SimPoller<const EDGE: bool> {
    machine: Machine,
    wanted: Table<Readiness>,
    members: Vec<Fd>,
    /// With edges: descriptors of which something has changed.
    changed: Vec<Fd>,
    system_calls: u64,
}

impl<const EDGE: bool> SimPoller<EDGE> {
    /// Most events taken by one wait.
    const EVENTS: usize = 16;

    /// Makes an empty set on a machine.
    pub fn new(machine: &Machine) -> Self {
        SimPoller {
            machine: machine.clone(),
            wanted: Table::default(),
            members: Vec::new(),
            changed: Vec::new(),
            system_calls: 0,
        }
    }

    /// Takes up what has changed; whether something may be ready.
    fn look(&mut self, state: &mut SimState, out: &mut Vec<(Fd, Readiness)>) -> bool {
        while let Some(fd) = state.take_changed() {
            let wanted = self.wanted.get(fd.index()).copied().unwrap_or_default();
            if EDGE && !wanted.is_empty() && !self.changed.contains(&fd) {
                self.changed.push(fd);
            }
        }
        if EDGE {
            while out.len() < Self::EVENTS && !self.changed.is_empty() {
                let at = state.rng.below(self.changed.len());
                let fd = self.changed.swap_remove(at);
                self.report(state, fd, out);
            }
        } else {
            // From anywhere on, so that none has to wait for ever.
            let start = state.rng.below(self.members.len().max(1));
            for at in 0..self.members.len() {
                if out.len() == Self::EVENTS {
                    break;
                }
                self.report(state, self.members[(start + at) % self.members.len()], out);
            }
        }
        !out.is_empty()
    }

    fn report(&self, state: &mut SimState, fd: Fd, out: &mut Vec<(Fd, Readiness)>) {
        let wanted = self.wanted.get(fd.index()).copied().unwrap_or_default();
        let mut ready = readiness(state, fd);
        if ready != Readiness::all() {
            // The end of a stream is reported only to those who ask for edges.
            let reported = if EDGE { wanted | Readiness::HANGUP } else { wanted };
            ready &= reported;
        }
        if wanted.contains(Readiness::READ) && state.rng.fault(Fault::Spurious) {
            ready |= Readiness::READ;
        }
        if !ready.is_empty() && !wanted.is_empty() {
            state.note(|| format!("{fd:?} is ready to {ready:?}"));
            out.push((fd, ready));
        }
    }
}

/// What a descriptor is ready for.
pub(super) fn readiness(state: &mut SimState, fd: Fd) -> Readiness {
    let mut ready = Readiness::empty();
    match state.what(fd, "poll") {
        Ok(DescriptorKind::Listener(listener)) => {
            let listener = *listener;
            ready.set(Readiness::READ, state.has_waiting(listener));
        }
        Ok(DescriptorKind::Connected(end)) => {
            let end = *end;
            ready = of_connection(state, end);
        }
        Ok(DescriptorKind::Refused(_)) => ready = Readiness::all(),
        Ok(DescriptorKind::Event(counter)) => {
            let count = counter.load(std::sync::atomic::Ordering::Acquire);
            ready.set(Readiness::READ, count > 0);
        }
        _ => {}
    }
    ready
}

fn of_connection(state: &mut SimState, end: End) -> Readiness {
    let connection = state.of(end);
    let mut ready = Readiness::empty();
    ready.set(Readiness::READ, connection.can_read(end.side));
    ready.set(Readiness::WRITE, connection.can_write(end.side));
    let other = 1 - end.side;
    let ended = connection.is_finished(other) && connection.unacked_bytes(other) == 0;
    ready.set(Readiness::HANGUP, ended);
    if connection.is_broken() || ended && connection.is_finished(end.side) {
        ready = Readiness::all();
    }
    connection.ask_for_room(end.side);
    ready
}

/// poll(2), on the whole array at once.
impl PollNow for Machine {
    fn poll_now(&mut self, array: &mut [libc::pollfd]) -> io::Result<()> {
        let mut state = self.state();
        state.enter();
        for entry in array {
            let ready = readiness(&mut state, Fd::from_raw(entry.fd));
            let flags = [
                (Readiness::READ, libc::POLLIN),
                (Readiness::WRITE, libc::POLLOUT),
                (Readiness::HANGUP, libc::POLLRDHUP),
                (Readiness::all(), libc::POLLHUP),
            ];
            let of = flags.iter().filter(|(what, _)| ready.contains(*what));
            let state = of.fold(0, |state, (_, flag)| state | flag);
            entry.revents = state & (entry.events | libc::POLLHUP);
        }
        if state.failure().is_some() { Err(Errno::CANCELED.into()) } else { Ok(()) }
    }
}

/// /dev/poll, on a simulated machine.
pub type SimDevPoll = DevPoll<SimPoller<true>, Machine>;

impl SimDevPoll {
    /// Makes an empty set on a machine.
    pub fn simulated(machine: &Machine) -> Self {
        DevPoll::over(SimPoller::new(machine), machine.clone())
    }
}

/// Banga's interface, on a simulated machine.
pub type SimInterest = InterestPoller<SimPoller<true>, Machine>;

impl SimInterest {
    /// Makes empty sets on a machine, with a queue of at most so many hints.
    pub fn simulated(machine: &Machine, hints: usize) -> Self {
        InterestPoller::over(SimPoller::new(machine), machine.clone(), hints)
    }
}

impl HintSource for SimPoller<true> {
    fn watch(&mut self, fd: Fd, _wanted: i16, _one: bool) -> io::Result<bool> {
        let is_new = self.wanted.at(fd.index()).is_empty();
        self.set(fd, Readiness::READ | Readiness::WRITE)?;
        Ok(is_new)
    }

    /// Whoever closes has said so.
    fn is_watched(&mut self, _fd: Fd) -> io::Result<bool> {
        Ok(true)
    }

    fn forget(&mut self, fd: Fd) {
        Poller::forget(self, fd);
    }

    fn wait(&mut self, timeout: Option<Duration>, _: usize, out: &mut Vec<Fd>) -> io::Result<()> {
        let mut edges = Vec::new();
        Poller::wait(self, timeout, &mut edges)?;
        out.extend(edges.iter().map(|(fd, _)| *fd));
        Ok(())
    }

    fn system_calls(&self) -> u64 {
        Poller::system_calls(self)
    }
}

// SAFETY: `forget` takes the number out of all lists. Besides, it is one of a simulated machine.
unsafe impl<const EDGE: bool> Poller for SimPoller<EDGE> {
    const EDGE: bool = EDGE;
    /// As poll and select do.
    const SCANS_ALL_FDS: bool = !EDGE;

    fn set(&mut self, fd: Fd, want: Readiness) -> io::Result<()> {
        self.system_calls += 1;
        let mut state = self.machine.state();
        state.what(fd, "epoll_ctl")?;
        let had = std::mem::replace(self.wanted.at(fd.index()), want);
        if had.is_empty() && !want.is_empty() {
            self.members.push(fd);
        } else if want.is_empty() {
            self.members.retain(|member| *member != fd);
        }
        if EDGE && !want.is_empty() && !self.changed.contains(&fd) {
            self.changed.push(fd);
        }
        Ok(())
    }

    fn forget(&mut self, fd: Fd) {
        *self.wanted.at(fd.index()) = Readiness::empty();
        self.members.retain(|member| *member != fd);
        self.changed.retain(|changed| *changed != fd);
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        out: &mut Vec<(Fd, Readiness)>,
    ) -> io::Result<()> {
        self.system_calls += 1;
        let machine = self.machine.clone();
        let mut state = machine.state();
        state.enter();
        let until = timeout.map(|timeout| state.now + timeout);
        if state.rng.fault(Fault::Interrupted) {
            return Ok(());
        }
        while !self.look(&mut state, out) {
            if timeout == Some(Duration::ZERO) || state.wait(until) == Passed::Over {
                break;
            }
            if state.failure().is_some() {
                return Err(Errno::CANCELED.into());
            }
        }
        if state.failure().is_some() { Err(Errno::CANCELED.into()) } else { Ok(()) }
    }

    fn system_calls(&self) -> u64 {
        self.system_calls
    }
}
