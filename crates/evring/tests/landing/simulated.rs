//! The echo server in simulation.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evring::hooks::{Hooked, Landing, LandingCounters};
use evring::mechanisms::{EventLoop, Mode};
use evring::{Config, Listener};
use evring_sim::{Machine, Net, Next, Peer, PeerConn, Plan, ReceiveResult, SimKernel};

use crate::landing::{Echo, ash};

const BYTES: usize = 600;

/// Sends bytes that name any place, in any pieces, and reads the echo.
struct Client {
    line: Option<PeerConn>,
    bytes: Vec<u8>,
    sent: usize,
    received: Vec<u8>,
    piece: usize,
}

impl Peer for Client {
    fn step(&mut self, net: &mut Net<'_>) -> Next {
        let Some(line) = &self.line else {
            self.line = net.connect("10.0.0.1:7".parse().unwrap());
            return Next::After(Duration::from_millis(1));
        };
        if self.sent < BYTES {
            let end = (self.sent + self.piece).min(BYTES);
            let sent = net.send(line, &self.bytes[self.sent..end]);
            self.sent += sent;
            if sent == 0 && net.is_disrupted(line) {
                net.close(self.line.take().expect("just used"));
                return Next::Done;
            }
            if self.sent == BYTES {
                net.finish(line);
            }
        }
        loop {
            let result = net.receive(line, 100, &mut self.received);
            if !self.bytes.starts_with(&self.received) {
                net.fail(format!("another echo: {}", self.received.escape_ascii()));
            }
            match result {
                ReceiveResult::Bytes(_) => {}
                ReceiveResult::Nothing if self.sent < BYTES => {
                    return Next::After(Duration::from_millis(1));
                }
                ReceiveResult::Nothing => return Next::Wait,
                ReceiveResult::End if self.received.len() == BYTES => break,
                _ if net.is_disrupted(line) => break,
                got => {
                    net.fail(format!("{got:?} after {} bytes", self.received.len()));
                    break;
                }
            }
        }
        net.close(self.line.take().expect("just used"));
        Next::Done
    }

    fn waits_for(&self) -> String {
        "the echo".to_owned()
    }
}

#[test]
fn every_byte_is_echoed_once_and_in_order() {
    let ash = ash();
    let total = Rc::new(RefCell::new(LandingCounters::default()));
    for seed in 0..200u64 {
        let machine = Machine::new(&Plan::default().with(|p| p.seed = seed));
        let listen = vec!["10.0.0.1:7".parse().unwrap()];
        let config = Config::default().with(|c| c.listen = listen);
        let kernel =
            SimKernel::new(&machine, &config.uring_config(Mode::Deferred).unwrap()).unwrap();
        let mut server = EventLoop::new(kernel, &config).unwrap();
        let remote = server.remote();
        let mut landing = Landing::new();
        let handler = ash.instantiate(seed).unwrap();
        let memory = Arc::downgrade(handler.memory());
        let add = |buffers| server.add_buffers(buffers);
        let tenant = landing.bind(handler, 4, 128, add).unwrap();
        server.set_listener_group(Listener(0), tenant.group()).unwrap();
        for client in 0..3 {
            // Places 0 to 3, as the others do not echo once.
            let bytes = (0..BYTES).map(|n| (n * 5 + client) as u8 & !4).collect();
            let piece = 1 + (seed as usize * 37 + client * 11) % 200;
            let received = Vec::new();
            machine.add_peer(Client { line: None, bytes, sent: 0, received, piece });
        }
        machine.on_end(move || remote.stop());
        let result = server.run(Hooked::new(Echo, landing));
        assert_eq!(machine.verdict().failure, None, "seed {seed}");
        result.unwrap();
        drop(machine);
        // The next instance frees what was dropped.
        drop(ash.instantiate(seed).unwrap());
        assert!(memory.upgrade().is_none(), "seed {seed}: the memory of the handler leaks");
        let counters = tenant.counters();
        let mut total = total.borrow_mut();
        total.handled += counters.handled;
        total.passed += counters.passed;
        total.replies_lent += counters.replies_lent;
    }
    let total = *total.borrow();
    assert!(total.handled > 1_000 && total.passed > 1_000, "{total:?}");
    assert!(total.replies_lent > 100, "{total:?}");
}
