//! Waking a kernel from another thread.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
#[cfg(feature = "sim")]
use std::sync::atomic::AtomicU64;

use rustix::event::{EventfdFlags, eventfd};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::sync::{Arc, AtomicBool, Ordering};
use crate::{Fd, Process};

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
    /// The process that is woken.
    process: Process,
}

/// A counter that can be waited for.
#[derive(Debug)]
enum Event {
    /// eventfd(2).
    Linux(OwnedFd),
    /// pipe(2): the end that is read, and the other.
    Pipe(OwnedFd, OwnedFd),
    /// A simulated machine's.
    #[cfg(feature = "sim")]
    Simulated(Fd, std::sync::Arc<AtomicU64>),
    /// A model's.
    #[cfg(loom)]
    Model(crate::sync::Mutex<u64>, crate::sync::Condvar),
}

impl Event {
    fn fd(&self) -> Fd {
        match self {
            Event::Linux(fd) | Event::Pipe(fd, _) => Fd::from_raw(fd.as_raw_fd()),
            #[cfg(feature = "sim")]
            Event::Simulated(fd, _) => *fd,
            #[cfg(loom)]
            Event::Model(..) => Fd::from_raw(-1),
        }
    }

    fn add_one(&self) {
        match self {
            // A full counter is a wake-up in itself, and nothing else can fail.
            Event::Linux(fd) => drop(rustix::io::write(fd, &1u64.to_ne_bytes())),
            // The same holds for a full pipe.
            Event::Pipe(_, fd) => drop(rustix::io::write(fd, &[0])),
            #[cfg(feature = "sim")]
            Event::Simulated(_, counter) => drop(counter.fetch_add(1, Ordering::AcqRel)),
            #[cfg(loom)]
            Event::Model(count, rung) => {
                *count.lock().unwrap() += 1;
                rung.notify_one();
            }
        }
    }

    fn take(&self) {
        match self {
            Event::Linux(fd) | Event::Pipe(fd, _) => drop(rustix::io::read(fd, &mut [0; 8])),
            #[cfg(feature = "sim")]
            Event::Simulated(_, counter) => drop(counter.swap(0, Ordering::AcqRel)),
            #[cfg(loom)]
            Event::Model(count, rung) => {
                let mut count = count.lock().unwrap();
                while *count == 0 {
                    count = rung.wait(count).unwrap();
                }
                *count = 0;
            }
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

    /// Makes a waker whose descriptor can signal (fcntl(2), `O_ASYNC`).
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

    /// Makes a waker of a simulated machine.
    #[cfg(feature = "sim")]
    pub(crate) fn simulated(fd: Fd, counter: std::sync::Arc<AtomicU64>) -> Self {
        Waker::over(Event::Simulated(fd, counter))
    }

    /// Makes a waker of a model, in which [`Waker::drain`] waits.
    #[cfg(loom)]
    pub fn for_model() -> Self {
        Waker::over(Event::Model(Default::default(), crate::sync::Condvar::new()))
    }

    /// The number of the descriptor, which is open as long as a clone lives.
    pub(crate) fn fd(&self) -> Fd {
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
    pub(crate) fn acknowledge(&self) {
        // Acquires what wakers whose writes were saved have stored before.
        self.0.pending.swap(false, Ordering::AcqRel);
    }

    /// Reads the descriptor and lets later wakes through again. Call it before looking at what the
    /// wake was for. In a child of fork(2), which has the same descriptor, what is there is its parent's.
    pub fn drain(&self) {
        if self.0.process.is_current() {
            self.0.event.take();
        }
        self.acknowledge();
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

    /// Two threads leave something and wake; the kernel, which sleeps whenever it finds nothing,
    /// sees both, however wakes are coalesced. A wake that is lost is a deadlock.
    #[test]
    fn no_wake_is_lost() {
        loom::model(|| {
            let waker = Waker::for_model();
            let left = Arc::new(Mutex::new(0));
            let wakers: Vec<_> = (0..2)
                .map(|_| {
                    let (waker, left) = (waker.clone(), Arc::clone(&left));
                    thread::spawn(move || {
                        *left.lock().unwrap() += 1;
                        waker.wake();
                    })
                })
                .collect();
            while *left.lock().unwrap() < 2 {
                waker.drain();
            }
            wakers.into_iter().for_each(|waker| waker.join().unwrap());
        });
    }

    /// The same with what is left in an atomic, as a server's order to stop is.
    #[test]
    fn what_was_stored_before_a_wake_is_seen_after_it() {
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
