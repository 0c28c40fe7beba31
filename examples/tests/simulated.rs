//! Servers on a simulated machine, whose time passes without a wait.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use evring::__private::Usage;
use evring::mechanisms::EventLoop;
use evring::{Application, Config};
use evring_sim::{Faults, Machine, Net, Next, Peer, PeerConn, Plan, ReceiveResult, SimEngine};

/// Returns the address at which servers listen.
pub(crate) fn at() -> SocketAddr {
    "10.0.0.1:7".parse().unwrap()
}

/// Returns a machine without faults, whose sockets have buffers of `room` bytes.
pub(crate) fn machine(room: usize) -> Machine {
    machine_with(room, |_| {})
}

/// Returns such a machine, with the plan changed by `change`.
pub(crate) fn machine_with(room: usize, change: impl FnOnce(&mut Plan)) -> Machine {
    Machine::new(&Plan::default().with(|p| {
        p.faults = Faults::NONE;
        p.room = Some(room);
        p.steps = 10_000_000;
        change(p);
    }))
}

/// Runs a server until its clients have ended.
pub(crate) fn serve(
    machine: &Machine,
    config: &Config,
    app: impl Application,
    inspect: impl FnMut(&Usage),
) {
    let kernel = SimEngine::<false>::new(machine, &config.engine_config().unwrap()).unwrap();
    let server = EventLoop::new(kernel, config).unwrap();
    let remote = server.remote();
    machine.on_end(move || remote.stop());
    server.run_inspected(app, inspect).unwrap();
    assert_eq!(machine.verdict().failure, None);
}

/// What a client has received, how its connection has ended, and when.
#[derive(Clone, Debug, Default)]
pub(crate) struct Received {
    pub(crate) bytes: Vec<u8>,
    pub(crate) end: Option<ReceiveResult>,
    pub(crate) time: Duration,
}

/// A client that reads at a limited rate.
pub(crate) struct Client {
    /// It connects at this time, and begins to read at that one.
    pub(crate) connects_at: Duration,
    pub(crate) reads_at: Duration,
    request: &'static [u8],
    /// It reads so many bytes each `step`.
    piece: usize,
    step: Duration,
    line: Option<PeerConn>,
    received: Rc<RefCell<Received>>,
}

impl Client {
    /// Returns a client that reads such pieces, and what it receives.
    pub(crate) fn new(
        request: &'static [u8],
        piece: usize,
        step: Duration,
    ) -> (Self, Rc<RefCell<Received>>) {
        let received = Rc::new(RefCell::new(Received::default()));
        let client = Client {
            connects_at: Duration::ZERO,
            reads_at: Duration::ZERO,
            request,
            piece,
            step,
            line: None,
            received: Rc::clone(&received),
        };
        (client, received)
    }
}

impl Peer for Client {
    fn step(&mut self, net: &mut Net<'_>) -> Next {
        let begin = if self.line.is_none() { self.connects_at } else { self.reads_at };
        // It is called for bytes that have arrived, too.
        let early = begin.saturating_sub(net.now());
        if !early.is_zero() {
            return Next::After(early);
        }
        let Some(line) = &self.line else {
            let line = net.connect(at()).expect("the server listens");
            assert_eq!(net.send(&line, self.request), self.request.len());
            self.line = Some(line);
            return Next::Ready;
        };
        let received = &mut *self.received.borrow_mut();
        match net.receive(line, self.piece, &mut received.bytes) {
            ReceiveResult::Nothing => return Next::Wait,
            ReceiveResult::Bytes(_) => {
                self.reads_at = net.now() + self.step;
                return Next::After(self.step);
            }
            end => (received.end, received.time) = (Some(end), net.now()),
        }
        net.close(self.line.take().expect("just used"));
        Next::Done
    }

    fn waits_for(&self) -> String {
        "a reply".to_owned()
    }
}
