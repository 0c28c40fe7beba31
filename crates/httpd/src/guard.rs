//! Code of others: a panic of theirs costs one reply and not the server.

use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tracing::error;

use crate::status::Status;

/// Calls what others have written.
///
/// # Errors
/// 500 if it panics.
pub(crate) fn guard<T>(call: impl FnOnce() -> T) -> Result<T, Status> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        // Its end may panic, too.
        mem::forget(panic);
        error!("a handler panicked");
        Status::INTERNAL
    })
}

/// A value that others have made, whose `Drop` is called so, too.
pub(crate) struct Guarded<T>(Option<T>);

impl<T> fmt::Debug for Guarded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guarded(..)")
    }
}

impl<T> Guarded<T> {
    pub(crate) fn new(value: T) -> Self {
        Guarded(Some(value))
    }

    /// The value itself, for the caller to guard.
    pub(crate) fn into_inner(mut self) -> T {
        self.0.take().expect("it is there until the end")
    }
}

impl<T> Deref for Guarded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is there until the end")
    }
}

impl<T> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("it is there until the end")
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            // That it panicked was logged, and there is no reply left to lose.
            let _ = guard(|| drop(value));
        }
    }
}
