//! Tokens, which identify operations in flight.

use std::fmt;

/// Kind of an operation. At most one operation of each kind is in flight for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum OpKind {
    /// Accepts connections.
    Accept = 0,
    /// Receives bytes.
    Receive = 1,
    /// Sends bytes or a file, or waits for room to send.
    Send = 2,
    /// Connects a socket.
    Connect = 3,
    /// Closes a descriptor.
    Close = 4,
    /// A file operation.
    File = 5,
    /// Wakes of a kernel by other threads.
    Wake = 6,
    /// Cancels another operation.
    Cancel = 7,
    /// Reports changes of a descriptor's state.
    Watch = 8,
    /// Receives bytes, delivered only as raw completions.
    Stream = 9,
    /// A system call.
    Call = 10,
}

impl OpKind {
    /// Number of kinds.
    pub const COUNT: usize = 11;
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
        OpKind::Call,
    ];

    /// The kinds by their numbers in a token, padded to a power of two: a token's kind is looked up several times for
    /// each completion, and a division costs more than the rest.
    const BY_NUMBER: [OpKind; OpKind::COUNT.next_power_of_two()] = {
        let mut kinds = [OpKind::Accept; OpKind::COUNT.next_power_of_two()];
        let mut number = 0;
        while number < kinds.len() {
            kinds[number] = OpKind::ALL[number % OpKind::COUNT];
            number += 1;
        }
        kinds
    };

    /// Returns whether operations of this kind are in the kernel's table.
    pub(crate) const fn is_tracked(self) -> bool {
        !matches!(self, OpKind::Wake | OpKind::Cancel | OpKind::Watch | OpKind::Stream)
    }
}

/// Identifies an operation: kind, slot and generation in 64 bits.
///
/// The slot identifies the owner, such as a connection. The generation counts reuses of the slot,
/// so that a completion for a closed connection never reaches its successor.
///
/// Layout, high to low: kind 8 bits, generation 24 bits, slot 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(u64);

impl Token {
    /// Number of generations; they are counted modulo this.
    pub const GENERATIONS: u32 = 1 << 24;

    /// The token of wake-ups.
    pub const WAKE: Token = Token::new(OpKind::Wake, 0, 0);

    /// Returns the token of the operation of `kind` for `slot` in `generation`, modulo
    /// [`Token::GENERATIONS`].
    pub const fn new(kind: OpKind, slot: u32, generation: u32) -> Self {
        let generation = (generation % Self::GENERATIONS) as u64;
        Token((kind as u64) << 56 | generation << 32 | slot as u64)
    }

    /// Returns the operation's kind.
    pub const fn kind(self) -> OpKind {
        OpKind::BY_NUMBER[(self.0 >> 56) as usize % OpKind::BY_NUMBER.len()]
    }

    /// Returns the slot.
    pub const fn slot(self) -> u32 {
        self.0 as u32
    }

    /// Returns the generation of the slot.
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32 % Self::GENERATIONS
    }

    /// Returns the token as a number, such as the user data of a submission.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the token that [`bits`](Token::bits) has converted.
    pub const fn from_bits(bits: u64) -> Self {
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
        fn token_round_trips(kind in 0..OpKind::COUNT, slot: u32, generation: u32) {
            let token = Token::new(OpKind::ALL[kind], slot, generation);
            prop_assert_eq!(token.kind(), OpKind::ALL[kind]);
            prop_assert_eq!(token.slot(), slot);
            prop_assert_eq!(token.generation(), generation % Token::GENERATIONS);
            prop_assert_eq!(Token::from_bits(token.bits()), token);
        }
    }
}
