//! Sockets as a source of events (SEND 3.6): automatically accepted connections, readiness of
//! sockets, and received data.
//!
//! A ring reports changes (`UringKernel::begin`), and `SIGIO` interrupts (`O_ASYNC`). A socket has
//! at most one queued event. It is revalidated at delivery, so its state is current: a connection
//! is accepted at that moment and not earlier. An event whose cause is gone, because the
//! application drained the socket, is withdrawn.

mod reports;
mod source;
mod table;

pub use crate::ring::SendSetupError;
pub use source::Sockets;
pub use table::SocketId;

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::ioctl_fionbio;
use rustix::net::{self, RecvFlags, SendFlags, SocketType, sockopt};
use shared_ring::Errno;
use shared_ring::buffers::RxBuf;

use crate::limits::MAX_SOCKETS;
use crate::{ControlBlock, Error, Group, Groups};
use table::Role;

/// Capacities for sockets and receive buffers.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SocketConfig {
    /// Maximum number of sockets, including listeners and accepted connections. Further connections
    /// wait in the listen backlog.
    pub sockets: u32,
    /// Number of receive buffers, a power of two. All sockets share them.
    pub buffers: u16,
    /// Size of a receive buffer in bytes.
    pub buffer_size: u32,
}

impl Default for SocketConfig {
    fn default() -> Self {
        SocketConfig { sockets: 1024, buffers: 64, buffer_size: 4096 }
    }
}

impl SocketConfig {
    /// Sizes for `sockets` and `buffers` receive buffers, a power of two, of `buffer_size` bytes.
    pub const fn new(sockets: u32, buffers: u16, buffer_size: u32) -> Self {
        SocketConfig { sockets, buffers, buffer_size }
    }

    /// Maximum memory for receive buffers, in bytes.
    const MAX_MEMORY_BYTES: u64 = 1 << 30;

    fn check(&self) -> Result<(), Error> {
        let &SocketConfig { sockets, buffers, buffer_size } = self;
        if sockets == 0 || sockets > MAX_SOCKETS {
            return Err(Error::SocketCount(sockets));
        }
        let memory = u64::from(buffers) * u64::from(buffer_size);
        if !buffers.is_power_of_two() || memory == 0 || memory > Self::MAX_MEMORY_BYTES {
            return Err(Error::ReceiveBuffers(buffers, buffer_size));
        }
        Ok(())
    }
}

/// The next data received by a socket.
#[derive(Debug)]
pub enum Received {
    /// Received bytes. Until dropped, they occupy a receive buffer shared by all sockets.
    Bytes(RxBuf),
    /// No data at present.
    WouldBlock,
    /// The end of the stream.
    End,
}

impl ControlBlock<Sockets> {
    /// SIOCAUTOACCEPT: accepts a listener's connections, each as its event is delivered. So none is
    /// accepted while the masks permit no event of type [`ACCEPT`](crate::EventType::ACCEPT). The
    /// event has the new socket and its state. The socket is non-blocking, and is kept here until
    /// it is [released](ControlBlock::release).
    ///
    /// With a group (SIOCEVTCLONE), every connection is [watched](ControlBlock::watch) in it from
    /// the start. `O_ASYNC` and `O_NONBLOCK` belong to the open file description. So each thread
    /// needs its own listener (`SO_REUSEPORT`), as a clone would redirect the signals. If
    /// descriptors run out, accepting is retried at the next poll. If a listener fails permanently,
    /// it gets an event with its own identifier, no descriptor and the state POLLERR.
    ///
    /// # Errors
    /// Returns an error if the socket does not listen, if there is no room, or if a system call
    /// fails. The listener is then closed.
    pub fn auto_accept(
        &mut self,
        listener: impl Into<OwnedFd>,
        inherited: Option<Group>,
    ) -> Result<SocketId, Error> {
        self.check_process()?;
        let fd = listener.into();
        socket_type(&fd)?;
        if !sockopt::socket_acceptconn(&fd).unwrap_or(false) {
            return Err(Error::NotListening(fd.as_raw_fd()));
        }
        let set = ioctl_fionbio(&fd, true);
        set.map_err(|e| Error::System("a listener's flags", e.raw_os_error()))?;
        self.configure(|source, _| {
            let listener = source.adopt(fd, Role::Listens(inherited), Group::FIRST)?;
            source.listeners.push(listener);
            let inherited = inherited.map_or(Groups::NONE, Groups::from);
            source.groups = source.groups | inherited;
            Ok(listener)
        })
    }

