//! Interrupts the system call of a syscall thread by a signal (section 4.2).
//!
//! A signal must not reach the thread in a later call than the one that it is for. So the thread
//! that signals holds the target in its call meanwhile ([`Serving`]), and a thread that was
//! signalled waits for the signal before it goes on. A signal that comes too early, before the call
//! has begun to wait, is lost; the heartbeat repeats it once it was handled. The same signal from elsewhere, such as kill(1), may
//! interrupt a call, but no thread waits for it; nor for a signal that the call itself has taken, as the read of a signalfd(2)
//! does.

use std::cell::Cell;
use std::fs;
use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::AtomicI32;
use std::thread;

use shared_ring::sync::{AtomicU32, Ordering};

#[cfg(all(test, loom))]
mod models;

use crate::entry::{Entry, Status};
use crate::error::Error;
use crate::sync::pause;

/// In [`Serving::entry`], while the thread is being signalled.
const SIGNALLING: u32 = 1 << 31;

/// The call that a thread makes.
#[derive(Debug, Default)]
pub(crate) struct Serving {
    /// Number of the entry plus one; 0 between calls.
    entry: AtomicU32,
    thread_id: AtomicI32,
    sent: AtomicU32,
    handled: AtomicU32,
}

thread_local! {
    /// The number of handled signals of a syscall thread.
    static HANDLED: Cell<*const AtomicU32> = const { Cell::new(ptr::null()) };
}

// Not inlined: its address says whether it is installed.
#[inline(never)]
extern "C" fn handle(_signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel's structure exists while the handler runs, and each signal has these fields or others of
    // plain numbers.
    let (code, sender) = unsafe { ((*info).si_code, (*info).si_pid()) };
    // SAFETY: it returns a number.
    if code != libc::SI_TKILL || sender != unsafe { libc::getpid() } {
        // It is not one of `Serving::interrupt`, which the thread waits for.
        return;
    }
    // SAFETY: the thread has set it to a counter that exists until it resets it.
    if let Some(handled) = unsafe { HANDLED.get().as_ref() } {
        handled.fetch_add(1, Ordering::Release);
    }
}

/// The signal: one that programs rarely use, and that no library reserves.
pub(crate) fn signal() -> i32 {
    libc::SIGRTMAX() - 3
}

/// Installs the handler, unless it is installed.
pub(crate) fn install() -> Result<(), Error> {
    let failed = |error| Error::System("install a signal handler", error);
    let own = handle as *const () as usize;
    // SAFETY: plain C structures; the handler only increments a counter.
    unsafe {
        let mut former: libc::sigaction = mem::zeroed();
        if libc::sigaction(signal(), ptr::null(), &mut former) != 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        match former.sa_sigaction {
            installed if installed == own => return Ok(()),
            libc::SIG_DFL => {}
            _ => return Err(Error::SignalInUse(signal())),
        }
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = own;
        // Without SA_RESTART, so that calls end.
        action.sa_flags = libc::SA_SIGINFO;
        // Threads that register pages at a time install the same.
        if libc::sigaction(signal(), &action, ptr::null_mut()) != 0 {
            return Err(failed(io::Error::last_os_error()));
        }
    }
    Ok(())
}

/// Returns whether the calling thread blocks the signal, and it is pending.
fn is_signal_pending() -> bool {
    // SAFETY: a plain C structure, which the call fills in.
    unsafe {
        let mut pending: libc::sigset_t = mem::zeroed();
        libc::sigpending(&mut pending) == 0 && libc::sigismember(&pending, signal()) == 1
    }
}

/// Starts a thread that handles no signal of the program: signals are for the program's own threads, and stacks that
/// suffice for handlers. The kernel delivers those for an error of the thread itself.
pub(crate) fn spawn(
    builder: thread::Builder,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    // SAFETY: plain C structures, and calls without effect on memory of others.
    unsafe {
        let (mut signals, mut former): (libc::sigset_t, libc::sigset_t) = mem::zeroed();
        libc::sigfillset(&mut signals);
        for of_itself in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP] {
            libc::sigdelset(&mut signals, of_itself);
        }
        // The thread begins with the mask of this one.
        libc::pthread_sigmask(libc::SIG_SETMASK, &signals, &mut former);
        let spawned = builder.spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &former, ptr::null_mut());
        spawned.map(drop)
    }
}

