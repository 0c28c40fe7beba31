//! The schedules of ECEM's figures 3 and 7 on the simulated machine: the driver and its ring are the real ones.
//!
//! Four processes of the paper, connections here, read a file and then write it. The send buffers of A and B are full
//! until C and D have finished. In an event loop, a process that is scheduled is a callback of its connection, and one
//! that blocks in its write is called again when the socket has taken its bytes.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use evring::files::{Access, File, FileOp, FileOutcome, FilePath};
use evring::mechanisms::{EventLoop, Mode};
use evring::{
    Application, Chunk, Commands, Config, ConnId, Cx, FileDelivery, HIGH_WATER, Root, Rx,
};
use evring_sim::{Faults, Machine, Net, Next, Peer, PeerConn, Plan, ReceiveResult, SimKernel};

const PROCESSES: usize = 4;
/// The processes whose send buffers are full, but in figure 3(1).
const FULL: [usize; 2] = [0, 1];

/// Units of work: to read a file, to write it, and the part of it after which a process blocks.
const PHASE: u32 = 4;
const PART: u32 = 2;

const ANSWER: &[u8] = b"answer";
const READY: u8 = b'r';

/// The action of a process when it is scheduled.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Run {
    Reads,
    /// Writes everything.
    Writes,
    /// Writes a part and blocks.
    Blocks,
    /// Writes the rest.
    Resumes,
}

type Schedule = Rc<RefCell<Vec<(usize, Run)>>>;

/// The four processes.
#[derive(Default)]
struct Processes {
    schedule: Schedule,
    full: &'static [usize],
    /// The files of processes that have called read(2).
    reading: Vec<(usize, ConnId, File)>,
}

#[derive(Default)]
struct Process {
    number: Option<usize>,
    file: Option<File>,
    is_blocked: bool,
}

impl Application for Processes {
    type State = Process;
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, Process>, rx: &mut Rx<'_>) {
        let bytes = rx.take();
        let Some(number) = x.state.number else {
            // The first byte says which process it is.
            x.state.number = bytes.first().map(|first| usize::from(first - b'A'));
            return x.io.file_op(
                x.id,
                0,
                FileOp::Open((Root(0), FilePath::new("file")), Access::Read),
            );
        };
        let Some(file) = x.state.file.clone().filter(|_| !bytes.is_empty()) else { return };
        self.schedule.borrow_mut().push((number, Run::Reads));
        self.reading.push((number, x.id, file));
        if self.reading.len() == PROCESSES {
            // The disk responds after all have called read(2).
            self.reading.sort_by_key(|(number, ..)| *number);
            for (_, id, file) in self.reading.drain(..) {
                x.io.file_op(id, 0, FileOp::Read(file, 0..4));
            }
        }
    }

    fn file(
        &mut self,
        x: Cx<'_, impl Commands, Process>,
        _tag: u32,
        done: io::Result<FileOutcome>,
    ) {
        let number = x.state.number.unwrap();
        match done.unwrap() {
            FileOutcome::Opened(opened) => {
                x.state.file = Some(opened.0);
                x.io.send(x.id, Chunk::Copy(&[READY]));
                if self.full.contains(&number) {
                    x.io.send(x.id, Chunk::Copy(&vec![b'.'; HIGH_WATER]));
                }
            }
            FileOutcome::Read(_) => {
                x.state.is_blocked = x.io.send(x.id, Chunk::Static(ANSWER)) > ANSWER.len();
                let run = if x.state.is_blocked { Run::Blocks } else { Run::Writes };
                self.schedule.borrow_mut().push((number, run));
            }
            other => panic!("{other:?}"),
        }
    }

    fn drained(&mut self, x: Cx<'_, impl Commands, Process>) {
        if std::mem::take(&mut x.state.is_blocked) {
            self.schedule.borrow_mut().push((x.state.number.unwrap(), Run::Resumes));
        }
    }
}

/// The clients of all processes.
#[derive(Default)]
struct Clients {
    lines: Vec<PeerConn>,
    received: [Vec<u8>; PROCESSES],
    full: &'static [usize],
    has_asked: bool,
}

impl Clients {
    fn has_answer(&self, process: usize) -> bool {
        self.received[process].ends_with(ANSWER)
    }

    fn receive(&mut self, net: &mut Net<'_>, process: usize, max: usize) {
        let got = net.receive(&self.lines[process], max, &mut self.received[process]);
        if !matches!(got, ReceiveResult::Bytes(_) | ReceiveResult::Nothing) {
            net.fail(format!("{got:?} of process {process}"));
        }
    }
}

