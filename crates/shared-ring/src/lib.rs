//! The rings in which an application and the kernel meet.

mod buffer;
mod engine;
mod file;
mod gather;
mod inflight;
mod kernel;
mod linux;
pub mod nonblocking;
mod offload;
mod op;
pub mod poller;
mod signal;
mod table;
mod token;
mod uring;
mod waker;

pub use buffer::{Pool, RxBuf};
pub use engine::{Engine, EngineConfig, file_outcome};
pub use file::{File, FileKind, Meta};
pub use gather::Gather;
pub use kernel::{Batch, BufferSizes, Counters, Fault, Host, Kernel, ListenOptions, Submit};
pub use linux::Linux;
pub use offload::{Done, Work};
pub use op::{Completion, Fd, Op, Outcome, Posted, Refusal, Refused};
pub use rustix::io::Errno;
pub use signal::{ListenerSignal, SignalError};
pub use table::Table;
pub use token::{Kind, Token};
pub use uring::{Missing, Mode, UringConfig, UringKernel};
pub use waker::Waker;
