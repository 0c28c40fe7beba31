//! A server in a thread, and a blocking client.
#![allow(dead_code)]

#[path = "../../../shared-ring/tests/descriptor_limit/mod.rs"]
mod descriptor_limit;
pub(crate) mod program;
pub(crate) mod random;
pub(crate) mod refused;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::panic::resume_unwind;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use evring_httpd::evring::mechanisms::backends;
use evring_httpd::options::Limits;
use evring_httpd::{Config, Root, Site};
use evring_httpd::{evring::AnyMechanism, evring::RemoteHandle, evring::Stats};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketType, sockopt};
use serde_json::Value;

pub(crate) use refused::refuse_io_uring;

/// As [`on_every_backend`], all at once, for a test that mostly waits.
#[allow(dead_code, reason = "some tests do not wait")]
pub(crate) fn on_every_backend_at_once(test: impl Fn(&'static str) + Sync) {
    thread::scope(|scope| {
        let test = &test;
        // A thread inherits what is forbidden.
        on_every_backend(|backend| {
            scope.spawn(move || test(backend));
        });
    });
}

/// Returns the names of the mechanisms that are available, and prints the others.
pub(crate) fn available() -> impl Iterator<Item = &'static str> {
    descriptor_limit::raise();
    backends().into_iter().filter_map(|backend| match backend.available {
        Ok(()) => Some(backend.name),
        Err(reason) => {
            println!("not tested: {}: {reason}", backend.name);
            None
        }
    })
}

/// Connects to the first address of a server.
pub(crate) fn connect(server: &evring_httpd::Server) -> Client {
    Client::new(TcpStream::connect(server.addresses()[0]).unwrap())
}

/// Connects with a small buffer, so that the client's kernel takes little of a response.
pub(crate) fn connect_with_small_buffer(to: SocketAddr) -> Client {
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_recv_buffer_size(&socket, 4096).unwrap();
    net::connect(&socket, &to).unwrap();
    Client::new(TcpStream::from(socket))
}

/// Runs `test` with the name of every available mechanism, and with `auto` where io_uring is
/// forbidden.
pub(crate) fn on_every_backend(test: impl Fn(&'static str) + Sync) {
    descriptor_limit::raise();
    for backend in backends() {
        match backend.available {
            Ok(()) => {
                println!("on {}", backend.name);
                test(backend.name);
            }
            Err(reason) => println!("not tested: {}: {reason}", backend.name),
        }
    }
    println!("where io_uring is forbidden");
    let outcome = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            refuse_io_uring().expect("cannot install a seccomp filter");
            test("auto");
        });
        thread.join()
    });
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

/// A server in a thread; dropping it stops it.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    remote: RemoteHandle,
    thread: Option<JoinHandle<Stats>>,
}

impl Server {
    /// Starts a site on `backend`, with the files below the first root if there is one.
    pub(crate) fn start(backend: &'static str, config: Config, limits: Limits) -> Self {
        Self::start_with(backend, config, limits, || {})
    }

    /// Like [`Self::start`], but first runs `first` on the server's thread.
    pub(crate) fn start_with(
        backend: &'static str,
        config: Config,
        limits: Limits,
        first: fn(),
    ) -> Self {
        let (ready, is_ready) = channel();
        let thread = thread::spawn(move || {
            first();
            let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
            let root = (!config.roots.is_empty()).then_some(Root(0));
            let config = config.with(|c| {
                c.listen = listen;
                // A pause of this machine is neither an overload nor a client that does not close.
                c.admission = None;
                c.linger_timeout = Duration::from_secs(20);
            });
            let any = AnyMechanism::new(backend, &config).unwrap();
            ready.send((any.addresses()[0], any.remote())).unwrap();
            any.run(Site::new(root).limits(limits).backend(backend)).unwrap()
        });
        let (address, remote) = is_ready.recv().unwrap();
        Server { address, remote, thread: Some(thread) }
    }

    pub(crate) fn connect(&self) -> Client {
        Client::new(TcpStream::connect(self.address).unwrap())
    }

