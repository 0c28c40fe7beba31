//! What went wrong once, on every mechanism.

mod server;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use evring::{
    AcceptPolicy, AnyMechanism, Application, BufferSizes, Chunk, Close, CloseReason, Commands,
    Config, ConnId, Cx, EventLoop, File, FileOp, FileOutcome, FilePath, Listener, Root, Rx,
    StartError,
};
use shared_ring::poller::Epoll;
use shared_ring::{
    Completion, Counters, Host, Kernel, KernelError, Linux, ListenOptions, Mode, Op, Outcome,
    PortableKernel, Socket, Submit, SubmitError, Submitted, System, Token, UringKernel, Waker,
};

use server::{PATIENCE, Server, mechanisms, side_by_side};

/// Runs a test on every mechanism, one after the other.
fn one_by_one(test: impl Fn(&'static str)) {
    for name in mechanisms() {
        println!("{name}");
        test(name);
    }
}

fn local() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn config() -> Config {
    Config { listen: vec![local()], ..Config::default() }
}

fn next<T>(told: &Receiver<T>) -> T {
    told.recv_timeout(PATIENCE).expect("the application is told nothing")
}

/// How long a peer may take nothing.
const STALL: Duration = Duration::from_millis(300);

/// Sends a reply to each client, closes, and reports how the connection ended.
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

/// A server that sends `len` bytes through small buffers, and a client with a small one.
fn narrow(name: &'static str, len: usize) -> (Server, TcpStream, Receiver<CloseReason>) {
    let (ended, told) = mpsc::channel();
    let sockets = BufferSizes { send: Some(16 * 1024), receive: None };
    let config =
        Config { progress_interval: STALL, min_rate: 1, socket_buffers: sockets, ..config() };
    let server = Server::start(name, config, move || Replies { len, ended });
    let client = connect_narrow(&server);
    (server, client, told)
}

/// A client whose socket takes little.
fn connect_narrow(server: &Server) -> TcpStream {
    let mut host = Linux::default();
    let narrow = BufferSizes { send: None, receive: Some(16 * 1024) };
    let socket = host.socket(server.address, None, narrow).unwrap();
    // It may still be under way; a read waits for that.
    // SAFETY: the socket is open until the call is over.
    let _ = host.connect(unsafe { socket.fd() }, server.address);
    let client = TcpStream::from(taken(socket));
    client.set_nonblocking(false).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

#[test]
fn a_slow_reader_got_only_part_of_a_last_reply() {
    // Less than one operation may send, so that progress within an operation has to count.
    const LEN: usize = 240_000;
    side_by_side(|name| {
        let (server, mut client, told) = narrow(name, LEN);
        let (begin, mut got, mut piece) = (Instant::now(), 0, [0; 8192]);
        let end = loop {
            match client.read(&mut piece) {
                Ok(0) => break Ok(()),
                Ok(n) => got += n,
                Err(error) => break Err(error),
            }
            thread::sleep(Duration::from_millis(30));
        };
        assert!(end.is_ok() && got == LEN, "{name}: {got} bytes of {LEN}, then {end:?}");
        assert!(begin.elapsed() > 2 * STALL, "{name}: it was not slow: {:?}", begin.elapsed());
        let reason = next(&told);
        assert!(matches!(reason, CloseReason::Closed), "{name}: {reason:?}");
        server.stop();
    });
}

#[test]
fn a_stalled_reply_ended_as_if_it_were_whole() {
    // Much more than the buffers at both ends hold.
    const LEN: usize = 8 << 20;
    side_by_side(|name| {
        let (server, mut client, told) = narrow(name, LEN);
        let begin = Instant::now();
        let reason = next(&told);
        assert!(matches!(reason, CloseReason::Failed(_)), "{name}: {reason:?}");
        assert!(begin.elapsed() >= STALL / 2, "{name}: after {:?}", begin.elapsed());
        let mut got = Vec::new();
        let end = client.read_to_end(&mut got).map_err(|error| error.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "{name}: {} bytes", got.len());
        assert!(got.len() < LEN);
        server.stop();
    });
}

/// Reads at a steady pace until the end, and returns how much came and how it ended.
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
fn a_steady_reader_of_a_last_reply_was_reset_as_the_system_took_nothing() {
    // More than the system's buffers hold; it takes no more until a third of them is free.
    const LEN: usize = 8 << 20;
    side_by_side(|name| {
        let (ended, told) = mpsc::channel();
        let config = Config { progress_interval: STALL, min_rate: 1000, ..config() };
        let server = Server::start(name, config, move || Replies { len: LEN, ended });
        let mut client = server.connect();
        let (got, end) = read_steadily(&mut client, 40_000, Duration::from_millis(15));
        assert_eq!((got, end), (LEN, Ok(0)), "{name}");
        assert!(matches!(next(&told), CloseReason::Closed), "{name}");
        server.stop();
    });
}

#[test]
fn a_last_reply_could_be_taken_as_slowly_as_its_reader_liked() {
    const LEN: usize = 8 << 20;
    side_by_side(|name| {
        let (ended, told) = mpsc::channel();
        let config = Config { progress_interval: STALL, min_rate: 100_000_000, ..config() };
        let server = Server::start(name, config, move || Replies { len: LEN, ended });
        let mut client = server.connect();
        let (got, end) = read_steadily(&mut client, 40_000, Duration::from_millis(15));
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "{name}: {got} bytes");
        assert!(matches!(next(&told), CloseReason::Failed(_)), "{name}");
        server.stop();
    });
}

/// Connects to somebody when it is connected to; pauses and resumes the connection at once.
struct Upstream {
    to: SocketAddr,
    told: Sender<Told>,
}

#[derive(Debug, PartialEq)]
enum Told {
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
        let _ = self.told.send(Told::Connected(result.map_err(|error| error.kind())));
    }

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        let _ = self.told.send(Told::Received(rx.take().to_vec()));
    }
}

