//! System calls by number: those that kernels of posted calls make, and those in flight in their rings and threads.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use shared_ring::Fd;
use shared_ring::author::{CallJob, System};
use shared_ring::poller::Readiness;

use crate::fault::Fault;
use crate::machine::Machine;
use crate::memory::MemoryHold;
use crate::number;
use crate::state::{Event, WaitOutcome, readiness};

/// Usual maximum time of a thread's file operation, in microseconds.
const MAX_FILE_OP_MICROS: usize = 5_000;

/// The maker of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallBy {
    /// A ring: the call ends when it can be made, or at once with `EAGAIN` if it must not wait.
    Ring,
    /// A thread: the same, and what is read from files takes time.
    Thread,
}

/// System calls in flight on a machine, each with a name. The machine checks their memory.
pub struct SimCalls {
    machine: Machine,
    serial: u64,
    in_flight: Vec<Flight>,
    done: VecDeque<(u64, isize, bool)>,
    /// Some that could end were not looked at.
    skipped: bool,
}

impl std::fmt::Debug for SimCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimCalls").field("in_flight", &self.in_flight.len()).finish_non_exhaustive()
    }
}

/// A call in flight.
#[derive(Debug)]
struct Flight {
    name: u64,
    kind: CallKind,
    by: CallBy,
    holds: Vec<MemoryHold>,
    serial: u64,
    /// An event of the machine ends it.
    is_timed: bool,
    is_cancelled: bool,
}

#[derive(Clone, Copy, Debug)]
enum CallKind {
    Call(CallJob),
    /// A wait until a descriptor is readable or writable.
    Poll(Fd, Readiness),
    /// A wait for room that reports changes, and the state that was reported.
    Watch(Fd, Readiness, u32),
}

impl SimCalls {
    /// Creates an empty set.
    pub fn new(machine: &Machine) -> Self {
        let machine = machine.clone();
        SimCalls {
            machine,
            serial: 0,
            in_flight: Vec::new(),
            done: VecDeque::new(),
            skipped: false,
        }
    }

    /// Begins a call.
    ///
    /// # Safety
    /// The memory of the arguments is valid until the call has ended ([`SimCalls::take`]).
    pub unsafe fn begin(&mut self, name: u64, job: CallJob, by: CallBy) {
        // SAFETY: by the caller's promise.
        let holds = unsafe { holds(&job) };
        let is_timed = by == CallBy::Thread && reads_disk(&job);
        self.push(name, CallKind::Call(job), by, holds);
        if is_timed && let Some(flight) = self.in_flight.last_mut() {
            flight.is_timed = true;
            let completion = Event::Operation(flight.serial);
            let used = number::fd(job.args[0] as RawFd);
            self.machine.state().start_file_op(used, MAX_FILE_OP_MICROS, completion);
        }
    }

    /// Begins to wait until a descriptor is readable or writable, or the peer has shut down its sending side. The result
    /// is that of poll(2).
    pub fn begin_poll(&mut self, name: u64, fd: RawFd, ready: Readiness) {
        self.push(name, CallKind::Poll(number::fd(fd), ready), CallBy::Ring, Vec::new());
    }

    /// Begins to wait for changes. The result is that of poll(2); more follow with each change, until it is cancelled.
    pub fn begin_watch(&mut self, name: u64, fd: RawFd, ready: Readiness) {
        self.push(name, CallKind::Watch(number::fd(fd), ready, 0), CallBy::Ring, Vec::new());
    }

    fn push(&mut self, name: u64, kind: CallKind, by: CallBy, holds: Vec<MemoryHold>) {
        if self.in_flight.iter().any(|flight| flight.name == name) {
            self.machine.fail(format!("the call {name:#x} begins although it is in flight"));
        }
        self.serial += 1;
        let serial = self.serial;
        self.skipped = true;
        self.in_flight.push(Flight {
            name,
            kind,
            by,
            holds,
            serial,
            is_timed: false,
            is_cancelled: false,
        });
    }

    /// Cancels a call, unless it has ended. It ends with `ECANCELED` in a ring and `EINTR` on a thread, or with its
    /// result if the cancellation comes too late.
    pub fn cancel(&mut self, name: u64) {
        let Some(at) = self.in_flight.iter().position(|flight| flight.name == name) else { return };
        let Flight { serial, is_timed, .. } = self.in_flight[at];
        let mut state = self.machine.state();
        // The disk is waited for without interruption, except for some opens.
        let is_too_late = match is_timed {
            true => state.is_blocked(Event::Operation(serial)) || !state.rng.once_in(4),
            false => state.rng.fault(Fault::CancelLoses),
        };
        drop(state);
        self.in_flight[at].is_cancelled = true;
        if !is_too_late {
            self.end_cancelled(serial);
        }
    }

