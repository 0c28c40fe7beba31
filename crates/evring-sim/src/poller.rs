//! The pollers of a simulated machine.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use foldhash::fast::FixedState;
use shared_ring::author::HintSource;
use shared_ring::poller::{DevPoll, InterestPoller, PollNow, Poller, Readiness, RtSig};
use shared_ring::{Errno, Fd};

use crate::fault::Fault;
use crate::machine::Machine;
use crate::number;
use crate::signals::SimSignals;
use crate::state::{SimState, WaitOutcome, is_hung_up, readiness};

macro_rules! pollers {
    ($($(#[$doc:meta])* $kind:ident = $name:literal, edges: $edges:literal, queue: $queue:literal,
       |$machine:pat_param, $max:pat_param| $new:expr;)*) => {
        /// A poller of a simulated machine.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum PollerKind { $($(#[$doc])* $kind,)* }

        impl PollerKind {
            /// Every poller.
            pub const ALL: &[PollerKind] = &[$(PollerKind::$kind),*];

            /// Returns its name.
            pub const fn name(self) -> &'static str {
                match self { $(PollerKind::$kind => $name,)* }
            }

            /// Returns whether it reports readiness once, when it begins.
            pub const fn is_edge_triggered(self) -> bool {
                match self { $(PollerKind::$kind => $edges,)* }
            }

            /// Returns whether it has a queue of events that can overflow.
            pub const fn has_queue(self) -> bool {
                match self { $(PollerKind::$kind => $queue,)* }
            }

            /// Opens it on a machine, with room for `max` events in its queue, if it has one.
            pub fn open(self, machine: &Machine, max: usize) -> Box<dyn Poller> {
                match self {
                    $(PollerKind::$kind => {
                        let ($machine, $max) = (machine, max);
                        Box::new($new)
                    })*
                }
            }
        }
    };
}

// The simulations and the tests of kernels take their pollers from this table.
pollers! {
    /// epoll, poll and select.
    Level = "level", edges: false, queue: false, |machine, _| SimPoller::<false>::new(machine);
    /// /dev/poll.
    DevPoll = "devpoll", edges: false, queue: false, |machine, _| {
        DevPoll::over(SimPoller::<true>::new(machine), machine.clone())
    };
    /// Declared interests (Banga), with a queue of hints.
    Interest = "interest", edges: true, queue: true, |machine, max| {
        InterestPoller::over(SimPoller::<true>::new(machine), machine.clone(), max)
    };
    /// epoll with EPOLLET.
    Edge = "edge", edges: true, queue: false, |machine, _| SimPoller::<true>::new(machine);
    /// Real-time signals. A machine has one such poller.
    RtSig = "rtsig", edges: true, queue: true, |machine, max| {
        RtSig::over(SimSignals::new(machine, max), machine.clone())
    };
}

/// A simulated interest set, level-triggered or edge-triggered.
pub struct SimPoller<const EDGE: bool> {
    machine: Machine,
    interests: HashMap<Fd, Readiness, FixedState>,
    members: Vec<Fd>,
    /// Edge-triggered only: descriptors that have changed.
    changed: Vec<Fd>,
    system_calls: u64,
}

impl<const EDGE: bool> SimPoller<EDGE> {
    /// Maximum number of events of one wait.
    const EVENTS: usize = 16;

    /// Creates an empty set on a machine.
    pub fn new(machine: &Machine) -> Self {
        SimPoller {
            machine: machine.clone(),
            interests: HashMap::default(),
            members: Vec::new(),
            changed: Vec::new(),
            system_calls: 0,
        }
    }

