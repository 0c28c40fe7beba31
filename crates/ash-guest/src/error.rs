//! The errors of host calls.

use core::fmt;

/// The reason why a host call had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallError {
    /// The bytes are not in the handler's memory, or may not be accessed; there is no such section, counter or table.
    Fault,
    /// A maximum is reached: of sends, events, operations, reply slots, locks or stores.
    Exhausted,
    /// There is no such pipe list, or the message does not suit it.
    Invalid,
    /// The application, or another handler, is using the data. A handler does not wait, but aborts.
    Busy,
}

impl CallError {
    pub(crate) fn check(status: i32) -> Result<(), Self> {
        match status {
            0 => Ok(()),
            -2 => Err(CallError::Exhausted),
            -3 => Err(CallError::Invalid),
            -4 => Err(CallError::Busy),
            _ => Err(CallError::Fault),
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CallError::Fault => {
                "the bytes may not be accessed, or there is no such section, counter or kept message"
            }
            CallError::Exhausted => {
                "the maximum of sends, events, operations, reply slots, kept messages, locks or stores \
                 is reached"
            }
            CallError::Busy => "the application, or another handler, is using the data",
            CallError::Invalid => "no such pipe list, or one that the message does not suit",
        })
    }
}

impl core::error::Error for CallError {}
