//! Wakes a kernel from another thread.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::sync::{Arc, AtomicBool, Ordering};
use crate::{Fd, Process};

/// Ends the wait of its kernel. Cheap to clone, usable from any thread.
///
/// Wakes are coalesced: any number of them before the kernel acknowledges the first cost one
/// system call and cause one [`Outcome::Woken`](crate::Outcome::Woken).
#[derive(Clone, Debug)]
pub struct Waker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    event: Event,
    pending: AtomicBool,
    /// The process of the kernel.
    process: Process,
}

/// A counter of a machine, as eventfd(2) creates one.
pub trait EventCounter: fmt::Debug + Send + Sync {
    /// Returns the descriptor's number. It is readable while the counter is not zero, and open as long as
    /// the counter exists.
    fn fd(&self) -> Fd;

    /// Adds one.
    fn add_one(&self);

    /// Sets the counter to zero.
    fn reset(&self);
}

/// A counter or pipe to wait on.
#[derive(Debug)]
enum Event {
    /// eventfd(2).
    Linux(OwnedFd),
    /// pipe(2): the read end and the write end.
    Pipe(OwnedFd, OwnedFd),
    /// A counter of another machine.
    Other(Box<dyn EventCounter>),
}

impl Event {
    fn fd(&self) -> Fd {
        match self {
            Event::Linux(fd) | Event::Pipe(fd, _) => Fd::from_raw(fd.as_raw_fd()),
            Event::Other(counter) => counter.fd(),
        }
    }

    fn add_one(&self) {
        match self {
            // Fails only if the counter is full, which wakes as well.
            Event::Linux(fd) => drop(rustix::io::write(fd, &1u64.to_ne_bytes())),
            // The same for a full pipe.
            Event::Pipe(_, fd) => drop(rustix::io::write(fd, &[0])),
            Event::Other(counter) => counter.add_one(),
        }
    }

    fn take(&self) {
        match self {
            Event::Linux(fd) | Event::Pipe(fd, _) => drop(rustix::io::read(fd, &mut [0; 8])),
            Event::Other(counter) => counter.reset(),
        }
    }
}

impl Waker {
    /// Creates a waker whose descriptor becomes readable on a wake.
    ///
    /// # Errors
    /// If there is no free descriptor.
    pub fn new() -> io::Result<Self> {
        Self::with(EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
    }

    /// Creates a waker with a blocking descriptor, which the ring reads.
    pub(crate) fn for_ring() -> io::Result<Self> {
        Self::with(EventfdFlags::CLOEXEC)
    }

    /// Creates a waker whose descriptor can signal (fcntl(2), `O_ASYNC`).
    pub(crate) fn with_pipe() -> io::Result<Self> {
        let (reads, writes) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Waker::over(Event::Pipe(reads, writes)))
    }

    fn with(flags: EventfdFlags) -> io::Result<Self> {
        let event = eventfd(0, flags)?;
        Ok(Waker::over(Event::Linux(event)))
    }

    fn over(event: Event) -> Self {
        let process = Process::current();
        Waker(Arc::new(Shared { event, pending: AtomicBool::new(false), process }))
    }

    /// Creates a waker over a counter of another machine.
    pub fn of(counter: impl EventCounter + 'static) -> Self {
        Waker::over(Event::Other(Box::new(counter)))
    }

    /// Creates a waker of a loom model, in which [`Waker::drain`] waits.
    #[cfg(loom)]
    pub fn for_model() -> Self {
        Waker::of(ModelCounter(Default::default(), crate::sync::Condvar::new()))
    }

    /// Returns the descriptor's number, which is open as long as a clone lives.
    pub(crate) fn fd(&self) -> Fd {
        self.0.event.fd()
    }

    /// Wakes the kernel.
    pub fn wake(&self) {
        if !self.0.pending.swap(true, Ordering::AcqRel) {
            self.0.event.add_one();
        }
    }

    /// Allows later wakes to write again. Call it after reading the descriptor and before
    /// processing the work that the wake announces.
    pub(crate) fn acknowledge(&self) {
        // Acquires the stores of wakers whose writes were coalesced.
        self.0.pending.swap(false, Ordering::AcqRel);
    }

    /// Reads the descriptor and allows later wakes to write again. Call it before processing the
    /// work that the wake announces. In a child of fork(2) it does not read the shared descriptor,
    /// whose wakes belong to the parent.
    pub fn drain(&self) {
        if self.0.process.is_current() {
            self.0.event.take();
        }
        self.acknowledge();
    }
}

/// A counter of a loom model.
#[cfg(loom)]
#[derive(Debug)]
struct ModelCounter(crate::sync::Mutex<u64>, crate::sync::Condvar);

#[cfg(loom)]
impl EventCounter for ModelCounter {
    fn fd(&self) -> Fd {
        Fd::from_raw(-1)
    }

    fn add_one(&self) {
        *self.0.lock().unwrap() += 1;
        self.1.notify_one();
    }

    fn reset(&self) {
        let mut count = self.0.lock().unwrap();
        while *count == 0 {
            count = self.1.wait(count).unwrap();
        }
        *count = 0;
    }
}

impl AsRawFd for Waker {
    fn as_raw_fd(&self) -> RawFd {
        self.fd().raw()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::descriptor::borrow;

    fn readable(waker: &Waker) -> bool {
        rustix::io::read(borrow(&waker.fd()), &mut [0; 8]).is_ok()
    }

    #[test]
    fn wakes_before_acknowledge_are_coalesced() {
        let waker = Waker::new().unwrap();
        waker.wake();
        waker.clone().wake();
        assert!(readable(&waker));
        waker.wake();
        assert!(!readable(&waker), "not acknowledged yet, so the second write is coalesced");
        waker.acknowledge();
        waker.wake();
        waker.drain();
        assert!(!readable(&waker));
        waker.wake();
        assert!(readable(&waker));
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::{Mutex, thread};

    /// Two threads increment a count and wake. The kernel, which sleeps while the count is short,
    /// observes both, however wakes are coalesced. A lost wake is a deadlock.
    #[test]
    fn no_wake_is_lost() {
        loom::model(|| {
            let waker = Waker::for_model();
            let count = Arc::new(Mutex::new(0));
            let wakers: Vec<_> = (0..2)
                .map(|_| {
                    let (waker, count) = (waker.clone(), Arc::clone(&count));
                    thread::spawn(move || {
                        *count.lock().unwrap() += 1;
                        waker.wake();
                    })
                })
                .collect();
            while *count.lock().unwrap() < 2 {
                waker.drain();
            }
            wakers.into_iter().for_each(|waker| waker.join().unwrap());
        });
    }

    /// The same with relaxed stores to atomics, such as a server's stop flag.
    #[test]
    fn stores_before_wake_are_visible_after_drain() {
        loom::model(|| {
            let waker = Waker::for_model();
            let flags: Vec<_> = (0..2).map(|_| Arc::new(AtomicBool::new(false))).collect();
            let wakers: Vec<_> = flags
                .iter()
                .map(|flag| {
                    let (waker, flag) = (waker.clone(), Arc::clone(flag));
                    thread::spawn(move || {
                        flag.store(true, Ordering::Relaxed);
                        waker.wake();
                    })
                })
                .collect();
            while !flags.iter().all(|flag| flag.load(Ordering::Relaxed)) {
                waker.drain();
            }
            wakers.into_iter().for_each(|waker| waker.join().unwrap());
        });
    }
}
