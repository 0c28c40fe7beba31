//! Identifies the calling process. A child of fork(2) has copies of its parent's memory, but shares
//! its descriptors and ring queues, which the child must not use.
//!
//! The identifier is kept in a page that the kernel wipes in a child (madvise(2),
//! `MADV_WIPEONFORK`). So it is exact however the child was made, costs no system call, and can be
//! read in a signal handler. A child of vfork(2) shares its parent's memory and counts as its parent.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::param::page_size;

/// Identifies a process: this one, or one from which it was forked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

/// Address of the process's number; 0 in a child that has not called [`Process::current`].
static NUMBER: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Highest number taken by this process or its ancestors.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

/// Replaces the page on kernels without `MADV_WIPEONFORK` (before Linux 4.14).
static UNWIPED: AtomicU32 = AtomicU32::new(0);

/// Whether this process has called fork(2). A child may have copies of its descriptors.
static HAS_FORKED: AtomicBool = AtomicBool::new(false);

/// Called before each fork(2), so that no child exists without notice.
extern "C" fn forks() {
    HAS_FORKED.store(true, Ordering::Relaxed);
}

/// Called in each child.
extern "C" fn begin_child() {
    UNWIPED.store(0, Ordering::Relaxed);
    HAS_FORKED.store(false, Ordering::Relaxed);
}

impl Process {
    /// Returns the calling process. After the first call, safe to call in a signal handler.
    #[inline]
    pub fn current() -> Self {
        let number = NUMBER.load(Ordering::Acquire);
        // SAFETY: the page is never unmapped.
        let number = unsafe { number.as_ref() }.unwrap_or_else(set_up);
        match number.load(Ordering::Relaxed) {
            0 => Process::begin(number),
            known => Process(known),
        }
    }

    /// Returns its number, which is unique among its ancestors and never 0.
    #[inline]
    pub fn number(self) -> u32 {
        self.0
    }

    /// Returns whether this is the calling process.
    #[inline]
    pub fn is_current(self) -> bool {
        // SAFETY: a `Process` exists, so the page exists and is never unmapped. No process has number 0.
        unsafe { &*NUMBER.load(Ordering::Relaxed) }.load(Ordering::Relaxed) == self.0
    }

    /// Returns whether the calling process has called fork(2) since the first call of [`Process::current`].
    pub(crate) fn has_forked() -> bool {
        HAS_FORKED.load(Ordering::Relaxed)
    }

    /// Returns a process that is not the calling one.
    #[cfg(all(test, not(loom), target_arch = "x86_64"))]
    pub(crate) fn other() -> Self {
        Process(u32::MAX)
    }

    /// Takes a number that no ancestor has.
    #[cold]
    fn begin(number: &AtomicU32) -> Self {
        // `HIGHEST` is a copy of the parent's.
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
            // SAFETY: the functions store numbers, which may be done in a child of fork(2).
            unsafe { libc::pthread_atfork(Some(forks), None, Some(begin_child)) };
            made
        }
        Err(another_threads) => {
            if !ptr::eq(made, &UNWIPED) {
                // SAFETY: it was mapped with this length, and its address was not shared.
                let _ = unsafe { munmap(made.cast(), page_size()) };
            }
            another_threads
        }
    };
    // SAFETY: a page that is never unmapped and begins with zeroes, or a static.
    unsafe { &*used }
}

/// Maps a page that is wiped in a child.
fn map() -> Option<*mut AtomicU32> {
    let (read_write, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let page = unsafe { mmap_anonymous(ptr::null_mut(), page_size(), read_write, private) }.ok()?;
    // SAFETY: the page was just mapped, and holds nothing.
    if unsafe { madvise(page, page_size(), Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: as above.
        let _ = unsafe { munmap(page, page_size()) };
        return None;
    }
    Some(page.cast())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn process_is_the_same_in_all_threads() {
        let process = Process::current();
        assert!(process.is_current());
        let of_another_thread = std::thread::spawn(Process::current).join().unwrap();
        assert_eq!(of_another_thread, process);
        assert!(!Process(process.0 + 1).is_current());
    }
}
