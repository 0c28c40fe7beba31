//! Swaps the bytes of words, between big and little endian.

use crate::ilp::pipe::Kind;
use crate::ilp::{Gauge, Pipe, Tail, Unary};

/// The pipe for words of 16, 32 or 64 bits; one of 8 bits copies. A last word that is not complete
/// stays as it is.
pub fn pipe(gauge: Gauge) -> Pipe {
    let name = match gauge {
        Gauge::Bits8 => "byte_swap8",
        Gauge::Bits16 => "byte_swap16",
        Gauge::Bits32 => "byte_swap32",
        Gauge::Bits64 => "byte_swap64",
    };
    let mut pipe = Pipe::builder(name, gauge);
    pipe.commutative().tail(Tail::Pass);
    let word = pipe.input();
    pipe.unary(Unary::SwapBytes, gauge, word, word);
    pipe.output(word);
    pipe.build_as(Kind::ByteSwap(gauge))
}