impl Peer for Clients {
    fn step(&mut self, net: &mut Net<'_>) -> Next {
        const SOON: Next = Next::After(Duration::from_millis(1));
        if self.lines.len() < PROCESSES {
            let to: SocketAddr = "10.0.0.1:7".parse().unwrap();
            if let Some(line) = net.connect(to) {
                net.send(&line, &[b'A' + self.lines.len() as u8]);
                self.lines.push(line);
            }
            return SOON;
        }
        for process in 0..PROCESSES {
            let others = self.full.contains(&process);
            // One byte of A and B, so that their buffers stay full; all when C and D have finished.
            let is_first = self.received[process].is_empty();
            let finished = self.has_answer(2) && self.has_answer(3);
            match others && !finished {
                true if is_first => self.receive(net, process, 1),
                true => {}
                false => self.receive(net, process, 10_000),
            }
        }
        if !self.has_asked && self.received.iter().all(|bytes| bytes.first() == Some(&READY)) {
            self.has_asked = true;
            let sent: usize = self.lines.iter().map(|line| net.send(line, b"?")).sum();
            assert_eq!(sent, PROCESSES, "each send buffer has room for a byte");
        }
        if (0..PROCESSES).all(|process| self.has_answer(process)) {
            self.lines.drain(..).for_each(|line| net.close(line));
            return Next::Done;
        }
        SOON
    }

    fn waits_for(&self) -> String {
        "answers".to_owned()
    }
}

/// Runs the processes on a machine without faults. Returns what they did, in order.
fn run(policy: FileDelivery, full: &'static [usize], seed: u64) -> Vec<(usize, Run)> {
    let plan = Plan::default().with(|p| {
        p.seed = seed;
        p.faults = Faults::NONE;
        p.room = Some(1_000);
        p.steps = 1_000_000;
    });
    let machine = Machine::new(&plan);
    machine.add_file("site/file", &b"1234"[..]);
    let config = Config::default().with(|c| {
        c.listen = vec!["10.0.0.1:7".parse().unwrap()];
        c.roots = vec!["/site".into()];
        c.send_policy = policy.send_policy();
        c.max_read_delay = Duration::from_secs(3_600);
    });
    let kernel = SimKernel::new(&machine, &config.uring_config(Mode::Deferred).unwrap()).unwrap();
    let server = EventLoop::new(kernel, &config).unwrap();
    let remote = server.remote();
    machine.add_peer(Clients { full, ..Clients::default() });
    machine.on_end(move || remote.stop());
    let processes = Processes { full, ..Processes::default() };
    let schedule = processes.schedule.clone();
    let result = server.run(processes);
    assert_eq!(machine.verdict().failure, None, "{policy}, seed {seed}");
    result.unwrap();
    schedule.take()
}

/// Returns the number of switches, and four times the mean response time: units of work, and switches.
fn response_times(schedule: &[(usize, Run)]) -> (u32, u32, u32) {
    let (mut work, mut switches, mut running) = (0, 0, None);
    let mut started = [None; PROCESSES];
    let mut sum = (0, 0);
    for (process, run) in schedule {
        if running.replace(*process).is_some_and(|former| former != *process) {
            switches += 1;
        }
        let start = *started[*process].get_or_insert((work, switches));
        work += match run {
            Run::Reads | Run::Writes => PHASE,
            Run::Blocks => PART,
            Run::Resumes => PHASE - PART,
        };
        if matches!(run, Run::Writes | Run::Resumes) {
            sum = (sum.0 + work - start.0, sum.1 + switches - start.1);
        }
    }
    (switches, sum.0, sum.1)
}

/// The machine completes operations in any order. Returns the schedule in which processes run in the order of the
/// figures.
fn in_order(policy: FileDelivery, full: &'static [usize], order: &[usize]) -> Vec<(usize, Run)> {
    let is_in_order = |schedule: &Vec<(usize, Run)>| {
        schedule.iter().map(|(process, _)| *process).eq(order.iter().copied())
    };
    let found = (0..20_000).map(|seed| run(policy, full, seed)).find(is_in_order);
    found.unwrap_or_else(|| panic!("{policy}: never in the order {order:?}"))
}

/// `crates/ecem/tests/figures.rs` says why the mean response times are not those of the paper's text, except here.
#[test]
fn processes_of_figure_3_without_full_buffers_switch_seven_times() {
    for policy in [FileDelivery::Plain, FileDelivery::Ded] {
        let schedule = in_order(policy, &[], &[0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(response_times(&schedule), (7, 80, 16), "{policy}: {schedule:?}");
    }
}

#[test]
fn processes_of_figure_3_block_and_switch_nine_times() {
    let schedule = in_order(FileDelivery::Plain, &FULL, &[0, 1, 2, 3, 0, 1, 2, 3, 0, 1]);
    assert_eq!(response_times(&schedule), (9, 90, 24), "{schedule:?}");
}

#[test]
fn processes_of_figure_7_are_deferred_and_switch_seven_times() {
    let schedule = in_order(FileDelivery::Ded, &FULL, &[0, 1, 2, 3, 2, 3, 0, 1]);
    assert_eq!(response_times(&schedule), (7, 80, 16), "{schedule:?}");
}

#[test]
fn deferred_process_never_blocks_in_any_order() {
    for seed in 0..50 {
        let is_blocked = |(_, run): &(usize, Run)| *run == Run::Blocks;
        let deferred = run(FileDelivery::Ded, &FULL, seed);
        assert!(!deferred.iter().any(is_blocked), "seed {seed}: {deferred:?}");
        assert_eq!(deferred.len(), 2 * PROCESSES);
        let plain = run(FileDelivery::Plain, &FULL, seed);
        assert_eq!(plain.iter().filter(|run| is_blocked(run)).count(), FULL.len(), "seed {seed}");
    }
}
