//! Pauses of many connections that end at once, on the simulated machine.

use crate::sends_file::{SendsFile, contents};

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use evring::mechanisms::{EventLoop, Mode};
use evring::send_policy::{SendPolicy, SendState, SendStep};
use evring::{Chunk, Close, Commands, Config, ConnId};
use evring_sim::{Faults, Machine, Net, Next, Peer, PeerConn, Plan, ReceiveResult, SimKernel};

const CLIENTS: usize = 64;
const FILE_BYTES: u64 = 500;

fn at() -> SocketAddr {
    "10.0.0.1:7".parse().unwrap()
}

thread_local! {
    /// Number of connections that were continued since the driver has last looked at completions.
    static CONTINUED: Cell<usize> = const { Cell::new(0) };
}

/// Has each connection pause once.
#[derive(Default)]
struct PausesOnce {
    paused: HashSet<ConnId>,
    continued: HashSet<ConnId>,
}

impl SendPolicy for PausesOnce {
    fn next(&mut self, state: &SendState<'_>) -> SendStep {
        if self.paused.insert(state.id) {
            return SendStep::Pause(Duration::from_millis(100));
        }
        if self.continued.insert(state.id) {
            CONTINUED.set(CONTINUED.get() + 1);
        }
        SendStep::Send { max_file_bytes: 1_000 }
    }
}

/// A client that receives the file.
#[derive(Default)]
struct Client {
    line: Option<PeerConn>,
    received: Vec<u8>,
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
        match net.receive(line, 1_000, &mut self.received) {
            ReceiveResult::Bytes(_) => return Next::Ready,
            ReceiveResult::Nothing => return Next::Wait,
            _ if self.received == contents(FILE_BYTES) => {}
            got => net.fail(format!("{got:?} after {} bytes", self.received.len())),
        }
        net.close(self.line.take().expect("just used"));
        Next::Done
    }

    fn waits_for(&self) -> String {
        "a file".to_owned()
    }
}

#[test]
fn all_pauses_that_had_ended_came_before_what_had_arrived_meanwhile() {
    let machine = Machine::new(&Plan::default().with(|p| {
        p.faults = Faults::NONE;
        p.steps = 1_000_000;
    }));
    machine.add_file("site/file", contents(FILE_BYTES));
    let config = Config::default().with(|c| {
        c.listen = vec![at()];
        c.roots = vec!["/site".into()];
        c.send_policy = Some(|| Box::<PausesOnce>::default());
    });
    (0..CLIENTS).for_each(|_| machine.add_peer(Client::default()));
    let kernel = SimKernel::new(&machine, &config.uring_config(Mode::Deferred).unwrap()).unwrap();
    let server = EventLoop::new(kernel, &config).unwrap();
    let remote = server.remote();
    machine.on_end(move || remote.stop());
    let numbers = RefCell::new(Vec::new());
    let app = SendsFile {
        send: |io: &mut dyn Commands, id, file| {
            io.send(id, Chunk::File(file, 0..FILE_BYTES));
            io.close(id, Close::Flush);
        },
        closed: |_| {},
    };
    // It is called after each completion and each turn.
    let inspect = |_: &_| numbers.borrow_mut().push(CONTINUED.replace(0));
    server.run_inspected(app, inspect).unwrap();
    assert_eq!(machine.verdict().failure, None);
    let numbers = numbers.into_inner();
    assert_eq!(numbers.iter().sum::<usize>(), CLIENTS);
    let max = *numbers.iter().max().unwrap();
    assert!((2..=8).contains(&max), "{max} pauses ended at once");
}
