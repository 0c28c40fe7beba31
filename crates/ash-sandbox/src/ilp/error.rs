//! The errors of pipes, of lists of them, and of applying them.

use std::error::Error;
use std::fmt;

use super::{
    MAX_INSTRUCTIONS, MAX_PERSISTENT, MAX_PIPES, MAX_TABLES, MAX_TEMPORARY, Mode, UNIT_BYTES,
};

/// The reason why a pipe could not be built.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PipeError {
    /// No gauge has this many bits.
    BadGauge {
        /// The bits asked for.
        bits: u32,
    },
    /// The pipe allocates more temporary registers than there are.
    TooManyTemporaries {
        /// The pipe's name.
        pipe: &'static str,
    },
    /// The pipe allocates more persistent registers than there are.
    TooManyPersistents {
        /// The pipe's name.
        pipe: &'static str,
    },
    /// The body, or the tail's, has more instructions than a pipe may have.
    TooLong {
        /// The pipe's name.
        pipe: &'static str,
    },
    /// The pipe has more lookups than a pipe may have.
    TooManyLookups {
        /// The pipe's name.
        pipe: &'static str,
    },
    /// An instruction names a register that this pipe did not allocate.
    RegisterOutOfRange {
        /// The pipe's name.
        pipe: &'static str,
        /// The instruction, counted from 0.
        instruction: usize,
    },
    /// An instruction reads a temporary register to which no instruction before it writes.
    ReadBeforeWrite {
        /// The pipe's name.
        pipe: &'static str,
        /// The instruction, counted from 0.
        instruction: usize,
    },
    /// The body does not take as many words of input as a step has.
    InputCount {
        /// The pipe's name.
        pipe: &'static str,
        /// The words that a step has.
        expected: usize,
        /// The words that the body takes.
        found: usize,
    },
    /// The body does not give as many words of output as a step has.
    OutputCount {
        /// The pipe's name.
        pipe: &'static str,
        /// The words that a step has.
        expected: usize,
        /// The words that the body gives.
        found: usize,
    },
    /// A pipe with the attribute `no_mod` gives something else than its input.
    ModifiesInput {
        /// The pipe's name.
        pipe: &'static str,
        /// The instruction, counted from 0.
        instruction: usize,
    },
    /// A keystream is read twice in a step, or in a tail.
    KeystreamTwice {
        /// The pipe's name.
        pipe: &'static str,
    },
}

impl fmt::Display for PipeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PipeError::BadGauge { bits } => {
                write!(f, "no gauge has {bits} bits; use 8, 16, 32 or 64")
            }
            PipeError::TooManyTemporaries { pipe } => write!(
                f,
                "pipe {pipe}: more than {MAX_TEMPORARY} temporary registers; use some of them again"
            ),
            PipeError::TooManyPersistents { pipe } => write!(
                f,
                "pipe {pipe}: more than {MAX_PERSISTENT} persistent registers; make two pipes of it"
            ),
            PipeError::TooLong { pipe } => write!(
                f,
                "pipe {pipe}: more than {MAX_INSTRUCTIONS} instructions; make two pipes of it"
            ),
            PipeError::TooManyLookups { pipe } => {
                write!(f, "pipe {pipe}: more than {MAX_TABLES} table lookups; make two pipes of it")
            }
            PipeError::RegisterOutOfRange { pipe, instruction } => write!(
                f,
                "pipe {pipe}, instruction {instruction}: the register is not one of this pipe's; \
                 use those that its own builder returned"
            ),
            PipeError::ReadBeforeWrite { pipe, instruction } => write!(
                f,
                "pipe {pipe}, instruction {instruction}: reads a temporary register before any \
                 instruction writes it; write it first, or allocate a persistent one"
            ),
            PipeError::InputCount { pipe, expected, found } => write!(
                f,
                "pipe {pipe}: the body takes {found} words of input; at these gauges it has to \
                 take {expected}"
            ),
            PipeError::OutputCount { pipe, expected, found } => write!(
                f,
                "pipe {pipe}: the body gives {found} words of output; at these gauges it has to \
                 give {expected}"
            ),
            PipeError::ModifiesInput { pipe, instruction } => write!(
                f,
                "pipe {pipe}, instruction {instruction}: gives something else than its input, but \
                 the pipe is declared no_mod; give the input, or leave the attribute out"
            ),
            PipeError::KeystreamTwice { pipe } => write!(
                f,
                "pipe {pipe}: reads its keystream in its tail, or twice in a step; read it once, \
                 and keep the word in a register"
            ),
        }
    }
}

impl Error for PipeError {}

