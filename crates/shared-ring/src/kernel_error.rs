//! The error of a kernel.

use std::fmt;
use std::io;

/// The error that made a kernel unusable.
#[derive(Debug)]
#[non_exhaustive]
pub struct KernelError {
    /// The action that failed.
    pub context: &'static str,
    /// The error of the system call.
    pub error: io::Error,
}

impl KernelError {
    /// Creates the error of an action that failed.
    pub fn new(context: &'static str, error: impl Into<io::Error>) -> Self {
        KernelError { context, error: error.into() }
    }

    /// Returns the error of a turn in a child of fork(2).
    pub(crate) fn in_child() -> KernelError {
        let context =
            "a turn in a child of fork(2), on its parent's kernel; create one in the child";
        KernelError::new(context, io::ErrorKind::PermissionDenied)
    }
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the event loop cannot continue: {}: {}", self.context, self.error)
    }
}

impl std::error::Error for KernelError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
