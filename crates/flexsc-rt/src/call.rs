//! A system call as it is posted: number, arguments, and what it may wait for.

use std::os::fd::RawFd;

use crate::object::{Kind, Object};
use crate::registered::FilePlace;

/// The executor of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Executor {
    /// The owner of the pages, at [`Pages::wait`](crate::Pages::wait).
    InPlace,
    /// A syscall thread (section 3.2.1).
    Threads,
    /// io_uring. Calls for which the ring or the kernel has no operation are made by a syscall thread.
    Ring,
    /// The owner and the syscall threads at a time: the entries of a batch are divided by pages, and the owner
    /// takes back what no thread has begun. With one active thread at most, the owner alone.
    Shared,
}

/// The events for which a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Waits {
    /// For a disk at most. Any executor may make the call; the cheapest one does.
    Bounded,
    /// For a descriptor to be ready. The call returns `EAGAIN` (or `EINPROGRESS`) if it is not, and
    /// is then repeated when it is. No thread waits. Calls on one stream have no order among them, unless each is posted
    /// after the last one has ended.
    Ready(RawFd, Direction),
    /// For a descriptor to be ready. The call is made once it is, and does not block then.
    AfterReady(RawFd, Direction),
    /// For a descriptor to be ready, and no call is made: the result is 0, or why it cannot be waited
    /// for. The number and a pin have no effect.
    UntilReady(RawFd, Direction),
    /// For a descriptor to be ready, but the call itself blocks, so a syscall thread makes it once
    /// the descriptor is ready. It makes one call at a time for each descriptor and direction, and as many in all as may
    /// wait indefinitely.
    ReadyThenBlocks(RawFd, Direction),
    /// For anything, without limit. A syscall thread makes the call and waits.
    Indefinitely,
}

impl Waits {
    /// Exchanges the descriptor for the other end of a transfer, which is waited for in the other direction.
    pub(crate) fn swap_end(&mut self, other: &mut RawFd) {
        if let Waits::Ready(fd, direction)
        | Waits::AfterReady(fd, direction)
        | Waits::UntilReady(fd, direction)
        | Waits::ReadyThenBlocks(fd, direction) = self
        {
            std::mem::swap(fd, other);
            *direction = direction.opposite();
        }
    }

    /// Returns the descriptor that a call waits for.
    #[inline]
    pub(crate) fn descriptor(self) -> Option<(RawFd, Direction)> {
        match self {
            Waits::Ready(fd, direction)
            | Waits::AfterReady(fd, direction)
            | Waits::UntilReady(fd, direction)
            | Waits::ReadyThenBlocks(fd, direction) => Some((fd, direction)),
            Waits::Bounded | Waits::Indefinitely => None,
        }
    }
}

/// The direction of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Until it is readable.
    Read,
    /// Until it is writable.
    Write,
}

impl Direction {
    pub(crate) fn opposite(self) -> Self {
        match self {
            Direction::Read => Direction::Write,
            Direction::Write => Direction::Read,
        }
    }
}

/// A system call of any number (figure 2).
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub(crate) number: u32,
    pub(crate) args: [usize; 6],
    pub(crate) waits: Waits,
    pub(crate) object: Object,
    pub(crate) pinned: Option<Executor>,
    pub(crate) uncancellable: bool,
    pub(crate) in_batches: bool,
    pub(crate) other_end: Option<RawFd>,
    /// The place of the file that the first argument names, in the table of the ring of some pages.
    pub(crate) file: FilePlace,
}

impl Call {
    /// Describes a call that may wait for anything. An unknown number gives `ENOSYS`.
    ///
    /// Calls that read or change state of the calling thread, such as its signal mask, are executed in place, whatever
    /// they wait for.
    #[inline]
    pub fn new(number: libc::c_long, args: [usize; 6]) -> Self {
        // The kernel knows no number beyond 32 bits, and has none for the highest.
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let pinned = is_about_the_calling_thread(number, &args).then_some(Executor::InPlace);
        Call {
            number,
            args,
            waits: Waits::Indefinitely,
            object: Object::default(),
            pinned,
            uncancellable: false,
            in_batches: false,
            other_end: None,
            file: FilePlace::NONE,
        }
    }

