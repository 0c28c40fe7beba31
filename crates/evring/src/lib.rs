//! Event-driven servers on every event mechanism of Linux, behind one trait.
//!
//! A server is an [`Application`]: its callbacks receive events, and [`Commands`] send data. It uses
//! no descriptor, file, clock or random source directly. A [`Multiplexer`] is an event mechanism: it
//! owns the loop and calls the application. All mechanisms produce the same replies, byte for byte.
//!
//! ```no_run
//! use evring::{AnyMechanism, Application, Chunk, Close, Commands, Config, Cx, Rx};
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
//! AnyMechanism::new("auto", &config)?.run(Echo)?;
//! # Ok(())
//! # }
//! ```
//!
//! [`AnyMechanism`] selects a mechanism by name. To fix the mechanism, use its type, such as `Uring` or
//! `Epoll`; each has a cargo feature of the same name.
//!
//! This crate does not provide threads (run one mechanism in each, with
//! [`Config::reuse_port`]), TLS (wrap the application), protocols (write the application).

// Code shared by some mechanisms is unused in a build without them.
#![cfg_attr(not(feature = "mechanisms"), allow(dead_code, unused_imports))]

mod admission;
mod application;
mod commands;
mod config;
mod driver;
mod event_loop;
mod forward;
mod hook;
mod mailbox;
mod mechanisms;
mod multiplexer;
mod others;
mod rx;
mod tail;
mod wheel;

pub use admission::{Admission, Lateness, Order};
pub use application::{
    AcceptPolicy, Application, Chunk, Close, CloseReason, ConnId, Cx, FileOp, FilePath, Listener,
    Root,
};
pub use commands::{Commands, HIGH_WATER, LOW_WATER, MAX_READ_BYTES, MAX_WRITE_BYTES, NoTimer};
pub use config::{Config, StartError, Unavailable};
#[cfg(feature = "sim")]
pub use driver::Usage;
pub use event_loop::{EventLoop, Mechanism, MechanismLoop};
pub use forward::Forward;
pub use hook::{Hooked, ReceiveHook};
pub use mailbox::{Mailbox, SendError, Sender};
pub use mechanisms::*;
pub use multiplexer::{Family, Multiplexer, RemoteHandle, Stats};
pub use others::Others;
pub use rx::Rx;
#[cfg(feature = "io-uring")]
pub use shared_ring::Mode;
#[cfg(feature = "interest")]
pub use shared_ring::interest;
/// A simulated machine for tests: a seed determines which faults occur, and when.
///
/// ```
/// use std::time::Duration;
///
/// use evring::sim::{ReceiveResult, PeerConn, Machine, Net, Next, Peer, Plan, SimKernel};
/// use evring::{Application, Chunk, Close, Commands, Config, Cx, EventLoop, Mode, Rx};
/// # struct Echo;
/// # impl Application for Echo {
/// #     type State = ();
/// #     const MAX_UNCONSUMED: usize = 1;
/// #     fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
/// #         x.io.send(x.id, Chunk::Received(rx.take()));
/// #         if rx.eof() {
/// #             x.io.close(x.id, Close::Flush);
/// #         }
/// #     }
/// # }
///
/// /// A client that sends a line and expects its echo.
/// #[derive(Default)]
/// struct Client {
///     line: Option<PeerConn>,
///     received: Vec<u8>,
/// }
///
/// impl Peer for Client {
///     fn step(&mut self, net: &mut Net<'_>) -> Next {
///         let Some(line) = &self.line else {
///             let Some(line) = net.connect("10.0.0.1:7".parse().unwrap()) else {
///                 return Next::After(Duration::from_millis(1)); // the queue is full
///             };
///             let sent = net.send(&line, b"hello");
///             assert_eq!(sent, 5, "the send buffer has room for 5 bytes");
///             net.finish(&line);
///             self.line = Some(line);
///             return Next::Ready;
///         };
///         match net.receive(line, 100, &mut self.received) {
///             ReceiveResult::Bytes(_) => return Next::Ready,
///             ReceiveResult::Nothing => return Next::Wait,
///             ReceiveResult::End if self.received == b"hello" => {}
///             // A fault broke the connection; the bytes received before must be correct.
///             _ if net.is_disrupted(line) && b"hello".starts_with(&self.received) => {}
///             got => net.fail(format!("{got:?} after {}", self.received.escape_ascii())),
///         }
///         net.close(self.line.take().expect("just used"));
///         Next::Done
///     }
///
///     fn waits_for(&self) -> String {
///         "an echo".to_owned()
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// for seed in 0..100 {
///     let machine = Machine::new(&Plan { seed, ..Plan::default() });
///     let config = Config { listen: vec!["10.0.0.1:7".parse()?], ..Config::default() };
///     let kernel = SimKernel::new(&machine, &config.uring_config(Mode::Deferred)?)?;
///     let server = EventLoop::new(kernel, &config)?;
///     let remote = server.remote();
///     for _ in 0..3 {
///         machine.add_peer(Client::default());
///     }
///     machine.on_end(move || remote.stop());
///     let result = server.run(Echo);
///     assert_eq!(machine.verdict().failure, None, "seed {seed}");
///     result?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// The verdict reports the first failure, in more detail than the result of `run`. With
/// [`Plan::trace_steps`](sim::Plan::trace_steps) it contains a trace of all events. To run on a simulated
/// epoll, create a [`SimEngine`](sim::SimEngine) from [`Config::engine_config`]. If the program's global
/// allocator is `static ALLOCATOR: Watching<System> = Watching(System)`, the machine also checks that no
/// memory is freed too early. This module needs the feature `sim`:
///
/// ```toml
/// [dev-dependencies]
/// evring = { version = "0.1", features = ["sim"] }
/// ```
#[cfg(feature = "sim")]
pub use shared_ring::sim;
pub use shared_ring::{
    Access, BufferError, BufferGroup, BufferMemory, BufferPool, BufferSizes, Counters, File,
    FileKind, FileOutcome, FileWrite, KernelError, Listing, Metadata, Place, RxBuf, SymlinkPolicy,
    WriteAt,
};
pub use tail::Tail;
pub use wheel::TimerWheel;

/// Tests the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
