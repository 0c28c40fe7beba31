//! Regression tests, on every mechanism.

use crate::listener;
use crate::server;

use std::io::{self, BufRead, BufReader, ErrorKind, PipeWriter, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use evring::files::{Access, File, FileOp, FileOutcome, FilePath, WriteAt};
use evring::mechanisms::{self, EventLoop, Mechanism as _};
use evring::sockets::{BufferSizes, ListenOptions, ListeningSocket};
use evring::{
    AcceptPolicy, AnyMechanism, Application, Chunk, Close, CloseReason, Commands, Config, ConnId,
    Cx, Listener, Others, RemoteHandle, Root, Rx, StartError,
};
use rustix::net::SendFlags;
use shared_ring::author::System;
use shared_ring::buffers::{BufferError, BufferGroup, BufferPool};
use shared_ring::poller::Epoll;
use shared_ring::uring::{Mode, UringKernel};
use shared_ring::{
    Completion, Counters, Host, Kernel, KernelError, Linux, Op, Outcome, PortableKernel, Submit,
    SubmitError, Submitted, Token, Waker,
};

use listener::{full_listener, into_owned_fd};
use server::{Server, TIMEOUT, listening, one_by_one, side_by_side};

fn next<T>(receiver: &Receiver<T>) -> T {
    receiver.recv_timeout(TIMEOUT).expect("the application reported nothing in time")
}

/// Progress interval of a closing connection.
const STALL: Duration = Duration::from_millis(800);

/// Sends a reply to each client, closes, and reports the close reason.
struct Replies {
    len: usize,
    ended: Sender<CloseReason>,
}

impl Application for Replies {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
        x.io.send(x.id, Chunk::Shared(vec![7; self.len].into()));
        x.io.close(x.id, Close::Flush);
    }

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
    }

    fn closed(&mut self, _x: Cx<'_, impl Commands, ()>, reason: CloseReason) {
        self.ended.send(reason).unwrap();
    }
}

/// A server that sends `len` bytes through small socket buffers, and a client with a small one.
fn narrow(name: &'static str, len: usize) -> (Server, TcpStream, Receiver<CloseReason>) {
    let (ended, receiver) = mpsc::channel();
    let sockets = BufferSizes { send: Some(16 * 1024), receive: None };
    let config = listening(1).with(|c| {
        c.progress_interval = STALL;
        c.min_rate = 1;
        c.socket_buffers = sockets;
    });
    let server = Server::start(name, config, move || Replies { len, ended });
    let client = connect_narrow(&server);
    (server, client, receiver)
}

/// Connects a client with a small receive buffer.
fn connect_narrow(server: &Server) -> TcpStream {
    let mut host = Linux::default();
    let narrow = BufferSizes { send: None, receive: Some(16 * 1024) };
    let socket = host.socket(server.address, None, narrow).unwrap();
    // The connect may still be in flight; a read waits for it.
    // SAFETY: the socket stays open during the call.
    let _ = host.connect(unsafe { socket.fd() }, server.address);
    let client = TcpStream::from(into_owned_fd(socket));
    client.set_nonblocking(false).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    client
}

#[test]
fn slow_reader_got_only_part_of_the_last_reply() {
    // Less than one operation may send, so progress within an operation must count.
    const LEN: usize = 240_000;
    side_by_side(|name| {
        let (server, mut client, receiver) = narrow(name, LEN);
        let (begin, mut got, mut piece) = (Instant::now(), 0, [0; 8192]);
        let end = loop {
            match client.read(&mut piece) {
                Ok(0) => break Ok(()),
                Ok(n) => got += n,
                Err(error) => break Err(error),
            }
            thread::sleep(Duration::from_millis(70));
        };
        assert!(end.is_ok() && got == LEN, "{name}: {got} bytes of {LEN}, then {end:?}");
        assert!(
            begin.elapsed() > 2 * STALL,
            "{name}: the reader was not slow: {:?}",
            begin.elapsed()
        );
        let reason = next(&receiver);
        assert!(matches!(reason, CloseReason::Closed), "{name}: {reason:?}");
        server.stop();
    });
}

#[test]
fn stalled_reply_ended_like_a_complete_one() {
    // Much more than the socket buffers of both ends hold.
    const LEN: usize = 8 << 20;
    side_by_side(|name| {
        let begin = Instant::now();
        let (server, mut client, receiver) = narrow(name, LEN);
        let reason = next(&receiver);
        assert!(matches!(reason, CloseReason::Failed(_)), "{name}: {reason:?}");
        assert!(begin.elapsed() >= STALL / 2, "{name}: after {:?}", begin.elapsed());
        let mut got = Vec::new();
        let end = client.read_to_end(&mut got).map_err(|error| error.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "{name}: {} bytes", got.len());
        assert!(got.len() < LEN);
        server.stop();
    });
}

/// Reads at a steady pace until the end. Returns the number of bytes and the result of the last read.
fn read_steadily(
    client: &mut TcpStream,
    piece: usize,
    pause: Duration,
) -> (usize, Result<usize, ErrorKind>) {
    let (mut got, mut buffer) = (0, vec![0; piece]);
    loop {
        match client.read(&mut buffer) {
            Ok(n) if n > 0 => got += n,
            end => return (got, end.map_err(|error| error.kind())),
        }
        thread::sleep(pause);
    }
}

#[test]
fn steady_reader_was_reset_while_the_send_buffer_was_full() {
    // More than the socket buffers hold; the kernel accepts more only when a third is free.
    const LEN: usize = 8 << 20;
    side_by_side(|name| {
        let (ended, receiver) = mpsc::channel();
        let config = listening(1).with(|c| {
            c.progress_interval = STALL;
            c.min_rate = 1000;
        });
        let server = Server::start(name, config, move || Replies { len: LEN, ended });
        let mut client = server.connect();
        let (got, end) = read_steadily(&mut client, 40_000, Duration::from_millis(15));
        assert_eq!((got, end), (LEN, Ok(0)), "{name}");
        assert!(matches!(next(&receiver), CloseReason::Closed), "{name}");
        server.stop();
    });
}

#[test]
fn last_reply_had_no_minimum_rate() {
    const LEN: usize = 8 << 20;
    side_by_side(|name| {
        let (ended, receiver) = mpsc::channel();
        let config = listening(1).with(|c| {
            c.progress_interval = STALL;
            c.min_rate = 100_000_000;
        });
        let server = Server::start(name, config, move || Replies { len: LEN, ended });
        let mut client = server.connect();
        let (got, end) = read_steadily(&mut client, 40_000, Duration::from_millis(15));
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "{name}: {got} bytes");
        assert!(matches!(next(&receiver), CloseReason::Failed(_)), "{name}");
        server.stop();
    });
}

/// On each accepted connection, opens another one, pauses and resumes it at once.
struct Upstream {
    to: SocketAddr,
    sender: Sender<Notification>,
}

#[derive(Debug, PartialEq)]
enum Notification {
    Connected(Result<(), ErrorKind>),
    Received(Vec<u8>),
}

