//! Every mechanism carries bytes; the behaviour suite of the examples has the rest.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use evring::{
    AnyMechanism, Application, Chunk, Close, Commands, Config, Cx, Listener, RemoteHandle, Rx,
    Stats, backends,
};

/// Runs a test beside a server on each mechanism.
fn on_each<A: Application + Send + 'static>(
    app: impl Fn() -> A,
    test: impl Fn(SocketAddr, RemoteHandle),
) -> Vec<Stats> {
    let mut all = Vec::new();
    for backend in backends() {
        if let Err(reason) = &backend.available {
            println!("{} is not available: {reason}", backend.name);
            continue;
        }
        println!("{}", backend.name);
        let (sender, receiver) = mpsc::channel();
        let app = app();
        let server = thread::spawn(move || -> Stats {
            let config =
                Config { listen: vec!["127.0.0.1:0".parse().unwrap()], ..Config::default() };
            let server = AnyMechanism::new(backend.name, &config).unwrap();
            sender.send((server.addresses()[0], server.remote())).unwrap();
            server.run(app).unwrap()
        });
        let (address, remote) = receiver.recv().unwrap();
        test(address, remote.clone());
        remote.stop();
        all.push(server.join().unwrap());
    }
    all
}

struct Echo;

impl Application for Echo {
    type State = ();
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        x.io.send(x.id, Chunk::Received(rx.take()));
        if rx.eof() {
            x.io.close(x.id, Close::Flush);
        }
    }
}

#[test]
fn every_mechanism_echoes_and_stops() {
    let stats = on_each(
        || Echo,
        |address, remote| {
            let mut first = TcpStream::connect(address).unwrap();
            let mut second = TcpStream::connect(address).unwrap();
            let text = b"to and fro".repeat(1000);
            for stream in [&mut first, &mut second] {
                stream.write_all(&text).unwrap();
                let mut back = vec![0; text.len()];
                stream.read_exact(&mut back).unwrap();
                assert_eq!(back, text);
            }
            first.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(first.read(&mut [0]).unwrap(), 0);
            remote.stop();
            assert_eq!(second.read(&mut [0]).unwrap(), 0);
        },
    );
    for stats in stats {
        assert_eq!((stats.accepted, stats.closed), (2, 2));
    }
}

/// Connects to somebody when it is connected to, says something, and closes before it is connected.
struct Farewell {
    to: SocketAddr,
    close: Close,
}

const WORDS: &[u8] = b"last words";

impl Application for Farewell {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
        let id = x.io.connect(self.to);
        x.io.send(id, Chunk::Copy(WORDS));
        x.io.close(id, self.close);
        x.io.close(x.id, Close::Flush);
    }

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
    }
}

#[test]
fn what_is_queued_before_a_connection_stands_is_sent_before_it_is_closed() {
    for close in [Close::Flush, Close::Linger] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        on_each(
            || Farewell { to, close },
            |address, _| {
                let _client = TcpStream::connect(address).unwrap();
                let (mut peer, _) = listener.accept().unwrap();
                let mut heard = Vec::new();
                peer.read_to_end(&mut heard).unwrap();
                assert_eq!(heard, WORDS, "{close:?}");
            },
        );
    }
}

/// Counts what a thread allocates.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATED.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Answers with how often its thread has allocated so far.
struct Confesses;

impl Application for Confesses {
    type State = ();
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.consume(rx.bytes().len());
        x.io.send(x.id, Chunk::Copy(&ALLOCATED.get().to_ne_bytes()));
    }
}

#[test]
fn requests_and_replies_take_no_allocation() {
    on_each(
        || Confesses,
        |address, _| {
            let mut client = TcpStream::connect(address).unwrap();
            let mut ask = || {
                let mut reply = [0; 8];
                client.write_all(b"?").unwrap();
                client.read_exact(&mut reply).unwrap();
                u64::from_ne_bytes(reply)
            };
            // The first ones find room for everything.
            let before = (0..200).map(|_| ask()).last();
            let after = (0..200).map(|_| ask()).last();
            assert_eq!(before, after);
        },
    );
}