    /// Lets calls go on, in any order, and not always all of them.
    pub fn process(&mut self) {
        let mut state = self.machine.state();
        state.check_freed();
        if state.failure().is_some() {
            return;
        }
        let due = std::mem::take(&mut state.due);
        while state.take_changed().is_some() {}
        drop(state);
        self.skipped = false;
        for serial in due {
            self.attempt(serial);
        }
        let waits = self.in_flight.iter().filter(|flight| !flight.is_timed);
        let mut serials: Vec<_> = waits.map(|flight| flight.serial).collect();
        while !serials.is_empty() {
            let mut state = self.machine.state();
            let (at, pauses) = (state.rng.below(serials.len()), state.rng.once_in(16));
            drop(state);
            if pauses {
                self.skipped = true;
                return;
            }
            self.attempt(serials.swap_remove(at));
        }
    }

    /// Takes the name and a result of a call or wait, and whether more results follow. An error is negative.
    pub fn take(&mut self) -> Option<(u64, isize, bool)> {
        self.done.pop_front()
    }

    /// Returns the number of calls in flight that something makes.
    pub fn in_flight(&self, by: CallBy) -> usize {
        self.in_flight.iter().filter(|flight| flight.by == by).count()
    }

    /// Begins a system call of the program: a little time passes, and peers run. Fails once a rule was broken.
    ///
    /// # Errors
    /// `ECANCELED` then.
    pub fn enter(&mut self) -> Result<(), Errno> {
        self.machine.state().enter();
        self.check()
    }

    /// Waits until something happens, at most until a time. Returns whether something did.
    ///
    /// # Errors
    /// `ECANCELED` once a rule was broken, such as that the program does not wait without end.
    pub fn wait(&mut self, until: Option<Instant>) -> Result<bool, Errno> {
        if self.skipped {
            return Ok(true);
        }
        let mut state = self.machine.state();
        let now = state.instant();
        let until: Option<Duration> =
            until.map(|until| state.now + until.saturating_duration_since(now));
        let outcome = state.wait(until);
        drop(state);
        self.check()?;
        Ok(outcome == WaitOutcome::Event)
    }

    fn check(&self) -> Result<(), Errno> {
        if self.machine.state().failure().is_some() { Err(Errno::CANCELED) } else { Ok(()) }
    }

    /// Returns for what a descriptor is ready.
    pub fn readiness(&self, fd: RawFd) -> Readiness {
        readiness(&mut self.machine.state(), number::fd(fd))
    }

    /// Returns whether a fault happens now, and counts it.
    pub fn happens(&self, fault: Fault) -> bool {
        self.machine.state().rng.fault(fault)
    }

    /// Returns a random number below `n`, which is not 0.
    pub fn below(&self, n: usize) -> usize {
        self.machine.state().rng.below(n)
    }

    /// Makes a call, or ends its wait, if that is possible now.
    fn attempt(&mut self, serial: u64) {
        let Some(at) = self.in_flight.iter().position(|flight| flight.serial == serial) else {
            return;
        };
        let flight = &self.in_flight[at];
        if flight.holds.iter().any(|hold| !hold.is_untouched()) {
            let message = format!("{:?}: the program has changed its memory", flight.kind);
            return self.machine.fail(message);
        }
        let (waits, is_cancelled) = (flight.waits(), flight.is_cancelled);
        let result = match flight.kind {
            CallKind::Poll(fd, ready) => match self.events(fd, ready) {
                0 => Err(Errno::AGAIN),
                events => Ok(events as usize),
            },
            CallKind::Watch(fd, ready, before) => {
                let now = self.events(fd, ready);
                self.in_flight[at].kind = CallKind::Watch(fd, ready, now);
                // Bytes may have come since others were received.
                let may_have_changed = ready != Readiness::WRITE && self.below(4) == 0;
                if now & !before != 0 || now != 0 && may_have_changed {
                    if self.happens(Fault::MultishotEnds) {
                        // Some kernels end it with an error when the completion queue is full.
                        let cancelled = -(Errno::CANCELED.raw_os_error() as isize);
                        return self.end(at, [now as isize, cancelled][self.below(2)]);
                    }
                    self.done.push_back((self.in_flight[at].name, now as isize, true));
                }
                Err(Errno::AGAIN)
            }
            CallKind::Call(job) => self.machine.clone().call(&job),
        };
        match result {
            Err(Errno::AGAIN | Errno::INPROGRESS) if waits => {
                if is_cancelled {
                    self.end_cancelled(serial);
                }
            }
            // In flight, a call is repeated that a signal for another one interrupts.
            Err(Errno::INTR) => self.skipped = true,
            Ok(result) => self.end(at, result as isize),
            Err(errno) => self.end(at, -(errno.raw_os_error() as isize)),
        }
    }

