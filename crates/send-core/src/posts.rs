//! Events that threads post to each other.

use std::sync::Arc;

use shared_ring::Waker;

use crate::gate::Gate;
use crate::sync::{ArrayQueue, AtomicBool, AtomicU32, Ordering};
use crate::{PostError, signals};

/// What posts wait in until their thread looks.
#[derive(Debug)]
pub(crate) struct Posts {
    values: ArrayQueue<u64>,
    /// What posters and the thread tell each other, in one word: who changes it sees all of it.
    state: AtomicU32,
    ended: AtomicBool,
    thread: i32,
    waker: Waker,
}

/// The thread was told, and has not looked since.
const TOLD: u32 = 1;
/// The thread sleeps, or is about to.
const SLEEPS: u32 = 2;

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
            state: AtomicU32::new(0),
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
        let state = self.state.fetch_or(TOLD, Ordering::SeqCst);
        if state & TOLD == 0 {
            signals::notify(self.thread);
        }
        // Also when it was told: the thread may have taken an event before its poster came to tell of
        // it, which then told of nothing.
        if state & SLEEPS != 0 {
            self.waker.wake();
        }
        Ok(())
    }

    /// Takes the oldest out, for a thread that looks.
    pub(crate) fn take(&self) -> Option<u64> {
        // Whoever sets it interrupts the thread, which will see it then if it does not now.
        if self.state.load(Ordering::Relaxed) & TOLD != 0 {
            self.state.fetch_and(!TOLD, Ordering::SeqCst);
        }
        self.values.pop()
    }

    /// Whether there are any.
    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The thread is about to sleep, or has woken. What is posted from now on wakes it.
    pub(crate) fn set_sleeps(&self, sleeps: bool) {
        if sleeps {
            self.state.fetch_or(SLEEPS, Ordering::SeqCst);
        } else {
            self.state.fetch_and(!SLEEPS, Ordering::SeqCst);
        }
    }

    /// Wakes the thread, from a signal handler of its own.
    pub(crate) fn wake_if_asleep(&self) {
        if self.state.load(Ordering::SeqCst) & SLEEPS != 0 {
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

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::thread;

    /// One thread posts twice, another takes what there is and sleeps when there is nothing: a post
    /// that was taken before its poster said so left the next one to a sleeper that nobody woke.
    #[test]
    fn a_post_wakes_who_sleeps() {
        loom::model(|| {
            let waker = Waker::modelled();
            // No thread has the number 0, so nobody is interrupted.
            let posts = Arc::new(Posts::new(2, 0, waker.clone()));
            let poster = Poster::from(&posts);
            let posting = thread::spawn(move || {
                poster.post(1).unwrap();
                poster.post(2).unwrap();
            });
            let mut taken = Vec::new();
            while taken.len() < 2 {
                while let Some(value) = posts.take() {
                    taken.push(value);
                }
                posts.set_sleeps(true);
                if taken.len() < 2 && posts.is_empty() {
                    waker.drain();
                }
                posts.set_sleeps(false);
            }
            posting.join().unwrap();
            assert_eq!(taken, [1, 2]);
        });
    }
}
