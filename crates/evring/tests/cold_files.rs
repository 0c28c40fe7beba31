//! Files that are not in the page cache of a simulated machine, sent by the ring, by the engine and by posted calls.

use crate::disk_file::{DiskFile, contents};
use crate::sends_file::{SendsFile, sends_whole_file};
use crate::server::{Server, listening, one_by_one};

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use evring::__private::Usage;
use evring::files::{Access, File, FileOp, FileOutcome, FilePath};
use evring::mechanisms::{EventLoop, Mode};
use evring::send_policy::{SendPolicy, SendState, SendStep};
use evring::{
    Application, Chunk, Close, CloseReason, Commands, Config, ConnId, Cx, FileDelivery,
    KernelError, Root, Rx, Stats,
};
use evring_sim::{
    Fault, Faults, Machine, Net, Next, Peer, PeerConn, Plan, ReceiveResult, SimEngine, SimKernel,
    Unsupported,
};
use shared_ring::Kernel;
use shared_ring::author::ReadAhead;
use shared_ring::nonblocking::{MAX_EXACT_READ_BYTES, MAX_READ_BYTES};

const PARTS: u64 = 10;
const FILE_BYTES: u64 = PARTS * File::BLOCK_BYTES;

pub(crate) fn at() -> SocketAddr {
    "10.0.0.1:7".parse().unwrap()
}

/// A client that receives up to `max` bytes of the file.
struct Client {
    line: Option<PeerConn>,
    received: Vec<u8>,
    max: usize,
    len: Rc<Cell<usize>>,
    /// Number of clients that have not received `max` bytes.
    waited_for: Rc<Cell<usize>>,
    has_max: bool,
}

impl Client {
    fn new(max: usize, len: &Rc<Cell<usize>>, waited_for: &Rc<Cell<usize>>) -> Self {
        let (len, waited_for) = (Rc::clone(len), Rc::clone(waited_for));
        Client { line: None, received: Vec::new(), max, len, waited_for, has_max: false }
    }

    /// Keeps the connection until all clients have received `max` bytes.
    fn wait_for_others(&mut self) -> Next {
        if !std::mem::replace(&mut self.has_max, true) {
            self.waited_for.update(|n| n - 1);
        }
        match self.waited_for.get() {
            0 => Next::Done,
            _ => Next::After(Duration::from_millis(20)),
        }
    }
}

impl Peer for Client {
    fn step(&mut self, net: &mut Net<'_>) -> Next {
        let Some(line) = &self.line else {
            let Some(line) = net.connect(at()) else {
                return Next::After(Duration::from_millis(1));
            };
            net.send(&line, b"x");
            self.line = Some(line);
            return Next::Ready;
        };
        if self.has_max {
            return self.wait_for_others();
        }
        let max = self.max - self.received.len();
        match net.receive(line, max.min(100_000), &mut self.received) {
            ReceiveResult::Nothing => return Next::Wait,
            ReceiveResult::Bytes(_) if self.received.len() < self.max => return Next::Ready,
            _ if self.max < FILE_BYTES as usize => return self.wait_for_others(),
            ReceiveResult::Bytes(_) => return Next::Ready,
            _ if contents(FILE_BYTES).starts_with(&self.received) => {}
            got => net.fail(format!("{got:?} after {} other bytes", self.received.len())),
        }
        net.close(self.line.take().expect("just used"));
        self.len.set(self.received.len());
        Next::Done
    }

    fn waits_for(&self) -> String {
        "a file".to_owned()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Ring,
    Engine,
    FlexSc,
}

impl By {
    pub(crate) const ALL: [By; 3] = [By::Ring, By::Engine, By::FlexSc];

