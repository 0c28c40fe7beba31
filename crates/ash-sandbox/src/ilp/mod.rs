//! Dynamic integrated layer processing (thesis, sections 3.2.2 and 5.7): pipes are composed at run
//! time and compiled to one loop over the message.
//!
//! A [`Pipe`] is a tiny computation on streaming data. A [`PipeList`] composes pipes, any with any
//! other, and [`compile`](PipeList::compile)s them to an [`Ilp`], the integrated loop, which is
//! applied to messages with a [`State`], where the persistent registers are.
//!
//! What a list does is what its pipes would do one after another, each over the whole message. Each
//! pipe cuts the message into words of its own gauge, from the first byte on; the code between pipes
//! of different gauges converts. What remains at the end, shorter than a pipe's step, is treated as
//! the pipe's [`Tail`] says. A message may come in fragments: all but the last are multiples of
//! [`UNIT_BYTES`], or are given together ([`Ilp::read_fragments`], [`Ilp::gather`]).

mod apply;
mod castagnoli;
mod check;
mod code;
mod error;
mod gauge;
mod generator;
mod instruction;
mod interpreter;
mod kernels;
mod list;
mod pipe;
mod pipes;
mod program;
mod state;

pub use apply::Ilp;
pub use code::{Execution, Prefer};
pub use error::{ApplyError, CompileError, GeneratorError, PipeError, RegisterError};
pub use gauge::Gauge;
pub use instruction::{Binary, Operand, Register, Table, Unary};
pub use list::PipeList;
pub use pipe::{Pipe, PipeBuilder, Tail};
pub use pipes::{byte_swap, chacha20, checksum, copy, count, crc32c, search, xor};
pub use program::{Mode, PipeId};
pub use state::State;

/// The pipes of a list, at most.
pub const MAX_PIPES: usize = 16;
/// The temporary registers of a pipe, at most.
pub const MAX_TEMPORARY: usize = 16;
/// The persistent registers of a pipe, at most.
pub const MAX_PERSISTENT: usize = 8;
/// The instructions of a pipe's body, and of the one for its tail, at most.
pub const MAX_INSTRUCTIONS: usize = 64;
/// The table lookups in a pipe's body, at most.
pub const MAX_TABLES: usize = 16;
/// What all loops take in one turn, and of which fragments are multiples: the widest gauge.
pub const UNIT_BYTES: usize = Gauge::Bits64.bytes();
