//! Handlers in the sandbox: what they can do, what they cannot, and what becomes of the message.

#![cfg(feature = "sandbox")]

use crate::memory;

use std::time::{Duration, Instant};

use ash_sandbox::ilp::{Binary, Gauge, Mode, Pipe, PipeList, Prefer, chacha20, checksum, crc32c};
use ash_sandbox::model::{Governor, Machine, ProcessState, Strategy, Workload};
use ash_sandbox::sandbox::{
    Abort, Ash, Bound, Handler, Loops, Outcome, Pass, Policy, Reason, Rejection, Sandboxer,
};
use memory::bytes;

/// A module with a page of memory, and an entry of these instructions.
fn module(body: &str) -> Vec<u8> {
    module_with("", body)
}

fn module_with(fields: &str, body: &str) -> Vec<u8> {
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

fn sandboxer() -> Sandboxer {
    Sandboxer::new(Policy::default()).unwrap()
}

fn handler_with(policy: Policy, wasm: &[u8]) -> Handler {
    Sandboxer::new(policy).unwrap().load(wasm).unwrap().instantiate(1).unwrap()
}

fn handler(body: &str) -> Handler {
    handler_with(Policy::default(), &module(body))
}

fn run(handler: &mut Handler, message: &[u8]) -> Outcome {
    handler.handle_copy(message, 7, Instant::now())
}

/// Returns what a handler has sent, which is nothing of its message.
fn sent(handler: &Handler) -> Vec<Vec<u8>> {
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
fn module_with_a_data_segment_panicked() {
    let wasm = module_with(
        r#"(data (i32.const 100) "constant")"#,
        "(drop (call $send (i32.const 100) (i32.const 8)))
         (i32.const 1)",
    );
    let mut handler = handler_with(Policy::default(), &wasm);
    assert_eq!(run(&mut handler, b""), Outcome::Handled);
    assert_eq!(sent(&handler), [b"constant"]);
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
fn endless_loops_and_recursion_end_at_the_bound() {
    let tick = Duration::from_millis(2);
    for loops in [Loops::Fuel, Loops::Epoch(tick)] {
        let policy = Policy::default().with(|p| p.loops = loops);
        let mut endless = handler_with(policy.clone(), &module("(loop $l (br $l)) (i32.const 1)"));
        let abort = Outcome::Passed(Pass::Involuntary(Abort::TooManyOperations));
        assert_eq!(run(&mut endless, b""), abort);
        let recursion =
            module("(call $handle (local.get 0) (local.get 1) (local.get 2) (local.get 3))");
        let mut recursion = handler_with(policy, &recursion);
        match run(&mut recursion, b"") {
            Outcome::Passed(Pass::Involuntary(Abort::Stack | Abort::TooManyOperations)) => {}
            other => panic!("{other:?}"),
        }
    }
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
fn handler_is_disabled_after_aborts_until_it_is_enabled() {
    let mut handler = handler("(i32.div_u (i32.const 1) (local.get $length))");
    for _ in 0..3 {
        let abort = Outcome::Passed(Pass::Involuntary(Abort::Trap));
        assert_eq!(run(&mut handler, b""), abort);
    }
    assert!(handler.is_disabled());
    assert_eq!(run(&mut handler, b"x"), Outcome::Passed(Pass::Disabled));
    handler.enable();
    assert_eq!(run(&mut handler, b"x"), Outcome::Handled);
    handler.set_on(false);
    assert_eq!(run(&mut handler, b"x"), Outcome::Passed(Pass::Off));
    handler.set_on(true);
    assert_eq!(run(&mut handler, b"x"), Outcome::Handled);
    assert_eq!(handler.counters().skipped, 2);
}

#[test]
fn tenant_over_its_budget_is_passed_by_until_time_goes_on() {
    let policy = Policy::default().with(|p| p.operations_per_second = 1000);
    let body = "(call $count (i32.const 0) (i64.const 1)) (i32.eqz)";
    let mut handler = handler_with(policy, &module(body));
    let start = Instant::now();
    let mut at = |after: u64| handler.handle_copy(b"", 1, start + Duration::from_millis(after));
    let mut handled = 0;
    while at(0) == Outcome::Handled {
        handled += 1;
    }
    assert!((1..200).contains(&handled), "{handled} invocations");
    assert_eq!(at(0), Outcome::Passed(Pass::OverBudget));
    assert_eq!(at(500), Outcome::Handled);
    let again = std::iter::repeat_with(|| at(500)).take_while(|o| *o == Outcome::Handled).count();
    assert!(again <= handled / 2, "{again} of {handled}");
    assert_eq!(handler.own_counters()[0], (handled + 1 + again) as u64);
}

#[test]
fn each_handler_of_a_tenant_had_a_budget_of_its_own() {
    let policy = Policy::default().with(|p| p.operations_per_second = 1000);
    let sandboxer = Sandboxer::new(policy).unwrap();
    let load = |body: &str| sandboxer.load(&module(body)).unwrap();
    let (one, two) = (load("(i32.const 1)"), load("(i32.add (i32.const 0) (i32.const 1))"));
    let now = Instant::now();
    let mut first = one.instantiate(1).unwrap();
    while first.handle_copy(b"", 1, now) == Outcome::Handled {}
    let over = Outcome::Passed(Pass::OverBudget);
    for ash in [&one, &two] {
        assert_eq!(ash.instantiate(1).unwrap().handle_copy(b"", 1, now), over);
        assert_eq!(ash.instantiate(2).unwrap().handle_copy(b"", 1, now), Outcome::Handled);
    }
    let mut native = sandboxer.trust(1, 1 << 16, |_| 1).unwrap();
    assert_eq!(native.handle_copy(b"", 1, now), over);
}

#[test]
fn bytes_that_calls_of_a_straight_line_copied_exceeded_the_budget() {
    let copies = "(drop (call $copy (i32.const 0) (i32.const 0) (i32.const 65536))) ".repeat(8);
    let fill = "(memory.fill (i32.const 0) (i32.const 0) (i32.const 65536)) ".repeat(8);
    let table = "(table funcref (elem $copy)) (type $t (func (param i32 i32 i32) (result i32)))";
    let by_table = "(drop (call_indirect (type $t) (i32.const 0) (i32.const 0) (i32.const 65536) (i32.const 0))) ".repeat(8);
    let second = 1_000_000;
    let policy = Policy::default().with(|p| p.operations_per_second = second);
    let sandboxer = Sandboxer::new(policy).unwrap();
    let module =
        |body: String| sandboxer.load(&module_with(table, &(body + "(i32.const 1)"))).unwrap();
    let handlers =
        [module(copies), module(fill), module(by_table)].map(|ash| ash.instantiate(1).unwrap());
    let native = sandboxer.trust(2, 1 << 16, |calls| {
        (0..8).for_each(|_| assert_eq!(calls.copy(0, 0, 1 << 16), 0));
        1
    });
    for (n, mut handler) in handlers.into_iter().chain([native.unwrap()]).enumerate() {
        // A budget that is full again.
        let start = Instant::now() + Duration::from_secs(10 * n as u64);
        let mut handled = 0;
        while handler.handle_copy(b"", 1, start) == Outcome::Handled {
            handled += 1;
        }
        let used = handler.counters().operations;
        assert!(used >= 8 * 4096 * handled, "{n}: {used} operations for {handled} messages");
        assert!(used <= second, "{n}: {used} operations of {second}");
        assert_eq!(handler.handle_copy(b"", 1, start), Outcome::Passed(Pass::OverBudget));
    }
}

#[test]
fn static_operations_and_those_of_calls_were_not_added() {
    let adds = "(drop (i32.add (i32.const 1) (local.get $length))) ".repeat(250);
    let charged = |body: &str| {
        let mut handler = handler(&format!("{adds} {body} (i32.const 1)"));
        assert_eq!(run(&mut handler, b""), Outcome::Handled);
        handler.counters().operations
    };
    let copy =
        |bytes| format!("(drop (call $copy (i32.const 0) (i32.const 0) (i32.const {bytes})))");
    assert_eq!(charged(&copy(16384)), charged(&copy(0)) + 1024);
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
fn recursion_met_the_end_of_a_green_stack_before_the_bound() {
    let locals = "(local i64 i64 i64 i64 i64 i64 i64 i64)";
    let body = format!(
        "{locals} (drop (call $handle (local.get 0) (local.get 1) (local.get 2) (local.get 3))) (i32.const 1)"
    );
    // As large as those of `flexsc-rt`.
    let small = std::thread::Builder::new().stack_size(256 << 10);
    let policy = Policy::default().with(|p| p.max_operations = 10_000_000);
    let mut handler = handler_with(policy, &module(&body));
    let outcome = small.spawn(move || run(&mut handler, b"")).unwrap().join().unwrap();
    assert_eq!(outcome, Outcome::Passed(Pass::Involuntary(Abort::Stack)));
}

#[test]
fn body_that_nothing_reaches_had_any_length() {
    let long = format!("(func $spare {})", "(drop (i32.const 1)) ".repeat(60_000));
    let rejection = sandboxer().load(&module_with(&long, "(i32.const 1)")).unwrap_err();
    assert_eq!(rejection.reason, Reason::BodyTooLong(120_001, 20_000));
    let text = rejection.to_string();
    assert!(text.contains("spare") && text.contains("permits 20000 in a function"), "{text}");
}

#[test]
fn instance_was_interrupted_while_it_was_created() {
    // Its creation takes longer than the two ticks of an invocation.
    let data = format!("(data (i32.const 0) \"{}\")", "x".repeat(60_000)).repeat(16);
    let fields = format!("(table 1 funcref) (elem (i32.const 0) $handle) {data}");
    let policy = Policy::default().with(|p| p.loops = Loops::Epoch(Duration::from_micros(100)));
    let cyclic = module_with(&fields, "(loop $l) (i32.const 1)");
    let ash = Sandboxer::new(policy).unwrap().load(&cyclic).unwrap();
    for _ in 0..100 {
        ash.instantiate(1).unwrap();
    }
}

#[test]
fn largest_budget_overflowed_when_it_was_refilled() {
    let policy = Policy::default().with(|p| p.operations_per_second = u64::MAX);
    let mut handler = handler_with(policy, &module("(i32.const 1)"));
    let start = Instant::now();
    for seconds in 0..3 {
        let at = start + Duration::from_secs(seconds);
        assert_eq!(handler.handle_copy(b"", 1, at), Outcome::Handled);
    }
}

#[test]
fn handler_with_a_loop_was_disabled_for_want_of_budget() {
    let policy = Policy::default();
    let step = Duration::from_secs(1) / u32::try_from(policy.operations_per_second / 100).unwrap();
    // It needs more than the 100 operations that a step of time adds.
    let mut handler = handler(
        "(local $n i32)
         (loop $l (local.set $n (i32.add (local.get $n) (i32.const 1)))
             (br_if $l (i32.lt_u (local.get $n) (i32.const 5000))))
         (i32.const 1)",
    );
    let start = Instant::now();
    let mut over = 0;
    for n in 0..100_000 {
        match handler.handle_copy(b"", 1, start + step * n) {
            Outcome::Handled => {}
            Outcome::Passed(Pass::OverBudget) => over += 1,
            outcome => panic!("{outcome:?} at message {n}"),
        }
    }
    assert!(over > 10_000, "{over}");
    assert_eq!(handler.counters().involuntary_aborts, 0);
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
fn time_of_a_copy_is_charged() {
    let copies = "(memory.fill (i32.const 0) (i32.const 0) (i32.const 65536)) ".repeat(500);
    let mut acyclic = handler(&(copies + "(i32.const 1)"));
    let fills = "(loop $l (memory.fill (i32.const 0) (i32.const 0) (i32.const 65536)) (br $l)) (i32.const 1)";
    let mut cyclic = handler(fills);
    for handler in [&mut acyclic, &mut cyclic] {
        let abort = Outcome::Passed(Pass::Involuntary(Abort::TooManyOperations));
        assert_eq!(run(handler, b""), abort);
        assert!(handler.counters().calls < 30, "{:?}", handler.counters());
    }
}

/// Instructions that leave less than 1,600 operations of an invocation.
const LONG_LOOP: &str = "(local $n i32) (local.set $n (i32.const 16400))
    (loop $l (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))";

#[test]
fn host_calls_had_the_operations_that_loops_had_used() {
    let mut list = PipeList::new();
    list.add(checksum::pipe()).unwrap();
    let max = Policy::default().max_operations;
    let after_loop = |calls: &str| {
        let mut handler = handler(&format!("{LONG_LOOP} {calls} (i32.const 1)"));
        for mode in [Mode::Read, Mode::Write] {
            handler.add_pipes(list.compile(mode).unwrap(), Vec::new());
        }
        let outcome = run(&mut handler, b"");
        assert_eq!(handler.counters().operations, max, "{calls}");
        (outcome, bytes(&handler, 64..72))
    };
    let copy = |bytes| format!("(call $copy (i32.const 0) (i32.const 0) (i32.const {bytes}))");
    // OK in the first word, and EXHAUSTED in the second.
    let expected = [0, -2].map(i32::to_le_bytes).concat();
    for calls in [
        // Several that are less than what was left.
        format!(
            "(i32.store (i32.const 64) {0}) (i32.store (i32.const 68) {0})
             (if (i32.ne {1} (i32.const -2)) (then unreachable))",
            copy(16_000),
            copy(0)
        ),
        format!("(i32.store (i32.const 68) {})", copy(65_536)),
        "(i32.store (i32.const 68) (call $send (i32.const 0) (i32.const 65536)))".to_owned(),
        "(i32.store (i32.const 68)
            (call $read_apply (i32.const 0) (i32.const 0) (i32.const 65536)))"
            .to_owned(),
        "(i32.store (i32.const 68)
            (call $write_apply (i32.const 1) (i32.const 0) (i32.const 32768) (i32.const 32768)))"
            .to_owned(),
    ] {
        assert_eq!(after_loop(&calls), (Outcome::Handled, expected.clone()), "{calls}");
    }
    let abort = Outcome::Passed(Pass::Involuntary(Abort::TooManyOperations));
    for instruction in [
        "(memory.copy (i32.const 0) (i32.const 0) (i32.const 65536))",
        "(memory.fill (i32.const 0) (i32.const 1) (i32.const 65536))",
    ] {
        assert_eq!(after_loop(instruction), (abort.clone(), vec![0; 8]), "{instruction}");
    }
}

#[test]
fn calls_without_a_status_ran_on_when_no_operations_were_left() {
    let abort = Outcome::Passed(Pass::Involuntary(Abort::TooManyOperations));
    for (call, count) in [
        ("(call $clock)", 1900),
        ("(call $id)", 1900),
        ("(call $import (i32.const 0) (i32.const 0))", 1200),
    ] {
        let calls = format!("(drop {call}) ").repeat(count);
        let mut handler = handler(&format!("{LONG_LOOP} {calls} (i32.const 1)"));
        assert_eq!(run(&mut handler, b""), abort, "{call}");
        // What was left, and the call that ended it.
        assert!(handler.counters().calls <= 1600 / 10 + 1, "{call}: {:?}", handler.counters());
        assert_eq!(handler.counters().operations, Policy::default().max_operations);
    }
}

#[test]
fn loop_that_ended_with_a_trap_was_not_charged() {
    let charged = |end: &str, outcome: Outcome| {
        let mut handler = handler(&format!(
            "(local $n i32) (local.set $n (i32.const 16000))
             (loop $l (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
             {end}"
        ));
        assert_eq!(run(&mut handler, b""), outcome, "{end}");
        handler.counters().operations
    };
    let involuntary = |abort| Outcome::Passed(Pass::Involuntary(abort));
    let returned = charged("(i32.const 1)", Outcome::Handled);
    let max = Policy::default().max_operations;
    assert!(returned > max * 9 / 10 && returned < max, "{returned}");
    for (end, abort) in [
        ("(i32.load (i32.const -16))", Abort::Memory),
        ("(i32.store (local.get $offset) (i32.const 0)) (i32.const 1)", Abort::Memory),
        ("(memory.fill (i32.const -1) (i32.const 0) (i32.const 1)) (i32.const 1)", Abort::Memory),
        ("(i32.div_u (i32.const 1) (local.get $length))", Abort::Trap),
    ] {
        assert_eq!(charged(end, involuntary(abort)), max, "{end}");
    }
    // The count of these is known.
    for (end, outcome) in [
        ("unreachable", involuntary(Abort::Trap)),
        ("(call $abort) (i32.const 1)", Outcome::Passed(Pass::Voluntary)),
    ] {
        let charged = charged(end, outcome);
        assert!(charged.abs_diff(returned) < 20, "{end}: {charged}, and {returned} with a return");
    }
}

#[test]
fn handlers_without_loops_run_without_checks() {
    let bound = |wasm: &[u8]| sandboxer().load(wasm).unwrap().bound();
    assert!(matches!(bound(&module("(i32.const 1)")), Bound::Acyclic(1..4)));
    assert_eq!(bound(&module("(loop $l) (i32.const 1)")), Bound::Cyclic);
    let calls = "(func $double (param i32) (result i32) (i32.shl (local.get 0) (i32.const 1)))";
    let body = "(call $double (call $double (i32.const 1)))";
    // Four instructions; the frames and values of two calls; an end that moves a value; twice the function.
    assert_eq!(bound(&module_with(calls, body)), Bound::Acyclic(4 + 2 * 4 + 1 + 2 * 5));
    let indirect =
        "(table funcref (elem $handle)) (type $t (func (param i32 i32 i64 i32) (result i32)))";
    let body = "(call_indirect (type $t) (local.get 0) (local.get 1) (local.get 2) (local.get 3) (i32.const 0))";
    assert_eq!(bound(&module_with(indirect, body)), Bound::Cyclic);
}

#[test]
fn table_took_memory_beyond_the_policy() {
    let load = |table: &str| sandboxer().load(&module_with(table, "(i32.const 1)"));
    let rejection = load("(table 10000000 funcref)").unwrap_err();
    assert_eq!(rejection.reason, Reason::TableTooLarge(10_000_000, 1000));
    assert!(rejection.to_string().contains("the policy permits 1000"), "{rejection}");
    // A table cannot grow, so its maximum takes no memory.
    for table in ["(table 1000 funcref)", "(table 1 10000000 funcref)"] {
        assert!(load(table).is_ok(), "{table}");
    }
}

fn rejection(text: &str) -> Rejection {
    sandboxer().load(&wat::parse_str(text).unwrap()).unwrap_err()
}

#[test]
fn debug_text_of_a_rejection_was_no_message() {
    let rejection = rejection("(module)");
    assert_eq!(format!("{rejection:?}"), rejection.to_string());
}

#[test]
fn module_in_text_was_rejected_with_the_advice_to_build_it_by_cargo() {
    let text = b";; Answers nothing.\n(module)";
    let rejected = sandboxer().load(text).unwrap_err();
    assert_eq!(rejected.reason, Reason::Text);
    assert!(rejected.to_string().contains("wat2wasm"), "{rejected}");
}

#[test]
fn modules_that_break_a_rule_are_rejected_with_the_reason() {
    let entry =
        r#"(func (export "ash_handle") (param i32 i32 i64 i32) (result i32) (i32.const 1))"#;
    let memory = r#"(memory (export "memory") 1 1)"#;
    let reason = |fields: &str| rejection(&format!("(module {fields})")).reason;
    assert_eq!(reason(memory), Reason::NoEntry);
    assert_eq!(reason(&format!(r#"{memory} (func (export "ash_handle"))"#)), Reason::NoEntry);
    assert_eq!(reason(entry), Reason::NoMemory);
    assert_eq!(reason(&format!("{entry} (memory 1 1)")), Reason::NoMemory);
    let memory_of = |size| reason(&format!(r#"{entry} (memory (export "memory") {size})"#));
    assert_eq!(memory_of("1"), Reason::GrowingMemory);
    assert_eq!(memory_of("1 2"), Reason::GrowingMemory);
    assert_eq!(memory_of("0 0"), Reason::NoMemory);
    assert_eq!(memory_of("65 65"), Reason::MemoryTooLarge(65 << 16, 64 << 16));
    let with = |fields: &str| reason(&format!("{fields} {memory} {entry}"));
    let globals = "(global (mut i32) (i32.const 0))".repeat(65);
    assert_eq!(reason(&format!("{memory} {globals} {entry}")), Reason::TooManyGlobals(65, 64));
    for (module, name) in [("env", "send"), ("ash", "open"), ("wasi_snapshot_preview1", "fd_write")]
    {
        let import = format!(r#"(import "{module}" "{name}" (func))"#);
        assert_eq!(with(&import), Reason::Import(module.into(), name.into()));
    }
    let import = r#"(import "ash" "send" (func (param i64)))"#;
    assert_eq!(with(import), Reason::ImportType("send".into()));
    let import = r#"(import "ash" "send" (global i32))"#;
    assert_eq!(with(import), Reason::Import("ash".into(), "send".into()));
    assert_eq!(with(r#"(data (i32.const 65535) "xy")"#), Reason::DataOutsideMemory);
    let sum = r#"(data (offset (i32.add (i32.const 1) (i32.const 65534))) "xy")"#;
    assert_eq!(with(sum), Reason::DataOutsideMemory);
    assert!(matches!(with("(func (result f32) (f32.const 1))"), Reason::Invalid(_)));
    assert!(matches!(with("(memory 1)"), Reason::Invalid(_)));
    let start = rejection(&format!("(module (func $begin) (start $begin) {memory} {entry})"));
    assert_eq!(start.reason, Reason::Start);
    assert_eq!(start.function.as_deref(), Some("begin"));
    assert!(start.to_string().starts_with("function begin: "));
    let data = r#"(data $d "x")"#;
    let init = "(memory.init $d (i32.const 0) (i32.const 0) (i32.const 1)) (i32.const 1)";
    let init = sandboxer().load(&module_with(data, init)).unwrap_err();
    assert!(matches!(init.reason, Reason::Invalid(_)));
    assert!(matches!(
        with(
            "(func (param i32) (result i32) (table.grow 0 (ref.null func) (local.get 0))) (table 1 funcref)"
        ),
        Reason::Invalid(_)
    ));
    assert!(matches!(
        with("(table 1 funcref) (elem (table 0) (i32.const 0) funcref (ref.func 0))"),
        Reason::Invalid(_)
    ));
    let many = "(func)".repeat(1001);
    assert_eq!(with(&many), Reason::TooManyFunctions(1002, 1000));
    let long = module(&("(drop (i32.const 1))".repeat(60_000) + "(i32.const 1)"));
    let long = sandboxer().load(&long).unwrap_err();
    assert!(matches!(long.reason, Reason::TooLong(120_002.., 100_000)));
    assert_eq!(long.function.as_deref(), Some("handle"));
    let size = Policy::default().with(|p| p.max_module_bytes = 10);
    let size = Sandboxer::new(size).unwrap().load(&module("(i32.const 1)")).unwrap_err();
    assert!(matches!(size.reason, Reason::TooLarge(_, 10)));
    assert!(matches!(sandboxer().load(b"no module").unwrap_err().reason, Reason::NoModule));
    let area = Policy::default().with(|p| p.message_area_bytes = 1000);
    assert!(matches!(Sandboxer::new(area).unwrap_err().reason, Reason::Memory(_)));
}

#[test]
fn names_of_a_hostile_module_were_printed_as_they_are() {
    // Colours, a line of its own, and the direction of the text.
    let name = r"\1b[31m\n\e2\80\ae".to_owned() + &"x".repeat(10_000);
    let import = format!(r#"(import "{name}" "{name}" (func))"#);
    let export = format!(r#"(export "{name}" (memory 0)) (export "{name}" (memory 0))"#);
    let too_long = "(drop (i32.const 1))".repeat(60_000);
    for (what, fields, body) in
        [("import", &*import, ""), ("export", &export, ""), ("function", "", &too_long)]
    {
        let text = format!(
            r#"(module {fields} (memory (export "memory") 1 1)
                (func $"{name}" (export "ash_handle") (param i32 i32 i64 i32) (result i32)
                    {body} (i32.const 1)))"#
        );
        let error = sandboxer().load(&wat::parse_str(text).unwrap()).unwrap_err();
        for printed in [error.to_string(), format!("{error:?}")] {
            assert!(!printed.contains(|c: char| c.is_control() || c == '\u{202e}'), "{what}");
            assert!(printed.contains(r"\u{1b}[31m\n"), "{what}: {printed}");
            assert!(printed.len() < 500, "{what}: {} bytes", printed.len());
        }
    }
}

#[test]
fn elements_beyond_the_table_were_found_at_instantiation() {
    let load = |fields: &str| sandboxer().load(&module_with(fields, "(i32.const 1)"));
    for (fields, segment, elements) in [
        ("(table 1 funcref) (elem (i32.const 1) $handle)", 0, 1),
        ("(table 1 funcref) (elem (i32.const -1) $handle)", 0, 1),
        // Without an element it has an end, too.
        ("(table 1 funcref) (elem (i32.const 2))", 0, 1),
        (
            "(table 2 funcref) (elem (i32.const 0) $handle) (elem (i32.const 1) $handle $handle)",
            1,
            2,
        ),
        ("(table 9 funcref) (elem (offset (i32.add (i32.const 1) (i32.const 1))) $handle)", 0, 9),
    ] {
        let reason = load(fields).unwrap_err().reason;
        assert_eq!(reason, Reason::ElementsOutsideTable(segment, elements), "{fields}");
    }
    let within = "(table 2 funcref) (elem (i32.const 0) $handle) (elem (i32.const 1) $handle) (elem (i32.const 2))";
    let mut handler = load(within).unwrap().instantiate(1).unwrap();
    assert_eq!(run(&mut handler, b""), Outcome::Handled);
}

#[test]
fn floats_are_permitted_by_the_policy() {
    let wasm = module("(i32.trunc_f32_s (f32.const 1.5))");
    assert!(sandboxer().load(&wasm).is_err());
    let mut handler = handler_with(Policy::default().with(|p| p.allows_floats = true), &wasm);
    assert_eq!(run(&mut handler, b""), Outcome::Handled);
}

#[test]
fn cache_is_used_and_must_be_trusted() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let cached = || sandboxer().with_cache(directory.path());
    let wasm = module("(i32.const 1)");
    let files = || std::fs::read_dir(directory.path()).unwrap().map(|f| f.unwrap().path());
    for _ in 0..2 {
        let mut handler = cached().unwrap().load(&wasm).unwrap().instantiate(1).unwrap();
        assert_eq!(run(&mut handler, b""), Outcome::Handled);
        assert_eq!(files().count(), 1);
    }
    // A file that is not as it was written is replaced.
    let path = files().next().unwrap();
    let good = std::fs::read(&path).unwrap();
    let mut bad = good.clone();
    bad[1000] ^= 1;
    for content in [&bad[..], b"", b"short"] {
        std::fs::write(&path, content).unwrap();
        let mut handler = cached().unwrap().load(&wasm).unwrap().instantiate(1).unwrap();
        assert_eq!(run(&mut handler, b""), Outcome::Handled);
        assert_eq!(std::fs::read(&path).unwrap(), good);
    }
    let mode = |mode| std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(directory.path(), mode(0o777)).unwrap();
    let error = cached().unwrap_err().to_string();
    assert!(error.contains("no one else can write"), "{error}");
    std::fs::set_permissions(directory.path(), mode(0o700)).unwrap();
    assert!(sandboxer().with_cache(&path).is_err());
    assert!(sandboxer().with_cache(&directory.path().join("missing")).is_err());
}

#[test]
fn directory_in_the_place_of_the_cache_was_read() {
    use std::os::unix::fs::PermissionsExt as _;
    let parent = tempfile::tempdir().unwrap();
    let of = |name: &str| parent.path().join(name);
    let make = |name: &str| {
        std::fs::create_dir(of(name)).unwrap();
        std::fs::set_permissions(of(name), std::fs::Permissions::from_mode(0o700)).unwrap();
    };
    let only_file = |name: &str| {
        let mut files = std::fs::read_dir(of(name)).unwrap().map(|file| file.unwrap().path());
        let file = files.next().expect("a compiled module");
        assert_eq!(files.next(), None);
        file
    };
    let [handles, discards] = ["(i32.const 1)", "(i32.const 2)"].map(module);
    for (name, wasm) in [("handles", &handles), ("discards", &discards)] {
        make(name);
        sandboxer().with_cache(&of(name)).unwrap().load(wasm).unwrap();
    }
    make("cache");
    let sandboxer = sandboxer().with_cache(&of("cache")).unwrap();
    std::fs::rename(of("cache"), of("moved")).unwrap();
    make("cache");
    // A file that is right but for its name.
    let planted = of("cache").join(only_file("handles").file_name().unwrap());
    std::fs::copy(only_file("discards"), &planted).unwrap();
    for _ in 0..2 {
        let mut handler = sandboxer.load(&handles).unwrap().instantiate(1).unwrap();
        assert_eq!(run(&mut handler, b""), Outcome::Handled);
    }
    assert_eq!(only_file("moved").file_name(), planted.file_name());
    let read = |path| std::fs::read(path).unwrap();
    assert_eq!(read(only_file("cache")), read(only_file("discards")));
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
fn handler_that_aborts_too_often_moves_to_the_application_and_back() {
    // Aborts unless the message is empty, in each of the ways in which a message goes to the application.
    for abort in ["(i32.const 0)", "(i32.const -1)", "(call $abort) (unreachable)"] {
        let body =
            format!("(if (result i32) (local.get $length) (then {abort}) (else (i32.const 1)))");
        let mut handler = handler(&body);
        let workload = Workload { handler_us: 200.0, ..Workload::default() };
        handler.set_governor(Some(Governor::new(Machine::ULTRIX, workload).with_window(4)));
        let governed = Outcome::Passed(Pass::Governed(Strategy::Interrupt));
        for _ in 0..4 {
            assert_ne!(run(&mut handler, b"message"), governed);
        }
        for _ in 0..4 * Governor::FIRST_TRIAL {
            assert_eq!(run(&mut handler, b""), governed);
        }
        assert_eq!(handler.counters().skipped, 64);
        for _ in 0..20 {
            assert_eq!(run(&mut handler, b""), Outcome::Handled);
        }
        // A process that does not wait for messages handles them late: one success of eight is worth the
        // aborts. For one that waits, it is not.
        let governor = handler.governor_mut().unwrap().clone().with_window(8);
        handler.set_governor(Some(governor));
        handler.governor_mut().unwrap().set_state(ProcessState::BusySuspended);
        for message in 0..80 {
            let message: &[u8] = if message % 8 == 0 { b"" } else { b"message" };
            assert_ne!(run(&mut handler, message), governed);
        }
        handler.governor_mut().unwrap().set_state(ProcessState::Blocked);
        assert_eq!(run(&mut handler, b""), governed);
        handler.set_governor(None);
        assert_eq!(run(&mut handler, b""), Outcome::Handled);
    }
}

#[test]
fn governor_took_rejected_replies_for_successes() {
    let policy = Policy::default().with(|p| p.max_aborts = u32::MAX);
    let mut handler = handler_with(policy, &module("(i32.const 1)"));
    let workload = Workload { handler_us: 200.0, ..Workload::default() };
    handler.set_governor(Some(Governor::new(Machine::ULTRIX, workload).with_window(4)));
    for _ in 0..4 {
        assert_eq!(run(&mut handler, b""), Outcome::Handled);
        handler.reject();
    }
    let governed = Outcome::Passed(Pass::Governed(Strategy::Interrupt));
    assert_eq!(run(&mut handler, b""), governed);
}

#[test]
fn governor_took_upcalls_that_a_handler_starts_for_aborts() {
    let mut handler = handler("(drop (call $upcall)) (i32.const 0)");
    let workload = Workload { handler_us: 200.0, ..Workload::default() };
    let governor = Governor::new(Machine::ULTRIX, workload).with_upcalls().with_window(4);
    handler.set_governor(Some(governor));
    for _ in 0..20 {
        assert_eq!(run(&mut handler, b""), Outcome::Passed(Pass::Upcall));
    }
    assert_eq!(handler.governor_mut().unwrap().workload().ash_abort_probability, 0.0);
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
fn loop_body_of_divisions_ran_far_beyond_the_operations_of_an_invocation() {
    let division = "(local.set $connection (i64.div_u (local.get $connection) (i64.const 3)))";
    let with = |divisions: usize| {
        let body = division.repeat(divisions);
        module(&format!("(loop $again {body} (br $again)) (i32.const 1)"))
    };
    let max = Policy::default().max_body_operations;
    let rejected = sandboxer().load(&with(85_000)).unwrap_err();
    assert!(matches!(rejected.reason, Reason::BodyTooLong(340_000.., m) if m == max));
    assert_eq!(rejected.function.as_deref(), Some("handle"));
    let mut handler = handler_with(Policy::default(), &with(max as usize / 4 - 20));
    let aborted = Outcome::Passed(Pass::Involuntary(Abort::TooManyOperations));
    assert_eq!(run(&mut handler, b""), aborted);
}

#[test]
fn index_at_the_end_of_its_range_overflowed_when_it_was_rewritten() {
    let mut wasm = module("(i32.const 1)");
    // A section of names: the function 2^32 - 1 is `x`.
    let names = [1, 8, 1, 0xff, 0xff, 0xff, 0xff, 0x0f, 1, b'x'];
    wasm.extend([0, 5 + names.len() as u8, 4]);
    wasm.extend(b"name");
    wasm.extend(names);
    let rejected = sandboxer().load(&wasm).unwrap_err();
    assert!(matches!(rejected.reason, Reason::Invalid(_)), "{rejected}");
}

#[test]
fn error_was_reported_at_the_place_in_the_rewritten_module() {
    let text = r#"(module
        (import "ash" "send" (func (param i32 i32) (result i32)))
        (memory (export "memory") 1 1)
        (func (export "ash_handle") (param i32 i32 i64 i32) (result i32)
            (memory.copy (i32.const 0) (i32.const 8) (i32.const 8)) (i32.const 1))
        (func (drop (f32.const 1.5))))"#;
    let wasm = wat::parse_str(text).unwrap();
    let at = wasm.windows(5).rposition(|bytes| bytes == [0x43, 0, 0, 0xc0, 0x3f]).unwrap();
    let rejected = sandboxer().load(&wasm).unwrap_err();
    assert_eq!(rejected.function.as_deref(), Some("2"), "{rejected}");
    let Reason::Invalid(reason) = &rejected.reason else { panic!("{rejected}") };
    assert!(reason.contains(&format!("(at offset {at:#x})")), "{reason}, not at {at:#x}");
}

/// A handler that applies a list to the message.
fn reader(list: &PipeList, prefer: Prefer) -> Handler {
    let mut handler = handler(
        "(i32.store (i32.const 64)
             (call $read_apply (i32.const 0) (local.get $offset) (local.get $length)))
         (drop (call $send (i32.const 64) (i32.const 4)))
         (i32.const 1)",
    );
    handler.add_pipes(list.compile_with(Mode::Read, prefer).unwrap(), Vec::new());
    handler
}

#[test]
fn pipes_were_charged_as_a_copy_however_long_they_were() {
    let mut list = PipeList::new();
    for _ in 0..16 {
        let mut pipe = Pipe::builder("add", Gauge::Bits8);
        let word = pipe.input();
        (0..60).for_each(|_| pipe.binary(Binary::Add, Gauge::Bits8, word, word, 1));
        pipe.output(word);
        list.add(pipe.build().unwrap()).unwrap();
    }
    let mut sum = PipeList::new();
    sum.add(checksum::pipe()).unwrap();
    let operations = |handler: &mut Handler, message: &[u8]| {
        let before = handler.counters().operations;
        assert_eq!(run(handler, message), Outcome::Handled);
        (handler.counters().operations - before, sent(handler).remove(0))
    };
    let mut kernel = reader(&sum, Prefer::Kernel);
    let (few, status) = operations(&mut kernel, &[0; 1024]);
    assert!(few < 1000 && status == [0; 4], "{few}");
    let mut generated = reader(&list, Prefer::Generated);
    let (many, status) = operations(&mut generated, &[0; 16]);
    assert!(many >= 16 * 60 * 16 && status == [0; 4], "{many}");
    let mut interpreted = reader(&sum, Prefer::Interpreted);
    let (slow, _) = operations(&mut interpreted, &[0; 1024]);
    assert!(slow > 4 * few, "{slow}");
    // More than an invocation has; the longest path has what the short reply takes.
    let before = generated.counters().operations;
    assert_eq!(run(&mut generated, &[0; 1024]), Outcome::Handled);
    assert_eq!(sent(&generated), [(-2i32).to_le_bytes()]);
    assert_eq!(generated.counters().operations - before, Policy::default().max_operations);
    assert_eq!(bytes(&generated, 64..68), (-2i32).to_le_bytes());
}

#[test]
fn portable_kernel_was_charged_as_a_copy() {
    let mut list = PipeList::new();
    list.add(crc32c::pipe()).unwrap();
    let charged = |prefer, len: usize| {
        let mut handler = reader(&list, prefer);
        assert_eq!(run(&mut handler, &vec![0; len]), Outcome::Handled);
        assert_eq!(sent(&handler), [[0; 4]]);
        handler.counters().operations
    };
    // Eight look-ups in tables for a word.
    let words = charged(Prefer::PortableKernel, 1024) - charged(Prefer::PortableKernel, 0);
    assert!(words >= 128 * 32, "{words}");
    let bytes = charged(Prefer::PortableKernel, 7) - charged(Prefer::PortableKernel, 0);
    assert!(bytes >= 7 * 4, "{bytes}");
    // Generated code has its tail interpreted.
    assert!(charged(Prefer::Generated, 1024) - charged(Prefer::Generated, 0) >= 128 * 32);
    assert!(charged(Prefer::Generated, 7) - charged(Prefer::Generated, 0) > bytes);
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

#[test]
fn handler_ran_though_its_governor_preferred_upcalls() {
    let mut handler = handler("(i32.const 1)");
    // A sandbox so slow that two switches of processes take less time.
    let workload = Workload { handler_us: 2000.0, sandboxing_factor: 3.0, ..Workload::default() };
    let governor = Governor::new(Machine::ULTRIX, workload).with_upcalls().with_window(4);
    handler.set_governor(Some(governor));
    let governed = Outcome::Passed(Pass::Governed(Strategy::Upcall));
    for interval in [1, 2] {
        for _ in 0..4 * Governor::FIRST_TRIAL * interval {
            assert_eq!(run(&mut handler, b""), governed);
        }
        // A trial: the workload may have changed.
        for _ in 0..4 {
            assert_eq!(run(&mut handler, b""), Outcome::Handled);
        }
    }
}
