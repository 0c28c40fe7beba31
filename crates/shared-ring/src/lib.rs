//! Rings between an application and the kernel: operations go in, completions come out.
//!
//! A [`Kernel`] is the kernel's side of a ring. [`Submit::submit`] takes operations ([`Op`]), and
//! [`Kernel::next`] returns their completions, turn by turn. An operation owns all memory that the
//! kernel may access, until its last completion. A [`Token`] identifies the operation by kind,
//! slot and generation. There are two kernels:
//!
//! - [`UringKernel`] uses io_uring (feature `uring`, on by default). One system call per turn submits, waits and reaps; a
//!   lone send is one of its own.
//! - [`Engine`] uses non-blocking system calls over any [`Poller`](poller::Poller): epoll, poll or
//!   select. Offload threads do file operations that would block. [`PortableKernel`] is the engine
//!   over epoll, for machines without io_uring.
//!
//! Both make the system calls of a [`System`]; [`UringKernel`] also uses the queues of a
//! [`Ring`](author::Ring).
//! These belong to this machine ([`Linux`]) or, in tests, to the simulated machine of the crate
//! `evring-sim`, which injects faults.
//!
//! [`author`] has the parts for kernels of one's own.
//!
//! This crate does not handle connections, protocols or deadlines; the crate `evring` builds
//! servers on it. It has no futures, and threads do not share a ring.

// Parts of what the kernels share are used by io_uring only.
#![cfg_attr(not(feature = "uring"), allow(dead_code))]

#[doc(hidden)]
pub mod __private;
pub mod author;
mod beneath;
mod buffer;
mod buffer_group;
mod cached;
mod call;
mod datagram;
mod descriptor;
mod discard;
mod disk;
mod engine;
mod file;
mod file_op;
mod gather;
mod inflight;
pub mod interest;
mod job;
mod kernel;
mod kernel_error;
mod linux;
mod listening;
pub mod nonblocking;
mod offload;
mod op;
mod operations;
pub mod poller;
mod process;
mod read_ahead;
mod read_buffers;
#[doc(hidden)]
pub mod sync;
mod system;
mod table;
mod token;
#[cfg(feature = "uring")]
mod uring;
mod waker;

pub use buffer::{BufferPool, RxBuf};
pub use buffer_group::{BufferError, BufferGroup, BufferMemory, Place};
pub use call::{Arg, Call, Executor};
pub use datagram::{Datagram, Transmit};
pub use descriptor::{Fd, Socket};
pub use engine::{Engine, EngineConfig, PortableKernel};
pub use file::{File, FileKind, Listing, Metadata};
pub use file_op::{Access, FileOp, FileOutcome, FileWrite, PathAt, SymlinkPolicy, WriteAt};
pub use gather::GatherList;
pub use kernel::{Counters, Host, Kernel, Submit};
pub use kernel_error::KernelError;
pub use linux::Linux;
pub use listening::{BufferSizes, ListenOptions, ListeningSocket};
pub use op::{Completion, Op, Outcome, SubmitError, SubmitErrorKind, Submitted, WhenCold};
pub use rustix::io::Errno;
pub use token::{OpKind, Token};
#[cfg(feature = "uring")]
pub use uring::{Mode, SetupError, UringConfig, UringKernel};
pub use waker::Waker;

pub(crate) use call::CallJob;
pub(crate) use file_op::{Blocking, FileJob, FileJobOutcome, FileRange};
pub(crate) use job::{Job, JobOutcome};
pub(crate) use kernel::Batch;
pub(crate) use process::Process;
pub(crate) use system::{Offload, System, WakeSignal};
