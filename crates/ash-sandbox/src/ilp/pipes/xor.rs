//! XORs the message with eight bytes, again and again: the mask of a WebSocket frame (RFC 6455, 5.3),
//! and other streams that repeat.

use crate::ilp::pipe::Kind;
use crate::ilp::{Binary, Gauge, Pipe, Register};

/// The stream's eight bytes, the first one lowest; may be exported for each message.
pub const STREAM: Register = Register::persistent(0);

/// The pipe, with the eight bytes that a state begins with.
pub fn pipe(stream: [u8; 8]) -> Pipe {
    let mut pipe = Pipe::builder("xor", Gauge::Bits64);
    pipe.commutative();
    let stream = pipe.persistent(u64::from_le_bytes(stream));
    let word = pipe.input();
    pipe.binary(Binary::Xor, Gauge::Bits64, word, word, stream);
    pipe.output(word);
    pipe.build_as(Kind::Xor)
}

/// The eight bytes for a mask of four.
pub const fn repeat(mask: [u8; 4]) -> [u8; 8] {
    let [a, b, c, d] = mask;
    [a, b, c, d, a, b, c, d]
}
