//! The table that the application shares.

use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr::with_exposed_provenance;

use crate::calls;
use crate::error::CallError;

/// The table that the application shares, which a handler can read. It may change at any time: handler and application
/// agree on marks, such as [versions](Self::copy_versioned), by which the handler recognizes a change.
///
/// ```
/// use ash_guest::{Message, Table, Verdict, handler};
///
/// handler!(is_listed);
///
/// /// Discards messages whose first byte the table does not have.
/// fn is_listed(message: &Message<'_>) -> Verdict {
///     let Some(table) = Table::shared() else { return Verdict::Pass };
///     let mut listed = [0; 16];
///     match (message.bytes().first(), table.copy(0, &mut listed)) {
///         (Some(first), Ok(())) if listed.contains(first) => Verdict::Pass,
///         _ => Verdict::Discard,
///     }
/// }
/// # fn main() {}
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Its offset in the memory.
    start: usize,
}

impl Table {
    /// Returns the table, if the application shares one.
    pub fn shared() -> Option<Self> {
        usize::try_from(calls::table()).ok().map(|start| Table { start })
    }

    /// Copies bytes from the table.
    ///
    /// # Errors
    /// [`CallError::Fault`] if the bytes are not in the table.
    pub fn copy(&self, offset: usize, to: &mut [u8]) -> Result<(), CallError> {
        let from = self.start.checked_add(offset).ok_or(CallError::Fault)?;
        let from = with_exposed_provenance(from);
        // SAFETY: the host writes to `to`, and checks that the others are in the table.
        CallError::check(unsafe { calls::copy(to.as_mut_ptr(), from, to.len()) })
    }

    /// Returns the word of eight bytes at an offset, a multiple of eight, as one of the application's stores left it.
    ///
    /// # Errors
    /// [`CallError::Fault`] if it is not in the table.
    pub fn word(&self, offset: usize) -> Result<u64, CallError> {
        let mut word = [0; 8];
        self.copy(offset, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// Copies bytes that begin with their version, a word that is odd while the application writes them, and greater
    /// afterwards: all bytes are of this version.
    ///
    /// # Errors
    /// [`CallError::Busy`] if the application was writing them. A handler must not wait (ASH, section 5.4.1).
    /// [`CallError::Fault`] if they are not in the table.
    pub fn copy_versioned(&self, offset: usize, to: &mut [u8]) -> Result<(), CallError> {
        let version = self.word(offset)?;
        if version % 2 != 0 {
            return Err(CallError::Busy);
        }
        self.copy(offset, to)?;
        if self.word(offset)? == version { Ok(()) } else { Err(CallError::Busy) }
    }
}

/// A section of the [table](Table) whose lock the handler has until it returns: see [`Message::lock`](crate::Message::lock).
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    /// Its offset in the memory.
    start: usize,
    /// Stores last as long as the message: see `Message`.
    invariant: PhantomData<Cell<&'a ()>>,
}

impl<'a> Section<'a> {
    pub(crate) fn lock(number: u32) -> Result<Self, CallError> {
        let start = calls::lock(number);
        match usize::try_from(start) {
            Ok(start) => Ok(Section { start, invariant: PhantomData }),
            Err(_) => Err(CallError::check(start).err().unwrap_or(CallError::Fault)),
        }
    }

    /// Copies bytes from the section, as they were when the lock was taken. Where the section ends, the next one begins:
    /// its bytes are copied, too, but are not those of a lock that the handler has, and may change at any time.
    ///
    /// # Errors
    /// [`CallError::Fault`] if the bytes are not in the table.
    pub fn copy(&self, offset: usize, to: &mut [u8]) -> Result<(), CallError> {
        Table { start: self.start }.copy(offset, to)
    }

    /// Writes bytes to the section, if the handler handles the message: after a voluntary or involuntary abort, nothing is
    /// written. The host reads the bytes after the handler has returned, as those of [`send`](crate::Message::send).
    ///
    /// # Errors
    /// [`CallError::Fault`] if the bytes do not lie in the section, or in another one that the handler has locked, or are not
    /// whole words of eight bytes.
    /// [`CallError::Exhausted`] if the handler has stored eight times.
    pub fn store(&self, offset: usize, bytes: &'a [u8]) -> Result<(), CallError> {
        let to = self.start.checked_add(offset).ok_or(CallError::Fault)?;
        // SAFETY: the host reads the bytes, which live as long as the message.
        CallError::check(unsafe { calls::store(to, bytes.as_ptr(), bytes.len()) })
    }
}
