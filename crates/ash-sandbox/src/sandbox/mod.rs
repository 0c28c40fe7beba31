//! Application-specific safe handlers (ASHs) in a sandbox: WebAssembly modules that run where a
//! message arrives, in a memory of their own, for a bounded time.
//!
//! ```
//! use ash_sandbox::sandbox::{Outcome, Policy, Sandboxer};
//! use std::time::Instant;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Answers each message with itself.
//! // `std::fs::read("handler.wasm")?` is one of `ash-guest`; `wat` is a crate.
//! let echo = wat::parse_str(r#"
//!   (module
//!     (import "ash" "send" (func $send (param i32 i32) (result i32)))
//!     (memory (export "memory") 1 1)
//!     (func (export "ash_handle") (param $offset i32) (param $length i32) (param i64 i32) (result i32)
//!       (drop (call $send (local.get $offset) (local.get $length)))
//!       (i32.const 1)))"#)?;
//! let sandboxer = Sandboxer::new(Policy::default())?;
//! let ash = sandboxer.load(&echo)?;
//! let mut handler = ash.instantiate(1)?; // for tenant 1
//! // A message of connection 7.
//! assert_eq!(handler.handle_copy(b"ping", 7, Instant::now()), Outcome::Handled);
//! assert_eq!(handler.sent(b"ping").next(), Some(&b"ping"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! # The interface of a module
//!
//! A module defines a memory that cannot grow, and exports it as `memory`. Behind it lies the message
//! area, of 256 KiB by default: messages lie there, and the handler can only read them; and behind that 16
//! reply slots of 4 KiB. The module exports the entry:
//!
//! ```text
//! ash_handle(offset: i32, length: i32, connection: i64, slot: i32) -> i32
//! ```
//!
//! | result | meaning |
//! |---|---|
//! | 1 | handled: the sends take effect |
//! | 2 | discarded: the message is useless |
//! | 0 | passed on: the application handles the message |
//! | other | voluntary abort: as 0, but counted as an abort |
//!
//! It may import these functions from the module `ash`, and no others. Those with a status return 0,
//! -1 if bytes are not in the memory or may not be accessed, -2 if a maximum is reached, -3 if the
//! message does not suit the pipe list, or -4 if a lock is taken. Without the operations for `clock`, `id`, `import` or `table`,
//! a handler that is bounded by [fuel](Loops::Fuel) is stopped.
//!
//! | function | table 5-1 | effect |
//! |---|---|---|
//! | `clock() -> i64` | `ae_gettick` | nanoseconds since the handler was instantiated |
//! | `send(offset: i32, length: i32) -> i32` | `ae_otto_send` | sends bytes of the memory to the peer, if the message is handled |
//! | `id() -> i64` | `ae_pid` | the tenant |
//! | `copy(to: i32, from: i32, length: i32) -> i32` | `ae_trusted_memcpy` | copies, with one check of each range |
//! | `read_apply(pipes: i32, from: i32, length: i32) -> i32` | `ae_rapply` | applies a pipe list that only reads |
//! | `write_apply(pipes: i32, from: i32, to: i32, length: i32) -> i32` | `ae_wapply` | applies a pipe list that writes to another place |
//! | `export(pipes: i32, register: i32, value: i64) -> i32` | (3.2.2) | writes a persistent register before it |
//! | `key(pipes: i32, keystream: i32, offset: i32, first_block: i32) -> i32` | an addition | gives a keystream of a list, such as that of ChaCha20, a key of 32 bytes at the offset and the nonce of 12 bytes behind it |
//! | `import(pipes: i32, register: i32) -> i64` | (3.2.2) | reads a persistent register after it; -1 if there is none |
//! | `post(kind: i64, value: i64) -> i32` | an addition | posts an event to the application, if the message is handled |
//! | `upcall() -> i32` | an addition | starts an upcall with the message, if it is passed on |
//! | `count(counter: i32, by: i64) -> i32` | an addition | adds to one of 16 counters |
//! | `reply(length: i32) -> i32` | an addition | returns the offset of a reply slot that no reply in flight uses |
//! | `keep() -> i32` | an addition | keeps the message where it has landed, if it is handled; -1 if it was copied, -2 if no more may be kept |
//! | `give_back(slot: i32) -> i32` | `ae_otto_bump_n_free` | gives the slot of a message that the handler keeps back to the receive ring, if the message in hand is handled; -1 for any other slot |
//! | `table() -> i32` | an addition | returns the offset of the [table](SharedTable) that the application shares, or -1; a handler can read it, and `copy` from it; a copy of a word of eight bytes reads it at once |
//! | `lock(section: i32) -> i32` | an addition | takes the lock of a section of the table until the handler has returned, and returns the offset of the section |
//! | `store(to: i32, from: i32, length: i32) -> i32` | an addition | writes bytes of the memory to whole words of a section that the handler has locked, if the message is handled; they are read when the handler has returned |
//! | `memory.copy`, `memory.fill` | an addition | the sandboxer puts them in the place of these instructions |
//! | `abort()` | the `aborts` of 5.5 | ends the handler from any depth of calls |
//!
//! An invocation applies a list to one message, which may be in several ranges. At the beginning of the invocation the
//! registers of the list have their initial values, and its keystreams no keys. Each range but the last has a multiple of
//! eight bytes; if all pipes are commutative, each range but one. Applying is charged as a copy where vectors of AVX2 do it
//! ([`Ilp::execution`](crate::ilp::Ilp::execution)), elsewhere also by the instructions of the pipes, with more for a CRC32C, and
//! where they are interpreted.
//!
//! # Replies
//!
//! Where messages are received into the message area, bytes of the message or of a reply slot that a handler
//! sends leave from there. The slot is free again when the reply has left; a handler that finds none free, or
//! whose reply is longer, sends from its own memory or passes the message on. Bytes of its own memory are
//! copied, since the next invocation may change them before they have left. Calls do not write to slots with replies in flight.
//! Stores of the handler can: one that stores to slots which `reply` has not given it may mix the replies to its own
//! connections.
//!
//! # Messages that a handler keeps
//!
//! The buffer of a message goes back to the receive ring when the handler has returned and its last reply has left. A handler
//! that calls `keep` has the message where it lies until `give_back`, with the slot that the entry got: it reads, copies and sends
//! the bytes as those of the message in hand, such as a page of a cache, or the first part of a longer message. What it sends
//! of a kept message is copied. At most half of the buffers are kept, and up to [`MAX_KEPT`] ([`Handler::set_max_kept`]), none without a receive ring.
//! The slots are taken from a handler that is disabled, or in whose place another one gets a message that landed in its memory
//! (`Binding::Landed` of `evring`): loads then return what lands there next. Calls with these slots or bytes fail until the
//! handler gets or keeps another message there, and are about that one afterwards.
//!
//! # Data that handlers and application change
//!
//! A [`SharedTable`] with sections can be written by handlers, too (5.4.1). `lock` never waits: a handler that gets -4 aborts,
//! or does without. The host writes the stores of a handler when it has handled the message, before its replies leave; so a
//! handler reads the former content of a section that it has locked. The abort point is the lock: after a voluntary
//! or involuntary abort after taking the lock, nothing is written, and the lock is released. Locks are held
//! during one invocation at most, whose time the policy bounds. A handler has up to [`MAX_LOCKS`] locks and
//! [`MAX_STORES`] stores; a store outside of the sections that it has locked returns -1.
//!
//! # Bounds
//!
//! An instruction counts as one operation, a load as eight, because it can miss the caches, and each value or local that a
//! branch, a call, or the end of a block may have to move as one more, so that operations bound time. A load that misses all
//! caches, as in a large table, still takes longer: 100 ns or more. The work of the compiler is counted by instructions, with
//! more for what takes it longer. [`Policy`] bounds a module's size, its memory, the operations of one invocation, those of a tenant
//! in a second, and what it sends. A handler without loops and recursion runs without any check, as
//! its longest path is known when it is loaded ([`Bound`]), for which it is charged. Others are charged for what they execute
//! ([`Loops`]), and stopped at the bound. That is
//! an involuntary abort, as is a wild memory access; it never happens inside a host call. The message
//! then goes to the application as it arrived, because the handler cannot write to the message area.
//! A few such aborts disable the handler.
//!
//! An abort that ends the handler within a call, involuntary or by `abort`, leaves the memory as the handler left
//! it (5.4.1). The mutable globals, of which a module has up to 64, get the values that they had before the message, as
//! compilers keep the pointer to the stack in one.

mod analysis;
mod budget;
mod cache;
mod call;
mod clock;
mod cost;
mod dropped;
mod handler;
mod host;
mod kept;
mod memory;
mod native;
mod policy;
mod rejection;
mod result;
mod rewrite;
mod sandboxer;
mod shared_data;
mod table;

pub use analysis::Bound;
pub use cache::CacheError;
pub use handler::{Abort, DISCARDED, HANDLED, Handler, HandlerCounters, Outcome, PASSED, Pass};
pub use host::{COUNTERS, SLOT_GAP};
pub use kept::MAX_KEPT;
pub use memory::{Area, HandlerMemory};
pub use native::NativeCalls;
pub use policy::{Loops, Policy};
pub use rejection::{Reason, Rejection};
pub use sandboxer::{Ash, Sandboxer};
pub use shared_data::{MAX_LOCKS, MAX_STORES};
pub use table::{MAX_TABLE_BYTES, Section, SharedTable};
