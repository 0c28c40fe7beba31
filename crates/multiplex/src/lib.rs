//! Event-driven servers on every event mechanism of Linux, behind one trait.
//!
//! A server is an [`Application`]: callbacks about connections come in, [`Commands`] go out, and it
//! never touches a descriptor, a file, a clock or a source of chance. A [`Multiplexer`] is an event
//! mechanism: it owns the loop and calls the application. Whatever the mechanism, the replies are
//! the same, byte for byte.
//!
//! ```no_run
//! use multiplex::{Any, Application, Chunk, Close, Commands, Config, Cx, Rx};
//!
//! struct Echo;
//!
//! impl Application for Echo {
//!     type State = ();
//!     const MAX_UNCONSUMED: usize = 1;
//!
//!     fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
//!         x.io.send(x.id, Chunk::Received(rx.take()));
//!         if rx.eof() {
//!             x.io.close(x.id, Close::Flush);
//!         }
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = Config { listen: vec!["127.0.0.1:7000".parse()?], ..Config::default() };
//! Any::new("auto", &config)?.run(Echo)?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Any`] chooses a mechanism by name. Who wants one without the choice names its type, such as
//! `Uring` or `Epoll`; each is a cargo feature of the same name.
//!
//! What this crate does not do: threads (run one mechanism in each, with
//! [`Config::reuse_port`]), TLS (wrap the application), protocols (write the application).

// What some mechanisms share stands idle in a build that has none of them.
#![cfg_attr(not(feature = "mechanisms"), allow(dead_code, unused_imports))]

mod any;
mod application;
mod commands;
mod config;
mod driver;
mod event_loop;
mod multiplexer;
mod rx;
mod wheel;

pub use any::*;
pub use application::{
    Admit, Application, Chunk, Close, Conn, Cx, FileDone, FileOp, FilePath, Listener, Root, Why,
};
pub use commands::{Commands, HIGH_WATER, LOW_WATER};
pub use config::{Config, StartError, Unavailable};
pub use driver::Interrupts;
pub use event_loop::Loop;
pub use multiplexer::{Family, Multiplexer, Remote, Stats};
pub use rx::Rx;
pub use shared_ring::{BufferSizes, Counters, Fault, File, FileKind, Links, Listing, Meta, RxBuf};
pub use wheel::Wheel;
