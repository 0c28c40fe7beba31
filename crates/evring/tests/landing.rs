//! Handlers in a sandbox in front of an echo server, with messages that land in their memory: on every
//! mechanism and in simulation.

#![cfg(feature = "sandbox")]

use crate::server;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use ash_sandbox::model::{Governor, Machine, ProcessState, Strategy, Workload};
use ash_sandbox::sandbox::{Ash, Handler, HandlerMemory, Outcome, Pass, Policy, Sandboxer};
use evring::buffers::{BufferError, BufferGroup};
use evring::hooks::{BindError, Binding, Bindings, Hooked, Landing, LandingCounters, Tenant};
use evring::{
    Admission, AnyMechanism, Application, Chunk, Close, Commands, Config, ConnId, Cx, Listener,
    RemoteHandle, Rx,
};
use server::{TIMEOUT, echo_to_a_late_reader, side_by_side, small_queues};

/// Number and size of the receive buffers of a tenant.
const BUFFERS: (u16, u32) = (8, 2048);
/// The length of a message.
const LEN: usize = 1500;
/// A message that was not handled after this time is held.
const HELD_AFTER: Duration = Duration::from_millis(200);

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
                let handler = handler();
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

#[test]
fn messages_land_in_the_handlers_memory_and_replies_leave_from_it() {
    side_by_side(|backend| {
        let server = Server::start(backend);
        let mut clients: Vec<_> = (0..3).map(|listener| server.connect(listener)).collect();
        for _ in 0..50 {
            for client in &mut clients {
                echo(client, 0, LEN, 1);
                echo(client, 1, LEN, 1);
            }
        }
        let expected = [100, 100, 0, 0, 0, 100, 0, 0];
        for tenant in &server.tenants {
            assert_eq!(numbers(tenant), expected, "{backend}: no byte is copied");
        }
        // From the module's own memory, and short ones, they are copied; the application gets the rest.
        echo(&mut clients[0], 2, LEN, 1);
        echo(&mut clients[0], 0, 10, 1);
        echo(&mut clients[0], 1, 10, 1);
        echo(&mut clients[0], 3, LEN, 1);
        let copied = LEN as u64 + 20;
        assert_eq!(numbers(&server.tenants[0]), [104, 103, 0, 1, 0, 100, 3, copied]);
        // Four replies to one message, in order: its buffer leaves with the last that lies in it.
        echo(&mut clients[0], 4, LEN, 4);
        let copied = copied + 2 * LEN as u64;
        assert_eq!(numbers(&server.tenants[0]), [105, 104, 0, 1, 0, 102, 5, copied]);
        clients[0].write_all(&[5; LEN]).unwrap();
        // While the handler is off, the application answers.
        echo(&mut clients[1], 0, LEN, 1);
        server.tenants[1].set_on(false);
        echo(&mut clients[1], 0, LEN, 1);
        server.tenants[1].set_on(true);
        echo(&mut clients[1], 1, LEN, 1);
        assert_eq!(numbers(&server.tenants[1]), [103, 102, 0, 1, 0, 102, 0, 0]);
        let events: Vec<_> = server.events.try_iter().collect();
        // None of a message that was passed on.
        assert!(events.iter().all(|(kind, slot)| *kind != 3 && *slot < BUFFERS.0.into()));
        assert_eq!(events.iter().filter(|(kind, _)| *kind == 1).count(), 102);
        drop(clients);
        assert!(server.stop());
    });
}

/// Returns the counters in the order of their declaration.
fn numbers(tenant: &Tenant) -> [u64; 8] {
    let LandingCounters {
        landed,
        handled,
        discarded,
        passed,
        aborted,
        replies_lent,
        replies_copied,
        bytes_copied,
        ..
    } = tenant.counters();
    [landed, handled, discarded, passed, aborted, replies_lent, replies_copied, bytes_copied]
}

