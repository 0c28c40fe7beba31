//! Waking a kernel from another thread.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
#[cfg(feature = "sim")]
use std::sync::atomic::AtomicU64;
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
    event: Event,
    pending: AtomicBool,
}

/// A counter that can be waited for.
#[derive(Debug)]
enum Event {
    /// eventfd(2).
    Linux(OwnedFd),
    /// A simulated machine's.
    #[cfg(feature = "sim")]
    Played(Fd, Arc<AtomicU64>),
}

impl Event {
    fn fd(&self) -> Fd {
        match self {
            Event::Linux(fd) => Fd::from_raw(fd.as_raw_fd()),
            #[cfg(feature = "sim")]
            Event::Played(fd, _) => *fd,
        }
    }

    fn add_one(&self) {
        match self {
            // A full counter is a wake-up in itself, and nothing else can fail.
            Event::Linux(fd) => drop(rustix::io::write(fd, &1u64.to_ne_bytes())),
            #[cfg(feature = "sim")]
            Event::Played(_, counter) => drop(counter.fetch_add(1, Ordering::AcqRel)),
        }
    }

    fn take(&self) {
        match self {
            Event::Linux(fd) => drop(rustix::io::read(fd, &mut [0; 8])),
            #[cfg(feature = "sim")]
            Event::Played(_, counter) => drop(counter.swap(0, Ordering::AcqRel)),
        }
    }
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
        Ok(Waker::over(Event::Linux(event)))
    }

    fn over(event: Event) -> Self {
        Waker(Arc::new(Shared { event, pending: AtomicBool::new(false) }))
    }

    /// Makes a waker of a simulated machine.
    #[cfg(feature = "sim")]
    pub(crate) fn played(fd: Fd, counter: Arc<AtomicU64>) -> Self {
        Waker::over(Event::Played(fd, counter))
    }

    /// The descriptor, open as long as a clone lives.
    pub fn fd(&self) -> Fd {
        self.0.event.fd()
    }

    /// Wakes the kernel.
    pub fn wake(&self) {
        if !self.0.pending.swap(true, Ordering::AcqRel) {
            self.0.event.add_one();
        }
    }

    /// Lets later wakes through again. Call it after the descriptor was read and before looking
    /// at what the wake was for.
    pub(crate) fn heard(&self) {
        if planted!(NeverHeard) {
            return;
        }
        // Acquires what wakers whose writes were saved have stored before.
        self.0.pending.swap(false, Ordering::AcqRel);
    }

    /// Reads the descriptor and lets later wakes through again. Call it before looking at what the
    /// wake was for.
    pub fn drain(&self) {
        self.0.event.take();
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
