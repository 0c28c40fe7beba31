//! For authors of kernels: the parts of which the kernels of this crate are made.
//!
//! A kernel implements [`Submit`] and [`Kernel`]. With `evring::mechanisms::Mechanism` it runs every server of the
//! crates `evring` and `evring-httpd`. `examples/src/poll_kernel.rs` of the repository is a kernel over
//! poll(2) that uses only this module and the rest of the public interface.
//!
//! | part | purpose |
//! |---|---|
//! | [`InFlightTable`] | owns operations and their memory until their last completion |
//! | [`Operations`] | tries operations on non-blocking sockets and says for which they wait; has threads do what would block |
//! | [`nonblocking`] | single attempts: accept, receive, send, send a file |
//! | [`ReadBuffers`] | memory for reads of files, used again |
//! | [`DiscardBuffer`] | the destination of reads that only fill the page cache |
//! | [`ReadAhead`] | for which sockets Linux reads ahead in the files that they are sent |
//! | [`OffloadThreads`], [`Job`] | threads for file operations and system calls that block |
//! | [`BufferPool`], [`GatherList`] | memory to receive into, and to send from |
//! | [`BufferMemory`](crate::buffers::BufferMemory), [`BufferGroup`](crate::buffers::BufferGroup) | memory of the caller, as a group of receive buffers |
//! | [`Token`], [`Completion`], [`Op::fail`], [`Op::executed`] | names and results of operations |
//! | [`Waker`], [`EventCounter`] | ends a wait of the kernel from another thread |
//! | [`System`], [`Host`], [`Linux`] | the system calls of a machine, which a simulation replaces |
//! | [`Poller`] | an interest set and a wait; [`Engine`] makes a kernel of it |
//! | [`PollNow`], [`HintSource`], [`SignalSource`] | the system calls under the pollers of which the simulated machine has its own |
//! | `uring::CallRing` | a ring that makes system calls, for which the author keeps the memory |
//! | `uring::Ring`, `uring::UringKernel` | the queues of io_uring, and the kernel over them |
//! | [`Process`] | detects a child of fork(2), which must not use its parent's descriptors |
//!
//! # System calls
//!
//! An author whose kernel chooses the executor of each call (FlexSC) gets a [`Call`] in
//! [`Op::Call`] together with the choice of its submitter, and has three ways to make it: in place by
//! [`System::call`], on a thread by [`Offload::post`], or on a ring by handing the operation to a
//! `UringKernel` (`UringKernel::has_operation` returns whether the ring can make it). The call owns its memory
//! in the [`InFlightTable`] meanwhile.
//!
//! # Submissions of others to a ring
//!
//! `UringKernel::begin` queues a submission outside the table, for a token of kind
//! [`OpKind::Watch`] or [`OpKind::Stream`]. Its completions
//! are raw: `UringKernel::next_raw` returns them, also in a signal handler, and `UringKernel::end` cancels
//! it. `UringKernel::decode` converts raw completions of operations.
//!
//! # Safety
//!
//! - [`Submit`] and [`Poller`] are unsafe to implement: a kernel must not use the number of a descriptor
//!   after the operation that names it has ended.
//! - [`FileOp::job`] and [`Call::job`] are unsafe: the operation must
//!   live until the job is done. An [`InFlightTable`] keeps it, and a kernel that is dropped while a job
//!   hangs leaks it.
//! - [`Offload`] is unsafe to implement: no thread may use a job whose end it has reported.
//! - `uring::Ring::push` is unsafe: the memory of the submission must live until its last completion.
//!
//! # Example
//!
//! ```
//! use shared_ring::author::InFlightTable;
//! use shared_ring::calls::{Call, Executor};
//! use shared_ring::{Completion, Errno, Op, OpKind, Outcome, Token};
//!
//! // Operations in flight, each with the time of its submission.
//! let mut table = InFlightTable::new(16);
//! let token = Token::new(OpKind::Call, 0, 0);
//! let call = Op::Call(Box::new(Call::random(8)), Executor::Thread);
//! let entry = table.insert(token, call, 17).unwrap();
//! assert_eq!(entry.state, 17);
//!
//! // Its last completion takes it out of the table, with its memory.
//! let entry = table.remove(token).unwrap();
//! let completion = Completion::last(token, entry.op.fail(Errno::CANCELED));
//! assert!(matches!(completion.outcome, Outcome::Called(_, Err(Errno::CANCELED))));
//! ```
//!
//! [`BufferPool`]: crate::buffers::BufferPool
//! [`Call`]: crate::calls::Call
//! [`Call::job`]: crate::calls::Call::job
//! [`Completion`]: crate::Completion
//! [`Engine`]: crate::Engine
//! [`FileOp::job`]: crate::files::FileOp::job
//! [`GatherList`]: crate::buffers::GatherList
//! [`Host`]: crate::Host
//! [`Kernel`]: crate::Kernel
//! [`Linux`]: crate::Linux
//! [`Op::Call`]: crate::Op::Call
//! [`Op::executed`]: crate::Op::executed
//! [`Op::fail`]: crate::Op::fail
//! [`OpKind::Stream`]: crate::OpKind::Stream
//! [`OpKind::Watch`]: crate::OpKind::Watch
//! [`PollNow`]: crate::poller::PollNow
//! [`Poller`]: crate::poller::Poller
//! [`Submit`]: crate::Submit
//! [`Token`]: crate::Token
//! [`Waker`]: crate::Waker
//! [`nonblocking`]: crate::nonblocking

pub use crate::call::CallJob;
pub use crate::discard::DiscardBuffer;
pub use crate::file_op::{FileJob, FileJobOutcome};
pub use crate::inflight::{InFlight, InFlightTable};
pub use crate::interest::edges::HintSource;
pub use crate::job::{Job, JobOutcome};
pub use crate::offload::OffloadThreads;
pub use crate::operations::{Continued, Operations, Read, SocketState};
pub use crate::poller::signals::{Signal, SignalSource};
pub use crate::process::Process;
pub use crate::read_ahead::ReadAhead;
pub use crate::read_buffers::ReadBuffers;
pub use crate::system::{Offload, System, WakeSignal};
pub use crate::waker::EventCounter;