    /// Watches a socket in a group (F_SETSIG, SEND 3.6.2): from now on, events of type
    /// [`READY`](crate::EventType::READY) report its state, the first its current one. At most one
    /// is queued, with the state at its delivery. If nothing remains to report, it is withdrawn.
    /// The socket keeps this group, whatever group its type has
    /// ([`set_group`](ControlBlock::set_group)).
    ///
    /// # Errors
    /// Returns an error if the descriptor is not a socket, if there is no room, or if a system call
    /// fails. It is then closed.
    pub fn watch(&mut self, socket: impl Into<OwnedFd>, group: Group) -> Result<SocketId, Error> {
        self.check_process()?;
        let fd = socket.into();
        socket_type(&fd)?;
        self.configure(|source, _| source.adopt(fd, Role::Watched, group))
    }

    /// Receives from a connection, with events in a group: those of type
    /// [`DATA`](crate::EventType::DATA) report data, which [`received`](ControlBlock::received)
    /// returns. At most one is queued. If its data was taken before, it is withdrawn. While all
    /// receive buffers are in use, data stays in the socket. The socket keeps its group, as with
    /// [`watch`](ControlBlock::watch).
    ///
    /// # Errors
    /// Returns an error if the descriptor is not a stream socket, if there is no room, or if a
    /// system call fails. It is then closed.
    pub fn receive(&mut self, socket: impl Into<OwnedFd>, group: Group) -> Result<SocketId, Error> {
        self.check_process()?;
        let fd = socket.into();
        if socket_type(&fd)? != SocketType::STREAM {
            return Err(Error::NotAStream(fd.as_raw_fd()));
        }
        self.configure(|source, _| source.adopt(fd, Role::Receives, group))
    }

    /// Returns the next data received by a socket.
    ///
    /// # Errors
    /// Returns an error if the socket was released or does not [receive](ControlBlock::receive). If
    /// receiving failed, returns that error at each call.
    pub fn received(&mut self, socket: SocketId) -> Result<Received, Error> {
        self.check_process()?;
        self.configure(|source, _| source.next_received(socket))
    }

    /// Receives available bytes with recv(2), at most as many as fit. Returns 0 at the end of the
    /// stream, and `None` if no data is available.
    ///
    /// # Errors
    /// Returns the errors of recv(2), and an error if the socket was released.
    pub fn recv(&self, socket: SocketId, into: &mut [u8]) -> Result<Option<usize>, Error> {
        let received = net::recv(self.descriptor(socket)?, into, RecvFlags::DONTWAIT);
        nonblocking("receiving", received.map(|(n, _)| n))
    }

    /// Sends bytes with send(2), as many as fit. Returns `None` if the socket is not writable.
    ///
    /// # Errors
    /// Returns the errors of send(2), and an error if the socket was released.
    pub fn send(&self, socket: SocketId, bytes: &[u8]) -> Result<Option<usize>, Error> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        nonblocking("sending", net::send(self.descriptor(socket)?, bytes, flags))
    }

    /// Returns the descriptor of a socket, for other operations on it.
    ///
    /// # Errors
    /// Returns an error if the socket was released.
    pub fn descriptor(&self, socket: SocketId) -> Result<BorrowedFd<'_>, Error> {
        let fd = self.query(|source| source.table.descriptor(socket)).ok_or(Error::NoSuchSocket)?;
        // SAFETY: a socket leaves the table, and is closed, when `release` returns it or `self` is
        // dropped; each needs exclusive access to `self`.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Returns the peer's address, if the socket is connected.
    ///
    /// # Errors
    /// Returns an error if the socket was released.
    pub fn peer(&self, socket: SocketId) -> Result<Option<SocketAddr>, Error> {
        let address = net::getpeername(self.descriptor(socket)?).ok().flatten();
        Ok(address.and_then(|address| SocketAddr::try_from(address).ok()))
    }

    /// Stops operations on a socket, withdraws its event, and returns the socket. The caller can
    /// use it otherwise or close it by dropping it. Received data that was not taken is lost.
    /// Events already in the buffer then refer to a released socket.
    ///
    /// # Errors
    /// Returns an error if the socket was released, or if the ring accepts no operation at the
    /// moment. In the latter case the socket stays, reports an error when its operation ends, and
    /// can be released later.
    pub fn release(&mut self, socket: SocketId) -> Result<OwnedFd, Error> {
        self.check_process()?;
        self.configure(|source, sink| source.release(socket, sink))
    }
}

fn socket_type(fd: &OwnedFd) -> Result<SocketType, Error> {
    sockopt::socket_type(fd).map_err(|_| Error::NotASocket(fd.as_raw_fd()))
}

fn nonblocking(doing: &'static str, result: Result<usize, Errno>) -> Result<Option<usize>, Error> {
    match result.map_err(io::Error::from) {
        Ok(n) => Ok(Some(n)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(Error::system(doing)(error)),
    }
}
