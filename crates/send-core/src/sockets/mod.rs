//! Sockets that tell of themselves (SEND 3.6): connections that are accepted as their events are
//! delivered, the states of sockets, and what they receive.
//!
//! A ring reports what happens (`UringKernel::begin`), and `SIGIO` interrupts (`O_ASYNC`). Of what is
//! reported a socket has one event waiting. What it says is asked for when it is delivered, so it says
//! what is true then: a connection is accepted at that moment and not before, and an event whose cause
//! is gone, because the application has read the socket empty, is withdrawn.

mod reports;
mod source;
mod table;

pub use source::Sockets;
pub use table::SocketId;

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::ioctl_fionbio;
use rustix::net::{self, RecvFlags, SendFlags, SocketType, sockopt};
use shared_ring::{Errno, RxBuf};

use crate::{ControlBlock, Error, Group, Groups, MAX_SOCKETS};
use table::Role;

/// How much there is room for.
#[derive(Clone, Copy, Debug)]
pub struct SocketConfig {
    /// Most sockets, listeners and accepted connections among them. Those for which there is no room
    /// wait in the listener's queue.
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
    /// Most memory for receive buffers.
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

/// What a socket has received.
#[derive(Debug)]
pub enum Received {
    /// These bytes. Whoever keeps them for long keeps a buffer from all others.
    Bytes(RxBuf),
    /// Nothing more so far.
    Nothing,
    /// The other end will send no more.
    End,
}

impl ControlBlock<Sockets> {
    /// SIOCAUTOACCEPT: has a listener's connections accepted, each as its event is delivered, and so
    /// none while the masks let no event of the type [`ACCEPT`](crate::EventType::ACCEPT) through. The event
    /// tells of the new socket and its state; the socket is non-blocking, and stays here until it is
    /// [released](ControlBlock::release).
    ///
    /// With a group (SIOCEVTCLONE) every connection is [watched](ControlBlock::watch) in it from the
    /// beginning. Signals, and not to block, belong to the open file: each thread needs a listener of its own
    /// (`SO_REUSEPORT`), as a clone would take the signals away from the other. When descriptors were short,
    /// connections are accepted at the next look. A listener that can accept no more tells so by an event with its own name, no
    /// descriptor, and the state POLLERR.
    ///
    /// # Errors
    /// When the socket does not listen, there is no room, or the system refuses; it is closed then.
    pub fn auto_accept(
        &mut self,
        listener: impl Into<OwnedFd>,
        inherited: Option<Group>,
    ) -> Result<SocketId, Error> {
        self.check_process()?;
        let fd = listener.into();
        kind_of_socket(&fd)?;
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

    /// Binds a socket to a group (F_SETSIG, SEND 3.6.2): from now on events of the type
    /// [`READY`](crate::EventType::READY) tell of its state, the first of what it is now. One waits at most,
    /// and it says what is true when it is delivered; if nothing is left of what it was to tell, it is
    /// withdrawn. The group of each socket is the one given here, whatever its type has
    /// ([`set_group`](ControlBlock::set_group)).
    ///
    /// # Errors
    /// When it is no socket, there is no room, or the system refuses; it is closed then.
    pub fn watch(&mut self, socket: impl Into<OwnedFd>, group: Group) -> Result<SocketId, Error> {
        self.check_process()?;
        let fd = socket.into();
        kind_of_socket(&fd)?;
        self.configure(|source, _| source.adopt(fd, Role::Watched, group))
    }

    /// Binds a connection to a group, and has it received from: events of the type
    /// [`DATA`](crate::EventType::DATA) tell that something has come, which [`received`](ControlBlock::received)
    /// takes. One waits at most; if what it was to tell of has been taken, it is withdrawn. What comes
    /// stays in the socket while all receive buffers are in use. Of groups the same is true as for
    /// [`watch`](ControlBlock::watch).
    ///
    /// # Errors
    /// When it is no stream, there is no room, or the system refuses; it is closed then.
    pub fn receive(&mut self, socket: impl Into<OwnedFd>, group: Group) -> Result<SocketId, Error> {
        self.check_process()?;
        let fd = socket.into();
        if kind_of_socket(&fd)? != SocketType::STREAM {
            return Err(Error::NotAStream(fd.as_raw_fd()));
        }
        self.configure(|source, _| source.adopt(fd, Role::Receives, group))
    }

    /// The next of what a socket has received.
    ///
    /// # Errors
    /// When there is none that [receives](ControlBlock::receive) under this name, or when receiving failed,
    /// which is told again and again.
    pub fn received(&mut self, socket: SocketId) -> Result<Received, Error> {
        self.check_process()?;
        self.configure(|source, _| source.next_piece(socket))
    }

    /// Receives what has come, at most as much as there is room for; 0 at the end of the stream, and
    /// none when nothing has come.
    ///
    /// # Errors
    /// Those of recv(2), and when the socket is not here.
    pub fn recv(&self, socket: SocketId, into: &mut [u8]) -> Result<Option<usize>, Error> {
        let received = net::recv(self.descriptor(socket)?, into, RecvFlags::DONTWAIT);
        tried("receiving", received.map(|(n, _)| n))
    }

    /// Sends as much as there is room for; none when there is no room.
    ///
    /// # Errors
    /// Those of send(2), and when the socket is not here.
    pub fn send(&self, socket: SocketId, bytes: &[u8]) -> Result<Option<usize>, Error> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        tried("sending", net::send(self.descriptor(socket)?, bytes, flags))
    }

    /// The descriptor of a socket, for all that is done with one beside.
    ///
    /// # Errors
    /// When the socket is not here.
    pub fn descriptor(&self, socket: SocketId) -> Result<BorrowedFd<'_>, Error> {
        let fd = self.ask(|source| source.table.descriptor(socket)).ok_or(Error::NoSuchSocket)?;
        // SAFETY: a socket leaves the table, and is closed, when `release` has it or `self` is dropped;
        // each needs `self` for itself.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// The address of the other end of a connection, as long as there is one.
    ///
    /// # Errors
    /// When the socket is not here.
    pub fn peer(&self, socket: SocketId) -> Result<Option<SocketAddr>, Error> {
        let address = net::getpeername(self.descriptor(socket)?).ok().flatten();
        Ok(address.and_then(|address| SocketAddr::try_from(address).ok()))
    }

    /// Ends what was begun with a socket, withdraws its event, and gives it back: to be used in another
    /// way, or closed by dropping it. What it has received and nobody has taken is lost. What stands in
    /// the buffer already names a socket that is not here any more.
    ///
    /// # Errors
    /// When the socket is not here, or the kernel takes no order at the moment; then it stays, to be released
    /// later, and tells of an error as what was begun with it ends.
    pub fn release(&mut self, socket: SocketId) -> Result<OwnedFd, Error> {
        self.check_process()?;
        self.configure(|source, sink| source.release(socket, sink))
    }
}

fn kind_of_socket(fd: &OwnedFd) -> Result<SocketType, Error> {
    sockopt::socket_type(fd).map_err(|_| Error::NotASocket(fd.as_raw_fd()))
}

fn tried(doing: &'static str, result: Result<usize, Errno>) -> Result<Option<usize>, Error> {
    match result.map_err(io::Error::from) {
        Ok(n) => Ok(Some(n)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(Error::system(doing)(error)),
    }
}
