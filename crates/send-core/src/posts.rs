//! Events that threads post to each other.

use std::sync::Arc;

use shared_ring::Waker;
use shared_ring::author::Process;
use shared_ring::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::{PostError, notification};

/// Posted events until their thread takes them.
#[derive(Debug)]
pub(crate) struct PostQueue {
    values: Values,
    /// Flags shared by posters and the thread in one word, so that each change returns all of them.
    state: AtomicU32,
    closed: AtomicBool,
    thread: i32,
    waker: Waker,
    process: Process,
}

/// The thread was notified, and has not polled since.
const NOTIFIED: u32 = 1;
/// The thread sleeps, or is about to.
const SLEEPING: u32 = 2;

/// Values posted by any thread and taken by one: D. Vyukov's bounded queue. No party
/// waits for another or allocates, so both may run in a signal handler.
#[derive(Debug)]
struct Values {
    /// Their number is a power of two.
    slots: Box<[Slot]>,
    /// Maximum number of slots in use.
    max: u64,
    /// The position for the next poster. (64 bits do not wrap.)
    tail: AtomicU64,
    /// The position to take next; only the consumer changes it.
    head: AtomicU64,
}

#[derive(Debug)]
struct Slot {
    /// The position of the value plus 1, once the value is stored.
    filled: AtomicU64,
    value: AtomicU64,
}

impl Values {
    fn new(max: u32) -> Self {
        let slots = max.next_power_of_two();
        let slot = |_| Slot { filled: AtomicU64::new(0), value: AtomicU64::new(0) };
        let slots = (0..slots).map(slot).collect();
        Values { slots, max: max.into(), tail: AtomicU64::new(0), head: AtomicU64::new(0) }
    }

    fn slot(&self, position: u64) -> &Slot {
        &self.slots[position as usize & (self.slots.len() - 1)]
    }

    /// Appends a value. Returns it if the queue is full.
    fn push(&self, value: u64) -> Result<(), u64> {
        let position = self.reserve().ok_or(value)?;
        self.fill(position, value);
        Ok(())
    }

    /// Reserves a position for one poster. Returns `None` if the queue is full.
    fn reserve(&self) -> Option<u64> {
        loop {
            let tail = self.tail.load(Ordering::Relaxed);
            // Acquires the consumer's read of this slot. (The head may be ahead of an old tail.)
            if tail.saturating_sub(self.head.load(Ordering::Acquire)) >= self.max {
                return None;
            }
            let (next, relaxed) = (tail + 1, Ordering::Relaxed);
            if self.tail.compare_exchange_weak(tail, next, relaxed, relaxed).is_ok() {
                return Some(tail);
            }
            // Another poster reserved the position.
        }
    }

    fn fill(&self, position: u64, value: u64) {
        let slot = self.slot(position);
        slot.value.store(value, Ordering::Relaxed);
        slot.filled.store(position + 1, Ordering::Release);
    }

    /// Takes the oldest value, unless it is not stored yet. Only one thread may call it.
    fn pop(&self) -> Option<u64> {
        let head = self.head.load(Ordering::Relaxed);
        let slot = self.slot(head);
        if slot.filled.load(Ordering::Acquire) != head + 1 {
            return None;
        }
        let value = slot.value.load(Ordering::Relaxed);
        self.head.store(head + 1, Ordering::Release);
        Some(value)
    }

    /// Returns whether `pop` would return `None`. Only one thread may call it.
    fn is_empty(&self) -> bool {
        let head = self.head.load(Ordering::Relaxed);
        self.slot(head).filled.load(Ordering::Acquire) != head + 1
    }

    /// Returns the number of values, with those that are not stored yet. Only one thread may call it.
    fn len(&self) -> u32 {
        (self.tail.load(Ordering::Relaxed) - self.head.load(Ordering::Relaxed)) as u32
    }
}

/// Posts events of type [`USER`](crate::EventType::USER) to a thread's block, from any thread.
#[derive(Clone, Debug)]
pub struct Poster(Arc<PostQueue>);

impl Poster {
    /// Posts an event with this value. The first since the thread has polled interrupts it.
    ///
    /// # Errors
    /// Returns an error if the queue is full, or if the block was dropped or its thread has ended. If the thread ended
    /// without dropping the block and before it polled for an earlier post, further posts are accepted until the queue
    /// is full.
    pub fn post(&self, value: u64) -> Result<(), PostError> {
        self.0.post(value)
    }
}

impl From<&Arc<PostQueue>> for Poster {
    fn from(posts: &Arc<PostQueue>) -> Self {
        Poster(Arc::clone(posts))
    }
}

impl PostQueue {
    pub(crate) fn new(max: u32, thread: i32, waker: Waker) -> Self {
        PostQueue {
            values: Values::new(max.max(1)),
            state: AtomicU32::new(0),
            closed: AtomicBool::new(false),
            thread,
            waker,
            process: Process::current(),
        }
    }