impl Application for Upstream {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
        let upstream = x.io.connect(self.to);
        x.io.set_receiving(upstream, false);
        x.io.set_receiving(upstream, true);
    }

    fn connected(&mut self, _x: Cx<'_, impl Commands, ()>, result: std::io::Result<()>) {
        let _ = self.sender.send(Notification::Connected(result.map_err(|error| error.kind())));
    }

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        let _ = self.sender.send(Notification::Received(rx.take().to_vec()));
    }
}

#[test]
fn resume_while_connecting_was_reported_as_connected() {
    side_by_side(|name| {
        let (listener, to, _filler) = full_listener();
        let (sender, receiver) = mpsc::channel();
        let server = Server::start(name, listening(1), move || Upstream { to, sender });
        let _client = server.connect();
        let early = receiver.recv_timeout(Duration::from_millis(200));
        assert_eq!(early, Err(RecvTimeoutError::Timeout), "{name}: notified while connecting");
        // The kernel retries the connect after one second and finds room.
        listener.accept().unwrap();
        assert_eq!(next(&receiver), Notification::Connected(Ok(())), "{name}");
        assert_eq!(
            next(&receiver),
            Notification::Received(Vec::new()),
            "{name}: the callback after a resume"
        );
        let (mut peer, _) = listener.accept().unwrap();
        peer.write_all(b"ping").unwrap();
        assert_eq!(next(&receiver), Notification::Received(b"ping".to_vec()), "{name}");
        server.stop();
    });
}

/// A directory with an existing file, and one that is never cached.
fn roots() -> Vec<std::path::PathBuf> {
    vec![env!("CARGO_MANIFEST_DIR").into(), "/proc".into()]
}

const CACHED: FilePathOf = FilePathOf(Root(0), "Cargo.toml");

/// Never in the page cache, so a thread reads it.
const SLOW: FilePathOf = FilePathOf(Root(1), "version");

#[derive(Clone, Copy)]
struct FilePathOf(Root, &'static str);

impl FilePathOf {
    fn stat(self) -> FileOp {
        FileOp::Stat((self.0, FilePath::new(self.1)))
    }

    fn open(self) -> FileOp {
        FileOp::Open((self.0, FilePath::new(self.1)), Access::Read)
    }
}

/// Maximum number of file operations per connection.
const OPS_PER_CONNECTION: u32 = 16;

/// Enough connections for three times the maximum of file operations in flight.
const CONNECTIONS: usize = 48;

/// Starts file operations for all connections once they are open. The operations of the first third are
/// slow and use all slots; those of the others are fast and deferred.
struct FileOps {
    connections: Vec<ConnId>,
    file: Option<File>,
    ended: Sender<bool>,
}

impl FileOps {
    fn begin(&self, io: &mut impl Commands) {
        let Some(file) = self.file.as_ref().filter(|_| self.connections.len() == CONNECTIONS)
        else {
            return;
        };
        for (i, id) in self.connections.iter().enumerate() {
            for tag in 1..=OPS_PER_CONNECTION {
                let slow = i < CONNECTIONS / 3;
                let op = if slow { FileOp::Read(file.clone(), 0..100) } else { CACHED.stat() };
                io.file_op(*id, tag, op);
            }
        }
    }
}

impl Application for FileOps {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
        self.connections.push(x.id);
        if self.connections.len() == 1 {
            x.io.file_op(x.id, 0, SLOW.open());
        }
        self.begin(x.io);
    }

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
    }

    fn file(&mut self, x: Cx<'_, impl Commands, ()>, _tag: u32, done: io::Result<FileOutcome>) {
        if let Ok(FileOutcome::Opened(opened)) = done {
            self.file = Some(opened.0);
            return self.begin(x.io);
        }
        let _ = self.ended.send(done.is_ok());
    }
}

#[test]
fn deferred_file_operations_never_started() {
    const ALL: usize = CONNECTIONS * OPS_PER_CONNECTION as usize;
    one_by_one(|name| {
        let (ended, receiver) = mpsc::channel();
        let app = move || FileOps { connections: Vec::new(), file: None, ended };
        let server = Server::start(name, listening(1).with(|c| c.roots = roots()), app);
        let clients: Vec<_> = (0..CONNECTIONS).map(|_| server.connect()).collect();
        for at in 0..ALL {
            let succeeded = receiver.recv_timeout(TIMEOUT);
            assert_eq!(succeeded, Ok(true), "{name}: {at} of {ALL} completed");
        }
        drop(clients);
        server.stop();
        assert!(receiver.try_recv().is_err(), "{name}: more operations completed than started");
    });
}

#[test]
fn deferred_file_operations_were_unbounded() {
    const ALL: usize = CONNECTIONS * OPS_PER_CONNECTION as usize;
    const MAX_CONNECTIONS: u32 = 64;
    one_by_one(|name| {
        let (ended, receiver) = mpsc::channel();
        let app = move || FileOps { connections: Vec::new(), file: None, ended };
        let config = listening(1).with(|c| {
            c.roots = roots();
            c.max_connections = MAX_CONNECTIONS;
        });
        let server = Server::start(name, config, app);
        let clients: Vec<_> = (0..CONNECTIONS).map(|_| server.connect()).collect();
        let outcomes = (0..ALL).map(|_| receiver.recv_timeout(TIMEOUT).unwrap());
        let refused = outcomes.filter(|succeeded| !succeeded).count();
        // A third is in flight, and one per possible connection is deferred.
        assert_eq!(refused, ALL - ALL / 3 - MAX_CONNECTIONS as usize, "{name}");
        drop(clients);
        server.stop();
    });
}

/// Starts this many file operations at once for each client, and reports their results.
struct StartsFileOps {
    file_ops: u32,
    ended: Sender<Result<(), ErrorKind>>,
}

impl Application for StartsFileOps {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
        for tag in 0..self.file_ops {
            x.io.file_op(x.id, tag, CACHED.stat());
        }
    }

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
    }

    fn file(&mut self, _x: Cx<'_, impl Commands, ()>, _tag: u32, done: io::Result<FileOutcome>) {
        let _ = self.ended.send(done.map(drop).map_err(|error| error.kind()));
    }
}

#[test]
fn file_operations_per_connection_were_unbounded() {
    one_by_one(|name| {
        for file_ops in [40, 300] {
            let (ended, receiver) = mpsc::channel();
            let config = listening(1).with(|c| c.roots = roots());
            let server = Server::start(name, config, move || StartsFileOps { file_ops, ended });
            let client = server.connect();
            let results: Vec<_> = (0..file_ops).map(|_| next(&receiver)).collect();
            let count = |result| results.iter().filter(|r| **r == result).count() as u32;
            assert_eq!(
                (count(Ok(())), count(Err(ErrorKind::ResourceBusy))),
                (OPS_PER_CONNECTION, file_ops - OPS_PER_CONNECTION),
                "{name}: of {file_ops}"
            );
            drop(client);
            server.stop();
        }
    });
}

/// Returns a free port on an address that no other test uses.
fn private_address(last: u8) -> SocketAddr {
    let any = SocketAddr::from(([127, 66, 0, last], 0));
    TcpListener::bind(any).unwrap().local_addr().unwrap()
}

/// Checks that `at` can be bound.
fn check_free(at: SocketAddr) -> Result<(), String> {
    TcpListener::bind(at).map(drop).map_err(|error| format!("cannot bind {at}: {error}"))
}

