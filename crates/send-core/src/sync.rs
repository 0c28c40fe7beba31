//! What the application and the delivering side share: the standard library's, or loom's when
//! models are checked.

#[cfg(not(loom))]
pub(crate) use crossbeam_queue::ArrayQueue;
#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// A cell with loom's interface.
#[cfg(not(loom))]
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// A queue with the interface of crossbeam's, each step of which loom sees as one.
#[cfg(loom)]
#[derive(Debug)]
pub(crate) struct ArrayQueue<T> {
    values: loom::sync::Mutex<std::collections::VecDeque<T>>,
    most: usize,
}

#[cfg(loom)]
impl<T> ArrayQueue<T> {
    pub(crate) fn new(most: usize) -> Self {
        ArrayQueue { values: Default::default(), most }
    }

    pub(crate) fn push(&self, value: T) -> Result<(), T> {
        let mut values = self.values.lock().unwrap();
        if values.len() == self.most {
            return Err(value);
        }
        values.push_back(value);
        Ok(())
    }

    pub(crate) fn pop(&self) -> Option<T> {
        self.values.lock().unwrap().pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.values.lock().unwrap().is_empty()
    }
}