#[test]
fn memory_outlives_receives_and_replies_in_flight() {
    side_by_side(|backend| {
        for panics in [false, true] {
            let server = Server::start(backend);
            // Receives in flight; and replies that no client reads, until the slots are used up.
            let mut clients: Vec<_> = (0..6).map(|n| server.connect(n % 2)).collect();
            for (n, client) in clients.iter_mut().enumerate() {
                echo(client, (n % 2) as u8, LEN, 1);
            }
            let mut silent = server.connect(0);
            silent.set_nonblocking(true).unwrap();
            let message = [1; LEN];
            let mut rejected = 0;
            while rejected < 100 {
                match silent.write(&message) {
                    Ok(_) => rejected = 0,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                        rejected += 1;
                        thread::yield_now();
                    }
                    // The server ended the connection, as it queued too much for it.
                    Err(_) => break,
                }
            }
            if panics {
                let mut client = server.connect(2);
                client.write_all(b"!").unwrap();
                let _ = client.read(&mut [0]);
            }
            assert_eq!(server.stop(), !panics, "{backend}");
            drop(clients);
        }
    });
}

#[test]
fn handler_is_bound_once_and_its_buffers_fit_its_area() {
    let mut landing = Landing::new();
    let none = |_| Err(BufferError::TooMany);
    let too_many = landing.bind(handler(), 256, 2048, none).unwrap_err();
    let needed = 256 * (2048 + 64);
    let error = BufferError::TooSmall { needed, len: 256 << 10 };
    assert_eq!(too_many, BindError::Buffers(error));
    assert_eq!(landing.bind(handler(), 3, 1, none).unwrap_err(), BufferError::Count(3).into());
    assert_eq!(landing.bind(handler(), 4, 1, none).unwrap_err(), BufferError::TooMany.into());
    let mut bound = handler();
    bound.take_areas(usize::MAX).unwrap();
    // The area belongs to the kernel, so nothing else is copied to it.
    let outcome = bound.handle_copy(b"message", 0, std::time::Instant::now());
    assert_eq!(outcome, Outcome::Passed(Pass::Elsewhere));
    let error = landing.bind(bound, 4, 512, none).unwrap_err();
    assert_eq!(error, BindError::Taken);
    assert!(error.to_string().contains("another instance"));
}

#[test]
fn handler_of_another_landing_was_bound() {
    let add = |_| Ok(BufferGroup::DEFAULT);
    let (mut ours, mut others) = (Landing::new(), Landing::new());
    let [own, other] = [&mut ours, &mut others].map(|landing| landing.bind(handler(), 4, 64, add));
    let (own, other) = (own.unwrap(), other.unwrap());
    assert_eq!(own.group(), other.group(), "they differ by their landing only");
    let (bindings, to) = (ours.bindings(), || Binding::Listener(Listener(0)));
    let error = bindings.bind(to(), &other).unwrap_err();
    assert_eq!(error, BindError::OtherLanding);
    assert!(error.to_string().contains("another landing"));
    drop(others);
    assert_eq!(bindings.bind(to(), &other), Err(BindError::OtherLanding));
    assert_eq!(bindings.bind(to(), &own), Ok(()));
}