#[test]
fn mechanism_that_never_ran_kept_its_listener_open() {
    one_by_one(|name| {
        let server =
            AnyMechanism::new(name, &listening(1).with(|c| c.listen = vec![private_address(1)]))
                .unwrap();
        let at = server.addresses()[0];
        TcpStream::connect(at).expect("connections wait in the backlog");
        drop(server);
        assert_eq!(check_free(at), Ok(()), "{name}");
    });
}

#[test]
fn failed_listener_left_the_previous_one_open() {
    one_by_one(|name| {
        let held = TcpListener::bind(private_address(2)).unwrap();
        let (first, in_use) = (private_address(2), held.local_addr().unwrap());
        let config = listening(1).with(|c| c.listen = vec![first, in_use]);
        match AnyMechanism::new(name, &config) {
            Err(StartError::Listen(at, _)) => assert_eq!(at, in_use, "{name}"),
            other => panic!("{name}: {:?}", other.map(|server| server.name())),
        }
        assert_eq!(check_free(first), Ok(()), "{name}");
    });
}

#[test]
fn failed_root_left_the_listeners_open() {
    one_by_one(|name| {
        let at = private_address(3);
        let config = listening(1).with(|c| {
            c.listen = vec![at];
            c.roots = vec!["/nowhere".into()];
        });
        match AnyMechanism::new(name, &config) {
            Err(StartError::Root(..)) => {}
            other => panic!("{name}: {:?}", other.map(|server| server.name())),
        }
        assert_eq!(check_free(at), Ok(()), "{name}");
    });
}

/// Keeps connections open after a stop. On each message, changes the backlog, then replies.
struct ChangesBacklog;

impl Application for ChangesBacklog {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if rx.take().is_empty() {
            x.io.close(x.id, Close::Flush);
        } else {
            x.io.set_accept_policy(Listener(0), AcceptPolicy::Backlog(7));
            x.io.send(x.id, Chunk::Static(b"done"));
        }
    }

    fn stopping(&mut self, _x: Cx<'_, impl Commands, ()>) {}
}

#[test]
fn backlog_change_after_a_stop_made_another_socket_listen() {
    one_by_one(|name| {
        let config = listening(1).with(|c| {
            c.listen = vec![private_address(4)];
            c.drain_timeout = TIMEOUT;
        });
        let server = Server::start(name, config, || ChangesBacklog);
        let mut client = server.connect();
        let mut back = [0; 4];
        client.write_all(b"x").unwrap();
        client.read_exact(&mut back).unwrap();
        server.remote.stop();
        let until = Instant::now() + TIMEOUT;
        while TcpStream::connect(server.address).is_ok() {
            assert!(Instant::now() < until, "{name}: the listener stays open");
            thread::sleep(Duration::from_millis(1));
        }
        // One of these gets the listener's former descriptor number.
        let mut host = Linux::default();
        let sockets: Vec<_> = (0..64)
            .map(|_| host.socket(([127, 0, 0, 1], 0).into(), None, BufferSizes::default()).unwrap())
            .map(|socket| TcpListener::from(into_owned_fd(socket)))
            .collect();
        client.write_all(b"x").unwrap();
        client.read_exact(&mut back).unwrap();
        for socket in sockets {
            // Listening on an unbound socket would have bound it.
            let at = socket.local_addr().unwrap();
            assert_eq!(at.port(), 0, "{name}: a foreign socket listens at {at}");
        }
        drop(client);
        server.stop();
    });
}

/// Reports received bytes and ignores stops.
struct IgnoresStops(Sender<()>);

impl Application for IgnoresStops {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
        let _ = self.0.send(());
    }

    fn stopping(&mut self, _x: Cx<'_, impl Commands, ()>) {}
}

#[test]
fn stop_took_twice_the_drain_timeout() {
    const DRAIN: Duration = Duration::from_secs(3);
    side_by_side(|name| {
        let (sender, receiver) = mpsc::channel();
        let server = Server::start(name, listening(1).with(|c| c.drain_timeout = DRAIN), || {
            IgnoresStops(sender)
        });
        let mut client = server.connect();
        client.write_all(b"x").unwrap();
        next(&receiver);
        let begin = Instant::now();
        let stats = server.stop();
        let elapsed = begin.elapsed();
        assert!(elapsed >= DRAIN * 9 / 10 && elapsed < DRAIN * 17 / 10, "{name}: {elapsed:?}");
        assert_eq!((stats.accepted, stats.closed), (1, 1), "{name}");
    });
}

/// Echoes, and closes as the first byte requests.
struct ClosesAsRequested;

impl Application for ClosesAsRequested {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        let how = match rx.bytes().first() {
            Some(b'f') => Some(Close::Flush),
            Some(b'l') => Some(Close::Linger),
            Some(b'h') => Some(Close::Half),
            Some(_) => None,
            None => Some(Close::Flush),
        };
        x.io.send(x.id, Chunk::Received(rx.take()));
        if let Some(how) = how {
            x.io.close(x.id, how);
        }
    }
}

#[test]
fn infinite_timeouts_caused_a_panic() {
    one_by_one(|name| {
        let forever = Duration::MAX;
        let config = listening(1).with(|c| {
            c.drain_timeout = forever;
            c.progress_interval = forever;
            c.linger_timeout = forever;
        });
        let server = Server::start(name, config, || ClosesAsRequested);
        for how in [b"f", b"l", b"h"] {
            let mut client = server.connect();
            client.write_all(how).unwrap();
            let mut back = Vec::new();
            client.read_to_end(&mut back).unwrap();
            assert_eq!(back, how, "{name}");
        }
        let mut client = server.connect();
        client.write_all(b"x").unwrap();
        client.read_exact(&mut [0]).unwrap();
        let stats = server.stop();
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "{name}");
        assert_eq!((stats.accepted, stats.closed), (4, 4), "{name}");
    });
}

/// Reports the identifiers of connections when they open and close.
struct ReportsIds(Sender<ConnId>);

impl Application for ReportsIds {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
        let _ = self.0.send(x.id);
    }

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
        if rx.eof() {
            x.io.close(x.id, Close::Flush);
        }
    }

    fn closed(&mut self, x: Cx<'_, impl Commands, ()>, _reason: CloseReason) {
        let _ = self.0.send(x.id);
    }
}

#[test]
fn connection_identifier_was_reused() {
    one_by_one(|name| {
        let (sender, receiver) = mpsc::channel();
        let server = Server::start(name, listening(1), || ReportsIds(sender));
        for generation in 0..300 {
            let client = server.connect();
            // The previous connection has closed, so the slot is reused with a new generation.
            let id = next(&receiver);
            assert_eq!(id, ConnId::new(0, generation), "{name}");
            drop(client);
            assert_eq!(next(&receiver), id, "{name}");
        }
        server.stop();
    });
}

/// Pauses at once, so that received bytes are kept, and reports the close reasons.
struct Pauses(Sender<CloseReason>);

