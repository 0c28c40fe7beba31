//! What a server is to a mechanism: callbacks about connections, free of input and output.

use std::ffi::{CStr, CString, OsStr};
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use shared_ring::{File, Listing, Metadata, RxBuf};

use crate::{Commands, Rx};

/// The name of a connection: a slot and how often the slot was used before.
///
/// A name is never given twice, so commands for a connection that is gone have no effect.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnId {
    slot: u32,
    generation: u32,
}

impl ConnId {
    /// Names the connection in `slot` at its `generation`.
    pub const fn new(slot: u32, generation: u32) -> Self {
        ConnId { slot, generation }
    }

    /// A small number that no other open connection has; good as an index into a table.
    pub const fn slot(self) -> u32 {
        self.slot
    }

    /// How often the slot was used before.
    pub const fn generation(self) -> u32 {
        self.generation
    }
}

impl fmt::Debug for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conn {}.{}", self.slot, self.generation)
    }
}

/// A listening socket: its place in [`Config::listen`](crate::Config::listen).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Listener(pub u16);

/// A directory for file work: its place in [`Config::roots`](crate::Config::roots).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Root(pub u16);

/// What a callback may use: commands, the connection it is about, and that connection's state.
#[derive(Debug)]
pub struct Cx<'a, C, S> {
    /// Where commands go.
    pub io: &'a mut C,
    /// Which connection the callback is about.
    pub id: ConnId,
    /// The connection's state.
    pub state: &'a mut S,
}

/// Bytes to send and who owns them.
#[derive(Debug)]
pub enum Chunk<'a> {
    /// Copied before the command returns; best for less than a few KiB.
    Copy(&'a [u8]),
    /// Sent from where they are.
    Static(&'static [u8]),
    /// Sent from where they are, and let go when sent.
    Shared(Bytes),
    /// A received buffer, sent from where it landed.
    Received(RxBuf),
    /// Part of a file. Its end is the end of what is sent, should the file turn out shorter: the
    /// connection is then closed with [`CloseReason::Truncated`].
    File(File, Range<u64>),
}

/// A path below a [`Root`]. It is made once and cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePath(Option<Arc<CStr>>);

impl FilePath {
    /// A relative path. File work for one that has a zero byte in it fails with `EINVAL`.
    pub fn new(path: impl AsRef<Path>) -> Self {
        FilePath(CString::new(path.as_ref().as_os_str().as_bytes()).ok().map(Arc::from))
    }

    /// The path; empty if it had a zero byte in it.
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

/// Work on files. It never stalls the other connections.
#[derive(Debug)]
pub enum FileOp {
    /// Open for reading. The path can't leave its root, neither by dots nor, unless
    /// [`Config::symlinks`](crate::Config::symlinks) allows it, by links.
    Open(Root, FilePath),
    /// Ask what a path leads to, with the same bounds.
    Stat(Root, FilePath),
    /// Ask what is in a directory, at most [`Listing::MAX_ENTRIES`] entries of it.
    List(Root, FilePath),
    /// Read part of a file, at most [`FileOp::MAX_READ_BYTES`] bytes of it.
    Read(File, Range<u64>),
}

impl FileOp {
    /// The most bytes that one [`FileOp::Read`] returns.
    pub const MAX_READ_BYTES: u32 = 64 * 1024;
}

/// The end of a [`FileOp`].
#[derive(Debug)]
pub enum FileOutcome {
    /// The end of an `Open`.
    Opened(io::Result<(File, Metadata)>),
    /// The end of a `Stat`.
    Stat(io::Result<Metadata>),
    /// The end of a `List`.
    Listed(io::Result<Listing>),
    /// The end of a `Read`: no bytes means the end of the file.
    Read(io::Result<RxBuf>),
}

/// How to close a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// Send what is queued and tell the peer that no more comes; go on receiving.
    Half,
    /// Send what is queued, then close.
    Flush,
    /// Send what is queued, tell the peer, and drop what it still sends until it closes too or
    /// [`Config::linger_timeout`](crate::Config::linger_timeout) is over, so that a reset does not destroy the
    /// last reply on its way.
    Linger,
    /// Close at once with a reset; what is queued is dropped.
    Reset,
}

/// Why a connection ended.
#[derive(Debug)]
pub enum CloseReason {
    /// The application closed it.
    Closed,
    /// The peer reset it, went away, or could not be reached.
    Failed(io::Error),
    /// The application left [`Application::MAX_UNCONSUMED`] bytes unconsumed and wanted more, or
    /// queued more than [`Config::max_queued_bytes`](crate::Config::max_queued_bytes) bytes.
    Overrun,
    /// A file that was being sent ended before the range that was promised.
    Truncated,
    /// The server stopped.
    Stopped,
}

/// What the application wants of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptPolicy {
    /// Accept nothing; connections wait in the listener's queue.
    Off,
    /// Accept whatever arrives.
    All,
    /// Accept at most so many connections in one turn of the loop; 0 is taken as 1. `tokio` has no
    /// turns and accepts as many as its own fairness allows.
    PerTurn(u16),
    /// Let so many connections wait in the listener's queue.
    Backlog(u32),
}

