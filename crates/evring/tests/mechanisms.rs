//! Basic tests of every mechanism; the examples contain the contract tests.

mod bounds;
mod disk_file;
mod server;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

use evring::files::{Access, File, FileOp, FileOutcome, FilePath};
use evring::{Application, Chunk, Close, Commands, Cx, FileDelivery, Listener, Root, Rx, Stats};
use server::{Server, listening, mechanisms};

/// Runs a test against a server on each mechanism.
fn on_each<A: Application + Send + 'static>(
    app: impl Fn() -> A,
    test: impl Fn(&Server),
) -> Vec<Stats> {
    let run = |name: &'static str| {
        println!("{name}");
        let app = app();
        let server = Server::start(name, listening(1), || app);
        test(&server);
        server.stop()
    };
    mechanisms().map(run).collect()
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
        |server| {
            let (mut first, mut second) = (server.connect(), server.connect());
            let text = b"to and fro".repeat(1000);
            for stream in [&mut first, &mut second] {
                stream.write_all(&text).unwrap();
                let mut back = vec![0; text.len()];
                stream.read_exact(&mut back).unwrap();
                assert_eq!(back, text);
            }
            first.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(first.read(&mut [0]).unwrap(), 0);
            server.remote.stop();
            assert_eq!(second.read(&mut [0]).unwrap(), 0);
        },
    );
    for stats in stats {
        assert_eq!((stats.accepted, stats.closed), (2, 2));
    }
}

/// On each accepted connection, opens another one, sends bytes and closes it before it is connected.
struct ConnectsAndCloses {
    to: SocketAddr,
    close: Close,
}

const BYTES: &[u8] = b"last words";

impl Application for ConnectsAndCloses {
    type State = ();
    const MAX_UNCONSUMED: usize = 64;

    fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
        let id = x.io.connect(self.to);
        x.io.send(id, Chunk::Copy(BYTES));
        x.io.close(id, self.close);
        x.io.close(x.id, Close::Flush);
    }

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
    }
}

#[test]
fn bytes_queued_before_a_connect_completes_are_sent_before_the_close() {
    for close in [Close::Flush, Close::Linger] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        on_each(
            || ConnectsAndCloses { to, close },
            |server| {
                let _client = server.connect();
                let (mut peer, _) = listener.accept().unwrap();
                let mut received = Vec::new();
                peer.read_to_end(&mut received).unwrap();
                assert_eq!(received, BYTES, "{close:?}");
            },
        );
    }
}

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: forwards to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATED.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Replies with the number of allocations of its thread.
struct ReportsAllocations;

impl Application for ReportsAllocations {
    type State = ();
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.consume(rx.bytes().len());
        x.io.send(x.id, Chunk::Copy(&ALLOCATED.get().to_ne_bytes()));
    }
}

#[test]
fn requests_and_replies_do_not_allocate() {
    on_each(
        || ReportsAllocations,
        |server| {
            let mut client = server.connect();
            let mut ask = || {
                let mut reply = [0; 8];
                client.write_all(b"?").unwrap();
                client.read_exact(&mut reply).unwrap();
                u64::from_ne_bytes(reply)
            };
            // The first requests fill the caches.
            let before = (0..200).map(|_| ask()).last();
            let after = (0..200).map(|_| ask()).last();
            assert_eq!(before, after);
        },
    );
}

const FILE_BYTES: usize = 1 << 20;

/// Replies with a file, and the number of allocations of its thread.
#[derive(Default)]
struct ReportsAllocationsOfFiles(Option<File>);

impl ReportsAllocationsOfFiles {
    fn reply(&self, x: &mut Cx<'_, impl Commands, ()>) {
        let Some(file) = &self.0 else { return };
        x.io.send(x.id, Chunk::File(file.clone(), 0..FILE_BYTES as u64));
        x.io.send(x.id, Chunk::Copy(&ALLOCATED.get().to_ne_bytes()));
    }
}

impl Application for ReportsAllocationsOfFiles {
    type State = ();
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, mut x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.consume(rx.bytes().len());
        match &self.0 {
            Some(_) => self.reply(&mut x),
            None => {
                let path = FilePath::new("file");
                x.io.file_op(x.id, 0, FileOp::Open((Root(0), path), Access::Read));
            }
        }
    }

    fn file(
        &mut self,
        mut x: Cx<'_, impl Commands, ()>,
        _: u32,
        done: std::io::Result<FileOutcome>,
    ) {
        let Ok(FileOutcome::Opened(opened)) = done else { panic!("{done:?}") };
        self.0 = Some(opened.0);
        self.reply(&mut x);
    }
}

/// Each part of 64 KiB had memory of its own.
#[test]
fn cached_files_that_are_read_ahead_were_allocated_for() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("file"), vec![b'x'; FILE_BYTES]).unwrap();
    for name in mechanisms() {
        let config = listening(1).with(|config| {
            config.roots = vec![root.path().to_owned()];
            config.send_policy = FileDelivery::Ded.send_policy();
        });
        let server = Server::start(name, config, ReportsAllocationsOfFiles::default);
        let mut client = server.connect();
        let mut reply = vec![0; FILE_BYTES + 8];
        let mut ask = || {
            client.write_all(b"?").unwrap();
            client.read_exact(&mut reply).unwrap();
            u64::from_ne_bytes(*reply.last_chunk().unwrap())
        };
        // The first replies fill the caches.
        let before = (0..20).map(|_| ask()).last().unwrap();
        let after = (0..20).map(|_| ask()).last().unwrap();
        let stats = server.stop();
        // Each reply, in parts of 64 KiB.
        assert_eq!(stats.read_ahead, 40 * 16, "{name}");
        // The entries of FlexSC read into memory that each operation owns.
        assert!(before == after || name.starts_with("flexsc"), "{name}: {}", after - before);
    }
}
