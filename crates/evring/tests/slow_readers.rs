//! A client that takes one byte of a file each second, on the simulated machine: its connection ends for want of progress,
//! what it used is free, and others are not delayed.

use crate::disk_file::contents;
use crate::sends_file::SendsFile;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use evring::__private::Usage;
use evring::mechanisms::{EventLoop, Mode};
use evring::{Application, Chunk, Close, CloseReason, Commands, Config, FileDelivery};
use evring_sim::{
    Faults, Machine, Net, Next, Peer, PeerConn, Plan, ReceiveResult, SimEngine, SimKernel,
};
use shared_ring::{Errno, Kernel};

const FILE_BYTES: u64 = 600_000;
const SECOND: Duration = Duration::from_secs(1);

fn at() -> SocketAddr {
    "10.0.0.1:7".parse().unwrap()
}

/// When a client's connection ended, and how many bytes it had received.
type Ended = Rc<Cell<Option<(Duration, usize)>>>;

/// A client that downloads the file.
struct Client {
    line: Option<PeerConn>,
    received: Vec<u8>,
    /// It receives one byte a second.
    is_slow: bool,
    /// When it receives next, at the earliest.
    next: Duration,
    ended: Ended,
}

impl Client {
    fn new(is_slow: bool) -> (Self, Ended) {
        let ended = Ended::default();
        let client = Client {
            line: None,
            received: Vec::new(),
            is_slow,
            next: Duration::ZERO,
            ended: Rc::clone(&ended),
        };
        (client, ended)
    }
}

impl Peer for Client {
    fn step(&mut self, net: &mut Net<'_>) -> Next {
        let Some(line) = &self.line else {
            self.line = net.connect(at());
            if let Some(line) = &self.line {
                net.send(line, b"x");
            }
            return Next::After(Duration::from_millis(1));
        };
        // Bytes that arrived before a reset are of no interest.
        if !net.is_broken(line) {
            // The machine also runs a client whenever bytes arrive.
            if net.now() < self.next {
                return Next::After(self.next - net.now());
            }
            match net.receive(line, if self.is_slow { 1 } else { 10_000 }, &mut self.received) {
                ReceiveResult::Bytes(_) if self.is_slow => {
                    self.next = net.now() + SECOND;
                    return Next::After(SECOND);
                }
                ReceiveResult::Bytes(_) => return Next::Ready,
                ReceiveResult::Nothing => return Next::Wait,
                ReceiveResult::End | ReceiveResult::Reset => {}
            }
        }
        if !contents(FILE_BYTES).starts_with(&self.received) {
            net.fail("other bytes arrived");
        }
        net.close(self.line.take().expect("just used"));
        self.ended.set(Some((net.now(), self.received.len())));
        Next::Done
    }

    fn waits_for(&self) -> String {
        "a file".to_owned()
    }
}

fn serve<K: Kernel, A: Application>(
    machine: &Machine,
    server: EventLoop<K>,
    app: A,
    inspect: impl FnMut(&Usage),
) {
    let remote = server.remote();
    machine.on_end(move || remote.stop());
    server.run_inspected(app, inspect).unwrap();
}

/// Serves a file to a client that takes a byte a second, and to three others.
fn run(policy: FileDelivery, by_ring: bool, evicted: bool) {
    let what = format!("{policy}, {}", if by_ring { "ring" } else { "engine" });
    let machine = Machine::new(&Plan::default().with(|p| {
        p.faults = Faults::NONE;
        p.room = Some(50_000);
        p.steps = 10_000_000;
    }));
    machine.add_file("site/file", contents(FILE_BYTES));
    if evicted {
        machine.evict("site/file", false);
    }
    let config = Config::default().with(|c| {
        c.listen = vec![at()];
        c.roots = vec!["/site".into()];
        c.send_policy = policy.send_policy();
    });
    let (slow, slow_ended) = Client::new(true);
    machine.add_peer(slow);
    let others = [(); 3].map(|()| {
        let (other, ended) = Client::new(false);
        machine.add_peer(other);
        ended
    });
    let reasons = RefCell::new(Vec::new());
    let app = SendsFile {
        send: |io: &mut dyn Commands, id, file| {
            io.send(id, Chunk::File(file, 0..FILE_BYTES));
            io.close(id, Close::Flush);
        },
        closed: |reason| {
            reasons.borrow_mut().push(match reason {
                CloseReason::Failed(error) => error.raw_os_error(),
                _ => None,
            });
        },
    };
    let at_end = Cell::new(None);
    let inspect = |usage: &Usage| {
        if reasons.borrow().len() == 4 && at_end.get().is_none() {
            at_end.set(Some((*usage, machine.in_use())));
        }
    };
    if by_ring {
        let kernel = SimKernel::new(&machine, &config.uring_config(Mode::Deferred).unwrap());
        serve(&machine, EventLoop::new(kernel.unwrap(), &config).unwrap(), app, inspect);
    } else {
        let kernel = SimEngine::<false>::new(&machine, &config.engine_config().unwrap());
        serve(&machine, EventLoop::new(kernel.unwrap(), &config).unwrap(), app, inspect);
    }
    assert_eq!(machine.verdict().failure, None, "{what}");

    for other in others {
        let (time, received) = other.get().unwrap();
        assert_eq!(received as u64, FILE_BYTES, "{what}");
        assert!(time < SECOND, "{what}: another client had to wait for {time:?}");
    }
    let timed_out = Some(Errno::TIMEDOUT.raw_os_error());
    assert_eq!(reasons.into_inner(), [None, None, None, timed_out], "{what}");
    let (time, received) = slow_ended.get().unwrap();
    // The first look at the progress is after 0.1 s, the second one 30 s later.
    assert!((30 * SECOND..33 * SECOND).contains(&time), "{what}: {time:?}");
    assert!((29..34).contains(&received), "{what}: {received} bytes");
    let (usage, machine) = at_end.get().unwrap();
    assert!(!usage.stopping, "{what}");
    assert_eq!((usage.connections, usage.all_queued_files, usage.miscounted), (0, 0, 0), "{what}");
    // The listener and the root are open.
    assert_eq!((machine.sockets, machine.files, machine.lent), (1, 1, 0), "{what}");
}

#[test]
fn client_that_reads_one_byte_a_second_times_out_and_delays_no_other() {
    for policy in FileDelivery::ALL {
        for by_ring in [true, false] {
            for evicted in [true, false] {
                run(policy, by_ring, evicted);
            }
        }
    }
}
