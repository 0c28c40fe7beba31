//! Handlers in the sandbox: what they can do, what they cannot, and what becomes of the message.

#![cfg(feature = "sandbox")]

use crate::memory;

use std::time::Instant;

use ash_sandbox::ilp::{Mode, PipeList, chacha20, checksum};
use ash_sandbox::sandbox::{Abort, Ash, Handler, Outcome, Pass, Policy, Sandboxer};
use memory::bytes;

/// A module with a page of memory, and an entry of these instructions.
pub(crate) fn module(body: &str) -> Vec<u8> {
    module_with("", body)
}

pub(crate) fn module_with(fields: &str, body: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
            (import "ash" "send" (func $send (param i32 i32) (result i32)))
            (import "ash" "clock" (func $clock (result i64)))
            (import "ash" "id" (func $id (result i64)))
            (import "ash" "copy" (func $copy (param i32 i32 i32) (result i32)))
            (import "ash" "read_apply" (func $read_apply (param i32 i32 i32) (result i32)))
            (import "ash" "write_apply" (func $write_apply (param i32 i32 i32 i32) (result i32)))
            (import "ash" "import" (func $import (param i32 i32) (result i64)))
            (import "ash" "export" (func $export (param i32 i32 i64) (result i32)))
            (import "ash" "key" (func $key (param i32 i32 i32 i32) (result i32)))
            (import "ash" "post" (func $post (param i64 i64) (result i32)))
            (import "ash" "count" (func $count (param i32 i64) (result i32)))
            (import "ash" "reply" (func $reply (param i32) (result i32)))
            (import "ash" "upcall" (func $upcall (result i32)))
            (import "ash" "abort" (func $abort))
            (memory (export "memory") 1 1)
            {fields}
            (func $handle (export "ash_handle")
                (param $offset i32) (param $length i32) (param $connection i64) (param $slot i32)
                (result i32)
                {body}))"#
    );
    wat::parse_str(text).unwrap()
}

pub(crate) fn sandboxer() -> Sandboxer {
    Sandboxer::new(Policy::default()).unwrap()
}

pub(crate) fn handler_with(policy: Policy, wasm: &[u8]) -> Handler {
    Sandboxer::new(policy).unwrap().load(wasm).unwrap().instantiate(1).unwrap()
}

pub(crate) fn handler(body: &str) -> Handler {
    handler_with(Policy::default(), &module(body))
}

pub(crate) fn run(handler: &mut Handler, message: &[u8]) -> Outcome {
    handler.handle_copy(message, 7, Instant::now())
}

/// Returns what a handler has sent, which is nothing of its message.
pub(crate) fn sent(handler: &Handler) -> Vec<Vec<u8>> {
    handler.sent(b"").map(<[u8]>::to_vec).collect()
}

#[test]
fn handler_sees_the_message_where_it_has_landed_and_sends_it_from_there() {
    let mut handler = handler(
        "(drop (call $send (local.get $offset) (local.get $length)))
         (i32.store (i32.const 64) (i32.wrap_i64 (local.get $connection)))
         (i32.store (i32.const 68) (local.get $slot))
         (drop (call $send (i32.const 64) (i32.const 8)))
         (i32.const 1)",
    );
    let area = handler.memory().message_area();
    let at = area.start + 1000;
    let to = handler.memory().host_pointer(at);
    // SAFETY: the area has room for five bytes there, no handler runs, and nothing else writes to them.
    let message = unsafe {
        b"hello".as_ptr().copy_to_nonoverlapping(to, 5);
        std::slice::from_raw_parts(to, 5)
    };
    assert_eq!(handler.handle(message, 77, 3, Instant::now()), Outcome::Handled);
    let sent: Vec<_> = handler.sent(message).collect();
    assert_eq!(sent, [&b"hello"[..], &[77, 0, 0, 0, 3, 0, 0, 0]]);
    assert_eq!(handler.sends()[0], at..at + 5, "sent without a copy");
}

