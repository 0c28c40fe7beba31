//! Event-driven servers on every event mechanism of Linux, behind one trait.

mod any;
mod application;
mod commands;
mod completion;
mod config;
mod driver;
mod multiplexer;
mod readiness;
mod rx;
mod wheel;

pub use any::*;
pub use application::{
    Admit, Application, Chunk, Close, Conn, Cx, FileDone, FileOp, FilePath, Listener, Root, Why,
};
pub use commands::{Commands, HIGH_WATER, LOW_WATER};
pub use config::{Config, StartError, Unavailable};
pub use multiplexer::{Family, Multiplexer, Remote, Stats};
pub use rx::Rx;
pub use shared_ring::{BufferSizes, Counters, Fault, File, FileKind, Meta, RxBuf};
pub use wheel::Wheel;