/// A socket of this machine, to be used as any other.
fn taken(socket: Socket) -> OwnedFd {
    // SAFETY: its owner ends here.
    unsafe { OwnedFd::from_raw_fd(socket.as_raw_fd()) }
}

/// A listener whose queue is full, and the connection that fills it.
fn full_listener() -> (TcpListener, SocketAddr, TcpStream) {
    let options = ListenOptions { backlog: 0, reuse_port: false, buffers: BufferSizes::default() };
    let (listener, address) = Linux::default().listen(local(), &options).unwrap();
    let listener = TcpListener::from(taken(listener));
    listener.set_nonblocking(false).unwrap();
    let filler = TcpStream::connect(address).unwrap();
    let more = TcpStream::connect_timeout(&address, Duration::from_millis(50));
    assert_eq!(more.map_err(|error| error.kind()).err(), Some(ErrorKind::TimedOut));
    (listener, address, filler)
}

#[test]
fn a_resume_while_connecting_was_taken_for_the_connect() {
    side_by_side(|name| {
        let (listener, to, _filler) = full_listener();
        let (sender, told) = mpsc::channel();
        let server = Server::start(name, config(), move || Upstream { to, told: sender });
        let _client = server.connect();
        let early = told.recv_timeout(Duration::from_millis(200));
        assert_eq!(early, Err(RecvTimeoutError::Timeout), "{name}: told while it is connecting");
        // There is room now for the next attempt, which the system makes after a second.
        listener.accept().unwrap();
        assert_eq!(next(&told), Told::Connected(Ok(())), "{name}");
        assert_eq!(next(&told), Told::Received(Vec::new()), "{name}: what a resume promises");
        let (mut peer, _) = listener.accept().unwrap();
        peer.write_all(b"ping").unwrap();
        assert_eq!(next(&told), Told::Received(b"ping".to_vec()), "{name}");
        server.stop();
    });
}

/// A directory with a file that is always there.
fn roots() -> Vec<std::path::PathBuf> {
    vec![env!("CARGO_MANIFEST_DIR").into(), "/proc".into()]
}

const HERE: FilePathOf = FilePathOf(Root(0), "Cargo.toml");

/// Not kept in memory, so that it has to be read by a thread.
const SLOW: FilePathOf = FilePathOf(Root(1), "version");

