//! The queue of real-time signals of a thread.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::mem;
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::interface::{Readiness, timespec};
use crate::descriptor::borrow;
use crate::linux::{set_async, set_signal, signal_to_this_thread, signals_to_this_thread};
use crate::{Errno, Fd, Process};

/// A bounded queue of signals that report events of descriptors.
pub trait SignalSource {
    /// Number of marks of signals.
    const MAX_MARKS: u8;

    /// Maximum number of signals taken by a wait that must not block. It bounds the wait if peers
    /// cause signals as fast as they are taken.
    const MAX_BATCH: usize;

    /// Starts to signal events of a descriptor, with a mark.
    ///
    /// # Errors
    /// If the descriptor can't signal.
    fn watch(&mut self, fd: Fd, mark: u8) -> io::Result<()>;

    /// Stops signalling, unless the descriptor was closed and its number reused. Queued signals
    /// stay queued.
    fn ignore(&mut self, fd: Fd);

    /// The same for a descriptor that is about to be closed. A child of fork(2) may keep a copy of
    /// it open, which would signal on.
    fn forget(&mut self, fd: Fd);

    /// The same for a descriptor whose open file another thread of the process may begin to watch at this time, as that of a
    /// listening socket.
    fn forget_shared(&mut self, fd: Fd) {
        self.forget(fd);
    }

    /// Takes the next signal. Waits for it, without limit with `None`. Returns `None` after the
    /// timeout or if another signal was handled. A call that does not wait returns `None` only if
    /// the queue is empty.
    ///
    /// # Errors
    /// Those of sigtimedwait(2).
    fn take(&mut self, timeout: Option<Duration>) -> io::Result<Option<Signal>>;

    /// Returns the number of system calls made so far.
    fn system_calls(&self) -> u64;
}

/// An event reported by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// A descriptor with this number and this mark at the time of the signal has become ready.
    Ready(Fd, u8, Readiness),
    /// The queue overflowed.
    Overflow,
}

/// Held by a thread that takes over the signals of an open file, or that ends them if they are still its own. Otherwise, the
/// second could end those of the first, or give them the number of its own descriptor.
static TAKE_OVER: Mutex<()> = Mutex::new(());

/// The real-time signals of the calling thread, which are blocked in it as long as this value lives.
/// A child of fork(2) gets none, as they are sent to the parent.
pub struct SignalQueue {
    signals: libc::sigset_t,
    /// The signals that this queue has blocked.
    blocked: libc::sigset_t,
    /// The signal number of the first mark.
    first: libc::c_int,
    system_calls: u64,
    /// The process that receives the signals.
    process: Process,
    /// Makes the type `!Send`, as the signals are sent to one thread.
    not_send: PhantomData<*const ()>,
}

impl std::fmt::Debug for SignalQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignalQueue").field("first", &self.first).finish_non_exhaustive()
    }
}

thread_local! {
    /// The process in which this thread has a queue; a child of fork(2) may create another one.
    static IN_USE: Cell<Option<Process>> = const { Cell::new(None) };
}

const F_GETSIG: libc::c_int = 11;

/// `siginfo_t` of a descriptor's signal (sigaction(2), `si_band` and `si_fd`).
#[repr(C)]
struct SigInfo {
    signal: libc::c_int,
    _errno: libc::c_int,
    code: libc::c_int,
    of: SigPoll,
}

#[repr(C)]
struct SigPoll {
    band: libc::c_long,
    fd: libc::c_int,
}

