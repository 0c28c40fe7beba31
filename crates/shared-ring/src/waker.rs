//! Waking a kernel from another thread.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use crate::Fd;

/// Ends the wait of the kernel it came from; cheap to clone, usable from any thread.
///
/// Wakes are coalesced: any number of them before the kernel looks cost one system call and
/// cause one [`Outcome::Woken`](crate::Outcome::Woken).
#[derive(Clone, Debug)]
pub struct Waker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    event: OwnedFd,
    pending: AtomicBool,
}

impl Waker {
    /// Makes a waker; its descriptor can be read from when it was woken.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn new() -> io::Result<Self> {
        Self::with(EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
    }

    /// Makes a waker whose descriptor the ring reads, and waits for.
    pub(crate) fn for_ring() -> io::Result<Self> {
        Self::with(EventfdFlags::CLOEXEC)
    }

    fn with(flags: EventfdFlags) -> io::Result<Self> {
        let event = eventfd(0, flags)?;
        Ok(Waker(Arc::new(Shared { event, pending: AtomicBool::new(false) })))
    }

    /// The descriptor, open as long as a clone lives.
    pub fn fd(&self) -> Fd {
        Fd::from_raw(self.0.event.as_raw_fd())
    }

    /// Wakes the kernel.
    pub fn wake(&self) {
        if !self.0.pending.swap(true, Ordering::AcqRel) {
            // A full counter is a wake-up in itself, and nothing else can fail.
            let _ = rustix::io::write(&self.0.event, &1u64.to_ne_bytes());
        }
    }

    /// Lets later wakes through again. Call it after the descriptor was read and before looking
    /// at what the wake was for.
    pub(crate) fn heard(&self) {
        // Acquires what wakers whose writes were saved have stored before.
        self.0.pending.swap(false, Ordering::AcqRel);
    }

    /// Reads the descriptor and lets later wakes through again. Call it before looking at what the
    /// wake was for.
    pub fn drain(&self) {
        let _ = rustix::io::read(&self.0.event, &mut [0; 8]);
        self.heard();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::borrow;

    fn readable(waker: &Waker) -> bool {
        rustix::io::read(borrow(&waker.fd()), &mut [0; 8]).is_ok()
    }

    #[test]
    fn wakes_before_the_look_are_one() {
        let waker = Waker::new().unwrap();
        waker.wake();
        waker.clone().wake();
        assert!(readable(&waker));
        waker.wake();
        assert!(!readable(&waker), "not heard yet, so the second write is saved");
        waker.heard();
        waker.wake();
        waker.drain();
        assert!(!readable(&waker));
        waker.wake();
        assert!(readable(&waker));
    }
}
