//! Values for an application, from other threads.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use shared_ring::sync::{Arc, Mutex};

use crate::RemoteHandle;

/// A bounded queue of values that other threads send to an application.
///
/// The first value in an empty queue wakes the application
/// ([`Application::woken`](crate::Application::woken) with the mailbox's tag), which then takes all of
/// them.
#[derive(Debug)]
pub struct Mailbox<V> {
    shared: Arc<Shared<V>>,
    /// The values being taken. It has the same capacity as the queue, so a swap allocates nothing.
    batch: VecDeque<V>,
}

/// Sends values to a [`Mailbox`], from any thread.
#[derive(Debug)]
pub struct Sender<V> {
    shared: Arc<Shared<V>>,
    remote: RemoteHandle,
    tag: u64,
}

#[derive(Debug)]
struct Shared<V> {
    queue: Mutex<Values<V>>,
    rejected: AtomicU64,
}

#[derive(Debug)]
struct Values<V> {
    values: VecDeque<V>,
    capacity: usize,
    is_closed: bool,
}

/// The reason why a value was not sent. It returns the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError<V> {
    /// The mailbox is full, or [`RemoteHandle::MAX_TAGS`] wake-ups are pending.
    Full(V),
    /// The mailbox was dropped.
    Closed(V),
}

impl<V> SendError<V> {
    /// Returns the value.
    pub fn into_value(self) -> V {
        match self {
            SendError::Full(value) | SendError::Closed(value) => value,
        }
    }
}

impl<V> fmt::Display for SendError<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendError::Full(_) => "the mailbox is full; send again later, or create it larger",
            SendError::Closed(_) => "the application of the mailbox has ended",
        })
    }
}

impl<V: fmt::Debug> std::error::Error for SendError<V> {}

impl<V: Send> Mailbox<V> {
    /// Creates a mailbox for at most `capacity` values, whose sender wakes the application of `remote` with
    /// `tag`.
    pub fn new(remote: &RemoteHandle, tag: u64, capacity: usize) -> (Self, Sender<V>) {
        let values = VecDeque::with_capacity(capacity);
        let queue = Mutex::new(Values { values, capacity, is_closed: false });
        let shared = Arc::new(Shared { queue, rejected: AtomicU64::new(0) });
        let mailbox = Mailbox { shared: shared.clone(), batch: VecDeque::with_capacity(capacity) };
        (mailbox, Sender { shared, remote: remote.clone(), tag })
    }

    /// Takes all values, in the order in which they were sent. Dropping the iterator drops the values that
    /// remain.
    pub fn drain(&mut self) -> impl Iterator<Item = V> + '_ {
        mem::swap(&mut self.batch, &mut self.shared.lock().values);
        self.batch.drain(..)
    }
}

impl<V> Drop for Mailbox<V> {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.is_closed = true;
        let values = mem::take(&mut queue.values);
        drop(queue);
        drop(values);
    }
}

impl<V: Send> Sender<V> {
    /// Sends a value.
    ///
    /// # Errors
    /// Returns the value if the mailbox is full or closed.
    pub fn send(&self, value: V) -> Result<(), SendError<V>> {
        let mut queue = self.shared.lock();
        if queue.is_closed {
            return Err(SendError::Closed(value));
        }
        // A queue with values has a wake-up pending.
        if queue.values.len() == queue.capacity
            || queue.values.is_empty() && !self.remote.wake(self.tag)
        {
            self.shared.rejected.fetch_add(1, Ordering::Relaxed);
            return Err(SendError::Full(value));
        }
        queue.values.push_back(value);
        Ok(())
    }

    /// Returns how many values were not sent because the mailbox was full.
    pub fn rejected(&self) -> u64 {
        self.shared.rejected.load(Ordering::Relaxed)
    }
}

impl<V> Clone for Sender<V> {
    fn clone(&self) -> Self {
        Sender { shared: self.shared.clone(), remote: self.remote.clone(), tag: self.tag }
    }
}

impl<V> Shared<V> {
    fn lock(&self) -> shared_ring::sync::MutexGuard<'_, Values<V>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
