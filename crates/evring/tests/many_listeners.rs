//! A server with many listeners and few connections, on the simulated machine.

use std::net::SocketAddr;
use std::time::Duration;

use evring::mechanisms::{EventLoop, Mode};
use evring::{Application, Chunk, Close, Commands, Config, Cx, Rx};
use evring_sim::{
    Faults, Machine, Net, Next, Peer, PeerConn, Plan, ReceiveResult, SimEngine, SimKernel,
};
use shared_ring::Kernel;

/// More than the operations of a server with 100 connections, without those of listeners.
const LISTENERS: u16 = 1_700;

fn listener(number: u16) -> SocketAddr {
    ([10, 0, 0, 1], 1 + number).into()
}

struct Replies;

impl Application for Replies {
    type State = ();
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        if !rx.take().is_empty() {
            x.io.send(x.id, Chunk::Static(b"!"));
        }
        if rx.eof() {
            x.io.close(x.id, Close::Flush);
        }
    }
}

/// Asks the server at one listener after the other.
struct Client {
    /// Numbers of the listeners that are left.
    at: Vec<u16>,
    connection: Option<PeerConn>,
    reply: Vec<u8>,
}

impl Peer for Client {
    fn step(&mut self, net: &mut Net<'_>) -> Next {
        let Some(connection) = &self.connection else {
            let Some(at) = self.at.pop() else { return Next::Done };
            self.connection = net.connect(listener(at));
            match &self.connection {
                Some(connection) => drop(net.send(connection, b"?")),
                None => self.at.push(at),
            }
            return Next::After(Duration::from_millis(1));
        };
        match net.receive(connection, 1, &mut self.reply) {
            ReceiveResult::Bytes(_) => {
                net.close(self.connection.take().expect("just used"));
                Next::Ready
            }
            ReceiveResult::Nothing => Next::Wait,
            other => {
                net.fail(format!("{other:?} instead of a reply, {} are left", self.at.len()));
                Next::Done
            }
        }
    }

    fn waits_for(&self) -> String {
        "a reply".to_owned()
    }
}

/// Serves a client at the last listener, and then at the first.
fn serve<K: Kernel>(name: &str, machine: &Machine, config: &Config, kernel: K) {
    let server = EventLoop::new(kernel, config).unwrap();
    let remote = server.remote();
    let at = vec![0, LISTENERS - 1];
    machine.add_peer(Client { at, connection: None, reply: Vec::new() });
    machine.on_end(move || remote.stop());
    let stats = server.run(Replies);
    assert_eq!(machine.verdict().failure, None, "{name}");
    assert_eq!(stats.unwrap().accepted, 2, "{name}");
}

#[test]
fn accepts_of_many_listeners_took_the_places_of_all_operations() {
    let plan = Plan::default().with(|p| {
        p.faults = Faults::NONE;
        p.descriptors = 3_000;
        p.steps = 10_000_000;
    });
    let config = Config::default().with(|c| {
        c.listen = (0..LISTENERS).map(listener).collect();
        c.max_connections = 100;
        c.backlog = 16;
        c.admission = None;
    });
    let machine = Machine::new(&plan);
    let kernel = SimKernel::new(&machine, &config.uring_config(Mode::Deferred).unwrap());
    serve("ring", &machine, &config, kernel.unwrap());
    let machine = Machine::new(&plan);
    let kernel = SimEngine::<false>::new(&machine, &config.engine_config().unwrap());
    serve("engine", &machine, &config, kernel.unwrap());
}
