//! Messages that a handler keeps where they have landed, on every mechanism.

use std::io::{Read, Write};
use std::net::TcpStream;

use ash_sandbox::sandbox::{Ash, Policy, Sandboxer};
use evring::hooks::Binding;

use crate::landing::late_readers::with_small_queues;
use crate::landing::{BUFFERS, LEN, Server};
use crate::server::{connect, side_by_side};

/// Does what the first byte of a message says, with the entry that the second one names: `k` keeps the message, `g` sends what is
/// kept, `b` gives it back; `e` echoes the message; `p` keeps and `h` gives back, and both pass the message on; `!` traps. Replies with the status if
/// there is nothing else. Passes on all other messages.
pub(crate) const KEEPER: &str = r#"
(module
  (import "ash" "send" (func $send (param i32 i32) (result i32)))
  (import "ash" "keep" (func $keep (result i32)))
  (import "ash" "give_back" (func $give_back (param i32) (result i32)))
  (memory (export "memory") 1 1)
  (func $reply (param $status i32) (result i32)
    (i32.store8 (i32.const 8) (local.get $status))
    (drop (call $send (i32.const 8) (i32.const 1)))
    (i32.const 1))
  (func (export "ash_handle")
    (param $at i32) (param $length i32) (param i64) (param $slot i32) (result i32)
    (local $do i32) (local $entry i32) (local $status i32)
    (local.set $do (i32.load8_u (local.get $at)))
    (local.set $entry (i32.add (i32.const 1024)
      (i32.mul (i32.const 16) (i32.load8_u offset=1 (local.get $at)))))
    (if (i32.or (i32.eq (local.get $do) (i32.const 0x6b)) (i32.eq (local.get $do) (i32.const 0x70))) (then
      (local.set $status (call $keep))
      (if (i32.eqz (local.get $status)) (then
        (i32.store (local.get $entry) (local.get $at))
        (i32.store offset=4 (local.get $entry) (local.get $length))
        (i32.store offset=8 (local.get $entry) (local.get $slot))))
      (if (i32.eq (local.get $do) (i32.const 0x70)) (then (return (i32.const 0))))
      (return (call $reply (local.get $status)))))
    (if (i32.eq (local.get $do) (i32.const 0x67)) (then
      (local.set $status
        (call $send (i32.load (local.get $entry)) (i32.load offset=4 (local.get $entry))))
      (if (local.get $status) (then (return (call $reply (local.get $status)))))
      (return (i32.const 1))))
    (if (i32.eq (local.get $do) (i32.const 0x62)) (then
      (return (call $reply (call $give_back (i32.load offset=8 (local.get $entry)))))))
    (if (i32.eq (local.get $do) (i32.const 0x68)) (then
      (drop (call $give_back (i32.load offset=8 (local.get $entry))))))
    (if (i32.eq (local.get $do) (i32.const 0x65)) (then
      (drop (call $send (local.get $at) (local.get $length)))
      (return (i32.const 1))))
    (if (i32.eq (local.get $do) (i32.const 0x21)) (then unreachable))
    (i32.const 0)))
"#;

pub(crate) const FAULT: u8 = -1i8 as u8;
pub(crate) const EXHAUSTED: u8 = -2i8 as u8;

fn keeper() -> Ash {
    let wasm = wat::parse_str(KEEPER).unwrap();
    Sandboxer::new(Policy::default()).unwrap().load(&wasm).unwrap()
}

fn message(what: u8, entry: u8) -> Vec<u8> {
    let rest = (2..LEN).map(|n| entry.wrapping_mul(31).wrapping_add(n as u8));
    [what, entry].into_iter().chain(rest).collect()
}

/// Sends a message, and expects a reply.
fn ask(client: &mut TcpStream, what: u8, entry: u8, expected: &[u8]) {
    client.write_all(&message(what, entry)).unwrap();
    let mut answer = vec![0; expected.len()];
    client.read_exact(&mut answer).unwrap();
    let what = char::from(what);
    assert!(answer == expected, "{what} {entry}: {:?}", answer.first());
}

