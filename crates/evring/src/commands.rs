//! Commands of an application.

use std::any::Any;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use shared_ring::buffers::{BufferError, BufferGroup, BufferPool, RxBuf};
use shared_ring::files::File;

use crate::{ConnId, FileOp, Lateness, Listener, Stats};

/// Number of queued bytes from which on the application should wait for
/// [`drained`](crate::Application::drained).
pub const HIGH_WATER: usize = 64 * 1024;

/// Maximum number of queued bytes after which a queue counts as drained.
pub const LOW_WATER: usize = 16 * 1024;

/// Maximum number of bytes that one [`FileOp::Read`] returns.
pub const MAX_READ_BYTES: u32 = 64 * 1024;

/// Maximum number of bytes of one [`FileOp::Write`].
pub const MAX_WRITE_BYTES: usize = 64 * 1024;

/// Tag of a file operation that a layer makes for itself, one at a time on each connection. It does not count as one of
/// the application.
pub const FILE_TAG: u32 = 1 << 31;

/// Bytes to send, by ownership.
#[derive(Debug)]
pub enum Chunk<'a> {
    /// Copied before the command returns. Suited to at most a few KiB.
    Copy(&'a [u8]),
    /// Sent without a copy.
    Static(&'static [u8]),
    /// Sent without a copy and dropped once sent. A panic of their owner's `Drop` affects no connection.
    Shared(Bytes),
    /// A receive buffer, sent without a copy.
    Received(RxBuf),
    /// A range of a file. If the file is shorter, the driver sends up to its end and closes the connection
    /// with [`CloseReason::Truncated`](crate::CloseReason::Truncated). It does the same if the contents have changed
    /// before it sends the next [`File::MAX_PIECE_BYTES`] or the last part, for a file that a
    /// [`FileOp::Open`](crate::files::FileOp::Open) has opened. A range behind another one of the same file continues it:
    /// the contents are those of both, as for the parts of a response.
    File(File, Range<u64>),
}

impl Chunk<'_> {
    /// Drops the chunk, and ignores a panic of the owner of [`Chunk::Shared`]. A layer that does not pass a chunk on
    /// calls this.
    #[inline]
    pub fn discard(self) {
        if let Chunk::Shared(bytes) = self {
            shared_ring::buffers::discard(bytes);
        }
    }
}

/// Ways to close a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// Flushes the send queue and shuts down the sending side; receiving continues.
    Half,
    /// Flushes the send queue, then closes.
    Flush,
    /// Flushes the send queue, shuts down the sending side and discards received bytes. Closes when the
    /// peer does, or after [`Config::linger_timeout`](crate::Config::linger_timeout). This keeps a reset
    /// from destroying the last reply in transit.
    Linger,
    /// Discards the send queue and resets the connection.
    Reset,
}

/// Policy for accepting connections on a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptPolicy {
    /// Accepts nothing; connections wait in the backlog.
    Off,
    /// Accepts every connection.
    All,
    /// Accepts at most this many connections in one turn of the loop; 0 means 1. `tokio` has no turns and
    /// ignores the number.
    PerTurn(u16),
    /// Sets the length of the backlog.
    Backlog(u32),
}

/// Commands of an application, for any connection at any time.
///
/// Commands never call back before they return, and report failures in a later callback. `send`,
/// `set_receiving` and `close` take effect when the callback returns. `connect` and `file_op` start an
/// operation, and `set_accept_policy` and `set_deadline` take effect, before they return. Commands for a
/// closed connection have no effect.
pub trait Commands {
    /// Returns the time at the beginning of this turn of the loop.
    fn now(&self) -> Instant;

    /// Returns the wall-clock time.
    fn wall_time(&self) -> SystemTime;

    /// Returns a random number.
    fn random(&mut self) -> u64;