impl Application for Pauses {
    type State = ();
    const MAX_UNCONSUMED: usize = 1024;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, _rx: &mut Rx<'_>) {
        x.io.set_receiving(x.id, false);
    }

    fn closed(&mut self, _x: Cx<'_, impl Commands, ()>, reason: CloseReason) {
        self.0.send(reason).unwrap();
    }
}

#[test]
fn unconsumed_bytes_of_all_connections_were_unbounded() {
    const MAX_HELD: usize = 64 * 1024;
    side_by_side(|name| {
        let (ended, receiver) = mpsc::channel();
        let config = listening(1).with(|c| c.max_buffered_bytes = MAX_HELD);
        let server = Server::start(name, config, move || Pauses(ended));
        // Each keeps a few KiB, which exceeds the maximum.
        let mut clients: Vec<_> = (0..40).map(|_| server.connect()).collect();
        for client in &mut clients {
            // The server may have closed it already.
            let _ = client.write_all(&[7; 4096]);
        }
        assert!(matches!(next(&receiver), CloseReason::Overrun));
        drop(clients);
        let stats = server.stop();
        assert!((1..40).contains(&stats.overruns), "{name}: {} overruns", stats.overruns);
    });
}

/// The callback that resumes a connection.
#[derive(Clone, Copy)]
enum ResumedBy {
    Deadline,
    WakeUp,
    FileOperation,
}

/// Consumes a byte of what has come and pauses, again and again. Reports the largest number of bytes.
struct ResumesLater {
    by: ResumedBy,
    remote: RemoteHandle,
    max: usize,
    rounds: u32,
    result: Sender<usize>,
}

impl ResumesLater {
    /// Enough for a tail that grows to exceed its bound.
    const ROUNDS: u32 = 100;
}

impl Application for ResumesLater {
    type State = ();
    const MAX_UNCONSUMED: usize = 1024;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        self.max = self.max.max(rx.bytes().len());
        rx.consume(1.min(rx.bytes().len()));
        self.rounds += 1;
        if self.rounds == Self::ROUNDS {
            self.result.send(self.max).unwrap();
        }
        x.io.set_receiving(x.id, false);
        match self.by {
            ResumedBy::Deadline => {
                let now = x.io.now();
                x.io.set_deadline(x.id, Some(now));
            }
            ResumedBy::WakeUp => assert!(self.remote.wake(0)),
            ResumedBy::FileOperation => {
                x.io.file_op(x.id, 0, FileOp::Stat((Root(0), FilePath::new("absent"))));
            }
        }
    }

    fn expired(&mut self, x: Cx<'_, impl Commands, ()>) {
        x.io.set_receiving(x.id, true);
    }

    fn woken(&mut self, io: &mut impl Commands, _: Others<'_, ()>, _: u64) {
        if let Some(id) = io.next_open(0) {
            io.set_receiving(id, true);
        }
    }

    fn file(&mut self, x: Cx<'_, impl Commands, ()>, _: u32, _: io::Result<FileOutcome>) {
        x.io.set_receiving(x.id, true);
    }
}

#[test]
fn each_resume_added_a_buffer_to_the_unconsumed_bytes() {
    const BUFFERS: u16 = 16;
    let root = tempfile::tempdir().unwrap();
    side_by_side(|name| {
        for by in [ResumedBy::Deadline, ResumedBy::WakeUp, ResumedBy::FileOperation] {
            let (result, max) = mpsc::channel();
            let config = listening(1).with(|c| {
                (c.buffers, c.buffer_size) = (BUFFERS, 512);
                c.roots = vec![root.path().to_owned()];
            });
            let (server, ()) = Server::start_with(name, config, move |server| {
                let remote = server.remote();
                (ResumesLater { by, remote, max: 0, rounds: 0, result }, ())
            });
            let mut client = server.connect();
            let writes = thread::spawn(move || {
                // Until the server resets it.
                while client.write_all(&[7; 4096]).is_ok() {}
            });
            // On a ring, all buffers may land before a pause takes effect.
            let max = next(&max);
            assert!(
                max <= ResumesLater::MAX_UNCONSUMED + usize::from(BUFFERS) * 512,
                "{name}: {max} bytes"
            );
            server.stop();
            writes.join().unwrap();
        }
    });
}

/// Data queued for a client that does not read.
enum Queued {
    Copies,
    Pieces,
    Files,
}

/// Queues more data than permitted.
struct Queues {
    what: Queued,
    ended: Sender<CloseReason>,
}

impl Application for Queues {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
        // More than the socket buffers take at once.
        match self.what {
            Queued::Copies => drop(x.io.send(x.id, Chunk::Copy(&vec![7; 12 << 20]))),
            Queued::Pieces => {
                for _ in 0..120_000 {
                    x.io.send(x.id, Chunk::Static(&[7; 100]));
                }
            }
            Queued::Files => {
                x.io.file_op(x.id, 0, FileOp::Open((Root(0), FilePath::new("file")), Access::Read))
            }
        }
    }

    fn file(&mut self, x: Cx<'_, impl Commands, ()>, _tag: u32, done: io::Result<FileOutcome>) {
        let Ok(FileOutcome::Opened(opened)) = done else { panic!("{done:?}") };
        let file = opened.0;
        for at in 0..1_000 {
            x.io.send(x.id, Chunk::File(file.clone(), at..at + 1));
        }
    }

    fn closed(&mut self, _x: Cx<'_, impl Commands, ()>, reason: CloseReason) {
        self.ended.send(reason).unwrap();
    }
}

/// Queues data with a low maximum for all connections.
fn queue_too_much(name: &'static str, what: Queued) {
    let (ended, receiver) = mpsc::channel();
    let sockets = BufferSizes { send: Some(16 * 1024), receive: None };
    let config = listening(1).with(|c| {
        c.max_buffered_bytes = 64 * 1024;
        c.socket_buffers = sockets;
    });
    let server = Server::start(name, config, move || Queues { what, ended });
    let mut client = server.connect();
    client.write_all(b"x").unwrap();
    assert!(matches!(next(&receiver), CloseReason::Overrun), "{name}");
    drop(client);
    assert_eq!(server.stop().overruns, 1);
}

#[test]
fn queued_copies_of_all_connections_were_unbounded() {
    side_by_side(|name| queue_too_much(name, Queued::Copies));
}

#[test]
fn references_to_shared_bytes_were_not_counted() {
    side_by_side(|name| queue_too_much(name, Queued::Pieces));
}

#[test]
fn queued_files_were_unbounded() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("file"), vec![7; 4096]).unwrap();
    side_by_side(|name| {
        let (ended, receiver) = mpsc::channel();
        let config = listening(1).with(|c| c.roots = vec![root.path().to_owned()]);
        let server = Server::start(name, config, move || Queues { what: Queued::Files, ended });
        let mut client = server.connect();
        client.write_all(b"x").unwrap();
        assert!(matches!(next(&receiver), CloseReason::Overrun), "{name}");
        drop(client);
        assert_eq!(server.stop().overruns, 1);
    });
}

/// More than the socket of a narrow client takes.
static LARGE: [u8; 200_000] = [7; 200_000];

/// For each byte, sends some copied bytes and more shared ones.
struct SendsMixedChunks;

impl SendsMixedChunks {
    const COPIED: usize = 8 * 1024;
    const LEN: usize = Self::COPIED + LARGE.len();
}