/// The reason why a pipe list could not be composed or compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompileError {
    /// The list has as many pipes as it can have.
    TooManyPipes,
    /// The list is empty.
    NoPipes,
    /// No ready-made kernel does what this list does, or the processor cannot run it.
    NoKernel,
    /// The code generator cannot make code here.
    Generator(GeneratorError),
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CompileError::TooManyPipes => {
                write!(f, "a pipe list has at most {MAX_PIPES} pipes; apply two lists in turn")
            }
            CompileError::NoPipes => {
                f.write_str("the pipe list is empty; add a pipe, such as copy::pipe()")
            }
            CompileError::NoKernel => f.write_str(
                "no ready-made kernel that this processor can run does what this pipe list does; \
                 compile it for any execution",
            ),
            CompileError::Generator(error) => write!(f, "cannot generate code: {error}"),
        }
    }
}

impl Error for CompileError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            CompileError::Generator(error) => Some(error),
            _ => None,
        }
    }
}

/// The reason why no code could be generated. A list then runs in the interpreter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GeneratorError {
    /// Cranelift generates no code for this processor.
    Processor(String),
    /// Cranelift has rejected the loop: a bug of this crate.
    Rejected(String),
    /// The kernel gives no memory for code, or does not permit its execution.
    Memory(String),
}

impl fmt::Display for GeneratorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GeneratorError::Processor(why) => {
                write!(f, "Cranelift does not know this processor ({why})")
            }
            GeneratorError::Rejected(why) => {
                write!(f, "Cranelift rejects the loop ({why}); please report this as a bug")
            }
            GeneratorError::Memory(why) => write!(
                f,
                "the kernel permits no executable memory ({why}); a security module may forbid it"
            ),
        }
    }
}

impl Error for GeneratorError {}

/// The reason why an integrated loop was not applied. Nothing has been read or written then.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ApplyError {
    /// The loop was compiled for the other mode.
    WrongMode {
        /// The mode it was compiled for.
        compiled: Mode,
    },
    /// The state is that of another loop.
    ForeignState,
    /// The destination has less room than the message has bytes.
    DestinationTooShort {
        /// The bytes of the message.
        message_bytes: usize,
        /// The room in the destination.
        destination_bytes: usize,
    },
    /// An earlier fragment was the end of the message, as it had a part of a unit, and here is more of it: where all pipes
    /// are commutative, another part of a unit.
    MessageEnded,
    /// A pipe has a keystream, and no key was exported to it.
    NoKey {
        /// The pipe's name.
        pipe: &'static str,
    },
    /// A keystream ends within this message.
    KeystreamExhausted {
        /// The pipe's name.
        pipe: &'static str,
    },
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApplyError::WrongMode { compiled: Mode::Read } => f.write_str(
                "the pipe list was compiled for reading only; compile it with Mode::Write",
            ),
            ApplyError::WrongMode { compiled: Mode::Write } => {
                f.write_str("the pipe list was compiled for writing; compile it with Mode::Read")
            }
            ApplyError::ForeignState => f.write_str(
                "the state belongs to another compiled pipe list; use the one from Ilp::state",
            ),
            ApplyError::DestinationTooShort { message_bytes, destination_bytes } => write!(
                f,
                "the destination has room for {destination_bytes} bytes, and the message has \
                 {message_bytes}"
            ),
            ApplyError::MessageEnded => write!(
                f,
                "an earlier fragment was no multiple of {UNIT_BYTES} bytes and ended the message; \
                 reset the state for another message, or give all fragments at once"
            ),
            ApplyError::NoKey { pipe } => {
                write!(f, "pipe {pipe} has no key; call State::export_key before")
            }
            ApplyError::KeystreamExhausted { pipe } => write!(
                f,
                "the keystream of pipe {pipe} ends within this message; export a key with another \
                 nonce"
            ),
        }
    }
}

impl Error for ApplyError {}

/// The reason why a register or a keystream could not be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegisterError {
    /// The identifier is that of a pipe of another list.
    NoSuchPipe,
    /// The pipe has no such persistent register.
    NoSuchRegister {
        /// The pipe's name.
        pipe: &'static str,
    },
    /// The pipe has no keystream.
    NoKeystream {
        /// The pipe's name.
        pipe: &'static str,
    },
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegisterError::NoSuchPipe => f.write_str(
                "the pipe is not in this list; use the identifier that PipeList::add returned",
            ),
            RegisterError::NoSuchRegister { pipe } => write!(
                f,
                "pipe {pipe} has no such persistent register; temporary ones are not kept"
            ),
            RegisterError::NoKeystream { pipe } => write!(f, "pipe {pipe} reads no keystream"),
        }
    }
}

impl Error for RegisterError {}