#[test]
#[should_panic(expected = "the len is 1 but the index is 1")]
fn send_of_a_former_message_is_none_of_the_last() {
    let body = "(drop (call $send (i32.const 64) (i32.const 1)))
         (if (i32.gt_u (local.get $length) (i32.const 1))
             (then (drop (call $send (i32.const 64) (i32.const 2)))))
         (i32.const 1)";
    let mut handler = handler(body);
    for (message, last) in [(&b"ab"[..], 1), (b"a", 0)] {
        assert_eq!(run(&mut handler, message), Outcome::Handled);
        assert_eq!(handler.nth_sent(last, message).len(), last + 1);
    }
    handler.nth_sent(1, b"a");
}

#[test]
fn what_was_sent_of_a_message_was_read_from_a_buffer_that_the_kernel_had_again() {
    let body = "(drop (call $send (local.get $offset) (local.get $length)))
         (drop (call $send (i32.add (local.get $offset) (i32.const 2)) (i32.const 1)))
         (drop (call $send (i32.add (local.get $offset) (i32.const 1)) (i32.const 0)))
         (drop (call $send (i32.const 65535) (i32.const 1)))
         (i32.const 1)";
    let mut handler = handler(body);
    let to = handler.memory().host_pointer(handler.memory().message_area().start);
    // SAFETY: the bytes are in the area, no handler runs, and nothing else writes to them.
    let message = unsafe {
        b"one".as_ptr().copy_to_nonoverlapping(to, 3);
        std::slice::from_raw_parts(to, 3)
    };
    let (mine, landed) = (message.to_vec(), handler.handle(message, 1, 0, Instant::now()));
    // SAFETY: as above; `message` is not used any more.
    unsafe { b"two".as_ptr().copy_to_nonoverlapping(to, 3) };
    for outcome in [landed, run(&mut handler, b"one")] {
        assert_eq!(outcome, Outcome::Handled);
        assert_eq!(handler.sent(&mine).collect::<Vec<_>>(), [&b"one"[..], b"e", b"", b"\0"]);
    }
}

#[test]
fn results_of_the_entry_decide_what_becomes_of_the_message() {
    let mut handler = handler("(i32.load8_s (local.get $offset))");
    for (result, outcome) in [
        (1, Outcome::Handled),
        (2, Outcome::Discarded),
        (0, Outcome::Passed(Pass::ByHandler)),
        (9, Outcome::Passed(Pass::Voluntary)),
        (255, Outcome::Passed(Pass::Voluntary)),
    ] {
        assert_eq!(run(&mut handler, &[result]), outcome);
    }
    let counters = handler.counters();
    assert_eq!((counters.invocations, counters.handled, counters.discarded), (5, 1, 1));
    assert_eq!((counters.voluntary_aborts, counters.involuntary_aborts), (2, 0));
}

#[test]
fn state_of_a_handler_persists_and_belongs_to_its_tenant() {
    let ash = sandboxer().load(&module(
        "(i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1)))
         (i64.store (i32.const 8) (call $id))
         (drop (call $send (i32.const 0) (i32.const 16)))
         (i32.const 1)",
    ));
    let ash: Ash = ash.unwrap();
    let (mut a, mut b) = (ash.instantiate(5).unwrap(), ash.instantiate(6).unwrap());
    for count in 1..=3u8 {
        assert_eq!(run(&mut a, b""), Outcome::Handled);
        assert_eq!((sent(&a)[0][0], sent(&a)[0][8]), (count, 5));
    }
    assert_eq!(run(&mut b, b""), Outcome::Handled);
    assert_eq!((sent(&b)[0][0], sent(&b)[0][8]), (1, 6));
}

