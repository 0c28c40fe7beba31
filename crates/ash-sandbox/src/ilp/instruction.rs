//! The instructions of which pipes are made: register to register, as in VCODE (3.2.2).
//!
//! There are no branches, loops, divisions, loads and stores, so a pipe always ends, cannot trap,
//! and touches no memory but its words of the message.

use std::sync::Arc;

use super::Gauge;
use super::castagnoli;

/// A register of a pipe, 64 bits wide. Builders hand them out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Register {
    pub(crate) class: Class,
    pub(crate) index: u8,
}

/// The two register classes of 3.2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    /// Scratch, not kept from one word to the next.
    Temporary,
    /// Kept; can be exported to and imported from.
    Persistent,
}

impl Register {
    pub(crate) const fn temporary(index: u8) -> Register {
        Register { class: Class::Temporary, index }
    }

    pub(crate) const fn persistent(index: u8) -> Register {
        Register { class: Class::Persistent, index }
    }
}

/// An operand of an instruction: a register or a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The low bits of a register.
    Register(Register),
    /// The low bits of a constant.
    Constant(u64),
}

impl From<Register> for Operand {
    fn from(register: Register) -> Operand {
        Operand::Register(register)
    }
}

impl From<u64> for Operand {
    fn from(constant: u64) -> Operand {
        Operand::Constant(constant)
    }
}

/// An operation on one word. The result is as wide as the gauge; higher bits are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    /// The word itself.
    Move,
    /// All bits inverted.
    Not,
    /// The bytes in reverse order.
    SwapBytes,
    /// The number of one bits.
    CountOnes,
    /// The number of zero bits below the lowest one bit; the width of the gauge for 0.
    TrailingZeros,
}

impl Unary {
    /// All of them.
    pub const ALL: [Unary; 5] =
        [Unary::Move, Unary::Not, Unary::SwapBytes, Unary::CountOnes, Unary::TrailingZeros];

    /// Returns the result of the operation at a gauge.
    pub(crate) fn eval(self, gauge: Gauge, word: u64) -> u64 {
        let word = word & gauge.mask();
        match self {
            Unary::Move => word,
            Unary::Not => !word & gauge.mask(),
            Unary::SwapBytes => word.swap_bytes() >> (64 - gauge.bits()),
            Unary::CountOnes => word.count_ones().into(),
            Unary::TrailingZeros => word.trailing_zeros().min(gauge.bits()).into(),
        }
    }
}

/// An operation on two words. The result is as wide as the gauge; higher bits are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// The sum, without the carry.
    Add,
    /// The difference, without the borrow.
    Subtract,
    /// The low half of the product.
    Multiply,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// A shift to the left by the right operand modulo the gauge's bits.
    ShiftLeft,
    /// A shift to the right, zeros coming in, by the right operand modulo the gauge's bits.
    ShiftRight,
    /// A rotation to the left by the right operand modulo the gauge's bits.
    RotateLeft,
    /// The sum, to which the carry is added: VCODE's extension for checksums (figure 3-3).
    AddEndAroundCarry,
    /// 1 if the words are equal, else 0.
    Equal,
    /// 1 if the left word is less than the right one, both unsigned, else 0.
    LessThan,
}

impl Binary {
    /// All of them.
    pub const ALL: [Binary; 12] = [
        Binary::Add,
        Binary::Subtract,
        Binary::Multiply,
        Binary::And,
        Binary::Or,
        Binary::Xor,
        Binary::ShiftLeft,
        Binary::ShiftRight,
        Binary::RotateLeft,
        Binary::AddEndAroundCarry,
        Binary::Equal,
        Binary::LessThan,
    ];

    /// Returns the result of the operation at a gauge.
    pub(crate) fn eval(self, gauge: Gauge, left: u64, right: u64) -> u64 {
        let (left, right) = (left & gauge.mask(), right & gauge.mask());
        let shift = right as u32 % gauge.bits();
        let result = match self {
            Binary::Add => left.wrapping_add(right),
            Binary::Subtract => left.wrapping_sub(right),
            Binary::Multiply => left.wrapping_mul(right),
            Binary::And => left & right,
            Binary::Or => left | right,
            Binary::Xor => left ^ right,
            Binary::ShiftLeft => left << shift,
            Binary::ShiftRight => left >> shift,
            Binary::RotateLeft if shift == 0 => left,
            Binary::RotateLeft => left << shift | left >> (gauge.bits() - shift),
            Binary::AddEndAroundCarry => {
                let sum = u128::from(left) + u128::from(right);
                (sum as u64 & gauge.mask()).wrapping_add((sum >> gauge.bits()) as u64)
            }
            Binary::Equal => (left == right).into(),
            Binary::LessThan => (left < right).into(),
        };
        result & gauge.mask()
    }
}

/// 256 words that an instruction looks bytes up in, such as another character set's.
pub type Table = [u64; 256];

/// One instruction of a pipe.
#[derive(Clone, Debug)]
pub(crate) enum Instruction {
    /// The next word of the pipe's input, at the input gauge.
    Input {
        to: Register,
    },
    /// The next word of the pipe's output, at the output gauge.
    Output {
        from: Operand,
    },
    Unary {
        operation: Unary,
        gauge: Gauge,
        to: Register,
        from: Operand,
    },
    Binary {
        operation: Binary,
        gauge: Gauge,
        to: Register,
        left: Operand,
        right: Operand,
    },
    /// `then` if the condition is not 0, else `otherwise`.
    Select {
        to: Register,
        condition: Operand,
        then: Operand,
        otherwise: Operand,
    },
    /// Updates the CRC32C in `to` with the bytes of the word, the lowest first.
    Crc32c {
        gauge: Gauge,
        to: Register,
        word: Operand,
    },
    /// The table's word for the lowest byte of the index.
    Lookup {
        to: Register,
        table: Arc<Table>,
        index: Operand,
    },
    /// As many bytes of the pipe's keystream as it takes in a step.
    Keystream {
        to: Register,
    },
}

impl Instruction {
    /// The register that it writes.
    pub(crate) fn target(&self) -> Option<Register> {
        match self {
            Instruction::Output { .. } => None,
            Instruction::Input { to }
            | Instruction::Unary { to, .. }
            | Instruction::Binary { to, .. }
            | Instruction::Select { to, .. }
            | Instruction::Crc32c { to, .. }
            | Instruction::Lookup { to, .. }
            | Instruction::Keystream { to } => Some(*to),
        }
    }

    /// The operands that it reads.
    pub(crate) fn operands(&self) -> impl Iterator<Item = Operand> {
        let read = match self {
            Instruction::Input { .. } | Instruction::Keystream { .. } => [None; 3],
            Instruction::Output { from } | Instruction::Unary { from, .. } => {
                [Some(*from), None, None]
            }
            Instruction::Binary { left, right, .. } => [Some(*left), Some(*right), None],
            Instruction::Select { condition, then, otherwise, .. } => {
                [Some(*condition), Some(*then), Some(*otherwise)]
            }
            Instruction::Crc32c { to, word, .. } => [Some((*to).into()), Some(*word), None],
            Instruction::Lookup { index, .. } => [Some(*index), None, None],
        };
        read.into_iter().flatten()
    }
}

/// Adds the bytes of a word to a CRC32C, as the instruction does.
pub(crate) fn eval_crc32c(gauge: Gauge, crc: u64, word: u64) -> u64 {
    castagnoli::update(crc as u32, &word.to_le_bytes()[..gauge.bytes()]).into()
}
