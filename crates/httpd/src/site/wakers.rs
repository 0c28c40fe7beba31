//! Wake-ups of connections whose handlers wait.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use evring::mailbox::{Mailbox, SendError, Sender};
use evring::{Commands, ConnId, RemoteHandle};

/// Tag of the wake-ups.
pub(crate) const TAG: u64 = u64::from_be_bytes(*b"handlers");

/// Wake-ups that the mailbox holds. If there are more, every connection is polled.
const CAPACITY: usize = 1024;

/// The wake-ups of a worker.
#[derive(Debug)]
pub(crate) struct Wakers {
    mailbox: Mailbox<ConnId>,
    target: Arc<Target>,
    /// Buffer for the connections that were woken.
    woken: Vec<ConnId>,
}

/// The state that all wakers of a worker share.
#[derive(Debug)]
struct Target {
    sender: Sender<ConnId>,
    remote: RemoteHandle,
    /// The mailbox was full; a wake-up follows.
    overflow: AtomicBool,
}

impl Wakers {
    pub(crate) fn new(remote: &RemoteHandle) -> Self {
        let (mailbox, sender) = Mailbox::new(remote, TAG, CAPACITY);
        let target = Target { sender, remote: remote.clone(), overflow: AtomicBool::new(false) };
        Wakers { mailbox, target: Arc::new(target), woken: Vec::with_capacity(CAPACITY) }
    }

    /// Creates the waker of a connection.
    pub(crate) fn task(&self, id: ConnId) -> Task {
        let target = Arc::clone(&self.target);
        Task(Arc::new(ConnWaker { id, is_queued: AtomicBool::new(false), target }))
    }

    /// Takes the connections that were woken: all open ones if there were too many.
    pub(crate) fn take_woken(&mut self, io: &impl Commands) -> Vec<ConnId> {
        let mut woken = mem::take(&mut self.woken);
        woken.extend(self.mailbox.drain());
        // After the mailbox: the first waker without room sets the flag, then wakes the worker again. All that find it
        // set have changed what they wake for before.
        if self.target.overflow.swap(false, Ordering::AcqRel) {
            woken.clear();
            let mut next = io.next_open(0);
            while let Some(id) = next {
                woken.push(id);
                next = io.next_open(id.slot() + 1);
            }
        }
        woken
    }

    /// Returns the buffer of [`Wakers::take_woken`].
    pub(crate) fn recycle(&mut self, mut woken: Vec<ConnId>) {
        woken.clear();
        woken.shrink_to(CAPACITY);
        self.woken = woken;
    }
}

/// The waker of a connection, the same for all its handlers.
#[derive(Clone, Debug)]
pub(crate) struct Task(Arc<ConnWaker>);

impl Task {
    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.0))
    }

    /// Makes wake-ups have no effect until [`Task::begin_poll`]: the connection is polled anyway.
    pub(crate) fn suppress(&self) {
        self.0.is_queued.store(true, Ordering::Relaxed);
    }

    /// Makes the next wake-up have an effect.
    pub(crate) fn begin_poll(&self) {
        // What threads have changed before their wake-up is visible to the poll.
        self.0.is_queued.swap(false, Ordering::AcqRel);
    }
}

#[derive(Debug)]
struct ConnWaker {
    id: ConnId,
    /// A wake-up is on its way.
    is_queued: AtomicBool,
    target: Arc<Target>,
}

impl Wake for ConnWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let Target { sender, remote, overflow } = &*self.target;
        if let Err(SendError::Full(_)) = sender.send(self.id) {
            // One for all of them: each takes a place that the results of other threads need.
            if !overflow.swap(true, Ordering::AcqRel) {
                // Without room, a wake-up with this tag is pending: the others are few.
                let _ = remote.wake(TAG);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use evring::{AnyMechanism, Config};

    use super::*;

    #[test]
    fn wakeups_without_room_in_the_mailbox_left_none_for_the_results_of_threads() {
        const OTHER: u64 = TAG + 1;
        let mechanism = AnyMechanism::new("auto", &Config::default()).unwrap();
        let remote = mechanism.remote();
        let wakers = Wakers::new(&remote);
        // The worker takes none of them meanwhile.
        for n in 0..3 * CAPACITY as u32 {
            wakers.task(ConnId::new(n, 1)).waker().wake();
        }
        assert!(wakers.target.overflow.load(Ordering::Relaxed));
        assert!(remote.wake(OTHER), "no room");
    }
}
