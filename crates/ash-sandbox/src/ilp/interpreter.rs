//! The interpreter: instruction by instruction, and memory byte by byte. What it does is what a pipe
//! means; generated code and kernels are compared with it.

use super::instruction::{Class, Instruction, Operand, Register, eval_crc32c};
use super::program::{Placed, Program};
use super::state::KEYSTREAM_BYTES;
use super::{Gauge, MAX_TEMPORARY, Mode, Tail, UNIT_BYTES};

/// Applies a program to `len` bytes.
///
/// # Safety
///
/// `len` bytes can be read at `source`, and in mode [`Mode::Write`] written at `destination`, which is
/// `source` or does not overlap it. `len` bytes of each keystream are there, if there are any.
pub(crate) unsafe fn run(
    program: &Program,
    registers: &mut [u64],
    source: *const u8,
    destination: *mut u8,
    len: usize,
    keystream: &[u8],
) {
    let mut at = 0;
    while at < len {
        let bytes = UNIT_BYTES.min(len - at);
        let mut unit = [0; UNIT_BYTES];
        for (index, byte) in unit[..bytes].iter_mut().enumerate() {
            // SAFETY: at + index < len, and the caller vouches for len bytes.
            *byte = unsafe { source.add(at + index).read() };
        }
        for placed in &program.pipes {
            let stream = placed.keystream.map_or(&[][..], |number| {
                let begin = number * KEYSTREAM_BYTES + at;
                &keystream[begin..begin + bytes]
            });
            apply(placed, registers, &mut unit[..bytes], stream);
        }
        if program.mode == Mode::Write {
            for (index, byte) in unit[..bytes].iter().enumerate() {
                // SAFETY: as above; the caller vouches for the destination in this mode.
                unsafe { destination.add(at + index).write(*byte) };
            }
        }
        at += bytes;
    }
}

/// Has one pipe transform a unit, or what is left of the message.
fn apply(placed: &Placed, registers: &mut [u64], data: &mut [u8], stream: &[u8]) {
    let pipe = &placed.pipe;
    let registers = &mut registers[placed.first_register..][..pipe.initial.len()];
    let step = pipe.step_bytes();
    let mut words = data.chunks_exact_mut(step);
    let mut streams = stream.chunks_exact(step);
    for word in &mut words {
        let stream = streams.next().unwrap_or_default();
        Body { registers, stream, input: pipe.input, output: pipe.output }.run(&pipe.body, word);
    }
    let rest = words.into_remainder();
    if rest.is_empty() {
        return;
    }
    match pipe.tail {
        Tail::Pass => {}
        Tail::Pad => {
            let mut padded = [0; UNIT_BYTES];
            padded[..rest.len()].copy_from_slice(rest);
            let stream = streams.remainder();
            Body { registers, stream, input: pipe.input, output: pipe.output }
                .run(&pipe.body, &mut padded[..step]);
            rest.copy_from_slice(&padded[..rest.len()]);
        }
        Tail::Bytes => {
            for byte in rest {
                let byte = std::slice::from_mut(byte);
                Body { registers, stream: &[], input: Gauge::Bits8, output: Gauge::Bits8 }
                    .run(&pipe.tail_body, byte);
            }
        }
    }
}

struct Body<'a> {
    registers: &'a mut [u64],
    stream: &'a [u8],
    input: Gauge,
    output: Gauge,
}

impl Body<'_> {
    fn run(self, instructions: &[Instruction], data: &mut [u8]) {
        let mut temporaries = [0; MAX_TEMPORARY];
        let mut out = [0; UNIT_BYTES];
        let (mut taken, mut given) = (0, 0);
        for instruction in instructions {
            let get = |operand: &Operand| match operand {
                Operand::Constant(constant) => *constant,
                Operand::Register(register) => match register.class {
                    Class::Temporary => temporaries[usize::from(register.index)],
                    Class::Persistent => self.registers[usize::from(register.index)],
                },
            };
            let (to, value): (Register, u64) = match instruction {
                Instruction::Input { to } => {
                    let bytes = self.input.bytes();
                    taken += bytes;
                    (*to, load(&data[taken - bytes..taken]))
                }
                Instruction::Output { from } => {
                    let bytes = self.output.bytes();
                    out[given..given + bytes].copy_from_slice(&get(from).to_le_bytes()[..bytes]);
                    given += bytes;
                    continue;
                }
                Instruction::Unary { operation, gauge, to, from } => {
                    (*to, operation.eval(*gauge, get(from)))
                }
                Instruction::Binary { operation, gauge, to, left, right } => {
                    (*to, operation.eval(*gauge, get(left), get(right)))
                }
                Instruction::Select { to, condition, then, otherwise } => {
                    (*to, if get(condition) == 0 { get(otherwise) } else { get(then) })
                }
                Instruction::Crc32c { gauge, to, word } => {
                    (*to, eval_crc32c(*gauge, get(&Operand::Register(*to)), get(word)))
                }
                Instruction::Lookup { to, table, index } => {
                    (*to, table[usize::from(get(index) as u8)])
                }
                Instruction::Keystream { to } => (*to, load(self.stream)),
            };
            match to.class {
                Class::Temporary => temporaries[usize::from(to.index)] = value,
                Class::Persistent => self.registers[usize::from(to.index)] = value,
            }
        }
        data.copy_from_slice(&out[..given]);
    }
}

fn load(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}
