//! The directories that wait, and the tasks that wait for one.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::task::{Poll, Waker};

/// A stack of work, which tasks take from and add to.
pub(crate) struct Queue<T> {
    work: RefCell<Vec<T>>,
    /// Tasks that have taken work and may add to it.
    busy: Cell<usize>,
    idle: RefCell<Vec<Waker>>,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Queue { work: RefCell::default(), busy: Cell::new(0), idle: RefCell::default() }
    }

    pub(crate) fn push(&self, work: T) {
        self.work.borrow_mut().push(work);
        if let Some(task) = self.idle.borrow_mut().pop() {
            task.wake();
        }
    }

    /// Takes work; returns none when there is none, and no task can add any.
    pub(crate) fn take(&self) -> impl Future<Output = Option<T>> {
        poll_fn(|context| {
            if let Some(work) = self.work.borrow_mut().pop() {
                self.busy.set(self.busy.get() + 1);
                return Poll::Ready(Some(work));
            }
            if self.busy.get() == 0 {
                return Poll::Ready(None);
            }
            self.idle.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
    }

    /// Says that a task has done the work that it had taken.
    pub(crate) fn done(&self) {
        self.busy.set(self.busy.get() - 1);
        if self.busy.get() == 0 && self.work.borrow().is_empty() {
            self.idle.borrow_mut().drain(..).for_each(Waker::wake);
        }
    }

    /// Drops the work that waits.
    pub(crate) fn clear(&self) {
        self.work.borrow_mut().clear();
    }
}
