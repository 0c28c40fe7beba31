//! Events that threads post to each other.

use std::sync::Arc;

use shared_ring::{Process, Waker};

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::{PostError, signals};

/// What posts wait in until their thread looks.
#[derive(Debug)]
pub(crate) struct PostQueue {
    values: Values,
    /// What posters and the thread tell each other, in one word: who changes it sees all of it.
    state: AtomicU32,
    ended: AtomicBool,
    thread: i32,
    waker: Waker,
    process: Process,
}

/// The thread was told, and has not looked since.
const TOLD: u32 = 1;
/// The thread sleeps, or is about to.
const SLEEPS: u32 = 2;

/// What was posted, by any thread, to be taken by one: D. Vyukov's bounded queue, of which the taker never waits
/// and posters wait for nobody. Neither allocates, so both may be done in a signal handler.
#[derive(Debug)]
struct Values {
    /// A power of two.
    slots: Box<[Slot]>,
    /// How many may be in use.
    max: u64,
    /// The position that the next poster takes. (64 bits do not come around.)
    tail: AtomicU64,
    /// The position that is taken from next; only its taker changes it.
    head: AtomicU64,
}

#[derive(Debug)]
struct Slot {
    /// One more than the position for which the value is there.
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

    /// Puts a value behind all others; hands it back when there is no room.
    fn push(&self, value: u64) -> Result<(), u64> {
        let position = self.reserve().ok_or(value)?;
        self.fill(position, value);
        Ok(())
    }

    /// Takes a position for one poster; none when all are in use.
    fn reserve(&self) -> Option<u64> {
        loop {
            let tail = self.tail.load(Ordering::Relaxed);
            // Acquires that what stood at the position was read. (The head may be beyond a tail that is old.)
            if tail.saturating_sub(self.head.load(Ordering::Acquire)) >= self.max {
                return None;
            }
            let (next, relaxed) = (tail + 1, Ordering::Relaxed);
            if self.tail.compare_exchange_weak(tail, next, relaxed, relaxed).is_ok() {
                return Some(tail);
            }
            // Another poster has taken the position.
        }
    }

    fn fill(&self, position: u64, value: u64) {
        let slot = self.slot(position);
        slot.value.store(value, Ordering::Relaxed);
        slot.filled.store(position + 1, Ordering::Release);
    }

    /// Takes the oldest value out, unless there is none or its poster is still at it. One thread calls it.
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

    /// Whether `pop` would find nothing. One thread calls it.
    fn is_empty(&self) -> bool {
        let head = self.head.load(Ordering::Relaxed);
        self.slot(head).filled.load(Ordering::Acquire) != head + 1
    }
}

/// Posts events of the type [`USER`](crate::EventType::USER) to a thread's block, from any thread.
#[derive(Clone, Debug)]
pub struct Poster(Arc<PostQueue>);

impl Poster {
    /// Posts an event that says `value`. The first since the thread has looked interrupts it.
    ///
    /// # Errors
    /// When there is no room, or the block is gone, with its thread or before.
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
            ended: AtomicBool::new(false),
            thread,
            waker,
            process: Process::current(),
        }
    }

    fn post(&self, value: u64) -> Result<(), PostError> {
        // In a child of fork(2) this is a copy, which nobody takes from.
        if self.ended.load(Ordering::Acquire) || !self.process.is_current() {
            return Err(PostError::Ended(value));
        }
        self.values.push(value).map_err(PostError::Full)?;
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

    /// Takes the oldest out, for a thread that looks. It never waits for a poster that has begun: that one
    /// tells when it is done.
    pub(crate) fn take(&self) -> Option<u64> {
        // Whoever sets it interrupts the thread, which will see it then if it does not now.
        if self.state.load(Ordering::Relaxed) & TOLD != 0 {
            self.state.fetch_and(!TOLD, Ordering::SeqCst);
        }
        self.values.pop()
    }

    /// Whether there is none to be taken.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Where it spun, a handler that had interrupted the poster, or that had its processor, spun for ever.
    #[test]
    fn taking_spun_while_a_poster_was_between_its_two_stores() {
        let values = Values::new(2);
        let slow = values.reserve().unwrap();
        assert_eq!((values.pop(), values.is_empty()), (None, true));
        values.push(2).unwrap();
        assert_eq!((values.pop(), values.is_empty()), (None, true), "it is behind the other");
        assert_eq!(values.push(3), Err(3));
        values.fill(slow, 1);
        assert_eq!([values.pop(), values.pop(), values.pop()], [Some(1), Some(2), None]);
    }

    #[test]
    fn values_are_taken_in_order_and_places_used_again() {
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

    /// One thread posts twice, another takes what there is and sleeps when there is nothing: a post
    /// that was taken before its poster said so left the next one to a sleeper that nobody woke.
    #[test]
    fn a_post_wakes_who_sleeps() {
        loom::model(|| {
            let waker = Waker::for_model();
            // No thread has the number 0, so nobody is interrupted.
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

    /// Two threads post to one place of two, more than there is room for, while another takes: each value that
    /// was accepted is taken once, and those of each poster in order.
    #[test]
    fn values_are_handed_over_whole() {
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
                let of_one: Vec<u64> = taken.iter().copied().filter(|v| pair.contains(v)).collect();
                assert!(of_one.is_sorted() && of_one.len() <= 2, "{taken:?}");
            }
        });
    }
}