#[derive(Clone, Copy)]
struct FilePathOf(Root, &'static str);

impl FilePathOf {
    fn stat(self) -> FileOp {
        FileOp::Stat(self.0, FilePath::new(self.1))
    }

    fn open(self) -> FileOp {
        FileOp::Open(self.0, FilePath::new(self.1))
    }
}

/// Most file work of one connection.
const WORKS_EACH: u32 = 16;

/// As many connections as have thrice the most file work in flight.
const WORKERS: usize = 48;

/// Begins file work for every connection when all are there: slow work for the first third, which
/// takes all places, and quick work for the others, which waits for a place and is done at once.
struct Works {
    connections: Vec<ConnId>,
    file: Option<File>,
    ended: Sender<bool>,
}

impl Works {
    fn begin(&self, io: &mut impl Commands) {
        let Some(file) = self.file.as_ref().filter(|_| self.connections.len() == WORKERS) else {
            return;
        };
        for (i, id) in self.connections.iter().enumerate() {
            for tag in 1..=WORKS_EACH {
                let slow = i < WORKERS / 3;
                let op = if slow { FileOp::Read(file.clone(), 0..100) } else { HERE.stat() };
                io.file_op(*id, tag, op);
            }
        }
    }
}

impl Application for Works {
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

    fn file(&mut self, x: Cx<'_, impl Commands, ()>, _tag: u32, done: FileOutcome) {
        let well = match done {
            FileOutcome::Opened(opened) => {
                self.file = Some(opened.unwrap().0);
                return self.begin(x.io);
            }
            FileOutcome::Stat(stat) => stat.is_ok(),
            FileOutcome::Listed(listing) => listing.is_ok(),
            FileOutcome::Read(read) => read.is_ok(),
        };
        let _ = self.ended.send(well);
    }
}

#[test]
fn file_work_that_waited_for_a_place_never_began() {
    const ALL: usize = WORKERS * WORKS_EACH as usize;
    one_by_one(|name| {
        let (ended, told) = mpsc::channel();
        let app = move || Works { connections: Vec::new(), file: None, ended };
        let server = Server::start(name, Config { roots: roots(), ..config() }, app);
        let clients: Vec<_> = (0..WORKERS).map(|_| server.connect()).collect();
        for at in 0..ALL {
            let well = told.recv_timeout(Duration::from_secs(5));
            assert_eq!(well, Ok(true), "{name}: {at} of {ALL} ended");
        }
        drop(clients);
        server.stop();
        assert!(told.try_recv().is_err(), "{name}: more ended than begun");
    });
}

#[test]
fn file_work_that_waited_for_a_place_had_no_bound() {
    const ALL: usize = WORKERS * WORKS_EACH as usize;
    const MOST: u32 = 64;
    one_by_one(|name| {
        let (ended, told) = mpsc::channel();
        let app = move || Works { connections: Vec::new(), file: None, ended };
        let config = Config { roots: roots(), max_connections: MOST, ..config() };
        let server = Server::start(name, config, app);
        let clients: Vec<_> = (0..WORKERS).map(|_| server.connect()).collect();
        let outcomes = (0..ALL).map(|_| told.recv_timeout(Duration::from_secs(5)).unwrap());
        let refused = outcomes.filter(|well| !well).count();
        // A third of it has the places, and as much waits as there may be connections.
        assert_eq!(refused, ALL - ALL / 3 - MOST as usize, "{name}");
        drop(clients);
        server.stop();
    });
}

/// Begins this much file work at once for each client, and reports how each ended.
struct Crowd {
    works: u32,
    ended: Sender<Result<(), ErrorKind>>,
}

impl Application for Crowd {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
        for tag in 0..self.works {
            x.io.file_op(x.id, tag, HERE.stat());
        }
    }

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
    }

    fn file(&mut self, _x: Cx<'_, impl Commands, ()>, _tag: u32, done: FileOutcome) {
        let FileOutcome::Stat(stat) = done else { panic!("{done:?}") };
        let _ = self.ended.send(stat.map(drop).map_err(|error| error.kind()));
    }
}

#[test]
fn the_bound_on_file_work_held_for_one_work_only() {
    one_by_one(|name| {
        for works in [40, 300] {
            let (ended, told) = mpsc::channel();
            let config = Config { roots: roots(), ..config() };
            let server = Server::start(name, config, move || Crowd { works, ended });
            let client = server.connect();
            let results: Vec<_> = (0..works).map(|_| next(&told)).collect();
            let count = |result| results.iter().filter(|r| **r == result).count() as u32;
            assert_eq!(
                (count(Ok(())), count(Err(ErrorKind::ResourceBusy))),
                (WORKS_EACH, works - WORKS_EACH),
                "{name}: of {works}"
            );
            drop(client);
            server.stop();
        }
    });
}

/// A free port at an address of this machine that no other test uses.
fn private(last: u8) -> SocketAddr {
    let any = SocketAddr::from(([127, 66, 0, last], 0));
    TcpListener::bind(any).unwrap().local_addr().unwrap()
}

/// Sees that nobody listens at `at`.
fn free(at: SocketAddr) -> Result<(), String> {
    TcpListener::bind(at).map(drop).map_err(|error| format!("{at} is still taken: {error}"))
}