#[test]
fn handlers_are_bound_again_while_the_server_runs() {
    side_by_side(|backend| {
        let server = Server::start(backend);
        let (mut client, mut other) = (server.connect(2), server.connect(2));
        echo(&mut client, 0, LEN, 1);
        let ids: Vec<_> = server.accepted.try_iter().collect();
        let numbers = || [0, 1].map(|n| server.tenants[n].counters());
        let handled = || numbers().map(|counters| [counters.handled, counters.copied]);
        let bind = |to, n: usize| server.bindings.bind(to, &server.tenants[n]).unwrap();
        assert_eq!(handled(), [[0, 0]; 2], "{backend}: the listener has no handler");
        // A filter, whose messages are copied.
        let filter = Binding::Filter { offset: 1, bytes: vec![3, 6] };
        bind(filter.clone(), 0);
        echo(&mut client, 0, LEN, 1);
        echo(&mut client, 1, LEN, 1);
        echo(&mut client, 0, 2, 1);
        assert_eq!(handled(), [[1, 1], [0, 0]], "{backend}: only the first has these bytes");
        // Bound again, by the identifier of another handler.
        bind(filter.clone(), 1);
        echo(&mut client, 0, LEN, 1);
        assert_eq!(handled(), [[1, 1], [1, 1]], "{backend}");
        // A message that lands in the memory of its handler is not copied.
        echo(&mut server.connect(1), 0, LEN, 1);
        assert_eq!(handled(), [[1, 1], [2, 1]], "{backend}");
        // Replies from a reply slot and from the memory of the module.
        bind(Binding::Filter { offset: 0, bytes: vec![4] }, 0);
        echo(&mut client, 4, LEN, 4);
        assert_eq!(handled(), [[2, 2], [2, 1]], "{backend}");
        let copied = numbers()[0];
        assert_eq!((copied.replies_lent, copied.replies_copied), (1, 4), "{backend}");
        // A connection goes before the filters.
        ids.iter().for_each(|id| {
            bind(Binding::Connection(*id), 0);
        });
        echo(&mut client, 0, LEN, 1);
        echo(&mut other, 1, LEN, 1);
        assert_eq!(handled(), [[4, 4], [2, 1]], "{backend}");
        ids.iter().for_each(|id| server.bindings.unbind(Binding::Connection(*id)));
        // A listener, whose next connections receive into the memory of the handler.
        bind(Binding::Listener(Listener(2)), 0);
        let mut next = server.connect(2);
        echo(&mut next, 1, LEN, 1);
        assert_eq!(handled(), [[5, 4], [2, 1]], "{backend}");
        // The filter takes what landed elsewhere, too.
        echo(&mut next, 0, LEN, 1);
        assert_eq!(handled(), [[5, 4], [3, 2]], "{backend}");
        server.bindings.unbind(filter);
        server.bindings.unbind(Binding::Listener(Listener(2)));
        echo(&mut client, 0, LEN, 1);
        echo(&mut server.connect(2), 0, LEN, 1);
        assert_eq!(handled(), [[5, 4], [3, 2]], "{backend}");
        drop((client, other, next));
        assert!(server.stop());
    });
}

#[test]
fn handler_is_replaced_while_the_server_runs() {
    side_by_side(|backend| {
        let server = Server::start(backend);
        let mut client = server.connect(0);
        echo(&mut client, 2, LEN, 1);
        // Before it is bound, the landing has to get a message.
        let add = |count| server.bindings.add(handler(), count, BUFFERS.1);
        let (too_many, waiting) = (add(1 << 15), add(BUFFERS.0));
        echo(&mut client, 2, LEN, 1);
        let new = waiting.recv_timeout(TIMEOUT).unwrap().unwrap();
        let error = too_many.recv_timeout(TIMEOUT).unwrap().unwrap_err();
        assert!(matches!(error, BindError::Buffers(_)), "{backend}: {error:?}");
        let old = &server.tenants[0];
        let counts = |tenant: &Tenant| {
            let LandingCounters { landed, copied, handled, .. } = tenant.counters();
            [landed, copied, handled]
        };
        assert_eq!((counts(old), counts(&new)), ([2, 0, 2], [0, 0, 0]), "{backend}");
        // What lands in the memory of the old one is copied to the new one.
        server.bindings.bind(Binding::Landed(old.group()), &new).unwrap();
        (0..3).for_each(|_| echo(&mut client, 2, LEN, 1));
        assert_eq!((counts(old), counts(&new)), ([2, 0, 2], [0, 3, 3]), "{backend}");
        // The next connections receive into its own memory.
        server.bindings.bind(Binding::Listener(Listener(0)), &new).unwrap();
        let mut next = server.connect(0);
        (0..3).for_each(|_| echo(&mut next, 0, LEN, 1));
        assert_eq!((counts(old), counts(&new)), ([2, 0, 2], [3, 3, 6]), "{backend}");
        server.bindings.unbind(Binding::Landed(old.group()));
        echo(&mut client, 2, LEN, 1);
        assert_eq!((counts(old), counts(&new)), ([3, 0, 3], [3, 3, 6]), "{backend}");
        drop((client, next));
        assert!(server.stop(), "{backend}");
    });
}

