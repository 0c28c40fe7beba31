//! Copies the message: the pipe that does nothing to it.

use crate::ilp::pipe::Kind;
use crate::ilp::{Gauge, Pipe, Tail};

/// The pipe. A list that writes copies anyway; this one makes it say so.
pub fn pipe() -> Pipe {
    let mut pipe = Pipe::builder("copy", Gauge::Bits64);
    pipe.commutative().no_mod().tail(Tail::Pass);
    let word = pipe.input();
    pipe.output(word);
    pipe.build_as(Kind::Copy)
}
