//! The echo server in simulation.

use std::sync::Arc;
use std::time::Duration;

use ash_sandbox::sandbox::{Ash, Policy, Sandboxer};
use evring::hooks::{Hooked, Landing, LandingCounters};
use evring::mechanisms::{EventLoop, Mode};
use evring::{Config, Listener};
use evring_sim::{Machine, Net, Next, Peer, PeerConn, Plan, ReceiveResult, SimKernel};

use crate::landing::{Echo, ash};

/// Echoes each message and keeps it until the next one, whose first byte it has noted to see that the message does not change.
const KEEPER: &str = r#"
(module
  (import "ash" "send" (func $send (param i32 i32) (result i32)))
  (import "ash" "keep" (func $keep (result i32)))
  (import "ash" "give_back" (func $give_back (param i32) (result i32)))
  (import "ash" "copy" (func $copy (param i32 i32 i32) (result i32)))
  (memory (export "memory") 1 1)
  (func (export "ash_handle")
    (param $at i32) (param $length i32) (param i64) (param $slot i32) (result i32)
    ;; At 0 the place of the message that it keeps, or 0; at 4 its slot, at 8 its first byte.
    (if (i32.load (i32.const 0)) (then
      (if (call $copy (i32.const 16) (i32.load (i32.const 0)) (i32.const 1)) (then unreachable))
      (if (i32.ne (i32.load8_u (i32.const 16)) (i32.load8_u (i32.const 8))) (then unreachable))))
    ;; It keeps one of four buffers, and may keep two.
    (if (call $keep) (then (return (i32.const 0))))
    (if (i32.load (i32.const 0)) (then
      (if (call $give_back (i32.load (i32.const 4))) (then unreachable))))
    (i32.store (i32.const 0) (local.get $at))
    (i32.store (i32.const 4) (local.get $slot))
    (i32.store8 (i32.const 8) (i32.load8_u (local.get $at)))
    (drop (call $send (local.get $at) (local.get $length)))
    (i32.const 1)))
"#;

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
    let total = run(&ash());
    assert!(total.handled > 1_000 && total.passed > 1_000, "{total:?}");
    assert!(total.replies_lent > 100, "{total:?}");
}

#[test]
fn messages_that_a_handler_keeps_do_not_change() {
    let wasm = wat::parse_str(KEEPER).unwrap();
    let total = run(&Sandboxer::new(Policy::default()).unwrap().load(&wasm).unwrap());
    assert_eq!((total.aborted, total.replies_lent), (0, 0), "{total:?}");
    assert!(total.handled > 1_000, "{total:?}");
}

/// Lets clients talk to an echo server behind a handler, and returns the sums of its counters.
fn run(ash: &Ash) -> LandingCounters {
    let mut total = LandingCounters::default();
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
        total.handled += counters.handled;
        total.passed += counters.passed;
        total.aborted += counters.aborted;
        total.replies_lent += counters.replies_lent;
    }
    total
}