    /// Runs a server until its clients have ended.
    pub(crate) fn serve(
        self,
        machine: &Machine,
        config: &Config,
        app: impl Application,
        inspect: impl FnMut(&Usage),
    ) -> Result<Stats, KernelError> {
        let engine = config.engine_config().unwrap();
        match self {
            By::Ring => {
                let ring = config.uring_config(Mode::Deferred).unwrap();
                serve(machine, SimKernel::new(machine, &ring).unwrap(), config, app, inspect)
            }
            By::Engine => {
                let kernel = SimEngine::<false>::new(machine, &engine).unwrap();
                serve(machine, kernel, config, app, inspect)
            }
            By::FlexSc => {
                let kernel = flexsc_sim::kernel(machine, &engine, true).unwrap();
                serve(machine, kernel, config, app, inspect)
            }
        }
    }
}

/// The results of a run.
struct Run {
    stats: Stats,
    /// Number of bytes that the last client received.
    len: u64,
    error: Option<i32>,
}

/// A server with one file, which is not cached, and its clients, each of which receives up to `max` bytes.
struct Case {
    by: By,
    policy: FileDelivery,
    clients: usize,
    max: u64,
}

impl Case {
    fn run(&self, machine: &Machine) -> Run {
        self.run_with(machine, self.policy.send_policy())
    }

    fn run_with(&self, machine: &Machine, policy: Option<fn() -> Box<dyn SendPolicy>>) -> Run {
        let config = Config::default().with(|c| {
            c.listen = vec![at()];
            c.roots = vec!["/site".into()];
            c.send_policy = policy;
        });
        let (error, len) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(0)));
        let (many, last_error) = (self.clients > 1, Rc::clone(&error));
        let app = SendsFile {
            send: |io: &mut dyn Commands, id, file| {
                io.send(id, Chunk::File(file, 0..FILE_BYTES));
                if many {
                    // Not cached for the next client; those that do not read keep their connections.
                    machine.evict("site/file", false);
                } else {
                    io.close(id, Close::Flush);
                }
            },
            closed: move |reason| {
                if let CloseReason::Failed(error) = reason {
                    last_error.set(error.raw_os_error());
                }
            },
        };
        let waited_for = Rc::new(Cell::new(self.clients));
        for _ in 0..self.clients {
            machine.add_peer(Client::new(self.max as usize, &len, &waited_for));
        }
        let stats = self.by.serve(machine, &config, app, |_| {});
        assert_eq!(machine.verdict().failure, None, "{:?}, {}", self.by, self.policy);
        Run { stats: stats.unwrap(), len: len.get() as u64, error: error.get() }
    }
}

/// Runs a server until its clients have ended.
fn serve(
    machine: &Machine,
    kernel: impl Kernel,
    config: &Config,
    app: impl Application,
    inspect: impl FnMut(&Usage),
) -> Result<Stats, KernelError> {
    let server = EventLoop::new(kernel, config).unwrap();
    let remote = server.remote();
    machine.on_end(move || remote.stop());
    server.run_inspected(app, inspect)
}

/// Runs `test` for each kernel, and for the policies that send from the page cache.
fn each(test: impl Fn(&mut Case)) {
    for by in By::ALL {
        for policy in [FileDelivery::Plain, FileDelivery::Dns] {
            test(&mut Case { by, policy, clients: 1, max: FILE_BYTES });
        }
    }
}

/// Returns the plan of a machine whose sockets have room for `room` bytes.
fn plan(room: usize, seed: u64, faults: Faults) -> Plan {
    Plan::default().with(|p| {
        p.seed = seed;
        p.faults = faults;
        p.room = Some(room);
        p.steps = 10_000_000;
    })
}

fn machine_without_files(room: usize, seed: u64, faults: Faults) -> Machine {
    Machine::new(&plan(room, seed, faults))
}

fn machine_with(room: usize, seed: u64, faults: Faults) -> Machine {
    let machine = machine_without_files(room, seed, faults);
    machine.add_file("site/file", contents(FILE_BYTES));
    machine
}

fn machine(seed: u64, faults: Faults) -> Machine {
    machine_with(100_000, seed, faults)
}

#[test]
fn file_that_is_not_cached_waited_for_the_disk_at_every_second_part() {
    each(|case| {
        let machine = machine(1, Faults::NONE);
        machine.evict("site/file", false);
        let run = case.run(&machine);
        assert_eq!(run.len, FILE_BYTES);
        assert_eq!(run.stats.kernel.cold_file_reads, 1, "{:?}, {}", case.by, case.policy);
        assert_eq!(machine.disk_bytes(), FILE_BYTES, "{:?}, {}", case.by, case.policy);
        assert_eq!(machine.blocking_sends(), 0);
    });
}

