//! Event-driven servers on thirteen event mechanisms, behind one trait.
//!
//! A server is an [`Application`]: its callbacks receive events, and [`Commands`] send data. It uses
//! no descriptor, file, clock or random source directly. A [`Multiplexer`] is an event mechanism: it
//! owns the loop and calls the application. All mechanisms produce the same replies, byte for byte.
//!
//! ```no_run
//! use evring::{AnyMechanism, Application, Chunk, Close, Commands, Config, Cx, HIGH_WATER, Rx};
//!
//! struct Echo;
//!
//! impl Application for Echo {
//!     type State = ();
//!     const MAX_UNCONSUMED: usize = 1;
//!
//!     fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
//!         if x.io.send(x.id, Chunk::Received(rx.take())) >= HIGH_WATER {
//!             x.io.set_receiving(x.id, false); // the peer does not read
//!         }
//!         if rx.eof() {
//!             x.io.close(x.id, Close::Flush);
//!         }
//!     }
//!
//!     fn drained(&mut self, x: Cx<'_, impl Commands, ()>) {
//!         x.io.set_receiving(x.id, true);
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
//! [`mechanisms::MechanismLoop`] with its type, such as `mechanisms::Epoll`; each has a cargo feature of the same name.
//!
//! | module | for |
//! |---|---|
//! | [`mechanisms`] | the mechanisms, the choice among them, and the traits for one of your own |
//! | [`files`] | files that an application reads, sends and writes |
//! | [`buffers`] | received bytes, and receive buffers over memory of your own |
//! | [`sockets`] | listening sockets that several workers, or a process and its successor, use |
//! | [`mailbox`] | values for an application from other threads |
//! | [`process`] | the limit of descriptors, and signals that stop servers (feature `signals`) |
//! | [`layers`] | applications around other applications, such as TLS |
//! | [`send_policy`] | how much of a connection's queue leaves at once, and when |
//! | [`hooks`] | code that sees messages before the application: native, in a sandbox, in another process |
//! | [`owner`] | a thread that owns the ring, and notifies the application's thread |
//! | `datagrams` | such a thread for a UDP socket, with the feature `sandbox` |
//! | `interest` | declared interests and hints, as functions, with the feature `interest` |
//!
//! Not in this crate: worker threads (run one mechanism in each thread, with [`Config::reuse_port`] and
//! [`Config::workers`]), TLS (wrap the application), and protocols (write the application).

#![cfg_attr(docsrs, feature(doc_cfg))]
// Code shared by some mechanisms is unused in a build without them.
#![cfg_attr(not(feature = "mechanisms"), allow(dead_code, unused_imports))]

#[doc(hidden)]
pub mod __private;
mod admission;
mod application;
#[cfg(feature = "sandbox")]
mod bind_error;
#[cfg(feature = "sandbox")]
mod bindings;
mod commands;
mod config;
#[cfg(feature = "sandbox")]
pub mod datagrams;
mod driver;
mod event_loop;
mod file_delivery;
mod file_path;
mod forward;
mod hook;
mod ids;
mod input_file;
#[cfg(feature = "sandbox")]
mod landing;
#[cfg(feature = "sandbox")]
mod landing_area;
pub mod mailbox;
pub mod mechanisms;
mod multiplexer;
mod others;
pub mod owner;
pub mod process;
mod remote;
mod rx;
mod scheduling;
pub mod send_policy;
mod start_error;
mod stats;
mod tail;
#[cfg(feature = "sandbox")]
mod tenant;
#[cfg(feature = "sandbox")]
mod upcalls;
mod wheel;

/// Received bytes, and groups of receive buffers over memory of the caller.
pub mod buffers {
    pub use shared_ring::buffers::{
        BufferError, BufferGroup, BufferMemory, BufferPool, Place, RxBuf,
    };
}

/// Files that an application reads, sends and writes, by commands.
pub mod files {
    pub use crate::commands::{MAX_READ_BYTES, MAX_WRITE_BYTES};
    pub use crate::file_path::{FileChanged, FileOp, FilePath};
    pub use shared_ring::files::{
        Access, File, FileKind, FileOutcome, FileWrite, Listing, Metadata, SymlinkPolicy, WriteAt,
    };
}

/// Code that sees a message before the application: native hooks and, with the feature `sandbox`, handlers and
/// upcalls.
pub mod hooks {
    #[cfg(feature = "sandbox")]
    pub use crate::bind_error::BindError;
    #[cfg(feature = "sandbox")]
    pub use crate::bindings::{Binding, Bindings};
    pub use crate::hook::{Hooked, ReceiveHook};
    #[cfg(feature = "sandbox")]
    pub use crate::landing::Landing;
    #[cfg(feature = "sandbox")]
    pub use crate::landing_area::LandingArea;
    #[cfg(feature = "sandbox")]
    pub use crate::tenant::{LandingCounters, Tenant};
    #[cfg(feature = "sandbox")]
    pub use crate::upcalls::{UpcallCounters, UpcallHandle, Upcalls};
}

/// Parts of an application around another application.
pub mod layers {
    pub use crate::commands::FILE_TAG;
    pub use crate::forward::Forward;
    pub use crate::tail::Tail;
}

/// Listening sockets that several workers, or a process and its successor, use.
pub mod sockets {
    pub use shared_ring::sockets::{BufferSizes, ListenOptions, ListeningSocket};
}

pub use admission::{Admission, Lateness, Order};
pub use application::{Application, CloseReason, Cx};
pub use commands::{AcceptPolicy, Chunk, Close, Commands, HIGH_WATER, LOW_WATER, NoTimer};
pub use config::Config;
pub use file_delivery::FileDelivery;
pub use ids::{ConnId, Listener, Root};
pub use mechanisms::AnyMechanism;
pub use others::Others;
pub use remote::RemoteHandle;
pub use rx::Rx;
pub use shared_ring::KernelError;
#[cfg(feature = "interest")]
pub use shared_ring::interest;
pub use start_error::StartError;
pub use stats::Stats;

use files::*;
use hooks::*;
use layers::*;
use mailbox::*;
use mechanisms::*;
use send_policy::*;

/// Tests the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