    /// Stops the server and returns its statistics.
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

/// Waits until an address refuses connections. A program that another test starts has the listening descriptor, too, until it
/// is executed.
pub(crate) fn expect_refused(address: SocketAddr) {
    let until = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(address).is_ok() {
        assert!(Instant::now() < until, "{address}: the listener is open");
        thread::sleep(Duration::from_millis(1));
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedResponse {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl ParsedResponse {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            (key == name).then_some(value)
        })
    }
}

/// A blocking client with timeouts.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    received: Vec<u8>,
    /// Maximum bytes per read, and the pause after it.
    pace: Option<(usize, Duration)>,
}

impl Client {
    pub(crate) fn new(stream: TcpStream) -> Self {
        // Longer than any wait in the tests on the slowest machine.
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { stream, received: Vec::new(), pace: None }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends bytes that the server may reject before reading all of them.
    pub(crate) fn send_rejected(&mut self, bytes: &[u8]) {
        if let Err(error) = self.stream.write_all(bytes) {
            let kind = error.kind();
            let is_closed = matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset);
            assert!(is_closed, "{error}");
        }
    }

    pub(crate) fn get(&mut self, target: &str) -> ParsedResponse {
        self.request(&format!("GET {target}"), "")
    }

    /// Sends a request without a body, with these lines of fields.
    pub(crate) fn request(&mut self, line: &str, fields: &str) -> ParsedResponse {
        self.send(format!("{line} HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes());
        self.response(!line.starts_with("HEAD"))
    }

    /// Returns the server's metrics.
    pub(crate) fn status(&mut self) -> Value {
        self.status_or_end().expect("the server has closed the connection")
    }

    /// Returns the server's metrics once they are as expected: what a worker has counted may come late, if it is busy.
    pub(crate) fn status_when(&mut self, is_expected: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let status = self.status();
            if is_expected(&status) {
                return status;
            }
            assert!(Instant::now() < until, "{status}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// As [`Self::status`]; `None` if the server closes the connection, as it has no memory for the response.
    pub(crate) fn status_or_end(&mut self) -> Option<Value> {
        self.send(b"GET /.httpd/status.json HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut first = [0];
        if self.receive(&mut first) == 0 {
            return None;
        }
        self.received.push(first[0]);
        Some(serde_json::from_slice(&self.response(true).body).unwrap())
    }

    /// Repeats a GET until its entity tag identifies the file and not only one response: a file just
    /// written may change without a new change time. Returns the tag.
    pub(crate) fn stable_tag(&mut self, request: &str) -> String {
        let mut tag = || {
            self.send(request.as_bytes());
            self.response(true).field("ETag").unwrap().to_owned()
        };
        loop {
            let first = tag();
            if tag() == first {
                return first;
            }
        }
    }

    pub(crate) fn response(&mut self, has_body: bool) -> ParsedResponse {
        let end = self.receive_until(|bytes| bytes.windows(4).position(|w| w == b"\r\n\r\n"));
        let head: Vec<u8> = self.received.drain(..end + 4).collect();
        let head = String::from_utf8(head).unwrap();
        let status = head.strip_prefix("HTTP/1.1 ").unwrap()[..3].parse().unwrap();
        let response = ParsedResponse { status, head, body: Vec::new() };
        if has_body { self.body(response) } else { response }
    }

    /// Receives the body of a response whose head was received; 304 has none.
    pub(crate) fn body(&mut self, head: ParsedResponse) -> ParsedResponse {
        if head.status == 304 {
            return head;
        }
        let len: usize = head.field("Content-Length").unwrap().parse().unwrap();
        self.receive_until(|bytes| (bytes.len() >= len).then_some(()));
        ParsedResponse { body: self.received.drain(..len).collect(), ..head }
    }

    /// Receives this many bytes.
    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        self.receive_until(|bytes| (bytes.len() >= len).then_some(()));
        self.received.drain(..len).collect()
    }

    /// Takes the bytes that were received and not used.
    pub(crate) fn take_received(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.received)
    }

    /// Receives the next response, which is chunked, and returns its body.
    pub(crate) fn chunked_response(&mut self) -> Vec<u8> {
        let head = self.response(false);
        assert_eq!(head.field("Transfer-Encoding"), Some("chunked"));
        let mut body = Vec::new();
        loop {
            let chunk = self.chunk();
            if chunk.is_empty() {
                return body;
            }
            body.extend(chunk);
        }
    }

    /// Receives the next chunk of a body; the last one is empty.
    pub(crate) fn chunk(&mut self) -> Vec<u8> {
        let end = self.receive_until(|bytes| bytes.windows(2).position(|w| w == b"\r\n"));
        let size: Vec<u8> = self.received.drain(..end + 2).collect();
        let size = std::str::from_utf8(&size[..end]).unwrap();
        let len = usize::from_str_radix(size, 16).unwrap();
        self.receive_until(|bytes| (bytes.len() >= len + 2).then_some(()));
        let chunk = self.received.drain(..len).collect();
        assert_eq!(self.received.drain(..2).collect::<Vec<_>>(), b"\r\n");
        chunk
    }

    fn receive_until<T>(&mut self, found: impl Fn(&[u8]) -> Option<T>) -> T {
        loop {
            if let Some(value) = found(&self.received) {
                return value;
            }
            let mut piece = [0; 65536];
            let (max, pause) = self.pace.unwrap_or((piece.len(), Duration::ZERO));
            let n = self.receive(&mut piece[..max]);
            thread::sleep(pause);
            assert!(n > 0, "ended after {:?}", String::from_utf8_lossy(&self.received));
            self.received.extend_from_slice(&piece[..n]);
        }
    }

    /// Reads, again after EINTR: the kernel does not restart reads with a timeout. Destroying a ring
    /// that was created to probe io_uring interrupts them.
    fn receive(&mut self, piece: &mut [u8]) -> usize {
        loop {
            match self.stream.read(piece) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => return result.unwrap(),
            }
        }
    }

    /// Waits for bytes to read, or for the end.
    pub(crate) fn wait_readable(&self) {
        let mut set = [PollFd::new(&self.stream, PollFlags::IN)];
        let timeout = Timespec::try_from(Duration::from_secs(20)).unwrap();
        while let Err(error) = poll(&mut set, Some(&timeout)) {
            assert_eq!(error, Errno::INTR);
        }
        assert!(!set[0].revents().is_empty(), "the server sends nothing");
    }

    /// Waits for the server to close the connection without a reset or further bytes.
    pub(crate) fn expect_end(&mut self) {
        let mut piece = [0; 1024];
        let n = self.receive(&mut piece);
        assert_eq!((n, self.received.len()), (0, 0), "more came than expected");
    }

    /// Waits for a reset, without reading the bytes before it.
    pub(crate) fn expect_reset(&mut self) {
        assert!(self.is_reset_within(Duration::from_secs(20)), "no reset");
    }

    /// Waits for a reset for this time, without reading the bytes before it.
    pub(crate) fn is_reset_within(&self, time: Duration) -> bool {
        let mut set = [PollFd::new(&self.stream, PollFlags::empty())];
        let timeout = Timespec::try_from(time).unwrap();
        while let Err(error) = poll(&mut set, Some(&timeout)) {
            assert_eq!(error, Errno::INTR);
        }
        set[0].revents().contains(PollFlags::ERR)
    }

    /// Receives the next response in small pieces, with a pause after each.
    pub(crate) fn slow_response(&mut self, max: usize, pause: Duration) -> ParsedResponse {
        self.pace = Some((max, pause));
        let response = self.response(true);
        self.pace = None;
        response
    }

    /// Returns whether there are bytes to read.
    pub(crate) fn has_more(&self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let found = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).unwrap();
        found.is_ok()
    }

    pub(crate) fn end(&mut self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Closes the connection with a reset.
    pub(crate) fn reset(self) {
        sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
    }
}
