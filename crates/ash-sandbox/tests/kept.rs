//! Messages that a handler keeps: what it may do with them, and with those of others.

#![cfg(feature = "sandbox")]

use std::time::Instant;

use ash_sandbox::sandbox::{Handler, MAX_KEPT, Outcome, Pass, Policy, Sandboxer};

/// Executes a message as pairs of a call and an argument, and sends the statuses: `k` keeps, `b` gives a slot back, `s` sends a
/// byte of the block of 64 bytes of the message area with this number, `c` copies it. `!` traps, and `p` passes on.
const MODULE: &str = r#"(module
    (import "ash" "send" (func $send (param i32 i32) (result i32)))
    (import "ash" "copy" (func $copy (param i32 i32 i32) (result i32)))
    (import "ash" "keep" (func $keep (result i32)))
    (import "ash" "give_back" (func $give_back (param i32) (result i32)))
    (memory (export "memory") 1 1)
    (func $status (param $do i32) (param $of i32) (result i32) (local $block i32)
        (local.set $block (i32.add (i32.const 65536) (i32.mul (i32.const 64) (local.get $of))))
        (if (i32.eq (local.get $do) (i32.const 0x6b)) (then (return (call $keep))))
        (if (i32.eq (local.get $do) (i32.const 0x62)) (then (return (call $give_back (local.get $of)))))
        (if (i32.eq (local.get $do) (i32.const 0x73)) (then
            (return (call $send (local.get $block) (i32.const 1)))))
        (if (i32.eq (local.get $do) (i32.const 0x63)) (then
            (return (call $copy (i32.const 8) (local.get $block) (i32.const 1)))))
        unreachable)
    (func (export "ash_handle") (param $at i32) (param $length i32) (param i64 i32) (result i32)
        (local $n i32)
        (loop $next
            (if (i32.eq (i32.load8_u (local.get $at)) (i32.const 0x70)) (then (return (i32.const 0))))
            (i32.store8 offset=1024 (local.get $n)
                (call $status (i32.load8_u (local.get $at)) (i32.load8_u offset=1 (local.get $at))))
            (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (local.set $at (i32.add (local.get $at) (i32.const 2)))
            (br_if $next (i32.lt_u (local.get $n) (i32.shr_u (local.get $length) (i32.const 1)))))
        (drop (call $send (i32.const 1024) (local.get $n)))
        (i32.const 1)))"#;

fn handler(max_kept: usize) -> Handler {
    let sandboxer = Sandboxer::new(Policy::default().with(|p| p.max_sends = 64)).unwrap();
    let ash = sandboxer.load(&wat::parse_str(MODULE).unwrap()).unwrap();
    let mut handler = ash.instantiate(1).unwrap();
    // SAFETY: each message is the only one in its block while it is kept, and no kernel writes to them.
    unsafe { handler.set_max_kept(max_kept) };
    handler
}

/// Lets a message land in the block of a slot. Returns the outcome, and the statuses of its calls.
fn land(handler: &mut Handler, slot: u8, message: &[u8]) -> (Outcome, Vec<i8>) {
    let start = handler.memory().message_area().start + 64 * usize::from(slot);
    let to = handler.memory().host_pointer(start);
    // SAFETY: the block is in the message area, no handler runs, and nothing else writes to the message until it was handled.
    let message = unsafe {
        message.as_ptr().copy_to_nonoverlapping(to, message.len());
        std::slice::from_raw_parts(to, message.len())
    };
    let outcome = handler.handle(message, 7, slot.into(), Instant::now());
    let statuses = handler.sent(message).last().unwrap_or_default();
    (outcome, statuses.iter().map(|status| *status as i8).collect())
}

/// The same for a message that is handled.
fn handled(handler: &mut Handler, slot: u8, message: &[u8]) -> Vec<i8> {
    let (outcome, statuses) = land(handler, slot, message);
    assert_eq!(outcome, Outcome::Handled);
    statuses
}

#[test]
fn handler_gives_back_what_is_its_own_once() {
    let mut handler = handler(2);
    // Not even the slot of the message in hand, which it keeps from its return on.
    assert_eq!(handled(&mut handler, 0, b"k.k.b\x00b\x01"), [0, 0, -1, -1]);
    assert_eq!((handler.keeps(), handler.given_back()), (Some(0), &[][..]));
    assert_eq!(handled(&mut handler, 1, b"b\x01b\xffb\x00b\x00"), [-1, -1, 0, -1]);
    assert_eq!((handler.keeps(), handler.given_back()), (None, &[0][..]));
    assert_eq!(handled(&mut handler, 1, b"b\x00"), [-1]);
    assert_eq!((handler.keeps(), handler.given_back()), (None, &[][..]));
}

