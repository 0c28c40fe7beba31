//! CRC32C, Castagnoli's polynomial (RFC 3720, 12.1).

use crate::ilp::pipe::Kind;
use crate::ilp::{Gauge, Pipe, Register};

/// The CRC so far, not yet inverted; see [`finish`].
pub const CRC: Register = Register::persistent(0);

/// The pipe. Its register begins with all ones, as the standard has it.
pub fn pipe() -> Pipe {
    let mut pipe = Pipe::builder("crc32c", Gauge::Bits64);
    pipe.no_mod();
    let crc = pipe.persistent(0xffff_ffff);
    let word = pipe.input();
    pipe.crc32c(Gauge::Bits64, crc, word);
    pipe.output(word);
    pipe.tail_body();
    let byte = pipe.input();
    pipe.crc32c(Gauge::Bits8, crc, byte);
    pipe.output(byte);
    pipe.build_as(Kind::Crc32c)
}

/// The CRC of the message.
pub const fn finish(crc: u64) -> u32 {
    !(crc as u32)
}
