//! State of the ring, the epoll set and the syscall threads of a run; their system calls.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use evring_sim::{CallBy, Fault, SimCalls};
use rustix::io::Errno;
use shared_ring::Host;
use shared_ring::poller::Readiness;

use crate::armed::Armed;
use crate::call_ring::{Queues, RingWork, is_readable};
use crate::host;
use crate::workers::{BY_THREAD, Workers};

/// Numbers for which the ring has an operation.
const OPERATIONS: [i64; 7] = [
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_accept4,
    libc::SYS_close,
    libc::SYS_openat2,
    libc::SYS_preadv2,
];

/// The readiness that lets a read, and a write, proceed.
const DIRECTIONS: [Readiness; 2] = [Readiness::READ.union(Readiness::HANGUP), Readiness::WRITE];

/// See the module.
pub(crate) struct Machine {
    pub(crate) calls: SimCalls,
    pub(crate) workers: Workers,
    pub(crate) ring: Queues,
    pub(crate) armed: BTreeMap<RawFd, Armed>,
    looks: u64,
    has_ring: bool,
    /// The ring waits for the bell, by this name.
    bell_in_ring: Option<(u64, RawFd)>,
}

thread_local! {
    static MACHINE: RefCell<Option<Machine>> = const { RefCell::new(None) };
}

/// Begins a run.
pub(crate) fn begin(on: &evring_sim::Machine, has_ring: bool) {
    end();
    let machine = Machine {
        calls: SimCalls::new(on),
        workers: Workers::default(),
        ring: Queues::default(),
        armed: BTreeMap::new(),
        looks: 0,
        has_ring,
        bell_in_ring: None,
    };
    MACHINE.set(Some(machine));
}

/// Ends what the ring and the threads do.
pub(crate) fn end() {
    drop(MACHINE.take());
}

/// Accesses what the present run has.
pub(crate) fn machine<R>(access: impl FnOnce(&mut Machine) -> R) -> R {
    MACHINE.with_borrow_mut(|machine| access(machine.as_mut().expect("a run has begun")))
}

/// Returns the time of the machine.
pub(crate) fn now() -> Instant {
    host::machine().clock()
}

pub(crate) fn has_operation(number: u32) -> bool {
    OPERATIONS.contains(&i64::from(number))
}

/// Makes a system call that waits until something is so, at most for a timeout. Returns whether it is so.
pub(crate) fn wait_until(
    timeout: Option<Duration>,
    is_so: impl FnMut(&mut Machine) -> bool,
) -> Result<bool, Errno> {
    machine(|machine| machine.wait_until(timeout, is_so))
}

/// Enters the kernel, and waits there for so many completions, at most for a timeout. Returns how many submissions the
/// kernel has taken.
pub(crate) fn enter(wanted: usize, timeout: Option<Duration>) -> Result<u32, Errno> {
    machine(|machine| {
        if machine.calls.happens(Fault::Busy) {
            machine.calls.enter()?;
            return Ok(0);
        }
        let queued = machine.ring.submitted.len();
        let takes = match queued {
            1.. if machine.calls.happens(Fault::TakesFew) => machine.calls.below(queued),
            _ => queued,
        };
        for (name, work) in machine.ring.submitted.drain(..takes) {
            match work {
                // SAFETY: the caller of `CallRing::push` keeps the memory.
                RingWork::Call(job) => unsafe { machine.calls.begin(name, job, CallBy::Ring) },
                RingWork::Bell(fd) => machine.bell_in_ring = Some((name, fd)),
                RingWork::Poll(fd, direction) => {
                    machine.calls.begin_poll(name, fd, DIRECTIONS[direction as usize]);
                }
                RingWork::Watch(fd, direction) => {
                    machine.calls.begin_watch(name, fd, DIRECTIONS[direction as usize]);
                }
                RingWork::Cancel => machine.calls.cancel(name),
            }
        }
        // The kernel does not wait if it has not taken everything, or is interrupted.
        let is_short = takes < queued || machine.calls.happens(Fault::Interrupted);
        let timeout = if wanted == 0 || is_short { Some(Duration::ZERO) } else { timeout };
        machine.wait_until(timeout, |machine| machine.ring.land() >= wanted)?;
        Ok(takes as u32)
    })
}

impl Machine {
    /// Lets ring and threads go on. Returns whether they may at once go on further.
    fn process(&mut self) -> bool {
        let may_claim = self.workers.claim(&mut self.calls);
        self.calls.process();
        while let Some((name, result, more)) = self.calls.take() {
            match name & BY_THREAD {
                0 => self.ring.deferred.push_back((name, result as i32, more)),
                _ => self.workers.end((name & !BY_THREAD) as u32, result),
            }
        }
        if let Some((name, _)) = self.bell_in_ring.take_if(|(_, bell)| is_readable(*bell)) {
            self.ring.deferred.push_back((name, 1, false));
        }
        may_claim
    }

    fn wait_until(
        &mut self,
        timeout: Option<Duration>,
        mut is_so: impl FnMut(&mut Self) -> bool,
    ) -> Result<bool, Errno> {
        self.calls.enter()?;
        let until = timeout.and_then(|timeout| now().checked_add(timeout));
        loop {
            let continues = self.process();
            if is_so(self) {
                return Ok(true);
            }
            if timeout == Some(Duration::ZERO) || !continues && !self.calls.wait(until)? {
                self.process();
                return Ok(is_so(self));
            }
        }
    }

    /// Returns for which of reads and writes a descriptor is ready.
    pub(crate) fn ready(&self, fd: RawFd) -> [bool; 2] {
        let ready = self.calls.readiness(fd);
        DIRECTIONS.map(|direction| ready.intersects(direction))
    }

    /// No descriptor has an error queue.
    pub(crate) fn has_error(&self, _fd: RawFd) -> bool {
        false
    }

    /// Returns how often a descriptor has changed: any look may find that it has.
    pub(crate) fn changes(&mut self, _fd: RawFd) -> [u64; 2] {
        self.looks += 1;
        [self.looks; 2]
    }

    /// The machine fails the run if a call uses a number that is not open.
    pub(crate) fn is_open(&self, _fd: RawFd) -> bool {
        true
    }

    pub(crate) fn has_ring(&self) -> bool {
        self.has_ring
    }
}