impl Application for SendsMixedChunks {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        for _ in rx.take().iter() {
            x.io.send(x.id, Chunk::Copy(&[7; Self::COPIED]));
            x.io.send(x.id, Chunk::Static(&LARGE));
        }
        if rx.eof() {
            x.io.close(x.id, Close::Flush);
        }
    }
}

#[test]
fn sent_copies_counted_until_the_queue_was_empty() {
    // Room for a few copies at a time.
    const MAX_HELD: usize = 8 * SendsMixedChunks::COPIED;
    side_by_side(|name| {
        let sockets = BufferSizes { send: Some(16 * 1024), receive: None };
        let config = listening(1).with(|c| {
            c.max_buffered_bytes = MAX_HELD;
            c.socket_buffers = sockets;
        });
        let server = Server::start(name, config, || SendsMixedChunks);
        let mut client = connect_narrow(&server);
        // The next reply is queued before the last one is received.
        client.write_all(b"x").unwrap();
        for round in 0..20 {
            client.write_all(b"x").unwrap();
            let result = client.read_exact(&mut [0; SendsMixedChunks::LEN]);
            assert!(result.is_ok(), "{name}: round {round}: {result:?}");
        }
        drop(client);
        assert_eq!(server.stop().overruns, 0, "{name}");
    });
}

/// Replies to each message and is idle in between. On `wait`, blocks until the test continues it.
struct RepliesOk {
    waiting: Sender<()>,
    resumed: Receiver<()>,
}

impl Application for RepliesOk {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if rx.bytes() == b"wait" {
            self.waiting.send(()).unwrap();
            self.resumed.recv_timeout(TIMEOUT).expect("the test continues the application");
        }
        match rx.take().as_ref() {
            [] => {}
            b"large" => drop(x.io.send(x.id, Chunk::Static(&LARGE))),
            _ => drop(x.io.send(x.id, Chunk::Static(b"ok"))),
        }
        if rx.eof() || x.io.is_stopping() {
            x.io.close(x.id, Close::Flush);
        }
    }

    fn is_idle(&self, _id: ConnId, _state: &()) -> bool {
        true
    }
}

fn answers(name: &'static str, config: Config) -> (Server, Receiver<()>, Sender<()>) {
    let (waiting, is_waiting) = mpsc::channel();
    let (resume, resumed) = mpsc::channel();
    let server = Server::start(name, config, move || RepliesOk { waiting, resumed });
    (server, is_waiting, resume)
}

fn expect_ok(name: &str, client: &mut TcpStream) {
    let mut reply = [0; 2];
    client.read_exact(&mut reply).unwrap_or_else(|error| panic!("{name}: no reply: {error}"));
    assert_eq!(&reply, b"ok");
}

#[test]
fn requests_sent_before_a_stop_were_reset() {
    side_by_side(|name| {
        let (server, is_waiting, resume) = answers(name, listening(1));
        let mut blocked = server.connect();
        let mut open: Vec<_> = (0..20).map(|_| server.connect()).collect();
        for client in &mut open {
            client.write_all(b"x").unwrap();
            expect_ok(name, client);
        }
        blocked.write_all(b"wait").unwrap();
        next(&is_waiting);
        // While the loop is blocked: requests on open connections and on new ones.
        let mut new: Vec<_> = (0..20).map(|_| server.connect()).collect();
        for client in open.iter_mut().chain(&mut new) {
            client.write_all(b"x").unwrap();
        }
        server.remote.stop();
        resume.send(()).unwrap();
        for client in [&mut blocked].into_iter().chain(&mut open).chain(&mut new) {
            expect_ok(name, client);
            assert_eq!(client.read(&mut [0]).unwrap_or_else(|e| panic!("{name}: {e}")), 0);
        }
        let stats = server.stop();
        assert_eq!((stats.accepted, stats.closed), (41, 41), "{name}");
    });
}

/// Returns each line. On `wait`, blocks until the test continues it.
struct ReturnsLines {
    waiting: Sender<()>,
    resumed: Receiver<()>,
}

impl Application for ReturnsLines {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if rx.bytes() == b"wait\n" {
            self.waiting.send(()).unwrap();
            self.resumed.recv_timeout(TIMEOUT).expect("the test continues the application");
        }
        if rx.bytes().ends_with(b"\n") {
            x.io.send(x.id, Chunk::Copy(rx.take().as_ref()));
        }
    }
}

#[test]
fn client_that_sent_an_urgent_byte_got_no_reply() {
    side_by_side(|name| {
        if name == "send" {
            // While a signal is pending, a receive at an urgent byte ends with EAGAIN, although more follows. The ring of
            // `send` receives while SIGIO is pending, and receives again when the next bytes arrive.
            return;
        }
        let (waiting, is_waiting) = mpsc::channel();
        let (resume, resumed) = mpsc::channel();
        let server = Server::start(name, listening(1), move || ReturnsLines { waiting, resumed });
        let mut blocked = server.connect();
        let mut open = server.connect();
        server::ask(&mut open, "first\n", "first\n");
        blocked.write_all(b"wait\n").unwrap();
        next(&is_waiting);
        // All of a request has arrived before the server receives.
        let mut new = server.connect();
        for client in [&mut open, &mut new] {
            client.write_all(b"before ").unwrap();
            rustix::net::send(&*client, b"!", SendFlags::OOB).unwrap();
            client.write_all(b"after\n").unwrap();
        }
        resume.send(()).unwrap();
        for client in [&mut blocked, &mut open, &mut new] {
            let mut line = String::new();
            let read = BufReader::new(&*client).read_line(&mut line);
            assert!(read.is_ok(), "{name}: {read:?}");
            assert!(["wait\n", "before after\n"].contains(&&*line), "{name}: {line}");
            // The connection stays usable.
            server::ask(client, "last\n", "last\n");
        }
        server.stop();
    });
}

/// Connects a client when it is stopped while its accept is in flight.
struct ConnectsAtStop {
    address: SocketAddr,
    client: Sender<TcpStream>,
}

impl Application for ConnectsAtStop {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
        x.io.send(x.id, Chunk::Static(b"ok"));
    }

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
    }

    fn stopping(&mut self, x: Cx<'_, impl Commands, ()>) {
        if self.address.port() != 0 {
            self.client.send(TcpStream::connect(self.address).unwrap()).unwrap();
            self.address.set_port(0);
        }
        x.io.close(x.id, Close::Flush);
    }
}

#[test]
fn connection_that_came_while_an_accept_was_cancelled_was_reset() {
    side_by_side(|name| {
        let (sender, connected) = mpsc::channel();
        let address = ([127, 0, 0, 1], 0).into();
        let socket = ListeningSocket::bind(address, &ListenOptions::new(16)).unwrap();
        let address = socket.address();
        let config = listening(1).with(|c| {
            c.listen = vec![address];
            c.inherited = vec![socket];
        });
        let server =
            Server::start(name, config, move || ConnectsAtStop { address, client: sender });
        let mut first = server.connect();
        expect_ok(name, &mut first);
        server.remote.stop();
        let mut client = next(&connected);
        expect_ok(name, &mut client);
        assert_eq!(first.read(&mut [0]).unwrap_or_else(|e| panic!("{name}: {e}")), 0);
        let stats = server.stop();
        assert_eq!((stats.accepted, stats.closed), (2, 2), "{name}");
    });
}