    /// Returns the events that a poll for readiness in a ring reports now.
    fn events(&self, fd: Fd, wanted: Readiness) -> u32 {
        let ready = readiness(&mut self.machine.state(), fd);
        let bits = [
            (Readiness::READ & wanted, libc::POLLIN),
            (Readiness::WRITE & wanted, libc::POLLOUT),
            (Readiness::HANGUP, libc::POLLRDHUP),
        ];
        let reported = bits.into_iter().filter(|(of, _)| ready.intersects(*of));
        reported.fold(0, |events, (_, bit)| events | bit as u32)
    }

    fn end_cancelled(&mut self, serial: u64) {
        let Some(at) = self.in_flight.iter().position(|flight| flight.serial == serial) else {
            return;
        };
        let errno = match self.in_flight[at].by {
            CallBy::Ring => Errno::CANCELED,
            CallBy::Thread => Errno::INTR,
        };
        self.end(at, -(errno.raw_os_error() as isize));
    }

    fn end(&mut self, at: usize, result: isize) {
        let Flight { name, serial, is_timed, .. } = self.in_flight.swap_remove(at);
        if is_timed {
            self.machine.state().end_file_op(Event::Operation(serial));
        }
        self.machine.state().note(|| format!("the call {name:#x} ends: {result}"));
        self.done.push_back((name, result, false));
    }
}

impl Drop for SimCalls {
    fn drop(&mut self) {
        if self.machine.state().failure().is_some() {
            return;
        }
        for Flight { name, kind, serial, holds, .. } in self.in_flight.drain(..) {
            if self.machine.state().is_blocked(Event::Operation(serial)) {
                // If it ever ends, it writes to its memory.
                self.machine.state().abandoned_memory.extend(holds);
            } else {
                self.machine.fail(format!("{kind:?} ({name:#x}) is in flight at the end"));
            }
        }
    }
}

impl Flight {
    /// Returns whether it stays in flight until it can be made.
    fn waits(&self) -> bool {
        let CallKind::Call(CallJob { number, args }) = self.kind else { return true };
        let flags = match i64::from(number) {
            libc::SYS_recvfrom | libc::SYS_sendto => args[3],
            libc::SYS_sendmsg => args[2],
            libc::SYS_openat2 | libc::SYS_preadv2 => return false,
            _ => 0,
        };
        flags & libc::MSG_DONTWAIT as usize == 0
    }
}

/// Returns whether a call waits for the disk.
fn reads_disk(job: &CallJob) -> bool {
    let disk = [libc::SYS_openat2, libc::SYS_preadv2, libc::SYS_pread64];
    disk.contains(&i64::from(job.number))
}

/// Returns holds of the memory that a call passes to the kernel.
///
/// # Safety
/// The memory is valid until they are released.
unsafe fn holds(job: &CallJob) -> Vec<MemoryHold> {
    let [_, b, c, d, ..] = job.args;
    // SAFETY: by the caller's promise.
    unsafe {
        match i64::from(job.number) {
            libc::SYS_recvfrom | libc::SYS_read => vec![MemoryHold::to_write(b as u64, c)],
            libc::SYS_sendto | libc::SYS_write | libc::SYS_connect => {
                vec![MemoryHold::to_read(b as u64, c)]
            }
            libc::SYS_sendmsg => MemoryHold::of_message(b as u64),
            libc::SYS_openat2 => {
                let path = CStr::from_ptr(b as *const _).to_bytes_with_nul();
                let path = MemoryHold::to_read(b as u64, path.len());
                vec![path, MemoryHold::to_read(c as u64, d)]
            }
            libc::SYS_preadv2 => {
                let piece = &*(b as *const libc::iovec);
                let header = MemoryHold::to_read(b as u64, size_of::<libc::iovec>());
                vec![header, MemoryHold::to_write(piece.iov_base as u64, piece.iov_len)]
            }
            // Sends that wait for the disk share the destination of their reads.
            libc::SYS_pread64 => vec![MemoryHold::to_share(b as u64, c)],
            _ => Vec::new(),
        }
    }
}
