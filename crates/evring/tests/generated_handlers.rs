//! Generated modules in front of an application, with messages that land in their memory and replies that leave from it,
//! on every mechanism: whatever they do, another tenant of the server is served as before, and the memory is freed.

#![cfg(feature = "sandbox")]

use crate::{generated, server};

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Instant;

use arbitrary::Unstructured;
use ash_sandbox::ilp::{Mode, PipeList, chacha20, checksum};
use ash_sandbox::sandbox::{Ash, HandlerMemory, Outcome, Policy, Sandboxer};
use evring::hooks::{Hooked, Landing};
use evring::{AnyMechanism, Application, Commands, Config, Cx, Listener, Rx};
use server::{TIMEOUT, side_by_side};
use wasm_smith::Module;

/// The modules for each mechanism of any kind, those that handle a message, and the messages for each module.
const MODULES: usize = 15;
const HANDLING: usize = 5;
const MESSAGES: u64 = 8;

/// Imports that handlers use, those for pipes included.
const SHAPE: &str = r#"
(module
  (import "ash" "send" (func (param i32 i32) (result i32)))
  (import "ash" "reply" (func (param i32) (result i32)))
  (import "ash" "keep" (func (result i32)))
  (import "ash" "give_back" (func (param i32) (result i32)))
  (import "ash" "copy" (func (param i32 i32 i32) (result i32)))
  (import "ash" "write_apply" (func (param i32 i32 i32 i32) (result i32)))
  (import "ash" "export" (func (param i32 i32 i64) (result i32)))
  (import "ash" "import" (func (param i32 i32) (result i64)))
  (import "ash" "key" (func (param i32 i32 i32 i32) (result i32)))
  (import "ash" "post" (func (param i64 i64) (result i32)))
  (import "ash" "upcall" (func (result i32)))
  (import "ash" "abort" (func))
  (memory (export "memory") 1 1)
  (func (export "ash_handle") (param i32 i32 i64 i32) (result i32) unreachable))
"#;

/// The other tenant, which sends each message back from where it has landed.
const ECHO: &str = r#"
(module
  (import "ash" "send" (func $send (param i32 i32) (result i32)))
  (memory (export "memory") 1 1)
  (func (export "ash_handle") (param i32 i32 i64 i32) (result i32)
    (drop (call $send (local.get 0) (local.get 1)))
    (i32.const 1)))
"#;

/// Takes what handlers pass on.
struct Sink;

impl Application for Sink {
    type State = ();
    const MAX_UNCONSUMED: usize = 1;

    fn received(&mut self, x: Cx<'_, impl Commands, ()>, rx: &mut Rx<'_>) {
        rx.consume(rx.bytes().len());
        if rx.eof() {
            x.io.close(x.id, evring::Close::Flush);
        }
    }
}

/// Returns the modules from a seed on that the sandboxer accepts.
fn load(sandboxer: &Sandboxer, seed: u64) -> impl Iterator<Item = Ash> {
    (seed..).filter_map(|seed| {
        let bytes = generated::bytes(seed);
        let config = generated::like_handlers(SHAPE, false, false);
        let module = Module::new(config, &mut Unstructured::new(&bytes)).ok()?;
        sandboxer.load(&module.to_bytes()).ok().filter(|ash| ash.instantiate(0).is_ok())
    })
}

/// Returns whether a module handles a message; most of them trap.
fn handles(ash: &Ash) -> bool {
    let mut handler = ash.instantiate(0).unwrap();
    handler.handle_copy(&[1; 180], 0, Instant::now()) == Outcome::Handled
}

fn run(backend: &'static str, hostile: &Ash, echo: &Ash) -> u64 {
    let (started, server) = mpsc::channel();
    let ashes = [hostile.clone(), echo.clone()];
    let thread = thread::spawn(move || {
        let config = Config::default().with(|c| {
            c.listen = vec!["127.0.0.1:0".parse().unwrap(); 2];
            c.admission = None;
        });
        let mut server = AnyMechanism::new(backend, &config).unwrap();
        let mut landing = Landing::new();
        let (mut tenants, mut memories) = (Vec::new(), Vec::new());
        for (listener, ash) in (0..).zip(ashes) {
            let mut handler = ash.instantiate(listener.into()).unwrap();
            let mut pipes = PipeList::new();
            let sum = pipes.add(checksum::pipe()).unwrap();
            pipes.add(chacha20::pipe()).unwrap();
            handler.add_pipes(pipes.compile(Mode::Write).unwrap(), vec![(sum, checksum::SUM)]);
            memories.push(Arc::downgrade(handler.memory()));
            let tenant = landing.bind(handler, 8, 2048, |buffers| server.add_buffers(buffers));
            let tenant = tenant.unwrap();
            server.set_listener_group(Listener(listener), tenant.group()).unwrap();
            tenants.push(tenant);
        }
        started.send((server.addresses().to_vec(), server.remote(), tenants, memories)).unwrap();
        server.run(Hooked::new(Sink, landing)).unwrap();
    });
    let (addresses, remote, tenants, memories) = server.recv().unwrap();
    let memories: Vec<Weak<HandlerMemory>> = memories;
    let mut other = TcpStream::connect(addresses[1]).unwrap();
    other.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut client = TcpStream::connect(addresses[0]).unwrap();
    let mut replies = client.try_clone().unwrap();
    // A client that reads nothing would not be received from.
    let reads =
        thread::spawn(move || while replies.read(&mut [0; 4096]).is_ok_and(|len| len > 0) {});
    for n in 1..=MESSAGES {
        let message = vec![n as u8; n as usize * 180];
        client.write_all(&message).unwrap();
        // The application is sure to get it once the handler is done with it, or is disabled.
        let begin = Instant::now();
        while tenants[0].counters().landed < n {
            assert!(begin.elapsed() < TIMEOUT, "{backend}: message {n} has not landed");
            thread::yield_now();
        }
        other.write_all(&message).unwrap();
        let mut answer = vec![0; message.len()];
        other.read_exact(&mut answer).unwrap();
        assert!(answer == message, "{backend}: the other tenant's reply has changed");
        tenants[0].enable();
    }
    let counters = tenants[0].counters();
    assert_eq!(counters.landed, counters.handled + counters.discarded + counters.passed);
    assert_eq!(tenants[1].counters().handled, MESSAGES);
    client.shutdown(std::net::Shutdown::Write).unwrap();
    reads.join().unwrap();
    drop((client, other));
    remote.stop();
    thread.join().unwrap();
    // The instances of other threads free it, too.
    let begin = Instant::now();
    while memories.iter().any(|memory| memory.upgrade().is_some()) {
        assert!(begin.elapsed() < TIMEOUT, "{backend}: memory leaks");
        drop(echo.instantiate(0).unwrap());
    }
    counters.handled
}

#[test]
fn generated_modules_behind_a_landing_harm_no_other_tenant() {
    let sandboxer = Sandboxer::new(Policy::default()).unwrap();
    let echo = sandboxer.load(&wat::parse_str(ECHO).unwrap()).unwrap();
    let handling = load(&sandboxer, 1_000_000).filter(handles).take(HANDLING);
    let modules: Vec<_> = load(&sandboxer, 0).take(MODULES).chain(handling).collect();
    side_by_side(|backend| {
        let handled: u64 = modules.iter().map(|hostile| run(backend, hostile, &echo)).sum();
        assert!(handled > 0, "{backend}: no module has handled a message");
    });
}
