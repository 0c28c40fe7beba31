//! Which pipes can take several words at once, one in each lane of a vector.

use crate::ilp::instruction::{Binary, Class, Instruction, Operand, Register, Unary};
use crate::ilp::program::Program;
use crate::ilp::{Gauge, Pipe};

/// How a pipe works on the lanes of a vector.
pub(super) struct Lanes {
    /// The width of a lane, of the pipe's words and of all its instructions.
    pub(super) gauge: Gauge,
    /// The use of each persistent register.
    pub(super) registers: Vec<Use>,
}

/// What a pipe does with a persistent register.
#[derive(Clone, Copy)]
pub(super) enum Use {
    /// It reads it: each lane has the register's value.
    Read,
    /// It adds a word of each step to it, by an operation that may take the words in any order: each lane has those of its
    /// steps.
    Gather(Binary),
}

/// Returns how the pipes of a list work on lanes, if all of them do.
pub(super) fn of_program(program: &Program) -> Option<Vec<Lanes>> {
    if !has_vectors() {
        return None;
    }
    program.pipes.iter().map(|placed| of_pipe(&placed.pipe)).collect()
}

/// Returns whether Cranelift has all instructions on vectors that pipes may need, on this processor.
fn has_vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        has!("ssse3") && has!("sse4.1") && has!("sse4.2")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

fn of_pipe(pipe: &Pipe) -> Option<Lanes> {
    let gauge = pipe.input;
    if pipe.output != gauge || !pipe.body.iter().all(|one| is_of_lanes(one, gauge)) {
        return None;
    }
    let register = |index| use_of(Register::persistent(index), &pipe.body);
    let registers = (0..pipe.initial.len() as u8).map(register).collect::<Option<_>>()?;
    Some(Lanes { gauge, registers })
}

/// Returns whether an instruction does the same in each lane, and gives nothing that is wider than the lane.
fn is_of_lanes(instruction: &Instruction, lane: Gauge) -> bool {
    match instruction {
        Instruction::Input { .. } | Instruction::Output { .. } | Instruction::Keystream { .. } => {
            true
        }
        Instruction::Unary { operation, gauge, .. } => {
            let is_known = match operation {
                Unary::Move | Unary::Not | Unary::SwapBytes => true,
                Unary::CountOnes => lane == Gauge::Bits8,
                Unary::TrailingZeros => false,
            };
            is_known && *gauge == lane
        }
        Instruction::Binary { operation, gauge, right, .. } => {
            let is_known = match operation {
                Binary::Multiply => lane != Gauge::Bits8,
                // All lanes are shifted by as many bits.
                Binary::ShiftLeft | Binary::ShiftRight | Binary::RotateLeft => {
                    matches!(right, Operand::Constant(_))
                }
                _ => true,
            };
            is_known && *gauge == lane
        }
        // It takes the operands as they are, not the bits of a gauge. Temporary registers have no more bits than a lane.
        Instruction::Select { condition, then, otherwise, .. } => {
            [condition, then, otherwise].into_iter().all(|operand| match operand {
                Operand::Constant(constant) => *constant <= lane.mask(),
                Operand::Register(register) => {
                    register.class == Class::Temporary || lane == Gauge::Bits64
                }
            })
        }
        Instruction::Crc32c { .. } | Instruction::Lookup { .. } => false,
    }
}

/// Returns what a body does with a persistent register, if it can be done by lanes.
fn use_of(register: Register, body: &[Instruction]) -> Option<Use> {
    let mut writes = body.iter().filter(|one| one.target() == Some(register));
    let Some(write) = writes.next() else { return Some(Use::Read) };
    let Instruction::Binary { operation, left, right, .. } = write else { return None };
    let reads =
        body.iter().flat_map(Instruction::operands).filter(|read| *read == register.into()).count();
    let is_gathered = writes.next().is_none()
        && reads == 1
        && [*left, *right].contains(&register.into())
        && identity(*operation).is_some();
    is_gathered.then_some(Use::Gather(*operation))
}

/// Returns the word that changes nothing, for operations that may take words in any order.
pub(super) fn identity(operation: Binary) -> Option<u64> {
    match operation {
        Binary::Add | Binary::AddEndAroundCarry | Binary::Or | Binary::Xor => Some(0),
        Binary::And => Some(u64::MAX),
        _ => None,
    }
}