impl Serving {
    /// Prepares the calling thread, which [`spawn`] has started, and which serves entries from now on.
    ///
    /// # Safety
    /// `self` exists until the thread calls [`Serving::leave_thread`].
    pub(crate) unsafe fn enter_thread(&self) {
        HANDLED.set(&self.handled);
        self.entry.store(0, Ordering::Relaxed);
        self.sent.store(self.handled.load(Ordering::Relaxed), Ordering::Relaxed);
        // SAFETY: plain C structures and calls without effect on memory of others.
        unsafe {
            let mut signals: libc::sigset_t = mem::zeroed();
            libc::sigemptyset(&mut signals);
            libc::sigaddset(&mut signals, signal());
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &signals, ptr::null_mut());
            self.thread_id.store(libc::gettid(), Ordering::Release);
        }
    }

    /// Ends what [`Serving::enter_thread`] has begun, in the same thread.
    pub(crate) fn leave_thread() {
        HANDLED.set(ptr::null());
    }

    /// Returns the entry that the thread serves.
    pub(crate) fn entry(&self) -> Option<u32> {
        (self.entry.load(Ordering::Acquire) & !SIGNALLING).checked_sub(1)
    }

    /// Begins a call.
    #[inline]
    pub(crate) fn begin(&self, entry: u32) {
        self.entry.store(entry + 1, Ordering::Release);
    }

    /// Ends a call. Returns when no signal is on its way.
    #[inline]
    pub(crate) fn end(&self, entry: u32) {
        self.end_with(entry, is_signal_pending);
    }

    /// The same, with a function that makes a system call and returns whether the signal is blocked and pending.
    #[inline]
    fn end_with(&self, entry: u32, is_signal_pending: impl FnMut() -> bool) {
        self.leave(entry);
        if self.is_signal_on_its_way() {
            self.await_signal(is_signal_pending);
        }
    }

    /// Notes that no call is made, once no other thread signals this one.
    #[inline]
    fn leave(&self, entry: u32) {
        let mut spins = 0;
        while self
            .entry
            .compare_exchange_weak(entry + 1, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            pause(&mut spins);
        }
    }

    fn is_signal_on_its_way(&self) -> bool {
        self.sent.load(Ordering::Relaxed) != self.handled.load(Ordering::Acquire)
    }

    /// Waits until a signal that was sent to the calling thread is handled.
    #[cold]
    fn await_signal(&self, mut is_signal_pending: impl FnMut() -> bool) {
        while self.is_signal_on_its_way() {
            // The kernel delivers a signal at the end of any system call of the thread, such as this one, unless the
            // signal is blocked; then it is pending.
            if !is_signal_pending() {
                // If it is not handled now, a call has taken it: the read of a signalfd(2).
                self.sent.store(self.handled.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    }

    /// Signals the thread if it is in the call of an entry that is to be interrupted.
    pub(crate) fn interrupt(&self, index: u32, entry: &Entry) {
        self.interrupt_with(index, entry, || {
            let (process, id) = (std::process::id(), self.thread_id.load(Ordering::Acquire));
            // SAFETY: the signal has a handler, which does nothing in threads that have not begun a call. If the thread has
            // died in its call, the kernel finds no such thread, or another one of the process.
            unsafe { libc::syscall(libc::SYS_tgkill, process, id, signal()) == 0 }
        });
    }

    /// The same, with a function that sends the signal and returns whether it could.
    fn interrupt_with(&self, index: u32, entry: &Entry, send: impl FnOnce() -> bool) {
        let (serving, order) = (index + 1, (Ordering::AcqRel, Ordering::Relaxed));
        if self.entry.compare_exchange(serving, serving | SIGNALLING, order.0, order.1).is_err() {
            return;
        }
        // Now the thread stays in this call. Signals of this sort are queued, each in memory of the kernel that is bounded,
        // so there is one at a time: a thread in a call that cannot be interrupted handles it at the end.
        if entry.status() != Status::Cancel || self.is_signal_on_its_way() {
            self.entry.store(serving, Ordering::Release);
            return;
        }
        if send() {
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
        self.entry.store(serving, Ordering::Release);
    }

    /// Forgets the call of a dead thread, of which another one takes the number. Returns when no other thread signals the
    /// dead one, which would store its call once more.
    pub(crate) fn begin_again(&self, entry: u32) {
        self.leave(entry);
    }

    /// Returns whether the thread runs in its call, or could if it had a core: it is not blocked. False if proc(5) does
    /// not say so.
    pub(crate) fn is_running(&self) -> bool {
        let id = self.thread_id.load(Ordering::Acquire);
        // "ID (NAME) STATE ..."; names of syscall threads have no bracket.
        fs::read_to_string(format!("/proc/self/task/{id}/stat"))
            .is_ok_and(|text| text.contains(") R "))
    }

    /// Returns whether the thread is gone although it serves an entry. The kernel ends a thread
    /// alone for seccomp(2), or if a posted call is exit(2).
    pub(crate) fn is_dead(&self) -> bool {
        let id = self.thread_id.load(Ordering::Acquire);
        // SAFETY: signal 0 only checks that the thread exists.
        let found = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), id, 0) };
        found != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn signals_were_queued_while_a_thread_could_not_handle_one() {
        install().unwrap();
        let (serving, entry) = (Serving::default(), Entry::new());
        entry.begin(0);
        assert!(entry.cancel());
        // SAFETY: plain C structures. It exists until the thread calls `leave_thread`.
        let change_mask = |how| unsafe {
            let mut signals: libc::sigset_t = mem::zeroed();
            libc::sigemptyset(&mut signals);
            libc::sigaddset(&mut signals, signal());
            assert_eq!(libc::pthread_sigmask(how, &signals, ptr::null_mut()), 0);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: `serving` exists until the end of the scope.
                unsafe { serving.enter_thread() };
                for _ in 0..2 {
                    let handled = serving.handled.load(Ordering::Relaxed);
                    change_mask(libc::SIG_BLOCK);
                    serving.begin(0);
                    for _ in 0..10 {
                        serving.interrupt(0, &entry);
                    }
                    assert_eq!(serving.sent.load(Ordering::Relaxed), handled + 1);
                    change_mask(libc::SIG_UNBLOCK);
                    serving.end(0);
                    assert_eq!(serving.handled.load(Ordering::Relaxed), handled + 1);
                }
                Serving::leave_thread();
            });
        });
    }
}
