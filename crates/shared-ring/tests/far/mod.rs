//! The other side of the network, and the disk: this machine's, or a simulated one's.

#[cfg(feature = "sim")]
pub(crate) mod simulated;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;

use shared_ring::Waker;
use tempfile::TempDir;

/// What a test needs beside the kernel under test.
pub(crate) trait Far {
    type Stream: Stream;
    type Listener;

    /// Whether the directory can be looked at otherwise, and have symbolic links.
    fn has_links(&self) -> bool;

    /// Whether a client waits while a listener's queue is full.
    fn makes_wait(&self) -> bool;

    /// Connects to a listener of the kernel's.
    fn connect(&self, to: SocketAddr) -> Self::Stream;

    /// Listens for the kernel.
    fn listen(&self) -> (Self::Listener, SocketAddr);

    /// Accepts what the kernel has connected.
    fn accept(&self, listener: &Self::Listener) -> Self::Stream;

    /// An address at which nobody listens.
    fn nobody(&self) -> SocketAddr;

    /// A directory that is empty at first.
    fn root(&self) -> PathBuf;

    /// Puts a file into it, and the directories that its path names.
    fn add_file(&self, path: &str, bytes: &[u8]);

    /// Wakes a kernel that is about to wait.
    fn wake(&self, waker: Waker);

    /// Sees to it that no rule was broken.
    #[allow(dead_code, reason = "the tests of some programs have no use for it")]
    fn check(&self) {}
}

/// The far end of a connection.
pub(crate) trait Stream {
    fn address(&self) -> SocketAddr;

    /// Sends what the connection has room for; a test sends no more.
    fn write_all(&mut self, bytes: &[u8]);

    /// Receives exactly as much, which has been sent.
    fn read_exact(&mut self, into: &mut [u8]);

    /// Appends what has arrived; false when the stream has ended.
    fn read_some(&mut self, into: &mut Vec<u8>) -> bool;

    /// Sends no more.
    fn finish(&mut self);
}

/// This machine.
pub(crate) struct Here(TempDir);

impl Here {
    pub(crate) fn new() -> Self {
        Here(tempfile::tempdir().unwrap())
    }
}

impl Far for Here {
    type Stream = TcpStream;
    type Listener = TcpListener;

    fn has_links(&self) -> bool {
        true
    }

    fn makes_wait(&self) -> bool {
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

    fn nobody(&self) -> SocketAddr {
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

    fn wake(&self, waker: Waker) {
        thread::spawn(move || waker.wake());
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
