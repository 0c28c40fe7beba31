//! The state of a handler.

use core::cell::UnsafeCell;
use core::mem::needs_drop;

/// A value that a handler keeps from one message to the next; the macro [`handler`](crate::handler) makes it.
#[derive(Debug)]
pub struct State<T>(UnsafeCell<T>);

// SAFETY: a module in the sandbox has one thread, as it has neither shared memory nor the host calls for
// others. Elsewhere, nothing calls the entry that reaches the value.
unsafe impl<T> Sync for State<T> {}

impl<T> State<T> {
    /// Creates a state. A type that is dropped does not compile: an abort in the middle of a move or a drop would leave a
    /// value that is dropped a second time.
    pub const fn new(value: T) -> Self {
        const { assert!(!needs_drop::<T>(), "the state of a handler has a type with `Drop`") };
        State(UnsafeCell::new(value))
    }

    /// Gives access to the state. Nothing marks it as in use: an abort would leave the mark.
    ///
    /// # Safety
    /// Called by the entry only, once for each message. The frames of earlier messages have ended, or will never run
    /// again, as the host has aborted them.
    #[expect(clippy::mut_from_ref, reason = "the caller promises that there is one reference")]
    pub(crate) unsafe fn get(&self) -> &mut T {
        // SAFETY: the caller promises that no other reference is in use. A frame that was aborted may have moved the value
        // elsewhere, or begun to drop it, but no type that `new` accepts is dropped.
        unsafe { &mut *self.0.get() }
    }
}
