//! Hostile clients on real sockets, on every mechanism: what a server uses stays within the table of bounds in
//! ARCHITECTURE.md.

use crate::disk_file::DiskFile;
use crate::disk_file::page_cache::{PAGE, cached_pages};
use crate::server;

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use evring::__private::Usage;
use evring::files::{Access, File, FileOp, FileOutcome, WriteAt};
use evring::sockets::BufferSizes;
use evring::{
    AnyMechanism, Application, Chunk, CloseReason, Commands, Config, Cx, FileDelivery, Listener,
    Root, Rx, Stats,
};
use server::{Server, ask, connect, listening, one_by_one};
use shared_ring::author::ReadAhead;

/// Clients at a time.
const CLIENTS: usize = 140;

/// Of these, clients that have a place at once.
const SERVED: usize = 120;

/// Steps of all clients together.
const STEPS: usize = 400;

/// After so many steps, the server answers an honest client: it has seen what was sent before.
const STEPS_PER_REPLY: usize = 15;

const REPLY: &[u8] = &[b's'; 3_000];

const MAX_BUFFERED: usize = 200_000;

const MAX_FILE_OPS: usize = 64;

/// A file that no send takes whole.
const FILE_BYTES: u64 = 300_000;

/// Has the tests run one after the other, as each has hundreds of descriptors.
fn alone() -> impl Drop {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does what each byte of its clients commands.
struct Obedient(mpsc::Sender<CloseReason>);

impl Application for Obedient {
    type State = Option<File>;
    const MAX_UNCONSUMED: usize = 16 * 1024;

    fn accepted(&mut self, x: Cx<'_, impl Commands, Self::State>, _at: Listener) {
        // Until the file is open.
        x.io.set_receiving(x.id, false);
        x.io.file_op(x.id, 0, FileOp::Open((Root(0), "file".into()), Access::Read));
    }

    fn received(&mut self, x: Cx<'_, impl Commands, Self::State>, rx: &mut Rx<'_>) {
        while let Some(command) = rx.bytes().first().copied() {
            match command {
                // Leaves bytes unconsumed.
                b'l' => return,
                b'p' => x.io.set_receiving(x.id, false),
                b'c' => drop(x.io.send(x.id, Chunk::Copy(&[b'c'; 3_000]))),
                b's' => drop(x.io.send(x.id, Chunk::Static(REPLY))),
                b'f' => {
                    let file = x.state.clone().expect("it receives since the file is open");
                    x.io.send(x.id, Chunk::File(file, 0..FILE_BYTES));
                    x.io.send(x.id, Chunk::Copy(&[b'f'; 100]));
                }
                b'o' => {
                    let listed = || FileOp::List((Root(0), ".".into()));
                    let stat = || FileOp::Stat((Root(0), "file".into()));
                    (0..20).for_each(|n| {
                        x.io.file_op(x.id, 1, if n % 4 == 0 { listed() } else { stat() });
                    });
                }
                _ => {
                    let at = (Root(0), "written".into());
                    x.io.file_op(x.id, 2, FileOp::Open(at, Access::Create));
                }
            }
            rx.consume(1);
            if command == b'p' {
                x.io.set_deadline(x.id, Some(x.io.now() + Duration::from_millis(5)));
                return;
            }
        }
    }

    fn file(
        &mut self,
        x: Cx<'_, impl Commands, Self::State>,
        tag: u32,
        done: io::Result<FileOutcome>,
    ) {
        if let Ok(FileOutcome::Opened(opened)) = done {
            match tag {
                0 => {
                    *x.state = Some(opened.0);
                    x.io.set_receiving(x.id, true);
                }
                _ => (0..3).for_each(|_| {
                    let write =
                        FileOp::write(opened.0.clone(), WriteAt::Offset(0), vec![7; 60_000]);
                    x.io.file_op(x.id, 3, write);
                }),
            }
        }
    }

    fn expired(&mut self, x: Cx<'_, impl Commands, Self::State>) {
        x.io.set_receiving(x.id, true);
    }

    fn closed(&mut self, _x: Cx<'_, impl Commands, Self::State>, reason: CloseReason) {
        // The test has what it needs once it no longer listens.
        let _ = self.0.send(reason);
    }
}

/// The largest values of what a server used.
fn add(max: &mut Usage, usage: &Usage) {
    max.operations = max.operations.max(usage.operations);
    max.tail = max.tail.max(usage.tail);
    max.queued_files = max.queued_files.max(usage.queued_files);
    max.held = max.held.max(usage.held);
    max.file_ops = max.file_ops.max(usage.file_ops);
    max.deferred_file_ops = max.deferred_file_ops.max(usage.deferred_file_ops);
    max.file_ops_per_connection = max.file_ops_per_connection.max(usage.file_ops_per_connection);
    max.lists = max.lists.max(usage.lists);
    max.spare = max.spare.max(usage.spare);
    max.read_ahead_bytes = max.read_ahead_bytes.max(usage.read_ahead_bytes);
    max.write_bytes = max.write_bytes.max(usage.write_bytes);
}

/// The maximum and the last usage of a server, and the bounds that it exceeded.
#[derive(Default)]
struct Report {
    max: Usage,
    last: Usage,
    exceeded: Option<(&'static str, usize, usize)>,
    stats: Stats,
    reasons: Vec<CloseReason>,
}

fn config(root: PathBuf, policy: FileDelivery) -> Config {
    listening(1).with(|c| {
        c.roots = vec![root];
        c.writable_roots = vec![Root(0)];
        c.max_connections = SERVED as u32 + 10;
        (c.buffers, c.buffer_size) = (16, 1_024);
        c.max_queued_bytes = 200_000;
        c.max_buffered_bytes = MAX_BUFFERED;
        c.max_file_ops = MAX_FILE_OPS as u32;
        c.socket_buffers = BufferSizes { send: Some(16 * 1024), receive: Some(16 * 1024) };
        c.drain_timeout = Duration::ZERO;
        c.send_policy = policy.send_policy();
    })
}

/// Runs a server while `clients` use it.
fn serve(name: &'static str, config: Config, clients: impl FnOnce(SocketAddr)) -> Report {
    let (sender, receiver) = mpsc::channel();
    let (reason, reasons) = mpsc::channel();
    let server = thread::spawn(move || {
        let server = AnyMechanism::new(name, &config).unwrap();
        sender.send((server.addresses()[0], server.remote())).unwrap();
        // On a ring, all buffers may land twice before a pause takes effect, elsewhere one.
        let is_ring = ["uring", "send", "send-ps1", "send-ps2"].contains(&name);
        let buffers = if is_ring { 2 * usize::from(config.buffers) } else { 1 };
        let landed = buffers * config.buffer_size as usize;
        let (usage, seen) = mpsc::channel();
        let (mut max, mut exceeded) = (Usage::default(), None);
        let inspect = move |now: &Usage| {
            exceeded = exceeded.or_else(|| now.exceeded(&config, landed));
            add(&mut max, now);
            if now.ending {
                usage.send((max, *now, exceeded)).expect("this thread receives it later");
            }
        };
        let stats = server.run_inspected(Obedient(reason), inspect).unwrap();
        let (max, last, exceeded) = seen.try_iter().last().expect("it has ended");
        Report { max, last, exceeded, stats, reasons: Vec::new() }
    });
    let (address, remote) = receiver.recv().unwrap();
    clients(address);
    remote.stop();
    let report = server.join().expect("the server panicked");
    Report { reasons: reasons.try_iter().collect(), ..report }
}

/// Clients that command more than the server may use, and read little or nothing. Returns whether the file was not cached at
/// first.
fn hostile(address: SocketAddr, file: &DiskFile, seed: u64) -> bool {
    let mut random = fastrand::Rng::with_seed(seed);
    let open = || {
        let stream = connect(address);
        stream.set_nonblocking(true).unwrap();
        stream
    };
    let mut honest = connect(address);
    ask(&mut honest, "s", REPLY);
    let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| open()).collect();
    let is_evicted = file.evict();
    clients.iter_mut().for_each(|client| client.write_all(b"f").unwrap());
    // Each of these has a send and a receive in flight.
    for client in &clients[..SERVED] {
        while client.peek(&mut [0]).is_err() {
            thread::yield_now();
        }
    }
    for step in 0..STEPS {
        if step % STEPS_PER_REPLY == 0 {
            ask(&mut honest, "s", REPLY);
        }
        let at = random.usize(..CLIENTS);
        let ended = match random.usize(..12) {
            0 => true,
            1..4 => {
                let mut piece = vec![0; 60_000];
                matches!(clients[at].read(&mut piece), Ok(0))
            }
            _ => {
                let command = random.choice(*b"lpcccsfffoow").unwrap();
                let n = random.choice([1, 10, 200, 5_000]).unwrap();
                // Each of these is many operations.
                let n = if matches!(command, b'o' | b'w') { n.min(10) } else { n };
                let sent = clients[at].write(&vec![command; n]);
                sent.is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock)
            }
        };
        if ended {
            // With unread bytes, it ends with a reset.
            clients[at] = open();
        }
    }
    is_evicted
}

