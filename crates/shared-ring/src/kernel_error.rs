//! The error of a kernel.

use std::fmt;
use std::io;

/// The error that made a kernel unusable.
#[derive(Debug)]
pub struct KernelError {
    /// The action that failed.
    pub context: &'static str,
    /// The error of the system.
    pub error: io::Error,
}

impl KernelError {
    /// Returns the error of a turn in a child of fork(2).
    pub(crate) fn in_child() -> KernelError {
        let context =
            "a turn in a child of fork(2), on its parent's kernel; create one in the child";
        KernelError { context, error: io::ErrorKind::PermissionDenied.into() }
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