    /// Describes an entry that is done when a descriptor is ready ([`Waits::UntilReady`]).
    #[inline]
    pub fn until_ready(fd: RawFd, direction: Direction) -> Self {
        Call::new(libc::SYS_ppoll, [0; 6]).waits(Waits::UntilReady(fd, direction))
    }

    /// Describes a call that waits for a disk at most.
    #[inline]
    pub fn bounded(number: libc::c_long, args: [usize; 6]) -> Self {
        Call::new(number, args).waits(Waits::Bounded)
    }

    /// Has the ring make the call, together with others, where the owner sleeps in the ring. One that waits for a
    /// descriptor waits in the ring then. It is one of [`Call::of_batches`].
    pub(crate) fn in_batches(mut self) -> Self {
        self.in_batches = true;
        self
    }

    /// Has a call that waits for one end of a transfer wait for the other one, in the other direction, if it returns
    /// `EAGAIN` although the first is ready; and so on in turn. If both are ready, that becomes the result.
    pub(crate) fn other_end(mut self, fd: RawFd) -> Self {
        self.other_end = Some(fd);
        self
    }

    /// Returns numbers and arguments of calls for which a ring has to have operations if the owner sleeps there.
    pub(crate) fn of_batches() -> [(u32, [usize; 6]); 7] {
        let how = size_of::<[u64; 3]>();
        [
            (libc::SYS_recvfrom, [0; 6]),
            (libc::SYS_sendto, [0; 6]),
            (libc::SYS_sendmsg, [0; 6]),
            (libc::SYS_accept4, [0; 6]),
            (libc::SYS_close, [0; 6]),
            (libc::SYS_openat2, [0, 0, 0, how, 0, 0]),
            (libc::SYS_preadv2, [0; 6]),
        ]
        .map(|(number, args)| (number as u32, args))
    }

    /// Has a cancellation of the call no effect, as its effect is needed.
    pub fn uncancellable(mut self) -> Self {
        self.uncancellable = true;
        self
    }

    /// Returns whether the call is on the list of those that read or change state of the calling
    /// thread.
    #[inline]
    pub(crate) fn acts_on_the_calling_thread(&self) -> bool {
        is_about_the_calling_thread(self.number, &self.args)
    }

    /// Sets what the call may wait for.
    #[inline]
    pub fn waits(mut self, waits: Waits) -> Self {
        self.waits = waits;
        self
    }

    /// Sets the kind of object.
    #[inline]
    pub fn kind(self, kind: Kind) -> Self {
        self.object(kind.into())
    }

    #[inline]
    pub(crate) fn object(mut self, object: Object) -> Self {
        self.object = object;
        self
    }

    /// Pins the executor, instead of the choice by cost. A pinned call is made once: it does not wait for readiness
    /// first, and is not repeated if it was not ready. Its `EAGAIN` is the result. Calls about the calling thread stay in
    /// place.
    #[inline]
    pub fn pinned(mut self, executor: Executor) -> Self {
        if !self.acts_on_the_calling_thread() {
            self.pinned = Some(executor);
        }
        self
    }
}

/// Returns whether a call reads or changes state of the calling thread, so that it would have
/// another meaning on a syscall thread.
#[inline]
fn is_about_the_calling_thread(number: u32, args: &[usize; 6]) -> bool {
    OWN_THREAD_BITS.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 != 0)
        && is_so_by_arguments(number, args)
}

