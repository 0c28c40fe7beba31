//! Wakes a task when the sleeping owner of pages should look at them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use shared_ring::author::Process;

use crate::interrupt;
use crate::watch::Watch;

/// Time in which a driver that was woken should take its turn.
const TICK: Duration = Duration::from_millis(10);

/// Longest time between two looks at whether the driver was woken by another thread than the notifier. From then on it
/// counts ticks.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Time after which a thread that could not be started is tried again.
pub(crate) const RETRY: Duration = Duration::from_secs(1);

/// A thread that waits for the pages of a runtime while all its tasks do.
#[derive(Debug)]
pub(crate) struct Notifier {
    shared: Arc<NotifierState>,
    process: Process,
}

#[derive(Debug)]
struct NotifierState {
    state: Mutex<State>,
    changed: Condvar,
    pages: OwnedFd,
    stop: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    watch: Watch,
    sleep: Sleep,
    stop: bool,
}

/// How the thread waits for a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sleep {
    /// It does not, or was woken.
    #[default]
    No,
    /// Until there is something to wait for.
    Idle,
    /// For a tick.
    Tick,
}

impl State {
    /// Returns whether the thread must be woken after a change: it has to wait for something else.
    fn must_wake(&mut self) -> bool {
        let must_wake = match self.sleep {
            Sleep::No => false,
            Sleep::Idle => self.watch.is_parked() || self.watch.is_due(),
            Sleep::Tick => self.watch.is_parked(),
        };
        if must_wake {
            self.sleep = Sleep::No;
        }
        must_wake
    }
}

impl Notifier {
    /// Starts the thread, which waits for the descriptor of pages.
    pub(crate) fn start(pages: impl AsFd) -> io::Result<Self> {
        let shared = Arc::new(NotifierState {
            state: Mutex::default(),
            changed: Condvar::new(),
            pages: pages.as_fd().try_clone_to_owned()?,
            stop: eventfd(0, EventfdFlags::CLOEXEC)?,
        });
        let threads = Arc::clone(&shared);
        let builder = thread::Builder::new().name("flexsc notifier".to_owned());
        interrupt::spawn(builder, move || threads.serve())?;
        Ok(Notifier { shared, process: Process::current() })
    }

    /// Changes what the thread wakes. In a child of fork(2), which has no such thread, returns the default.
    pub(crate) fn with<R: Default>(&self, change: impl FnOnce(&mut Watch) -> R) -> R {
        if !self.process.is_current() {
            return R::default();
        }
        let mut state = self.shared.lock();
        let result = change(&mut state.watch);
        let must_wake = state.must_wake();
        drop(state);
        if must_wake {
            self.shared.changed.notify_one();
        }
        result
    }
}

impl NotifierState {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut pause = TICK;
        let mut state = self.lock();
        while !state.stop {
            if state.watch.is_parked() {
                drop(state);
                let is_ready = self.wait_for_pages(pause);
                state = self.lock();
                pause = if is_ready { TICK } else { MAX_PAUSE.min(pause * 2) };
                if is_ready && let Some(driver) = state.watch.take_driver() {
                    drop(state);
                    driver.wake();
                    state = self.lock();
                }
            } else if state.watch.is_due() {
                state.sleep = Sleep::Tick;
                let (waited, timeout) =
                    self.changed.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner);
                state = waited;
                state.sleep = Sleep::No;
                let overdue = if timeout.timed_out() { state.watch.tick() } else { Vec::new() };
                drop(state);
                overdue.into_iter().for_each(Waker::wake);
                state = self.lock();
            } else {
                state.sleep = Sleep::Idle;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.sleep = Sleep::No;
            }
        }
    }

    /// Waits until the pages have something to do, at most for a time. Returns whether they have.
    fn wait_for_pages(&self, timeout: Duration) -> bool {
        let mut fds =
            [PollFd::new(&self.pages, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
        let timeout = Timespec::try_from(timeout).ok();
        !matches!(poll(&mut fds, timeout.as_ref()), Ok(0) | Err(Errno::INTR))
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