#[test]
fn cached_file_does_not_wait_for_the_disk() {
    each(|case| {
        let machine = machine(1, Faults::NONE);
        let run = case.run(&machine);
        assert_eq!((run.len, run.stats.kernel.cold_file_reads), (FILE_BYTES, 0));
    });
}

/// On Linux 6.1 to 6.4 the ring refuses to read from such a disk, as files are open with `O_NONBLOCK`.
#[test]
fn file_that_is_not_cached_was_not_sent_from_a_disk_without_a_non_blocking_mode() {
    each(|case| {
        let plan = plan(100_000, 1, Faults::NONE);
        let unsupported = Some(Unsupported::NonblockingDisk);
        let machine = Machine::new(&plan.with(|p| p.unsupported = unsupported));
        machine.add_file("site/file", contents(FILE_BYTES));
        machine.evict("site/file", false);
        machine.read_nothing_ahead();
        let run = case.run(&machine);
        assert_eq!((run.len, run.error), (FILE_BYTES, None), "{:?}, {}", case.by, case.policy);
        assert_eq!(machine.blocking_sends(), 0, "{:?}, {}", case.by, case.policy);
        assert_eq!(run.stats.kernel.cold_file_reads, FILE_BYTES / u64::from(MAX_READ_BYTES));
    });
}

/// A part is sent as far as it was read.
#[test]
fn part_that_was_not_read_ahead_blocked_the_event_loop() {
    each(|case| {
        for seed in 0..5 {
            let machine = machine(seed, Faults::NONE.with(Fault::ShortRead));
            machine.evict("site/file", false);
            machine.read_nothing_ahead();
            let run = case.run(&machine);
            assert_eq!((run.len, machine.disk_bytes()), (FILE_BYTES, FILE_BYTES));
            let reads = FILE_BYTES / u64::from(MAX_READ_BYTES);
            assert!(run.stats.kernel.cold_file_reads >= reads, "{:?}, {}", case.by, case.policy);
            assert_eq!(machine.blocking_sends(), 0, "{:?}, {}", case.by, case.policy);
        }
    });
}

/// Sends parts, and expects that none fills the socket.
struct NeverFull;

impl SendPolicy for NeverFull {
    fn next(&mut self, state: &SendState<'_>) -> SendStep {
        assert!(!state.is_full, "the socket has room for the whole file");
        SendStep::Send { max_file_bytes: File::BLOCK_BYTES as u32 }
    }
}

#[test]
fn socket_counted_as_full_after_a_part_that_the_kernel_had_cut() {
    for by in By::ALL {
        let machine = machine_with(2 * FILE_BYTES as usize, 1, Faults::NONE);
        machine.evict("site/file", false);
        // So each block is read and sent in parts.
        machine.read_nothing_ahead();
        let case = Case { by, policy: FileDelivery::Plain, clients: 1, max: FILE_BYTES };
        let run = case.run_with(&machine, Some(|| Box::new(NeverFull)));
        assert_eq!(run.len, FILE_BYTES);
        assert!(run.stats.kernel.cold_file_reads > PARTS, "{by:?}");
    }
}

#[test]
fn event_loop_repeated_a_read_that_had_failed() {
    each(|case| {
        let machine = machine(1, Faults::NONE);
        machine.evict("site/file", true);
        let run = case.run(&machine);
        assert_eq!((run.len, run.error), (0, Some(rustix::io::Errno::IO.raw_os_error())));
        assert_eq!(machine.blocking_sends(), 0, "{:?}, {}", case.by, case.policy);
    });
}

#[test]
fn clients_that_do_not_read_had_any_number_of_bytes_read_ahead() {
    for by in [By::Ring, By::Engine] {
        let room = 10_000;
        let machine = machine_with(room, 1, Faults::NONE);
        let clients = 400;
        Case { by, policy: FileDelivery::Plain, clients, max: 1 }.run(&machine);
        let read = machine.disk_bytes();
        // The machine reads that much ahead.
        let ahead = 256 * 1024;
        let with_ahead = u64::from(ReadAhead::MAX_SOCKETS) * (ahead + u64::from(MAX_READ_BYTES));
        let others = clients as u64 * u64::from(MAX_EXACT_READ_BYTES);
        assert!(read <= with_ahead + others, "{by:?}: {read} bytes");
        // More than the kernel reads for all of them if it reads nothing ahead. Threads read for many clients at once, and then
        // the first read is that of all.
        let without = clients as u64 * u64::from(MAX_READ_BYTES);
        let min = if by == By::Ring { without } else { ahead };
        assert!(read > min, "{by:?}: {read} bytes");
    }
}

