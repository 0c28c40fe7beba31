//! One value from any thread to a future.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

#[derive(Debug)]
struct Slot<T> {
    value: Option<T>,
    waker: Option<Waker>,
    sender_gone: bool,
    receiver_gone: bool,
}

#[derive(Debug)]
struct Shared<T>(Mutex<Slot<T>>);

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Slot<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates both ends.
pub(crate) fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    let slot = Slot { value: None, waker: None, sender_gone: false, receiver_gone: false };
    let shared = Arc::new(Shared(Mutex::new(slot)));
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

/// Sends the value, once.
#[derive(Debug)]
pub(crate) struct Sender<T>(Arc<Shared<T>>);

impl<T> Sender<T> {
    /// Sends the value.
    ///
    /// # Errors
    /// Returns the value if the receiver has gone.
    pub(crate) fn send(self, value: T) -> Result<(), T> {
        let mut slot = self.0.lock();
        if slot.receiver_gone {
            return Err(value);
        }
        slot.value = Some(value);
        Ok(())
        // The drop wakes the receiver.
    }

    /// Returns whether the receiver has gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.lock().receiver_gone
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut slot = self.0.lock();
        slot.sender_gone = true;
        let waker = slot.waker.take();
        drop(slot);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Returns the value, or `None` if the sender was dropped without sending one.
#[derive(Debug)]
pub(crate) struct Receiver<T>(Arc<Shared<T>>);

impl<T> Future for Receiver<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut waker = Some(context.waker().clone());
        let mut slot = self.0.lock();
        match slot.value.take() {
            Some(value) => Poll::Ready(Some(value)),
            None if slot.sender_gone => Poll::Ready(None),
            None => {
                // The one before is dropped after the lock: it may be one of the handler and use the sender.
                std::mem::swap(&mut slot.waker, &mut waker);
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut slot = self.0.lock();
        slot.receiver_gone = true;
        let unused = slot.value.take();
        drop(slot);
        drop(unused);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;
    use crate::site::pipe::tests::assert_ends;

    /// A waker that uses a sender when it is dropped.
    struct UsesSender(Arc<Sender<()>>);

    impl Drop for UsesSender {
        fn drop(&mut self) {
            self.0.is_closed();
        }
    }

    impl Wake for UsesSender {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn waker_that_used_the_sender_when_it_was_replaced_waited_for_itself() {
        assert_ends(|| {
            let (sender, mut receiver) = oneshot();
            let waker = Waker::from(Arc::new(UsesSender(Arc::new(sender))));
            let mut poll = |waker: &Waker| {
                Pin::new(&mut receiver).poll(&mut Context::from_waker(waker)).is_pending()
            };
            assert!(poll(&waker));
            drop(waker);
            assert!(poll(Waker::noop()));
        });
    }
}
