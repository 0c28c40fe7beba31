//! Rings between an application and the kernel: operations go in, completions come out.
//!
//! A [`Kernel`] is the kernel's side of a ring. [`Submit::submit`] takes operations ([`Op`]), and
//! [`Kernel::next`] returns their completions, turn by turn. An operation owns all memory that the
//! kernel may access, until its last completion. A [`Token`] identifies the operation by kind,
//! slot and generation. There are two kernels:
//!
//! - `UringKernel`, in the module `uring`, uses io_uring (feature `uring`, on by default). One system call per turn
//!   submits, waits and reaps; a lone send is a system call of its own.
//! - [`Engine`] uses non-blocking system calls over any [`Poller`](poller::Poller): epoll, poll, select, real-time
//!   signals, an emulation of /dev/poll, or declared interests. Offload threads do file operations that would block.
//!   [`PortableKernel`] is the engine over epoll, for machines without io_uring.
//!
//! Both make the system calls of a [`System`]; `UringKernel` also uses the queues of a `Ring`.
//! These belong to this machine ([`Linux`]) or, in tests, to the simulated machine of the crate
//! `evring-sim`, which injects faults.
//!
//! | module | for |
//! |---|---|
//! | [`buffers`] | memory to receive into, and to send from |
//! | [`files`] | file operations, open files, metadata |
//! | [`sockets`] | listening sockets and datagrams |
//! | [`calls`] | system calls by number |
//! | `uring` | the kernel over io_uring, and its queues |
//! | [`poller`] | the pollers of the engine |
//! | [`interest`] | declared interests and hints, as functions |
//! | [`nonblocking`] | single attempts without a kernel |
//! | [`author`] | the parts for kernels of one's own |
//!
//! This crate does not handle connections, protocols or deadlines; the crate `evring` builds
//! servers on it. It has no futures, and threads do not share a ring.

#![cfg_attr(docsrs, feature(doc_cfg))]
// Parts of what the kernels share are used by io_uring only.
#![cfg_attr(not(feature = "uring"), allow(dead_code))]

#[cfg(not(target_os = "linux"))]
compile_error!("shared-ring needs Linux");

#[doc(hidden)]
pub mod __private;
pub mod author;
mod beneath;
mod buffer;
mod buffer_group;
mod cached;
mod call;
mod changes;
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
mod metadata;
pub mod nonblocking;
mod offload;
mod op;
mod operations;
mod panics;
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
pub mod uring;
mod version;
mod waker;

/// Memory that a kernel receives into, and memory to send from.
pub mod buffers {
    pub use crate::buffer::{BufferPool, RxBuf};
    pub use crate::buffer_group::{BufferError, BufferGroup, BufferMemory, Place};
    pub use crate::gather::{GatherList, discard};
}

/// System calls by number, and the executors that can make them.
pub mod calls {
    pub use crate::call::{Arg, Call, Executor};
}

/// File operations, open files and their metadata.
pub mod files {
    pub use crate::file::File;
    pub use crate::file_op::{
        Access, FileOp, FileOutcome, FileWrite, PathAt, SymlinkPolicy, WriteAt,
    };
    pub use crate::metadata::{FileKind, Listing, Metadata};
    pub use crate::version::{Contents, FileVersion};
}

/// Listening sockets, and datagrams.
pub mod sockets {
    pub use crate::datagram::{Datagram, Transmit};
    pub use crate::listening::{BufferSizes, ListenOptions, ListeningSocket};
}

pub use descriptor::{Fd, Socket};
pub use engine::{Engine, EngineConfig, PortableKernel};
pub use kernel::{Counters, Host, Kernel, Occupancy, Submit};
pub use kernel_error::KernelError;
pub use linux::Linux;
pub use op::{Completion, Op, Outcome, SubmitError, SubmitErrorKind, Submitted, WhenCold};
pub use rustix::io::Errno;
pub use token::{OpKind, Token};
pub use waker::Waker;

use buffers::*;
use calls::*;
use files::*;
use sockets::*;

pub(crate) use call::CallJob;
pub(crate) use file_op::{Blocking, FileJob, FileJobOutcome, FileRange};
pub(crate) use job::{Job, JobOutcome};
pub(crate) use kernel::Batch;
pub(crate) use process::Process;
pub(crate) use system::{Offload, System, WakeSignal};