/// A server, a client or a layer around one: told what happened, it answers with commands.
///
/// It never touches a descriptor, a file, a clock or a source of chance; all of that passes
/// through [`Commands`]. So it gives the same replies on every mechanism, and runs without any.
///
/// For each connection the order is `accepted` or `connected` first, `closed` last and always, but for an
/// application that panics: it is dropped, and the panic goes on in `run`.
/// After a failed `connected` comes `closed`.
#[allow(unused_variables)]
pub trait Application: Sized {
    /// What is kept for a connection, in the connection's slot. Reset to the default when the
    /// connection has ended.
    type State: Default;

    /// How many unconsumed bytes are kept contiguous for a connection. An application that leaves
    /// that many and neither pauses nor closes breaks its own promise, and the connection ends
    /// with [`CloseReason::Overrun`].
    const MAX_UNCONSUMED: usize;

    /// A peer connected.
    fn accepted(&mut self, x: Cx<'_, impl Commands, Self::State>, at: Listener) {}

    /// A connection that was asked for is open, or could not be opened.
    fn connected(&mut self, x: Cx<'_, impl Commands, Self::State>, result: io::Result<()>) {}

    /// Bytes arrived, or the peer ended its side ([`Rx::eof`]), or receiving was resumed. Bytes
    /// that are not consumed come again, with what has arrived since; after a resume there may be
    /// none at all. Not called while paused, nor after `close` but for [`Close::Half`].
    fn received(&mut self, x: Cx<'_, impl Commands, Self::State>, rx: &mut Rx<'_>);

    /// The queue to send, which had reached [`HIGH_WATER`](crate::HIGH_WATER), has fallen to
    /// [`LOW_WATER`](crate::LOW_WATER).
    fn drained(&mut self, x: Cx<'_, impl Commands, Self::State>) {}

    /// The file work named `tag` has ended. Not called after `close`, but for [`Close::Half`].
    fn file(&mut self, x: Cx<'_, impl Commands, Self::State>, tag: u32, done: FileOutcome) {}

    /// The connection's deadline has passed. It is not set any more.
    fn expired(&mut self, x: Cx<'_, impl Commands, Self::State>) {}

    /// The connection is over; commands for it have no effect.
    fn closed(&mut self, x: Cx<'_, impl Commands, Self::State>, reason: CloseReason) {}

    /// The server is stopping: the connection should end with its current work, or at once when
    /// it has none. What the peer sent before comes first. Called again after a resume.
    fn stopping(&mut self, x: Cx<'_, impl Commands, Self::State>) {
        x.io.close(x.id, Close::Flush);
    }

    /// Whether a connection waits for nothing but another request, so that it may be closed when a new
    /// one needs its room; asked of connections that have nothing queued, received or under way. Those
    /// whose deadlines come first go first.
    fn is_idle(&self, state: &Self::State) -> bool {
        false
    }

    /// Another thread called [`RemoteHandle::wake`](crate::RemoteHandle::wake) with `tag`.
    fn woken(&mut self, io: &mut impl Commands, tag: u64) {}
}
