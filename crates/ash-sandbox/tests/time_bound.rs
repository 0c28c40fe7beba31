//! Counts of operations bound time: an operation of a handler, and of the compiler that loads it, takes no longer
//! than a small constant, for any instruction whose operands are in the caches. A load is eight operations, as one that misses
//! them takes up to 100 ns.

#![cfg(feature = "sandbox")]

use std::time::{Duration, Instant};

use ash_sandbox::sandbox::{Bound, Handler, Outcome, Policy, Reason, Rejection, Sandboxer};

/// How much longer an operation may take than one of [`PLAIN`]. A mispredicted branch takes longer than others.
const MAX_RATIO: f64 = 20.0;

/// An endless loop of multiplications that wait for each other.
const PLAIN: &str =
    "(loop $l (local.set $c (i64.mul (local.get $c) (i64.const 7))) (br $l)) unreachable";

/// A module with an entry of these locals and instructions.
fn module(fields: &str, body: &str) -> Vec<u8> {
    let text = format!(
        r#"(module (memory (export "memory") 1 1) {fields}
            (func $handle (export "ash_handle") (param $a i32) (param i32) (param $c i64) (param i32)
                (result i32) {body}))"#
    );
    wat::parse_str(text).unwrap()
}

fn load(fields: &str, body: &str) -> Result<Bound, Rejection> {
    let ash = Sandboxer::new(Policy::default()).unwrap().load(&module(fields, body))?;
    Ok(ash.bound())
}

fn handler(fields: &str, body: &str) -> Handler {
    let sandboxer = Sandboxer::new(Policy::default()).unwrap();
    sandboxer.load(&module(fields, body)).unwrap().instantiate(1).unwrap()
}

/// Returns the shortest time of an operation among several invocations, in nanoseconds.
pub(crate) fn time_of_operation(handler: &mut Handler) -> f64 {
    let start = Instant::now();
    let times = (0..8).map(|second| {
        let (before, begin) = (handler.counters().operations, Instant::now());
        let outcome = handler.handle_copy(b"", 1, start + Duration::from_secs(second));
        let time = begin.elapsed();
        handler.enable();
        let operations = handler.counters().operations - before;
        assert!(operations > 0, "{outcome:?}");
        time.as_nanos() as f64 / operations as f64
    });
    times.fold(f64::INFINITY, f64::min)
}

fn assert_bounded(fields: &str, body: &str) {
    let (mut plain, mut hostile) = (handler("", PLAIN), handler(fields, body));
    let (plain, time) = (time_of_operation(&mut plain), time_of_operation(&mut hostile));
    assert!(time < MAX_RATIO * plain, "{time} ns for an operation; others take {plain} ns");
}

/// Instructions that repeat, with the number of the repetition in the place of `#`.
fn repeated(count: usize, instructions: &str) -> String {
    (0..count).map(|n| instructions.replace('#', &n.to_string())).collect()
}

#[test]
fn branch_moved_any_number_of_values_as_one_operation() {
    for values in [16, 1000] {
        let ty = format!("(type $t (func (param {})))", "i64 ".repeat(values));
        let constants = repeated(values, "(i64.const #)");
        // Each value moves to another place at each iteration.
        let body = format!("{constants} (loop $l (type $t) (local.get $c) (br $l)) unreachable");
        match load(&ty, &body) {
            Ok(_) => assert_bounded(&ty, &body),
            Err(rejection) => assert!(values > 16, "{rejection}"),
        }
    }
}

#[test]
fn branch_moved_any_number_of_locals_as_one_operation() {
    let locals = 200;
    let names = repeated(locals, "(local $l# i64)");
    let init = repeated(locals, "(local.set $l# (i64.load offset=# (i32.const 0)))");
    // Each local gets the value of the one before, on a path that is not taken.
    let gets = repeated(locals, "(local.get $l#)");
    let sets: String =
        (0..locals).rev().map(|n| format!("(local.set $l{})", (n + 1) % locals)).collect();
    let stores = repeated(locals, "(i64.store offset=# (i32.const 0) (local.get $l#))");
    let body = format!(
        "{names} {init}
         (loop $l (if (local.get $a) (then) (else {gets} {sets})) (br_if $l (i32.const 1)))
         {stores} unreachable"
    );
    assert_bounded("", &body);
}