#[test]
fn a_mechanism_that_never_ran_kept_its_listener() {
    one_by_one(|name| {
        let server =
            AnyMechanism::new(name, &Config { listen: vec![private(1)], ..config() }).unwrap();
        let at = server.addresses()[0];
        TcpStream::connect(at).expect("connections wait until it runs");
        drop(server);
        assert_eq!(free(at), Ok(()), "{name}");
    });
}

#[test]
fn a_listener_that_failed_left_the_one_before_it_open() {
    one_by_one(|name| {
        let held = TcpListener::bind(private(2)).unwrap();
        let (first, taken) = (private(2), held.local_addr().unwrap());
        let config = Config { listen: vec![first, taken], ..config() };
        match AnyMechanism::new(name, &config) {
            Err(StartError::Listen(at, _)) => assert_eq!(at, taken, "{name}"),
            other => panic!("{name}: {:?}", other.map(|server| server.name())),
        }
        assert_eq!(free(first), Ok(()), "{name}");
    });
}

#[test]
fn a_root_that_failed_left_the_listeners_open() {
    one_by_one(|name| {
        let at = private(3);
        let config = Config { listen: vec![at], roots: vec!["/nowhere".into()], ..config() };
        match AnyMechanism::new(name, &config) {
            Err(StartError::Root(..)) => {}
            other => panic!("{name}: {:?}", other.map(|server| server.name())),
        }
        assert_eq!(free(at), Ok(()), "{name}");
    });
}

/// Goes on after a stop; changes its listener's queue when it is sent something, then replies.
struct Late;

impl Application for Late {
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
fn a_backlog_after_a_stop_made_a_foreign_socket_listen() {
    one_by_one(|name| {
        let config = Config { listen: vec![private(4)], drain_timeout: PATIENCE, ..config() };
        let server = Server::start(name, config, || Late);
        let mut client = server.connect();
        let mut back = [0; 4];
        client.write_all(b"x").unwrap();
        client.read_exact(&mut back).unwrap();
        server.remote.stop();
        let until = Instant::now() + PATIENCE;
        while TcpStream::connect(server.address).is_ok() {
            assert!(Instant::now() < until, "{name}: the listener stays open");
            thread::sleep(Duration::from_millis(1));
        }
        // One of these gets the number that the listener had.
        let mut host = Linux::default();
        let sockets: Vec<_> = (0..64)
            .map(|_| host.socket(local(), None, BufferSizes::default()).unwrap())
            .map(|socket| TcpListener::from(taken(socket)))
            .collect();
        client.write_all(b"x").unwrap();
        client.read_exact(&mut back).unwrap();
        for socket in sockets {
            // Listening without an address would have given it one.
            let at = socket.local_addr().unwrap();
            assert_eq!(at.port(), 0, "{name}: a foreign socket listens at {at}");
        }
        drop(client);
        server.stop();
    });
}

/// Says when it has received something, and does not care for stops.
struct Stays(Sender<()>);

impl Application for Stays {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
        let _ = self.0.send(());
    }

