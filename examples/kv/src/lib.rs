//! A memcached server: the text protocol of memcached 1.6, with a memory limit.
//!
//! It has three layers, each testable without the next:
//!
//! - the store, a data structure: values in chains of blocks, found by a hash table and evicted least
//!   recently used first; time is an argument;
//! - [`Session`], the protocol state of a connection: bytes in, bytes out;
//! - [`Kv`], the application, which runs on every mechanism of `evring`.
//!
//! It has no binary protocol, UDP, authentication, TLS or external storage. These commands of memcached are unknown, and get
//! `ERROR`: the meta commands, `slabs`, `lru`, `lru_crawler`, `watch`, `cache_memlimit` and `stats conns`.
//!
//! # Memory
//!
//! [`Limits::memory`] includes everything that values need: blocks of 128 bytes and up to 4 bytes per block
//! in the hash table. The first block of an item has a header of 48 bytes, each other block a link of 4.
//! All blocks have one size, so there is no external fragmentation. The process also needs memory for the
//! program, and for connections as [`Config`](evring::Config) permits: a worker with idle ones takes less
//! than 16 MiB.
//!
//! # A handler for `get`
//!
//! With the feature `sandbox` and `--handler FILE`, a handler in a sandbox answers a message that is one `get` of one key
//! from replies that the workers write to memory which it can only read ([`Mirror`]). The server answers all else: other
//! commands, several commands or keys in a message, misses, replies of more than 480 bytes.
//!
//! - If a value changes, is removed or evicted, its reply is voided before the change is acknowledged; `flush_all` voids
//!   all. A reply that is being written is not waited for: the handler aborts, and the server answers.
//! - The handler's clock is never behind the server's, so an expired value is never sent.
//! - A `get` that the handler answers does not mark the value as used. So a reply is valid for at most two seconds; then
//!   the server gets a `get` and marks it (memcached marks a value once a minute at most).
//! - `stats` counts what the handler answers as `cmd_get` and `get_hits`.
//!
//! # Differences from memcached
//!
//! - A value lives at least as long as requested, and less than one second longer. memcached counts in
//!   seconds and may expire it up to a second early.
//! - A line of more than 2,048 bytes that is no `get` or `gets` is parsed if it has arrived whole, and else closes the
//!   connection, as in memcached; but a `gat` or `gats` does not close it if its time is among what has arrived, and a
//!   receive buffer has 4 KiB, that of memcached 16. In a `get` of which only the beginning has arrived, replies to the
//!   first keys are sent before an overlong key is found.
//! - Replies before a line that closes the connection are sent first.
//! - A delayed `flush_all` does not restore values that an earlier one removed.
//! - `flush_all N` takes effect after N seconds, and less than one second later; in memcached after N - 1, with 1 at once.
//! - `flush_all` with a Unix time in the past flushes at once. In memcached one at or before its start flushes nothing.
//! - With one worker, connections beyond the limit wait, instead of receiving an error.
//! - A `get` with an overlong key does not discard the replies to earlier requests.
//! - A number is changed in place unless the value is being sent in pieces. memcached also allocates a new
//!   item, without trailing spaces, while a reply with a small one is in flight.
//! - There is one class of items (`stats slabs`), and one LRU order for all. With several workers, the values are divided
//!   among stores with equal parts of the memory ([`Database::shared`]), each with an LRU order of its own: a value is
//!   evicted, or refused, if its store is full.
//! - `stats cachedump` lists no keys, and `stats detail dump` no prefixes. `stats sizes_enable` and `stats sizes_disable` get
//!   `ERROR`: sizes are not counted.
//! - Replies that clients do not read are copies, up to 128 KiB for each and 256 MiB for each worker
//!   ([`evring::Config::max_buffered_bytes`]). Beyond that, a client whose replies need more is disconnected. memcached sends
//!   from the values themselves.

mod application;
mod database;
#[cfg(feature = "sandbox")]
mod handler;
mod mirror;
#[cfg(feature = "model")]
pub mod model;
mod number;
mod protocol;
mod reply;
mod session;
mod store;

pub use application::Kv;
pub use database::{Database, Limits};
#[cfg(feature = "sandbox")]
pub use handler::GetHandler;
pub use mirror::{Mirror, MirrorMemory};
pub use reply::VERSION;
pub use session::{Next, Session};
pub use store::Clock;
