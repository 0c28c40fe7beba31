//! Limits of pipes and their lists.

use super::Gauge;

/// The pipes of a list, at most.
pub const MAX_PIPES: usize = 16;
/// The temporary registers of a pipe, at most.
pub const MAX_TEMPORARY: usize = 16;
/// The persistent registers of a pipe, at most.
pub const MAX_PERSISTENT: usize = 8;
/// The instructions of a pipe's body, and of the one for its tail, at most.
pub const MAX_INSTRUCTIONS: usize = 64;
/// The table lookups in a pipe's body, at most.
pub const MAX_TABLES: usize = 16;
/// The bytes that all loops take in one turn, and of which fragments are multiples: the widest gauge.
pub const UNIT_BYTES: usize = Gauge::Bits64.bytes();
