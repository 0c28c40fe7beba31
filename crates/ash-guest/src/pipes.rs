//! Pipe lists (dynamic integrated layer processing, section 3.2.2).

use crate::calls;
use crate::error::CallError;

/// A pipe list that the host has compiled for the handler.
///
/// All ranges to which the handler applies a list for one message are one message for the list: its registers have their
/// initial values, and its keystreams no keys, when the handler begins; all ranges but the last, or but one where all pipes are
/// commutative, have a multiple of eight bytes. For a result of one of the ranges alone, a handler
/// [sets](Self::set_register) the registers before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipeList(u32);

impl PipeList {
    /// Returns the list that the host has given this number.
    pub const fn new(number: u32) -> Self {
        PipeList(number)
    }

    /// Applies a list that only reads (`ae_rapply`).
    ///
    /// # Errors
    /// If there is no such list, the bytes do not suit it, or the maximum of operations is reached.
    pub fn read(self, bytes: &[u8]) -> Result<(), CallError> {
        // SAFETY: the host reads the bytes.
        CallError::check(unsafe { calls::read_apply(self.0, bytes.as_ptr(), bytes.len()) })
    }

    /// Applies a list that writes its output to another place (`ae_wapply`).
    ///
    /// # Errors
    /// As for [`PipeList::read`].
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn write(self, from: &[u8], to: &mut [u8]) -> Result<(), CallError> {
        assert_eq!(from.len(), to.len(), "an output of another length");
        // SAFETY: the host reads `from` and writes to `to`, both of this length.
        CallError::check(unsafe {
            calls::write_apply(self.0, from.as_ptr(), to.as_mut_ptr(), to.len())
        })
    }

    /// Sets a persistent register, by the number that the host has given it, before the list is applied.
    ///
    /// # Errors
    /// If there is no such register, or the maximum of operations is reached.
    pub fn set_register(self, number: u32, value: u64) -> Result<(), CallError> {
        CallError::check(calls::export(self.0, number, value as i64))
    }

    /// Gives a keystream of the list, by its number among them, a key and a nonce, before the list is applied. They
    /// last for one message.
    ///
    /// # Errors
    /// If there is no such keystream, or the maximum of operations is reached.
    pub fn set_key(
        self,
        keystream: u32,
        key: &[u8; 32],
        nonce: &[u8; 12],
        first_block: u32,
    ) -> Result<(), CallError> {
        let mut bytes = [0; 44];
        bytes[..32].copy_from_slice(key);
        bytes[32..].copy_from_slice(nonce);
        // SAFETY: the host reads the bytes.
        CallError::check(unsafe { calls::key(self.0, keystream, bytes.as_ptr(), first_block) })
    }

    /// Returns a persistent register, by the number that the host has given it; `u64::MAX` if there is no such list or
    /// register, which its value may be, too.
    pub fn register(self, number: u32) -> u64 {
        calls::import(self.0, number) as u64
    }
}