#[test]
fn functions_that_returned_ran_on_behind_the_bound() {
    // 1,000 calls are nested; each continues when the inner one has returned.
    let multiply = "(local.set $n (i64.mul (local.get $n) (i64.or (local.get $n) (i64.const 3))))";
    let function = format!(
        "(func $f (param $depth i32) (result i64) (local $n i64)
            (if (i32.eqz (local.get $depth)) (then (return (i64.const 5))))
            (local.set $n (call $f (i32.sub (local.get $depth) (i32.const 1))))
            {} (local.get $n))",
        multiply.repeat(1500)
    );
    assert_bounded(&function, "(i32.wrap_i64 (call $f (i32.const 1000)))");
}

#[test]
fn empty_loops_were_no_operations() {
    let (gets, sets) = (repeated(40, "(local.get $l#)"), repeated(40, "(local.set $l#)"));
    let locals = repeated(40, "(local $l# i64)");
    for loops in [
        "(loop)".repeat(600),
        "(loop ".repeat(600) + &")".repeat(600),
        "(block (loop (br 1)))".repeat(500),
        "(drop (loop (result i64) (local.get $c)))".repeat(500),
        "(if (local.get $a) (then (loop)) (else (loop)))".repeat(250),
        // Locals live across the loops, and move behind them.
        format!("{} {gets} {sets}", "(loop)".repeat(400)),
    ] {
        assert_bounded("", &format!("{locals} (loop $l {loops} (br $l)) unreachable"));
    }
}

#[test]
fn empty_blocks_were_no_operations() {
    for blocks in ["(block)".repeat(6000), "(block ".repeat(6000) + &")".repeat(6000)] {
        assert_bounded("", &format!("(loop $l {blocks} (br $l)) unreachable"));
    }
}

#[test]
fn instructions_with_little_or_no_code_are_bounded() {
    let fields = "(type $t (func)) (table funcref (elem $empty))
        (func $empty (type $t)) (func $returns (block (return)))";
    for body in [
        String::new(),
        "nop ".repeat(10_000),
        "(drop (i32.const 1))".repeat(5000),
        "(local.set $c (local.tee $c (local.get $c)))".repeat(3000),
        "(block (br 0))".repeat(5000),
        "(drop (block (result i64) (local.get $c)))".repeat(2000),
        "(if (local.get $a) (then) (else))".repeat(800),
        "(block (br_if 0 (local.get $a)) (br 0))".repeat(800),
        "(local.set $c (select (local.get $c) (i64.const 1) (local.get $a)))".repeat(2000),
        "(call $empty)".repeat(500),
        "(call $returns)".repeat(500),
        "(call_indirect (type $t) (i32.const 0))".repeat(200),
    ] {
        assert_bounded(fields, &format!("(loop $l {body} (br $l)) unreachable"));
    }
}

#[test]
fn divisions_are_bounded() {
    let chain =
        format!("(i64.const -#) {} (local.set $c)", "(local.get $d) (i64.div_u)".repeat(40));
    let divisor = "(local $d i64) (local.set $d (i64.or (local.get $c) (i64.const 3)))";
    let body = format!("{divisor} (loop $l {} (br $l)) unreachable", repeated(50, &chain));
    assert_bounded("", &body);
}

#[test]
fn loads_are_as_many_operations_before_a_run_as_in_it() {
    let loads = "i32.load i32.load8_s i32.load8_u i32.load16_s i32.load16_u
        i64.load i64.load8_s i64.load8_u i64.load16_s i64.load16_u i64.load32_s i64.load32_u";
    for load in loads.split_whitespace() {
        let loads = format!("(drop ({load} (i32.const 0)))");
        let path = self::load("", &format!("{loads} (i32.const 0)")).unwrap();
        // The load, two constants and a drop; the end moves a value.
        assert_eq!(path, Bound::Acyclic(8 + 3 + 2), "{load}");
        let operations = |rounds: u32| {
            let body = format!(
                "(local $n i32)
                 (loop $l
                     {loads} (local.set $n (i32.add (local.get $n) (i32.const 1)))
                     (br_if $l (i32.lt_u (local.get $n) (i32.const {rounds}))))
                 (i32.const 1)"
            );
            let mut handler = handler("", &body);
            assert_eq!(handler.handle_copy(b"", 1, Instant::now()), Outcome::Handled);
            handler.counters().operations
        };
        // The load, ten other instructions, and the local that the branch moves.
        assert_eq!(operations(11) - operations(10), 8 + 10 + 1, "{load}");
    }
}