    fn stopping(&mut self, _x: Cx<'_, impl Commands, ()>) {}
}

#[test]
fn a_stop_took_two_drains() {
    const DRAIN: Duration = Duration::from_secs(1);
    side_by_side(|name| {
        let (sender, told) = mpsc::channel();
        let server =
            Server::start(name, Config { drain_timeout: DRAIN, ..config() }, || Stays(sender));
        let mut client = server.connect();
        client.write_all(b"x").unwrap();
        next(&told);
        let begin = Instant::now();
        let stats = server.stop();
        let took = begin.elapsed();
        assert!(took >= DRAIN * 9 / 10 && took < DRAIN * 17 / 10, "{name}: {took:?}");
        assert_eq!((stats.accepted, stats.closed), (1, 1), "{name}");
    });
}

/// Echoes, and closes in the way that the first byte asks for.
struct Closes;

impl Application for Closes {
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
fn times_without_an_end_made_it_panic() {
    one_by_one(|name| {
        let forever = Duration::MAX;
        let config = Config {
            drain_timeout: forever,
            progress_interval: forever,
            linger_timeout: forever,
            ..config()
        };
        let server = Server::start(name, config, || Closes);
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

/// Tells the names of its connections, when they begin and when they end.
struct Names(Sender<ConnId>);

impl Application for Names {
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

    fn closed(&mut self, x: Cx<'_, impl Commands, ()>, _why: CloseReason) {
        let _ = self.0.send(x.id);
    }
}

#[test]
fn the_name_of_a_connection_was_given_again() {
    one_by_one(|name| {
        let (sender, told) = mpsc::channel();
        let server = Server::start(name, config(), || Names(sender));
        for generation in 0..300 {
            let client = server.connect();
            // The one before has ended, so each gets the same slot, and a new name.
            let begun = next(&told);
            assert_eq!(begun, ConnId::new(0, generation), "{name}");
            drop(client);
            assert_eq!(next(&told), begun, "{name}");
        }
        server.stop();
    });
}

/// Pauses at once, so that what arrives is kept, and tells how connections end.
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
fn bytes_that_applications_left_had_a_bound_for_each_connection_only() {
    const MAX_HELD: usize = 64 * 1024;
    side_by_side(|name| {
        let (ended, told) = mpsc::channel();
        let config = Config { max_buffered_bytes: MAX_HELD, ..config() };
        let server = Server::start(name, config, move || Pauses(ended));
        // Each leaves a few kilobytes, so not all of them find room.
        let mut clients: Vec<_> = (0..40).map(|_| server.connect()).collect();
        for client in &mut clients {
            // The server may have ended it already.
            let _ = client.write_all(&[7; 4096]);
        }
        assert!(matches!(next(&told), CloseReason::Overrun));
        drop(clients);
        let stats = server.stop();
        assert!((1..40).contains(&stats.overruns), "{name}: {} overruns", stats.overruns);
    });
}

/// What is queued for a client that reads nothing.
enum Queued {
    Copies,
    Pieces,
    Files,
}

/// Queues more of it than there is room for.
struct Queues {
    what: Queued,
    ended: Sender<CloseReason>,
}

impl Application for Queues {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
        // More than the sockets' buffers take at once.
        match self.what {
            Queued::Copies => drop(x.io.send(x.id, Chunk::Copy(&vec![7; 12 << 20]))),
            Queued::Pieces => {
                for _ in 0..120_000 {
                    x.io.send(x.id, Chunk::Static(&[7; 100]));
                }
            }
            Queued::Files => x.io.file_op(x.id, 0, FileOp::Open(Root(0), FilePath::new("file"))),
        }
    }

    fn file(&mut self, x: Cx<'_, impl Commands, ()>, _tag: u32, done: FileOutcome) {
        let FileOutcome::Opened(Ok((file, _))) = done else { panic!("{done:?}") };
        for at in 0..1_000 {
            x.io.send(x.id, Chunk::File(file.clone(), at..at + 1));
        }
    }

    fn closed(&mut self, _x: Cx<'_, impl Commands, ()>, reason: CloseReason) {
        self.ended.send(reason).unwrap();
    }
}

/// Queues it where little memory may be held for all connections.
fn queue_too_much(name: &'static str, what: Queued) {
    let (ended, told) = mpsc::channel();
    let sockets = BufferSizes { send: Some(16 * 1024), receive: None };
    let config = Config { max_buffered_bytes: 64 * 1024, socket_buffers: sockets, ..config() };
    let server = Server::start(name, config, move || Queues { what, ended });
    let mut client = server.connect();
    client.write_all(b"x").unwrap();
    assert!(matches!(next(&told), CloseReason::Overrun), "{name}");
    drop(client);
    assert_eq!(server.stop().overruns, 1);
}

#[test]
fn copies_queued_to_be_sent_had_a_bound_for_each_connection_only() {
    side_by_side(|name| queue_too_much(name, Queued::Copies));
}

#[test]
fn the_notes_of_pieces_that_are_shared_were_not_counted() {
    side_by_side(|name| queue_too_much(name, Queued::Pieces));
}

#[test]
fn files_queued_to_be_sent_had_no_bound() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("file"), vec![7; 4096]).unwrap();
    side_by_side(|name| {
        let (ended, told) = mpsc::channel();
        let config = Config { roots: vec![root.path().to_owned()], ..config() };
        let server = Server::start(name, config, move || Queues { what: Queued::Files, ended });
        let mut client = server.connect();
        client.write_all(b"x").unwrap();
        assert!(matches!(next(&told), CloseReason::Overrun), "{name}");
        drop(client);
        assert_eq!(server.stop().overruns, 1);
    });
}

/// More than a narrow client's socket takes.
static LARGE: [u8; 200_000] = [7; 200_000];

/// Sends some bytes that it copies and more that it shares at each byte.
struct Mixes;

impl Mixes {
    const COPIED: usize = 8 * 1024;
    const LEN: usize = Self::COPIED + LARGE.len();
}

impl Application for Mixes {
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
fn copies_that_were_sent_counted_for_as_long_as_anything_was_queued() {
    // Room for a few copies at a time.
    const MAX_HELD: usize = 8 * Mixes::COPIED;
    side_by_side(|name| {
        let sockets = BufferSizes { send: Some(16 * 1024), receive: None };
        let config = Config { max_buffered_bytes: MAX_HELD, socket_buffers: sockets, ..config() };
        let server = Server::start(name, config, || Mixes);
        let mut client = connect_narrow(&server);
        // The next reply is queued before the last one is taken.
        client.write_all(b"x").unwrap();
        for round in 0..20 {
            client.write_all(b"x").unwrap();
            let taken = client.read_exact(&mut [0; Mixes::LEN]);
            assert!(taken.is_ok(), "{name}: round {round}: {taken:?}");
        }
        drop(client);
        assert_eq!(server.stop().overruns, 0, "{name}");
    });
}

/// Answers each message, and is idle in between. Asked to wait, it does so until the test lets it go on.
struct Answers {
    waiting: Sender<()>,
    go_on: Receiver<()>,
}

impl Application for Answers {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if rx.bytes() == b"wait" {
            self.waiting.send(()).unwrap();
            self.go_on.recv_timeout(PATIENCE).expect("the test lets it go on");
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

