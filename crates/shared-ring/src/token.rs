//! Names of operations in flight.

use std::fmt;

/// What an operation does; one operation of each kind may be in flight for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum OpKind {
    /// Connections arriving at a listener.
    Accept = 0,
    /// Bytes arriving at a connection.
    Receive = 1,
    /// Bytes or a file leaving through a connection.
    Send = 2,
    /// A connection being opened.
    Connect = 3,
    /// A descriptor being closed.
    Close = 4,
    /// Work on a file.
    File = 5,
    /// The wake-up of a kernel by another thread.
    Wake = 6,
    /// The request to cancel another operation.
    Cancel = 7,
    /// The state of a descriptor, as it changes.
    Watch = 8,
    /// Bytes arriving, told by reports alone.
    Stream = 9,
}

impl OpKind {
    /// How many kinds there are.
    pub const COUNT: usize = 10;
    const ALL: [OpKind; OpKind::COUNT] = [
        OpKind::Accept,
        OpKind::Receive,
        OpKind::Send,
        OpKind::Connect,
        OpKind::Close,
        OpKind::File,
        OpKind::Wake,
        OpKind::Cancel,
        OpKind::Watch,
        OpKind::Stream,
    ];

    /// Whether it is of an operation that was posted, which stands in its kernel's table.
    pub(crate) const fn is_tracked(self) -> bool {
        !matches!(self, OpKind::Wake | OpKind::Cancel | OpKind::Watch | OpKind::Stream)
    }
}

/// The name of one operation: kind, slot and generation in 64 bits.
///
/// The slot says whose operation it is. The generation counts how often the slot was used again,
/// so that a completion meant for a connection that is gone never reaches its successor.
///
/// Layout, high to low: kind 8 bits, generation 24 bits, slot 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(u64);

impl Token {
    /// Generations are counted modulo this.
    pub const GENERATIONS: u32 = 1 << 24;

    /// Names the operation of `kind` for `slot` in its `generation` (taken modulo
    /// [`Token::GENERATIONS`]).
    pub const fn new(kind: OpKind, slot: u32, generation: u32) -> Self {
        let generation = (generation % Self::GENERATIONS) as u64;
        Token((kind as u64) << 56 | generation << 32 | slot as u64)
    }

    /// What the operation does.
    pub const fn kind(self) -> OpKind {
        OpKind::ALL[(self.0 >> 56) as usize % OpKind::COUNT]
    }

    /// Whose operation it is.
    pub const fn slot(self) -> u32 {
        self.0 as u32
    }

    /// Which use of the slot it belongs to.
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32 % Self::GENERATIONS
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Token(bits)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({}.{})", self.kind(), self.slot(), self.generation())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keeps_its_parts(kind in 0..OpKind::COUNT, slot: u32, generation: u32) {
            let token = Token::new(OpKind::ALL[kind], slot, generation);
            prop_assert_eq!(token.kind(), OpKind::ALL[kind]);
            prop_assert_eq!(token.slot(), slot);
            prop_assert_eq!(token.generation(), generation % Token::GENERATIONS);
            prop_assert_eq!(Token::from_bits(token.bits()), token);
        }
    }
}
