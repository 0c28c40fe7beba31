//! Panic guards: a panic in handler code fails one response, not the server.

use std::fmt;
use std::ops::{Deref, DerefMut};

use evring::__private::catch_panic;
use tracing::error;

use crate::message::status::Status;

/// Calls handler code and catches a panic.
///
/// # Errors
/// 500 if it panics.
pub(crate) fn guard<T>(call: impl FnOnce() -> T) -> Result<T, Status> {
    catch_panic(call).ok_or_else(|| {
        error!("handler panicked");
        Status::INTERNAL
    })
}

/// A value that handler code made; its `Drop` runs under [`guard`].
pub(crate) struct Guarded<T>(Option<T>);

impl<T: Clone> Clone for Guarded<T> {
    fn clone(&self) -> Self {
        Guarded(self.0.clone())
    }
}

impl<T> fmt::Debug for Guarded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guarded(..)")
    }
}

impl<T> Guarded<T> {
    pub(crate) fn new(value: T) -> Self {
        Guarded(Some(value))
    }

    /// Returns the value; the caller guards its use.
    pub(crate) fn into_inner(mut self) -> T {
        self.0.take().expect("the value is present until drop")
    }
}

impl<T> Deref for Guarded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("the value is present until drop")
    }
}

impl<T> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("the value is present until drop")
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            // The panic was logged, and the response is already complete.
            let _ = guard(|| drop(value));
        }
    }
}