#[test]
fn growing_the_memory_was_one_operation() {
    for pages in [0, 1] {
        let grow = format!("(drop (memory.grow (i32.const {pages})))");
        assert_bounded("", &format!("(loop $l {grow} (br $l)) unreachable"));
    }
}

#[test]
fn calls_and_branch_tables_are_bounded() {
    let call = "(call $f (local.get $c) (local.get $c) (i32.const 1))";
    let indirect =
        "(call_indirect (type $t) (local.get $c) (local.get $c) (i32.const 1) (i32.const 0))";
    let fields =
        "(type $t (func (param i64 i64 i32))) (table funcref (elem $f)) (func $f (type $t))";
    for call in [call, indirect] {
        assert_bounded(fields, &format!("(loop $l {} (br $l)) unreachable", call.repeat(50)));
    }
    let blocks = "(block ".repeat(50);
    let targets: String = (0..50).map(|n| format!("{n} ")).collect();
    let body = format!(
        "(loop $l (local.set $c (i64.add (i64.mul (local.get $c) (i64.const 0x5851f42d4c957f2d)) (i64.const 1)))
            {blocks} (br_table {targets} (i32.wrap_i64 (i64.shr_u (local.get $c) (i64.const 58))))
            {} (br $l)) unreachable",
        ")".repeat(50)
    );
    assert_bounded("", &body);
}

#[test]
fn operations_are_those_of_instructions_and_of_what_they_move() {
    let operations = |fields: &str, body: &str| match load(fields, body) {
        Ok(Bound::Acyclic(operations)) => operations,
        other => panic!("{other:?}"),
    };
    let (set, end) = ("(local.set $c (i64.const 1))", "(i32.const 0)");
    // The constant, and the end that moves it.
    assert_eq!(operations("", end), 3);
    // A block, a condition, a branch, a constant and a set, and an end; the branch and the end move the local.
    let block = format!("(block $b (br_if $b (local.get $a)) {set}) {end}");
    assert_eq!(operations("", &block), 3 + 6 + 2);
    // The locals of an `if` move where it begins, as it has no `else`, and where it ends.
    assert_eq!(operations("", &format!("(if (local.get $a) (then {set})) {end}")), 3 + 5 + 2);
    // A branch from the inner block to the outer one moves the local that the outer block sets, too.
    let nested = format!("(block $b (block (br_table 0 1 (local.get $a))) {set}) {end}");
    assert_eq!(operations("", &nested), 3 + 8 + 1 + 1);
    let wide =
        "(type $t (func (param i64 i64 i64) (result i64 i64))) (func $f (type $t) (unreachable))";
    let call =
        format!("(drop (drop (call $f (local.get $c) (local.get $c) (local.get $c)))) {end}");
    // The function has an end that moves two values.
    assert_eq!(operations(wide, &call), 3 + 6 + (2 + 3 + 2) + (2 + 2));
}

#[test]
fn engine_counts_what_the_instructions_move() {
    let operations = |rounds: u32| {
        let body = format!(
            "(local $n i32) (local $x i64) (local $y i64)
             (loop $l
                 (local.set $n (i32.add (local.get $n) (i32.const 1)))
                 (local.set $x (local.get $c)) (local.set $y (local.get $c))
                 (br_if $l (i32.lt_u (local.get $n) (i32.const {rounds}))))
             (i32.const 1)"
        );
        let mut handler = handler("", &body);
        assert_eq!(handler.handle_copy(b"", 1, Instant::now()), Outcome::Handled);
        handler.counters().operations
    };
    // Twelve instructions, and three locals that the branch moves.
    assert_eq!(operations(11) - operations(10), 12 + 3);
}

/// Asserts that a module is rejected, and returns where and why.
fn rejected(fields: &str, body: &str) -> (Option<String>, Reason) {
    let rejection = load(fields, body).expect_err("the module is accepted");
    (rejection.function, rejection.reason)
}

