//! The simulated machine: descriptors, calls, and what happens by itself.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::armed::Armed;
use super::call_ring::Queues;
use super::kernel_ring::KernelRing;
pub(super) use super::kernel_ring::{enter, has_operation};
use super::{active, processors, tasks};
use crate::call::Waits;
use crate::watch::Watch;

/// Descriptors, numbered from 0.
pub(super) const DESCRIPTORS: usize = 12;

/// The first of them may have an error queue.
pub(super) const WITH_ERRORS: usize = 4;

/// A number of a descriptor that is closed.
pub(super) const CLOSED: RawFd = DESCRIPTORS as RawFd;

/// The result of a call or wait for it.
pub(super) const NOT_OPEN: isize = -(libc::EBADF as isize);

/// Which threads the kernel starts, the heartbeat among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Starts {
    #[default]
    All,
    /// So many at a time, as at a limit of pids(7).
    UpTo(usize),
    /// All but one in so many.
    Some(u64),
}

/// The first number of calls that end the thread that makes them.
pub(super) const DIES: u32 = 1_050;

/// A call whose own result is `ECANCELED`, as that of timerfd_create(2) when the clock is set.
pub(super) const SAYS_CANCELLED: u32 = 1_040;

/// Steps without an end of a wait, after which none will come.
pub(super) const STANDSTILL: u32 = 1_000_000;

/// See the module.
#[derive(Default)]
pub(super) struct Machine {
    state: u64,
    pub(super) now_ns: u64,
    /// How often the clock was read.
    pub(super) readings: u64,
    /// For each descriptor and direction, how many calls find it ready.
    ready: [[u32; 2]; DESCRIPTORS],
    /// How often it became ready.
    changes: [[u64; 2]; DESCRIPTORS],
    /// It has an error queue, so it is reported as ready all the time.
    errors: [bool; DESCRIPTORS],
    /// Waits in a row that ended at once.
    pub(super) at_once: u32,
    /// Times of calls of some numbers; those of others are random.
    pub(super) call_ns: BTreeMap<u32, u64>,
    /// Effects of the calls whose completions were not taken; `None` of an entry that makes no call.
    effects: BTreeMap<usize, Option<u32>>,
    /// Threads at most.
    pub(super) max_threads: usize,
    /// No call ends that waits for others.
    pub(super) stands_still: bool,
    /// No thread dies: it waits in its call.
    pub(super) holds_deaths: bool,
    /// Which threads the kernel starts.
    pub(super) starts: Starts,
    pub(super) ring: Queues,
    pub(super) kernel_ring: KernelRing,
    pub(super) armed: BTreeMap<i32, Armed>,
    /// The bell of the pages that the notifier waits for, and what it wakes.
    pub(super) notifier: Option<(RawFd, Watch)>,
    /// It cannot be started.
    pub(super) refuses_notifier: bool,
}

thread_local! {
    static MACHINE: RefCell<Machine> = RefCell::default();
    /// The time of the machine's clock at the beginning.
    static START: Instant = Instant::now();
}

/// Accesses the machine of this thread.
pub(super) fn machine<R>(access: impl FnOnce(&mut Machine) -> R) -> R {
    MACHINE.with_borrow_mut(access)
}

/// Returns the time of the machine.
pub(super) fn now() -> Instant {
    let now_ns = machine(|machine| {
        machine.readings += 1;
        machine.now_ns
    });
    START.with(|start| *start) + Duration::from_nanos(now_ns)
}

/// Waits until something is so, at most for a timeout. Returns whether it is so.
pub(super) fn wait_until(
    timeout: Option<Duration>,
    mut is_so: impl FnMut(&mut Machine) -> bool,
) -> Result<bool, Errno> {
    let begin = machine(|machine| machine.now_ns);
    for steps in 0..STANDSTILL {
        let is_so = machine(&mut is_so);
        if timeout.is_none() {
            let at_once = machine(|machine| {
                machine.at_once = if is_so && steps == 0 { machine.at_once + 1 } else { 0 };
                machine.at_once
            });
            assert!(at_once < 1_000, "the owner spins");
        }
        let time = machine(|machine| Duration::from_nanos(machine.now_ns - begin));
        if is_so || timeout.is_some_and(|timeout| time >= timeout) {
            return Ok(is_so);
        }
        step();
    }
    panic!("standstill: nothing ends the wait");
}

/// Lets something happen. The machine must not be in use.
pub(super) fn step() {
    if machine(Machine::happen) {
        let turns = machine(|machine| machine.random(4));
        (0..=turns).for_each(|_| tasks::run_any());
    }
}

impl Machine {
    pub(super) fn reset(&mut self, seed: u64) {
        *self =
            Machine { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, ..Machine::default() };
        // Those of transfers have none.
        self.errors = std::array::from_fn(|fd| fd < WITH_ERRORS && self.random(2) == 0);
        tasks::reset();
        processors::reset();
        active::reset();
    }

