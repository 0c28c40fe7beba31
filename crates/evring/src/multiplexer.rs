//! The trait that every mechanism implements.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::sync::PoisonError;
use std::time::Duration;

use shared_ring::sync::{Arc, AtomicBool, Mutex, Ordering};
use shared_ring::{Counters, KernelError, Waker};

use crate::{Application, Config, StartError, Unavailable};

/// How a mechanism reports events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// It says which descriptors can be read or written; the work follows.
    Readiness,
    /// It says which work is done.
    Completion,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Readiness => "readiness",
            Family::Completion => "completion",
        })
    }
}

/// A mechanism: it owns the loop and calls the application.
pub trait Multiplexer: Sized {
    /// The name by which users choose it.
    const NAME: &'static str;
    /// How it reports events.
    const FAMILY: Family;
    /// What it is, in a few words.
    const SUMMARY: &'static str;

    /// Whether it can run here.
    ///
    /// # Errors
    /// Says why not, in words a user can act on.
    fn available() -> Result<(), Unavailable>;

    /// Opens the listeners and roots; connections wait in the listeners' queues until `run`.
    ///
    /// # Errors
    /// Says what is missing or in the way.
    fn new(config: &Config) -> Result<Self, StartError>;

    /// The addresses that are listened at, in the order of [`Config::listen`].
    fn addresses(&self) -> &[SocketAddr];

    /// A handle for other threads.
    fn remote(&self) -> RemoteHandle;

    /// Serves until [`RemoteHandle::stop`].
    ///
    /// # Errors
    /// When the kernel can't be used any more.
    fn run<A: Application + 'static>(self, app: A) -> Result<Stats, KernelError>;
}

/// Reaches a running mechanism from another thread.
#[derive(Clone, Debug)]
pub struct RemoteHandle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    waker: Waker,
    stop: AtomicBool,
    tags: Mutex<VecDeque<u64>>,
}

impl RemoteHandle {
    /// The most tags that wait to be told.
    pub const MAX_TAGS: usize = 1024;

    pub(crate) fn new(waker: Waker) -> Self {
        let tags = Mutex::new(VecDeque::with_capacity(Self::MAX_TAGS));
        RemoteHandle(Arc::new(Shared { waker, stop: AtomicBool::new(false), tags }))
    }

    /// Has [`Application::woken`] called with `tag`; returns false, and does nothing, when
    /// [`RemoteHandle::MAX_TAGS`] tags wait already.
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

    /// Ends [`Multiplexer::run`]: listeners close, idle connections close, the others may go on
    /// for [`Config::drain_timeout`], then they are reset. May be called from several threads and again.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
        self.0.waker.wake();
    }

    pub(crate) fn stopped(&self) -> bool {
        self.0.stop.load(Ordering::Acquire)
    }

    pub(crate) fn next_tag(&self) -> Option<u64> {
        self.0.tags.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// What a mechanism did, from its start to its end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections opened by the application.
    pub connected: u64,
    /// Connections that ended, of both kinds.
    pub closed: u64,
    /// Callbacks `received`.
    pub received: u64,
    /// Times accepting paused, for want of descriptors or at the most connections.
    pub accept_pauses: u64,
    /// Connections that were reset before anything was done for them, as they had waited too long or
    /// their peers had gone ([`Config::admission`]).
    pub abandoned: u64,
    /// The length of the listeners' queues, which [`Config::admission`] adapts.
    pub backlog: u32,
    /// Connections that the server can serve in a second, when it was last asked for more; 0 if it
    /// never was.
    pub service_rate: u32,
    /// Connections that were reset as their address had its share ([`Config::max_per_address`]).
    pub refused_addresses: u64,
    /// Accepted connections that the server reset at its stop, for lack of room.
    pub reset_at_stop: u64,
    /// Idle connections that were closed to make room for others.
    pub idle_closed: u64,
    /// Connections that ended as [`CloseReason::Overrun`](crate::CloseReason::Overrun).
    pub overruns: u64,
    /// Completions for connections that were gone.
    pub stale_completions: u64,
    /// Processor time that the mechanism's thread has used, in the kernel too.
    pub cpu_time: Duration,
    /// What the kernel did.
    pub kernel: Counters,
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use shared_ring::sync::thread;

    /// One thread wakes with a tag, another stops: the loop, which sleeps whenever it finds
    /// nothing, sees both.
    #[test]
    fn tags_and_the_stop_are_seen() {
        loom::model(|| {
            let waker = Waker::for_model();
            let remote = RemoteHandle::new(waker.clone());
            let (one, other) = (remote.clone(), remote.clone());
            let tags = thread::spawn(move || assert!(one.wake(7)));
            let stop = thread::spawn(move || other.stop());
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