#[test]
fn module_took_minutes_to_load() {
    let max = Policy::default().max_body_operations;
    let function = |body: String| format!("(func $slow (param $a i32) {body})");
    let indirect = "(type $t (func)) (table funcref (elem $slow))";
    for slow in [
        // Locals that nothing uses.
        function(format!("(local {})", "i64 ".repeat(40_000))),
        // Branches with many locals to move.
        function(format!(
            "{} (block $b {})",
            repeated(200, "(local $l# i64)"),
            repeated(200, "(local.set $l# (i64.const #)) (br_if $b (local.get $a))").repeat(10)
        )),
        // Locals in nested loops.
        function(format!(
            "{} {} {} {}",
            repeated(1000, "(local $l# i64)"),
            "(loop ".repeat(20),
            repeated(1000, "(drop (local.get $l#))"),
            ")".repeat(20)
        )),
        function(format!("{} {}", "(loop ".repeat(2000), ")".repeat(2000))),
        // Values that live across many branches.
        function(format!(
            "{} {} {}",
            "(local.get $a) ".repeat(2000),
            "(block (br_if 0 (local.get $a))) ".repeat(500),
            "drop ".repeat(2000)
        )),
        // Tables of branches.
        function(format!(
            "{} {} {}",
            "(block ".repeat(500),
            format!("(block (br_table {} (local.get $a)))", repeated(500, "# ")).repeat(5),
            ")".repeat(500)
        )),
        indirect.to_owned()
            + &function("(call_indirect (type $t) (i32.const 0)) ".repeat(1000))
                .replace("(param $a i32)", ""),
    ] {
        let (function, reason) = rejected(&slow, "(i32.const 0)");
        assert_eq!(function.as_deref(), Some("slow"));
        assert!(matches!(reason, Reason::BodyTooLong(n, m) if n > max && m == max), "{reason:?}");
    }
    let max = Policy::default().max_module_operations;
    for slow in [
        "(data (i32.const 0) \"\")".repeat(10_000),
        "(global i32 (i32.const 0))".repeat(10_000),
        "(table 1 funcref) ".to_owned() + &"(elem (i32.const 0) $handle)".repeat(10_000),
        (0..10_000).map(|n| format!("(export \"{n}\" (func $handle))")).collect(),
        "(type (func (param i64 i64 i64)))".repeat(10_000),
        (0..10).map(|_| format!("(func {})", "(drop (i32.const 1))".repeat(9_000))).collect(),
    ] {
        let (function, reason) = rejected(&slow, "(i32.const 0)");
        assert_eq!(function, None);
        assert!(matches!(reason, Reason::TooMuchCode(n, m) if n > max && m == max), "{reason:?}");
    }
    let wide = format!("(type (func)) (type (func (param {})))", "i64 ".repeat(17));
    assert_eq!(rejected(&wide, "(i32.const 0)").1, Reason::TypeTooWide(1, 17, 16));
}

#[test]
fn example_handlers_need_a_tenth_of_what_the_policy_permits() {
    let policy = Policy::default().with(|p| {
        p.max_body_operations /= 10;
        p.max_module_operations /= 10;
    });
    let sandboxer = Sandboxer::new(policy).unwrap();
    let directory =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/handlers");
    let mut loaded = 0;
    for file in std::fs::read_dir(directory).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "wasm" || extension == "wat") {
            let wasm = wat::parse_file(&path).unwrap();
            sandboxer.load(&wasm).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            loaded += 1;
        }
    }
    assert!(loaded > 8, "{loaded} handlers");
}

/// Generates loops, blocks and conditions of the first `kinds`, empty or nested, of which none repeats.
fn constructs(random: &mut fastrand::Rng, kinds: usize, depth: u32) -> String {
    let count = if depth == 0 { 0 } else { random.usize(..4) };
    let inner: String = (0..count).map(|_| constructs(random, kinds, depth - 1)).collect();
    match random.usize(..kinds) {
        0..3 => format!("(loop {inner})"),
        3 => format!("(block {inner})"),
        4 => format!("(block {inner} (br 0))"),
        5 => format!("(block (br_if 0 (local.get $a)) {inner})"),
        6 => format!("(if (local.get $a) (then {inner}))"),
        7 => format!("(if (local.get $a) (then) (else {inner}))"),
        8 => format!("(local.set $l0 (loop (result i64) {inner} (local.get $l1)))"),
        other => unreachable!("{other}"),
    }
}

