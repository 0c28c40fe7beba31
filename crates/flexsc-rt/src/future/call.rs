//! The future of a call.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::{fmt, io, mem};

use super::super::pages::{EntryId, Scratch};
use super::throttled::Ticket;
use super::{Pending, Runtime, Wakers};
use crate::error::Error;
use crate::operation::{NOT_POSTED, Operation};

impl Runtime {
    /// Returns the future of an operation. Its call is posted at the first poll; while all entries that it may use are
    /// busy, the future waits. In a child of fork(2) its result is an error.
    ///
    /// A future that is dropped cancels its call. The runtime keeps the memory and descriptors of the call until it has
    /// ended, and drops them in the next turn of a future after that. If no other future is pending, the drop takes such a
    /// turn itself: a call that waits for a descriptor, or was not begun, has ended then, and its descriptor is closed if
    /// nothing else has it. One that a syscall thread is making, or io_uring, ends later: what it owns stays until another
    /// future is polled, or the runtime is dropped.
    ///
    /// # Panics
    /// A poll panics if the kernel refuses to wait for calls, or to enter the ring: futures would stay pending.
    pub fn call<O: Operation>(&self, operation: O) -> CallFuture<O> {
        let mut inner = self.0.borrow_mut();
        inner.next_future += 1;
        let number = inner.next_future;
        CallFuture {
            runtime: self.clone(),
            number,
            ticket: None,
            pending: Pending::default(),
            state: State::Unposted(operation),
        }
    }
}

/// The future of a call; see [`Runtime::call`].
///
/// If it is dropped, its call is not posted, or is cancelled, and its result is dropped. For the result of a cancelled
/// call, use [`EventLoop::cancel`](crate::EventLoop::cancel) or [`Pages::cancel`](crate::Pages::cancel).
#[must_use = "the call is posted when the future is polled"]
pub struct CallFuture<O: Operation> {
    runtime: Runtime,
    number: u64,
    /// Its place among those that wait, or have waited, for a free entry.
    ticket: Option<Ticket>,
    pending: Pending,
    state: State<O>,
}

enum State<O> {
    Unposted(O),
    Posted(EntryId, O),
    #[cfg(feature = "green-threads")]
    Withdrawn(O),
    Done,
}

impl<O: Operation> CallFuture<O> {
    /// Returns whether the call was polled, and waits for a free entry.
    #[cfg(feature = "green-threads")]
    pub(crate) fn is_throttled(&self) -> bool {
        matches!(self.state, State::Unposted(_)) && self.ticket.is_some()
    }

    /// Lets the call pass those that wait for an entry. To be called before the future is polled.
    #[cfg(feature = "green-threads")]
    pub(crate) fn pass_others(&mut self) {
        self.ticket = Some(Ticket::FIRST);
    }

    /// Requests cancellation of the call, which ends as [`Pages::cancel`](crate::Pages::cancel) says. A call that was not
    /// posted yet is not made.
    #[cfg(feature = "green-threads")]
    pub(crate) fn cancel(&mut self) {
        self.state = match mem::replace(&mut self.state, State::Done) {
            State::Unposted(operation) => {
                let wakers = self.runtime.0.borrow_mut().leave(self.ticket.take());
                wakers.wake();
                State::Withdrawn(operation)
            }
            State::Posted(id, operation) => {
                self.runtime.0.borrow_mut().pages.cancel(id);
                State::Posted(id, operation)
            }
            state => state,
        };
    }
}

impl<O: Operation> CallFuture<O> {
    /// Ends the future with an error, as its call is not made, or not in this process.
    #[cold]
    fn fail(&mut self, error: io::Error) -> Poll<O::Output> {
        match mem::replace(&mut self.state, State::Done) {
            State::Unposted(operation) => Poll::Ready(operation.finish(Err(error), &NOT_POSTED)),
            State::Posted(id, operation) => {
                let scratch = self.runtime.0.borrow().pages.scratch_in_child(id.index());
                // SAFETY: no call is made to the entry in a child of fork(2). The runtime has the memory.
                Poll::Ready(operation.finish(Err(error), unsafe { &*scratch }))
            }
            #[cfg(feature = "green-threads")]
            State::Withdrawn(operation) => Poll::Ready(operation.finish(Err(error), &NOT_POSTED)),
            State::Done => panic!("{POLLED_AFTER_END}"),
        }
    }
}

/// The message of a panic.
const POLLED_AFTER_END: &str = "the future was polled after it had completed";