#[test]
fn handler_for_a_landing_that_has_ended_waited_without_end() {
    let landing = Landing::new();
    let bindings = landing.bindings();
    let waiting = handler();
    let memory = Arc::downgrade(waiting.memory());
    let waiting = bindings.add(waiting, BUFFERS.0, BUFFERS.1);
    drop(landing);
    assert_eq!(waiting.recv_timeout(TIMEOUT).unwrap_err(), RecvTimeoutError::Disconnected);
    assert!(memory.upgrade().is_none(), "the memory of the handler leaks");
    let late = handler();
    let memory = Arc::downgrade(late.memory());
    let late = bindings.add(late, BUFFERS.0, BUFFERS.1);
    assert_eq!(late.recv_timeout(TIMEOUT).unwrap_err(), RecvTimeoutError::Disconnected);
    assert!(memory.upgrade().is_none(), "the memory of the handler leaks");
    // Those that no landing has.
    let none = Bindings::default().add(handler(), BUFFERS.0, BUFFERS.1);
    assert_eq!(none.recv_timeout(TIMEOUT).unwrap_err(), RecvTimeoutError::Disconnected);
}

#[test]
fn handlers_that_wait_for_a_message_were_not_bounded() {
    let landing = Landing::new();
    let bindings = landing.bindings();
    let ash = ash();
    let add = || bindings.add(ash.instantiate(1).unwrap(), BUFFERS.0, BUFFERS.1);
    let waiting: Vec<_> = (0..BufferGroup::MAX).map(|_| add()).collect();
    let too_many = Err(BindError::Buffers(BufferError::TooMany));
    assert_eq!(add().try_recv().map(|bound| bound.map(|_| ())), Ok(too_many));
    for waiting in waiting {
        assert!(matches!(waiting.try_recv(), Err(TryRecvError::Empty)));
    }
}

#[test]
fn handlers_that_had_waited_were_bound_last_first() {
    side_by_side(|backend| {
        let server = Server::start(backend);
        let added = [(); 3].map(|()| server.bindings.add(handler(), BUFFERS.0, BUFFERS.1));
        echo(&mut server.connect(0), 2, LEN, 1);
        let groups =
            added.map(|added| added.recv_timeout(TIMEOUT).unwrap().unwrap().group().index());
        assert!(groups.is_sorted(), "{backend}: {groups:?}");
        assert!(server.stop(), "{backend}");
    });
}

#[test]
fn messages_of_the_first_handler_missed_the_second_replacement() {
    side_by_side(|backend| {
        let server = Server::start(backend);
        let mut client = server.connect(0);
        let add = || server.bindings.add(handler(), BUFFERS.0, BUFFERS.1);
        let first = &server.tenants[0];
        let [second, third] = [add(), add()];
        echo(&mut client, 2, LEN, 1);
        let [second, third] =
            [second, third].map(|added| added.recv_timeout(TIMEOUT).unwrap().unwrap());
        let handled = || [first, &second, &third].map(|tenant| tenant.counters().handled);
        let replace = |old: &Tenant, new: &Tenant| {
            server.bindings.bind(Binding::Landed(old.group()), new).unwrap();
        };
        assert_eq!(handled(), [1, 0, 0], "{backend}");
        replace(first, &second);
        echo(&mut client, 2, LEN, 1);
        assert_eq!(handled(), [1, 1, 0], "{backend}");
        replace(&second, &third);
        echo(&mut client, 2, LEN, 1);
        assert_eq!(handled(), [1, 1, 1], "{backend}");
        // What was replaced may come back, and two may change places.
        server.bindings.unbind(Binding::Landed(second.group()));
        echo(&mut client, 2, LEN, 1);
        assert_eq!(handled(), [1, 2, 1], "{backend}");
        replace(&second, first);
        echo(&mut client, 2, LEN, 1);
        assert_eq!(handled(), [1, 3, 1], "{backend}");
        replace(first, first);
        echo(&mut client, 2, LEN, 1);
        assert_eq!(handled(), [2, 3, 1], "{backend}");
        drop(client);
        assert!(server.stop(), "{backend}");
    });
}