/// Sends a message that the application sends back.
fn pass(client: &mut TcpStream, what: u8, entry: u8) {
    ask(client, what, entry, &message(what, entry));
}

#[test]
fn handler_keeps_messages_until_it_gives_them_back_on_every_mechanism() {
    // Half of the buffers.
    let max = BUFFERS.0 as u8 / 2;
    side_by_side(|backend| {
        let server = Server::start_of(backend, &keeper());
        let tenant = &server.tenants[0];
        let mut client = server.connect(0);
        (0..max).for_each(|n| ask(&mut client, b'k', n, &[0]));
        ask(&mut client, b'k', max, &[EXHAUSTED]);
        // Others land in each of the other buffers.
        (0..50).for_each(|n| pass(&mut client, b'x', n));
        for n in 0..max {
            ask(&mut client, b'g', n, &message(b'k', n));
        }
        // It gives back its own once, and what is not its own never.
        ask(&mut client, b'b', 1, &[0]);
        ask(&mut client, b'b', 1, &[FAULT]);
        ask(&mut client, b'k', 5, &[0]);
        ask(&mut client, b'k', 6, &[EXHAUSTED]);
        ask(&mut client, b'g', 5, &message(b'k', 5));
        // Neither has an effect with a message that is passed on.
        pass(&mut client, b'h', 0);
        ask(&mut client, b'g', 0, &message(b'k', 0));
        ask(&mut client, b'b', 5, &[0]);
        pass(&mut client, b'p', 7);
        ask(&mut client, b'b', 7, &[FAULT]);
        // A handler that is disabled, or replaced, keeps nothing.
        (0..3).for_each(|n| pass(&mut client, b'!', n));
        assert!(tenant.is_disabled(), "{backend}");
        tenant.enable();
        ask(&mut client, b'b', 0, &[FAULT]);
        (0..max).for_each(|n| ask(&mut client, b'k', n, &[0]));
        ask(&mut client, b'g', 0, &message(b'k', 0));
        let landed = Binding::Landed(tenant.group());
        server.bindings.bind(landed.clone(), &server.tenants[1]).unwrap();
        // A message that was copied has no buffer.
        ask(&mut client, b'k', 0, &[FAULT]);
        server.bindings.unbind(landed);
        ask(&mut client, b'b', 0, &[FAULT]);
        // The server stops while it keeps some.
        (0..max).for_each(|n| ask(&mut client, b'k', n, &[0]));
        ask(&mut client, b'k', 0, &[EXHAUSTED]);
        let counters = tenant.counters();
        assert_eq!(counters.replies_lent, 0, "{backend}: what is kept has left");
        drop(client);
        assert!(server.stop(), "{backend}");
    });
}

#[test]
fn kept_messages_took_the_buffers_that_slow_readers_had_left() {
    side_by_side(|backend| {
        let (address, remote, _, thread) =
            with_small_queues(backend, || keeper().instantiate(1).unwrap());
        let [mut client, mut slow] = [(); 2].map(|()| connect(address));
        slow.set_nonblocking(true).unwrap();
        // Until the server receives nothing more from a reader that has stopped: its replies have most of the buffers.
        while slow.write(&[b'e'; LEN]).is_ok() {
            (0..2).for_each(|n| pass(&mut client, b'x', n));
        }
        let mut keeps = |entry| {
            client.write_all(&message(b'k', entry)).unwrap();
            let mut status = [0];
            client.read_exact(&mut status).unwrap();
            status == [0]
        };
        let kept = (0..BUFFERS.0 as u8).filter(|n| keeps(*n)).count();
        assert!(kept < usize::from(BUFFERS.0) / 2, "{backend}: {kept} kept");
        (0..50).for_each(|n| pass(&mut client, b'x', n));
        drop((client, slow));
        remote.stop();
        thread.join().unwrap();
    });
}
