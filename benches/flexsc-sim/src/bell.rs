//! Wakes the owner of the pages while it sleeps: a flag, as nothing else runs meanwhile.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Its number in waits, which no descriptor of the machine has.
pub(crate) const BELL: RawFd = 0;

thread_local! {
    /// Whether the bell of the present run has rung.
    static HAS_RUNG: RefCell<Arc<AtomicBool>> = RefCell::default();
}

/// Returns whether the bell of the present run has rung.
pub(crate) fn has_rung() -> bool {
    HAS_RUNG.with_borrow(|bell| bell.load(Ordering::Relaxed))
}

/// Whether the owner sleeps, or is about to.
#[derive(Debug, Default)]
pub(crate) struct Sleep(AtomicBool);

impl Sleep {
    pub(crate) fn prepare(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Bell {
    has_rung: Arc<AtomicBool>,
    pub(crate) sleep: Sleep,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        let has_rung = Arc::default();
        HAS_RUNG.set(Arc::clone(&has_rung));
        Ok(Bell { has_rung, sleep: Sleep::default() })
    }

    /// Wakes the owner if it sleeps.
    pub(crate) fn ring(&self) {
        if self.sleep.0.swap(false, Ordering::Relaxed) {
            self.has_rung.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn reset(&self) {
        self.has_rung.store(false, Ordering::Relaxed);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: a number for waits, which no system call gets.
        unsafe { BorrowedFd::borrow_raw(BELL) }
    }
}
