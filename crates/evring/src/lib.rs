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
//! let mut config = Config::default();
//! config.listen = vec!["127.0.0.1:7000".parse()?];
//! AnyMechanism::new("auto", &config)?.run(Echo)?;
//! # Ok(())
//! # }
//! ```
//!
//! [`AnyMechanism`] selects a mechanism by name. To fix the mechanism, use
//! `MechanismLoop` with its type, such as `Uring` or `Epoll`; each has a cargo feature of the same name.
//!
//! This crate does not run workers in threads (run one mechanism in each, with
//! [`Config::reuse_port`]), TLS (wrap the application), protocols (write the application).

// Code shared by some mechanisms is unused in a build without them.
#![cfg_attr(not(feature = "mechanisms"), allow(dead_code, unused_imports))]

#[doc(hidden)]
pub mod __private;
mod admission;
mod application;
#[cfg(feature = "sandbox")]
mod bindings;
mod commands;
mod config;
#[cfg(feature = "sandbox")]
mod datagrams;
mod driver;
mod event_loop;
mod file_delivery;
mod file_path;
mod forward;
mod hook;
mod ids;
#[cfg(feature = "sandbox")]
mod landing;
#[cfg(feature = "sandbox")]
mod landing_area;
mod mailbox;
mod mechanisms;
mod multiplexer;
mod others;
mod owner;
mod rx;
mod scheduling;
mod send_policy;
mod stats;
mod tail;
#[cfg(feature = "sandbox")]
mod tenant;
#[cfg(feature = "sandbox")]
mod upcalls;
mod wheel;

pub use admission::{Admission, Lateness, Order};
pub use application::{Application, CloseReason, Cx};
#[cfg(feature = "sandbox")]
pub use bindings::{Binding, Bindings};
pub use commands::{
    AcceptPolicy, Chunk, Close, Commands, HIGH_WATER, LOW_WATER, MAX_READ_BYTES, MAX_WRITE_BYTES,
    NoTimer,
};
pub use config::{Config, StartError, Unavailable};
#[cfg(feature = "sandbox")]
pub use datagrams::{
    DatagramConfig, DatagramCounters, DatagramError, DatagramNotification, DatagramRing,
    DatagramThread,
};
pub use event_loop::{EventLoop, Mechanism, MechanismLoop};
pub use file_delivery::FileDelivery;
pub use file_path::{FileOp, FilePath};
pub use forward::Forward;
pub use hook::{Hooked, ReceiveHook};
pub use ids::{ConnId, Listener, Root};
#[cfg(feature = "sandbox")]
pub use landing::Landing;
#[cfg(feature = "sandbox")]
pub use landing_area::LandingArea;
pub use mailbox::{Mailbox, SendError, Sender};
pub use mechanisms::*;
pub use multiplexer::{Family, Multiplexer, RemoteHandle};
pub use others::Others;
pub use owner::{Notification, NotificationRing, Notifier, OwnerError, OwnerThread};
pub use rx::Rx;
pub use scheduling::{Scheduling, SchedulingError};
pub use send_policy::{DefaultSendPolicy, SendPolicy, SendResult, SendState, SendStep};
#[cfg(feature = "io-uring")]
pub use shared_ring::Mode;
#[cfg(feature = "interest")]
pub use shared_ring::interest;
pub use shared_ring::{
    Access, BufferError, BufferGroup, BufferMemory, BufferPool, BufferSizes, Counters, File,
    FileKind, FileOutcome, FileWrite, KernelError, ListenOptions, ListeningSocket, Listing,
    Metadata, Place, RxBuf, SymlinkPolicy, WriteAt,
};
pub use stats::Stats;
pub use tail::Tail;
#[cfg(feature = "sandbox")]
pub use tenant::{BindError, LandingCounters, Tenant};
#[cfg(feature = "sandbox")]
pub use upcalls::{UpcallCounters, UpcallHandle, Upcalls};

/// Tests the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
