//! Listening sockets that several kernels, or a process and its successor, use.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

/// Options of a listening socket.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ListenOptions {
    /// Length of the listen backlog.
    pub backlog: u32,
    /// Sets `SO_REUSEPORT`: other sockets may listen at the same address and share connections.
    pub reuse_port: bool,
    /// Buffer sizes, which accepted sockets inherit.
    pub buffers: BufferSizes,
}

impl ListenOptions {
    /// Returns the options of a listener with a backlog of `backlog` connections.
    pub fn new(backlog: u32) -> Self {
        ListenOptions { backlog, reuse_port: false, buffers: BufferSizes::default() }
    }
}

/// Sizes of a socket's buffers in bytes; `None` keeps the kernel's default.
#[derive(Clone, Copy, Debug, Default)]
pub struct BufferSizes {
    /// `SO_SNDBUF`.
    pub send: Option<usize>,
    /// `SO_RCVBUF`.
    pub receive: Option<usize>,
}

/// A TCP socket that listens. Clones share it; connections wait in its queue as long as one exists.
#[derive(Clone, Debug)]
pub struct ListeningSocket {
    fd: Arc<OwnedFd>,
    address: SocketAddr,
    is_shared: bool,
}

impl ListeningSocket {
    /// Creates a socket that listens at an address; port 0 selects a free port. A socket of IPv6 does not
    /// accept connections of IPv4.
    ///
    /// # Errors
    /// Those of socket(2), bind(2) and listen(2).
    pub fn bind(at: SocketAddr, options: &ListenOptions) -> io::Result<Self> {
        let fd = socket_for(at, options.buffers)?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        if options.reuse_port {
            sockopt::set_socket_reuseport(&fd, true)?;
        }
        if at.is_ipv6() {
            sockopt::set_ipv6_v6only(&fd, true)?;
        }
        net::bind(&fd, &at)?;
        net::listen(&fd, clamp(options.backlog))?;
        let address = SocketAddr::try_from(net::getsockname(&fd)?)?;
        Ok(ListeningSocket { fd: Arc::new(fd), address, is_shared: false })
    }

    /// Marks the socket as one that another process keeps open, such as a service manager: a server that stops leaves
    /// the connections in its queue for which it has no room, instead of resetting them.
    pub fn shared(self) -> Self {
        ListeningSocket { is_shared: true, ..self }
    }

    /// Returns whether the socket was marked by [`ListeningSocket::shared`].
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Returns the address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the descriptor, if no clone exists, or another one of the same socket.
    pub(crate) fn into_descriptor(self) -> io::Result<OwnedFd> {
        Arc::try_unwrap(self.fd).or_else(|shared| shared.try_clone())
    }
}

impl TryFrom<OwnedFd> for ListeningSocket {
    type Error = io::Error;

    /// Takes a socket that another program has created, such as a service manager.
    fn try_from(fd: OwnedFd) -> io::Result<Self> {
        if !sockopt::socket_acceptconn(&fd)? {
            let reason = "the socket does not listen";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let address = SocketAddr::try_from(net::getsockname(&fd)?)?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        set_inherited_options(&fd)?;
        Ok(ListeningSocket { fd: Arc::new(fd), address, is_shared: false })
    }
}

impl AsFd for ListeningSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Creates a TCP socket for addresses of this family.
pub(crate) fn socket_for(address: SocketAddr, buffers: BufferSizes) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = net::socket_with(family, SocketType::STREAM, flags, None)?;
    set_inherited_options(&fd)?;
    // Accepted sockets inherit these, too.
    if let Some(bytes) = buffers.send {
        sockopt::set_socket_send_buffer_size(&fd, bytes)?;
    }
    if let Some(bytes) = buffers.receive {
        sockopt::set_socket_recv_buffer_size(&fd, bytes)?;
    }
    Ok(fd)
}

/// Idle time after which the kernel probes the peer of a connection, the time between probes, and how many without an
/// answer end the connection: a peer that has vanished holds its place for two minutes.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEP_ALIVE_PROBES: u32 = 4;

/// Sets the options that accepted sockets inherit: no delay (`TCP_NODELAY`), and probes of idle connections
/// (`SO_KEEPALIVE`), unless the creator of the socket has set its own.
fn set_inherited_options(fd: &OwnedFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(fd, true)?;
    if !sockopt::socket_keepalive(fd)? {
        sockopt::set_socket_keepalive(fd, true)?;
        // Sockets of MPTCP have no such options before Linux 6.10.
        let _ = sockopt::set_tcp_keepidle(fd, KEEP_ALIVE_IDLE)
            .and_then(|()| sockopt::set_tcp_keepintvl(fd, KEEP_ALIVE_INTERVAL))
            .and_then(|()| sockopt::set_tcp_keepcnt(fd, KEEP_ALIVE_PROBES));
    }
    Ok(())
}

/// Returns the length of a backlog as listen(2) takes it.
pub(crate) fn clamp(backlog: u32) -> i32 {
    i32::try_from(backlog).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;

    fn listener(options: &ListenOptions) -> ListeningSocket {
        ListeningSocket::bind((Ipv4Addr::LOCALHOST, 0).into(), options).unwrap()
    }

    fn accepted(listener: &ListeningSocket) -> OwnedFd {
        TcpStream::connect(listener.address()).unwrap();
        net::accept(listener).unwrap()
    }

    #[test]
    fn peer_that_had_vanished_held_its_place_for_ever() {
        let own = listener(&ListenOptions::new(16));
        let foreign: OwnedFd = std::net::TcpListener::bind("127.0.0.1:0").unwrap().into();
        for listener in [own, foreign.try_into().unwrap()] {
            let connection = accepted(&listener);
            assert!(sockopt::socket_keepalive(&connection).unwrap());
            assert_eq!(sockopt::tcp_keepidle(&connection).unwrap(), KEEP_ALIVE_IDLE);
            assert_eq!(sockopt::tcp_keepintvl(&connection).unwrap(), KEEP_ALIVE_INTERVAL);
            assert_eq!(sockopt::tcp_keepcnt(&connection).unwrap(), KEEP_ALIVE_PROBES);
        }
    }

    #[test]
    fn probes_of_a_service_manager_are_kept() {
        let foreign: OwnedFd = std::net::TcpListener::bind("127.0.0.1:0").unwrap().into();
        sockopt::set_socket_keepalive(&foreign, true).unwrap();
        sockopt::set_tcp_keepidle(&foreign, Duration::from_secs(7)).unwrap();
        let connection = accepted(&foreign.try_into().unwrap());
        assert_eq!(sockopt::tcp_keepidle(&connection).unwrap(), Duration::from_secs(7));
    }
}
