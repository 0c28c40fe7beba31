//! Counts the bytes that pass.

use crate::ilp::pipe::Kind;
use crate::ilp::{Binary, Gauge, Pipe, Register};

/// The number of bytes so far.
pub const BYTES: Register = Register::persistent(0);

/// The pipe.
pub fn pipe() -> Pipe {
    let mut pipe = Pipe::builder("count", Gauge::Bits64);
    pipe.commutative().no_mod();
    let bytes = pipe.persistent(0);
    let word = pipe.input();
    pipe.binary(Binary::Add, Gauge::Bits64, bytes, bytes, 8);
    pipe.output(word);
    pipe.tail_body();
    let byte = pipe.input();
    pipe.binary(Binary::Add, Gauge::Bits64, bytes, bytes, 1);
    pipe.output(byte);
    pipe.build_as(Kind::Count)
}
