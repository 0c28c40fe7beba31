//! The rings in which an application and the kernel meet.
//!
//! A [`Kernel`] is the far side of a ring: operations ([`Op`]) go in by [`Submit::submit`],
//! completions come out of [`Kernel::next`], turn by turn. An operation owns all memory that the
//! kernel may touch, until its last completion; a [`Token`] names it by kind, slot and generation.
//! There are two kernels:
//!
//! - [`UringKernel`], by io_uring. One system call a turn submits, waits and reaps.
//! - [`Engine`], by non-blocking system calls over any [`Poller`](poller::Poller): epoll, poll or
//!   select. What would wait for the disk is done by a few threads. [`PortableKernel`], over epoll,
//!   is the one to take where io_uring is switched off.
//!
//! Both are made of a [`System`]'s calls, and the first of a [`Ring`]'s queues too. Those are this
//! machine's ([`Linux`]), or, with the feature `sim`, a simulated one's, which misbehaves on
//! purpose.
//!
//! What this crate does not do: it knows no connections, protocols or deadlines; the crate
//! `evring` builds servers on it. It has no futures, and no ring is shared by threads.

mod beneath;
mod buffer;
mod descriptor;
mod engine;
mod file;
mod gather;
mod inflight;
pub mod interest;
mod kernel;
mod linux;
pub mod nonblocking;
mod offload;
mod op;
mod operations;
pub mod poller;
mod process;
#[cfg(feature = "sim")]
pub mod sim;
#[doc(hidden)]
pub mod sync;
mod system;
mod table;
mod token;
mod uring;
mod waker;

pub use beneath::{PathAt, SymlinkPolicy};
pub use buffer::{BufferPool, RxBuf};
pub use descriptor::{Fd, Socket};
pub use engine::{Engine, EngineConfig, PortableKernel};
pub use file::{File, FileKind, Listing, Metadata};
pub use gather::GatherList;
pub use kernel::{Batch, BufferSizes, Counters, Host, Kernel, KernelError, ListenOptions, Submit};
pub use op::{Completion, Op, Outcome, SubmitError, SubmitErrorKind, Submitted};
pub use rustix::io::Errno;
pub use table::Table;
pub use token::{OpKind, Token};
pub use uring::{Mode, RawCompletion, SetupError, UringConfig, UringKernel};
pub use waker::Waker;

// What kernels are made of, and what simulation puts in its place; subject to change.
#[doc(hidden)]
pub use linux::{Linux, file_outcome};
#[doc(hidden)]
pub use offload::{FileJob, FileResult, OffloadThreads};
#[doc(hidden)]
pub use operations::{Need, Operations, Read, SocketState};
#[doc(hidden)]
pub use process::Process;
#[doc(hidden)]
pub use system::{Offload, System, WakeSignal};
#[doc(hidden)]
pub use uring::{Cqe, Entries, Feature, LinuxRing, Ring};