/// Returns whether a connection failed as its client has left.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

#[test]
fn hostile_clients_exceed_no_bound_of_a_server() {
    let file = DiskFile::new(FILE_BYTES);
    let _alone = alone();
    one_by_one(|name| {
        for policy in [FileDelivery::Plain, FileDelivery::Ded] {
            let config = config(file.root.path().to_owned(), policy);
            let mut is_evicted = false;
            let clients = |address| is_evicted = hostile(address, &file, 7);
            let report = serve(name, config, clients);
            assert_eq!(report.exceeded, None, "{name} {policy}");
            // The clients did reach what they attack.
            let max = report.max;
            assert_eq!(max.file_ops_per_connection, 16, "{name} {policy}");
            assert_eq!(max.lists, 4, "{name} {policy}");
            assert!(max.deferred_file_ops > 0, "{name} {policy}");
            assert!(max.held > MAX_BUFFERED / 2, "{name} {policy}: {}", max.held);
            assert!(max.spare >= SERVED, "{name} {policy}: {}", max.spare);
            assert!(max.tail > 0 && max.write_bytes > 0, "{name} {policy}");
            let reads_ahead = max.read_ahead_bytes > 0;
            match policy {
                FileDelivery::Ded => assert!(reads_ahead || !is_evicted, "{name}"),
                _ => assert!(!reads_ahead, "{name} {policy}"),
            }
            assert!(max.operations > SERVED * 3 / 2, "{name} {policy}: {}", max.operations);
            assert!(report.stats.overruns > 0, "{name} {policy}");
            // No operation was rejected.
            let rejected = |reason: &CloseReason| match reason {
                CloseReason::Failed(error) => !is_end(error),
                _ => false,
            };
            assert_eq!(report.reasons.iter().filter(|reason| rejected(reason)).count(), 0);
            let last = report.last;
            assert_eq!((last.connections, last.held, last.file_ops), (0, 0, 0), "{name} {policy}");
        }
    });
}

