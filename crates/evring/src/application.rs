//! The application: callbacks that a mechanism invokes for connections. They do no I/O.

use std::ffi::{CStr, CString, OsStr};
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use shared_ring::{File, FileOutcome, RxBuf};

use crate::{Commands, Others, Rx};

/// Identifies a connection: a slot and the slot's generation.
///
/// Identifiers are never reused, so commands for a closed connection have no effect.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnId {
    slot: u32,
    generation: u32,
}

impl ConnId {
    /// Returns the identifier for `slot` and `generation`.
    pub const fn new(slot: u32, generation: u32) -> Self {
        ConnId { slot, generation }
    }

    /// Returns the slot, a small number that is unique among open connections. It can index a table.
    pub const fn slot(self) -> u32 {
        self.slot
    }

    /// Returns how many times the slot was used before.
    pub const fn generation(self) -> u32 {
        self.generation
    }
}

impl fmt::Debug for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conn {}.{}", self.slot, self.generation)
    }
}

/// Identifies a listener by its index in [`Config::listen`](crate::Config::listen).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Listener(pub u16);

/// Identifies a root directory by its index in [`Config::roots`](crate::Config::roots).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Root(pub u16);

/// Context of a callback: commands, the connection and its state.
#[derive(Debug)]
pub struct Cx<'a, C, S> {
    /// Receives the commands.
    pub io: &'a mut C,
    /// The connection that the callback is about.
    pub id: ConnId,
    /// The connection's state.
    pub state: &'a mut S,
    /// The states of the other connections.
    pub others: Others<'a, S>,
}

/// Bytes to send, by ownership.
#[derive(Debug)]
pub enum Chunk<'a> {
    /// Copied before the command returns. Suited to at most a few KiB.
    Copy(&'a [u8]),
    /// Sent without a copy.
    Static(&'static [u8]),
    /// Sent without a copy and dropped once sent.
    Shared(Bytes),
    /// A receive buffer, sent without a copy.
    Received(RxBuf),
    /// A range of a file. If the file is shorter, the driver sends up to its end and closes the connection
    /// with [`CloseReason::Truncated`]. It does the same if the contents have changed before it sends the next
    /// [`File::BLOCK_BYTES`], for a file that a [`FileOp::Open`](crate::FileOp::Open) has opened.
    File(File, Range<u64>),
}

/// A path below a [`Root`]. Cloning is cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePath(Option<Arc<CStr>>);

impl FilePath {
    /// Creates a relative path. File operations on a path with a zero byte fail with `EINVAL`.
    pub fn new(path: impl AsRef<Path>) -> Self {
        FilePath(CString::new(path.as_ref().as_os_str().as_bytes()).ok().map(Arc::from))
    }

    /// Returns the path; empty if it contained a zero byte.
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.0.as_ref().map_or(b"", |path| path.to_bytes())))
    }

    pub(crate) fn as_c(&self) -> Option<Arc<CStr>> {
        self.0.clone()
    }
}

impl<P: AsRef<Path> + ?Sized> From<&P> for FilePath {
    fn from(path: &P) -> Self {
        FilePath::new(path)
    }
}

/// A file operation. It never blocks other connections. One read returns at most
/// [`MAX_READ_BYTES`](crate::MAX_READ_BYTES); one write has at most
/// [`MAX_WRITE_BYTES`](crate::MAX_WRITE_BYTES), else it fails with `EMSGSIZE`. Opening a file for writing fails
/// with `EROFS` under a root that is not in [`Config::writable_roots`](crate::Config::writable_roots).
pub type FileOp = shared_ring::FileOp<(Root, FilePath)>;

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

/// The reason why a connection ended.
#[derive(Debug)]
pub enum CloseReason {
    /// The application closed it.
    Closed,
    /// The peer reset the connection or did not respond, or the connect failed.
    Failed(io::Error),
    /// The application left [`Application::MAX_UNCONSUMED`] bytes unconsumed, or queued more than
    /// [`Config::max_queued_bytes`](crate::Config::max_queued_bytes). Or all connections together buffered
    /// more than [`Config::max_buffered_bytes`](crate::Config::max_buffered_bytes).
    Overrun,
    /// A file was shorter than the range to send, or has changed meanwhile.
    Truncated,
    /// The server stopped.
    Stopped,
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

/// A server, a client, or a layer around one: callbacks receive events and issue commands.
///
/// An application does no I/O and reads no clock or random source except through [`Commands`]. It therefore
/// gives the same replies on every mechanism, and can run without one.
///
/// Each connection starts with `accepted` or `connected` and ends with `closed`, also after a failed
/// `connected`. If a callback panics, the driver drops the application, and `run` resumes the panic.
#[allow(unused_variables)]
pub trait Application: Sized {
    /// State of a connection, kept in its slot. Reset to the default when the connection has closed.
    type State: Default;