#[test]
fn connections_reset_at_a_stop_were_not_counted() {
    const CLIENTS: usize = 10;
    side_by_side(|name| {
        let (server, is_waiting, resume) =
            answers(name, listening(1).with(|c| c.max_connections = 1));
        let mut blocked = server.connect();
        blocked.write_all(b"wait").unwrap();
        next(&is_waiting);
        let mut new: Vec<_> = (0..CLIENTS).map(|_| server.connect()).collect();
        for client in &mut new {
            client.write_all(b"x").unwrap();
        }
        server.remote.stop();
        resume.send(()).unwrap();
        expect_ok(name, &mut blocked);
        // Connections accepted before the stop are served; a ring may have accepted more.
        let served = |client: &mut TcpStream| match client.read_exact(&mut [0; 2]) {
            Ok(()) => true,
            Err(error) => {
                assert!(is_reset(error), "{name}");
                false
            }
        };
        let served = new.iter_mut().map(served).filter(|served| *served).count();
        let stats = server.stop();
        assert_eq!(stats.accepted, 1 + served as u64, "{name}");
        assert_eq!(stats.reset_at_stop, (CLIENTS - served) as u64, "{name}");
    });
}

#[test]
fn idle_connections_blocked_new_ones() {
    side_by_side(|name| {
        let (server, ..) = answers(name, listening(1).with(|c| c.max_connections = 3));
        let mut idle: Vec<_> = (0..3).map(|_| server.connect()).collect();
        for client in &mut idle {
            client.write_all(b"x").unwrap();
            expect_ok(name, client);
        }
        let mut new = server.connect();
        new.write_all(b"x").unwrap();
        expect_ok(name, &mut new);
        let ended = idle.iter_mut().map(|client| {
            client.set_nonblocking(true).unwrap();
            client.read(&mut [0])
        });
        assert_eq!(ended.filter(Result::is_ok).count(), 1, "{name}");
        drop(new);
        drop(idle);
        assert_eq!(server.stop().idle_closed, 1, "{name}");
    });
}

/// The bound is far above the time of a round, and other programs that run do not move the median.
#[test]
fn new_client_is_served_within_100_ms_while_idle_ones_fill_the_server() {
    const ROUNDS: usize = 11;
    one_by_one(|name| {
        let (server, ..) = answers(name, listening(1).with(|c| c.max_connections = 20));
        let mut clients: Vec<_> = (0..20).map(|_| server.connect()).collect();
        let mut times: Vec<_> = (0..20 + ROUNDS)
            .map(|n| {
                let start = Instant::now();
                if n >= 20 {
                    clients.push(server.connect());
                }
                clients[n].write_all(b"x").unwrap();
                expect_ok(name, &mut clients[n]);
                start.elapsed()
            })
            .skip(20)
            .collect();
        times.sort_unstable();
        assert!(times[ROUNDS / 2] < Duration::from_millis(100), "{name}: {times:?}");
        // If a close takes longer than the interval of searches, another one is closed.
        assert!(server.stop().idle_closed >= ROUNDS as u64, "{name}");
    });
}

#[test]
fn idle_connection_with_unacknowledged_bytes_was_closed_for_room() {
    side_by_side(|name| {
        // The socket takes the whole reply, so only the peer is behind.
        let sockets = BufferSizes { send: Some(1 << 20), receive: None };
        let (server, ..) = answers(
            name,
            listening(1).with(|c| {
                c.max_connections = 2;
                c.socket_buffers = sockets;
            }),
        );
        let mut slow = connect_narrow(&server);
        slow.write_all(b"large").unwrap();
        slow.read_exact(&mut [0; 2]).unwrap();
        let mut idle = server.connect();
        idle.write_all(b"x").unwrap();
        expect_ok(name, &mut idle);
        let mut new = server.connect();
        new.write_all(b"x").unwrap();
        expect_ok(name, &mut new);
        assert_eq!(
            idle.read(&mut [0]).unwrap(),
            0,
            "{name}: the connection with the shorter idle time"
        );
        slow.read_exact(&mut vec![0; LARGE.len() - 2]).unwrap();
        slow.write_all(b"x").unwrap();
        expect_ok(name, &mut slow);
        drop((slow, new));
        assert_eq!(server.stop().idle_closed, 1, "{name}");
    });
}

#[test]
fn connection_without_a_request_was_closed_before_idle_ones() {
    side_by_side(|name| {
        let (server, ..) = answers(name, listening(1).with(|c| c.max_connections = 2));
        let mut unserved = server.connect();
        let mut idle = server.connect();
        idle.write_all(b"x").unwrap();
        expect_ok(name, &mut idle);
        let mut new = server.connect();
        new.write_all(b"x").unwrap();
        expect_ok(name, &mut new);
        assert_eq!(idle.read(&mut [0]).unwrap(), 0, "{name}: the served connection");
        unserved.write_all(b"x").unwrap();
        expect_ok(name, &mut unserved);
        drop((unserved, new));
        assert_eq!(server.stop().idle_closed, 1, "{name}");
    });
}

/// Replies to each message; `hello` is the handshake before a request. Says goodbye to a connection that makes room for
/// another one, and leaves the close to the driver.
struct SaysGoodbye;

impl Application for SaysGoodbye {
    /// Whether a request has arrived.
    type State = bool;
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, bool>, rx: &mut Rx<'_>) {
        *x.state |= rx.take().as_ref() != b"hello";
        x.io.send(x.id, Chunk::Static(b"ok"));
        if rx.eof() {
            x.io.close(x.id, Close::Flush);
        }
    }

    fn is_idle(&self, _id: ConnId, _state: &bool) -> bool {
        true
    }

    fn is_unserved(&self, _id: ConnId, state: &bool) -> bool {
        !state
    }

    fn evicting(&mut self, x: Cx<'_, impl Commands, bool>) {
        x.io.send(x.id, Chunk::Static(b"bye"));
    }
}

#[test]
fn idle_connection_was_closed_for_room_without_a_word() {
    side_by_side(|name| {
        let server =
            Server::start(name, listening(1).with(|c| c.max_connections = 2), || SaysGoodbye);
        let mut shaken = server.connect();
        shaken.write_all(b"hello").unwrap();
        expect_ok(name, &mut shaken);
        let mut idle = server.connect();
        idle.write_all(b"x").unwrap();
        expect_ok(name, &mut idle);
        let mut new = server.connect();
        new.write_all(b"x").unwrap();
        expect_ok(name, &mut new);
        let mut last = String::new();
        idle.read_to_string(&mut last).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(last, "bye", "{name}: the served connection");
        shaken.write_all(b"x").unwrap();
        expect_ok(name, &mut shaken);
        // Without a served one, the connection after its handshake makes room.
        drop((shaken, new));
        let mut shaken: Vec<_> = (0..2).map(|_| server.connect()).collect();
        for client in &mut shaken {
            client.write_all(b"hello").unwrap();
            expect_ok(name, client);
        }
        let mut new = server.connect();
        new.write_all(b"x").unwrap();
        expect_ok(name, &mut new);
        drop((shaken, new));
        assert_eq!(server.stop().idle_closed, 2, "{name}");
    });
}