/// Sends each client a part of a file of its own, which no other client has.
struct SendsParts(u64);

/// More than Linux reads ahead at once.
const PART: u64 = 2 << 20;

impl Application for SendsParts {
    type State = ();
    const MAX_UNCONSUMED: usize = 16;

    fn accepted(&mut self, x: Cx<'_, impl Commands, ()>, _at: Listener) {
        x.io.file_op(x.id, 0, FileOp::Open((Root(0), "file".into()), Access::Read));
    }

    fn received(&mut self, _x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.take();
    }

    fn file(&mut self, x: Cx<'_, impl Commands, ()>, _tag: u32, done: io::Result<FileOutcome>) {
        if let Ok(FileOutcome::Opened(opened)) = done {
            let begin = self.0 * PART;
            self.0 += 1;
            x.io.send(x.id, Chunk::File(opened.0, begin..begin + PART));
        }
    }
}

/// Returns the number of bytes in the page cache of each part of a file.
fn cached_bytes(file: &fs::File) -> Vec<usize> {
    let count = |part: &[bool]| part.iter().filter(|is_cached| **is_cached).count() * PAGE;
    cached_pages(file).chunks(PART as usize / PAGE).map(count).collect()
}

/// Returns the number of bytes that wait in a socket, up to 60,000. A signal for a server of the process may interrupt it.
fn peeked(client: &TcpStream) -> usize {
    loop {
        match client.peek(&mut [0; 60_000]) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            peeked => return peeked.unwrap(),
        }
    }
}

#[test]
fn clients_that_do_not_read_had_any_number_of_sockets_read_ahead() {
    const MAX: usize = ReadAhead::MAX_SOCKETS as usize;
    const CLIENTS: usize = MAX + 20;
    /// Bytes that the buffers of a connection take, plus those that are read for a socket without read-ahead.
    const TAKEN: usize = 256 * 1024;
    let _alone = alone();
    // On a disk; a directory in memory keeps its files cached.
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    one_by_one(|name| {
        let file = fs::File::create_new(root.path().join("file"));
        let file = file
            .and_then(|_| fs::File::options().read(true).write(true).open(root.path().join("file")))
            .unwrap();
        file.set_len(CLIENTS as u64 * PART).unwrap();
        let config = listening(1).with(|c| {
            c.roots = vec![root.path().to_owned()];
            c.socket_buffers = BufferSizes { send: Some(16 * 1024), receive: None };
            c.drain_timeout = Duration::ZERO;
        });
        let server = Server::start(name, config, || SendsParts(0));
        let clients: Vec<_> = (0..CLIENTS).map(|_| server.connect()).collect();
        for client in &clients {
            // The first piece has been sent, and the next one is on its way.
            while peeked(client) < 60_000 {
                thread::yield_now();
            }
        }
        let cached = cached_bytes(&file);
        let ahead = cached.iter().filter(|bytes| **bytes > TAKEN).count();
        println!("{name}: {ahead} sockets");
        assert!(ahead <= MAX, "{name}: {ahead} sockets");
        drop(clients);
        server.stop();
        fs::remove_file(root.path().join("file")).unwrap();
    });
}
