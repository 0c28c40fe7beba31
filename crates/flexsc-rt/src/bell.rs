//! Wakes the owner of the pages while it sleeps.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use shared_ring::sync::{AtomicBool, Ordering, fence};

/// Whether the owner sleeps, or is about to.
#[derive(Debug)]
pub(crate) struct Sleep(AtomicBool);

impl Sleep {
    pub(crate) fn new() -> Self {
        Sleep(AtomicBool::new(false))
    }

    /// Declares that the owner will sleep. It must look for completions once more afterwards.
    pub(crate) fn prepare(&self) {
        self.0.store(true, Ordering::Relaxed);
        // Either this owner sees the completion, or its producer sees that the owner sleeps.
        fence(Ordering::SeqCst);
    }

    /// Declares that the owner does not sleep.
    pub(crate) fn end(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Returns whether the owner sleeps, or is about to.
    pub(crate) fn is_sleeping(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns whether the caller, which has completed a call, must wake the owner.
    pub(crate) fn must_ring(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

/// An eventfd(2) that is readable after a completion that the owner sleeps for.
#[derive(Debug)]
pub(crate) struct Bell {
    event: OwnedFd,
    pub(crate) sleep: Sleep,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Bell { event, sleep: Sleep::new() })
    }

    /// Wakes the owner if it sleeps. To be called after a completion was pushed.
    pub(crate) fn ring(&self) {
        if self.sleep.must_ring() {
            // Fails only if the counter is full, which wakes as well.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Resets the eventfd.
    pub(crate) fn reset(&self) {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
