use std::sync::Arc;

use super::check::check;
use super::instruction::{Binary, Instruction, Operand, Register, Table, Unary};
use super::{Gauge, MAX_INSTRUCTIONS, MAX_PERSISTENT, MAX_TEMPORARY, PipeError};

/// The treatment of the end of a message that is shorter than a pipe's step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// It sees the bytes with zeros behind them, and of its output only as many bytes count.
    Pad,
    /// It does not see them; they go on to the next pipe as they are.
    Pass,
    /// A body of its own sees them one by one: [`PipeBuilder::tail_body`].
    Bytes,
}

/// Which pipe this is, where the compiler knows more of it than its instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Custom,
    Copy,
    Count,
    Checksum,
    Crc32c,
    Search,
    ByteSwap(Gauge),
    Xor,
    ChaCha20,
}

/// A computation on streaming data: it takes a few bytes at a time, gives as many, and keeps what it
/// has to in persistent registers (3.2.2).
///
/// A step takes one word of the input gauge and gives one of the output gauge; where the gauges
/// differ, it takes or gives several of the narrower one.
#[derive(Clone, Debug)]
pub struct Pipe {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) input: Gauge,
    pub(crate) output: Gauge,
    pub(crate) commutative: bool,
    pub(crate) no_mod: bool,
    pub(crate) tail: Tail,
    pub(crate) temporaries: u8,
    pub(crate) initial: Vec<u64>,
    pub(crate) body: Vec<Instruction>,
    pub(crate) tail_body: Vec<Instruction>,
    pub(crate) keystream: bool,
}

impl Pipe {
    /// Begins a pipe that takes and gives words of this gauge.
    pub fn builder(name: &'static str, gauge: Gauge) -> PipeBuilder {
        PipeBuilder {
            pipe: Pipe {
                name,
                kind: Kind::Custom,
                input: gauge,
                output: gauge,
                commutative: false,
                no_mod: false,
                tail: Tail::Pad,
                temporaries: 0,
                initial: Vec::new(),
                body: Vec::new(),
                tail_body: Vec::new(),
                keystream: false,
            },
            in_tail: false,
            error: None,
        }
    }

    /// The name that errors mention.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The gauge of what the pipe gives.
    pub fn output_gauge(&self) -> Gauge {
        self.output
    }

    /// Returns whether the pipe may see the words of a message in any order.
    pub fn is_commutative(&self) -> bool {
        self.commutative
    }

    /// Returns what the pipe does with the end of a message.
    pub fn tail(&self) -> Tail {
        self.tail
    }

    /// The bytes that one step takes and gives.
    pub(crate) fn step_bytes(&self) -> usize {
        self.input.max(self.output).bytes()
    }
}

/// Builds a [`Pipe`], instruction by instruction.
///
/// [`build`](PipeBuilder::build) reports errors, so that pipes read as programs.
#[derive(Clone, Debug)]
pub struct PipeBuilder {
    pipe: Pipe,
    in_tail: bool,
    error: Option<PipeError>,
}

impl PipeBuilder {
    /// Has the pipe give words of another gauge than it takes.
    pub fn output_gauge(&mut self, gauge: Gauge) -> &mut PipeBuilder {
        self.pipe.output = gauge;
        self
    }

    /// Declares that the pipe may see the words of a message in any order.
    ///
    /// This is the author's promise; nothing checks it.
    pub fn commutative(&mut self) -> &mut PipeBuilder {
        self.pipe.commutative = true;
        self
    }

    /// Declares that the pipe gives just what it takes. `build` checks it.
    pub fn no_mod(&mut self) -> &mut PipeBuilder {
        self.pipe.no_mod = true;
        self
    }

    /// Says what happens with the end of a message; [`Tail::Pad`] if nothing is said.
    pub fn tail(&mut self, tail: Tail) -> &mut PipeBuilder {
        self.pipe.tail = tail;
        self
    }

    /// Begins the body for the end of a message, which takes and gives one byte at a time
    /// ([`Tail::Bytes`]). The instructions that follow belong to it.
    pub fn tail_body(&mut self) -> &mut PipeBuilder {
        self.in_tail = true;
        self.pipe.tail = Tail::Bytes;
        self
    }

