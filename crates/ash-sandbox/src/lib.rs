//! Dynamic integrated layer processing: what several layers do with each byte of a message (checksum
//! it, swap its bytes, decrypt it, copy it) is composed at run time and done in one loop.
//!
//! ```
//! use ash_sandbox::ilp::{Gauge, Mode, PipeList, byte_swap, checksum};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Compose: checksum what has arrived, and turn its words from big to little endian.
//! let mut list = PipeList::new();
//! let sum = list.add(checksum::pipe())?;
//! list.add(byte_swap::pipe(Gauge::Bits32))?;
//!
//! // Compile, once.
//! let ilp = list.compile(Mode::Write)?;
//! println!("runs as {:?}", ilp.execution());
//!
//! // Apply, to each message.
//! let message = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
//! let mut destination = [0; 8];
//! let mut state = ilp.state();
//! ilp.write(&mut state, &message, &mut destination)?;
//! assert_eq!(destination, [0x03, 0xf2, 0x01, 0x00, 0xf7, 0xf6, 0xf5, 0xf4]);
//! assert_eq!(checksum::fold(state.import(sum, checksum::SUM)?), 0xddf2);
//! # Ok(())
//! # }
//! ```
//!
//! The idea and its words are those of D. Wallach, *High-Performance Application-Specific Networking*
//! (thesis, MIT, 1997), whose application-specific safe handlers (ASHs) use such loops.
//!
//! | concept | section | here | what differs |
//! |---|---|---|---|
//! | pipe | 3.2.2 | [`ilp::Pipe`], [`ilp::PipeBuilder`] | |
//! | pipe list | 3.2.2, figure 3-2 | [`ilp::PipeList`] | at most [`ilp::MAX_PIPES`] pipes |
//! | `compile_pl` | 3.2.2, figure 3-2 | [`ilp::PipeList::compile`] | picks a ready-made kernel, generated code, or the interpreter, and says which: [`ilp::Execution`] |
//! | gauge, input and output; conversion | 3.2.2 | [`ilp::Gauge`], [`ilp::PipeBuilder::output_gauge`] | 8 to 64 bits; words are little-endian on every machine |
//! | `P_COMMUTATIVE` | 3.2.2, figure 3-3 | [`ilp::PipeBuilder::commutative`] | says whether fragments may come in any order: [`ilp::Ilp::is_commutative`]; generated code keeps the order |
//! | `P_NO_MOD` | 3.2.2, figure 3-3 | [`ilp::PipeBuilder::no_mod`] | checked when the pipe is built |
//! | temporary and persistent registers | 3.2.2 | [`ilp::PipeBuilder::temporary`], [`ilp::PipeBuilder::persistent`] | 64 bits; a temporary one is written before it is read |
//! | `p_inputr`, `p_input32`, `p_output32` | 3.2.2, figure 3-3 | [`ilp::PipeBuilder::input`], [`ilp::PipeBuilder::output`] | each input has a register of its own |
//! | VCODE, and its extensions for networking | 3.2.2 | [`ilp::Unary`], [`ilp::Binary`], and the builder's `select`, `crc32c`, `lookup`, `keystream` | no branches, loads, stores and divisions, so nothing has to be checked at run time |
//! | export, import | 3.2.2 | [`ilp::State::export`], [`ilp::State::import`] | the registers are in a [`ilp::State`], so that threads can share a loop |
//! | messages are multiples of four bytes | figure 3-3 | [`ilp::Tail`] | any length; each pipe says what it does with the end |
//! | `ae_rapply`, `ae_wapply` | table 5-1, 5.7 | [`ilp::Ilp::read`], [`ilp::Ilp::write`], [`ilp::Ilp::write_in_place`] | the range is checked once at the entry, as in 3.3 |
//! | loops for buffers of several layouts | 5.7 | [`ilp::Ilp::read_fragments`], [`ilp::Ilp::gather`] | one loop for all; what straddles fragments goes through a buffer of eight bytes |
//!
//! What this crate does not do: it has no handlers and no sandbox yet. It does not compose protocols
//! (3.2.3), and it authenticates nothing: [`ilp::chacha20`] is the cipher alone.

pub mod ilp;
pub mod model;
#[cfg(feature = "sandbox")]
pub mod sandbox;

/// Tests the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