/// Returns whether a call of [`OWN_THREAD`] or [`BY_ARGUMENTS`] is about the calling thread.
fn is_so_by_arguments(number: u32, args: &[usize; 6]) -> bool {
    match libc::c_long::from(number) {
        libc::SYS_futex => takes_a_lock(args[1]),
        // The signal mask that the thread has while it waits; for two of them, a structure that may name none.
        libc::SYS_ppoll => args[3] != 0,
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => args[4] != 0,
        libc::SYS_pselect6 | IO_PGETEVENTS => args[5] != 0,
        // The table of descriptors of the thread, and its children without those of other threads.
        libc::SYS_close_range => args[2] & libc::CLOSE_RANGE_UNSHARE as usize != 0,
        libc::SYS_wait4 => args[2] & libc::__WNOTHREAD as usize != 0,
        libc::SYS_waitid => args[3] & libc::__WNOTHREAD as usize != 0,
        _ => true,
    }
}

/// Returns whether an operation of futex(2) takes or releases a lock in the name of the calling thread, whose number is
/// in the futex.
fn takes_a_lock(operation: usize) -> bool {
    matches!(
        operation as i32 & libc::FUTEX_CMD_MASK,
        libc::FUTEX_LOCK_PI
            | libc::FUTEX_LOCK_PI2
            | libc::FUTEX_TRYLOCK_PI
            | libc::FUTEX_UNLOCK_PI
            | libc::FUTEX_WAIT_REQUEUE_PI
    )
}

/// lsm_get_self_attr(2) and lsm_set_self_attr(2), which have the same numbers on x86-64 and arm64.
const LSM_GET_SELF_ATTR: libc::c_long = 459;
const LSM_SET_SELF_ATTR: libc::c_long = 460;

/// io_pgetevents(2), on x86-64 and on arm64.
const IO_PGETEVENTS: libc::c_long = if cfg!(target_arch = "x86_64") { 333 } else { 292 };

/// A bit for each number of [`OWN_THREAD`] and [`BY_ARGUMENTS`]. Each call that is described is looked up, and a search
/// of the list took a fifth of the time that posting a call adds to it.
const OWN_THREAD_BITS: [u64; 8] = with_bits(with_bits([0; 8], OWN_THREAD), BY_ARGUMENTS);

const fn with_bits(mut bits: [u64; 8], numbers: &[libc::c_long]) -> [u64; 8] {
    let mut at = 0;
    while at < numbers.len() {
        let number = numbers[at] as usize;
        bits[number / 64] |= 1 << (number % 64);
        at += 1;
    }
    bits
}

/// Calls of which the arguments decide whether they are about the calling thread: those that take or release a lock in
/// its name, those that set its signal mask while they wait, one that may give it a table of descriptors of its own, and
/// those that may wait for its own children only.
const BY_ARGUMENTS: &[libc::c_long] = &[
    libc::SYS_futex,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    IO_PGETEVENTS,
    libc::SYS_close_range,
    libc::SYS_wait4,
    libc::SYS_waitid,
];

