//! Searches for a byte.

use crate::ilp::pipe::Kind;
use crate::ilp::{Binary, Gauge, Operand, Pipe, PipeBuilder, Register, Unary};

/// The place of the first such byte, counted from 0; [`NOT_FOUND`] while there is none.
pub const FOUND: Register = Register::persistent(0);
/// The number of bytes that have been searched.
pub const SEARCHED: Register = Register::persistent(1);
/// The value of [`FOUND`] while the byte has not been found.
pub const NOT_FOUND: u64 = u64::MAX;
/// The byte, eight times; may be exported for each message: [`repeat`].
pub const BYTE: Register = Register::persistent(2);

const LOW_BITS: u64 = repeat(0x01);
const HIGH_BITS: u64 = repeat(0x80);

/// Returns the value to export to [`BYTE`].
pub const fn repeat(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// The pipe, with the byte that a state begins with.
pub fn pipe(byte: u8) -> Pipe {
    let mut pipe = Pipe::builder("search", Gauge::Bits64);
    pipe.no_mod();
    for initial in [NOT_FOUND, 0, repeat(byte)] {
        pipe.persistent(initial);
    }
    let word = pipe.input();
    pipe.output(word);
    // A byte of `other` is 0 where the byte is. Subtracting 1 from each borrows into the high bit of
    // the first such byte; a wrong one may be marked only behind it.
    let (other, marks) = (pipe.temporary(), pipe.temporary());
    let operation = |pipe: &mut PipeBuilder, operation, to, left: Operand, right: Operand| {
        pipe.binary(operation, Gauge::Bits64, to, left, right);
    };
    operation(&mut pipe, Binary::Xor, other, word.into(), BYTE.into());
    operation(&mut pipe, Binary::Subtract, marks, other.into(), LOW_BITS.into());
    pipe.unary(Unary::Not, Gauge::Bits64, other, other);
    operation(&mut pipe, Binary::And, marks, marks.into(), other.into());
    operation(&mut pipe, Binary::And, marks, marks.into(), HIGH_BITS.into());
    let place = pipe.temporary();
    pipe.unary(Unary::TrailingZeros, Gauge::Bits64, place, marks);
    operation(&mut pipe, Binary::ShiftRight, place, place.into(), 3.into());
    note(&mut pipe, marks, place, 8);

    pipe.tail_body();
    let byte = pipe.input();
    pipe.output(byte);
    let equal = pipe.temporary();
    pipe.binary(Binary::Equal, Gauge::Bits8, equal, byte, BYTE);
    note(&mut pipe, equal, 0, 1);
    pipe.build_as(Kind::Search)
}

/// Records the position if the byte is there and was not found before, and advances the position by `bytes`.
fn note(pipe: &mut PipeBuilder, is_there: Register, place: impl Into<Operand>, bytes: u64) {
    let (at, first) = (pipe.temporary(), pipe.temporary());
    pipe.binary(Binary::Add, Gauge::Bits64, at, SEARCHED, place);
    pipe.binary(Binary::Equal, Gauge::Bits64, first, FOUND, NOT_FOUND);
    pipe.select(at, is_there, at, FOUND);
    pipe.select(FOUND, first, at, FOUND);
    pipe.binary(Binary::Add, Gauge::Bits64, SEARCHED, SEARCHED, bytes);
}
