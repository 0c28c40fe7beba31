//! Limits of a control block.

/// Maximum number of events in a buffer.
pub const MAX_EVENTS: u32 = 1 << 24;

/// Maximum number of sockets of a block.
pub const MAX_SOCKETS: u32 = 1 << 20;