/// Leaves the first bytes and pauses until it is woken; on `wait`, blocks like `RepliesOk`. Reports its
/// callbacks.
struct LeavesBytes {
    paused: Option<ConnId>,
    woken: bool,
    replies: RepliesOk,
    calls: Sender<&'static str>,
}

/// More than an application may leave while it is not paused.
static LEFT: [u8; 100] = [7; 100];

impl Application for LeavesBytes {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if rx.bytes() == b"wait" {
            return self.replies.received(x, rx);
        }
        if self.paused.is_none() {
            self.paused = Some(x.id);
            x.io.set_receiving(x.id, false);
            x.io.send(x.id, Chunk::Static(b"ok"));
        } else if self.paused == Some(x.id) && rx.take().as_ref() == LEFT {
            self.calls.send("received").unwrap();
        }
    }

    fn woken(&mut self, io: &mut impl Commands, _: Others<'_, Self::State>, _tag: u64) {
        self.woken = true;
        io.set_receiving(self.paused.unwrap(), true);
    }

    fn stopping(&mut self, x: Cx<'_, impl Commands, ()>) {
        let is_paused = self.paused == Some(x.id);
        if is_paused {
            self.calls.send("stopping").unwrap();
        }
        if !is_paused || self.woken {
            x.io.close(x.id, Close::Flush);
        }
    }
}

#[test]
fn bytes_left_by_a_pause_arrived_after_the_stop() {
    side_by_side(|name| {
        for is_woken_first in [true, false] {
            let (waiting, is_waiting) = mpsc::channel();
            let (resume, resumed) = mpsc::channel();
            let (sender, calls) = mpsc::channel();
            let replies = RepliesOk { waiting, resumed };
            let app = move || LeavesBytes { paused: None, woken: false, replies, calls: sender };
            let server = Server::start(name, listening(1), app);
            let (mut client, mut blocked) = (server.connect(), server.connect());
            client.write_all(&LEFT).unwrap();
            expect_ok(name, &mut client);
            if is_woken_first {
                // The server handles both in one turn.
                blocked.write_all(b"wait").unwrap();
                next(&is_waiting);
                assert!(server.remote.wake(0));
                server.remote.stop();
                resume.send(()).unwrap();
            } else {
                server.remote.stop();
                assert_eq!(next(&calls), "stopping", "{name}");
                assert!(server.remote.wake(0));
            }
            assert_eq!((next(&calls), next(&calls)), ("received", "stopping"), "{name}");
            server.stop();
        }
    });
}

#[test]
fn connection_that_received_without_replying_missed_the_stop() {
    /// Consumes bytes without replying.
    struct OnlyConsumes(RepliesOk);

    impl Application for OnlyConsumes {
        type State = ();
        const MAX_UNCONSUMED: usize = 64;

        fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
            if rx.bytes() == b"wait" {
                self.0.received(x, rx);
            } else {
                rx.take();
            }
        }
    }

    side_by_side(|name| {
        let (waiting, is_waiting) = mpsc::channel();
        let (resume, resumed) = mpsc::channel();
        // Longer than the test waits for a stop.
        let config = listening(1).with(|c| c.drain_timeout = 3 * TIMEOUT);
        let server =
            Server::start(name, config, move || OnlyConsumes(RepliesOk { waiting, resumed }));
        let mut blocked = server.connect();
        let mut clients: Vec<_> = (0..20).map(|_| server.connect()).collect();
        blocked.write_all(b"wait").unwrap();
        next(&is_waiting);
        // The bytes are in the sockets when the server handles the stop.
        for client in &mut clients {
            client.write_all(b"x").unwrap();
        }
        server.remote.stop();
        resume.send(()).unwrap();
        for client in &mut clients {
            assert_eq!(client.read(&mut [0]).unwrap(), 0, "{name}");
        }
        let stats = server.stop();
        assert_eq!((stats.accepted, stats.closed), (21, 21), "{name}");
    });
}

/// Panics at the first byte.
struct Panics(Sender<()>);

impl Application for Panics {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, _rx: &mut Rx<'_>) {
        self.0.send(()).unwrap();
        panic!("on purpose");
    }
}

#[test]
fn application_panic_was_swallowed() {
    side_by_side(|name| {
        let (panics, receiver) = mpsc::channel();
        let server = Server::start(name, listening(1), move || Panics(panics));
        let (mut client, mut other) = (server.connect(), server.connect());
        client.write_all(b"x").unwrap();
        next(&receiver);
        // All connections are closed.
        for client in [&mut client, &mut other] {
            let end = client.read(&mut [0]);
            assert!(matches!(&end, Ok(0)) || end.is_err_and(is_reset), "{name}: still open");
        }
        let panic = server.thread.join().expect_err("`run` resumes the panic");
        assert_eq!(panic.downcast_ref(), Some(&"on purpose"), "{name}");
    });
}

/// Bytes whose owner panics when it is dropped.
struct Fragile(Vec<u8>, Sender<()>);

impl AsRef<[u8]> for Fragile {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        self.1.send(()).unwrap();
        panic!("on purpose");
    }
}

/// For each byte, sends this many fragile chunks of the given length.
struct SendsFragile(usize, Sender<()>);

impl Application for SendsFragile {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        for count in rx.take().iter() {
            for _ in 0..*count {
                let fragile = Fragile(vec![7; self.0], self.1.clone());
                x.io.send(x.id, Chunk::Shared(bytes::Bytes::from_owner(fragile)));
            }
        }
        if rx.eof() {
            x.io.close(x.id, Close::Flush);
            // These are dropped at once.
            let fragile = Fragile(vec![7; self.0], self.1.clone());
            x.io.send(x.id, Chunk::Shared(bytes::Bytes::from_owner(fragile)));
        }
    }
}

#[test]
fn panic_while_dropping_shared_bytes_ended_the_server() {
    side_by_side(|name| {
        for len in [10, 1_000, 300_000] {
            let (dropped, drops) = mpsc::channel();
            let server = Server::start(name, listening(1), move || SendsFragile(len, dropped));
            // All chunks are sent or dropped: by a reset, and at a stop.
            let (mut complete, mut reset, mut unread) =
                (server.connect(), server.connect(), server.connect());
            complete.write_all(&[3]).unwrap();
            complete.read_exact(&mut vec![0; 3 * len]).unwrap();
            (0..3).for_each(|_| next(&drops));
            reset.write_all(&[40]).unwrap();
            reset.read_exact(&mut [0]).unwrap();
            // Closing a socket with unread bytes sends a reset.
            drop(reset);
            (0..40).for_each(|_| next(&drops));
            unread.write_all(&[40]).unwrap();
            unread.read_exact(&mut [0]).unwrap();
            complete.write_all(&[1]).unwrap();
            complete.read_exact(&mut vec![0; len]).unwrap();
            next(&drops);
            // One chunk is sent after the close that follows its end.
            complete.shutdown(Shutdown::Write).unwrap();
            assert_eq!(complete.read(&mut [0]).unwrap(), 0);
            next(&drops);
            drop((complete, unread));
            let stats = server.stop();
            assert_eq!((stats.accepted, stats.closed), (3, 3), "{name}");
            assert_eq!(drops.iter().count(), 40, "{name}");
        }
    });
}

