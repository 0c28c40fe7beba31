//! Servers on each mechanism, and clients with timeouts.

#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(unreachable_pub, reason = "a test binary has no outside")]

pub mod client;
#[path = "../../../crates/shared-ring/tests/descriptor_limit/mod.rs"]
mod descriptor_limit;
pub mod script;

use std::io::Write as _;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Once;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use evring::sockets::BufferSizes;
use evring::{AnyMechanism, Application, Config, RemoteHandle, Stats};
use rustix::net::{self, AddressFamily, SocketType};

/// Longer than any step takes on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Runs a test on every available mechanism, and prints the others with the reasons.
pub fn on_each(test: impl Fn(&'static str)) {
    static REPORT: Once = Once::new();
    descriptor_limit::raise();
    let backends = evring::mechanisms::backends();
    REPORT.call_once(|| {
        for backend in &backends {
            if let Err(reason) = &backend.available {
                // `eprintln!` is captured in tests that pass.
                let _ = writeln!(std::io::stderr(), "not tested: {}: {reason}", backend.name);
            }
        }
    });
    let mut tested = 0;
    for backend in backends.iter().filter(|backend| backend.available.is_ok()) {
        let _name = NameOnPanic(backend.name);
        test(backend.name);
        tested += 1;
    }
    assert!(tested > 0, "no mechanism is available");
}

/// Runs a test on all mechanisms concurrently, for tests that wait for timers.
pub fn on_each_at_once(test: impl Fn(&'static str) + Sync) {
    let names = std::sync::Mutex::new(Vec::new());
    on_each(|name| names.lock().unwrap().push(name));
    thread::scope(|scope| {
        for name in names.into_inner().unwrap() {
            let test = &test;
            scope.spawn(move || {
                let _name = NameOnPanic(name);
                test(name);
            });
        }
    });
}

struct NameOnPanic(&'static str);

impl Drop for NameOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("this was on the mechanism `{}`", self.0);
        }
    }
}

/// A socket that does not listen, whose address refuses connections as long as it is open. The address of a closed
/// listener may be that of the next one.
pub fn refuse() -> (OwnedFd, SocketAddr) {
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = net::getsockname(&socket).unwrap().try_into().unwrap();
    (socket, address)
}

/// A configuration for tests: one address, little memory, short timeouts.
pub fn config() -> Config {
    Config::default().with(|c| {
        c.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        c.max_connections = 100;
        c.buffers = 64;
        c.linger_timeout = Duration::from_secs(5);
        c.admission = None;
        c.drain_timeout = Duration::from_millis(50);
    })
}

/// The same with minimum socket buffers.
pub fn tiny() -> Config {
    config().with(|c| c.socket_buffers = BufferSizes { send: Some(2048), receive: Some(2048) })
}

/// An application that runs in a separate thread.
pub struct Server {
    pub address: SocketAddr,
    pub remote: RemoteHandle,
    thread: Option<JoinHandle<()>>,
    stats: Receiver<Stats>,
}

impl Server {
    /// Starts the application that `app` returns on the mechanism `backend`.
    pub fn start<A: Application + 'static>(
        backend: &'static str,
        config: Config,
        app: impl FnOnce() -> A + Send + 'static,
    ) -> Server {
        let (sender, receiver) = mpsc::channel();
        let (stats_sender, stats) = mpsc::channel();
        let serve = move || {
            let mechanism = AnyMechanism::new(backend, &config).expect("the mechanism can run");
            let address = mechanism.addresses().first().copied();
            sender.send((address, mechanism.remote())).expect("the test waits for it");
            let stats = mechanism.run(app()).expect("the mechanism runs to its end");
            let _ = stats_sender.send(stats); // a failed test does not receive
        };
        let name = format!("server {backend}");
        let thread = thread::Builder::new().name(name).spawn(serve).unwrap();
        let (address, remote) = receiver.recv_timeout(TIMEOUT).expect("the server starts");
        let address = address.unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
        Server { address, remote, thread: Some(thread), stats }
    }

    /// Stops the server; every connection must have closed.
    pub fn stop(mut self) -> Stats {
        self.remote.stop();
        let stats = self.stats.recv_timeout(TIMEOUT).expect("the server stops, without a panic");
        assert_eq!(stats.accepted + stats.connected, stats.closed, "connections leaked: {stats:?}");
        // Until it has ended, a thread may open and close descriptors, such as in its allocator.
        self.thread.take().expect("stopped once").join().expect("the server thread does not panic");
        stats
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.remote.stop();
    }
}

/// Returns bytes that differ from their neighbors at every position.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}
