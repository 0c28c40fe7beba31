//! Encrypts or decrypts by ChaCha20 (RFC 8439, 2.4). It does not authenticate.

use crate::ilp::pipe::Kind;
use crate::ilp::{Binary, Gauge, Pipe};

/// The pipe. Key and nonce come from [`State::export_key`](crate::ilp::State::export_key), again
/// for each message.
pub fn pipe() -> Pipe {
    let mut pipe = Pipe::builder("chacha20", Gauge::Bits64);
    let word = pipe.input();
    let stream = pipe.keystream();
    pipe.binary(Binary::Xor, Gauge::Bits64, word, word, stream);
    pipe.output(word);
    pipe.build_as(Kind::ChaCha20)
}