    /// Collects events. Returns whether there are any.
    fn collect(&mut self, state: &mut SimState, out: &mut Vec<(Fd, Readiness)>) -> bool {
        while let Some(fd) = state.take_changed() {
            let interest = self.interests.get(&fd).copied().unwrap_or_default();
            if EDGE && !interest.is_empty() && !self.changed.contains(&fd) {
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
            // A random start prevents starvation.
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
        let interest = self.interests.get(&fd).copied().unwrap_or_default();
        let mut ready = readiness(state, fd);
        if !is_hung_up(state, fd) {
            // Only edge-triggered sets report the end of a stream.
            let reported = if EDGE { interest | Readiness::HANGUP } else { interest };
            ready &= reported;
        }
        if interest.contains(Readiness::READ) && state.rng.fault(Fault::Spurious) {
            ready |= Readiness::READ;
        }
        if !ready.is_empty() && !interest.is_empty() {
            state.note(|| format!("{fd:?} is ready for {ready:?}"));
            out.push((fd, ready));
        }
    }
}

/// poll(2).
impl PollNow for Machine {
    fn poll_now(&mut self, array: &mut [libc::pollfd]) -> io::Result<()> {
        let mut state = self.state();
        state.enter();
        for entry in array {
            let fd = number::fd(entry.fd);
            let ready = readiness(&mut state, fd);
            let flags = [
                (Readiness::READ, libc::POLLIN),
                (Readiness::WRITE, libc::POLLOUT),
                (Readiness::HANGUP, libc::POLLRDHUP),
            ];
            let set = flags.iter().filter(|(kind, _)| ready.contains(*kind));
            let requested = set.fold(0, |all, (_, flag)| all | flag) & entry.events;
            let hung_up = if is_hung_up(&mut state, fd) { libc::POLLHUP } else { 0 };
            entry.revents = requested | hung_up;
        }
        if state.failure().is_some() { Err(Errno::CANCELED.into()) } else { Ok(()) }
    }
}

impl HintSource for SimPoller<true> {
    fn watch(&mut self, fd: Fd, _wanted: i16, _one: bool) -> io::Result<bool> {
        let is_new = self.interests.get(&fd).is_none_or(Readiness::is_empty);
        self.set(fd, Readiness::READ | Readiness::WRITE)?;
        Ok(is_new)
    }

    /// The program reports every close.
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

// SAFETY: `forget` removes the descriptor from all lists. Besides, it belongs to a simulated
// machine.
unsafe impl<const EDGE: bool> Poller for SimPoller<EDGE> {
    fn is_edge_triggered(&self) -> bool {
        EDGE
    }

    /// As for poll(2) and select(2).
    fn scans_all_fds(&self) -> bool {
        !EDGE
    }

    fn set(&mut self, fd: Fd, want: Readiness) -> io::Result<()> {
        self.system_calls += 1;
        let mut state = self.machine.state();
        state.kind(fd, "epoll_ctl")?;
        let previous = self.interests.insert(fd, want).unwrap_or_default();
        if previous.is_empty() && !want.is_empty() {
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
        self.interests.remove(&fd);
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
        while !self.collect(&mut state, out) {
            if timeout == Some(Duration::ZERO) || state.wait(until) == WaitOutcome::TimedOut {
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

#[cfg(test)]
mod tests {
    use shared_ring::Host;
    use shared_ring::sockets::ListenOptions;

    use super::*;
    use crate::{Faults, Plan};

    #[test]
    fn stream_that_only_its_peer_had_ended_counted_as_hung_up() {
        let plan = Plan { faults: Faults::NONE, ..Plan::default() };
        let mut machine = Machine::new(&plan);
        let options = ListenOptions::new(4);
        let (listener, at) = machine.listen(([127, 0, 0, 1], 0).into(), &options).unwrap();
        let peer = machine.manual_peer();
        let conn = peer.with(|net| net.connect(at)).expect("the listener has room");
        let socket = machine.accept(&listener).unwrap();
        let fd = number::of(&socket);
        let poll = |events| {
            let mut array = [libc::pollfd { fd: fd.raw(), events, revents: 0 }];
            machine.clone().poll_now(&mut array).unwrap();
            array[0].revents
        };
        let all = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;
        assert_eq!(poll(all), libc::POLLOUT);
        peer.with(|net| net.finish(&conn));
        assert_eq!(poll(all), all);
        assert_eq!(poll(libc::POLLOUT), libc::POLLOUT);
        machine.clone().shutdown(&socket);
        assert_eq!(poll(libc::POLLIN), libc::POLLIN | libc::POLLHUP);
        machine.close_unused(socket);
        machine.close_unused(listener);
        assert_eq!(machine.failure(), None);
    }

    #[test]
    fn table_says_how_pollers_report() {
        for kind in PollerKind::ALL {
            let poller = kind.open(&Machine::new(&Plan::default()), 1);
            assert_eq!(poller.is_edge_triggered(), kind.is_edge_triggered(), "{kind:?}");
        }
    }
}
