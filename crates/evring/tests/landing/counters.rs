//! When a bound handler gets no messages, and what its counters say.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ash_sandbox::model::{Governor, Machine, ProcessState, Strategy, Workload};
use ash_sandbox::sandbox::{Policy, Sandboxer};
use evring::hooks::{Hooked, Landing, LandingCounters, Tenant};
use evring::{Admission, AnyMechanism, Config, Listener};

use crate::landing::{BUFFERS, Echo, LEN, SLOW, Server, echo};
use crate::server::{TIMEOUT, side_by_side};

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

#[test]
fn handlers_were_on_under_overload() {
    side_by_side(|backend| {
        if backend == "tokio" {
            return println!("{backend}: does not apply: it has no admission control");
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
