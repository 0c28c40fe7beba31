//! Handlers in safe Rust for the sandbox of `ash-sandbox`: programs of a few instructions that answer a
//! message where it arrives (D. Wallach, *High-Performance Application-Specific Networking*, thesis,
//! MIT, 1997).
//!
//! A handler is a function of a [`Message`] that returns a [`Verdict`]:
//!
//! ```
//! # /*
//! #![no_std]
//! # */
//! use ash_guest::{Message, Verdict, handler};
//!
//! handler!(hello);
//!
//! fn hello(message: &Message<'_>) -> Verdict {
//!     if !message.bytes().starts_with(b"GET /hello ") {
//!         return Verdict::Pass;
//!     }
//!     match message.send(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n") {
//!         Ok(()) => Verdict::Handled,
//!         Err(_) => Verdict::Abort,
//!     }
//! }
//! # fn main() {}
//! ```
//!
//! It is a `cdylib` for `wasm32-unknown-unknown`, with `#![no_std]`. Its memory must not grow, so the linker needs
//! flags:
//!
//! ```toml
//! # Cargo.toml
//! [lib]
//! crate-type = ["cdylib"]
//! ```
//!
//! ```toml
//! # .cargo/config.toml
//! [build]
//! target = "wasm32-unknown-unknown"
//!
//! [target.wasm32-unknown-unknown]
//! rustflags = ["-Clink-args=-zstack-size=16384 --initial-memory=65536 --max-memory=65536"]
//! ```
//!
//! Without `[build]`, pass `--target wasm32-unknown-unknown` to cargo.
//!
//! The sends and posts of a handler take effect only if it returns [`Verdict::Handled`]. A handler that
//! panics, runs for too long or accesses memory that is not its own ends with an involuntary abort: the
//! application then receives the message as it arrived.
//!
//! An abort leaves the state of a handler as it was at that point, perhaps in the middle of a change, and the handler
//! gets the next message. So a handler changes its state in the last steps, and keeps in it numbers and arrays rather
//! than a `RefCell`, which would stay borrowed. A type with `Drop`, which could be dropped twice, does not compile there.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]

mod calls;
#[doc(hidden)]
pub mod entry;
mod error;
mod kept;
mod message;
mod pipes;
mod state;
mod table;

pub use error::CallError;
pub use kept::Kept;
pub use message::{Message, Verdict};
pub use pipes::PipeList;
pub use table::{Section, Table};

/// Returns the nanoseconds since the handler was instantiated. The clock never goes back.
pub fn clock() -> u64 {
    calls::clock() as u64
}

/// Returns the number of the tenant of the instance.
pub fn tenant() -> u64 {
    calls::id() as u64
}

/// Adds to a counter of the handler, which its host can read.
///
/// # Errors
/// [`CallError::Fault`] if there is no such counter.
pub fn count(counter: u32, by: u64) -> Result<(), CallError> {
    CallError::check(calls::count(counter, by as i64))
}

/// Copies bytes, with one check of each range.
///
/// # Errors
/// If the maximum of operations is reached.
///
/// # Panics
/// If the lengths differ.
pub fn copy(from: &[u8], to: &mut [u8]) -> Result<(), CallError> {
    assert_eq!(from.len(), to.len(), "a copy of another length");
    // SAFETY: the host reads `from` and writes to `to`, both of this length.
    CallError::check(unsafe { calls::copy(to.as_mut_ptr(), from.as_ptr(), to.len()) })
}

/// Ends the handler from any depth of calls, as [`Verdict::Abort`] does: a voluntary abort.
///
/// Nothing is dropped or undone: the state stays as it is at that point, and the handler gets the next message.
pub fn abort() -> ! {
    calls::abort();
    unreachable!("the host does not return from an abort")
}

/// Exports a function as the entry of the module.
///
/// The function takes a [`&Message`](Message) and returns a [`Verdict`]. With a type and a constant
/// expression, the handler has a state, to which the function takes a mutable reference first:
///
/// ```
/// use ash_guest::{Message, Verdict, handler};
///
/// handler!(increment, u32 = 0);
///
/// fn increment(count: &mut u32, _: &Message<'_>) -> Verdict {
///     *count += 1;
///     Verdict::Pass
/// }
/// # fn main() {}
/// ```
///
/// The compiler checks the function on all targets. It is one of messages,
///
/// ```compile_fail,E0631
/// use ash_guest::{Verdict, handler};
///
/// handler!(pass);
///
/// fn pass(_: u32) -> Verdict {
///     Verdict::Pass
/// }
/// # fn main() {}
/// ```
///
/// and its state does not refer to a message, whose bytes change when the handler has returned:
///
/// ```compile_fail
/// use ash_guest::{Message, Verdict, handler};
///
/// handler!(remember, &'static [u8] = &[]);
///
/// fn remember<'m>(last: &mut &'m [u8], message: &Message<'m>) -> Verdict {
///     *last = message.bytes();
///     Verdict::Pass
/// }
/// # fn main() {}
/// ```
///
/// and is not dropped, as an abort in the middle of that would have it dropped again:
///
/// ```compile_fail,E0080
/// use ash_guest::{Message, Verdict, handler};
///
/// handler!(pass, Option<Place> = None);
///
/// struct Place(u32);
///
/// impl Drop for Place {
///     fn drop(&mut self) {}
/// }
///
/// fn pass(_: &mut Option<Place>, _: &Message<'_>) -> Verdict {
///     Verdict::Pass
/// }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! handler {
    ($function:path) => {
        $crate::handler!(@entry |arrival| $crate::entry::call(arrival, $function));
    };
    ($function:path, $state:ty = $initial:expr) => {
        $crate::handler!(@entry |arrival| {
            static STATE: $crate::entry::State<$state> = $crate::entry::State::new($initial);
            $crate::entry::call_with(arrival, &STATE, $function)
        });
    };
    (@entry |$arrival:ident| $call:expr) => {
        // Without a name by which the handler could call it.
        const _: () = {
            /// The entry, which the host calls for each message. Elsewhere, the compiler checks it, and nothing calls it.
            #[cfg_attr(target_arch = "wasm32", unsafe(no_mangle))]
            #[cfg_attr(not(target_arch = "wasm32"), allow(dead_code))]
            extern "C" fn ash_handle(
                offset: usize,
                length: usize,
                connection: u64,
                slot: u32,
            ) -> i32 {
                let $arrival = $crate::entry::Arrival { offset, length, connection, slot };
                // SAFETY: the host calls the entry with a message that does not change until it returns.
                unsafe { $call }
            }
        };
    };
}

#[cfg(all(target_arch = "wasm32", feature = "panic-handler"))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    core::arch::wasm32::unreachable()
}

/// Tests the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
