//! Messages that a handler keeps where they have landed.

use core::ptr::with_exposed_provenance;

use crate::calls;
use crate::error::CallError;

/// A message that the handler keeps beyond its return: see [`Message::keep`](crate::Message::keep).
///
/// The host takes it from a handler that aborts have disabled, or in whose place another one gets a message. What the handler
/// then does with it is an error only until another message is in the same buffer and the handler has it in hand or keeps it:
/// from then on, the value stands for that message. The same applies to a value that was given back.
#[derive(Debug)]
pub struct Kept {
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) slot: u32,
}

impl Kept {
    /// Returns the length of the message in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the bytes of the message to the beginning of `to`.
    ///
    /// # Errors
    /// [`CallError::Fault`] if `to` is shorter, or the message is not kept any more and no other one is
    /// [in its place](Kept).
    pub fn copy(&self, to: &mut [u8]) -> Result<(), CallError> {
        if to.len() < self.len {
            return Err(CallError::Fault);
        }
        let from = with_exposed_provenance(self.offset);
        // SAFETY: the host checks that the message is kept, and writes as many bytes as it has.
        CallError::check(unsafe { calls::copy(to.as_mut_ptr(), from, self.len) })
    }

    /// Gives the buffer of the message back to the host, which receives into it again, if the handler handles the message
    /// in hand. Else it stays kept, so drop the value when the handler is sure to handle this one.
    ///
    /// # Errors
    /// [`CallError::Fault`] if the message is not kept any more, and the handler keeps no other one [in its place](Kept).
    pub fn give_back(&self) -> Result<(), CallError> {
        CallError::check(calls::give_back(self.slot))
    }
}
