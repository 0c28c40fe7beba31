//! Results of host calls that do not return a number.

/// The call had its effect.
pub(crate) const OK: i32 = 0;
/// The bytes are not in the handler's memory, or may not be accessed.
pub(crate) const FAULT: i32 = -1;
/// The number of sends, events or operations is used up.
pub(crate) const EXHAUSTED: i32 = -2;
/// There is no such pipe list, or it does not accept this message.
pub(crate) const INVALID: i32 = -3;
/// The lock is taken. A handler aborts instead of waiting (section 5.4.1).
pub(crate) const BUSY: i32 = -4;
