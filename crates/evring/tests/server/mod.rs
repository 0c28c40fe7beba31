//! Servers under test, and the mechanisms that they run on.

use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use evring::{AnyMechanism, Application, Config, RemoteHandle, Stats, backends};

/// Longer than any step takes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the mechanisms that are available, and prints the others.
pub(crate) fn mechanisms() -> impl Iterator<Item = &'static str> {
    backends().into_iter().filter_map(|backend| match backend.available {
        Ok(()) => Some(backend.name),
        Err(reason) => {
            println!("{} is not available: {reason}", backend.name);
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

/// A server in a separate thread.
pub(crate) struct Server {
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
        let (sender, receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            let server = AnyMechanism::new(name, &config).unwrap();
            sender.send((server.addresses()[0], server.remote())).unwrap();
            server.run(app()).unwrap()
        });
        let (address, remote) = receiver.recv().unwrap();
        Server { address, remote, thread }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
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