#[test]
fn handlers_were_on_under_overload() {
    side_by_side(|backend| {
        if backend == "tokio" {
            return; // It has no admission control.
        }
        let mut admission = Admission::default();
        admission.max_queue_delay = Duration::from_millis(1);
        let server = Server::start_with(backend, Some(admission));
        let mut client = server.connect(0);
        let ended = AtomicBool::new(false);
        let counters = || server.tenants[0].counters();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    while !ended.load(Ordering::Relaxed) {
                        let Ok(mut client) = TcpStream::connect(server.addresses[2]) else {
                            continue;
                        };
                        client.set_read_timeout(Some(TIMEOUT)).unwrap();
                        let _ = client.write_all(SLOW);
                        let _ = client.read(&mut [0; 4]);
                    }
                });
            }
            let until = Instant::now() + TIMEOUT;
            while counters().overloaded == 0 && Instant::now() < until {
                echo(&mut client, 0, LEN, 1);
            }
            ended.store(true, Ordering::Relaxed);
        });
        let LandingCounters { landed, handled, passed, overloaded, .. } = counters();
        assert!(overloaded > 0, "{backend}");
        assert_eq!((passed, handled), (overloaded, landed - overloaded), "{backend}");
        // The load is low again.
        let until = Instant::now() + TIMEOUT;
        while counters().handled == handled && Instant::now() < until {
            echo(&mut client, 0, LEN, 1);
        }
        assert!(counters().handled > handled, "{backend}");
        drop(client);
        assert!(server.stop());
    });
}

mod simulated {
    use std::cell::RefCell;
    use std::rc::Rc;

    use evring::mechanisms::{EventLoop, Mode};
    use evring_sim::{Machine, Net, Next, Peer, PeerConn, Plan, ReceiveResult, SimKernel};

    use super::*;

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
}

/// Starts a server of one tenant, with small queues.
fn with_small_queues(
    backend: &'static str,
) -> (SocketAddr, RemoteHandle, Tenant, thread::JoinHandle<()>) {
    let (started, server) = mpsc::channel();
    let thread = thread::spawn(move || {
        let mut server = AnyMechanism::new(backend, &small_queues()).unwrap();
        let mut landing = Landing::new();
        let add = |buffers| server.add_buffers(buffers);
        let tenant = landing.bind(handler(), BUFFERS.0, BUFFERS.1, add).unwrap();
        server.set_listener_group(Listener(0), tenant.group()).unwrap();
        started.send((server.addresses()[0], server.remote(), tenant)).unwrap();
        server.run(Hooked::new(Echo, landing)).unwrap();
    });
    let (address, remote, tenant) = server.recv().unwrap();
    (address, remote, tenant, thread)
}

#[test]
fn messages_held_for_a_late_reader_were_lost_at_a_stop() {
    side_by_side(|backend| {
        let (address, remote, tenant, thread) = with_small_queues(backend);
        let mut client = TcpStream::connect(address).unwrap();
        let mut messages = 0;
        // Until one is held.
        while tenant.counters().handled == messages {
            client.write_all(&[2; LEN]).unwrap();
            messages += 1;
            let begin = Instant::now();
            while tenant.counters().handled < messages && begin.elapsed() < HELD_AFTER {
                thread::yield_now();
            }
        }
        remote.stop();
        let mut replies = Vec::new();
        client.read_to_end(&mut replies).unwrap();
        assert_eq!(replies.len(), messages as usize * LEN, "{backend}");
        thread.join().unwrap();
    });
}

#[test]
fn client_that_read_the_replies_of_a_handler_late_was_reset() {
    side_by_side(|backend| {
        let (address, remote, tenant, thread) = with_small_queues(backend);
        // From its own memory.
        echo_to_a_late_reader(address, 2);
        assert_eq!(tenant.counters().passed, 0, "{backend}: the handler has echoed all");
        remote.stop();
        thread.join().unwrap();
    });
}

