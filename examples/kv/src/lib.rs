//! A memcached server: the text protocol of memcached 1.6, under a limit of memory.
//!
//! Three layers, of which each can be tested without the next:
//!
//! - the store, a data structure: values in chains of blocks, found by a hash table, evicted in
//!   the order of their last use; it is given the time;
//! - [`Session`], a connection's side of the protocol: bytes in, bytes out;
//! - [`Kv`], the application, which runs on every mechanism of `evring`.
//!
//! What memcached does besides is left out: the binary protocol and the meta commands, which are
//! answered as any unknown line is, UDP, authentication, TLS, and storage on disks.
//!
//! # Memory
//!
//! [`Limits::memory`] is all that values take: blocks of 128 bytes, of which an item's first has a
//! header of 48 bytes and every other one a link of 4, and up to 4 bytes for each block in the hash
//! table. As all blocks have one size, none is lost between others. What the process holds besides is
//! the program, and what [`Config`](evring::Config) permits for connections: a worker with idle
//! ones takes less than 16 MiB.
//!
//! # Differences from memcached
//!
//! - A value lives at least as long as its client has asked for, and less than a second more;
//!   memcached counts in seconds, and may let it go up to a second early.
//! - A line of more than 2,048 bytes that is no `get` ends the connection wherever its bytes were split;
//!   memcached looks at it if it came in one piece. In a longer `get` the replies to its first keys are
//!   on their way when an overlong key is found.
//! - Replies that precede a line by which a connection ends are sent first.
//! - A delayed `flush_all` does not bring back what an earlier one has taken.
//! - Connections beyond the limit wait, and are not answered by an error.
//! - A `get` with an overlong key does not take the replies to earlier requests along.
//! - A number is changed in place unless the value is just being sent in pieces; memcached also makes a
//!   new one, without spaces behind it, while a reply with a small one is on its way.
//! - There is one class of items (`stats slabs`), and all have a place in one order of use.

mod application;
mod database;
#[cfg(feature = "model")]
pub mod model;
mod number;
mod protocol;
mod reply;
mod session;
mod store;

pub use application::Kv;
pub use database::{Database, Limits};
pub use reply::VERSION;
pub use session::{Next, Session};
pub use store::Clock;