// The memory of an operation does not move with it, so nothing is pinned.
impl<O: Operation> Unpin for CallFuture<O> {}

impl<O: Operation> Future for CallFuture<O> {
    type Output = O::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<O::Output> {
        let this = self.get_mut();
        if this.runtime.0.borrow().pages.is_in_child() {
            return this.fail(io::Error::other(Error::InChild));
        }
        let waker = context.waker();
        match mem::replace(&mut this.state, State::Done) {
            State::Unposted(mut operation) => {
                let mut inner = this.runtime.0.borrow_mut();
                match inner.post(&mut operation, this.ticket) {
                    Ok((id, driver)) => {
                        this.state = State::Posted(id, operation);
                        let ticket = this.ticket.take();
                        let waited = ticket.and_then(|ticket| inner.throttled.remove(ticket));
                        drop(inner);
                        let wakers = Wakers { to_wake: None, driver, _to_drop: [waited, None] };
                        wakers.wake();
                    }
                    Err(room) => {
                        this.state = State::Unposted(operation);
                        let (ticket, wakers) = inner.throttle(this.ticket, room, waker);
                        drop(inner);
                        this.ticket = Some(ticket);
                        wakers.wake();
                        if this.runtime.drive(this.number, waker, &mut this.pending) {
                            this.runtime.register(waker, &mut this.pending);
                        }
                        return Poll::Pending;
                    }
                }
            }
            #[cfg(feature = "green-threads")]
            State::Withdrawn(operation) => {
                let interrupted = io::Error::from_raw_os_error(libc::EINTR);
                return Poll::Ready(operation.finish(Err(interrupted), &NOT_POSTED));
            }
            state => this.state = state,
        }
        let State::Posted(id, _) = &this.state else { panic!("{POLLED_AFTER_END}") };
        let index = id.index();
        if !this.runtime.0.borrow().slots[index].done {
            let former = this.runtime.0.borrow_mut().slots[index].waker.replace(waker.clone());
            drop(former);
            let registers = this.runtime.drive(this.number, waker, &mut this.pending);
            if !this.runtime.0.borrow().slots[index].done {
                if registers {
                    this.runtime.register(waker, &mut this.pending);
                }
                return Poll::Pending;
            }
        }
        this.runtime.unregister(&mut this.pending);
        let State::Posted(_, operation) = mem::replace(&mut this.state, State::Done) else {
            unreachable!("it was checked above");
        };
        let output =
            this.runtime.finish(index, |result, scratch| operation.finish(result, scratch));
        let wakers = this.runtime.0.borrow_mut().replace_driver(this.number);
        wakers.wake();
        Poll::Ready(output)
    }
}

impl<O: Operation> Drop for CallFuture<O> {
    fn drop(&mut self) {
        self.runtime.unregister(&mut self.pending);
        let mut inner = self.runtime.0.borrow_mut();
        let mut ended = None;
        let wakers = match mem::replace(&mut self.state, State::Done) {
            State::Posted(id, operation) => {
                let finish = move |result: io::Result<usize>, scratch: &Scratch| {
                    drop(operation.finish(result, scratch));
                };
                if inner.slots[id.index()].done {
                    ended = Some((id.index(), finish));
                    Wakers::default()
                } else {
                    inner.abandon(self.number, id, Box::new(finish))
                }
            }
            State::Unposted(operation) => {
                let wakers = inner.leave(self.ticket.take());
                drop(inner);
                drop(operation);
                inner = self.runtime.0.borrow_mut();
                wakers
            }
            #[cfg(feature = "green-threads")]
            State::Withdrawn(operation) => {
                drop(inner);
                drop(operation);
                inner = self.runtime.0.borrow_mut();
                Wakers::default()
            }
            State::Done => Wakers::default(),
        };
        let of_driver = if inner.pages.is_in_child() {
            Wakers::default()
        } else {
            inner.replace_driver(self.number)
        };
        drop(inner);
        wakers.wake();
        of_driver.wake();
        if let Some((index, finish)) = ended {
            self.runtime.finish(index, finish);
        }
        self.runtime.end_abandoned();
    }
}

impl<O: Operation> fmt::Debug for CallFuture<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Unposted(_) => "unposted",
            State::Posted(..) => "posted",
            #[cfg(feature = "green-threads")]
            State::Withdrawn(_) => "withdrawn",
            State::Done => "done",
        };
        f.debug_struct("CallFuture").field("state", &state).finish_non_exhaustive()
    }
}
