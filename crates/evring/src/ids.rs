//! Identifiers of connections, listeners and root directories.

use std::fmt;

/// Identifies a connection: a slot and the slot's generation.
///
/// Identifiers are never reused, so commands for a closed connection have no effect.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnId {
    slot: u32,
    generation: u32,
}

impl ConnId {
    /// Returns the identifier for `slot` and `generation`.
    pub const fn new(slot: u32, generation: u32) -> Self {
        ConnId { slot, generation }
    }

    /// Returns the slot, a small number that is unique among open connections. It can index a table.
    pub const fn slot(self) -> u32 {
        self.slot
    }

    /// Returns how many times the slot was used before.
    pub const fn generation(self) -> u32 {
        self.generation
    }

    /// Returns the identifier as one number, by which handlers know the connection: the generation in the upper 32 bits, the
    /// slot in the lower ones.
    pub const fn value(self) -> u64 {
        (self.generation as u64) << 32 | self.slot as u64
    }
}

impl fmt::Debug for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conn {}.{}", self.slot, self.generation)
    }
}

/// Identifies a listener by its index in [`Config::listen`](crate::Config::listen).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Listener(pub u16);

/// Identifies a root directory by its index in [`Config::roots`](crate::Config::roots).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Root(pub u16);
