//! The functions and types that the expansion of the macro [`handler`](crate::handler) uses.

pub use crate::state::State;
use crate::{Message, Verdict};

/// The parameters of the entry.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Offset of the message in the memory.
    pub offset: usize,
    /// Its length in bytes.
    pub length: usize,
    /// The connection.
    pub connection: u64,
    /// The place in the receive ring.
    pub slot: u32,
}

/// Calls a handler.
///
/// # Safety
/// The bytes of the message are in the memory, and do not change during the call.
pub unsafe fn call(arrival: Arrival, handler: impl FnOnce(&Message<'_>) -> Verdict) -> i32 {
    // SAFETY: the caller promises it.
    handler(&unsafe { Message::received(arrival) }) as i32
}

/// Calls a handler with its state.
///
/// # Safety
/// As for [`call`]. Only the host calls this, by the one entry of the module.
pub unsafe fn call_with<S>(
    arrival: Arrival,
    state: &State<S>,
    handler: impl for<'m> FnOnce(&'m mut S, &Message<'m>) -> Verdict,
) -> i32 {
    // SAFETY: the caller promises both; the host calls the entry for one message at a time.
    let (state, message) = unsafe { (state.get(), Message::received(arrival)) };
    handler(state, &message) as i32
}
