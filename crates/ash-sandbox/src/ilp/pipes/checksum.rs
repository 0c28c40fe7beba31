//! The Internet checksum (RFC 1071; figure 3-3 of the thesis).

use crate::ilp::pipe::Kind;
use crate::ilp::{Binary, Gauge, Pipe, Register};

/// The partial sum. Which of several equal ones is here depends on the execution; [`fold`] gives
/// the same for all.
pub const SUM: Register = Register::persistent(0);

/// The pipe. A last odd byte counts as if a zero followed it, as RFC 1071 has it.
pub fn pipe() -> Pipe {
    let mut pipe = Pipe::builder("checksum", Gauge::Bits64);
    pipe.commutative().no_mod();
    let sum = pipe.persistent(0);
    let word = pipe.input();
    pipe.binary(Binary::AddEndAroundCarry, Gauge::Bits64, sum, sum, word);
    pipe.output(word);
    pipe.build_as(Kind::Checksum)
}

/// Returns the value to export to [`SUM`] so that the sum begins with a sum of 16-bit words in the order of the
/// network, such as that of a pseudo-header.
pub const fn seed(sum: u16) -> u64 {
    sum.swap_bytes() as u64
}

/// The sum of the 16-bit words of the message, in the order of the network, with all carries added.
pub const fn fold(sum: u64) -> u16 {
    // With end-around carry; only of 0 it makes 0.
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    (sum as u16).swap_bytes()
}

/// The checksum as it is put into a header: the complement of [`fold`].
pub const fn finish(sum: u64) -> u16 {
    !fold(sum)
}
