//! Servers under test, and the mechanisms that they run on.
#![allow(dead_code, reason = "not every test uses all of it")]

#[path = "../../../shared-ring/tests/descriptor_limit/mod.rs"]
mod descriptor_limit;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use evring::__private::Usage;
use evring::mechanisms::backends;
use evring::sockets::BufferSizes;
use evring::{AnyMechanism, Application, Config, HIGH_WATER, RemoteHandle, Stats};

/// Longer than any step takes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the mechanisms that are available, and prints the others.
pub(crate) fn mechanisms() -> impl Iterator<Item = &'static str> {
    descriptor_limit::raise();
    backends().into_iter().filter_map(|backend| match backend.available {
        Ok(()) => Some(backend.name),
        Err(reason) => {
            println!("not tested: {}: {reason}", backend.name);
            None
        }
    })
}

/// Runs a test on all mechanisms concurrently, for tests that mostly wait.
pub(crate) fn side_by_side(test: impl Fn(&'static str) + Sync) {
    let test = &test;
    thread::scope(|scope| {
        let running: Vec<_> =
            mechanisms().map(|name| (name, scope.spawn(move || test(name)))).collect();
        for (name, thread) in running {
            assert!(thread.join().is_ok(), "failed on {name}");
            println!("{name}: passed");
        }
    });
}

/// Runs a test on one mechanism after the other.
pub(crate) fn one_by_one(test: impl Fn(&'static str)) {
    for name in mechanisms() {
        println!("{name}");
        test(name);
    }
}

/// Returns settings with one listener, whose connections may have 1 MiB of replies queued.
pub(crate) fn small_queues() -> Config {
    listening(1).with(|c| {
        c.max_queued_bytes = 1 << 20;
        c.socket_buffers = BufferSizes { send: Some(64 << 10), receive: Some(64 << 10) };
    })
}

/// Has a server echo more than it may queue, of one value of the bytes, to a client that reads when it can write no more.
pub(crate) fn echo_to_a_late_reader(server: SocketAddr, value: u8) {
    const BYTES: usize = 4 << 20;
    let mut client = connect(server);
    let mut writes = client.try_clone().unwrap();
    let written = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let part = [value; 4096];
            while written.load(Ordering::Relaxed) < BYTES {
                writes.write_all(&part).unwrap();
                written.fetch_add(part.len(), Ordering::Relaxed);
            }
        });
        let mut before = 0;
        // A server that has stopped receiving has taken at least as much.
        while before < HIGH_WATER || before != written.load(Ordering::Relaxed) {
            before = written.load(Ordering::Relaxed);
            thread::sleep(Duration::from_millis(100));
        }
        let (mut replies, mut part) = (0, vec![0; 1 << 16]);
        while replies < BYTES {
            let len = client.read(&mut part).unwrap();
            assert!(len > 0, "closed after {replies} bytes of replies");
            let wrong = part[..len].iter().position(|byte| *byte != value);
            assert_eq!(
                wrong.map(|at| part[at..len.min(at + 8)].escape_ascii().to_string()),
                None,
                "after {replies} bytes"
            );
            replies += len;
        }
    });
}

/// Returns a configuration with `listeners` listeners, without admission control: on a busy machine it would turn
/// handlers off, and reset clients.
pub(crate) fn listening(listeners: usize) -> Config {
    Config::default().with(|c| {
        c.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0)); listeners];
        c.admission = None;
    })
}

/// Sends a request and expects an answer.
#[track_caller]
pub(crate) fn ask(client: &mut TcpStream, question: impl AsRef<[u8]>, expected: impl AsRef<[u8]>) {
    client.write_all(question.as_ref()).unwrap();
    let expected = expected.as_ref();
    let mut answer = vec![0; expected.len()];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer.escape_ascii().to_string(), expected.escape_ascii().to_string());
}

/// Returns what an application reports next.
pub(crate) fn next<T>(receiver: &Receiver<T>) -> T {
    receiver.recv_timeout(TIMEOUT).expect("the application reported nothing in time")
}

/// Returns whether a connection failed as it was reset.
pub(crate) fn is_reset(error: io::Error) -> bool {
    error.kind() == ErrorKind::ConnectionReset
}

/// Connects with a timeout for reads.
pub(crate) fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// A server in a separate thread.
pub(crate) struct Server {
    /// Those of all listeners, and the first one.
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) address: SocketAddr,
    pub(crate) remote: RemoteHandle,
    pub(crate) thread: JoinHandle<Stats>,
}

impl Server {
    pub(crate) fn start<A: Application + 'static>(
        name: &'static str,
        config: Config,
        app: impl FnOnce() -> A + Send + 'static,
    ) -> Server {
        Server::start_with(name, config, |_| (app(), ())).0
    }

    /// Starts the application that `prepare` returns for a mechanism, with something for the test.
    pub(crate) fn start_with<A: Application + 'static, T: Send + 'static>(
        name: &'static str,
        config: Config,
        prepare: impl FnOnce(&mut AnyMechanism) -> (A, T) + Send + 'static,
    ) -> (Server, T) {
        Server::start_thread(name, config, prepare, |server, app| server.run(app).unwrap())
    }

    /// Starts an application, and calls `inspect` with what the server uses, after each completion and each turn.
    pub(crate) fn start_inspected<A: Application + 'static>(
        name: &'static str,
        config: Config,
        app: impl FnOnce() -> A + Send + 'static,
        inspect: impl FnMut(&Usage) + Send + 'static,
    ) -> Server {
        let run = |server: AnyMechanism, app| server.run_inspected(app, inspect).unwrap();
        Server::start_thread(name, config, |_| (app(), ()), run).0
    }

    fn start_thread<A: Application + 'static, T: Send + 'static>(
        name: &'static str,
        config: Config,
        prepare: impl FnOnce(&mut AnyMechanism) -> (A, T) + Send + 'static,
        run: impl FnOnce(AnyMechanism, A) -> Stats + Send + 'static,
    ) -> (Server, T) {
        let (sender, receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut server = AnyMechanism::new(name, &config).unwrap();
            let (app, parts) = prepare(&mut server);
            sender.send((server.addresses().to_vec(), server.remote(), parts)).unwrap();
            run(server, app)
        });
        let (addresses, remote, parts) = receiver.recv().unwrap();
        (Server { address: addresses[0], addresses, remote, thread }, parts)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        self.connect_to(0)
    }

    /// Connects to one of the listeners.
    pub(crate) fn connect_to(&self, listener: usize) -> TcpStream {
        connect(self.addresses[listener])
    }

    /// Stops the server and waits for its end, with a timeout.
    pub(crate) fn stop(self) -> Stats {
        self.remote.stop();
        let until = Instant::now() + TIMEOUT;
        while !self.thread.is_finished() {
            assert!(Instant::now() < until, "the server does not stop");
            thread::sleep(Duration::from_millis(1));
        }
        self.thread.join().expect("the server panicked")
    }
}

/// Repeats a test that returns false if the machine was too slow for it.
pub(crate) fn in_time(name: &str, test: impl Fn() -> bool) {
    let until = Instant::now() + 3 * TIMEOUT;
    while !test() {
        assert!(Instant::now() < until, "{name}: never in time");
    }
}