    fn post(&self, value: u64) -> Result<(), PostError> {
        // In a child of fork(2) this is a copy without a consumer.
        if self.closed.load(Ordering::Acquire) || !self.process.is_current() {
            return Err(PostError::Closed(value));
        }
        self.values.push(value).map_err(PostError::Full)?;
        let state = self.state.fetch_or(NOTIFIED, Ordering::SeqCst);
        if state & NOTIFIED == 0 && !notification::notify(self.thread) {
            // The thread has ended without dropping its block, so nothing takes the value.
            self.close();
            return Err(PostError::Closed(value));
        }
        // Also if it was notified already: the thread may have taken an event before its poster
        // notified, so that the notification had no effect.
        if state & SLEEPING != 0 {
            self.waker.wake();
        }
        Ok(())
    }

    /// Takes the oldest value, for the polling thread. Never waits for a poster that has reserved a
    /// position: that poster notifies once it has stored its value.
    pub(crate) fn take(&self) -> Option<u64> {
        // The poster that sets it interrupts the thread, which observes it then if not now.
        if self.state.load(Ordering::Relaxed) & NOTIFIED != 0 {
            self.state.fetch_and(!NOTIFIED, Ordering::SeqCst);
        }
        self.values.pop()
    }

    /// Returns whether there is no value to take.
    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns the number of posts that were not taken, for the polling thread.
    pub(crate) fn len(&self) -> u32 {
        self.values.len()
    }

    /// Sets whether the thread is about to sleep. While it is set, posts wake the thread.
    pub(crate) fn set_sleeping(&self, sleeping: bool) {
        if sleeping {
            self.state.fetch_or(SLEEPING, Ordering::SeqCst);
        } else {
            self.state.fetch_and(!SLEEPING, Ordering::SeqCst);
        }
    }

    /// Wakes the thread, from one of its signal handlers.
    pub(crate) fn wake_if_asleep(&self) {
        if self.state.load(Ordering::SeqCst) & SLEEPING != 0 {
            self.waker.wake();
        }
    }

    /// Returns the thread that takes the values.
    pub(crate) fn thread(&self) -> i32 {
        self.thread
    }

    /// Rejects posts from now on, as the block is dropped or its thread has ended.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Spinning here would deadlock a handler that interrupted the poster or preempted it.
    #[test]
    fn take_waited_for_a_poster_between_its_two_stores() {
        let values = Values::new(2);
        let position = values.reserve().unwrap();
        assert_eq!((values.pop(), values.is_empty()), (None, true));
        values.push(2).unwrap();
        let pop = (values.pop(), values.is_empty());
        assert_eq!(pop, (None, true), "the first position is not filled");
        assert_eq!(values.push(3), Err(3));
        values.fill(position, 1);
        assert_eq!([values.pop(), values.pop(), values.pop()], [Some(1), Some(2), None]);
    }

    #[test]
    fn post_to_a_thread_that_had_ended_was_accepted() {
        let thread = std::thread::spawn(|| rustix::thread::gettid().as_raw_nonzero().get());
        let thread = thread.join().unwrap();
        // The kernel may end it some time after the join.
        while notification::send(thread, 0) {
            std::thread::yield_now();
        }
        let posts = PostQueue::new(2, thread, Waker::new().unwrap());
        for value in 1..4 {
            assert_eq!(posts.post(value), Err(PostError::Closed(value)));
        }
    }

    #[test]
    fn values_are_taken_in_order_and_slots_are_reused() {
        for slots in 1..4 {
            let values = Values::new(slots);
            for round in 0..10 {
                for value in 0..u64::from(slots) {
                    assert_eq!(values.push(round + value), Ok(()));
                }
                assert_eq!(values.push(99), Err(99));
                for value in 0..u64::from(slots) {
                    assert_eq!(values.pop(), Some(round + value));
                }
                assert!(values.is_empty());
            }
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::thread;

    /// One thread posts twice; another takes values and sleeps when there are none. A value taken
    /// before its poster notified must not leave the next post without a wake-up.
    #[test]
    fn post_wakes_sleeping_thread() {
        loom::model(|| {
            let waker = Waker::for_model();
            // No thread has the number 0, so no thread is interrupted.
            let posts = Arc::new(PostQueue::new(2, 0, waker.clone()));
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
                posts.set_sleeping(true);
                if taken.len() < 2 && posts.is_empty() {
                    waker.drain();
                }
                posts.set_sleeping(false);
            }
            posting.join().unwrap();
            assert_eq!(taken, [1, 2]);
        });
    }

    /// Two threads post more than fits into a queue of one while another takes: each accepted value
    /// is taken once, and those of each poster in order.
    #[test]
    fn concurrent_posts_are_taken_once_and_in_order() {
        loom::model(|| {
            let values = Arc::new(Values::new(1));
            let posters = [1, 3].map(|first| {
                let values = Arc::clone(&values);
                thread::spawn(move || {
                    [first, first + 1]
                        .into_iter()
                        .filter(|value| values.push(*value).is_ok())
                        .count()
                })
            });
            let mut taken: Vec<u64> = (0..3).filter_map(|_| values.pop()).collect();
            let posted: usize = posters.into_iter().map(|poster| poster.join().unwrap()).sum();
            taken.extend(values.pop());
            assert_eq!((taken.len(), values.is_empty()), (posted, true));
            for pair in [[1, 2], [3, 4]] {
                let order: Vec<u64> = taken.iter().copied().filter(|v| pair.contains(v)).collect();
                assert!(order.is_sorted() && order.len() <= 2, "{taken:?}");
            }
        });
    }
}