impl SignalQueue {
    /// Blocks the signals of the queue in the calling thread.
    ///
    /// # Errors
    /// If the thread already has a queue.
    pub(crate) fn new() -> io::Result<Self> {
        let process = Process::current();
        if IN_USE.get() == Some(process) {
            return Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                "cannot take real-time signals: this thread already has a queue of them",
            ));
        }
        let first = libc::SIGRTMIN() + 1;
        // SAFETY: plain C structures, for which all zero bytes are a valid value.
        let (mut signals, mut blocked): (libc::sigset_t, libc::sigset_t) = unsafe { mem::zeroed() };
        // SAFETY: as above.
        let mut before: libc::sigset_t = unsafe { mem::zeroed() };
        let numbers = (first..first + libc::c_int::from(Self::MAX_MARKS)).chain([libc::SIGIO]);
        // SAFETY: all three are live signal sets, and the numbers are those of signals.
        unsafe {
            libc::sigemptyset(&mut signals);
            libc::sigemptyset(&mut blocked);
            for number in numbers.clone() {
                libc::sigaddset(&mut signals, number);
            }
            check(libc::pthread_sigmask(libc::SIG_BLOCK, &signals, &mut before))?;
            for number in numbers.filter(|number| libc::sigismember(&before, *number) == 0) {
                libc::sigaddset(&mut blocked, number);
            }
        }
        IN_USE.set(Some(process));
        Ok(SignalQueue { signals, blocked, first, system_calls: 0, process, not_send: PhantomData })
    }

    /// Returns whether a descriptor signals this queue. Its number may belong to another file by now.
    fn is_watched(&self, fd: Fd) -> bool {
        let marks = self.first..self.first + libc::c_int::from(Self::MAX_MARKS);
        marks.contains(&signal(fd)) && signals_to_this_thread(borrow(&fd)) == Ok(true)
    }

    fn set_async(&mut self, fd: Fd, on: bool) -> io::Result<()> {
        self.system_calls += 1;
        Ok(set_async(borrow(&fd), on)?)
    }

    fn signals_to_this_thread(&mut self, fd: Fd) -> Result<bool, Errno> {
        self.system_calls += 1;
        signals_to_this_thread(borrow(&fd))
    }

    fn signal(&mut self, fd: Fd) -> libc::c_int {
        self.system_calls += 1;
        signal(fd)
    }
}

/// Returns the signal that a descriptor sends; 0 stands for SIGIO.
fn signal(fd: Fd) -> libc::c_int {
    // SAFETY: asks for a number.
    unsafe { libc::fcntl(fd.raw(), F_GETSIG) }
}

fn check(error: libc::c_int) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

impl SignalSource for SignalQueue {
    const MAX_MARKS: u8 = 4;
    const MAX_BATCH: usize = 1 << 14;

    fn watch(&mut self, fd: Fd, mark: u8) -> io::Result<()> {
        let number = self.first + libc::c_int::from(mark);
        self.system_calls += 3;
        // The signal comes last: the former owner may expect SIGIO (`System::enable_sigio`), and a real-time signal would
        // end its process. This thread has blocked both.
        signal_to_this_thread(borrow(&fd))?;
        set_signal(borrow(&fd), number)?;
        // SAFETY: asks for flags.
        if unsafe { libc::fcntl(fd.raw(), libc::F_GETFL) } & libc::O_ASYNC != 0 {
            // A socket of another thread or process: its signals have the number of the descriptor there.
            let _alone = TAKE_OVER.lock().unwrap_or_else(PoisonError::into_inner);
            self.set_async(fd, false)?;
            return self.set_async(fd, true);
        }
        self.set_async(fd, true)
    }

    fn ignore(&mut self, fd: Fd) {
        if self.is_watched(fd) {
            // It was watched, so this cannot fail.
            let _ = self.set_async(fd, false);
        }
    }

    fn forget(&mut self, fd: Fd) {
        // In a child of fork(2), the descriptor is a copy of one that signals the parent. A listening socket that was
        // passed to another process signals that one.
        if self.process.is_current() && self.signals_to_this_thread(fd) == Ok(true) {
            // It was watched, so this cannot fail.
            let _ = self.set_async(fd, false);
            if self.signals_to_this_thread(fd) == Ok(false) {
                // Another process has begun to watch it meanwhile.
                let _ = self.set_async(fd, true);
            }
        }
    }

    fn forget_shared(&mut self, fd: Fd) {
        // A child of fork(2) may have a copy of the lock that is never released.
        if !self.process.is_current() {
            return;
        }
        let _alone = TAKE_OVER.lock().unwrap_or_else(PoisonError::into_inner);
        // Not as `forget`, which would give the other thread the signals with the number of this descriptor.
        if self.signals_to_this_thread(fd) == Ok(true) {
            // It was watched, so this cannot fail.
            let _ = self.set_async(fd, false);
            if self.signals_to_this_thread(fd) == Ok(false) && self.signal(fd) == 0 {
                // A thread has begun to expect SIGIO meanwhile (`System::enable_sigio`, which takes no lock). That has no
                // number.
                let _ = self.set_async(fd, true);
            }
        }
    }

