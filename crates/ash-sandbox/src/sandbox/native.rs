//! Unsafe handlers (section 6.3): native code in the place of a module.

use super::call::{COPY, COUNT, Call, POST, SEND, cost_of_bytes};
use super::host::Host;
use super::result::EXHAUSTED;

/// The code of an unsafe handler. Its result is that of `ash_handle`.
pub(crate) type NativeEntry = dyn FnMut(&mut NativeCalls<'_>) -> i32 + Send;

/// The interface of an unsafe handler's code: the message, its own memory, and the calls of table 5-1.
///
/// Calls have the bounds and the results of those of a module.
#[derive(Debug)]
pub struct NativeCalls<'a> {
    pub(crate) host: &'a mut Host,
    pub(crate) connection: u64,
    pub(crate) slot: u32,
}

impl NativeCalls<'_> {
    /// Returns the connection of the message.
    pub fn connection(&self) -> u64 {
        self.connection
    }

    /// Returns the slot of the message in the receive ring.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Returns the message, and the handler's own memory.
    #[inline]
    pub fn memory(&mut self) -> (&[u8], &mut [u8]) {
        self.host.native_memory()
    }

    /// Sends bytes of the memory to the peer, if the message is handled (`ae_otto_send`).
    #[inline]
    pub fn send(&mut self, offset: u32, len: u32) -> i32 {
        self.call(&SEND, len, |host| host.send(offset as i32, len as i32))
    }

    /// Copies within the memory, with one check of each range (`ae_trusted_memcpy`).
    #[inline]
    pub fn copy(&mut self, to: u32, from: u32, len: u32) -> i32 {
        self.call(&COPY, len, |host| host.copy(to as i32, from as i32, len as i32))
    }

    /// Posts an event to the application, if the message is handled.
    pub fn post(&mut self, kind: u64, value: u64) -> i32 {
        self.call(&POST, 0, |host| host.post(kind as i64, value as i64))
    }

    /// Adds to a counter.
    pub fn count(&mut self, counter: u32, by: u64) -> i32 {
        self.call(&COUNT, 0, |host| host.count(counter as i32, by as i64))
    }

    #[inline]
    fn call(&mut self, call: &Call, bytes: u32, effect: impl FnOnce(&mut Host) -> i32) -> i32 {
        if !self.host.charge(call, cost_of_bytes(bytes)) {
            return EXHAUSTED;
        }
        effect(self.host)
    }
}
