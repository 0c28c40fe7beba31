//! Handlers in a sandbox in front of an echo server, with messages that land in their memory: on every
//! mechanism and in simulation.

#![cfg(feature = "sandbox")]

mod bindings;
mod counters;
pub(crate) mod kept;
mod late_readers;
mod messages;
mod owner_thread;
mod replacement;
mod simulated;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use ash_sandbox::sandbox::{Ash, Handler, HandlerMemory, Policy, Sandboxer};
use evring::hooks::{Bindings, Hooked, Landing, Tenant};
use evring::{
    Admission, AnyMechanism, Application, Chunk, Close, Commands, Config, ConnId, Cx, Listener,
    RemoteHandle, Rx,
};

use crate::server::TIMEOUT;

/// Number and size of the receive buffers of a tenant.
const BUFFERS: (u16, u32) = (8, 2048);
/// The length of a message.
const LEN: usize = 1500;

/// Sends each message back, from the place that the last bits of its first byte name: 0 the message, 1 a
/// reply slot, 2 the module's own memory, 3 the application, 4 all three, 5 nowhere.
const ECHO: &str = r#"
(module
  (import "ash" "send" (func $send (param i32 i32) (result i32)))
  (import "ash" "copy" (func $copy (param i32 i32 i32) (result i32)))
  (import "ash" "reply" (func $reply (param i32) (result i32)))
  (import "ash" "post" (func $post (param i64 i64) (result i32)))
  (memory (export "memory") 1 1)
  (func $from_slot (param $offset i32) (param $length i32) (result i32) (local $at i32)
    (local.set $at (call $reply (local.get $length)))
    (if (i32.lt_s (local.get $at) (i32.const 0)) (then (return (i32.const 0))))
    (drop (call $copy (local.get $at) (local.get $offset) (local.get $length)))
    ;; The handler itself can write to the slot, too.
    (i32.store8 (local.get $at) (i32.load8_u (local.get $offset)))
    (drop (call $send (local.get $at) (local.get $length)))
    (i32.const 1))
  (func $from_memory (param $offset i32) (param $length i32) (result i32)
    (drop (call $copy (i32.const 64) (local.get $offset) (local.get $length)))
    (drop (call $send (i32.const 64) (local.get $length)))
    (i32.const 1))
  (func (export "ash_handle")
    (param $offset i32) (param $length i32) (param $connection i64) (param $slot i32) (result i32)
    (local $where i32)
    (local.set $where (i32.and (i32.load8_u (local.get $offset)) (i32.const 7)))
    (drop (call $post (i64.extend_i32_u (local.get $where)) (i64.extend_i32_u (local.get $slot))))
    (if (i32.eq (local.get $where) (i32.const 0)) (then
      (drop (call $send (local.get $offset) (local.get $length)))
      (return (i32.const 1))))
    (if (i32.eq (local.get $where) (i32.const 1)) (then
      (return (call $from_slot (local.get $offset) (local.get $length)))))
    (if (i32.eq (local.get $where) (i32.const 2)) (then
      (return (call $from_memory (local.get $offset) (local.get $length)))))
    (if (i32.eq (local.get $where) (i32.const 4)) (then
      (drop (call $send (local.get $offset) (local.get $length)))
      (drop (call $from_slot (local.get $offset) (local.get $length)))
      (drop (call $send (local.get $offset) (local.get $length)))
      (return (call $from_memory (local.get $offset) (local.get $length)))))
    (if (i32.eq (local.get $where) (i32.const 5)) (then (return (i32.const 2))))
    (i32.const 0)))
"#;

fn ash() -> Ash {
    let wasm = wat::parse_str(ECHO).unwrap();
    Sandboxer::new(Policy::default()).unwrap().load(&wasm).unwrap()
}

fn handler() -> Handler {
    ash().instantiate(1).unwrap()
}

/// A message for which the application takes its time.
const SLOW: &[u8] = b"slow";

/// The application: an echo server, which panics when it receives `!`.
struct Echo;

impl Application for Echo {
    type State = ();
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        assert_ne!(rx.bytes(), b"!", "the client asked for it");
        if rx.bytes() == SLOW {
            thread::sleep(Duration::from_millis(2));
        }
        let eof = rx.eof();
        x.io.send(x.id, Chunk::Received(rx.take()));
        if eof {
            x.io.close(x.id, Close::Flush);
        }
    }
}

