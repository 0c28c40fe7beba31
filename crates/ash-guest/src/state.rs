//! The state of a handler.

use core::cell::RefCell;

/// A value that a handler keeps from one message to the next.
#[derive(Debug)]
pub struct State<T>(RefCell<T>);

// SAFETY: a module in the sandbox has one thread, as it has neither shared memory nor the host calls for
// others.
#[cfg(target_arch = "wasm32")]
unsafe impl<T> Sync for State<T> {}

// SAFETY: elsewhere, no thread reaches the value.
#[cfg(not(target_arch = "wasm32"))]
unsafe impl<T> Sync for State<T> {}

impl<T> State<T> {
    /// Creates a state.
    pub const fn new(value: T) -> Self {
        State(RefCell::new(value))
    }

    /// Gives access to the state.
    ///
    /// # Panics
    /// If it is in use, and outside of a sandbox.
    #[cfg(target_arch = "wasm32")]
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.0.borrow_mut())
    }

    /// Gives access to the state.
    ///
    /// # Panics
    /// Outside of a sandbox, always.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn with<R>(&self, _: impl FnOnce(&mut T) -> R) -> R {
        panic!("a handler has a state in a sandbox only")
    }
}
