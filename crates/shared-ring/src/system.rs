//! The system calls that the kernels of this crate make.

use std::io::{self, IoSlice};
use std::net::SocketAddr;

use rustix::io::Errno;

use crate::{
    CallJob, Fd, File, FileJob, FileOutcome, FileRange, Host, Job, JobOutcome, Metadata, Socket,
    Token, Waker,
};

/// A machine's system calls, one attempt each. None waits for a peer, and only [`sendfile`](System::sendfile) for the
/// disk, if the part is not cached.
///
/// [`Linux`](crate::Linux) makes them. The simulated machine of the crate `evring-sim` imitates them.
pub trait System: Host {
    /// Executes jobs that would block.
    type Offload: Offload;

    /// Creates a waker whose wakes are reported by `signal`.
    ///
    /// # Errors
    /// Those of eventfd(2) or pipe(2).
    fn waker(&mut self, signal: WakeSignal) -> io::Result<Waker>;

    /// Creates the offload, which wakes when a job is done.
    fn offload(&self, waker: Waker) -> Self::Offload;

    /// Receives into `into`. Returns the number of bytes, 0 at the end of the stream.
    ///
    /// # Errors
    /// Those of recv(2).
    fn recv(&mut self, fd: Fd, into: &mut [u8]) -> Result<usize, Errno>;

    /// Sends one slice.
    ///
    /// # Errors
    /// Those of send(2).
    fn send(&mut self, fd: Fd, bytes: &[u8]) -> Result<usize, Errno>;

    /// Sends several slices.
    ///
    /// # Errors
    /// Those of sendmsg(2).
    fn sendmsg(&mut self, fd: Fd, slices: &[IoSlice<'_>]) -> Result<usize, Errno>;

    /// Receives a datagram, with a [header](crate::sockets::Datagram) in front of it. Returns the number of bytes of both, which
    /// are cut to the length of `into`.
    ///
    /// # Errors
    /// Those of recvmsg(2); `EINVAL` if `into` has no room for the header.
    fn receive_from(&mut self, fd: Fd, into: &mut [u8]) -> Result<usize, Errno>;

    /// Sends a datagram, whole.
    ///
    /// # Errors
    /// Those of sendmsg(2).
    fn send_to(&mut self, fd: Fd, slices: &[IoSlice<'_>], to: SocketAddr) -> Result<(), Errno>;

    /// Returns whether a send makes progress or fails (poll(2), `POLLOUT`). If not, pollers report when
    /// it does.
    ///
    /// # Errors
    /// Those of poll(2).
    fn is_writable(&mut self, fd: Fd) -> Result<bool, Errno>;

    /// Sends part of a file. Returns the number of bytes, 0 if the file ends before the part.
    ///
    /// # Errors
    /// Those of sendfile(2).
    fn sendfile(&mut self, fd: Fd, part: FileRange) -> Result<usize, Errno>;

    /// Returns whether reading a part of a file would block, as far as the file system reports it.
    fn is_cold(&mut self, part: FileRange) -> bool;

    /// Makes the kernel read ahead in an open file, as it does at first, or read only what is requested.
    fn set_read_ahead(&mut self, _file: Fd, _on: bool) {}

    /// Starts to connect.
    ///
    /// # Errors
    /// Those of connect(2); `EINPROGRESS` if [`System::connected`] returns the result later.
    fn connect(&mut self, fd: Fd, to: SocketAddr) -> Result<(), Errno>;

    /// Returns the result of connecting, once the socket is writable.
    ///
    /// # Errors
    /// The reason why connecting failed (`SO_ERROR`).
    fn connected(&mut self, fd: Fd) -> Result<(), Errno>;

    /// Runs a file job without blocking.
    ///
    /// # Errors
    /// Those of [`FileJob::run`] with [`Blocking::NoBlock`](crate::nonblocking::Blocking::NoBlock).
    fn file_work(&mut self, job: &FileJob) -> Result<FileOutcome, Errno>;

    /// Reads a part of a file into the first bytes of `into`, which has as many, without blocking. Returns their number,
    /// which is less only at the end of the file.
    ///
    /// # Errors
    /// Those of preadv2(2) with `RWF_NOWAIT`; `EAGAIN` if a byte of the part is not cached.
    fn read_cached(&mut self, part: FileRange, into: &mut [u8]) -> Result<usize, Errno>;

    /// Makes a system call in the calling thread.
    ///
    /// # Errors
    /// Those of the call; `ENOSYS` for an unknown number.
    fn call(&mut self, job: &CallJob) -> Result<usize, Errno>;

    /// Makes the kernel send SIGIO to the calling thread when a connection arrives or the state of a
    /// socket changes otherwise, whichever signal it sent to which thread before. Safe to call in a
    /// signal handler.
    ///
    /// # Errors
    /// Those of fcntl(2).
    fn enable_sigio(&mut self, fd: Fd) -> Result<(), Errno>;

    /// Ends the signals of [`System::enable_sigio`], if they are directed to the calling thread.
    ///
    /// # Errors
    /// Those of fcntl(2).
    fn disable_sigio(&mut self, fd: Fd) -> Result<(), Errno>;

    /// Returns whether a signal interrupts the program now. Only a simulated machine, which has no
    /// asynchronous signals, ever does.
    #[doc(hidden)]
    fn signalled(&self) -> bool {
        false
    }

    /// Returns the metadata of an open file.
    ///
    /// # Errors
    /// Those of fstat(2).
    fn meta(&self, fd: Fd) -> Result<Metadata, Errno>;

    /// Converts a descriptor to a file, which is closed when the last clone is dropped.
    fn file(&self, opened: Socket) -> File;
}

/// The way in which a program is notified of a wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeSignal {
    /// A poller reports the waker as readable.
    Polled,
    /// A blocking read of the waker completes.
    Read,
    /// The waker's descriptor sends a signal.
    Signalled,
}

/// Executes jobs that would block, outside the event loop.
///
/// # Safety
/// No thread uses a job after [`take`](Offload::take) has returned its token, [`withdraw`](Offload::withdraw) has returned
/// true for it, or [`stop`](Offload::stop) has returned true. Each token is returned once for each post, and not after a
/// withdrawal or such a stop. No method panics.
pub unsafe trait Offload {
    /// Posts a job. The waker wakes the kernel when a job is done.
    fn post(&mut self, token: Token, job: Job);

    /// Withdraws a job that no thread has started. Returns whether there was one; it will not run.
    fn withdraw(&mut self, token: Token) -> bool;

    /// Takes the result of a job that is done.
    fn take(&mut self) -> Option<(Token, Result<JobOutcome, Errno>)>;

    /// Stops; queued jobs and results that were not taken are discarded. Returns whether no job is running any more. If one is, the
    /// descriptors of all jobs must stay open.
    fn stop(&mut self) -> bool;
}