    fn take(&mut self, timeout: Option<Duration>) -> io::Result<Option<Signal>> {
        let timeout = timeout.map(timespec);
        let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: a plain C structure, for which all zero bytes are a valid value.
        let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
        loop {
            self.system_calls += 1;
            // SAFETY: the set and `info` are live, `timeout` is null or points to a live value.
            let signal = unsafe { libc::sigtimedwait(&self.signals, &mut info, timeout) };
            if signal == -1 {
                let error = io::Error::last_os_error();
                let ended = [Some(libc::EAGAIN), Some(libc::EINTR)].contains(&error.raw_os_error());
                return if ended { Ok(None) } else { Err(error) };
            }
            if signal == libc::SIGIO {
                return Ok(Some(Signal::Overflow));
            }
            // SAFETY: `SigInfo` has the kernel's layout of the start of `siginfo_t` for signals of
            // descriptors; for other signals, the fields are numbers with another meaning.
            let info: &SigInfo = unsafe { &*ptr::from_ref(&info).cast() };
            // Signals sent by programs have no such code (sigaction(2), `si_code`).
            if (POLL_IN..=POLL_HUP).contains(&info.code) {
                let mark = (info.signal - self.first) as u8;
                let ready = Readiness::from_poll(info.of.band as i16);
                return Ok(Some(Signal::Ready(Fd::from_raw(info.of.fd), mark, ready)));
            }
        }
    }

    fn system_calls(&self) -> u64 {
        self.system_calls
    }
}

const POLL_IN: libc::c_int = 1;
const POLL_HUP: libc::c_int = 6;

impl Drop for SignalQueue {
    /// Discards the remaining signals, which would terminate the process once they are unblocked.
    fn drop(&mut self) {
        if IN_USE.get() != Some(self.process) {
            // A copy in a child of fork(2) that has created another queue.
            return;
        }
        while let Ok(Some(_)) = self.take(Some(Duration::ZERO)) {}
        // SAFETY: a live signal set, of the signals that this queue has blocked.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &self.blocked, ptr::null_mut()) };
        IN_USE.set(None);
    }
}