/// A server with three listeners: two with a tenant of their own, and one without a handler.
struct Server {
    addresses: Vec<SocketAddr>,
    remote: RemoteHandle,
    tenants: Vec<Tenant>,
    memories: Vec<Weak<HandlerMemory>>,
    events: mpsc::Receiver<(u64, u64)>,
    /// The connections to the third listener.
    accepted: mpsc::Receiver<ConnId>,
    bindings: Bindings,
    thread: thread::JoinHandle<bool>,
}

impl Server {
    fn start(backend: &'static str) -> Server {
        Server::start_with(backend, None)
    }

    fn start_with(backend: &'static str, admission: Option<Admission>) -> Server {
        Server::launch(backend, admission, &ash())
    }

    fn start_of(backend: &'static str, ash: &Ash) -> Server {
        Server::launch(backend, None, ash)
    }

    fn launch(backend: &'static str, admission: Option<Admission>, ash: &Ash) -> Server {
        let ash = ash.clone();
        let (started, server) = mpsc::channel();
        let thread = thread::spawn(move || {
            let any = "127.0.0.1:0".parse().unwrap();
            let config = Config::default().with(|c| {
                c.listen = vec![any; 3];
                c.admission = admission;
                // Of the client that does not read.
                c.drain_timeout = Duration::from_millis(50);
            });
            let mut server = AnyMechanism::new(backend, &config).unwrap();
            let (mut tenants, mut memories) = (Vec::new(), Vec::new());
            let mut landing = Landing::new();
            for _ in 0..2 {
                let handler = ash.instantiate(1).unwrap();
                memories.push(Arc::downgrade(handler.memory()));
                let (count, size) = BUFFERS;
                let add = |buffers| server.add_buffers(buffers);
                tenants.push(landing.bind(handler, count, size, add).unwrap());
            }
            server.set_listener_group(Listener(0), tenants[0].group()).unwrap();
            let (events, posted) = mpsc::channel();
            let (accept, accepted) = mpsc::channel();
            let bindings = landing.bindings();
            // The tenant of the second listener is chosen for each connection.
            let second = tenants[1].group();
            let landing = landing
                .choosing(move |id, at| {
                    if at == Listener(2) {
                        let _ = accept.send(id);
                    }
                    (at == Listener(1)).then_some(second)
                })
                .posting(move |_, kind, value| events.send((kind, value)).unwrap());
            let addresses = server.addresses().to_vec();
            let started_parts = (tenants, memories, posted, accepted, bindings);
            started.send((addresses, server.remote(), started_parts)).unwrap();
            let run = || server.run(Hooked::new(Echo, landing)).unwrap();
            catch_unwind(AssertUnwindSafe(run)).is_ok()
        });
        let (addresses, remote, parts) = server.recv().unwrap();
        let (tenants, memories, events, accepted, bindings) = parts;
        Server { addresses, remote, tenants, memories, events, accepted, bindings, thread }
    }

    fn connect(&self, listener: usize) -> TcpStream {
        let client = TcpStream::connect(self.addresses[listener]).unwrap();
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        client.set_nodelay(true).unwrap();
        client
    }

    /// Stops the server, and returns whether it ended without a panic. Then its memory is unmapped; after a
    /// panic it may stay, as a ring may still receive into it.
    fn stop(self) -> bool {
        self.remote.stop();
        let is_ok = self.thread.join().unwrap();
        for memory in &self.memories {
            assert!(!is_ok || memory.upgrade().is_none(), "the memory of a handler leaks");
        }
        is_ok
    }
}

/// Sends a message of this length that begins with `first`, and expects it `times` times.
fn echo(client: &mut TcpStream, first: u8, len: usize, times: usize) {
    let message: Vec<u8> = (0..len).map(|n| first.wrapping_add((n * 3) as u8)).collect();
    client.write_all(&message).unwrap();
    for _ in 0..times {
        let mut answer = vec![0; len];
        client.read_exact(&mut answer).unwrap();
        assert!(answer == message, "another answer to {first}");
    }
}