#[test]
fn message_is_passed_on_as_it_arrived_after_an_abort() {
    for body in [
        "(i32.store8 (local.get $offset) (i32.const 0)) (i32.const 1)",
        "(memory.fill (local.get $offset) (i32.const 0) (local.get $length)) (i32.const 1)",
        "(memory.copy (local.get $offset) (i32.const 0) (local.get $length)) (i32.const 1)",
        "(i64.store offset=1 (local.get $offset) (i64.const 0)) (i32.const 1)",
        "(i32.store8 (i32.const 65536) (i32.const 0)) (i32.const 1)",
        "(i32.store8 offset=65536 (i32.const 0) (i32.const 0)) (i32.const 1)",
        // The memory cannot grow over it.
        "(drop (memory.grow (i32.const 1))) (i32.store8 (i32.const 65536) (i32.const 0)) (i32.const 1)",
    ] {
        let mut handler = handler(body);
        let outcome = run(&mut handler, b"message");
        assert!(matches!(outcome, Outcome::Passed(Pass::Involuntary(_))), "{outcome:?}");
        let start = handler.memory().message_area().start;
        assert_eq!(bytes(&handler, start..start + 7), b"message");
    }
    // Nor can a host call write to it.
    let mut handler = handler("(call $copy (local.get $offset) (i32.const 0) (i32.const 1))");
    assert_eq!(run(&mut handler, b"message"), Outcome::Passed(Pass::Voluntary));
}

#[test]
fn sends_and_events_of_a_handler_that_aborts_are_dropped() {
    let before = "(drop (call $send (i32.const 0) (i32.const 1)))
                  (drop (call $post (i64.const 1) (i64.const 2)))";
    for end in ["(i32.const 0)", "(i32.const -1)", "(call $abort) (i32.const 1)", "unreachable"] {
        let mut handler = handler(&format!("{before} {end}"));
        assert!(matches!(run(&mut handler, b""), Outcome::Passed(_)));
        assert!(handler.sends().is_empty() && handler.events().is_empty(), "{end}");
    }
    let mut handler = handler(&format!("{before} (i32.const 1)"));
    assert_eq!(run(&mut handler, b""), Outcome::Handled);
    assert_eq!((handler.sends().len(), handler.events()), (1, &[(1, 2)][..]));
}

#[test]
fn wild_accesses_and_other_traps_abort() {
    for (body, abort) in [
        ("(i32.load (i32.add (local.get $offset) (i32.const 327680)))", Abort::Memory),
        ("(i32.load (i32.const -4))", Abort::Memory),
        ("(i32.store (i32.const -1) (i32.const 0)) (i32.const 1)", Abort::Memory),
        ("(i32.load offset=4294967295 (i32.const -1))", Abort::Memory),
        ("(i32.div_u (i32.const 1) (i32.const 0))", Abort::Trap),
        ("unreachable", Abort::Trap),
    ] {
        let mut handler = handler(body);
        assert_eq!(run(&mut handler, b"x"), Outcome::Passed(Pass::Involuntary(abort)), "{body}");
    }
}

#[test]
fn constant_offset_behind_the_own_memory_always_trapped() {
    // As compilers fold the address of a message, which is the end of the module's memory.
    for load in ["(i32.load8_u offset=65536 (i32.const 0))", "(i32.load8_u (i32.const 65536))"] {
        let mut handler = handler(load);
        let first = handler.memory().message_area().start;
        assert_eq!(first, 65536);
        assert_eq!(run(&mut handler, &[1]), Outcome::Handled, "{load}");
        assert_eq!(run(&mut handler, &[2]), Outcome::Discarded, "{load}");
    }
    // Its memory stays as it is.
    let mut grows = handler("(i32.add (memory.grow (i32.const 1)) (i32.const 2))");
    assert_eq!(run(&mut grows, b""), Outcome::Handled);
    let mut size =
        handler("(i32.add (memory.grow (i32.const 0)) (i32.sub (memory.size) (i32.const 1)))");
    assert_eq!(run(&mut size, b""), Outcome::Handled);
}