/// Calls about the calling thread, which set or return: its identity, signal mask and alternate stack, scheduling,
/// credentials and keyrings (which are a thread's own in Linux), namespaces, memory policy, robust list, clock, stack,
/// restrictions and their attributes, access to memory by protection keys, its rings, which may have registered
/// numbers and permit one submitter; and those that copy or trace it, or replace its program. exit(2) is not one of them:
/// it ends the thread that makes it, which another one replaces.
#[rustfmt::skip]
const OWN_THREAD: &[libc::c_long] = &[
    libc::SYS_gettid, libc::SYS_set_tid_address, libc::SYS_set_robust_list, libc::SYS_rseq,
    libc::SYS_rt_sigprocmask, libc::SYS_rt_sigpending, libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait, libc::SYS_rt_sigreturn, libc::SYS_sigaltstack,
    libc::SYS_sched_yield, libc::SYS_getcpu,
    libc::SYS_prctl, libc::SYS_seccomp, libc::SYS_personality, libc::SYS_getrusage,
    libc::SYS_capget, libc::SYS_capset, libc::SYS_setuid, libc::SYS_setgid, libc::SYS_setreuid,
    libc::SYS_setregid, libc::SYS_setresuid, libc::SYS_setresgid, libc::SYS_setfsuid,
    libc::SYS_setfsgid, libc::SYS_setgroups, libc::SYS_unshare, libc::SYS_setns,
    libc::SYS_sched_setaffinity, libc::SYS_sched_getaffinity, libc::SYS_sched_setscheduler,
    libc::SYS_sched_setparam, libc::SYS_sched_setattr, libc::SYS_setpriority, libc::SYS_ioprio_set,
    libc::SYS_set_mempolicy, libc::SYS_get_mempolicy, libc::SYS_restart_syscall,
    libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid, libc::SYS_getresuid,
    libc::SYS_getresgid, libc::SYS_getgroups, libc::SYS_keyctl, libc::SYS_add_key,
    libc::SYS_request_key, libc::SYS_getpriority, libc::SYS_ioprio_get, libc::SYS_get_robust_list,
    libc::SYS_sched_getscheduler, libc::SYS_sched_getparam, libc::SYS_sched_getattr,
    libc::SYS_sched_rr_get_interval, libc::SYS_clock_gettime, libc::SYS_timer_create,
    libc::SYS_landlock_restrict_self, libc::SYS_perf_event_open, libc::SYS_io_uring_setup,
    libc::SYS_io_uring_register, libc::SYS_io_uring_enter, libc::SYS_pkey_alloc,
    LSM_GET_SELF_ATTR, LSM_SET_SELF_ATTR,
    libc::SYS_clone, libc::SYS_clone3, libc::SYS_execve, libc::SYS_execveat, libc::SYS_ptrace,
    #[cfg(target_arch = "x86_64")] libc::SYS_fork,
    #[cfg(target_arch = "x86_64")] libc::SYS_vfork,
    #[cfg(target_arch = "x86_64")] libc::SYS_pause,
    #[cfg(target_arch = "x86_64")] libc::SYS_arch_prctl,
    #[cfg(target_arch = "x86_64")] libc::SYS_get_thread_area,
    #[cfg(target_arch = "x86_64")] libc::SYS_set_thread_area,
    #[cfg(target_arch = "x86_64")] libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")] libc::SYS_iopl,
];

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn calls_about_the_thread_cannot_be_pinned_elsewhere() {
        let call = Call::new(libc::SYS_gettid, [0; 6]).pinned(Executor::Threads);
        assert!(call.acts_on_the_calling_thread());
        assert_eq!(call.pinned, Some(Executor::InPlace));
        let call = Call::bounded(libc::SYS_getpid, [0; 6]);
        assert_eq!(call.pinned, None);
        assert_eq!(call.pinned(Executor::Threads).pinned, Some(Executor::Threads));
    }

    #[test]
    fn calls_about_the_thread_that_only_read_were_made_by_others() {
        for number in [
            libc::SYS_getuid,
            libc::SYS_geteuid,
            libc::SYS_getgid,
            libc::SYS_getegid,
            libc::SYS_getresuid,
            libc::SYS_getresgid,
            libc::SYS_getgroups,
            libc::SYS_getpriority,
            libc::SYS_ioprio_get,
            libc::SYS_get_robust_list,
            libc::SYS_sched_getscheduler,
            libc::SYS_sched_getparam,
            libc::SYS_sched_getattr,
            libc::SYS_sched_rr_get_interval,
            libc::SYS_clock_gettime,
        ] {
            assert!(Call::new(number, [0; 6]).acts_on_the_calling_thread(), "{number}");
        }
    }

    #[test]
    fn calls_that_restrict_watch_or_name_the_thread_were_made_by_others() {
        for number in [
            libc::SYS_landlock_restrict_self,
            libc::SYS_perf_event_open,
            libc::SYS_timer_create,
            libc::SYS_keyctl,
            libc::SYS_add_key,
            libc::SYS_request_key,
            libc::SYS_io_uring_setup,
            libc::SYS_io_uring_register,
            libc::SYS_io_uring_enter,
            libc::SYS_pkey_alloc,
            459, // lsm_get_self_attr
            460, // lsm_set_self_attr
            #[cfg(target_arch = "x86_64")]
            libc::SYS_get_thread_area,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_set_thread_area,
        ] {
            assert!(Call::new(number, [0; 6]).acts_on_the_calling_thread(), "{number}");
        }
    }

    #[test]
    fn lock_of_a_futex_was_taken_in_the_name_of_a_syscall_thread() {
        let call = |operation: i32| {
            let call = Call::new(libc::SYS_futex, [0, operation as usize, 0, 0, 0, 0]);
            let pinned = call.pinned(Executor::Threads).pinned == Some(Executor::Threads);
            assert_ne!(call.acts_on_the_calling_thread(), pinned);
            call.acts_on_the_calling_thread()
        };
        for operation in [6, 7, 8, 11, 13] {
            assert!(call(operation) && call(operation | libc::FUTEX_PRIVATE_FLAG), "{operation}");
        }
        // Waits, wake-ups, and what moves the waiters of other threads.
        for operation in [0, 1, 2, 3, 4, 5, 9, 10, 12, libc::FUTEX_CLOCK_REALTIME] {
            assert!(!call(operation) && !call(operation | libc::FUTEX_PRIVATE_FLAG), "{operation}");
        }
        assert!(!Call::new(libc::SYS_read, [0, 6, 0, 0, 0, 0]).acts_on_the_calling_thread());
    }

    #[test]
    fn signal_mask_of_a_wait_was_set_in_a_syscall_thread() {
        const MASK: usize = 0x1000;
        for (number, mask_at) in [
            (libc::SYS_ppoll, 3),
            (libc::SYS_epoll_pwait, 4),
            (libc::SYS_epoll_pwait2, 4),
            (libc::SYS_pselect6, 5),
            (IO_PGETEVENTS, 5),
        ] {
            for with_mask in [false, true] {
                let mut args = [MASK; 6];
                args[mask_at] = if with_mask { MASK } else { 0 };
                let call = Call::new(number, args).pinned(Executor::Threads);
                assert_eq!(call.acts_on_the_calling_thread(), with_mask, "{number}");
                let executor = if with_mask { Executor::InPlace } else { Executor::Threads };
                assert_eq!(call.pinned, Some(executor), "{number}");
            }
        }
    }

    #[test]
    fn descriptors_were_unshared_and_children_waited_for_in_a_syscall_thread() {
        for (number, flags_at, flag) in [
            (libc::SYS_close_range, 2, 2),
            (libc::SYS_wait4, 2, 0x2000_0000),
            (libc::SYS_waitid, 3, 0x2000_0000),
        ] {
            for with_flag in [false, true] {
                let mut args = [usize::MAX; 6];
                args[flags_at] = if with_flag { flag | 1 } else { !flag };
                let call = Call::new(number, args).pinned(Executor::Threads);
                assert_eq!(call.acts_on_the_calling_thread(), with_flag, "{number}");
                let executor = if with_flag { Executor::InPlace } else { Executor::Threads };
                assert_eq!(call.pinned, Some(executor), "{number}");
            }
        }
    }

    #[test]
    fn exactly_the_calls_of_the_list_are_about_the_calling_thread() {
        for number in (0..1024).chain([u32::MAX]) {
            let is_listed = OWN_THREAD.contains(&libc::c_long::from(number));
            assert_eq!(is_about_the_calling_thread(number, &[0; 6]), is_listed, "{number}");
        }
    }

    #[test]
    fn numbers_beyond_32_bits_are_unknown_ones() {
        assert_eq!(Call::new(-1, [0; 6]).number, u32::MAX);
        assert_eq!(Call::new(1 << 32, [0; 6]).number, u32::MAX);
    }
}