/// Has a server on the real kernel send a file. Returns the number of sends that had to read first.
fn cold_reads_on(name: &'static str, policy: FileDelivery, file: &DiskFile) -> u64 {
    let config = listening(1).with(|c| {
        c.roots = vec![file.root.path().to_owned()];
        c.send_policy = policy.send_policy();
    });
    let server = Server::start(name, config, || sends_whole_file(FILE_BYTES, |_| {}));
    let mut client = server.connect();
    client.write_all(b"x").unwrap();
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    assert!(got == contents(FILE_BYTES), "{policy} on {name}");
    server.stop().kernel.cold_file_reads
}

/// The sends of the mechanisms that are not simulated, too.
#[test]
fn part_that_is_not_cached_is_read_before_it_is_sent_on_every_mechanism() {
    let file = DiskFile::new(FILE_BYTES);
    let tells = file.tells_what_is_cached();
    for policy in [FileDelivery::Plain, FileDelivery::Dns] {
        one_by_one(|name| {
            let is_evicted = file.evict();
            let reads = cold_reads_on(name, policy, &file);
            assert!(reads > 0 || !is_evicted, "{policy} on {name}: a send waited for the disk");
            let reads = cold_reads_on(name, policy, &file);
            assert!(reads == 0 || !tells, "{policy} on {name}: {reads} reads of what is cached");
        });
    }
}

/// Opens a connection to another server for a client, and reads a file meanwhile.
#[derive(Default)]
struct Connects {
    client: Option<ConnId>,
}

impl Application for Connects {
    type State = ();
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if !rx.take().is_empty() {
            self.client = Some(x.id);
            let other = x.io.connect("10.0.0.2:7".parse().unwrap());
            x.io.send(other, Chunk::Copy(b"x"));
            x.io.file_op(other, 0, FileOp::Open((Root(0), FilePath::new("file")), Access::Read));
        }
    }

    fn file(&mut self, x: Cx<'_, impl Commands, ()>, _tag: u32, done: io::Result<FileOutcome>) {
        match done {
            Ok(FileOutcome::Opened(opened)) => {
                x.io.file_op(x.id, 0, FileOp::Read(opened.0, 0..10));
            }
            Ok(FileOutcome::Read(bytes)) => {
                x.io.close(x.id, Close::Reset);
                let client = self.client.take().unwrap();
                x.io.send(client, Chunk::Received(bytes));
                x.io.close(client, Close::Flush);
            }
            _ => panic!("{done:?}"),
        }
    }
}

/// A server that never accepts.
struct Backlog;

impl Peer for Backlog {
    fn step(&mut self, _net: &mut Net<'_>) -> Next {
        Next::Wait
    }

    fn waits_for(&self) -> String {
        "nothing".to_owned()
    }
}

#[test]
fn read_that_was_held_back_was_lost_while_its_connection_was_opened() {
    let mut deferred = 0;
    for seed in 0..50 {
        let machine = machine_without_files(100_000, seed, Faults::NONE);
        machine.add_file("site/file", contents(10));
        machine.add_server("10.0.0.2:7".parse().unwrap(), Backlog);
        let config = Config::default().with(|c| {
            c.listen = vec![at()];
            c.roots = vec!["/site".into()];
            c.send_policy = FileDelivery::Ded.send_policy();
            c.max_read_delay = Duration::ZERO;
        });
        let engine = config.engine_config().unwrap();
        let kernel = SimEngine::<false>::new(&machine, &engine).unwrap();
        let server = EventLoop::new(kernel, &config).unwrap();
        let remote = server.remote();
        let len = Rc::new(Cell::new(0));
        machine.add_peer(Client::new(usize::MAX, &len, &Rc::default()));
        machine.on_end(move || remote.stop());
        let stats = server.run(Connects::default());
        assert_eq!(machine.verdict().failure, None, "seed {seed}");
        assert_eq!(len.get(), 10, "seed {seed}");
        deferred += stats.unwrap().deferred_reads;
    }
    assert!(deferred > 20, "{deferred} of 50");
}