#[test]
fn host_calls_check_their_ranges_and_are_charged() {
    for body in [
        "(call $send (i32.const 393215) (i32.const 2))",
        "(call $send (i32.const -1) (i32.const 1))",
        // In the message area, but not in the message.
        "(call $send (i32.add (local.get $offset) (local.get $length)) (i32.const 1))",
        "(call $copy (i32.const 0) (i32.const 393216) (i32.const 1))",
        "(call $copy (i32.const 65535) (i32.const 0) (i32.const 2))",
        "(call $read_apply (i32.const 0) (i32.const -8) (i32.const 16))",
        "(call $count (i32.const 16) (i64.const 1))",
    ] {
        // FAULT
        let mut handler = handler(&format!("(i32.add {body} (i32.const 2))"));
        assert_eq!(run(&mut handler, b"x"), Outcome::Handled, "{body}");
        assert!(handler.sends().is_empty());
    }
    let flood =
        "(loop $l (drop (call $send (i32.const 0) (i32.const 65536))) (br $l)) (i32.const 1)";
    let mut handler = handler(flood);
    let abort = Outcome::Passed(Pass::Involuntary(Abort::TooManyOperations));
    assert_eq!(run(&mut handler, b""), abort);
    assert!(handler.counters().calls < 30, "{:?}", handler.counters());
    assert!(handler.counters().operations >= 100_000);
}

#[test]
fn sends_and_events_are_bounded() {
    let nine = |call: &str| {
        format!("(drop {call}) ").repeat(8) + &format!("(i32.add {call} (i32.const 3))")
    };
    let mut sends = handler(&nine("(call $send (i32.const 0) (i32.const 1))"));
    // EXHAUSTED
    assert_eq!(run(&mut sends, b""), Outcome::Handled);
    assert_eq!(sends.sends().len(), 8);
    let mut events = handler(&nine("(call $post (i64.const 0) (i64.const 1))"));
    assert_eq!(run(&mut events, b""), Outcome::Handled);
    assert_eq!(events.events().len(), 8);
}

#[test]
fn handler_starts_an_upcall_with_a_message_that_it_passes_on() {
    let body = "(if (i32.eqz (local.get $length)) (then (return (i32.const 0))))
         (drop (call $upcall))
         (i32.load8_s (local.get $offset))";
    let mut handler = handler(body);
    for (message, outcome) in [
        (&[0][..], Outcome::Passed(Pass::Upcall)),
        (&[1], Outcome::Handled),
        (&[2], Outcome::Discarded),
        (&[9], Outcome::Passed(Pass::Voluntary)),
        // The upcall of an earlier message is none of this one.
        (&[], Outcome::Passed(Pass::ByHandler)),
    ] {
        assert_eq!(run(&mut handler, message), outcome);
    }
}

#[test]
fn handler_applies_pipes_to_the_message() {
    let mut list = PipeList::new();
    let pipe = list.add(checksum::pipe()).unwrap();
    let mut handler = handler(
        "(if (i32.ne (call $write_apply (i32.const 0) (local.get $offset) (i32.const 128)
                (local.get $length)) (i32.const 0)) (then (return (i32.const -1))))
         (i64.store (i32.const 64) (call $import (i32.const 0) (i32.const 0)))
         (drop (call $send (i32.const 64) (i32.const 8)))
         (drop (call $send (i32.const 128) (local.get $length)))
         (i32.const 1)",
    );
    let ilp = list.compile(Mode::Write).unwrap();
    let mut state = ilp.state();
    let (message, mut copy) = (*b"sixteen bytes!!!", [0; 16]);
    ilp.write(&mut state, &message, &mut copy).unwrap();
    let expected = state.import(pipe, checksum::SUM).unwrap();
    assert_eq!(handler.add_pipes(ilp, vec![(pipe, checksum::SUM)]), 0);
    assert_eq!(run(&mut handler, &message), Outcome::Handled);
    assert_eq!(sent(&handler), [expected.to_le_bytes().to_vec(), message.to_vec()]);
}