/// Generates an endless loop of constructs with few instructions, perhaps with none.
fn sparse(random: &mut fastrand::Rng) -> String {
    let kinds = random.usize(1..=9);
    let inner: String = (0..random.usize(1..100)).map(|_| constructs(random, kinds, 4)).collect();
    format!("(local $l0 i64) (local $l1 i64) (loop $l {inner} (br $l)) unreachable")
}

/// Generates the body of an endless loop that moves many values: rotated locals in branches that are taken or not, wide
/// blocks, tables of branches and calls, and constructs with few instructions.
fn wide(random: &mut fastrand::Rng) -> String {
    let locals = random.usize(2..60);
    let names = repeated(locals, "(local $l# i64)");
    let init = repeated(locals, "(local.set $l# (i64.load offset=# (i32.const 0)))");
    let stores = repeated(locals, "(i64.store offset=# (i32.const 0) (local.get $l#))");
    let mut steps = String::new();
    for _ in 0..random.usize(1..12) {
        let (count, by) = (random.usize(2..=locals), random.usize(1..locals));
        let gets = repeated(count, "(local.get $l#)");
        let sets: String =
            (0..count).rev().map(|n| format!("(local.set $l{})", (n + by) % locals)).collect();
        let condition = ["(i32.const 0)", "(local.get $a)", "(i32.wrap_i64 (local.get $l0))"];
        let condition = condition[random.usize(..3)];
        let values = random.usize(1..=16).min(locals);
        let some = repeated(values, "(local.get $l#)");
        let kept: String =
            (0..values).map(|n| format!("(local.set $l{})", (n + by) % locals)).collect();
        let results = "i64 ".repeat(values);
        steps += &match random.usize(..7) {
            0 => format!("(if {condition} (then) (else {gets} {sets}))"),
            1 => format!("(block $b (br_if $b {condition}) {gets} {sets})"),
            2 => format!("(block (result {results}) {some} (br_if 0 {condition})) {kept}"),
            3 => {
                let outer = "(block ".repeat(count);
                let targets = repeated(count, "# ");
                format!(
                    "{outer} (br_table {targets} {condition}) {} {gets} {sets}",
                    ")".repeat(count)
                )
            }
            4 => format!(
                "(call $f {} ) (local.set $l1) (local.set $l0)",
                "(local.get $l0)".repeat(16)
            ),
            5 => format!(
                "(call_indirect (type $t) {} (i32.const 0)) (local.set $l0) (local.set $l1)",
                "(local.get $l1)".repeat(16)
            ),
            _ => (0..random.usize(1..40)).map(|_| constructs(random, 9, 4)).collect(),
        };
    }
    format!("{names} {init} (loop $l {steps} (br_if $l (i32.const 1))) {stores} (unreachable)")
}

/// Asserts that modules with generated bodies take no longer than others, if they are accepted, as most are.
fn assert_all_bounded(fields: &str, generate: impl Fn(&mut fastrand::Rng) -> String) {
    let plain = time_of_operation(&mut handler("", PLAIN));
    let mut accepted = 0;
    for seed in 0..60 {
        let body = generate(&mut fastrand::Rng::with_seed(seed));
        if load(fields, &body).is_err() {
            continue;
        }
        accepted += 1;
        let time = time_of_operation(&mut handler(fields, &body));
        assert!(
            time < MAX_RATIO * plain,
            "seed {seed}: {time} ns for an operation, not {plain} ns"
        );
    }
    assert!(accepted > 30, "{accepted} modules were accepted");
}

#[test]
fn generated_modules_with_wide_types_take_no_longer() {
    let fields = format!(
        "(type $t (func (param {}) (result i64 i64))) (table funcref (elem $f))
         (func $f (type $t) (local.get 3) (local.get 15))",
        "i64 ".repeat(16)
    );
    assert_all_bounded(&fields, wide);
}

#[test]
fn generated_modules_with_few_instructions_take_no_longer() {
    assert_all_bounded("", sparse);
}
