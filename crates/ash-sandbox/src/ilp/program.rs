//! A list of pipes as it is compiled.

#[cfg(feature = "sandbox")]
use super::UNIT_BYTES;
#[cfg(feature = "sandbox")]
use super::instruction::Instruction;
use super::{Mode, Pipe};

/// Instructions of the processor for each byte of a CRC32C, by tables.
#[cfg(feature = "sandbox")]
const CRC_OF_BYTE: u64 = 4;

/// Names a pipe of a list, and of the clones that were made of the list later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PipeId {
    /// A number that no other pipe of any list has.
    pub(crate) unique: u64,
    /// The place in the list.
    pub(crate) index: usize,
}

/// A pipe in its place in a list.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) id: PipeId,
    pub(crate) pipe: Pipe,
    /// Its first persistent register among those of the list.
    pub(crate) first_register: usize,
    /// Its keystream among those of the list.
    pub(crate) keystream: Option<usize>,
}

/// A list of pipes as it is compiled: what executions and states share.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) mode: Mode,
    pub(crate) pipes: Vec<Placed>,
    pub(crate) initial: Box<[u64]>,
    pub(crate) keystreams: usize,
}

#[cfg(feature = "sandbox")]
impl Program {
    /// Returns about how many instructions of the processor a unit of the message takes, with so many for one of a pipe.
    pub(crate) fn operations_of_unit(&self, of_instruction: u64) -> u64 {
        self.pipes.iter().map(|placed| placed.pipe.operations_of_unit(of_instruction)).sum()
    }

    /// Returns about how many a part of a unit takes, at most.
    pub(crate) fn operations_of_tail(&self, of_instruction: u64) -> u64 {
        let of_tail = |pipe: &Pipe| UNIT_BYTES as u64 * operations(&pipe.tail_body, of_instruction);
        let of_pipe = |pipe: &Pipe| pipe.operations_of_unit(of_instruction).max(of_tail(pipe));
        self.pipes.iter().map(|placed| of_pipe(&placed.pipe)).sum()
    }
}

#[cfg(feature = "sandbox")]
impl Pipe {
    fn operations_of_unit(&self, of_instruction: u64) -> u64 {
        (UNIT_BYTES / self.step_bytes()) as u64 * operations(&self.body, of_instruction)
    }
}

/// Returns about how many instructions of the processor a body takes.
#[cfg(feature = "sandbox")]
fn operations(body: &[Instruction], of_instruction: u64) -> u64 {
    let of_crc = |instruction: &Instruction| match instruction {
        Instruction::Crc32c { gauge, .. } => CRC_OF_BYTE * gauge.bytes() as u64,
        _ => 0,
    };
    body.iter().map(|instruction| of_instruction + of_crc(instruction)).sum()
}