#[test]
fn pipes_went_on_where_the_last_message_had_ended() {
    let mut list = PipeList::new();
    let pipe = list.add(checksum::pipe()).unwrap();
    let mut handler = handler(
        "(if (i32.ne (call $read_apply (i32.const 0) (local.get $offset) (local.get $length))
                (i32.const 0)) (then (return (i32.const -1))))
         (i64.store (i32.const 64) (call $import (i32.const 0) (i32.const 0)))
         (drop (call $send (i32.const 64) (i32.const 8)))
         (i32.const 1)",
    );
    handler.add_pipes(list.compile(Mode::Read).unwrap(), vec![(pipe, checksum::SUM)]);
    // One of a whole number of units, and one that ends in a part.
    for message in [&b"sixteen bytes!!!"[..], b"thirteen byte"] {
        assert_eq!(run(&mut handler, message), Outcome::Handled);
        let first = sent(&handler);
        assert_eq!(run(&mut handler, message), Outcome::Handled);
        assert_eq!(sent(&handler), first);
    }
}

#[test]
fn memory_is_copied_and_filled_within_bounds() {
    let mut handler = handler(
        "(memory.copy (i32.const 100) (local.get $offset) (local.get $length))
         (memory.fill (i32.const 102) (i32.const 88) (i32.const 2))
         (memory.copy (i32.const 101) (i32.const 100) (local.get $length))
         (drop (call $send (i32.const 100) (i32.const 7)))
         (i32.const 1)",
    );
    assert_eq!(run(&mut handler, b"abcdef"), Outcome::Handled);
    assert_eq!(sent(&handler), [b"aabXXef"]);
    for body in [
        "(memory.fill (i32.const 65535) (i32.const 0) (i32.const 2)) (i32.const 1)",
        "(memory.copy (i32.const 0) (i32.const 65535) (i32.const 2)) (i32.const 1)",
        "(memory.copy (i32.const 0) (i32.add (local.get $offset) (i32.const 1)) (i32.const 1)) (i32.const 1)",
        "(memory.fill (i32.const -1) (i32.const 0) (i32.const 1)) (i32.const 1)",
    ] {
        let mut handler = self::handler(body);
        let abort = Outcome::Passed(Pass::Involuntary(Abort::Memory));
        assert_eq!(run(&mut handler, b"x"), abort, "{body}");
    }
}

#[test]
#[should_panic(expected = "outside of the message area")]
fn message_outside_of_the_area_is_an_error_of_the_caller() {
    let mut handler = handler("(i32.const 1)");
    let start = handler.memory().message_area().start;
    let from = handler.memory().host_pointer(start - 1);
    // SAFETY: two bytes of the memory, to which nothing writes.
    let message = unsafe { std::slice::from_raw_parts(from, 2) };
    assert_eq!(handler.handle(&message[1..], 1, 0, Instant::now()), Outcome::Handled);
    handler.handle(message, 1, 0, Instant::now());
}

#[test]
fn message_longer_than_the_area_is_passed_on() {
    let mut handler = handler("(i32.const 1)");
    let message = vec![0; handler.memory().message_area().len() + 1];
    assert_eq!(run(&mut handler, &message), Outcome::Passed(Pass::TooLong));
}

#[test]
fn reply_slots_are_free_until_their_replies_have_left() {
    let body = "(i32.store (i32.const 0) (call $reply (i32.const 4032)))
         (i32.store (i32.const 4) (call $reply (i32.const 4032)))
         (i32.store (i32.const 8) (call $reply (i32.const 4033)))
         (i64.store (i32.load (i32.const 0)) (i64.const 1))
         (drop (call $send (i32.const 0) (i32.const 12)))
         (drop (call $send (i32.load (i32.const 0)) (i32.const 8)))
         (i32.const 1)";
    let mut handler = handler(body);
    let area = handler.memory().reply_area();
    assert_eq!(area.start, handler.memory().message_area().end);
    let slot = |n: usize| (area.start + n * 4096) as i32;
    for (free, first, second) in
        [(None, slot(0), slot(1)), (Some(0b1100), slot(2), slot(3)), (Some(1 << 15), slot(15), -2)]
    {
        if let Some(free) = free {
            handler.set_free_slots(free);
        }
        assert_eq!(run(&mut handler, b""), Outcome::Handled);
        let expected: Vec<u8> = [first, second, -2].iter().flat_map(|n| n.to_le_bytes()).collect();
        assert_eq!(sent(&handler), [expected, vec![1, 0, 0, 0, 0, 0, 0, 0]]);
    }
    // Without a slot, the offset is -2: there is nothing to write to.
    handler.set_free_slots(0);
    assert_eq!(run(&mut handler, b""), Outcome::Passed(Pass::Involuntary(Abort::Memory)));
}

