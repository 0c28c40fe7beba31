//! The bound of the operations of an invocation, and the budgets of tenants.
#![cfg(feature = "sandbox")]

use crate::memory;
use crate::sandbox::{handler, handler_with, module, module_with, run, sandboxer, sent};

use std::time::{Duration, Instant};

use ash_sandbox::ilp::{Binary, Gauge, Mode, Pipe, PipeList, Prefer, checksum, crc32c};
use ash_sandbox::sandbox::{
    Abort, Bound, Handler, Loops, Outcome, Pass, Policy, Reason, Sandboxer,
};
use memory::bytes;

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
fn idle_tenant_used_the_operations_of_a_second_at_once() {
    let policy = Policy::default().with(|p| p.operations_per_second = 10_000_000);
    let max = policy.max_operations;
    let sandboxer = Sandboxer::new(policy).unwrap();
    let native = sandboxer.trust(1, 1 << 16, |calls| {
        assert_eq!(calls.copy(0, 0, 1 << 16), 0);
        1
    });
    let (mut native, start) = (native.unwrap(), Instant::now());
    let mut used_at = |after: Duration| {
        let before = native.counters().operations;
        while native.handle_copy(b"", 1, start + after) == Outcome::Handled {}
        native.counters().operations - before
    };
    // An invocation needs its maximum, so less than that is left.
    for seconds in [0, 1, 60] {
        let used = used_at(Duration::from_secs(seconds));
        assert!(used > 1_000_000 - max && used <= 1_000_000, "{used} at {seconds} s");
    }
    let used = used_at(Duration::from_millis(60_020));
    assert!(used > 200_000 - max && used <= 200_000 + max, "{used} in 20 ms");
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
    // Generated code has branches at the end of a message.
    assert!(charged(Prefer::Generated, 1024) - charged(Prefer::Generated, 0) >= 128 * 32);
    assert!(charged(Prefer::Generated, 7) - charged(Prefer::Generated, 0) > bytes);
}

#[test]
fn handler_whose_path_exceeds_the_operations_of_a_second_was_never_invoked() {
    let body = "(drop (i32.const 1))".repeat(100) + "(i32.const 1)";
    for (operations_per_second, is_loaded) in [(1_000, true), (50, false)] {
        let policy = Policy::default().with(|p| p.operations_per_second = operations_per_second);
        match Sandboxer::new(policy).unwrap().load(&module(&body)) {
            Ok(ash) => {
                assert!(is_loaded);
                let mut handler = ash.instantiate(1).unwrap();
                assert_eq!(run(&mut handler, b"x"), Outcome::Handled);
            }
            Err(rejection) => {
                assert!(!is_loaded, "{rejection}");
                assert!(rejection.to_string().contains("the policy permits 50"), "{rejection}");
            }
        }
    }
}
