//! Why a handler cannot be bound.

use std::fmt;

use shared_ring::buffers::BufferError;

/// The reason why a handler cannot be bound.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BindError {
    /// The areas of its memory were taken.
    Taken,
    /// The buffers do not fit the message area, or the mechanism rejected them.
    Buffers(BufferError),
    /// Another landing, or a thread for datagrams, has the handler.
    OtherLanding,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindError::Taken => {
                f.write_str("the handler is bound: bind another instance to another tenant")
            }
            BindError::Buffers(error) => error.fmt(f),
            BindError::OtherLanding => f.write_str(
                "the handler is that of another landing: use the bindings of the landing that has bound it",
            ),
        }
    }
}

impl std::error::Error for BindError {}

impl From<BufferError> for BindError {
    fn from(error: BufferError) -> Self {
        BindError::Buffers(error)
    }
}
