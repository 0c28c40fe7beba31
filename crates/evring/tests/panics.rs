//! A panic of the application leaves no descriptor open, on every mechanism. Nothing else runs in this process, whose
//! descriptors are counted.

mod server;

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use evring::{Application, Chunk, Close, Commands, ConnId, Cx, Listener, Others, Rx};

use server::{Server, TIMEOUT, ask, listening, one_by_one};

/// Tags of wake-ups: what the server is to do.
const CLOSE_ALL: u64 = 0;
const PANIC: u64 = 1;

/// Answers each client, and does not receive from it again. Panics when the test requests it.
struct Panics {
    connections: Vec<ConnId>,
    /// It panics at the next connection.
    at_accept: bool,
    waiting: Sender<()>,
    resumed: Receiver<bool>,
}

impl Application for Panics {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
        assert!(!self.at_accept, "on purpose");
        self.connections.push(x.id);
    }

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if rx.take().as_ref() == b"wait" {
            self.waiting.send(()).unwrap();
            let resumed = self.resumed.recv_timeout(TIMEOUT);
            self.at_accept = resumed.expect("the test continues the application");
        } else {
            x.io.send(x.id, Chunk::Static(b"ok"));
            x.io.set_receiving(x.id, false);
        }
    }

    fn woken(&mut self, io: &mut impl Commands, _all: Others<'_, ()>, tag: u64) {
        assert_ne!(tag, PANIC, "on purpose");
        for connection in self.connections.drain(..) {
            io.close(connection, Close::Reset);
        }
    }
}

/// Runs a server to its panic: while it waits, `provoke` prepares what it finds next, and returns whether it panics at
/// the next connection.
fn panic_of_a_server(name: &'static str, provoke: fn(&Server, &mut Vec<TcpStream>) -> bool) {
    let (waiting, is_waiting) = mpsc::channel();
    let (resume, resumed) = mpsc::channel();
    let server = Server::start(name, listening(1), move || Panics {
        connections: Vec::new(),
        at_accept: false,
        waiting,
        resumed,
    });
    let mut clients: Vec<_> = (0..20).map(|_| server.connect()).collect();
    for client in &mut clients {
        ask(client, "x", "ok");
        // It waits in the server, which then has no receive of this client in flight.
        client.write_all(b"y").unwrap();
    }
    let mut blocked = server.connect();
    blocked.write_all(b"wait").unwrap();
    is_waiting.recv_timeout(TIMEOUT).expect("the application waits");
    resume.send(provoke(&server, &mut clients)).unwrap();
    wait_for_end(&blocked);
    let panic = server.thread.join().expect_err("`run` resumes the panic");
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    assert!(text.is_some_and(|text| text.contains("on purpose")), "{name}: {text:?}");
}

/// A panic while connections have been accepted, or may be, of which the application does not know.
fn among_accepted(server: &Server, clients: &mut Vec<TcpStream>) -> bool {
    clients.extend((0..20).map(|_| server.connect()));
    true
}

/// A panic while connections are being closed.
fn among_closing(server: &Server, _: &mut Vec<TcpStream>) -> bool {
    assert!(server.remote.wake(CLOSE_ALL) && server.remote.wake(PANIC));
    false
}

/// Waits until the server has closed a connection.
fn wait_for_end(mut client: &TcpStream) {
    let mut byte = [0];
    let end = std::io::Read::read(&mut client, &mut byte);
    assert!(!matches!(end, Ok(1..)), "no answer is expected");
}

/// Returns the number of open descriptors, one of them for the count.
fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn panic_of_the_application_leaks_no_descriptor() {
    for provoke in [among_accepted, among_closing] {
        one_by_one(|name| {
            // The first server opens the descriptors that all servers share.
            panic_of_a_server(name, provoke);
            let before = open_descriptors();
            (0..3).for_each(|_| panic_of_a_server(name, provoke));
            // Threads for files may still be ending.
            let until = Instant::now() + TIMEOUT;
            while open_descriptors() > before && Instant::now() < until {
                thread::sleep(Duration::from_millis(1));
            }
            // A thread of the first server may have ended since, with the descriptors of its runtime: fewer than three servers.
            assert!(open_descriptors() <= before, "{name}");
        });
    }
}
