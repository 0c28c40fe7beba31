//! Wakes a task when the sleeping owner of pages should look at them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use shared_ring::author::Process;

use crate::interrupt;

/// A thread that waits for the pages of a runtime while all its tasks do.
#[derive(Debug)]
pub(crate) struct Notifier {
    shared: Arc<NotifierState>,
    process: Process,
}

#[derive(Debug)]
struct NotifierState {
    watch: Mutex<Watch>,
    changed: Condvar,
    pages: OwnedFd,
    stop: OwnedFd,
}

#[derive(Debug, Default)]
struct Watch {
    waker: Option<Waker>,
    stop: bool,
}

impl Notifier {
    /// Starts the thread, which waits for the descriptor of pages.
    pub(crate) fn start(pages: impl AsFd) -> io::Result<Self> {
        let shared = Arc::new(NotifierState {
            watch: Mutex::default(),
            changed: Condvar::new(),
            pages: pages.as_fd().try_clone_to_owned()?,
            stop: eventfd(0, EventfdFlags::CLOEXEC)?,
        });
        let threads = Arc::clone(&shared);
        let builder = thread::Builder::new().name("flexsc notifier".to_owned());
        interrupt::spawn(builder, move || threads.serve())?;
        Ok(Notifier { shared, process: Process::current() })
    }

    /// Has a task woken, once. Returns the waker whose place it takes.
    pub(crate) fn watch(&self, waker: Waker) -> Option<Waker> {
        let former = self.shared.lock().waker.replace(waker);
        self.shared.changed.notify_one();
        former
    }
}

impl NotifierState {
    fn lock(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut watch = self.lock();
        while !watch.stop {
            if watch.waker.is_none() {
                watch = self.changed.wait(watch).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            drop(watch);
            let mut fds =
                [PollFd::new(&self.pages, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
            let polled = poll(&mut fds, None);
            watch = self.lock();
            if polled != Err(Errno::INTR)
                && let Some(waker) = watch.waker.take()
            {
                drop(watch);
                waker.wake();
                watch = self.lock();
            }
        }
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        // A child of fork(2) has no such thread, but its parent, which has the same eventfd, has.
        if !self.process.is_current() {
            return;
        }
        self.shared.lock().stop = true;
        self.shared.changed.notify_one();
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
    }
}
