//! The handle of a running mechanism for other threads.

use std::collections::VecDeque;
use std::sync::PoisonError;

use shared_ring::Waker;
use shared_ring::sync::{Arc, AtomicBool, Mutex, Ordering};

/// Handle of a running mechanism, for other threads.
#[derive(Clone, Debug)]
pub struct RemoteHandle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    waker: Waker,
    stop: AtomicBool,
    retire: AtomicBool,
    /// All listeners are closed.
    listeners_closed: AtomicBool,
    tags: Mutex<VecDeque<u64>>,
}

impl RemoteHandle {
    /// Maximum number of pending wake-ups.
    pub const MAX_TAGS: usize = 1024;

    pub(crate) fn new(waker: Waker) -> Self {
        let tags = Mutex::new(VecDeque::with_capacity(Self::MAX_TAGS));
        RemoteHandle(Arc::new(Shared {
            waker,
            stop: AtomicBool::new(false),
            retire: AtomicBool::new(false),
            listeners_closed: AtomicBool::new(false),
            tags,
        }))
    }

    /// Requests a call of [`Application::woken`] with `tag`. If [`RemoteHandle::MAX_TAGS`] wake-ups are
    /// pending, does nothing and returns false.
    ///
    /// [`Application::woken`]: crate::Application::woken
    #[must_use = "without room there is no wake-up"]
    pub fn wake(&self, tag: u64) -> bool {
        let mut tags = self.0.tags.lock().unwrap_or_else(PoisonError::into_inner);
        if tags.len() == Self::MAX_TAGS {
            return false;
        }
        tags.push_back(tag);
        drop(tags);
        self.0.waker.wake();
        true
    }

    /// Stops [`Multiplexer::run`]: listeners and idle connections close. The others get up to
    /// [`Config::drain_timeout`], then they are reset. May be called repeatedly and from several threads.
    ///
    /// [`Multiplexer::run`]: crate::mechanisms::Multiplexer::run
    /// [`Config::drain_timeout`]: crate::Config::drain_timeout
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
        self.0.waker.wake();
    }

    /// Closes the listeners. [`Multiplexer::run`] returns when the last connection has closed: none is closed
    /// for it, and there is no time limit. File operations that hang delay the return by a few seconds at
    /// most. Connections in the backlogs are accepted while there is room; further ones stay there, for other
    /// owners of the sockets ([`Config::inherited`]). [`RemoteHandle::stop`] may follow.
    ///
    /// [`Multiplexer::run`]: crate::mechanisms::Multiplexer::run
    /// [`Config::inherited`]: crate::Config::inherited
    pub fn retire(&self) {
        self.0.retire.store(true, Ordering::Release);
        self.0.waker.wake();
    }

    /// Returns whether the listeners are closed, after [`RemoteHandle::retire`] or [`RemoteHandle::stop`].
    pub fn are_listeners_closed(&self) -> bool {
        self.0.listeners_closed.load(Ordering::Acquire)
    }

    pub(crate) fn set_listeners_closed(&self) {
        self.0.listeners_closed.store(true, Ordering::Release);
    }

    pub(crate) fn stopped(&self) -> bool {
        self.0.stop.load(Ordering::Acquire)
    }

    pub(crate) fn retired(&self) -> bool {
        self.0.retire.load(Ordering::Acquire)
    }

    pub(crate) fn next_tag(&self) -> Option<u64> {
        self.0.tags.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use shared_ring::sync::thread;

    /// One thread wakes with a tag, another stops: the loop, which sleeps when it finds no event, observes
    /// both.
    #[test]
    fn tags_and_stop_are_observed() {
        loom::model(|| {
            let waker = Waker::for_model();
            let remote = RemoteHandle::new(waker.clone());
            let (tag_remote, stop_remote) = (remote.clone(), remote.clone());
            let tags = thread::spawn(move || assert!(tag_remote.wake(7)));
            let stop = thread::spawn(move || stop_remote.stop());
            let (mut tag, mut stopped) = (None, false);
            while tag.is_none() || !stopped {
                waker.drain();
                tag = tag.or_else(|| remote.next_tag());
                stopped |= remote.stopped();
            }
            assert_eq!(tag, Some(7));
            tags.join().unwrap();
            stop.join().unwrap();
        });
    }
}
