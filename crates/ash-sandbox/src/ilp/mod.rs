//! Dynamic integrated layer processing (thesis, sections 3.2.2 and 5.7): pipes are composed at run
//! time and compiled to one loop over the message.
//!
//! A [`Pipe`] is a tiny computation on streaming data. A [`PipeList`] composes pipes, any with any
//! other, and [`compile`](PipeList::compile)s them to an [`Ilp`], the integrated loop, which is
//! applied to messages with a [`State`], where the persistent registers are.
//!
//! A list has the effect of its pipes one after another, each over the whole message. Each pipe cuts
//! the message into words of its own gauge, from the first byte on; the code between pipes of different
//! gauges converts. Each pipe treats the bytes that remain at the end, shorter than its step, as its
//! [`Tail`] says. A message may come in fragments: all but the last are multiples of [`UNIT_BYTES`],
//! or are given together ([`Ilp::read_fragments`], [`Ilp::gather`]). They come in order, unless all pipes are commutative
//! ([`Ilp::is_commutative`]).

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
mod limits;
mod list;
mod mode;
mod pipe;
mod pipes;
mod program;
mod state;

pub use apply::Ilp;
pub use code::{Execution, Prefer};
pub use error::{ApplyError, CompileError, GeneratorError, PipeError, RegisterError};
pub use gauge::Gauge;
pub use instruction::{Binary, Operand, Register, Table, Unary};
pub use limits::{
    MAX_INSTRUCTIONS, MAX_PERSISTENT, MAX_PIPES, MAX_TABLES, MAX_TEMPORARY, UNIT_BYTES,
};
pub use list::PipeList;
pub use mode::Mode;
pub use pipe::{Pipe, PipeBuilder, Tail};
pub use pipes::{byte_swap, chacha20, checksum, copy, count, crc32c, search, xor};
pub use program::PipeId;
pub use state::State;
