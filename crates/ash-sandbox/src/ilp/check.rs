//! The rules that a pipe follows, checked before it can be composed.

use super::instruction::{Class, Instruction, Operand, Register, Unary};
use super::{Gauge, MAX_TABLES, MAX_TEMPORARY, Pipe, PipeError, Tail};

impl TryFrom<u32> for Gauge {
    type Error = PipeError;

    /// Takes a number of bits.
    ///
    /// # Errors
    ///
    /// [`PipeError::BadGauge`] for any number but 8, 16, 32 and 64.
    fn try_from(bits: u32) -> Result<Gauge, PipeError> {
        Gauge::ALL
            .into_iter()
            .find(|gauge| gauge.bits() == bits)
            .ok_or(PipeError::BadGauge { bits })
    }
}

/// Checks a pipe's bodies.
pub(crate) fn check(pipe: &Pipe) -> Result<(), PipeError> {
    let step = pipe.step_bytes();
    let body = Body {
        pipe,
        input: pipe.input,
        inputs: step / pipe.input.bytes(),
        outputs: step / pipe.output.bytes(),
        keystreams: 1,
    };
    body.check(&pipe.body)?;
    if pipe.tail == Tail::Bytes {
        let tail = Body { pipe, input: Gauge::Bits8, inputs: 1, outputs: 1, keystreams: 0 };
        tail.check(&pipe.tail_body)?;
    }
    Ok(())
}

struct Body<'a> {
    pipe: &'a Pipe,
    input: Gauge,
    inputs: usize,
    outputs: usize,
    keystreams: usize,
}

/// The known content of a temporary register.
#[derive(Clone, Copy, PartialEq)]
enum Content {
    Unwritten,
    /// The input with this number, unchanged.
    Input(usize),
    Other,
}

impl Body<'_> {
    fn check(&self, instructions: &[Instruction]) -> Result<(), PipeError> {
        let pipe = self.pipe.name;
        let mut known = [Content::Unwritten; MAX_TEMPORARY];
        let (mut inputs, mut outputs, mut lookups, mut keystreams) = (0, 0, 0, 0);
        for (at, instruction) in instructions.iter().enumerate() {
            self.check_reads(at, instruction, &known)?;
            let mut written = Content::Other;
            match instruction {
                Instruction::Input { .. } => {
                    written = Content::Input(inputs);
                    inputs += 1;
                }
                Instruction::Output { from } => {
                    let given = self.content(*from, &known);
                    if self.pipe.no_mod && given != Content::Input(outputs) {
                        return Err(PipeError::ModifiesInput { pipe, instruction: at });
                    }
                    outputs += 1;
                }
                Instruction::Unary { operation: Unary::Move, gauge, from, .. }
                    if *gauge >= self.input =>
                {
                    written = self.content(*from, &known);
                }
                Instruction::Lookup { .. } => lookups += 1,
                Instruction::Keystream { .. } => keystreams += 1,
                _ => {}
            }
            if let Some(to) = instruction.target() {
                self.check_register(at, to)?;
                if to.class == Class::Temporary {
                    known[usize::from(to.index)] = written;
                }
            }
        }
        if lookups > MAX_TABLES {
            return Err(PipeError::TooManyLookups { pipe });
        }
        if keystreams > self.keystreams {
            return Err(PipeError::KeystreamTwice { pipe });
        }
        if inputs != self.inputs {
            return Err(PipeError::InputCount { pipe, expected: self.inputs, found: inputs });
        }
        if outputs != self.outputs {
            return Err(PipeError::OutputCount { pipe, expected: self.outputs, found: outputs });
        }
        // With gauges that differ, no word of the output is one of the input.
        if self.pipe.no_mod && self.inputs != self.outputs {
            return Err(PipeError::ModifiesInput { pipe, instruction: 0 });
        }
        Ok(())
    }

    fn check_reads(
        &self,
        at: usize,
        instruction: &Instruction,
        known: &[Content; MAX_TEMPORARY],
    ) -> Result<(), PipeError> {
        for operand in instruction.operands() {
            let Operand::Register(register) = operand else { continue };
            self.check_register(at, register)?;
            if self.content(operand, known) == Content::Unwritten {
                let pipe = self.pipe.name;
                return Err(PipeError::ReadBeforeWrite { pipe, instruction: at });
            }
        }
        Ok(())
    }

    fn check_register(&self, at: usize, register: Register) -> Result<(), PipeError> {
        let allocated = match register.class {
            Class::Temporary => usize::from(self.pipe.temporaries),
            Class::Persistent => self.pipe.initial.len(),
        };
        if usize::from(register.index) >= allocated {
            let pipe = self.pipe.name;
            return Err(PipeError::RegisterOutOfRange { pipe, instruction: at });
        }
        Ok(())
    }

    fn content(&self, operand: Operand, known: &[Content; MAX_TEMPORARY]) -> Content {
        match operand {
            Operand::Register(Register { class: Class::Temporary, index }) => {
                known[usize::from(index)]
            }
            _ => Content::Other,
        }
    }
}