#[test]
fn calls_wrote_to_replies_in_flight() {
    let start = handler("(i32.const 1)").memory().reply_area().start;
    let end = start + 16 * 4096;
    let copy = |n: usize, to: usize, len: usize| {
        let call = format!("(call $copy (i32.const {to}) (i32.const 1000) (i32.const {len}))");
        format!("(i32.store (i32.const {}) {call})", 4 * n)
    };
    // To a slot with a reply, to others, to the end of that with the beginning of this, and nothing behind the last one.
    let places = [(start, 8), (start + 4096, 8192), (start + 4092, 8), (end, 0)];
    let copies: String = (0..).zip(places).map(|(n, (to, len))| copy(n, to, len)).collect();
    let body = format!("{copies} (drop (call $send (i32.const 0) (i32.const 16))) (i32.const 1)");
    let mut copies = handler(&body);
    copies.set_free_slots(!1);
    assert_eq!(run(&mut copies, b""), Outcome::Handled);
    let expected = [-1i32, 0, -1, 0].map(i32::to_le_bytes);
    assert_eq!(sent(&copies), [expected.as_flattened()]);
    let fill =
        format!("(memory.fill (i32.const {start}) (i32.const 1) (i32.const 1)) (i32.const 1)");
    let mut fill = handler(&fill);
    assert_eq!(run(&mut fill, b""), Outcome::Handled);
    fill.set_free_slots(!1);
    assert_eq!(run(&mut fill, b""), Outcome::Passed(Pass::Involuntary(Abort::Memory)));
}

#[test]
fn areas_that_no_memory_can_have_are_rejected() {
    for policy in [
        Policy::default().with(|p| p.reply_slots = 0),
        Policy::default().with(|p| p.reply_slots = 3),
        Policy::default().with(|p| p.reply_slots = 128),
        Policy::default().with(|p| p.reply_slot_bytes = 0),
        Policy::default().with(|p| p.reply_slot_bytes = 1000),
        Policy::default().with(|p| p.reply_slot_bytes = 1 << 25),
    ] {
        let error = Sandboxer::new(policy).unwrap_err();
        assert!(error.to_string().contains("reply slot"), "{error}");
    }
}

#[test]
fn offsets_beyond_2_gib_were_negative() {
    let policy = Policy::default().with(|p| p.max_memory_bytes = 4 << 30);
    let sandboxer = Sandboxer::new(policy).unwrap();
    for bytes in [(2 << 30) - 4096, 4 << 30] {
        let error = sandboxer.trust(1, bytes, |_| 1).unwrap_err();
        assert!(error.to_string().contains("2 GiB or more"), "{error}");
    }
}

#[test]
fn areas_are_taken_once() {
    let mut handler = handler("(i32.const 1)");
    let (replies, messages) = handler.take_areas(usize::MAX).unwrap();
    assert_eq!(replies.range(), handler.memory().reply_area());
    assert_eq!(messages.range(), handler.memory().message_area());
    assert_eq!(messages.bytes().len(), Policy::default().message_area_bytes);
    assert!(handler.take_areas(usize::MAX).is_none());
    assert_eq!(run(&mut handler, b"message"), Outcome::Passed(Pass::Elsewhere));
    drop(handler);
    // The kernel may still write to the memory.
    // SAFETY: the area is mapped, and nothing else uses it.
    unsafe { messages.bytes().cast::<u8>().write_volatile(1) };
}