    /// Allocates a temporary register: scratch, not kept from one step to the next.
    pub fn temporary(&mut self) -> Register {
        let register = Register::temporary(self.pipe.temporaries);
        if usize::from(self.pipe.temporaries) == MAX_TEMPORARY {
            self.fail(PipeError::TooManyTemporaries { pipe: self.pipe.name });
        } else {
            self.pipe.temporaries += 1;
        }
        register
    }

    /// Allocates a persistent register: kept from step to step and from fragment to fragment, until
    /// the state is reset, which gives it this value again.
    pub fn persistent(&mut self, initial: u64) -> Register {
        let register = Register::persistent(self.pipe.initial.len() as u8);
        if self.pipe.initial.len() == MAX_PERSISTENT {
            self.fail(PipeError::TooManyPersistents { pipe: self.pipe.name });
        } else {
            self.pipe.initial.push(initial);
        }
        register
    }

    /// Takes the next word of the input, into a temporary register of its own.
    pub fn input(&mut self) -> Register {
        let to = self.temporary();
        self.push(Instruction::Input { to });
        to
    }

    /// Gives the next word of the output.
    pub fn output(&mut self, from: impl Into<Operand>) {
        self.push(Instruction::Output { from: from.into() });
    }

    /// Does an operation on one word.
    pub fn unary(
        &mut self,
        operation: Unary,
        gauge: Gauge,
        to: Register,
        from: impl Into<Operand>,
    ) {
        self.push(Instruction::Unary { operation, gauge, to, from: from.into() });
    }

    /// Does an operation on two words.
    pub fn binary(
        &mut self,
        operation: Binary,
        gauge: Gauge,
        to: Register,
        left: impl Into<Operand>,
        right: impl Into<Operand>,
    ) {
        let (left, right) = (left.into(), right.into());
        self.push(Instruction::Binary { operation, gauge, to, left, right });
    }

    /// Takes one of two words: `then` if the condition is not 0, else `otherwise`.
    pub fn select(
        &mut self,
        to: Register,
        condition: impl Into<Operand>,
        then: impl Into<Operand>,
        otherwise: impl Into<Operand>,
    ) {
        let (condition, then, otherwise) = (condition.into(), then.into(), otherwise.into());
        self.push(Instruction::Select { to, condition, then, otherwise });
    }

    /// Continues the CRC32C in `to` by the bytes of a word, the lowest first.
    pub fn crc32c(&mut self, gauge: Gauge, to: Register, word: impl Into<Operand>) {
        self.push(Instruction::Crc32c { gauge, to, word: word.into() });
    }

    /// Looks the lowest byte of the index up in a table.
    pub fn lookup(&mut self, to: Register, table: &Arc<Table>, index: impl Into<Operand>) {
        let (table, index) = (table.clone(), index.into());
        self.push(Instruction::Lookup { to, table, index });
    }

    /// Takes as many bytes of the pipe's ChaCha20 keystream as a step takes of the message. The key
    /// is exported for each message: [`State::export_key`](super::State::export_key).
    pub fn keystream(&mut self) -> Register {
        let to = self.temporary();
        self.pipe.keystream = true;
        self.push(Instruction::Keystream { to });
        to
    }

    /// Ends the pipe.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong with it.
    pub fn build(self) -> Result<Pipe, PipeError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        check(&self.pipe)?;
        Ok(self.pipe)
    }

    /// Ends a pipe of this crate.
    pub(crate) fn build_as(mut self, kind: Kind) -> Pipe {
        self.pipe.kind = kind;
        self.build().expect("a pipe of this crate follows the rules")
    }

    fn push(&mut self, instruction: Instruction) {
        let body = if self.in_tail { &mut self.pipe.tail_body } else { &mut self.pipe.body };
        if body.len() == MAX_INSTRUCTIONS {
            self.fail(PipeError::TooLong { pipe: self.pipe.name });
        } else {
            body.push(instruction);
        }
    }

    fn fail(&mut self, error: PipeError) {
        self.error.get_or_insert(error);
    }
}
