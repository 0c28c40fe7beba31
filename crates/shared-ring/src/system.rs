//! The system calls that the kernels of this crate are made of.

use std::io::{self, IoSlice};
use std::net::SocketAddr;

use rustix::io::Errno;

use crate::nonblocking::FileRange;
use crate::{Fd, File, FileJob, Host, Metadata, Outcome, Socket, Token, Waker};

/// A machine's system calls, one try each: none waits for a peer or for the disk.
///
/// [`Linux`](crate::Linux) makes them; the simulated machine, of the feature `sim`, plays them.
pub trait System: Host {
    /// Does the file work that would wait.
    type Offload: Offload;

    /// Makes a waker; how the kernel tells of it.
    ///
    /// # Errors
    /// Those of eventfd(2) or pipe(2).
    fn waker(&mut self, told: WakeSignal) -> io::Result<Waker>;

    /// Makes what does file work, and wakes when some is done.
    fn offload(&self, waker: Waker) -> Self::Offload;

    /// Receives into `into`; 0 at the end of the stream.
    ///
    /// # Errors
    /// Those of recv(2).
    fn recv(&mut self, fd: Fd, into: &mut [u8]) -> Result<usize, Errno>;

    /// Sends from one place.
    ///
    /// # Errors
    /// Those of send(2).
    fn send(&mut self, fd: Fd, bytes: &[u8]) -> Result<usize, Errno>;

    /// Sends from several places.
    ///
    /// # Errors
    /// Those of sendmsg(2).
    fn sendmsg(&mut self, fd: Fd, slices: &[IoSlice<'_>]) -> Result<usize, Errno>;

    /// Sends part of a file; 0 when the file ends before it.
    ///
    /// # Errors
    /// Those of sendfile(2).
    fn sendfile(&mut self, fd: Fd, part: FileRange) -> Result<usize, Errno>;

    /// Whether reading the byte at `offset` would wait for the disk, as far as can be known.
    fn is_cold(&mut self, file: Fd, offset: u64) -> bool;

    /// Begins to connect.
    ///
    /// # Errors
    /// Those of connect(2); `EINPROGRESS` when the answer comes later.
    fn connect(&mut self, fd: Fd, to: SocketAddr) -> Result<(), Errno>;

    /// The answer, once a socket that was connecting can be written.
    ///
    /// # Errors
    /// Why there is no connection.
    fn connected(&mut self, fd: Fd) -> Result<(), Errno>;

    /// Does file work without waiting for the disk.
    ///
    /// # Errors
    /// Those of the system call, and those that say it would have waited.
    fn file_work(&mut self, work: &FileJob) -> Result<Outcome, Errno>;

    /// Has the kernel signal the calling thread, by SIGIO, when a connection arrives, or when the state
    /// of a socket changes otherwise. It may be called in a signal handler.
    ///
    /// # Errors
    /// Those of fcntl(2).
    fn enable_sigio(&mut self, fd: Fd) -> Result<(), Errno>;

    /// Ends that.
    ///
    /// # Errors
    /// Those of fcntl(2).
    fn disable_sigio(&mut self, fd: Fd) -> Result<(), Errno>;

    /// Whether a signal interrupts the program now, on a machine where they don't come by
    /// themselves.
    fn signalled(&self) -> bool;

    /// What an open file is.
    ///
    /// # Errors
    /// Those of fstat(2).
    fn meta(&self, fd: Fd) -> Result<Metadata, Errno>;

    /// Makes a file of a descriptor, which is closed when the last clone goes.
    fn file(&self, opened: Socket) -> File;
}

/// How a program comes to know that it was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeSignal {
    /// A poller says that the waker can be read.
    Polled,
    /// A read of the waker, which waited, ends.
    Read,
    /// The waker's descriptor signals.
    Signalled,
}

/// Does file work that would wait, elsewhere.
pub trait Offload {
    /// Hands work over; the waker tells that some is done.
    fn post(&mut self, token: Token, work: FileJob);

    /// Takes what is done, one at a time.
    fn take(&mut self) -> Option<(Token, Outcome)>;

    /// Ends it. What was not begun is not done. Returns whether nothing is being done any more; else
    /// the descriptors of the work must stay open.
    fn stop(&mut self) -> bool;
}
