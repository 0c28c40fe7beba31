//! Messages, and what becomes of them.

use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use crate::calls;
use crate::entry::Arrival;
use crate::error::CallError;
use crate::kept::Kept;
use crate::table::Section;

/// The fate of a message; its number is that of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Verdict {
    /// The application handles the message.
    Pass = 0,
    /// The handler has handled it: what was sent is sent, what was posted is posted.
    Handled = 1,
    /// The message is useless, and reaches no application.
    Discard = 2,
    /// The application handles the message, and the host counts a voluntary abort: for instance, the
    /// handler could not take a lock.
    Abort = 3,
}

/// A message in the handler's memory, which the handler cannot change.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    bytes: &'a [u8],
    connection: u64,
    slot: u32,
    /// Sends last as long as the message: a shorter lifetime may not take the place of this one.
    invariant: PhantomData<Cell<&'a ()>>,
}

impl<'a> Message<'a> {
    /// Returns the message that the host has described to the entry.
    ///
    /// # Safety
    /// The bytes are in the memory, and do not change during `'a`.
    pub(crate) unsafe fn received(arrival: Arrival) -> Self {
        let Arrival { offset, length, connection, slot } = arrival;
        let start = with_exposed_provenance(offset);
        // SAFETY: the caller promises it.
        let bytes = unsafe { core::slice::from_raw_parts(start, length) };
        Message { bytes, connection, slot, invariant: PhantomData }
    }

    /// Returns the bytes of the message.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the identity of the connection; of a datagram, a number that stands for its source.
    pub fn connection(&self) -> u64 {
        self.connection
    }

    /// Returns the place of the message in the receive ring.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Sends bytes to the peer, if the handler handles the message.
    ///
    /// The host reads the bytes after the handler has returned. So they are constants, or belong to the
    /// message or the state:
    ///
    /// ```
    /// # use ash_guest::{Message, Verdict};
    /// fn reply<'m>(state: &'m mut [u8; 8], message: &Message<'m>) -> Verdict {
    ///     state[0] += 1;
    ///     let _ = message.send(state);
    ///     let _ = message.send(message.bytes());
    ///     Verdict::Handled
    /// }
    /// ```
    ///
    /// ```compile_fail,E0597
    /// # use ash_guest::{Message, Verdict};
    /// fn reply(message: &Message<'_>) -> Verdict {
    ///     let local = [0; 8];
    ///     let _ = message.send(&local);
    ///     Verdict::Handled
    /// }
    /// ```
    ///
    /// # Errors
    /// If the maximum of sends or operations is reached.
    pub fn send(&self, bytes: &'a [u8]) -> Result<(), CallError> {
        // SAFETY: the host reads the bytes, which live as long as the message.
        CallError::check(unsafe { calls::send(bytes.as_ptr(), bytes.len()) })
    }

    /// Sends bytes that `write` writes to a reply slot of the host, from where they leave without a copy if
    /// messages are received into the handler's memory. The bytes are 0, or those of an earlier reply.
    ///
    /// # Errors
    /// [`CallError::Exhausted`] if all slots hold replies in flight, the reply does not fit one, or the
    /// maximum of sends or operations is reached.
    pub fn reply(&self, len: usize, write: impl FnOnce(&mut [u8])) -> Result<(), CallError> {
        let offset = calls::reply(len);
        if offset < 0 {
            return CallError::check(offset);
        }
        let start = with_exposed_provenance_mut::<u8>(offset as usize);
        // SAFETY: the slot has this length and lies behind the module's memory and the messages. The host gives it to one
        // call of an invocation.
        write(unsafe { core::slice::from_raw_parts_mut(start, len) });
        // SAFETY: the host reads the bytes of the slot.
        CallError::check(unsafe { calls::send(start, len) })
    }

    /// Keeps the message where it has landed, if the handler handles it, until the handler gives it back:
    ///
    /// ```
    /// use ash_guest::{Kept, Message, Verdict, handler};
    ///
    /// handler!(last, Option<Kept> = None);
    ///
    /// /// Answers each message with the one before it.
    /// fn last(kept: &mut Option<Kept>, message: &Message<'_>) -> Verdict {
    ///     // What it gives back is still readable until it returns, and its place is free.
    ///     if let Some(last) = kept.as_ref()
    ///         && (message.send_kept(last).is_err() || last.give_back().is_err())
    ///     {
    ///         return Verdict::Abort;
    ///     }
    ///     let Ok(next) = message.keep() else { return Verdict::Pass };
    ///     *kept = Some(next);
    ///     Verdict::Handled
    /// }
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    /// [`CallError::Exhausted`] if the handler keeps its maximum, which is 0 if its memory has no receive ring, or if few
    /// buffers of the ring are free.
    /// [`CallError::Fault`] if the message has landed elsewhere, and was copied.
    pub fn keep(&self) -> Result<Kept, CallError> {
        CallError::check(calls::keep())?;
        let Message { bytes, slot, .. } = *self;
        Ok(Kept { offset: bytes.as_ptr().expose_provenance(), len: bytes.len(), slot })
    }

    /// Sends the bytes of a message that the handler keeps to the peer, if the handler handles this one.
    ///
    /// # Errors
    /// [`CallError::Fault`] if it is not kept any more and no other one is [in its place](Kept); [`CallError::Exhausted`] if
    /// the maximum of sends or operations is reached.
    pub fn send_kept(&self, kept: &Kept) -> Result<(), CallError> {
        let bytes = with_exposed_provenance(kept.offset);
        // SAFETY: the host checks that the message is kept, and copies the bytes.
        CallError::check(unsafe { calls::send(bytes, kept.len) })
    }

    /// Locks a section of the table that the application shares, until the handler has returned. A handler does not wait
    /// for a lock (ASH, section 5.4.1), but aborts:
    ///
    /// ```
    /// use ash_guest::{Message, Verdict, handler};
    ///
    /// handler!(count, [u8; 8] = [0; 8]);
    ///
    /// /// Counts messages in the first section.
    /// fn count<'m>(counter: &'m mut [u8; 8], message: &Message<'m>) -> Verdict {
    ///     let Ok(section) = message.lock(0) else { return Verdict::Abort };
    ///     let is_read = section.copy(0, counter).is_ok();
    ///     *counter = (u64::from_le_bytes(*counter) + 1).to_le_bytes();
    ///     if is_read && section.store(0, counter).is_ok() { Verdict::Handled } else { Verdict::Abort }
    /// }
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    /// [`CallError::Busy`] if the lock is taken. [`CallError::Fault`] if there is no such section,
    /// [`CallError::Exhausted`] if the handler has four others.
    pub fn lock(&self, section: u32) -> Result<Section<'a>, CallError> {
        Section::lock(section)
    }

    /// Posts an event to the application, if the handler handles the message.
    ///
    /// # Errors
    /// If the maximum of events or operations is reached.
    pub fn post(&self, kind: u64, value: u64) -> Result<(), CallError> {
        CallError::check(calls::post(kind as i64, value as i64))
    }

    /// Starts an upcall with the message, if the handler returns [`Verdict::Pass`].
    ///
    /// # Errors
    /// If the maximum of operations is reached.
    pub fn upcall(&self) -> Result<(), CallError> {
        CallError::check(calls::upcall())
    }
}
