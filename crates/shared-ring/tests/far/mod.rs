//! The far end of connections, and the disk: of this machine or of a simulated one.

pub(crate) mod simulated;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use shared_ring::{Socket, Waker};
use tempfile::TempDir;

/// The environment of the kernel under test.
pub(crate) trait Far {
    type Stream: Stream;
    type Listener;
    type DatagramPeer: DatagramPeer;

    /// Returns whether the test can access the directory and create symbolic links in it.
    fn has_symlinks(&self) -> bool;

    /// Returns whether a connect waits while the listen backlog is full.
    fn connect_waits_for_backlog(&self) -> bool;

    /// Connects to a listener of the kernel.
    fn connect(&self, to: SocketAddr) -> Self::Stream;

    /// Opens a listener to which the kernel can connect.
    fn listen(&self) -> (Self::Listener, SocketAddr);

    /// Accepts a connection of the kernel.
    fn accept(&self, listener: &Self::Listener) -> Self::Stream;

    /// Opens a socket for datagrams, and a peer for it.
    #[allow(dead_code, reason = "only some test programs use it")]
    fn datagrams(&self) -> (Socket, Self::DatagramPeer);

    /// Returns an address without a listener.
    fn closed_address(&self) -> SocketAddr;

    /// Returns a directory that is initially empty.
    fn root(&self) -> PathBuf;

    /// Adds a file to it, and the directories of its path.
    fn add_file(&self, path: &str, bytes: &[u8]);

    /// Returns a counter, as eventfd(2) does, and a function that adds to it. A read in the event loop
    /// does not wait for it.
    #[allow(dead_code, reason = "only some test programs use it")]
    fn event(&self, blocks: bool) -> (Socket, Box<dyn Fn()>);

    /// Wakes a kernel that is about to wait.
    fn wake(&self, waker: Waker);

    /// Checks that no rule of the simulation was broken.
    #[allow(dead_code, reason = "only some test programs use it")]
    fn check(&self) {}
}

/// The far end of a connection.
pub(crate) trait Stream {
    fn address(&self) -> SocketAddr;

    /// Sends bytes, for which the connection must have room.
    fn write_all(&mut self, bytes: &[u8]);

    /// Receives exactly the length of `into`, which must have been sent.
    fn read_exact(&mut self, into: &mut [u8]);

    /// Appends the bytes that have arrived. Returns false if the stream has ended.
    fn read_some(&mut self, into: &mut Vec<u8>) -> bool;

    /// Shuts down the sending side.
    fn finish(&mut self);
}

/// A peer that exchanges datagrams with a socket.
#[allow(dead_code, reason = "only some test programs use it")]
pub(crate) trait DatagramPeer {
    fn address(&self) -> SocketAddr;

    /// Sends a datagram, for which the socket must have room.
    fn send(&self, bytes: &[u8]);

    /// Receives a datagram, which must have been sent.
    fn receive(&self) -> Vec<u8>;
}

/// This machine.
pub(crate) struct LocalMachine(TempDir);

impl LocalMachine {
    pub(crate) fn new() -> Self {
        LocalMachine(tempfile::tempdir().unwrap())
    }
}

impl Far for LocalMachine {
    type Stream = TcpStream;
    type Listener = TcpListener;
    type DatagramPeer = UdpSocket;

    fn has_symlinks(&self) -> bool {
        true
    }

    fn connect_waits_for_backlog(&self) -> bool {
        true
    }

    fn connect(&self, to: SocketAddr) -> TcpStream {
        TcpStream::connect(to).unwrap()
    }

    fn listen(&self) -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    fn accept(&self, listener: &TcpListener) -> TcpStream {
        listener.accept().unwrap().0
    }

    fn datagrams(&self) -> (Socket, UdpSocket) {
        let [ours, theirs] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        ours.set_nonblocking(true).unwrap();
        theirs.connect(ours.local_addr().unwrap()).unwrap();
        theirs.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        (Socket::from(OwnedFd::from(ours)), theirs)
    }

    fn closed_address(&self) -> SocketAddr {
        self.listen().1
    }

    fn root(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    fn add_file(&self, path: &str, bytes: &[u8]) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    fn event(&self, blocks: bool) -> (Socket, Box<dyn Fn()>) {
        let nonblock = if blocks { EventfdFlags::empty() } else { EventfdFlags::NONBLOCK };
        let event = eventfd(0, EventfdFlags::CLOEXEC | nonblock).unwrap();
        let other = event.try_clone().unwrap();
        let add = move || assert_eq!(rustix::io::write(&other, &1u64.to_ne_bytes()), Ok(8));
        (event.into(), Box::new(add))
    }

    fn wake(&self, waker: Waker) {
        thread::spawn(move || waker.wake());
    }
}

impl DatagramPeer for UdpSocket {
    fn address(&self) -> SocketAddr {
        self.local_addr().unwrap()
    }

    fn send(&self, bytes: &[u8]) {
        assert_eq!(UdpSocket::send(self, bytes).unwrap(), bytes.len());
    }

    fn receive(&self) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 16];
        let len = self.recv(&mut bytes).unwrap();
        bytes.truncate(len);
        bytes
    }
}

impl Stream for TcpStream {
    fn address(&self) -> SocketAddr {
        self.local_addr().unwrap()
    }

    fn write_all(&mut self, bytes: &[u8]) {
        Write::write_all(self, bytes).unwrap();
    }

    fn read_exact(&mut self, into: &mut [u8]) {
        Read::read_exact(self, into).unwrap();
    }

    fn read_some(&mut self, into: &mut Vec<u8>) -> bool {
        let mut buffer = [0; 64 * 1024];
        self.set_nonblocking(true).unwrap();
        let more = match self.read(&mut buffer) {
            Ok(0) => false,
            Ok(n) => {
                into.extend_from_slice(&buffer[..n]);
                true
            }
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        };
        self.set_nonblocking(false).unwrap();
        more
    }

    fn finish(&mut self) {
        self.shutdown(Shutdown::Write).unwrap();
    }
}
