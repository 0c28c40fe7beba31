//! Which process this is. A child of fork(2) has copies of all that its parent had; descriptors, and the
//! queues of a ring, are no copies, and the child must leave them alone.
//!
//! The answer lies in a page that is wiped in a child (madvise(2), `MADV_WIPEONFORK`), so it is exact however
//! the child was made, costs no system call, and may be asked for in a signal handler. A child of vfork(2)
//! shares its parent's memory, and is its parent.

use std::io::ErrorKind;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::param::page_size;

use crate::KernelError;

/// A process: this one, or one from which it was forked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

/// Where the number of the process stands; 0 in a child that has not asked.
static NUMBER: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// The highest number that this process or one before it has taken.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

/// In the place of a page, where the kernel knows no pages that are wiped (before Linux 4.14).
static UNWIPED: AtomicU32 = AtomicU32::new(0);

extern "C" fn wipe() {
    UNWIPED.store(0, Ordering::Relaxed);
}

impl Process {
    /// The calling process. After the first call it may be called in a signal handler.
    #[inline]
    pub fn current() -> Self {
        let number = NUMBER.load(Ordering::Acquire);
        // SAFETY: the page stays for good.
        let number = unsafe { number.as_ref() }.unwrap_or_else(set_up);
        match number.load(Ordering::Relaxed) {
            0 => Process::begin(number),
            known => Process(known),
        }
    }

    /// Its number among those from which it was forked; never 0.
    #[inline]
    pub fn number(self) -> u32 {
        self.0
    }

    /// Whether this is the calling process.
    #[inline]
    pub fn is_current(self) -> bool {
        // SAFETY: there is a `Process`, so there is the page, for good. The number of none is 0.
        unsafe { &*NUMBER.load(Ordering::Relaxed) }.load(Ordering::Relaxed) == self.0
    }

    /// Takes a number that no process has from which this one has copies.
    #[cold]
    fn begin(number: &AtomicU32) -> Self {
        // The memory in which the highest stands is a copy of the parent's.
        let own = HIGHEST.fetch_add(1, Ordering::Relaxed) + 1;
        match number.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Process(own),
            Err(another_threads) => Process(another_threads),
        }
    }
}

#[cold]
fn set_up() -> &'static AtomicU32 {
    let made = map().unwrap_or((&raw const UNWIPED).cast_mut());
    let (null, orders) = (ptr::null_mut(), (Ordering::AcqRel, Ordering::Acquire));
    let used = match NUMBER.compare_exchange(null, made, orders.0, orders.1) {
        Ok(_) => {
            if ptr::eq(made, &UNWIPED) {
                // SAFETY: `wipe` stores a number, which may be done in a child of fork(2).
                unsafe { libc::pthread_atfork(None, None, Some(wipe)) };
            }
            made
        }
        Err(another_threads) => {
            if !ptr::eq(made, &UNWIPED) {
                // SAFETY: it was mapped with this length, and nobody else knows of it.
                let _ = unsafe { munmap(made.cast(), page_size()) };
            }
            another_threads
        }
    };
    // SAFETY: a page that is mapped for good and begins with zeroes, or a static.
    unsafe { &*used }
}

/// A page that is wiped in a child.
fn map() -> Option<*mut AtomicU32> {
    let (read_write, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping, at an address that the system chooses.
    let page = unsafe { mmap_anonymous(ptr::null_mut(), page_size(), read_write, private) }.ok()?;
    // SAFETY: the page was just mapped, and holds nothing.
    if unsafe { madvise(page, page_size(), Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: as above.
        let _ = unsafe { munmap(page, page_size()) };
        return None;
    }
    Some(page.cast())
}

/// What a turn ends with in a child.
pub(crate) fn error_in_child() -> KernelError {
    let doing = "a turn in a child of fork(2), whose parent's kernel this is; make one of its own";
    KernelError { context: doing, error: ErrorKind::PermissionDenied.into() }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_process_stays_the_same() {
        let process = Process::current();
        assert!(process.is_current());
        let of_another_thread = std::thread::spawn(Process::current).join().unwrap();
        assert_eq!(of_another_thread, process);
        assert!(!Process(process.0 + 1).is_current());
    }
}
