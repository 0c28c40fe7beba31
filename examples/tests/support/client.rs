//! A client with timeouts.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::thread;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};

use super::TIMEOUT;

/// The end of a connection as observed by its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Eof,
    Reset,
}

pub struct Client(pub TcpStream);

impl Client {
    pub fn connect(to: SocketAddr) -> Client {
        Self::try_connect(to).expect("the server accepts")
    }

    /// Connects to a server that may reset the connection before the client notices that it has one.
    pub fn try_connect(to: SocketAddr) -> io::Result<Client> {
        TcpStream::connect_timeout(&to, TIMEOUT).map(Self::prepared)
    }

    /// Connects with the minimum receive buffer.
    pub fn narrow(to: SocketAddr) -> Client {
        let SocketAddr::V4(to) = to else { panic!("tests use IPv4") };
        let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        sockopt::set_socket_recv_buffer_size(&fd, 1024).unwrap();
        small_segments(&fd);
        connect(&fd, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, to.port())).unwrap();
        Self::prepared(fd.into())
    }

    fn prepared(stream: TcpStream) -> Client {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        Client(stream)
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("the server takes bytes");
    }

    /// Reads as many bytes as `expected` has and compares them.
    #[track_caller]
    pub fn expect(&mut self, expected: &[u8]) {
        let mut got = vec![0; expected.len()];
        let mut n = 0;
        while n < got.len() {
            match self.0.read(&mut got[n..]) {
                Ok(0) => panic!("the end after {n} of {} bytes: {}", got.len(), text(&got[..n])),
                Ok(more) => n += more,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => panic!("{e} after {n} of {} bytes: {}", got.len(), text(&got[..n])),
            }
        }
        let difference = got.iter().zip(expected).position(|(a, b)| a != b);
        if let Some(at) = difference {
            let (got, expected) = (text(&got[at..]), text(&expected[at..]));
            panic!("differs at byte {at}:\n     got {got}\nexpected {expected}");
        }
    }

    /// Sends `request` and expects `reply`.
    #[track_caller]
    pub fn ask(&mut self, request: impl AsRef<[u8]>, reply: impl AsRef<[u8]>) {
        self.send(request.as_ref());
        self.expect(reply.as_ref());
    }

    /// Reads up to the end of the stream; fails at a timeout.
    #[track_caller]
    pub fn read_to_end(&mut self) -> (Vec<u8>, End) {
        let (mut got, mut piece) = (Vec::new(), [0; 16 * 1024]);
        loop {
            match self.0.read(&mut piece) {
                Ok(0) => return (got, End::Eof),
                Ok(n) => got.extend_from_slice(&piece[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if is_reset(&e) => return (got, End::Reset),
                Err(e) => panic!("{e} after {} bytes", got.len()),
            }
        }
    }

    /// Expects these bytes, then the end.
    #[track_caller]
    pub fn expect_last(&mut self, bytes: &[u8], end: End) {
        self.expect(bytes);
        let (remaining, how) = self.read_to_end();
        assert_eq!((text(&remaining), how), (String::new(), end));
    }

    /// Shuts down the sending side.
    pub fn end(&mut self) {
        self.0.shutdown(Shutdown::Write).expect("the connection is open");
    }

    /// Closes with a reset.
    pub fn reset(self) {
        sockopt::set_socket_linger(&self.0, Some(Duration::ZERO)).unwrap();
    }

    /// Sends without reading until the server stops receiving. Returns the number of bytes, which must not
    /// exceed `max`.
    pub fn send_until_full(&mut self, bytes: &[u8], max: usize) -> usize {
        // Long enough that a busy machine rarely looks like a server that stopped receiving. A mistake
        // makes the test weaker, not wrong.
        self.0.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut n = 0;
        while n < bytes.len() {
            match self.0.write(&bytes[n..]) {
                Ok(more) => n += more,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => panic!("{e}"),
            }
            assert!(n <= max, "the server took {n} bytes from a client that does not read");
        }
        self.0.set_write_timeout(Some(TIMEOUT)).unwrap();
        n
    }

    /// Sends in another thread while `receive` runs, so neither blocks the other.
    pub fn sending<R>(&mut self, bytes: &[u8], receive: impl FnOnce(&mut Client) -> R) -> R {
        let mut writer = self.0.try_clone().unwrap();
        thread::scope(|scope| {
            let sent = scope.spawn(move || writer.write_all(bytes));
            let result = receive(self);
            sent.join().unwrap().expect("the server takes bytes");
            result
        })
    }
}

/// Limits the segment size. Loopback uses segments of 64 KiB, larger than the smallest windows, and TCP
/// then waits for its timers before it sends a partial one.
fn small_segments(fd: &OwnedFd) {
    let (size, len) = (536i32, size_of::<i32>() as libc::socklen_t);
    let value = (&raw const size).cast();
    // SAFETY: the descriptor is open and `value` points to `len` bytes.
    let done = unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_MAXSEG, value, len)
    };
    assert_eq!(done, 0, "TCP_MAXSEG: {}", io::Error::last_os_error());
}

fn is_reset(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// Returns the first bytes in readable form.
pub fn text(bytes: &[u8]) -> String {
    let dots = if bytes.len() > 120 { "..." } else { "" };
    format!("{}{dots}", bytes[..bytes.len().min(120)].escape_ascii())
}