fn is_reset(error: std::io::Error) -> bool {
    error.kind() == ErrorKind::ConnectionReset
}

/// A kernel that fails once it has accepted a connection and received bytes.
struct FailingKernel<K> {
    kernel: K,
    received: bool,
    finished: bool,
    discarded: Sender<bool>,
}

// SAFETY: forwards to the inner kernel.
unsafe impl<K: Kernel> Submit for FailingKernel<K> {
    type Host = K::Host;

    fn submit(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        self.kernel.submit(token, op)
    }

    fn cancel(&mut self, token: Token) {
        self.kernel.cancel(token);
    }

    fn add_buffers(&mut self, buffers: BufferPool) -> Result<BufferGroup, BufferError> {
        self.kernel.add_buffers(buffers)
    }

    fn finish(&mut self) {
        self.finished = true;
        self.kernel.finish();
    }

    fn host(&self) -> &K::Host {
        self.kernel.host()
    }

    fn host_mut(&mut self) -> &mut K::Host {
        if self.received {
            self.discarded.send(self.finished).unwrap();
        }
        self.kernel.host_mut()
    }

    fn now(&self) -> Instant {
        self.kernel.now()
    }

    fn waker(&self) -> Waker {
        self.kernel.waker()
    }

    fn landed(&self) -> u32 {
        self.kernel.landed()
    }

    fn counters(&self) -> Counters {
        self.kernel.counters()
    }
}

impl<K: Kernel> Kernel for FailingKernel<K> {
    fn turn(&mut self, until: Option<Instant>) -> Result<(), KernelError> {
        if self.received {
            return Err(KernelError::new("breaking", ErrorKind::Other));
        }
        self.kernel.turn(until)
    }

    fn next(&mut self) -> Option<Completion> {
        let next = self.kernel.next();
        self.received |=
            next.as_ref().is_some_and(|next| matches!(next.outcome, Outcome::Received(_)));
        next
    }

    fn reap(&mut self) {
        self.kernel.reap();
    }
}

/// Returns the failure of a kernel, and checks that the application was notified.
fn broken(
    make: impl FnOnce(&Config) -> Result<(), KernelError>,
    receiver: &Receiver<CloseReason>,
) -> KernelError {
    let failure = make(&listening(1)).unwrap_err();
    assert!(
        matches!(receiver.try_recv(), Ok(CloseReason::Failed(_))),
        "the application was not notified of the close"
    );
    failure
}

fn after_a_fault<K: Kernel>(kernel: impl FnOnce(&Config) -> K) {
    let (ended, receiver) = mpsc::channel();
    let (discarded, order) = mpsc::channel();
    let serve = |config: &Config| {
        let kernel =
            FailingKernel { kernel: kernel(config), received: false, finished: false, discarded };
        let server = EventLoop::new(kernel, config).unwrap();
        let mut client = TcpStream::connect(server.addresses()[0]).unwrap();
        client.write_all(b"x").unwrap();
        let served = server.run(Pauses(ended)).map(drop);
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        assert_eq!(client.read(&mut [0]).ok().filter(|n| *n > 0), None);
        served
    };
    assert_eq!(broken(serve, &receiver).context, "breaking");
    let order: Vec<bool> = order.iter().collect();
    // The listener and the connection.
    assert_eq!(order, [true; 2], "a descriptor was closed before its operations had ended");
}

/// The application panics when the kernel has reported bytes.
fn after_a_panic<K: Kernel>(kernel: impl FnOnce(&Config) -> K) {
    let (panics, _receiver) = mpsc::channel();
    let (discarded, order) = mpsc::channel();
    let config = listening(1);
    let kernel =
        FailingKernel { kernel: kernel(&config), received: false, finished: false, discarded };
    let server = EventLoop::new(kernel, &config).unwrap();
    let mut client = TcpStream::connect(server.addresses()[0]).unwrap();
    client.write_all(b"x").unwrap();
    let run = AssertUnwindSafe(|| server.run(Panics(panics)).map(drop));
    let panic = catch_unwind(run).expect_err("`run` resumes the panic");
    assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
    // The listener and the connection.
    let order: Vec<bool> = order.iter().collect();
    assert_eq!(order, [true; 2], "a descriptor was closed before its operations had ended");
}

/// Runs a test over a portable kernel, over those of io_uring, and over those of SEND and FlexSC.
macro_rules! on_kernels {
    ($test:ident) => {
        $test(|config| {
            PortableKernel::new(Epoll::new().unwrap(), &config.engine_config().unwrap()).unwrap()
        });
        for mode in [Mode::Deferred, Mode::Immediate] {
            if UringKernel::probe(mode).is_ok() {
                $test(|config| UringKernel::new(&config.uring_config(mode).unwrap()).unwrap());
            }
        }
        #[cfg(feature = "send")]
        if mechanisms::Send::available().is_ok() {
            $test(|config| mechanisms::Send::kernel(config).unwrap());
        }
        #[cfg(feature = "flexsc")]
        $test(|config| mechanisms::FlexSc::kernel(config).unwrap());
    };
}

#[test]
fn kernel_failure_skipped_notifications_and_closed_busy_descriptors() {
    on_kernels!(after_a_fault);
}

#[test]
fn panic_of_the_application_closed_busy_descriptors() {
    on_kernels!(after_a_panic);
}

/// Writes to a pipe that is full when it receives bytes.
struct WritesToAFullPipe {
    pipe: Option<PipeWriter>,
    begun: Sender<()>,
    ended: Sender<CloseReason>,
}

impl Application for WritesToAFullPipe {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
        if let Some(pipe) = self.pipe.take() {
            let file = File::from(OwnedFd::from(pipe));
            x.io.file_op(x.id, 0, FileOp::write(file, WriteAt::End, "x"));
            self.begun.send(()).unwrap();
        }
    }

    fn closed(&mut self, _x: Cx<'_, impl Commands, ()>, reason: CloseReason) {
        self.ended.send(reason).unwrap();
    }
}

/// `stop` waited until the file system answered.
#[test]
fn stop_waited_for_a_file_operation_that_hangs() {
    side_by_side(|name| {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(&[0; 64 * 1024]).unwrap();
        let ((begun, has_begun), (ended, reasons)) = (mpsc::channel(), mpsc::channel());
        let config = listening(1).with(|c| c.drain_timeout = Duration::ZERO);
        let server =
            Server::start(name, config, || WritesToAFullPipe { pipe: Some(writer), begun, ended });
        let mut client = server.connect();
        client.write_all(b"x").unwrap();
        next(&has_begun);
        // It panics if the server has not ended within a time limit.
        server.stop();
        // With nothing to send, it may have been closed before the time was over.
        let reason = next(&reasons);
        assert!(matches!(reason, CloseReason::Stopped | CloseReason::Closed), "{name}: {reason:?}");
        drop(reader);
    });
}
