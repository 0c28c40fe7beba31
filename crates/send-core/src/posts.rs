//! Events that threads post to each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_queue::ArrayQueue;
use shared_ring::Waker;

use crate::gate::Gate;
use crate::{PostError, signals};

/// What posts wait in until their thread looks.
#[derive(Debug)]
pub(crate) struct Posts {
    values: ArrayQueue<u64>,
    /// The thread was told, and has not looked since.
    told: AtomicBool,
    /// The thread sleeps, or is about to.
    sleeps: AtomicBool,
    ended: AtomicBool,
    thread: i32,
    waker: Waker,
}

/// Posts events of the type [`USER`](crate::EventType::USER) to a thread's block, from any thread.
#[derive(Clone, Debug)]
pub struct Poster(Arc<Posts>);

impl Poster {
    /// Posts an event that says `value`. The first since the thread has looked interrupts it.
    ///
    /// # Errors
    /// When there is no room, or the block is gone, with its thread or before.
    pub fn post(&self, value: u64) -> Result<(), PostError> {
        self.0.post(value)
    }
}

impl From<&Arc<Posts>> for Poster {
    fn from(posts: &Arc<Posts>) -> Self {
        Poster(Arc::clone(posts))
    }
}

impl Posts {
    pub(crate) fn new(most: u32, thread: i32, waker: Waker) -> Self {
        Posts {
            values: ArrayQueue::new(most.max(1) as usize),
            told: AtomicBool::new(false),
            sleeps: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            thread,
            waker,
        }
    }

    fn post(&self, value: u64) -> Result<(), PostError> {
        if self.ended.load(Ordering::Acquire) {
            return Err(PostError::Ended(value));
        }
        // Who posts to itself must not look while it is at it.
        let pushed = Gate::closed(|| self.values.push(value));
        pushed.map_err(PostError::Full)?;
        if !self.told.swap(true, Ordering::SeqCst) {
            signals::notify(self.thread);
            if self.sleeps.load(Ordering::SeqCst) {
                self.waker.wake();
            }
        }
        Ok(())
    }

    /// Takes the oldest out, for a thread that looks.
    pub(crate) fn take(&self) -> Option<u64> {
        self.told.store(false, Ordering::SeqCst);
        self.values.pop()
    }

    /// Whether there are any.
    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The thread is about to sleep, or has woken. What is posted from now on wakes it.
    pub(crate) fn set_sleeps(&self, sleeps: bool) {
        self.sleeps.store(sleeps, Ordering::SeqCst);
    }

    /// Wakes the thread, from a signal handler of its own.
    pub(crate) fn wake_if_asleep(&self) {
        if self.sleeps.load(Ordering::SeqCst) {
            self.waker.wake();
        }
    }

    /// The thread that they are for.
    pub(crate) fn thread(&self) -> i32 {
        self.thread
    }

    /// The block is gone.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }
}
