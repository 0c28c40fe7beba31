//! The calls that the ring and the syscall threads of the present run make.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::time::Duration;

use evring_sim::{Machine, SimCalls};
use rustix::io::Errno;
use shared_ring::Host;

use crate::bell;
use crate::threads::Workers;

/// In a name: a syscall thread makes the call.
pub(crate) const BY_THREAD: u64 = 1 << 63;

/// See the module.
pub(crate) struct World {
    pub(crate) machine: Machine,
    pub(crate) calls: SimCalls,
    pub(crate) workers: Workers,
    /// Results of the ring that the program has not seen, as it has not entered the kernel, and those it can see.
    pub(crate) deferred: VecDeque<(u64, i32, bool)>,
    pub(crate) landed: VecDeque<(u64, i32, bool)>,
    pub(crate) has_ring: bool,
    /// The ring waits for the bell, by this name.
    pub(crate) bell_in_ring: Option<u64>,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Begins a run.
pub(crate) fn begin(machine: &Machine, has_ring: bool) {
    end();
    let world = World {
        machine: machine.clone(),
        calls: SimCalls::new(machine),
        workers: Workers::default(),
        deferred: VecDeque::new(),
        landed: VecDeque::new(),
        has_ring,
        bell_in_ring: None,
    };
    WORLD.set(Some(world));
}

/// Ends what the ring and the threads do.
pub(crate) fn end() {
    drop(WORLD.take());
}

/// Accesses what the present run has.
pub(crate) fn with<R>(access: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(|world| access(world.as_mut().expect("a run has begun")))
}

impl World {
    /// Lets ring and threads go on.
    pub(crate) fn process(&mut self) {
        self.workers.claim(&mut self.calls);
        self.calls.process();
        while let Some((name, result, more)) = self.calls.take() {
            match name & BY_THREAD {
                0 => self.deferred.push_back((name, result as i32, more)),
                _ => self.workers.end((name & !BY_THREAD) as u32, result),
            }
        }
        if bell::has_rung()
            && let Some(name) = self.bell_in_ring.take()
        {
            self.deferred.push_back((name, 1, false));
        }
    }

    /// Makes a system call that waits until something is so, at most for a timeout. Returns whether it is so.
    pub(crate) fn wait_until(
        &mut self,
        timeout: Option<Duration>,
        mut is_so: impl FnMut(&mut Self) -> bool,
    ) -> Result<bool, Errno> {
        self.calls.enter()?;
        let until = timeout.and_then(|timeout| self.machine.clock().checked_add(timeout));
        loop {
            self.process();
            if is_so(self) {
                return Ok(true);
            }
            if timeout == Some(Duration::ZERO) || !self.calls.wait(until)? {
                self.process();
                return Ok(is_so(self));
            }
        }
    }

    /// Returns for which of reads and writes a descriptor is ready.
    pub(crate) fn ready(&self, fd: RawFd) -> [bool; 2] {
        use shared_ring::poller::Readiness;
        let ready = self.calls.readiness(fd);
        [Readiness::READ | Readiness::HANGUP, Readiness::WRITE].map(|of| ready.intersects(of))
    }
}