/// Counts each message, and does what its first byte says: `o` sends it back, `v` aborts, `i` traps.
const MOODY: &str = r#"
(module
  (import "ash" "send" (func $send (param i32 i32) (result i32)))
  (import "ash" "count" (func $count (param i32 i64) (result i32)))
  (memory (export "memory") 1 1)
  (func (export "ash_handle")
    (param $offset i32) (param $length i32) (param $connection i64) (param $slot i32) (result i32)
    (drop (call $count (i32.const 3) (i64.const 2)))
    (if (i32.eq (i32.load8_u (local.get $offset)) (i32.const 0x76)) (then (return (i32.const -1))))
    (if (i32.eq (i32.load8_u (local.get $offset)) (i32.const 0x69)) (then (unreachable)))
    (drop (call $send (local.get $offset) (local.get $length)))
    (i32.const 1)))
"#;

#[test]
fn operator_could_not_see_why_a_bound_handler_gets_no_messages() {
    side_by_side(|backend| {
        let (started, server) = mpsc::channel();
        let thread = thread::spawn(move || {
            let config = Config::default().with(|c| {
                c.listen = vec!["127.0.0.1:0".parse().unwrap()];
                c.admission = None;
            });
            let mut server = AnyMechanism::new(backend, &config).unwrap();
            let wasm = wat::parse_str(MOODY).unwrap();
            let ash = Sandboxer::new(Policy::default()).unwrap().load(&wasm).unwrap();
            let mut handler = ash.instantiate(1).unwrap();
            let workload = Workload { handler_us: 200.0, ..Workload::default() };
            let governor = Governor::new(Machine::ULTRIX, workload).with_window(8);
            handler.set_governor(Some(governor));
            let mut landing = Landing::new();
            let (count, size) = BUFFERS;
            let tenant = landing.bind(handler, count, size, |buffers| server.add_buffers(buffers));
            let tenant = tenant.unwrap();
            server.set_listener_group(Listener(0), tenant.group()).unwrap();
            started.send((server.addresses()[0], server.remote(), tenant)).unwrap();
            server.run(Hooked::new(Echo, landing)).unwrap();
        });
        let (address, remote, tenant) = server.recv().unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        // The handler or the application sends each message back.
        let mut say = |messages: &[u8]| {
            for message in messages {
                client.write_all(&[*message]).unwrap();
                let mut answer = [0];
                client.read_exact(&mut answer).unwrap();
                assert_eq!(answer, [*message], "{backend}");
            }
        };
        let now = |tenant: &Tenant| {
            let LandingCounters { handled, passed, aborted, aborted_voluntarily, governed, .. } =
                tenant.counters();
            [handled, passed, aborted, aborted_voluntarily, governed]
        };
        say(b"oii");
        assert_eq!((now(&tenant), tenant.is_disabled()), ([1, 2, 2, 0, 0], false), "{backend}");
        say(b"io");
        assert_eq!((now(&tenant), tenant.is_disabled()), ([1, 4, 3, 0, 0], true), "{backend}");
        tenant.enable();
        say(b"vvvv");
        assert_eq!((now(&tenant), tenant.is_disabled()), ([1, 8, 3, 4, 0], false), "{backend}");
        // It has aborted seven times of eight, so the governor prefers the application, which waits.
        say(b"o");
        assert_eq!(
            (now(&tenant), tenant.strategy()),
            ([1, 9, 3, 4, 1], Strategy::Interrupt),
            "{backend}"
        );
        tenant.set_process_state(ProcessState::BusySuspended);
        say(b"o");
        assert_eq!(
            (now(&tenant), tenant.strategy()),
            ([2, 9, 3, 4, 1], Strategy::Ash),
            "{backend}"
        );
        assert_eq!(tenant.own_counters()[3], 2 * 9, "{backend}");
        drop(client);
        remote.stop();
        thread.join().unwrap();
    });
}