#[test]
fn abort_lost_the_part_of_the_stack_that_its_frames_had() {
    let field =
        "(global $stack (mut i32) (i32.const 1024)) (global $other (mut i64) (i64.const 7))";
    let take = "(global.set $stack (i32.sub (global.get $stack) (i32.const 16)))
                (global.set $other (i64.add (global.get $other) (i64.const 1)))";
    for abort in
        ["(call $abort) (unreachable)", "(unreachable)", "(loop $again (br $again)) (unreachable)"]
    {
        let body = format!(
            "{take} (if (local.get $length) (then {abort}))
             (i32.store (i32.const 0) (global.get $stack))
             (i64.store (i32.const 4) (global.get $other))
             (global.set $stack (i32.add (global.get $stack) (i32.const 16)))
             (drop (call $send (i32.const 0) (i32.const 12)))
             (i32.const 1)"
        );
        let mut handler = handler_with(Policy::default(), &module_with(field, &body));
        for other in [8u64, 9, 10] {
            assert!(matches!(run(&mut handler, b"abort"), Outcome::Passed(_)));
            handler.enable();
            assert_eq!(run(&mut handler, b""), Outcome::Handled);
            let expected = [&1008u32.to_le_bytes()[..], &other.to_le_bytes()].concat();
            assert_eq!(sent(&handler), [expected], "{abort}");
        }
    }
}

#[test]
fn handler_could_not_give_a_pipe_list_its_registers_or_its_key() {
    let mut list = PipeList::new();
    let cipher = list.add(chacha20::pipe()).unwrap();
    let sum = list.add(checksum::pipe()).unwrap();
    let body = "
        (if (call $key (i32.const 0) (i32.const 0) (i32.const 256) (i32.const 5))
            (then (return (i32.const -1))))
        (if (call $export (i32.const 0) (i32.const 0) (i64.const 77))
            (then (return (i32.const -2))))
        (if (call $write_apply (i32.const 0) (local.get $offset) (i32.const 1024) (local.get $length))
            (then (return (i32.const -3))))
        (i64.store (i32.const 64) (call $import (i32.const 0) (i32.const 0)))
        (i32.store (i32.const 72) (call $key (i32.const 0) (i32.const 1) (i32.const 256) (i32.const 5)))
        (i32.store (i32.const 76) (call $key (i32.const 0) (i32.const 0) (i32.const 65500) (i32.const 5)))
        (i32.store (i32.const 80) (call $export (i32.const 0) (i32.const 1) (i64.const 5)))
        (drop (call $send (i32.const 64) (i32.const 20)))
        (drop (call $send (i32.const 1024) (local.get $length)))
        (i32.const 1)";
    let key: [u8; 44] = std::array::from_fn(|n| n as u8);
    let data: String = key.iter().map(|byte| format!("\\{byte:02x}")).collect();
    let field = format!(r#"(data (i32.const 256) "{data}")"#);
    let mut handler = handler_with(Policy::default(), &module_with(&field, body));
    let ilp = list.compile(Mode::Write).unwrap();
    let message = *b"a secret of 29 bytes, no more";
    let (mut state, mut expected) = (ilp.state(), message);
    let (secret, nonce) = (key[..32].try_into().unwrap(), key[32..].try_into().unwrap());
    state.export_key(cipher, secret, nonce, 5).unwrap();
    state.export(sum, checksum::SUM, 77).unwrap();
    ilp.write(&mut state, &message, &mut expected).unwrap();
    let sum_of = state.import(sum, checksum::SUM).unwrap();
    handler.add_pipes(ilp, vec![(sum, checksum::SUM)]);
    // The key is that of one message.
    for _ in 0..2 {
        assert_eq!(run(&mut handler, &message), Outcome::Handled);
        let results = [-3i32, -1, -3].map(i32::to_le_bytes);
        let head = [&sum_of.to_le_bytes()[..], results.as_flattened()].concat();
        assert_eq!(sent(&handler), [head, expected.to_vec()]);
    }
}
