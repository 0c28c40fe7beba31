//! The shape of a list for which there may be a kernel: pipes that read, then at most two that modify,
//! then others that read.

use super::vector::{Slots, Swapped};
use crate::ilp::pipe::Kind;
use crate::ilp::program::Program;
use crate::ilp::{Gauge, Mode};

/// Which pipes that only read stand beside one another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Readers {
    pub(crate) sum: bool,
    pub(crate) crc: bool,
    pub(crate) search: bool,
}

impl Readers {
    pub(crate) const NONE: Readers = Readers { sum: false, crc: false, search: false };
    pub(crate) const SUM: Readers = Readers { sum: true, ..Readers::NONE };
    pub(crate) const CRC: Readers = Readers { crc: true, ..Readers::NONE };
    pub(crate) const SUM_CRC: Readers = Readers { sum: true, crc: true, search: false };
    pub(crate) const SEARCH: Readers = Readers { search: true, ..Readers::NONE };
    pub(crate) const SUM_SEARCH: Readers = Readers { sum: true, crc: false, search: true };
}

/// The change that the pipes make to the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    Swap,
    Xor,
    Keystream,
    SwapXor,
    XorSwap,
}

#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) before: Readers,
    pub(crate) change: Change,
    pub(crate) after: Readers,
    pub(crate) slots: Slots,
    pub(crate) counts: Box<[usize]>,
}

impl Shape {
    /// The shape of a list, or `None` if it has another one.
    pub(crate) fn of(program: &Program) -> Option<Shape> {
        let (mut before, mut after) = (Readers::NONE, Readers::NONE);
        let mut change = Change::None;
        let mut slots = Slots::default();
        let mut counts = Vec::new();
        for placed in &program.pipes {
            let register = placed.first_register;
            let readers = if change == Change::None { &mut before } else { &mut after };
            let (read, slot) = match placed.pipe.kind {
                Kind::Custom => return None,
                Kind::Copy | Kind::ByteSwap(Gauge::Bits8) => continue,
                Kind::Count => {
                    counts.push(register);
                    continue;
                }
                Kind::Checksum => (&mut readers.sum, &mut slots.sum),
                Kind::Crc32c => (&mut readers.crc, &mut slots.crc),
                Kind::Search => (&mut readers.search, &mut slots.search),
                Kind::ByteSwap(_) | Kind::Xor | Kind::ChaCha20 if after != Readers::NONE => {
                    return None;
                }
                Kind::ByteSwap(gauge) => {
                    change = match change {
                        Change::None => Change::Swap,
                        Change::Xor => Change::XorSwap,
                        _ => return None,
                    };
                    slots.swap = Swapped::new(gauge);
                    continue;
                }
                Kind::Xor => {
                    change = match change {
                        Change::None => Change::Xor,
                        Change::Swap => Change::SwapXor,
                        _ => return None,
                    };
                    slots.xor = register;
                    continue;
                }
                Kind::ChaCha20 => {
                    if change != Change::None {
                        return None;
                    }
                    change = Change::Keystream;
                    continue;
                }
            };
            if *read {
                return None;
            }
            *read = true;
            *slot = register;
        }
        if program.mode == Mode::Read && after == Readers::NONE {
            // Nothing reads the changed data.
            change = Change::None;
        }
        if before != Readers::NONE && after != Readers::NONE {
            return None;
        }
        Some(Shape { before, change, after, slots, counts: counts.into() })
    }
}
