//! Memory of idle connections. A single test in a separate process, as it counts the process' allocations.
//! The clients run in another process with its own descriptors: this binary, selected by an environment
//! variable.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::env;
use std::io::{self, BufRead as _, BufReader, Lines, Read as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::Instant;

use evring::{Application, Commands, Cx, Others, Rx};
use examples::Echo;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::client::Client;
use support::{Server, TIMEOUT, config, on_each};

const CONNECTIONS: usize = 10_000;

/// Descriptors that each process needs besides connections.
const OTHER_DESCRIPTORS: usize = 100;

/// Number of clients that send requests concurrently.
const AT_ONCE: usize = 200;

/// Maximum user memory per connection on a ring, in bytes, as documented.
const RING: f64 = 512.0;

/// Maximum for other mechanisms, without a documented value: enough for a task and its timer.
const OTHERS: f64 = 4096.0;

const TEST: &str = "idle_connection_needs_little_memory";
const SERVER: &str = "IDLE_TEST_SERVER";
const CLIENTS: &str = "IDLE_TEST_CLIENTS";
const READY: &str = "the clients are ready";

/// The system allocator, with a counter.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

fn count(grown: usize, shrunk: usize) {
    LIVE.fetch_add(grown.wrapping_sub(shrunk), Ordering::Relaxed);
}

/// Returns the number of allocated bytes.
fn live() -> usize {
    LIVE.load(Ordering::Relaxed)
}

// SAFETY: every call is forwarded unchanged to the system allocator, which upholds the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller upholds the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: the caller upholds the contract of `realloc`, and `old` came from `System`.
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller upholds the contract of `dealloc`, and `old` came from `System`.
        unsafe { System.dealloc(old, layout) }
    }
}

/// [`Echo`] that reports wake-ups.
struct Woken(Sender<u64>);

impl Application for Woken {
    type State = ();
    const MAX_UNCONSUMED: usize = Echo::MAX_UNCONSUMED;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        Echo.received(x, rx);
    }

    fn drained(&mut self, x: Cx<'_, impl Commands, ()>) {
        Echo.drained(x);
    }

    fn woken(&mut self, _: &mut impl Commands, _: Others<'_, Self::State>, tag: u64) {
        self.0.send(tag).expect("the test waits for it");
    }
}

/// Raises the descriptor limit and returns the number of connections that it permits.
fn max_connections() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let wanted = (CONNECTIONS + OTHER_DESCRIPTORS) as u64;
    let max = limit.maximum.map_or(wanted, |max| max.min(wanted));
    if limit.current.is_some_and(|now| now < max) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(max), ..limit }).unwrap();
    }
    max as usize - OTHER_DESCRIPTORS
}

/// Connects from one of many local addresses, each of which has its own ports.
fn connect_from(number: usize, to: SocketAddr) -> Client {
    let SocketAddr::V4(to) = to else { panic!("tests use IPv4") };
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let from = Ipv4Addr::new(127, 0, 7, 1 + (number % 32) as u8);
    bind(&fd, &SocketAddrV4::new(from, 0)).unwrap();
    connect(&fd, &to).expect("the server accepts");
    let client = Client(fd.into());
    client.0.set_read_timeout(Some(TIMEOUT)).unwrap();
    client
}

/// The client process: connects, sends a request on each connection, and waits until its input ends.
fn run_clients(server: SocketAddr) {
    let connections = env::var(CLIENTS).unwrap().parse().unwrap();
    assert!(max_connections() >= connections);
    let mut clients: Vec<Client> = Vec::with_capacity(connections);
    while clients.len() < connections {
        let (old, new) = (clients.len(), connections.min(clients.len() + AT_ONCE));
        clients.extend((old..new).map(|number| connect_from(number, server)));
        clients[old..].iter_mut().for_each(|client| client.send(b"a few bytes"));
        clients[old..].iter_mut().for_each(|client| client.expect(b"a few bytes"));
    }
    println!("\n{READY}");
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// The client process, after all clients have been served.
struct Clients {
    process: Child,
    /// Kept open until the process ends, as it writes more.
    output: Lines<BufReader<ChildStdout>>,
}

fn start_clients(connections: usize, server: SocketAddr) -> Clients {
    let mut process = Command::new(env::current_exe().unwrap())
        .args(["--exact", TEST, "--nocapture", "--test-threads=1"])
        .env(SERVER, server.to_string())
        .env(CLIENTS, connections.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(process.stdout.take().unwrap()).lines();
    assert!(output.any(|line| line.unwrap() == READY), "the clients failed");
    Clients { process, output }
}

impl Clients {
    /// Closes all clients.
    fn end(mut self) {
        drop(self.process.stdin.take());
        self.output.for_each(drop);
        assert!(self.process.wait().unwrap().success());
    }
}

/// Returns the bytes per connection: since the server ran, and since before it was set up.
fn measure(backend: &'static str, connections: usize) -> (f64, f64) {
    let (sender, receiver) = mpsc::channel();
    let config = config().with(|c| c.max_connections = connections as u32);
    let without = live();
    let server = Server::start(backend, config, move || Woken(sender));
    // The server cleans up after a completed send one turn after its peer receives the bytes.
    let settled_bytes = || {
        for tag in 0..3 {
            assert!(server.remote.wake(tag));
            assert_eq!(receiver.recv_timeout(TIMEOUT), Ok(tag));
        }
        live()
    };
    let before = settled_bytes();
    let clients = start_clients(connections, server.address);
    let after = settled_bytes();
    clients.end();
    assert_eq!(server.stop().accepted, connections as u64);
    let each = |before: usize| after.saturating_sub(before) as f64 / connections as f64;
    (each(before), each(without))
}

#[test]
fn idle_connection_needs_little_memory() {
    if let Ok(server) = env::var(SERVER) {
        return run_clients(server.parse().unwrap());
    }
    let connections = max_connections();
    if connections < CONNECTIONS {
        println!(
            "not tested: the limit of descriptors is enough for {connections} connections only"
        );
    }
    on_each(|backend| {
        let begin = Instant::now();
        let (bytes, with_set_up) = measure(backend, connections);
        let time = begin.elapsed();
        println!("{backend}: {bytes:.1} bytes, {with_set_up:.1} with the set-up, in {time:.1?}");
        let max = if backend == "uring" || backend.starts_with("send") { RING } else { OTHERS };
        assert!(bytes <= max, "{bytes:.1} bytes for an idle connection, more than {max}");
    });
}