#[test]
fn handler_that_keeps_everything_meets_the_bound() {
    for (max, expected) in [(0, 0), (3, 3), (1000, MAX_KEPT)] {
        let mut handler = handler(max);
        let kept = (0..100).filter(|slot| handled(&mut handler, *slot, b"k.") == [0]).count();
        assert_eq!(kept, expected);
        assert_eq!(handled(&mut handler, 100, b"k."), [-2]);
        assert_eq!(handler.keeps(), None);
    }
    // A message that was copied lies in no slot.
    let mut handler = handler(3);
    assert_eq!(handler.handle_copy(b"k.", 7, Instant::now()), Outcome::Handled);
    assert_eq!((handler.sent(b"k.").last(), handler.keeps()), (Some(&[0xff][..]), None));
}

#[test]
fn messages_are_sent_and_copied_while_they_are_kept() {
    let mut handler = handler(2);
    handled(&mut handler, 5, b"k.");
    assert_eq!(handled(&mut handler, 0, b"s\x05c\x05s\x04c\x04"), [0, 0, -1, -1]);
    assert_eq!(handler.sent(b"").next(), Some(&b"k"[..]));
    // Also with the message that gives them back, but no longer.
    assert_eq!(handled(&mut handler, 0, b"b\x05s\x05"), [0, 0]);
    assert_eq!(handled(&mut handler, 0, b"s\x05c\x05"), [-1, -1]);
}

#[test]
fn messages_that_are_not_handled_keep_and_give_back_nothing() {
    let mut handler = handler(2);
    handled(&mut handler, 0, b"k.");
    for message in [b"k.b\x00p.", b"k.b\x00!."] {
        assert!(matches!(land(&mut handler, 1, message).0, Outcome::Passed(_)));
        assert_eq!((handler.keeps(), handler.given_back()), (None, &[][..]));
    }
    assert_eq!(handled(&mut handler, 1, b"s\x00b\x01"), [0, -1]);
    // Aborts that disable the handler take what it keeps.
    (0..2).for_each(|_| drop(land(&mut handler, 1, b"!.")));
    assert!(handler.is_disabled());
    handler.enable();
    assert_eq!(handled(&mut handler, 1, b"s\x00b\x00"), [-1, -1]);
}

#[test]
fn place_of_a_message_that_was_given_back_was_not_free_until_the_next_one() {
    let mut handler = handler(2);
    handled(&mut handler, 0, b"k.");
    handled(&mut handler, 1, b"k.");
    assert_eq!(handled(&mut handler, 2, b"k.b\x00k.k."), [-2, 0, 0, 0]);
    assert_eq!((handler.keeps(), handler.given_back()), (Some(2), &[0][..]));
    assert_eq!(handled(&mut handler, 3, b"k.s\x00s\x01s\x02"), [-2, -1, 0, 0]);
    // With a lower maximum, it gives back first.
    // SAFETY: as in `handler`.
    unsafe { handler.set_max_kept(1) };
    assert_eq!(handled(&mut handler, 3, b"b\x01k.b\x02k."), [0, -2, 0, 0]);
}

#[test]
fn skipped_message_was_kept_as_the_one_before() {
    let mut handler = handler(2);
    handled(&mut handler, 0, b"k.");
    handled(&mut handler, 1, b"b\x00k.");
    handler.set_on(false);
    assert_eq!(land(&mut handler, 2, b"k.").0, Outcome::Passed(Pass::Off));
    assert_eq!((handler.keeps(), handler.given_back()), (None, &[][..]));
    handler.set_on(true);
    let mut copies = self::handler(2);
    handled(&mut copies, 0, b"k.");
    let too_long = vec![0; copies.memory().message_area().len() + 1];
    let outcome = copies.handle_copy(&too_long, 7, Instant::now());
    assert_eq!((outcome, copies.keeps()), (Outcome::Passed(Pass::TooLong), None));
    // What was kept before stays so.
    assert_eq!(handled(&mut handler, 2, b"s\x01b\x01"), [0, 0]);
}

#[test]
fn rejected_message_was_kept() {
    let mut handler = handler(2);
    handled(&mut handler, 0, b"k.");
    handled(&mut handler, 1, b"k.b\x00");
    handler.reject();
    assert_eq!((handler.keeps(), handler.given_back()), (None, &[][..]));
    assert_eq!(handled(&mut handler, 2, b"s\x01b\x01s\x00"), [-1, -1, 0]);
    // Aborts that disable the handler take what it keeps, also these.
    while !handler.is_disabled() {
        handled(&mut handler, 1, b"s\x00");
        handler.reject();
    }
    handler.enable();
    assert_eq!(handled(&mut handler, 1, b"s\x00b\x00"), [-1, -1]);
}