    /// Maximum number of unconsumed bytes kept in one piece for a connection. If the application leaves
    /// this many and neither pauses nor closes, the connection ends with [`CloseReason::Overrun`].
    const MAX_UNCONSUMED: usize;

    /// Whether [`intercept`](Self::intercept) is called.
    const INTERCEPTS: bool = false;

    /// A client connected.
    fn accepted(&mut self, x: Cx<'_, impl Commands, Self::State>, at: Listener) {}

    /// A connect completed or failed.
    fn connected(&mut self, x: Cx<'_, impl Commands, Self::State>, result: io::Result<()>) {}

    /// Bytes arrived, as one receive returned them. What this consumes, [`received`](Self::received) does not
    /// get. Not called while there are unconsumed bytes. [`Hooked`](crate::Hooked) uses this.
    fn intercept(&mut self, io: &mut impl Commands, id: ConnId, rx: &mut Rx<'_>) {}

    /// Bytes arrived, the peer shut down its sending side ([`Rx::eof`]), or receiving was resumed.
    /// Unconsumed bytes are passed again, together with new ones; after a resume there may be none. Not
    /// called while paused. After `close`, called only for [`Close::Half`].
    fn received(&mut self, x: Cx<'_, impl Commands, Self::State>, rx: &mut Rx<'_>);

    /// The send queue has fallen from [`HIGH_WATER`](crate::HIGH_WATER) to [`LOW_WATER`](crate::LOW_WATER).
    fn drained(&mut self, x: Cx<'_, impl Commands, Self::State>) {}

    /// The file operation `tag` has completed. After `close`, called only for [`Close::Half`].
    fn file(
        &mut self,
        x: Cx<'_, impl Commands, Self::State>,
        tag: u32,
        done: io::Result<FileOutcome>,
    ) {
    }

    /// The connection's deadline has passed, and is now cleared.
    fn expired(&mut self, x: Cx<'_, impl Commands, Self::State>) {}

    /// The connection has closed; commands for it have no effect.
    fn closed(&mut self, x: Cx<'_, impl Commands, Self::State>, reason: CloseReason) {}

    /// The server is stopping: the connection should close after its current work, at once if it has none.
    /// Bytes that the peer sent before are passed first. Called again after a resume.
    fn stopping(&mut self, x: Cx<'_, impl Commands, Self::State>) {
        x.io.close(x.id, Close::Flush);
    }

    /// Returns whether a connection only waits for another request, so that the driver may close it to make
    /// room. The driver asks this about connections with no queued bytes, no unconsumed bytes and no
    /// operations. It closes those with the earliest deadlines first.
    fn is_idle(&self, id: ConnId, state: &Self::State) -> bool {
        false
    }

    /// Returns whether an idle connection has not brought a request yet, but perhaps a handshake. The driver closes
    /// such connections, and those on which nothing has arrived, only if too few others are idle: a request may be
    /// on its way, and its client would not expect the end.
    fn is_unserved(&self, id: ConnId, state: &Self::State) -> bool {
        false
    }

    /// The driver closes an idle connection to make room for a new one. Bytes that this sends leave first. If it does
    /// not close the connection, the driver does, with [`Close::Flush`].
    fn evicting(&mut self, x: Cx<'_, impl Commands, Self::State>) {
        x.io.close(x.id, Close::Flush);
    }

    /// Another thread called [`RemoteHandle::wake`](crate::RemoteHandle::wake) with `tag`.
    fn woken(&mut self, io: &mut impl Commands, all: Others<'_, Self::State>, tag: u64) {}

    /// A timer that [`Commands::set_timer`] set has expired, and is now cleared.
    fn timer(&mut self, io: &mut impl Commands, all: Others<'_, Self::State>, timer: u32) {}
}
