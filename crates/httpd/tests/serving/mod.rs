//! A server in a thread, and a client that blocks.
#![allow(dead_code)]

pub(crate) mod program;
mod refused;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::panic::resume_unwind;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use evring_httpd::evring::{RemoteHandle, Stats, backends};
use evring_httpd::{AnyMechanism, Config, Limits, Root, Site};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

pub(crate) use refused::refuse_io_uring;

/// Runs `test` with the name of every mechanism that can run here, and with `auto` where io_uring is
/// forbidden.
pub(crate) fn on_every_backend(test: impl Fn(&'static str) + Sync) {
    for backend in backends() {
        match backend.available {
            Ok(()) => {
                println!("on {}", backend.name);
                test(backend.name);
            }
            Err(reason) => println!("not on {}: {reason}", backend.name),
        }
    }
    println!("where io_uring is forbidden");
    let refused = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            refuse_io_uring().expect("a filter of system calls can be installed");
            test("auto");
        });
        thread.join()
    });
    if let Err(panic) = refused {
        resume_unwind(panic);
    }
}

/// A server that ends with the value.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    remote: RemoteHandle,
    thread: Option<JoinHandle<Stats>>,
}

impl Server {
    /// Serves on `backend`, the files below the first root if there is one.
    pub(crate) fn start(backend: &'static str, config: Config, limits: Limits) -> Self {
        Self::start_with(backend, config, limits, || {})
    }

    /// The same, with something done first in the server's thread.
    pub(crate) fn start_with(
        backend: &'static str,
        config: Config,
        limits: Limits,
        first: fn(),
    ) -> Self {
        let (tell, told) = channel();
        let thread = thread::spawn(move || {
            first();
            let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
            let root = (!config.roots.is_empty()).then_some(Root(0));
            let config = Config { listen, ..config };
            let any = AnyMechanism::new(backend, &config).unwrap();
            tell.send((any.addresses()[0], any.remote())).unwrap();
            any.run(Site::new(root).limits(limits).backend(backend)).unwrap()
        });
        let (address, remote) = told.recv().unwrap();
        Server { address, remote, thread: Some(thread) }
    }

    pub(crate) fn connect(&self) -> Client {
        Client::new(TcpStream::connect(self.address).unwrap())
    }

    /// Stops the server and returns what it did.
    pub(crate) fn stop(mut self) -> Stats {
        self.remote.stop();
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.remote.stop();
        if let Some(thread) = self.thread.take() {
            let outcome = thread.join();
            assert!(outcome.is_ok() || thread::panicking(), "the server panicked");
        }
    }
}

/// A reply, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IntoResponse {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl IntoResponse {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            (key == name).then_some(value)
        })
    }
}

/// A client that blocks, but not for ever.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    received: Vec<u8>,
    /// How much it reads at a time, and how long it pauses then.
    pace: Option<(usize, Duration)>,
}

impl Client {
    pub(crate) fn new(stream: TcpStream) -> Self {
        // Long enough for the slowest machine; a test that waits so long has failed.
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { stream, received: Vec::new(), pace: None }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends what the server may refuse to read to its end.
    pub(crate) fn send_in_vain(&mut self, bytes: &[u8]) {
        if let Err(error) = self.stream.write_all(bytes) {
            let kind = error.kind();
            let gone = matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset);
            assert!(gone, "{error}");
        }
    }

    pub(crate) fn get(&mut self, target: &str) -> IntoResponse {
        self.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        self.reply(true)
    }

    /// The next reply.
    pub(crate) fn reply(&mut self, has_body: bool) -> IntoResponse {
        let end = self.receive_until(|bytes| bytes.windows(4).position(|w| w == b"\r\n\r\n"));
        let head: Vec<u8> = self.received.drain(..end + 4).collect();
        let head = String::from_utf8(head).unwrap();
        let status = head.strip_prefix("HTTP/1.1 ").unwrap()[..3].parse().unwrap();
        let reply = IntoResponse { status, head, body: Vec::new() };
        if has_body { self.body(reply) } else { reply }
    }

    /// A reply with its body, of which the head has been taken; one of 304 has none.
    pub(crate) fn body(&mut self, head: IntoResponse) -> IntoResponse {
        if head.status == 304 {
            return head;
        }
        let len: usize = head.field("Content-Length").unwrap().parse().unwrap();
        self.receive_until(|bytes| (bytes.len() >= len).then_some(()));
        IntoResponse { body: self.received.drain(..len).collect(), ..head }
    }

    /// The body of the next reply, which comes in chunks.
    pub(crate) fn chunked_reply(&mut self) -> Vec<u8> {
        let head = self.reply(false);
        assert_eq!(head.field("Transfer-Encoding"), Some("chunked"));
        let mut body = Vec::new();
        loop {
            let end = self.receive_until(|bytes| bytes.windows(2).position(|w| w == b"\r\n"));
            let size: Vec<u8> = self.received.drain(..end + 2).collect();
            let size = std::str::from_utf8(&size[..end]).unwrap();
            let len = usize::from_str_radix(size, 16).unwrap();
            self.receive_until(|bytes| (bytes.len() >= len + 2).then_some(()));
            body.extend(self.received.drain(..len));
            assert_eq!(self.received.drain(..2).collect::<Vec<_>>(), b"\r\n");
            if len == 0 {
                return body;
            }
        }
    }

    fn receive_until<T>(&mut self, found: impl Fn(&[u8]) -> Option<T>) -> T {
        loop {
            if let Some(value) = found(&self.received) {
                return value;
            }
            let mut piece = [0; 65536];
            let (most, pause) = self.pace.unwrap_or((piece.len(), Duration::ZERO));
            let n = self.receive(&mut piece[..most]);
            thread::sleep(pause);
            assert!(n > 0, "ended after {:?}", String::from_utf8_lossy(&self.received));
            self.received.extend_from_slice(&piece[..n]);
        }
    }

    /// A read with a time-out is not restarted by the system when it is interrupted, which the
    /// end of a ring that was made to see whether rings can be made does.
    fn receive(&mut self, piece: &mut [u8]) -> usize {
        loop {
            match self.stream.read(piece) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => return result.unwrap(),
            }
        }
    }

    /// Waits for the server to end the connection in order; nothing more may come.
    pub(crate) fn expect_end(&mut self) {
        let mut piece = [0; 1024];
        let n = self.receive(&mut piece);
        assert_eq!((n, self.received.len()), (0, 0), "more came than expected");
    }

    /// Waits for a reset, without taking what came before it.
    pub(crate) fn expect_reset(&mut self) {
        let mut set = [PollFd::new(&self.stream, PollFlags::empty())];
        let most = Timespec { tv_sec: 20, tv_nsec: 0 };
        while let Err(error) = poll(&mut set, Some(&most)) {
            assert_eq!(error, Errno::INTR);
        }
        assert!(set[0].revents().contains(PollFlags::ERR), "{:?}", set[0].revents());
    }

    /// The next reply, taken in small pieces with a pause after each.
    pub(crate) fn slow_reply(&mut self, most: usize, pause: Duration) -> IntoResponse {
        self.pace = Some((most, pause));
        let reply = self.reply(true);
        self.pace = None;
        reply
    }

    /// Whether something has come that was not taken yet.
    pub(crate) fn has_more(&self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let found = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).unwrap();
        found.is_ok()
    }

    pub(crate) fn end(&mut self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }
}