    /// Queues bytes and returns the number of bytes in the queue. A file counts as [`HIGH_WATER`] bytes
    /// until it is sent.
    ///
    /// All bytes queued by one callback are sent together. If the result is at least [`HIGH_WATER`], the
    /// application should wait for [`drained`](crate::Application::drained). A connection that is closing takes nothing: the
    /// bytes are dropped, and the result is 0. Beyond [`Config::max_queued_bytes`](crate::Config::max_queued_bytes) the
    /// connection is reset ([`CloseReason::Overrun`](crate::CloseReason::Overrun)).
    fn send(&mut self, to: ConnId, chunk: Chunk<'_>) -> usize;

    /// Queues `n` zero bytes and returns them for writing. For a connection that is closing, they are scratch memory. The bound is
    /// that of [`send`](Self::send).
    fn reserve(&mut self, to: ConnId, n: usize) -> &mut [u8];

    /// Opens a connection and reports the result to [`connected`](crate::Application::connected). Bytes
    /// queued before that are sent first. Beyond [`Config::max_connections`](crate::Config::max_connections), the result is
    /// `ENOBUFS`.
    ///
    /// An application without listeners connects in [`woken`](crate::Application::woken): call
    /// [`RemoteHandle::wake`](crate::RemoteHandle::wake) before the mechanism runs.
    fn connect(&mut self, to: SocketAddr) -> ConnId;

    /// Starts a file operation and reports its result to [`file`](crate::Application::file) with the same
    /// `tag`, unless the connection closes first. The tag [`FILE_TAG`](crate::layers::FILE_TAG) is that of layers, which have
    /// one operation at a time.
    fn file_op(&mut self, on: ConnId, tag: u32, op: FileOp);

    /// Pauses or resumes receiving. After a resume, [`received`](crate::Application::received) is always
    /// called, with the unconsumed bytes.
    fn set_receiving(&mut self, id: ConnId, on: bool);

    /// Holds the bytes that a connection has received for a [`ReceiveHook`](crate::hooks::ReceiveHook), or ends this.
    /// Afterwards `received` is called as after a resume, unless the application has paused the connection.
    fn hold(&mut self, id: ConnId, on: bool);

    /// Returns whether the connection is open, and the application has not paused it.
    fn is_receiving(&self, id: ConnId) -> bool;

    /// Sets or clears the deadline of the connection.
    fn set_deadline(&mut self, id: ConnId, at: Option<Instant>);

    /// Returns the deadline of the connection, in whole milliseconds.
    fn deadline(&self, id: ConnId) -> Option<Instant>;

    /// Sets or clears a timer of the application's own, from 0 to
    /// [`Config::max_timers`](crate::Config::max_timers) − 1. When it expires, the driver calls
    /// [`timer`](crate::Application::timer), at `at` or up to 2 ms later.
    ///
    /// # Errors
    /// Fails if the configuration has no such timer.
    fn set_timer(&mut self, timer: u32, at: Option<Instant>) -> Result<(), NoTimer>;

    /// Looks for completions all the time until `time` is over, instead of sleeping until there is one. The next message
    /// within this time needs no wake-up; meanwhile, threads of the same core with no higher priority do not run.
    /// `tokio` ignores it.
    fn busy_poll(&mut self, time: Duration);

    /// Closes a connection. If called repeatedly, the most abrupt way wins.
    fn close(&mut self, id: ConnId, how: Close);

    /// Returns the number of bytes, including files, that are queued or unacknowledged by the peer. A
    /// minimum rate should use this value: the kernel's send queue takes megabytes at a time. Makes a
    /// system call.
    fn unsent_bytes(&self, id: ConnId) -> u64;

    /// Returns the number of bytes, including files, that were queued and that the kernel has not taken. In
    /// [`closed`](crate::Application::closed), these were dropped. Makes no system call.
    fn queued_bytes(&self, id: ConnId) -> u64;

    /// Returns whether the connection is open or being opened.
    fn is_open(&self, id: ConnId) -> bool;

    /// Returns whether the connection closes, or has closed: the application gets no more received bytes. After
    /// [`Close::Half`] it does.
    fn is_closing(&self, id: ConnId) -> bool {
        !self.is_open(id)
    }

    /// Returns the first open connection in `slot` or after it.
    fn next_open(&self, slot: u32) -> Option<ConnId>;

    /// Returns the address of the peer while the connection is open.
    fn peer_addr(&self, id: ConnId) -> Option<SocketAddr>;

    /// Returns the session that a layer around the application has for the connection, such as a session of
    /// TLS; its type is that of the layer. The default, of mechanisms, is `None`.
    fn session(&self, id: ConnId) -> Option<&dyn Any> {
        let _ = id;
        None
    }

    /// Adds a group of receive buffers, whose memory the mechanism owns until it ends. [`BufferPool::over`] makes buffers over
    /// memory of the caller, such as a mapped file. May make system calls.
    ///
    /// # Errors
    /// If there are [`BufferGroup::MAX`] groups, or the operating system rejects the buffers.
    fn add_buffers(&mut self, buffers: BufferPool) -> Result<BufferGroup, BufferError>;

    /// Chooses the buffer group of a connection. A buffer is chosen before a byte is read, so call it in
    /// [`accepted`](crate::Application::accepted), in a hook's, or after `connect`.
    ///
    /// # Errors
    /// If there is no such group, or a receive of the connection has begun.
    fn set_receive_group(&mut self, id: ConnId, group: BufferGroup) -> Result<(), BufferError>;

    /// Returns the buffer group of a connection; [`BufferGroup::DEFAULT`] if it is closed.
    fn receive_group(&self, id: ConnId) -> BufferGroup;

    /// Sets the accept policy of a listener.
    fn set_accept_policy(&mut self, at: Listener, how: AcceptPolicy);

    /// Returns how late the work on a connection is, by the newest received bytes. Without overload or
    /// [`Config::admission`](crate::Config::admission) it is in time; otherwise this makes a system call.
    /// An application should call this before expensive work.
    fn lateness(&self, id: ConnId) -> Lateness;

    /// Returns whether the server is overloaded, as far as [`Config::admission`](crate::Config::admission)
    /// measures it: by the time for which the first bytes of accepted connections have waited. So it says nothing about
    /// messages on connections that last, and on `tokio` it is always false. Makes no system call.
    fn is_overloaded(&self) -> bool {
        false
    }

    /// Returns the statistics of the mechanism.
    fn stats(&self) -> Stats;

    /// Returns whether the server is stopping and connections should close after their current work.
    fn is_stopping(&self) -> bool;
}

/// The error of [`Commands::set_timer`] for a timer that the configuration does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoTimer {
    /// The timer.
    pub timer: u32,
    /// The number of timers, [`Config::max_timers`](crate::Config::max_timers).
    pub max_timers: u32,
}

impl fmt::Display for NoTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoTimer { timer, max_timers } = self;
        write!(f, "there is no timer {timer}: set max_timers, now {max_timers}, above it")
    }
}

impl std::error::Error for NoTimer {}