    fn is_idle(&self, _state: &()) -> bool {
        true
    }
}

fn answers(name: &'static str, config: Config) -> (Server, Receiver<()>, Sender<()>) {
    let (waiting, is_waiting) = mpsc::channel();
    let (lets_go, go_on) = mpsc::channel();
    let server = Server::start(name, config, move || Answers { waiting, go_on });
    (server, is_waiting, lets_go)
}

fn expect_ok(name: &str, client: &mut TcpStream) {
    let mut reply = [0; 2];
    client.read_exact(&mut reply).unwrap_or_else(|error| panic!("{name}: no reply: {error}"));
    assert_eq!(&reply, b"ok");
}

#[test]
fn requests_that_were_sent_before_a_stop_were_reset() {
    side_by_side(|name| {
        let (server, is_waiting, lets_go) = answers(name, config());
        let mut busy = server.connect();
        let mut known: Vec<_> = (0..20).map(|_| server.connect()).collect();
        for client in &mut known {
            client.write_all(b"x").unwrap();
            expect_ok(name, client);
        }
        busy.write_all(b"wait").unwrap();
        next(&is_waiting);
        // While the loop does something else: requests on open connections, and on new ones.
        let mut new: Vec<_> = (0..20).map(|_| server.connect()).collect();
        for client in known.iter_mut().chain(&mut new) {
            client.write_all(b"x").unwrap();
        }
        server.remote.stop();
        lets_go.send(()).unwrap();
        for client in [&mut busy].into_iter().chain(&mut known).chain(&mut new) {
            expect_ok(name, client);
            assert_eq!(client.read(&mut [0]).unwrap_or_else(|e| panic!("{name}: {e}")), 0);
        }
        let stats = server.stop();
        assert_eq!((stats.accepted, stats.closed), (41, 41), "{name}");
    });
}

#[test]
fn connections_that_a_stop_had_no_room_for_were_not_counted() {
    const CLIENTS: usize = 10;
    side_by_side(|name| {
        let (server, is_waiting, lets_go) =
            answers(name, Config { max_connections: 1, ..config() });
        let mut busy = server.connect();
        busy.write_all(b"wait").unwrap();
        next(&is_waiting);
        let mut new: Vec<_> = (0..CLIENTS).map(|_| server.connect()).collect();
        for client in &mut new {
            client.write_all(b"x").unwrap();
        }
        server.remote.stop();
        lets_go.send(()).unwrap();
        expect_ok(name, &mut busy);
        // What was accepted in time has its turn; a ring may have accepted more.
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
fn idle_connections_kept_a_new_one_waiting() {
    side_by_side(|name| {
        let (server, ..) = answers(name, Config { max_connections: 3, ..config() });
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

#[test]
fn an_idle_connection_whose_peer_had_not_taken_all_ended_to_make_room() {
    side_by_side(|name| {
        // The socket takes the whole reply, so nothing is left to do but for the peer.
        let sockets = BufferSizes { send: Some(1 << 20), receive: None };
        let (server, ..) =
            answers(name, Config { max_connections: 2, socket_buffers: sockets, ..config() });
        let mut slow = connect_narrow(&server);
        slow.write_all(b"large").unwrap();
        slow.read_exact(&mut [0; 2]).unwrap();
        let mut idle = server.connect();
        idle.write_all(b"x").unwrap();
        expect_ok(name, &mut idle);
        let mut new = server.connect();
        new.write_all(b"x").unwrap();
        expect_ok(name, &mut new);
        assert_eq!(idle.read(&mut [0]).unwrap(), 0, "{name}: it was idle for less long");
        slow.read_exact(&mut vec![0; LARGE.len() - 2]).unwrap();
        slow.write_all(b"x").unwrap();
        expect_ok(name, &mut slow);
        drop((slow, new));
        assert_eq!(server.stop().idle_closed, 1, "{name}");
    });
}

#[test]
fn a_connection_that_had_asked_for_nothing_yet_ended_before_idle_ones() {
    side_by_side(|name| {
        let (server, ..) = answers(name, Config { max_connections: 2, ..config() });
        let mut unserved = server.connect();
        let mut idle = server.connect();
        idle.write_all(b"x").unwrap();
        expect_ok(name, &mut idle);
        let mut new = server.connect();
        new.write_all(b"x").unwrap();
        expect_ok(name, &mut new);
        assert_eq!(idle.read(&mut [0]).unwrap(), 0, "{name}: only this one was served");
        unserved.write_all(b"x").unwrap();
        expect_ok(name, &mut unserved);
        drop((unserved, new));
        assert_eq!(server.stop().idle_closed, 1, "{name}");
    });
}

/// Leaves the first bytes and pauses until it is woken; at the message `wait` does what the test lets it
/// do. Tells what it was called for.
struct Leaves {
    paused: Option<ConnId>,
    woken: bool,
    waits: Answers,
    told: Sender<&'static str>,
}

/// More than an application may leave while it is not paused.
static LEFT: [u8; 100] = [7; 100];

impl Application for Leaves {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if rx.bytes() == b"wait" {
            return self.waits.received(x, rx);
        }
        if self.paused.is_none() {
            self.paused = Some(x.id);
            x.io.set_receiving(x.id, false);
            x.io.send(x.id, Chunk::Static(b"ok"));
        } else if self.paused == Some(x.id) && rx.take().as_ref() == LEFT {
            self.told.send("received").unwrap();
        }
    }

    fn woken(&mut self, io: &mut impl Commands, _tag: u64) {
        self.woken = true;
        io.set_receiving(self.paused.unwrap(), true);
    }

    fn stopping(&mut self, x: Cx<'_, impl Commands, ()>) {
        let is_paused = self.paused == Some(x.id);
        if is_paused {
            self.told.send("stopping").unwrap();
        }
        if !is_paused || self.woken {
            x.io.close(x.id, Close::Flush);
        }
    }
}

#[test]
fn what_a_pause_had_left_came_after_the_stop() {
    side_by_side(|name| {
        for is_woken_first in [true, false] {
            let (waiting, is_waiting) = mpsc::channel();
            let (lets_go, go_on) = mpsc::channel();
            let (told, calls) = mpsc::channel();
            let waits = Answers { waiting, go_on };
            let app = move || Leaves { paused: None, woken: false, waits, told };
            let server = Server::start(name, config(), app);
            let (mut client, mut busy) = (server.connect(), server.connect());
            client.write_all(&LEFT).unwrap();
            expect_ok(name, &mut client);
            if is_woken_first {
                // Both are seen in one turn.
                busy.write_all(b"wait").unwrap();
                next(&is_waiting);
                assert!(server.remote.wake(0));
                server.remote.stop();
                lets_go.send(()).unwrap();
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
fn a_stop_forgot_a_connection_that_said_nothing_to_what_it_was_sent() {
    /// Takes what comes and says nothing.
    struct Silent(Answers);

    impl Application for Silent {
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
        let (lets_go, go_on) = mpsc::channel();
        // Longer than anyone waits here for a stop.
        let config = Config { drain_timeout: 3 * PATIENCE, ..config() };
        let server = Server::start(name, config, move || Silent(Answers { waiting, go_on }));
        let mut busy = server.connect();
        let mut clients: Vec<_> = (0..20).map(|_| server.connect()).collect();
        busy.write_all(b"wait").unwrap();
        next(&is_waiting);
        // They are in the sockets when the stop is seen.
        for client in &mut clients {
            client.write_all(b"x").unwrap();
        }
        server.remote.stop();
        lets_go.send(()).unwrap();
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
fn a_panic_of_the_application_was_swallowed() {
    side_by_side(|name| {
        let (panics, told) = mpsc::channel();
        let server = Server::start(name, config(), move || Panics(panics));
        let (mut client, mut other) = (server.connect(), server.connect());
        client.write_all(b"x").unwrap();
        next(&told);
        // Nothing is left open.
        for client in [&mut client, &mut other] {
            let end = client.read(&mut [0]);
            assert!(matches!(&end, Ok(0)) || end.is_err_and(is_reset), "{name}: still open");
        }
        let panic = server.thread.join().expect_err("the panic goes on in `run`");
        assert_eq!(panic.downcast_ref(), Some(&"on purpose"), "{name}");
    });
}

/// Bytes whose owner panics when they are let go of.
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

/// Sends as many of them as the byte says at each byte, each with so many bytes.
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
        }
    }
}

#[test]
fn a_panic_at_the_end_of_shared_bytes_ended_the_server() {
    side_by_side(|name| {
        for len in [10, 1_000, 300_000] {
            let (dropped, drops) = mpsc::channel();
            let server = Server::start(name, config(), move || SendsFragile(len, dropped));
            // All of it is sent, or it is given up: by a reset, and at a stop.
            let (mut taken, mut reset, mut left) =
                (server.connect(), server.connect(), server.connect());
            taken.write_all(&[3]).unwrap();
            taken.read_exact(&mut vec![0; 3 * len]).unwrap();
            (0..3).for_each(|_| next(&drops));
            reset.write_all(&[40]).unwrap();
            reset.read_exact(&mut [0]).unwrap();
            // With bytes unread, it is a reset.
            drop(reset);
            (0..40).for_each(|_| next(&drops));
            left.write_all(&[40]).unwrap();
            left.read_exact(&mut [0]).unwrap();
            taken.write_all(&[1]).unwrap();
            taken.read_exact(&mut vec![0; len]).unwrap();
            drop((taken, left));
            let stats = server.stop();
            assert_eq!((stats.accepted, stats.closed), (3, 3), "{name}");
            assert_eq!(drops.iter().count(), 41, "{name}");
        }
    });
}

fn is_reset(error: std::io::Error) -> bool {
    error.kind() == ErrorKind::ConnectionReset
}

/// A kernel that can't go on once it has accepted a connection and received something.
struct Breaks<K> {
    kernel: K,
    received: bool,
    finished: bool,
    discarded: Sender<bool>,
}

// SAFETY: it hands on what its kernel says.
unsafe impl<K: Kernel> Submit for Breaks<K> {
    type Host = K::Host;

    fn submit(&mut self, token: Token, op: Op) -> Result<Submitted, SubmitError> {
        self.kernel.submit(token, op)
    }

    fn cancel(&mut self, token: Token) {
        self.kernel.cancel(token);
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

impl<K: Kernel> Kernel for Breaks<K> {
    fn turn(&mut self, until: Option<Instant>) -> Result<(), KernelError> {
        if self.received {
            let error = ErrorKind::Other.into();
            return Err(KernelError { context: "breaking", error });
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

/// What an application and the machine saw of a kernel that broke.
fn broken(
    make: impl FnOnce(&Config) -> Result<(), KernelError>,
    told: &Receiver<CloseReason>,
) -> KernelError {
    let fault = make(&config()).unwrap_err();
    assert!(matches!(told.try_recv(), Ok(CloseReason::Failed(_))), "it was not told of the end");
    fault
}

fn after_a_fault<K: Kernel>(kernel: impl FnOnce(&Config) -> K) {
    let (ended, told) = mpsc::channel();
    let (discarded, order) = mpsc::channel();
    let serve = |config: &Config| {
        let kernel = Breaks { kernel: kernel(config), received: false, finished: false, discarded };
        let server = EventLoop::new(kernel, config).unwrap();
        let mut client = TcpStream::connect(server.addresses()[0]).unwrap();
        client.write_all(b"x").unwrap();
        let served = server.run(Pauses(ended)).map(drop);
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(client.read(&mut [0]).ok().filter(|n| *n > 0), None);
        served
    };
    assert_eq!(broken(serve, &told).context, "breaking");
    let order: Vec<bool> = order.iter().collect();
    // The listener and the connection.
    assert_eq!(order, [true; 2], "closed before what was queued for them had its end");
}

#[test]
fn after_a_fault_the_application_was_not_told_and_descriptors_were_closed_before_their_operations()
{
    after_a_fault(|config| {
        PortableKernel::new(Epoll::new().unwrap(), &config.engine_config().unwrap()).unwrap()
    });
    for mode in [Mode::Deferred, Mode::Immediate] {
        if UringKernel::probe(mode).is_ok() {
            after_a_fault(|config| UringKernel::new(&config.uring_config(mode).unwrap()).unwrap());
        }
    }
}