    /// Returns a number below a bound (xorshift64*).
    pub(super) fn random(&mut self, below: u64) -> u64 {
        // A test without a seed has one.
        self.state = self.state.max(1);
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % below
    }

    /// Lends the memory of a call, until its completion is taken.
    pub(super) fn lend(&mut self, call: usize) {
        assert!(self.effects.insert(call, Some(0)).is_none());
    }

    /// Notes that an entry that only waits makes no call.
    pub(super) fn makes_no_call(&mut self, call: usize, waits: Waits) {
        if let Waits::UntilReady(..) = waits {
            self.effects.insert(call, None);
        }
    }

    /// Returns how often a call had its effect whose memory is lent.
    pub(super) fn effects(&self, call: usize) -> Option<u32> {
        *self.effects.get(&call).expect("its memory is lent")
    }

    /// Takes the memory of a call back. Returns how often it had its effect.
    pub(super) fn take_back(&mut self, call: usize) -> Option<u32> {
        self.effects.remove(&call).expect("its memory was lent")
    }

    /// Makes a call, unless a descriptor is not ready. Its arguments are its number, the descriptor and the
    /// direction, whether the ring must not wait, and the other end of a transfer, counted from 1.
    pub(super) fn call(&mut self, number: u32, args: &[usize; 6]) -> Option<isize> {
        let [call, fd, direction, _, other_end, _] = *args;
        self.now_ns += match self.call_ns.get(&number) {
            Some(call_ns) => *call_ns,
            None => 50 + self.random(400) + if self.random(64) == 0 { 80_000 } else { 0 },
        };
        if number == SAYS_CANCELLED {
            return Some(-(libc::ECANCELED as isize));
        }
        let effects = self.effects.get_mut(&call).expect("its memory was taken back");
        if (1_010..1_030).contains(&number) {
            if fd == CLOSED as usize {
                return Some(NOT_OPEN);
            }
            let ends =
                [Some((fd, direction)), other_end.checked_sub(1).map(|fd| (fd, 1 - direction))];
            let ends = || ends.into_iter().flatten();
            if ends().any(|(fd, direction)| self.ready[fd][direction] == 0) {
                return None;
            }
            ends().for_each(|(fd, direction)| self.ready[fd][direction] -= 1);
        }
        *effects = effects.map(|effects| effects + 1);
        Some(call as isize)
    }

    /// Returns whether a call could be made now by a thread that waits in it.
    pub(super) fn waits_no_longer(&mut self, number: u32) -> bool {
        // Calls that wait for anything take a while.
        number < 1_020 || !self.stands_still && (number < 1_030 || self.random(16) == 0)
    }

    /// Returns for which of reads and writes a descriptor is ready.
    pub(super) fn ready(&self, fd: RawFd) -> [bool; 2] {
        self.ready[fd as usize].map(|calls| calls > 0)
    }

    /// Returns whether a descriptor is reported as ready for everything, whether it is or not.
    pub(super) fn has_error(&self, fd: RawFd) -> bool {
        self.errors[fd as usize]
    }

    /// Returns how often a descriptor became ready for reads and for writes.
    pub(super) fn changes(&self, fd: RawFd) -> [u64; 2] {
        self.changes[fd as usize]
    }

    pub(super) fn is_open(&self, fd: RawFd) -> bool {
        fd != CLOSED
    }

    pub(super) fn has_ring(&self) -> bool {
        true
    }

    /// Returns whether no thread can be started now, beside so many.
    pub(super) fn refuses_thread(&mut self, living: usize) -> bool {
        match self.starts {
            Starts::All => false,
            Starts::UpTo(max) => living >= max,
            Starts::Some(one_in) => self.random(one_in) == 0,
        }
    }

    /// Lets something happen. Returns whether a thread can run.
    fn happen(&mut self) -> bool {
        self.now_ns += 10 + self.random(200);
        match self.random(4) {
            0 if self.stands_still => {}
            0 => {
                let (fd, direction) = (self.random(DESCRIPTORS as u64), self.random(2));
                let ready = &mut self.ready[fd as usize][direction as usize];
                *ready = (*ready + 1).min(3);
                self.changes[fd as usize][direction as usize] += 1;
            }
            1 => self.step_ring(),
            _ => return true,
        }
        false
    }

    /// Panics if something is on its way.
    pub(super) fn assert_idle(&self) {
        tasks::assert_idle();
        assert!(self.effects.is_empty(), "memory of {:?}", self.effects);
        let names: BTreeSet<_> = self.in_ring().collect();
        assert!(names.is_empty(), "in the ring: {names:?}");
    }
}
