//! A poller that plays epoll, level-triggered or edge-triggered.

use std::io;
use std::time::Duration;

use super::fault::Fault;
use super::machine::Machine;
use super::stream::End;
use super::world::{Passed, What, World};
use crate::interest::Hinting;
use crate::poller::{Ask, DevPoll, Interest, Poller, Readiness};
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
    fn look(&mut self, world: &mut World, out: &mut Vec<(Fd, Readiness)>) -> bool {
        while let Some(fd) = world.take_stirred() {
            let wanted = self.wanted.get(fd.index()).copied().unwrap_or_default();
            if EDGE && !wanted.is_empty() && !self.changed.contains(&fd) {
                self.changed.push(fd);
            }
        }
        if EDGE {
            while out.len() < Self::EVENTS && !self.changed.is_empty() {
                let at = world.dice.below(self.changed.len());
                let fd = self.changed.swap_remove(at);
                self.report(world, fd, out);
            }
        } else {
            // From anywhere on, so that none has to wait for ever.
            let start = world.dice.below(self.members.len().max(1));
            for at in 0..self.members.len() {
                if out.len() == Self::EVENTS {
                    break;
                }
                self.report(world, self.members[(start + at) % self.members.len()], out);
            }
        }
        !out.is_empty()
    }

    fn report(&self, world: &mut World, fd: Fd, out: &mut Vec<(Fd, Readiness)>) {
        let wanted = self.wanted.get(fd.index()).copied().unwrap_or_default();
        let mut ready = readiness(world, fd);
        if ready != Readiness::all() {
            // The end of a stream is reported only to those who ask for edges.
            let reported = if EDGE { wanted | Readiness::HANGUP } else { wanted };
            ready &= reported;
        }
        if wanted.contains(Readiness::READ) && world.dice.fault(Fault::Spurious) {
            ready |= Readiness::READ;
        }
        if !ready.is_empty() && !wanted.is_empty() {
            world.note(|| format!("{fd:?} is ready to {ready:?}"));
            out.push((fd, ready));
        }
    }
}

/// What a descriptor is ready for.
pub(super) fn readiness(world: &mut World, fd: Fd) -> Readiness {
    let mut ready = Readiness::empty();
    match world.what(fd, "poll") {
        Ok(What::Listener(listener)) => {
            let listener = *listener;
            ready.set(Readiness::READ, world.has_waiting(listener));
        }
        Ok(What::Connected(end)) => {
            let end = *end;
            ready = of_connection(world, end);
        }
        Ok(What::Refused(_)) => ready = Readiness::all(),
        Ok(What::Event(counter)) => {
            let count = counter.load(std::sync::atomic::Ordering::Acquire);
            ready.set(Readiness::READ, count > 0);
        }
        _ => {}
    }
    ready
}

fn of_connection(world: &mut World, end: End) -> Readiness {
    let connection = world.of(end);
    let mut ready = Readiness::empty();
    ready.set(Readiness::READ, connection.can_read(end.side));
    ready.set(Readiness::WRITE, connection.can_write(end.side));
    let other = 1 - end.side;
    let ended = connection.is_finished(other) && connection.unacknowledged(other) == 0;
    ready.set(Readiness::HANGUP, ended);
    if connection.is_broken() || ended && connection.is_finished(end.side) {
        ready = Readiness::all();
    }
    connection.ask_for_room(end.side);
    ready
}

/// poll(2), on the whole array at once.
impl Ask for Machine {
    fn ask(&mut self, array: &mut [libc::pollfd]) -> io::Result<()> {
        let mut world = self.world();
        world.enter();
        for entry in array {
            let ready = readiness(&mut world, Fd::from_raw(entry.fd));
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
        if world.failure().is_some() { Err(Errno::CANCELED.into()) } else { Ok(()) }
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
pub type SimInterest = Interest<SimPoller<true>, Machine>;

impl SimInterest {
    /// Makes empty sets on a machine, with a queue of at most so many hints.
    pub fn simulated(machine: &Machine, hints: usize) -> Self {
        Interest::over(SimPoller::new(machine), machine.clone(), hints)
    }
}

impl Hinting for SimPoller<true> {
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

    fn wait(&mut self, most: Option<Duration>, _: usize, out: &mut Vec<Fd>) -> io::Result<()> {
        let mut happened = Vec::new();
        Poller::wait(self, most, &mut happened)?;
        out.extend(happened.iter().map(|(fd, _)| *fd));
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
    const SCANS: bool = !EDGE;

    fn set(&mut self, fd: Fd, want: Readiness) -> io::Result<()> {
        self.system_calls += 1;
        let mut world = self.machine.world();
        world.what(fd, "epoll_ctl")?;
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

    fn wait(&mut self, most: Option<Duration>, out: &mut Vec<(Fd, Readiness)>) -> io::Result<()> {
        self.system_calls += 1;
        let machine = self.machine.clone();
        let mut world = machine.world();
        world.enter();
        let until = most.map(|most| world.now + most);
        if world.dice.fault(Fault::Interrupted) {
            return Ok(());
        }
        while !self.look(&mut world, out) {
            if most == Some(Duration::ZERO) || world.wait(until) == Passed::Over {
                break;
            }
            if world.failure().is_some() {
                return Err(Errno::CANCELED.into());
            }
        }
        if world.failure().is_some() { Err(Errno::CANCELED.into()) } else { Ok(()) }
    }

    fn system_calls(&self) -> u64 {
        self.system_calls
    }
}