#[cfg(all(test, not(loom), target_arch = "x86_64"))]
mod tests {
    use std::hint;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicI32, Ordering};
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;
    use crate::{Linux, System};

    const F_SETSIG: libc::c_int = 10;
    const F_SETOWN_EX: libc::c_int = 15;
    const F_OWNER_TID: libc::c_int = 0;

    /// A copy of the descriptor whose calls of fcntl(2) are trapped, and its peer.
    static COPY: AtomicI32 = AtomicI32::new(-1);
    static PEER: AtomicI32 = AtomicI32::new(-1);
    /// Held by the test that uses them.
    static TRAPS: Mutex<()> = Mutex::new(());

    thread_local! {
        /// In the traps of this thread, another one has begun to receive the signals.
        static IS_TAKEN_OVER: Cell<bool> = const { Cell::new(false) };
    }

    /// Sets or clears the flag `O_ASYNC`. Returns whether it was set.
    fn set_async(fd: libc::c_int, on: bool) -> bool {
        // SAFETY: passes numbers.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        let new = if on { flags | libc::O_ASYNC } else { flags & !libc::O_ASYNC };
        // SAFETY: as above.
        unsafe { libc::fcntl(fd, libc::F_SETFL, new) };
        flags & libc::O_ASYNC != 0
    }

    /// Does what a trapped call would do, after something else has happened.
    extern "C" fn make_call(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel's structure exists while the handler runs.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        if registers[libc::REG_RAX as usize] == libc::SYS_ioctl {
            make_ioctl(registers);
        } else {
            make_fcntl(registers);
        }
    }

    /// A call of fcntl(2). Before it, the peer writes a byte, so that the descriptor signals.
    fn make_fcntl(registers: &mut [libc::greg_t]) {
        let [command, argument] =
            [libc::REG_RSI, libc::REG_RDX].map(|register| registers[register as usize]);
        // SAFETY: the argument is the one of the trapped call, and the byte is readable memory.
        let result = unsafe {
            assert_eq!(libc::write(PEER.load(Ordering::Relaxed), c"x".as_ptr().cast(), 1), 1);
            libc::fcntl(COPY.load(Ordering::Relaxed), command as libc::c_int, argument)
        };
        registers[libc::REG_RAX as usize] = result.into();
    }

    /// An ioctl of `FIOASYNC`. Before the first one, another thread begins to expect SIGIO.
    fn make_ioctl(registers: &mut [libc::greg_t]) {
        let fd = registers[libc::REG_RDI as usize] as libc::c_int;
        if !IS_TAKEN_OVER.replace(true) {
            // SAFETY: passes a number; the other command reads two integers.
            unsafe {
                let other = [F_OWNER_TID, libc::getpid()];
                libc::fcntl(fd, F_SETSIG, 0);
                libc::fcntl(fd, F_SETOWN_EX, other.as_ptr());
            }
            set_async(fd, true);
        }
        // SAFETY: the third argument points to an integer.
        let on = unsafe { *(registers[libc::REG_RDX as usize] as *const libc::c_int) };
        set_async(fd, on != 0);
        registers[libc::REG_RAX as usize] = 0;
    }

    /// Has a signal handler make some calls of this thread: those with this descriptor, and one of these numbers and second
    /// arguments.
    fn trap(fd: Fd, calls: &[(libc::c_long, u32)]) {
        const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
        const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
        let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let mut steps = Vec::new();
        for (number, second) in calls {
            // The number of the call, and the first and second arguments in `seccomp_data`.
            steps.extend([
                step(LOAD, 0, 0, 0),
                step(EQUAL, 0, 5, *number as u32),
                step(LOAD, 0, 0, 16),
                step(EQUAL, 0, 3, fd.raw() as u32),
                step(LOAD, 0, 0, 24),
                step(EQUAL, 0, 1, *second),
                step(RETURN, 0, 0, libc::SECCOMP_RET_TRAP),
            ]);
        }
        steps.push(step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
        let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: plain C structures, which live until the calls return; the handler does what is safe there.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = make_call as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGSYS, &action, ptr::null_mut()), 0);
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            let (set, program) = (libc::SECCOMP_SET_MODE_FILTER, &raw const program);
            assert_eq!(libc::syscall(libc::SYS_seccomp, set, 0, program), 0);
        }
    }

    #[test]
    fn child_waited_forever_for_a_lock_that_a_thread_of_its_parent_held() {
        let (socket, _peer) = UnixStream::pair().unwrap();
        let number = socket.as_raw_fd();
        let (done, is_done) = channel();
        let held = TAKE_OVER.lock().unwrap_or_else(PoisonError::into_inner);
        // Stands for the child, which has a copy of its parent's queue and of the held lock.
        thread::spawn(move || {
            let mut queue = SignalQueue::new().unwrap();
            queue.process = Process::other();
            queue.forget_shared(Fd::from_raw(number));
            done.send(()).unwrap();
        });
        assert_eq!(is_done.recv_timeout(Duration::from_secs(60)), Ok(()));
        drop(held);
    }

    #[test]
    fn forgotten_socket_signalled_no_more_though_another_had_begun_to_watch_it() {
        for forget in [SignalQueue::forget, SignalQueue::forget_shared] {
            let (socket, _peer) = UnixStream::pair().unwrap();
            let number = socket.as_raw_fd();
            // The first thread of the process stands for the other one.
            let signals = thread::spawn(move || {
                let fd = Fd::from_raw(number);
                let mut owner = SignalQueue::new().unwrap();
                owner.watch(fd, 0).unwrap();
                trap(fd, &[(libc::SYS_ioctl, libc::FIOASYNC as u32)]);
                forget(&mut owner, fd);
                set_async(number, false)
            });
            assert!(signals.join().unwrap());
        }
    }

    /// Blocks SIGIO and the real-time signals in this thread.
    fn block_signals() {
        // SAFETY: a plain C structure, for which all zero bytes are a valid value; a live signal set.
        unsafe {
            let mut set: libc::sigset_t = mem::zeroed();
            for number in (libc::SIGRTMIN()..=libc::SIGRTMAX()).chain([libc::SIGIO]) {
                libc::sigaddset(&mut set, number);
            }
            assert_eq!(libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut()), 0);
        }
    }

    /// Returns whether a real-time signal is pending in this thread.
    fn has_real_time_signal() -> bool {
        // SAFETY: a plain C structure, which the call fills in.
        unsafe {
            let mut set: libc::sigset_t = mem::zeroed();
            assert_eq!(libc::sigpending(&mut set), 0);
            (libc::SIGRTMIN()..=libc::SIGRTMAX()).any(|number| libc::sigismember(&set, number) == 1)
        }
    }

    /// Has the calls trapped by which this thread, and those that it starts, begin to receive the signals of a descriptor.
    fn trap_take_over(socket: &UnixStream, copy: &UnixStream, peer: &UnixStream) {
        COPY.store(copy.as_raw_fd(), Ordering::Relaxed);
        PEER.store(peer.as_raw_fd(), Ordering::Relaxed);
        let calls = [F_SETSIG, F_SETOWN_EX].map(|command| (libc::SYS_fcntl, command as u32));
        trap(Fd::from_raw(socket.as_raw_fd()), &calls);
    }

    #[test]
    fn thread_that_expects_sigio_got_the_signal_of_the_former_or_the_next_thread() {
        let _alone = TRAPS.lock().unwrap_or_else(PoisonError::into_inner);
        let (socket, mut peer) = UnixStream::pair().unwrap();
        let copy = socket.try_clone().unwrap();
        let fd = Fd::from_raw(socket.as_raw_fd());
        let enable = || {
            block_signals();
            trap_take_over(&socket, &copy, &peer);
            Linux::default().enable_sigio(fd).unwrap();
            peer.write_all(b"x").unwrap();
            assert!(!has_real_time_signal(), "from the former thread");
            // The signals of the next thread.
            let watch = || {
                let mut next = SignalQueue::new().unwrap();
                next.watch(fd, 0).unwrap();
                next.forget(fd);
            };
            thread::scope(|scope| scope.spawn(watch).join()).unwrap();
            assert!(!has_real_time_signal(), "from the next thread");
        };
        let mut former = SignalQueue::new().unwrap();
        former.watch(fd, 0).unwrap();
        thread::scope(|scope| scope.spawn(enable).join()).unwrap();
    }

    #[test]
    fn thread_that_expects_sigio_sends_none_to_the_former_thread() {
        let _alone = TRAPS.lock().unwrap_or_else(PoisonError::into_inner);
        let (socket, peer) = UnixStream::pair().unwrap();
        let copy = socket.try_clone().unwrap();
        let fd = Fd::from_raw(socket.as_raw_fd());
        let mut former = SignalQueue::new().unwrap();
        former.watch(fd, 0).unwrap();
        // It signals no more, but this thread remains its owner.
        former.forget(fd);
        let enable = || {
            block_signals();
            trap_take_over(&socket, &copy, &peer);
            Linux::default().enable_sigio(fd).unwrap();
        };
        thread::scope(|scope| scope.spawn(enable).join()).unwrap();
        assert_eq!(former.take(Some(Duration::ZERO)).unwrap(), None);
        assert!(set_async(socket.as_raw_fd(), false), "it is enabled");
    }

    #[test]
    fn take_over_while_the_former_thread_closes_kept_the_number_of_its_descriptor() {
        const ROUNDS: u32 = 60_000;
        let (socket, mut peer) = UnixStream::pair().unwrap();
        let mut copy = socket.try_clone().unwrap();
        let [former, latter] = [&socket, &copy].map(|of| Fd::from_raw(of.as_raw_fd()));
        let barrier = Barrier::new(2);
        let spin = |times| (0..times).for_each(|_| hint::spin_loop());
        let mut wrong = 0;
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut queue = SignalQueue::new().unwrap();
                for n in 0..ROUNDS {
                    queue.watch(former, 0).unwrap();
                    barrier.wait();
                    // Each order of the calls of both threads comes.
                    spin(n % 50);
                    queue.forget_shared(former);
                    barrier.wait();
                    barrier.wait();
                }
            });
            let mut queue = SignalQueue::new().unwrap();
            for n in 0..ROUNDS {
                barrier.wait();
                spin(n / 50 % 50);
                queue.watch(latter, 0).unwrap();
                barrier.wait();
                peer.write_all(b"x").unwrap();
                // The write has sent the signal.
                let signal = queue.take(Some(Duration::ZERO)).unwrap();
                wrong += u32::from(!matches!(signal, Some(Signal::Ready(fd, ..)) if fd == latter));
                copy.read_exact(&mut [0]).unwrap();
                queue.forget(latter);
                barrier.wait();
            }
        });
        assert_eq!(wrong, 0);
    }
}
